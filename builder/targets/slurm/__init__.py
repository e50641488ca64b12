"""Target `slurm`: a job that runs another target of the deployment under Slurm.

The batch scripts are thin: they start the supervisor, a package that is copied byte for byte. What
it runs on which nodes and GPUs is in `service.json`.
"""

from __future__ import annotations

from .options import SlurmOptions as Options
from .options import diagnostics
from .rendering import render_service

__all__ = ["Options", "diagnostics", "render_service"]
