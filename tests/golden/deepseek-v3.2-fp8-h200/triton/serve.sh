#!/usr/bin/env bash
# Serves deepseek-v3.2-fp8-h200 with Triton Inference Server until it is stopped. Each variable may
# be set from outside.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export CHECKPOINT=${CHECKPOINT:-deepseek-ai/DeepSeek-V3.2}
export SERVE_HOST=${SERVE_HOST:-127.0.0.1}
export SERVE_HTTP_PORT=${SERVE_HTTP_PORT:-8000}
export SERVE_GRPC_PORT=${SERVE_GRPC_PORT:-8001}
export SERVE_METRICS_PORT=${SERVE_METRICS_PORT:-8002}
export SERVE_ID=${SERVE_ID:-deepseek-v3.2-fp8-h200}
export SERVE_SHM_PREFIX=${SERVE_SHM_PREFIX:-deepseek-v3.2-fp8-h200}
# The engine sends usage data by default; a deployment should not.
export TRTLLM_NO_USAGE_STATS=1

# Triton's Python looks for modules in the working folder first, where this bundle's own triton/
# would hide a package of that name.
if [[ -d $CHECKPOINT ]]; then CHECKPOINT=$(cd "$CHECKPOINT" && pwd); fi
cd /

exec tritonserver \
  --id "$SERVE_ID" \
  --model-repository "$here/model_repository" \
  --model-control-mode none \
  --http-address "$SERVE_HOST" --http-port "$SERVE_HTTP_PORT" \
  --grpc-address "$SERVE_HOST" --grpc-port "$SERVE_GRPC_PORT" \
  --metrics-address "$SERVE_HOST" --metrics-port "$SERVE_METRICS_PORT" \
  --backend-config "python,shm-region-prefix-name=$SERVE_SHM_PREFIX" \
  --exit-timeout-secs 300
