#!/usr/bin/env bash
# Lint, types and tests; sets up everything that they need. Arguments go to pytest.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=launch/setup.sh
source "$here/launch/setup.sh" rehearse,dev
cd "$here" || exit 1

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

step "ruff format" "$PYTHON" -m ruff format --check --quiet .
step "ruff check" "$PYTHON" -m ruff check --quiet .
step "mypy" "$PYTHON" -m mypy
step "shellcheck" "$here/.venv/bin/shellcheck" launch/*.sh tests/*.sh
step "pytest" "$PYTHON" -m pytest "$@"

printf '\n'
for index in "${!names[@]}"; do
  printf '%-12s %s\n' "${names[$index]}" "${results[$index]}"
done
exit "$failed"
