"""Probe a cluster for its site profile: what works when it is tried, not what Slurm lists.

Requests are tried first, then one job on nodes.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from builder.diagnostics import Diagnostic
from builder.errors import BadInput

from ..jobs import Say
from . import nodes, profile, requests
from .profile import SiteOptions


def probe_site(options: SiteOptions, say: Say) -> str:
    """The text of a profile. Raises `NotReady` where nothing can be tried."""
    partitions = requests.partitions()
    say(f"partitions: {', '.join(partitions)}")
    partition, request, gpus = requests.gpu_partition(options, partitions)
    say(f"partition {partition}: {gpus} GPUs on a node, requested by {request[1]}")
    base = [*options.sbatch, f"--partition={partition}"]
    found = [
        requests.name(options),
        *requests.given_options(options, partition),
        *requests.client(options, partitions, partition),
        request,
        requests.exclusive(base),
        requests.cpus(base),
        requests.block_size(base, partitions[partition]),
    ]
    with _folder(options) as folder:
        sbatch = [*base, *requests.gpu_options(request[1], gpus)]
        nodes_of_partition = partitions[partition]
        found += nodes.found(options, sbatch, partition, nodes_of_partition, Path(folder), say)
    found.append(("checkpoints, environment, sbatch, srun", None, "nobody can try them"))
    return profile.text(found)


def _folder(options: SiteOptions) -> tempfile.TemporaryDirectory[str]:
    try:
        options.root.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(prefix=".probe-", dir=options.root)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        remedy = "name a folder that this host and all nodes see with --state"
        raise BadInput(Diagnostic(str(options.root), f"cannot be used: {reason}", remedy)) from None
