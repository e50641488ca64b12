#!/usr/bin/env bash
# Serves deepseek-r1-0528-nvfp4-gb200x16 with trtllm-serve until it is stopped. Each variable may be
# set from outside.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# One rank of several runs this script; 4 nodes hold the others.
if [[ ${TLLM_SPAWN_PROXY_PROCESS:-} != 1 ]]; then
  printf '%s: needs 4 nodes: start it with slurm/serve.sbatch, or start it by trtllm-llmapi-launch\n' "$0" >&2
  exit 2
fi
export CHECKPOINT=${CHECKPOINT:-nvidia/DeepSeek-R1-0528-NVFP4-v2}
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
  --tool_parser deepseek_v3 \
  --reasoning_parser deepseek-r1 \
  --extra_llm_api_options "$here/config.yaml"
