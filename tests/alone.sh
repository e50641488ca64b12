#!/usr/bin/env bash
# Each test file in a run of its own: what passes only after another file is found here.
#   tests/alone.sh            the files that start no server
#   tests/alone.sh FILE...    these
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
PYTHON=${PYTHON:-.venv/bin/python}
files=("$@")
if [[ ${#files[@]} -eq 0 ]]; then
  mapfile -t files < <(find tests -name 'test_*.py' \
    -not -path 'tests/model_repository/*' -not -path 'tests/reference/*' -not -path 'tests/slurm/*' \
    -not -path 'tests/launch/*' -not -path 'tests/handoff/*' -not -path 'tests/monitoring/*' \
    -not -path 'tests/kubernetes/*' -not -path 'tests/benchmarks/*' \
    -not -name test_killed_runs.py | sort)
  mapfile -t -O "${#files[@]}" files < <(grep -rLE 'reference|served|opened|launch:' \
    --include='test_*.py' tests/launch/bench tests/launch/report | sort)
fi
failed=()
for file in "${files[@]}"; do
  if said=$("$PYTHON" -m pytest "$file" -x -q -p no:cacheprovider 2>&1); then
    printf 'passed  %s\n' "$file"
  else
    printf 'FAILED  %s\n%s\n' "$file" "$(tail -n 15 <<<"$said")"
    failed+=("$file")
  fi
done
printf '%s of %s files failed alone\n' "${#failed[@]}" "${#files[@]}"
[[ ${#failed[@]} -eq 0 ]]
