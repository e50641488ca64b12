"""Target `handoff`: writes a runbook and a document of objectives for the team that takes over.

`runbook` writes the runbook, with the sections of `cluster` and `plan_sections` and the shell
variables of `shell_settings`; `plan_sections` also writes the objectives. `document` renders both
as Markdown and HTML.

Examples for the repository of that team check the bundle before it is merged. They take it to lie
in a folder with the name of the deployment. Formats: pre-commit's configuration, the workflow
syntax of GitHub Actions, the CI/CD YAML syntax of GitLab.
"""

from __future__ import annotations

from ...bundle import File
from ...deployment import Strict
from ...render import comment, scalar, text
from ...servers import RenderContext
from .document import markdown, page
from .plan_sections import objectives
from .runbook import runbook

FOLDER = "handoff"
CI_FOLDER = f"{FOLDER}/ci"
# What pip is to install: a requirement, a wheel or an address of a repository.
TOOLKIT = "DEPLOYMENT_TOOLKIT"
# Where each file goes in the team's repository.
PLACES = {
    "pre-commit-config": ".pre-commit-config.yaml",
    "github-workflow": ".github/workflows/deployment.yaml",
    "gitlab-ci": ".gitlab-ci.yml",
}


# There is nothing to choose: all comes from the plan.
Options = Strict


def render(context: RenderContext, options: Options) -> dict[str, File]:
    monitoring = context.deployment.targets.get("monitoring", {})
    documents = {
        "runbook": runbook(context),
        "slo": objectives(context, monitoring.get("availability")),
    }
    files = _examples(context)
    for name, document in documents.items():
        files[f"{FOLDER}/{name}.md"] = File(markdown(document).encode())
        files[f"{FOLDER}/{name}.html"] = File(page(document).encode())
    return files


def _examples(context: RenderContext) -> dict[str, File]:
    name, found = context.deployment.name, dict[str, File]()
    for file, place in PLACES.items():
        words = f"{TOOLKIT} is a variable of the project: what pip is to install as the toolkit."
        if file == "pre-commit-config":
            words = "The toolkit must be installed."
        title = f"Copy to {place}, with {name} in folder {name} of this repository. {words}"
        values = {"name": name, "changed": scalar(f"^{name.replace('.', '[.]')}/")}
        values["variable"] = f"${{{{ vars.{TOOLKIT} }}}}"
        body = text(f"{CI_FOLDER}/{file}.yaml.j2", **values)
        found[f"{CI_FOLDER}/{file}.yaml"] = File(f"{comment(title)}\n{body}".encode())
    return found
