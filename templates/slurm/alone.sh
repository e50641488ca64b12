#!/usr/bin/env bash
# Runs a command as if it stood outside of Slurm, so that the engine can start its ranks itself.
set -euo pipefail
for variable in "${!SLURM_@}" "${!PMI_@}" "${!PMIX_@}" "${!OMPI_@}"; do unset "$variable"; done
exec "$@"
