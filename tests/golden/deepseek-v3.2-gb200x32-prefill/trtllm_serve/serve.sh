#!/usr/bin/env bash
# Serves deepseek-v3.2-gb200x32-prefill with trtllm-serve until it is stopped. Each variable may be
# set from outside.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# One rank of several runs this script; 2 nodes hold the others.
if [[ ${TLLM_SPAWN_PROXY_PROCESS:-} != 1 ]]; then
  printf '%s: needs 2 nodes: start it with slurm/serve.sbatch, or start it by trtllm-llmapi-launch\n' "$0" >&2
  exit 2
fi
export CHECKPOINT=${CHECKPOINT:-nvidia/DeepSeek-V3.2-NVFP4}
export SERVE_HOST=${SERVE_HOST:-127.0.0.1}
export SERVE_HTTP_PORT=${SERVE_HTTP_PORT:-8000}
# Set in the deployment. The rule would give 1: A kernel may start while the one before it ends
# (programmatic dependent launch), about a tenth at small batches. [override]
export TRTLLM_ENABLE_PDL=${TRTLLM_ENABLE_PDL-1}
# Set in the deployment. The rule would give 1: The server's process pauses for no garbage
# collection while it streams. Set 0 where it runs for weeks and its memory grows. [override]
export TRTLLM_SERVER_DISABLE_GC=${TRTLLM_SERVER_DISABLE_GC-1}
# Set in the deployment. The rule would give 1: A pause of one rank's process would hold all ranks
# up. [override]
export TRTLLM_WORKER_DISABLE_GC=${TRTLLM_WORKER_DISABLE_GC-1}
# Set in the deployment. The rule would give 0: Graph and plain launches of one communicator never
# overlap in the engine; NCCL need not order them, which costs time in every collective. [override]
export NCCL_GRAPH_MIXING_SUPPORT=${NCCL_GRAPH_MIXING_SUPPORT-0}
# Set in the deployment. [override]
export UCX_CUDA_IPC_ENABLE_MNNVL=${UCX_CUDA_IPC_ENABLE_MNNVL-1}
# Each rank runs on the cores beside its GPU, whatever mask the launcher has set. [documented]
export TLLM_NUMA_AWARE_WORKER_AFFINITY=${TLLM_NUMA_AWARE_WORKER_AFFINITY-1}
# Newer engines send usage data by default; a deployment should not. [documented]
export TRTLLM_NO_USAGE_STATS=${TRTLLM_NO_USAGE_STATS-1}
# The same for libraries that keep to the common variable. [documented]
export DO_NOT_TRACK=${DO_NOT_TRACK-1}
# Set in the deployment; no rule decides it. [override]
export NCCL_MNNVL_ENABLE=${NCCL_MNNVL_ENABLE-1}
# Set in the deployment; no rule decides it. [override]
export NCCL_CUMEM_ENABLE=${NCCL_CUMEM_ENABLE-1}
# Set in the deployment; no rule decides it. [override]
export NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE-1}
# Set in the deployment; no rule decides it. [override]
export NVIDIA_GDRCOPY=${NVIDIA_GDRCOPY-1}
# Set in the deployment; no rule decides it. [override]
export NCCL_STORE_TIMEOUT=${NCCL_STORE_TIMEOUT-7200}
# Set in the deployment; no rule decides it. [override]
export TRTLLM_MOE_ENABLE_ALLTOALL_WITHOUT_ALLGATHER=${TRTLLM_MOE_ENABLE_ALLTOALL_WITHOUT_ALLGATHER-1}

exec trtllm-serve serve "$CHECKPOINT" \
  --host "$SERVE_HOST" \
  --port "$SERVE_HTTP_PORT" \
  --custom_tokenizer deepseek_v32 \
  --served_model_name DeepSeek-V3.2-NVFP4 \
  --config "$here/config.yaml"
