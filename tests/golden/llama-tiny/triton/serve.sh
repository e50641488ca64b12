#!/usr/bin/env bash
# Serves llama-tiny with Triton Inference Server until it is stopped. Each variable may be set from
# outside.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export CHECKPOINT=${CHECKPOINT:-llama-tiny}
export HOST=${HOST:-127.0.0.1}
export HTTP_PORT=${HTTP_PORT:-8000}
export GRPC_PORT=${GRPC_PORT:-8001}
export METRICS_PORT=${METRICS_PORT:-8002}
export SERVER_ID=${SERVER_ID:-llama-tiny}
export SHM_REGION_PREFIX=${SHM_REGION_PREFIX:-llama-tiny}
# The engine sends usage data by default; a deployment should not.
export TRTLLM_NO_USAGE_STATS=1

exec tritonserver \
  --id "$SERVER_ID" \
  --model-repository "$here/model_repository" \
  --model-control-mode none \
  --http-address "$HOST" --http-port "$HTTP_PORT" \
  --grpc-address "$HOST" --grpc-port "$GRPC_PORT" \
  --metrics-address "$HOST" --metrics-port "$METRICS_PORT" \
  --backend-config "python,shm-region-prefix-name=$SHM_REGION_PREFIX" \
  --exit-timeout-secs 300
