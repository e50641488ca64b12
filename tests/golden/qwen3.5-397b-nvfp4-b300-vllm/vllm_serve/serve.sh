#!/usr/bin/env bash
# Serves qwen3.5-397b-nvfp4-b300-vllm with vllm serve until it is stopped. Each variable may be set
# from outside.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export CHECKPOINT=${CHECKPOINT:-nvidia/Qwen3.5-397B-A17B-NVFP4}
export SERVE_HOST=${SERVE_HOST:-127.0.0.1}
export SERVE_HTTP_PORT=${SERVE_HTTP_PORT:-8000}
# The engine sends usage data by default; a deployment should not. [documented]
export VLLM_NO_USAGE_STATS=${VLLM_NO_USAGE_STATS-1}
# The same for libraries that keep to the common variable. [documented]
export DO_NOT_TRACK=${DO_NOT_TRACK-1}

exec vllm serve "$CHECKPOINT" \
  --host "$SERVE_HOST" \
  --port "$SERVE_HTTP_PORT" \
  --served-model-name Qwen3.5-397B-A17B-NVFP4 \
  --tool-call-parser qwen3_coder \
  --enable-auto-tool-choice \
  --config "$here/config.yaml"
