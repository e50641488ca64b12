#!/usr/bin/env bash
# Serves minimax-m2.5-nvfp4-b300-vllm with vllm serve until it is stopped. Each variable may be set
# from outside.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export CHECKPOINT=${CHECKPOINT:-nvidia/MiniMax-M2.5-NVFP4}
export DRAFT_CHECKPOINT=${DRAFT_CHECKPOINT:-thoughtworks/MiniMax-M2.5-Eagle3}
export SERVE_HOST=${SERVE_HOST:-127.0.0.1}
export SERVE_HTTP_PORT=${SERVE_HTTP_PORT:-8000}
# The engine sends usage data by default; a deployment should not. [documented]
export VLLM_NO_USAGE_STATS=${VLLM_NO_USAGE_STATS-1}
# The same for libraries that keep to the common variable. [documented]
export DO_NOT_TRACK=${DO_NOT_TRACK-1}

options=$here/config.yaml
# The engine reads the draft model's place from its option file only. Where DRAFT_CHECKPOINT names
# another one, it gets a copy of the file with that name in it.
if [[ $DRAFT_CHECKPOINT != thoughtworks/MiniMax-M2.5-Eagle3 ]]; then
  if [[ -d $DRAFT_CHECKPOINT ]]; then DRAFT_CHECKPOINT=$(cd "$DRAFT_CHECKPOINT" && pwd); fi
  copy=$(mktemp -d)/$(basename "$options")
  while IFS= read -r line; do
    if [[ $line == "  model:"* ]]; then
      line="  model: '${DRAFT_CHECKPOINT//\'/\'\'}'"
    fi
    printf '%s\n' "$line"
  done <"$options" >"$copy"
  options=$copy
fi

exec vllm serve "$CHECKPOINT" \
  --host "$SERVE_HOST" \
  --port "$SERVE_HTTP_PORT" \
  --served-model-name MiniMax-M2.5-NVFP4 \
  --tool-call-parser minimax_m2 \
  --enable-auto-tool-choice \
  --config "$options"
