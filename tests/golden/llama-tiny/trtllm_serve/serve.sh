#!/usr/bin/env bash
# Serves llama-tiny with trtllm-serve until it is stopped. Each variable may be set from outside.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export CHECKPOINT=${CHECKPOINT:-llama-tiny}
export SERVE_HOST=${SERVE_HOST:-127.0.0.1}
export SERVE_HTTP_PORT=${SERVE_HTTP_PORT:-8000}
# The engine sends usage data by default; a deployment should not.
export TRTLLM_NO_USAGE_STATS=1

exec trtllm-serve serve "$CHECKPOINT" \
  --host "$SERVE_HOST" \
  --port "$SERVE_HTTP_PORT" \
  --extra_llm_api_options "$here/config.yaml"
