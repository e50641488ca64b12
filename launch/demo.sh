#!/usr/bin/env bash
# The whole road on this machine: render a DeepSeek-V3.2-NVFP4 deployment for 4x GB200, start it on
# a real Triton Inference Server with a miniature of the model, smoke-test and measure it, stop it,
# write a report. With --compare, the same deployment for a second engine is measured as well, and
# both are on one page; its CPU build serves if it is set up and knows the model.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
preset=deepseek-v3.2-nvfp4-gb200
other=
usage() {
  echo "usage: launch/demo.sh [PRESET] [--compare ENGINE]"
  exit 2
}
while [[ $# -gt 0 ]]; do
  case $1 in
    --compare) other=${2:-} && [[ -n $other ]] || usage && shift 2 ;;
    -*) usage ;;
    *) preset=$1 && shift ;;
  esac
done
# shellcheck source=launch/setup.sh
source "$here/launch/setup.sh" rehearse

folder=$here/runs/demo
mkdir -p "$folder"
results=$folder/$(date -u +%Y%m%dT%H%M%SZ)-$$

say "1. Render $preset"
"$PYTHON" -m builder render "$preset" -o "$folder/bundle"
if [[ -n $other ]]; then
  # Its newest known release, and its own server.
  found=$(PYTHONPATH=$here "$PYTHON" -c '
import sys
from builder.facts import engines, release, servers
name = sys.argv[1]
if name not in engines.names():
    sys.exit("demo: no engine " + name + "; known: " + ", ".join(engines.names()))
own = [one for one in servers.names() if servers.load(one).engines == (name,)]
print(release.known(engines.load(name))[-1], own[-1])' "$other")
  read -r release server <<<"$found"
  "$PYTHON" -m builder render "$preset" -o "$folder/bundle-$other" \
    --set "engine={name: $other, release: $release}" --set "targets={$server: {}}" \
    --set engine_config={}
fi

say "2. Rehearse it: same files, same server, a miniature model on the CPU"
if [[ -z $other ]]; then
  exec "$PYTHON" -m launch rehearse "$folder/bundle" --run-dir "$results"
fi
"$PYTHON" -m launch rehearse "$folder/bundle" --run-dir "$results"
"$PYTHON" -m launch rehearse "$folder/bundle-$other" --run-dir "$results-$other"

say "3. Both on one page"
"$PYTHON" -m launch report "$results" "$results-$other" -o "$results-$other/both.html"
