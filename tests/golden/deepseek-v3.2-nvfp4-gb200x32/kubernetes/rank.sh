#!/usr/bin/env bash
# One rank of a server, started by mpirun; the first one's launcher starts the server itself, by
# `rank.sh serve`.
set -euo pipefail
state=$HOME/.group

if [[ ${1:-} != serve ]]; then
  exec trtllm-llmapi-launch bash "${BASH_SOURCE[0]}" serve
fi
bash "$GROUP_SCRIPT" &
printf '%s' "$!" >"$state/server.new"
mv "$state/server.new" "$state/server"
status=0
wait "$!" || status=$?
printf '%s' "$status" >"$state/status.new"
mv "$state/status.new" "$state/status"
exit "$status"
