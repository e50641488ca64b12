#!/usr/bin/env bash
# Serves deepseek-v3.2-nvfp4-gb300-vllm with vllm serve until it is stopped. Each variable may be
# set from outside.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export CHECKPOINT=${CHECKPOINT:-nvidia/DeepSeek-V3.2-NVFP4}
export SERVE_HOST=${SERVE_HOST:-127.0.0.1}
export SERVE_HTTP_PORT=${SERVE_HTTP_PORT:-8000}
# Set in the deployment. The rule would give 1: FlashInfer's kernels multiply the experts in NVFP4.
# [override]
export VLLM_USE_FLASHINFER_MOE_FP4=${VLLM_USE_FLASHINFER_MOE_FP4-1}
# The engine sends usage data by default; a deployment should not. [documented]
export VLLM_NO_USAGE_STATS=${VLLM_NO_USAGE_STATS-1}
# The same for libraries that keep to the common variable. [documented]
export DO_NOT_TRACK=${DO_NOT_TRACK-1}

exec vllm serve "$CHECKPOINT" \
  --host "$SERVE_HOST" \
  --port "$SERVE_HTTP_PORT" \
  --served-model-name DeepSeek-V3.2-NVFP4 \
  --tool-call-parser deepseek_v32 \
  --enable-auto-tool-choice \
  --config "$here/config.yaml"
