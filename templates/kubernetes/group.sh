#!/usr/bin/env bash
# Starts one server on the pods of a LeaderWorkerSet: the first pod runs mpirun, which starts its
# daemons on the others through remote.py. No pod asks Kubernetes for anything, nobody is root, and
# the image needs no SSH.
#
# Kubernetes gives LWS_LEADER_ADDRESS, LWS_GROUP_SIZE and LWS_WORKER_INDEX.
set -euo pipefail
umask 077
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
state=$HOME/.group
# How long the ranks may take to end after the server has. Those of one that failed do not end by
# themselves.
rest_s=${GROUP_REST_S:-60}

fail() {
  printf 'kubernetes/group.sh: %s\n' "$*" >&2
  exit 2
}

for program in python3 mpirun trtllm-llmapi-launch; do
  command -v "$program" >/dev/null || fail "the image has no $program"
done
[[ -r $GROUP_TLS_FOLDER/tls.key && -r $GROUP_TLS_FOLDER/tls.crt ]] ||
  fail "$GROUP_TLS_FOLDER has no tls.key and tls.crt to read; make the Secret of type kubernetes.io/tls"
rm -rf "$state"
mkdir -p "$state"

wait_for() {
  until python3 "$here/remote.py" run "$GROUP_PORT" "$1" true >"$state/remote.log" 2>&1; do
    ((SECONDS < GROUP_START_TIMEOUT_S)) || fail "$1 does not answer: $(tail -n 1 "$state/remote.log")"
    sleep 1
  done
}

leader() {
  local name=${LWS_LEADER_ADDRESS%%.*} domain=${LWS_LEADER_ADDRESS#*.} hosts index host ranks
  hosts=$(hostname):$GROUP_RANKS_PER_NODE
  for ((index = 1; index < LWS_GROUP_SIZE; index++)); do
    host=$name-$index.$domain
    wait_for "$host"
    hosts+=,$host:$GROUP_RANKS_PER_NODE
  done
  # In a process group of its own, so that a signal reaches the server before the other ranks. Its
  # daemons stay in their sessions: one that cannot start is seen, and one that runs keeps its pod.
  set -m
  mpirun --host "$hosts" -n "$((LWS_GROUP_SIZE * GROUP_RANKS_PER_NODE))" --bind-to none \
    --mca plm_rsh_agent "python3 $here/remote.py run $GROUP_PORT" --mca plm_rsh_no_tree_spawn 1 \
    --leave-session-attached --mca orte_keep_fqdn_hostnames 1 --mca pml ob1 \
    bash "$here/rank.sh" </dev/null &
  ranks=$!
  set +m
  trap stop HUP INT TERM
  local ended_s=''
  while kill -0 "$ranks" 2>/dev/null; do
    if [[ -z $ended_s && -e $state/status ]]; then ended_s=$SECONDS; fi
    [[ -z $ended_s ]] || ((SECONDS < ended_s + rest_s)) || kill -KILL -- "-$ranks" 2>/dev/null || true
    sleep 1 &
    wait -n || true
  done
  wait "$ranks" && status=0 || status=$?
  exit "$(cat "$state/status" 2>/dev/null || printf '%s' "$status")"
}

# shellcheck disable=SC2329  # called by the trap
stop() {
  local server
  if server=$(cat "$state/server" 2>/dev/null); then
    kill -TERM "$server" 2>/dev/null || true
  else
    kill -TERM "$ranks" 2>/dev/null || true
  fi
}

((LWS_WORKER_INDEX == 0)) || exec python3 "$here/remote.py" listen "$GROUP_PORT"
leader
