"""Target `handoff`: a runbook and a document of objectives for a team that did not make this.

`runbook` and `objectives` say it, with `network`, `capacity`, `alerting`, `decisions` and
`assurance` for their parts; `prose` holds our own words, `servers` the settings of a shell. Both
are a `document`, of which `markdown` and `page` write the two forms. `ci` are examples for the
pipelines of that team.
"""

from __future__ import annotations

from ...bundle import File
from ...deployment import Strict
from .. import Rendered, Request
from . import ci, markdown, page
from .objectives import objectives
from .runbook import runbook

FOLDER = "handoff"


class Options(Strict):
    """There is nothing to choose: all comes from the plan."""


def render(request: Request, options: Options) -> Rendered:
    monitoring = request.deployment.targets.get("monitoring", {})
    documents = {
        "runbook": runbook(request),
        "slo": objectives(request, monitoring.get("availability")),
    }
    files = ci.files(request)
    for name, document in documents.items():
        files[f"{FOLDER}/{name}.md"] = File(markdown.write(document).encode())
        files[f"{FOLDER}/{name}.html"] = File(page.write(document).encode())
    return Rendered(files, None)
