"""Target `handoff`: a runbook and a document of objectives for a team that did not make this.

`runbook` and `objectives` say it, with `network`, `capacity`, `alerting`, `decisions` and
`assurance` for their parts; `prose` holds our own words, `servers` the settings of a shell. Both
are a `document`, of which `markdown` and `page` write the two forms. `ci` are examples for the
pipelines of that team.
"""

from __future__ import annotations

from ...bundle import File
from ...deployment import Strict
from ...servers import BundleContext
from . import ci, markdown, page
from .objectives import objectives
from .runbook import runbook

FOLDER = "handoff"


class Options(Strict):
    """There is nothing to choose: all comes from the plan."""


def render(context: BundleContext, options: Options) -> dict[str, File]:
    monitoring = context.deployment.targets.get("monitoring", {})
    documents = {
        "runbook": runbook(context),
        "slo": objectives(context, monitoring.get("availability")),
    }
    files = ci.files(context)
    for name, document in documents.items():
        files[f"{FOLDER}/{name}.md"] = File(markdown.write(document).encode())
        files[f"{FOLDER}/{name}.html"] = File(page.write(document).encode())
    return files
