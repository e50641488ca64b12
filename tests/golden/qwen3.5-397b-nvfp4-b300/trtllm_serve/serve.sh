#!/usr/bin/env bash
# Serves qwen3.5-397b-nvfp4-b300 with trtllm-serve until it is stopped. Each variable may be set
# from outside.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export CHECKPOINT=${CHECKPOINT:-nvidia/Qwen3.5-397B-A17B-NVFP4}
export SERVE_HOST=${SERVE_HOST:-127.0.0.1}
export SERVE_HTTP_PORT=${SERVE_HTTP_PORT:-8000}
# A kernel may start while the one before it ends (programmatic dependent launch), about a tenth at
# small batches. [documented]
export TRTLLM_ENABLE_PDL=${TRTLLM_ENABLE_PDL-1}
# The server's process pauses for no garbage collection while it streams. Set 0 where it runs for
# weeks and its memory grows. [documented]
export TRTLLM_SERVER_DISABLE_GC=${TRTLLM_SERVER_DISABLE_GC-1}
# A pause of one rank's process would hold all ranks up. [documented]
export TRTLLM_WORKER_DISABLE_GC=${TRTLLM_WORKER_DISABLE_GC-1}
# Each rank runs on the cores beside its GPU, whatever mask the launcher has set. [documented]
export TLLM_NUMA_AWARE_WORKER_AFFINITY=${TLLM_NUMA_AWARE_WORKER_AFFINITY-1}
# Newer engines send usage data by default; a deployment should not. [documented]
export TRTLLM_NO_USAGE_STATS=${TRTLLM_NO_USAGE_STATS-1}
# The same for libraries that keep to the common variable. [documented]
export DO_NOT_TRACK=${DO_NOT_TRACK-1}

exec trtllm-serve serve "$CHECKPOINT" \
  --host "$SERVE_HOST" \
  --port "$SERVE_HTTP_PORT" \
  --served_model_name Qwen3.5-397B-A17B-NVFP4 \
  --tool_parser qwen3_coder \
  --reasoning_parser qwen3_5 \
  --config "$here/config.yaml"
