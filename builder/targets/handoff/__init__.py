"""Target `handoff`: writes a runbook and a document of objectives for the team that takes over.

`runbook` writes the runbook, with the sections of `cluster` and `plan_sections` and the shell
variables of `shell_settings`; `plan_sections` also writes the objectives. `document` renders both
as Markdown and HTML. `ci` writes examples for that team's pipelines.
"""

from __future__ import annotations

from ...bundle import File
from ...deployment import Strict
from ...servers import RenderContext
from . import ci
from .document import markdown, page
from .plan_sections import objectives
from .runbook import runbook

FOLDER = "handoff"


# There is nothing to choose: all comes from the plan.
Options = Strict


def render(context: RenderContext, options: Options) -> dict[str, File]:
    monitoring = context.deployment.targets.get("monitoring", {})
    documents = {
        "runbook": runbook(context),
        "slo": objectives(context, monitoring.get("availability")),
    }
    files = ci.files(context)
    for name, document in documents.items():
        files[f"{FOLDER}/{name}.md"] = File(markdown(document).encode())
        files[f"{FOLDER}/{name}.html"] = File(page(document).encode())
    return files
