#!/usr/bin/env bash
# The whole road on this machine: render a DeepSeek-V3.2-NVFP4 deployment for 4x GB200, start it on
# a real Triton Inference Server with a miniature of the model, smoke-test and measure it, stop it,
# write a report.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
preset=${1:-deepseek-v3.2-nvfp4-gb200}
if [[ $preset == -* ]]; then
  echo "usage: launch/demo.sh [PRESET]"
  exit 2
fi
# shellcheck source=launch/setup.sh
source "$here/launch/setup.sh" rehearse

folder=$here/runs/demo
mkdir -p "$folder"

say "1. Render $preset"
"$PYTHON" -m builder render "$preset" -o "$folder/bundle"

say "2. Rehearse it: same files, same server, a miniature model on the CPU"
exec "$PYTHON" -m launch rehearse "$folder/bundle" \
  --run-dir "$folder/$(date -u +%Y%m%dT%H%M%SZ)-$$"
