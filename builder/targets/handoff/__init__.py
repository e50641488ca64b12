"""Target `handoff`: a runbook and a document of objectives for the team that takes over.

`runbook` and `objectives` write the two documents; `network` and `plan_sections` are parts of the
runbook, `runbook_text` reads its text and commands from the data, and `shell_settings` sets the
variables of its commands. `document` renders Markdown and the page. `ci` has examples for the
pipelines of that team.
"""

from __future__ import annotations

from ...bundle import File
from ...deployment import Strict
from ...servers import RenderContext
from . import ci
from .document import markdown, page
from .objectives import objectives
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
