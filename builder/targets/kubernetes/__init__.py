"""Target `kubernetes`: another target of the deployment as objects of a cluster, ready to apply.

No chart tool is needed: the folders are kustomize's, which kubectl knows. `options` is what a
deployment file says, `problems` why it cannot run there, `names` what its objects are called,
`files` the bundle's own files in the cluster, `pod` the pod of a server, `objects` what is around
it, `autoscaling`, `gateway` and `kserve` what is there when asked for, `rendering` the files.
"""

from __future__ import annotations

from .options import Options
from .problems import problems, warnings
from .rendering import render

__all__ = ["Options", "problems", "render", "warnings"]
