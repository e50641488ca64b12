# shellcheck shell=bash
# The environment that the demo and the tests share: .venv in the checkout, made on first use.
#
# Source it with the extras that are needed: `source launch/setup.sh rehearse`. It needs the network
# only when .venv does not hold them yet. Sets PYTHON to the environment's interpreter.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
extras=${1:?give the extras to install}
PYTHON=$root/.venv/bin/python

say() { printf '%s\n' "$*" >&2; }

fail() {
  say "setup: $*"
  exit 1
}

# A Python with venv and its shared library, which Triton's Python backend loads. Newer ones than
# 3.12 have no numpy < 2, older ones than 3.11 lack what the toolkit uses.
find_python() {
  local name
  for name in python3.11 python3.12; do
    if "$name" -c "$usable" 2>/dev/null; then
      command -v "$name"
      return
    fi
  done
  return 1
}

usable='
import ctypes, ensurepip, sysconfig, venv
ctypes.CDLL(sysconfig.get_config_var("LIBDIR") + "/" + sysconfig.get_config_var("INSTSONAME"))
'

as_root() {
  if [[ $(id -u) -eq 0 ]]; then "$@"; else sudo -n "$@"; fi
}

# Debian and Ubuntu split venv off from Python.
install_python() {
  command -v apt-get >/dev/null || return 1
  local version
  say "setup: no Python 3.11 or 3.12 with venv found; installing one with apt-get"
  as_root apt-get update -qq >&2 || return 1
  for version in 3.11 3.12; do
    as_root apt-get install -y -qq "python$version" "python$version-venv" \
      "libpython$version" >&2 && return
  done
  return 1
}

check_platform() {
  [[ $(uname -s) == Linux ]] || fail "Linux is needed for Triton; this is $(uname -s)"
  case $(uname -m) in
    x86_64 | aarch64) ;;
    *) fail "x86_64 or aarch64 is needed for Triton; this is $(uname -m)" ;;
  esac
  local glibc
  glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null | cut -d' ' -f2)
  [[ $(printf '%s\n' 2.35 "${glibc:-0}" | sort -V | head -n1) == 2.35 ]] ||
    fail "glibc 2.35 or newer is needed for Triton; this machine has ${glibc:-none}"
}

make_environment() {
  local python
  check_platform
  # An environment whose making was interrupted has a Python, but no pip.
  if ! "$PYTHON" -m pip --version >/dev/null 2>&1; then
    python=$(find_python) || { install_python && python=$(find_python); } ||
      fail "Python 3.11 or 3.12 with venv and its shared library is missing and could not be" \
        "installed; on Debian and Ubuntu: python3.11 python3.11-venv libpython3.11"
    say "setup: creating $root/.venv with $python"
    rm -rf "$root/.venv"
    mkdir -p "$root/.venv/tmp"
    TMPDIR=$root/.venv/tmp "$python" -m venv "$root/.venv" 2>"$root/.venv/setup.log" || {
      tail -n 3 "$root/.venv/setup.log" >&2
      fail "$root/.venv could not be made"
    }
    rmdir "$root/.venv/tmp"
  fi
  say "setup: installing the extras $extras into $root/.venv; the first time takes a minute or two"
  "$PYTHON" -m pip install --quiet --disable-pip-version-check \
    --editable "${root}[$extras]" >"$root/.venv/setup.log" 2>&1 || {
    tail -n 20 "$root/.venv/setup.log" >&2
    fail "installing failed, see $root/.venv/setup.log; is the network reachable?"
  }
}

# The stamp names what was installed, and where: a moved checkout is set up again.
stamp=$root/.venv/installed-${extras//,/-}
wanted="$root $(sha256sum <"$root/pyproject.toml")"
if [[ ! -x $PYTHON || $(cat "$stamp" 2>/dev/null) != "$wanted" ]]; then
  make_environment
  printf '%s' "$wanted" >"$stamp"
fi
