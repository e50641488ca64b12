#!/usr/bin/env bash
# Lint, types and tests; sets up everything that they need. Arguments go to pytest.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=launch/setup.sh
source "$here/launch/setup.sh" rehearse,dev
cd "$here" || exit 1
find_browser >/dev/null || install_browser ||
  say "tests: no browser could be installed; tests that look at pages are skipped"
find_slurm || install_slurm ||
  say "tests: Slurm could not be installed; tests on a cluster are skipped"
(find_prometheus || install_prometheus) ||
  say "tests: Prometheus could not be installed; tests of monitoring are skipped"
find_cluster_tools || install_cluster_tools ||
  say "tests: kubectl and Docker Compose could not be installed; tests that run them are skipped"
(find_docker || install_docker) ||
  say "tests: Docker could not be installed; tests of Compose files on an engine are skipped"
find_signing || install_signing ||
  say "tests: OpenSSH and OpenSSL could not be installed; tests of signatures fail"
find_mpi || install_mpi ||
  say "tests: Open MPI could not be installed; tests of servers on several nodes are skipped"

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

finish() {
  printf '\n'
  for index in "${!names[@]}"; do
    printf '%-13s %s\n' "${names[$index]}" "${results[$index]}"
  done
  exit "$failed"
}

step "ruff format" "$PYTHON" -m ruff format --check --quiet .
step "ruff check" "$PYTHON" -m ruff check --quiet .
step "mypy" "$PYTHON" -m mypy
step "shellcheck" "$here/.venv/bin/shellcheck" launch/*.sh tests/*.sh
if [[ $# -gt 0 ]]; then
  step "pytest" "$PYTHON" -m pytest "$@"
  finish
fi
# Limits of time first, before servers that others leave running for each other.
step "pytest alone" "$PYTHON" -m pytest -m alone
step "pytest" "$PYTHON" -m pytest -m "not alone"
# What an older Slurm of the distribution cannot show: blocks of a topology, and --segment.
newer=${SLURM_ROOT:-/opt/slurm-newer}
if [[ $(id -u) -eq 0 ]] && timeout -s INT 300 tests/newer_slurm.sh "$newer" 2>/dev/null; then
  step "newer Slurm" env SLURM_ROOT="$newer" "$PYTHON" -m pytest tests/slurm/test_accepted.py \
    tests/launch/slurm/test_probe.py
else
  say "tests: no newer Slurm could be installed (tests/newer_slurm.sh); left out: --segment and blocks"
fi

finish
