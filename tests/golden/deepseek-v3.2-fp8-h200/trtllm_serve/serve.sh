#!/usr/bin/env bash
# Serves deepseek-v3.2-fp8-h200 with trtllm-serve until it is stopped. Each variable may be set from
# outside.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export CHECKPOINT=${CHECKPOINT:-deepseek-ai/DeepSeek-V3.2}
export SERVE_HOST=${SERVE_HOST:-127.0.0.1}
export SERVE_HTTP_PORT=${SERVE_HTTP_PORT:-30000}
# The engine sends usage data by default; a deployment should not.
export TRTLLM_NO_USAGE_STATS=1

exec trtllm-serve serve "$CHECKPOINT" \
  --host "$SERVE_HOST" \
  --port "$SERVE_HTTP_PORT" \
  --custom_tokenizer deepseek_v32 \
  --extra_llm_api_options "$here/config.yaml"
