#!/usr/bin/env bash
# Starts one server on the pods of a LeaderWorkerSet: the first pod runs mpirun, the others wait for
# it in sshd. No pod asks Kubernetes for anything, and nobody is root.
#
# Kubernetes gives LWS_LEADER_ADDRESS, LWS_GROUP_SIZE and LWS_WORKER_INDEX. The image needs an SSH
# server beside Open MPI; the engine's own images have none.
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

PATH=$PATH:/usr/sbin
for program in ssh sshd ssh-keygen mpirun trtllm-llmapi-launch; do
  command -v "$program" >/dev/null || fail "the image has no $program"
done
[[ -r $GROUP_SSH_FOLDER/ssh-privatekey ]] ||
  fail "$GROUP_SSH_FOLDER/ssh-privatekey cannot be read; make the Secret of type kubernetes.io/ssh-auth"

# All pods of the group have the same key: by it they know each other as hosts and as users.
rm -rf "$state"
mkdir -p "$state"
cp "$GROUP_SSH_FOLDER/ssh-privatekey" "$state/key"
chmod 600 "$state/key"
public=$(ssh-keygen -y -f "$state/key")
printf '%s\n' "$public" >"$state/authorized_keys"
printf 'group %s\n' "$public" >"$state/known_hosts"
cat >"$state/ssh_config" <<END
Host *
  Port $GROUP_SSH_PORT
  IdentityFile $state/key
  IdentitiesOnly yes
  HostKeyAlias group
  UserKnownHostsFile $state/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  BatchMode yes
  ConnectTimeout 5
  LogLevel ERROR
END
# A session begins with an empty environment; rank.sh gives it that of its own pod.
export -p >"$state/environment"
{
  printf 'Port %s\nHostKey %s/key\nAuthorizedKeysFile %s/authorized_keys\n' \
    "$GROUP_SSH_PORT" "$state" "$state"
  printf '%s no\n' StrictModes UsePAM PasswordAuthentication KbdInteractiveAuthentication \
    X11Forwarding AllowTcpForwarding AllowAgentForwarding PermitTunnel PrintMotd
  printf 'PidFile none\nLogLevel ERROR\nMaxStartups 100\n'
  printf 'SetEnv HOME="%s" TMPDIR="%s" PATH="%s" LD_LIBRARY_PATH="%s"\n' \
    "$HOME" "${TMPDIR:-/tmp}" "$PATH" "${LD_LIBRARY_PATH:-}"
} >"$state/sshd_config"

worker() {
  local listener sessions
  "$(command -v sshd)" -D -e -f "$state/sshd_config" &
  listener=$!
  sessions=/proc/$listener/task/$listener/children
  # The first pod ends the sessions when the last answer is out.
  trap 'stopping=1' HUP INT TERM
  stopping=''
  while kill -0 "$listener" 2>/dev/null; do
    # It may have ended since it was looked at, by the last round's signal.
    [[ -z $stopping || -n $(cat "$sessions" 2>/dev/null) ]] || kill "$listener" 2>/dev/null || true
    sleep 1 &
    wait -n || true
  done
  [[ -n $stopping ]] || fail "sshd has ended"
}

wait_for() {
  until ssh -F "$state/ssh_config" "$1" true 2>"$state/ssh.log"; do
    ((SECONDS < GROUP_START_TIMEOUT_S)) || fail "$1 does not answer: $(tail -n 1 "$state/ssh.log")"
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
    --mca plm_rsh_agent "ssh -F $state/ssh_config" --mca plm_rsh_no_tree_spawn 1 \
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

if ((LWS_WORKER_INDEX == 0)); then leader; else worker; fi
