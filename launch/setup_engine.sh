#!/usr/bin/env bash
# The CPU build of an engine, in an environment of its own: `bash launch/setup_engine.sh vllm`.
#
# It is optional: with it, rehearsals run the engine itself instead of the reference engine. Nothing
# of it comes into .venv. Interrupted, it goes on with what is there already. ENGINE_ENVIRONMENTS
# names another folder for it than .engines in the checkout.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
engine=${1:?give the name of an engine, as vllm}
# shellcheck source=launch/setup.sh
source "$here/launch/setup.sh" "${2:-launch}"

# Its record: what is installed, how much that is, and what is left out of it.
record=$(PYTHONPATH=$here "$PYTHON" -c '
import sys
from builder.facts import engines
name = sys.argv[1]
if name not in engines.names():
    sys.exit("setup: no engine " + name + "; known: " + ", ".join(engines.names()))
build = engines.load(name).cpu_build
if build is None:
    sys.exit("setup: " + name + " has no CPU build")
print(build.requirement, f"{build.disk_gb:g}", *build.unfit, *build.unneeded)' "$engine")
read -r requirement disk_gb left_out <<<"$record"

folder=${ENGINE_ENVIRONMENTS:-$here/.engines}/$engine
if [[ $(cat "$folder/complete" 2>/dev/null) == "$requirement" ]]; then
  say "setup: $requirement is in $folder"
  exit
fi
python=$(find_python) || fail "Python 3.11 or 3.12 with venv is missing"
say "setup: fetching $requirement and what it needs into $folder: about 0.6 GB, $disk_gb GB on disk"
rm -f "$folder/complete"
# What follows is installed into that environment.
PYTHON=$folder/bin/python
if ! "$PYTHON" -m pip --version >/dev/null 2>&1; then
  rm -rf "$folder"
  quietly "$python" -m venv "$folder"
fi
install_torch
# shellcheck disable=SC2086  # names of packages
uv_fetch --excludes <(printf '%s\n' $left_out) "$requirement" ||
  { pip_fetch install "$requirement" && quietly "$PYTHON" -m pip uninstall --yes $left_out; } ||
  fail "installing failed, see $log; repeat to go on"
printf '%s' "$requirement" >"$folder/complete"
say "setup: $requirement is in $folder"
