#!/usr/bin/env bash
# Lint, types and tests; sets up everything that they need.
#   tests/run.sh                    everything, side by side
#   tests/run.sh fast               lint, types and the tests of the builder: no server, no package
#   tests/run.sh changed            lint, types and the tests that a change can reach (tests/reach.py)
#   tests/run.sh [fast] ARGUMENT... the arguments go to pytest, which runs what they name
#   TEST_VLLM=1 tests/run.sh        the tests on vLLM itself as well: its CPU build, 2.3 GB on disk
# Under CI=true whatever could not be installed fails the run; elsewhere its tests are skipped.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$here" || exit 1
# shellcheck source=launch/setup.sh
source "$here/launch/setup.sh" rehearse,dev

# Programs that run are compiled once, also where the machine's own rule is to keep none.
unset PYTHONDONTWRITEBYTECODE

fast=
if [[ ${1:-} == fast ]]; then
  fast=1
  shift
fi

missing=()
need() { # NAME FUNCTIONS WHAT_IS_LEFT_OUT
  "find_$2" >/dev/null || "install_$2" || missing+=("$1 could not be installed: no $3")
}

# What differs from main; tests of the builder alone need no tools.
reached=()
changed=
if [[ ${1:-} == changed ]]; then
  changed=1
  shift
  mapfile -t reached < <("$PYTHON" -m tests.reach | sed '/^$/d')
  printf '== the change reaches %s test files\n' "${#reached[@]}"
  printf '%s\n' "${reached[@]}" | grep -qvE '^(tests/builder/|$)' || fast=1
fi

if [[ -z $fast ]]; then
  need "a browser" browser "tests that look at pages"
  need Slurm slurm "tests on a cluster"
  need Prometheus prometheus "tests of monitoring"
  need "kubectl or Docker Compose" cluster_tools "tests that run them"
  need Docker docker "tests of Compose files on an engine"
  need "OpenSSH or OpenSSL" signing "tests of signatures"
  need "an image registry" registry "tests of digests"
  need "zsh" zsh "tests of completion in it"
  need "Open MPI" mpi "tests of servers on several nodes"
fi

names=()
results=()
failed=0

step() {
  local name=$1
  shift
  printf '== %s\n' "$name"
  if "$@"; then results+=(passed); else
    results+=(FAILED)
    failed=1
  fi
  names+=("$name")
}

# A step next to those that follow, up to `join NAME`, which prints its output. Those that wait for
# servers go first: a server that is late costs its tests their time.
declare -A begun=()
beside=$(mktemp -d)
trap 'rm -rf "$beside"' EXIT
begin() { # NAME COMMAND...
  local name=$1
  shift
  { renice -n 5 -p "$BASHPID" >/dev/null; "$@"; } >"$beside/$name" 2>&1 &
  begun[$name]=$!
}
# shellcheck disable=SC2329  # called by step
ended() {
  wait "${begun[$1]}"
  local status=$?
  cat "$beside/$1"
  return "$status"
}
join() { step "$1" ended "$1"; }

finish() {
  printf '\n'
  for index in "${!names[@]}"; do
    printf '%-13s %s\n' "${names[$index]}" "${results[$index]}"
  done
  if [[ -s $beside/alone ]]; then
    sed 's/^/failed first, passed alone: /' "$beside/alone"
  fi
  if [[ ${#missing[@]} -gt 0 ]]; then
    printf 'left out      %s\n' "${missing[@]}"
  fi
  if [[ ${#ask_for[@]} -gt 0 ]]; then
    printf 'for those, an administrator of this machine installs: %s\n' "${ask_for[*]}"
  fi
  exit "$failed"
}

if [[ -n ${CI:-} && ${#missing[@]} -gt 0 ]]; then
  printf 'tests: CI has to run everything; %s\n' "${missing[@]}" >&2
  failed=1
  finish
fi

# The end of this shell, however it ends, ends pytest and all that it started: tests/watcher.py.
# shellcheck disable=SC2329  # called by step
run_pytest() { TEST_SHELL=$$ TEST_FAST=$fast "$PYTHON" -m pytest "$@"; }

# A few failures are run again, one by one (tests/again.py), and named in any case. Runs side by side
# have a cache each.
# shellcheck disable=SC2329  # called by step and begin
run_all() { # CACHE ARGUMENT...
  local status=0 again=() cache=.pytest_cache/$1
  shift
  rm -f "$cache/v/cache/lastfailed"
  run_pytest -o "cache_dir=$cache" "$@" || status=$?
  [[ $status -eq 1 ]] || return "$status"
  mapfile -t again < <("$PYTHON" -m tests.again "$cache" | sed '/^$/d')
  [[ ${#again[@]} -gt 0 ]] || return 1
  printf '== again, one by one: %s\n' "${again[@]}"
  run_pytest -o "cache_dir=$cache" "${again[@]}" || return 1
  printf '%s\n' "${again[@]}" >>"$beside/alone"
}

# Those on vLLM itself have a step of their own, since its servers outrun a client that has to share
# the processors; what they need is fetched beside the others.
vllm_wanted=${TEST_VLLM:-}
unset TEST_VLLM
# shellcheck disable=SC2329  # called by begin
set_up_vllm() { timeout 1800 bash "$here/launch/setup_engine.sh" vllm rehearse,dev; }
# shellcheck disable=SC2329  # called by step
run_on_vllm() {
  TEST_SHELL=$$ TEST_VLLM=1 timeout 900 "$PYTHON" -m pytest -p no:cacheprovider \
    --numprocesses 2 --dist loadgroup --no-loadscope-reorder --durations 5 tests/vllm
}

# Tests of the builder compute, one worker for each processor; the others mostly wait for servers, two
# for each. They run side by side, so that each worker collects its part only. Tests that share
# servers stay together (tests/groups.py).
grouped=(--dist loadgroup --no-loadscope-reorder)
processors=$(nproc)
waiting=$((processors * 2 > 8 ? 8 : processors * 2))
computing=(--numprocesses "$processors" "${grouped[@]}" tests/builder tests/test_architecture.py)
others=(--numprocesses "$waiting" "${grouped[@]}" tests)
others+=(--ignore tests/builder --ignore tests/test_architecture.py --ignore tests/reference)
# What an older Slurm of the distribution cannot show: blocks of a topology, and --segment; and
# whether the newer one takes the script of every preset.
newer=${SLURM_ROOT:-/opt/slurm-newer}
# shellcheck disable=SC2329  # called by begin
run_on_newer_slurm() {
  quietly timeout -s INT 1200 tests/newer_slurm.sh "$newer" || return 0 # said at the end
  # What failed in the run beside it is in the cache, which this one leaves alone.
  SLURM_ROOT="$newer" run_pytest -p no:cacheprovider \
    -k "segment or block or several_nodes or every_preset and gpus_per_node-trtllm" \
    tests/slurm/test_accepted.py tests/launch/slurm/test_probe.py
}

# Its imports take seconds, which each of the workers would spend.
# shellcheck disable=SC2329  # called by begin
run_on_reference_engine() { run_pytest -p no:cacheprovider tests/reference; }

step "ruff format" "$PYTHON" -m ruff format --check --quiet .
step "ruff check" "$PYTHON" -m ruff check --quiet .
step "shellcheck" "$here/.venv/bin/shellcheck" launch/*.sh tests/*.sh
begin "mypy" "$PYTHON" -m mypy
if [[ -n $changed ]]; then
  [[ ${#reached[@]} -eq 0 ]] ||
    step "pytest" run_pytest --numprocesses "$waiting" "${grouped[@]}" "${reached[@]}" "$@"
  join "mypy"
  finish
elif [[ $# -gt 0 ]]; then
  step "pytest" run_pytest "$@"
  join "mypy"
  finish
elif [[ -n $fast ]]; then
  step "pytest" run_pytest "${computing[@]}"
  join "mypy"
  finish
fi
if [[ $(id -u) -eq 0 ]]; then
  [[ -x $newer/usr/sbin/slurmctld ]] ||
    say "tests: fetching Debian 13's Slurm into $newer with debootstrap, 0.4 GB on disk"
  begin "newer Slurm" run_on_newer_slurm
fi
if [[ -n $vllm_wanted ]]; then
  begin "vLLM set-up" set_up_vllm
  others+=(--ignore tests/vllm)
else
  missing+=("vLLM's CPU build, 2.3 GB, is not wanted: no tests on it (TEST_VLLM=1)")
fi
begin "reference" run_on_reference_engine
begin "builder" run_all builder "${computing[@]}"
step "pytest" run_all servers "${others[@]}"
join "builder"
join "mypy"
join "reference"
if [[ -n $vllm_wanted ]]; then
  join "vLLM set-up"
  [[ ${results[-1]} == FAILED ]] || step "on vLLM" run_on_vllm
fi
if [[ -n ${begun["newer Slurm"]:-} ]]; then
  join "newer Slurm"
fi
if [[ ! -x $newer/usr/sbin/slurmctld ]]; then
  missing+=("a newer Slurm could not be installed (tests/newer_slurm.sh): no --segment and blocks")
  if [[ -n ${CI:-} ]]; then
    failed=1
  fi
fi

finish
