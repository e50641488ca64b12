"""Target `slurm`: a job that runs another target of the deployment under Slurm.

The batch scripts are thin: they start the supervisor, which is copied byte for byte. What it runs
on which nodes and GPUs stands in `service.json`. `options` is what a deployment file says,
`problems` why it cannot run as a job, `layout` where its servers are, `service` the steps,
`directives` the lines for sbatch, `rendering` the files.
"""

from __future__ import annotations

from .options import Options
from .problems import problems
from .rendering import render_service

__all__ = ["Options", "problems", "render_service"]
