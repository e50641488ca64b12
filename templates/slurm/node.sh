#!/usr/bin/env bash
# Runs a command on each node of a server, with the node's number, as if it stood outside of Slurm.
set -euo pipefail
export SERVE_NODE=$SLURM_PROCID
exec bash "$(dirname "${BASH_SOURCE[0]}")/alone.sh" "$@"
