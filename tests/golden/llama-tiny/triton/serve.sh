#!/usr/bin/env bash
# Serves llama-tiny with Triton Inference Server until it is stopped. Each variable may be set from
# outside.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

fail() {
  printf 'triton/serve.sh: %s\n' "$*" >&2
  exit 2
}

# Triton starts its Python through a shell without quotes, and that Python knows ASCII only: with
# other letters in this path the server would never become ready.
is_plain() {
  local LC_ALL=C
  [[ $1 =~ ^[A-Za-z0-9._/+=@%:,-]+$ ]]
}
is_plain "$here" ||
  fail "$here: only ASCII letters, digits and ._/+=@%:,- may be in this path; move or link the bundle"

export CHECKPOINT=${CHECKPOINT:-llama-tiny}
export SERVE_HOST=${SERVE_HOST:-127.0.0.1}
export SERVE_HTTP_PORT=${SERVE_HTTP_PORT:-8000}
export SERVE_GRPC_PORT=${SERVE_GRPC_PORT:-8001}
export SERVE_METRICS_PORT=${SERVE_METRICS_PORT:-8002}
export SERVE_KEY_FILE=${SERVE_KEY_FILE:-''}
export SERVE_ID=${SERVE_ID:-llama-tiny}
export SERVE_SHM_PREFIX=${SERVE_SHM_PREFIX:-llama-tiny}
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

arguments=(
  --id "$SERVE_ID"
  --model-repository "$here/model_repository" --model-control-mode none
  --exit-on-error true --strict-readiness true
  --exit-timeout-secs 300
  --allow-sagemaker false --allow-vertex-ai false
  --backend-config "python,thread-pool-size=4"
  --http-address "$SERVE_HOST" --http-port "$SERVE_HTTP_PORT"
  --http-header-forward-pattern '(?i)^(traceparent|tracestate)$'
  --grpc-address "$SERVE_HOST" --grpc-port "$SERVE_GRPC_PORT"
  --grpc-header-forward-pattern '(?i)^(traceparent|tracestate|user-agent)$'
  --metrics-address "$SERVE_HOST" --metrics-port "$SERVE_METRICS_PORT"
)
# Bounds that Triton knows since its 25 series.
known=$(tritonserver --help 2>&1 || true)
bound() {
  if [[ $known == *"$1"* ]]; then
    arguments+=("$1" "$2")
  fi
}
# Responses that a client does not read wait in a queue that has no bound of its own.
bound --grpc-max-response-pool-size 1024
# The longest inputs that the model takes, in JSON.
bound --http-max-input-size 2621440

# These APIs need a key. Without a key file it is a random one, which closes them. Triton takes it
# from its command line only, where others on this machine can read it, unless the server has a
# process namespace of its own, as in a container, or /proc is mounted with hidepid=2.
if [[ -n $SERVE_KEY_FILE ]]; then
  [[ -r $SERVE_KEY_FILE ]] || fail "SERVE_KEY_FILE: $SERVE_KEY_FILE cannot be read"
  read -r key <"$SERVE_KEY_FILE" || true
  [[ $key =~ ^[A-Za-z0-9._~-]{16,}$ ]] ||
    fail "SERVE_KEY_FILE: the first line of $SERVE_KEY_FILE must be 16 or more of A-Z a-z 0-9 . _ ~ -"
else
  key=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
fi
restricted=shared-memory,model-repository,model-config,statistics,trace,logging:api-key=$key
arguments+=(--http-restricted-api "$restricted")
arguments+=(--grpc-restricted-protocol "$restricted")

# Triton's Python looks for modules in the working folder first, where this bundle's own triton/
# would hide a package of that name.
if [[ -d $CHECKPOINT ]]; then CHECKPOINT=$(cd "$CHECKPOINT" && pwd); fi
cd /

# What this start puts into shared memory, apart from others of the same prefix.
own=$SERVE_SHM_PREFIX-$(od -An -N8 -tx1 /dev/urandom | tr -d ' \n')-
arguments+=(--backend-config "python,shm-region-prefix-name=$own")
# When this file is there, the model ends its requests and then, where idle connections still hold
# Triton up, the server.
export SERVE_STOP_FILE=/dev/shm/${own}stop


server='' deadline='' watcher='' lost=''
say() { printf 'triton/serve.sh: %s\n' "$*" >&2 || true; }
# shellcheck disable=SC2329  # called by the traps
stop() {
  server=${server:-${!:-}}
  [[ -n $server ]] || exit 143
  if [[ -n $deadline ]]; then abort "after a second signal"; else
    [[ -n $lost || -z $watcher ]] || kill -KILL -- "-$watcher" 2>/dev/null || true
    : >"$SERVE_STOP_FILE" || true
    # The deadline first: bash runs this again within itself when a signal comes meanwhile.
    sleep 310 &
    deadline=$!
    kill -TERM "$server" 2>/dev/null || true
  fi
}
# shellcheck disable=SC2329  # called by a trap
stop_without_model() {
  [[ -z $deadline ]] || return 0
  lost=1
  stop
}
abort() {
  say "the server is killed $*"
  kill -KILL "$server" 2>/dev/null || true
}
is_there() { kill -0 "$1" 2>/dev/null; }
# Unlike the above, a process that has ended and was not waited for does not count.
lives() {
  local stat
  { read -r stat <"/proc/$1/stat"; } 2>/dev/null && [[ ${stat##*) } != [ZX]* ]]
}
# When the process of a model is killed, as for want of memory, Triton logs nothing, refuses every
# request, stays ready (before 26.04), and hangs when it is asked to end.
# Source: triton-inference-server/core, src/server.cc of its release branches; Triton 2.51 by test.
watch_models() {
  local stat pid program parent words engine='' models=()
  # Triton listens once its models are loaded.
  until (: <>"/dev/tcp/$SERVE_HOST/$SERVE_HTTP_PORT") 2>/dev/null; do
    lives "$server" || return 0
    sleep 1
  done
  for stat in /proc/[0-9]*/stat; do
    { read -r pid program _ parent _ <"$stat"; } 2>/dev/null || continue
    [[ $parent == "$server" && $program == "(triton_python_b)" ]] || continue
    models+=("$pid")
    words=$(tr '\0' ' ' <"/proc/$pid/cmdline")
    [[ $words == *"/tensorrt_llm_unary/1/model.py "* ]] || engine=$pid
  done
  [[ -n ${models[*]} ]] || say "the processes of the models cannot be seen: they are not watched"
  while lives "$server"; do
    for pid in "${models[@]}"; do
      if ! lives "$pid" && lives "$server"; then
        say "process $pid, which runs a model, is gone: killed (for want of memory?) or crashed." \
          "Triton would refuse its requests, so the server ends"
        kill -USR1 $$
        # Where it is another one, the streams of the engine's model may end.
        while lives "$engine"; do sleep 1; done
        sleep 3
        kill -USR2 $$
        return
      fi
    done
    sleep 1
  done
}
trap stop HUP INT TERM
trap stop_without_model USR1
trap 'abort "as it hangs without that process"' USR2

# In a process group of its own, so that whatever it leaves behind can be ended with it.
set -m
tritonserver "${arguments[@]}" </dev/null &
server=$!
watch_models </dev/null &
watcher=$!
disown "$watcher"  # bash would tell how it ends
set +m
while is_there "$server"; do
  wait -n || true
  # Triton itself may hang when its exit timeout is over.
  if [[ -n $deadline ]] && is_there "$server" && ! is_there "$deadline"; then
    abort "as it has not ended in 310 s"
  fi
done
trap '' HUP INT TERM USR1 USR2
status=0
wait "$server" || status=$?
kill -KILL -- "-$server" "-$watcher" 2>/dev/null || true
[[ -z $deadline ]] || kill "$deadline" 2>/dev/null || true
rm -f "/dev/shm/$own"*
if [[ -n $lost ]]; then
  status=1
elif [[ -n $deadline ]]; then
  # By this signal the model ends a server that was asked to stop and has answered everything.
  if ((status == 128 + $(kill -l ALRM))); then status=0; fi
elif ((status > 128)); then
  case $(kill -l $((status - 128))) in
    SEGV) say 'Triton was ended by SIGSEGV; what is known to do that: a JSON body over HTTP whose brackets nest too deep (CVE-2026-47477, fixed in 26.05): let a proxy refuse such bodies: HAProxy does with json_depth.lua, which is next to this script' ;;
    FPE) say 'Triton was ended by SIGFPE; what is known to do that: classification asked for an output that is a string, over gRPC or /infer (CVE-2025-23321, fixed in 25.07): let a proxy drop the parameter, or only clients that you trust reach these ports' ;;
  esac
fi
exit "$status"
