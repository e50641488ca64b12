"""Examples for the receiving team's own repository: the bundle is checked before it is merged.

They take the bundle to lie in a folder with the name of the deployment. Formats: pre-commit's
configuration, the workflow syntax of GitHub Actions, the CI/CD YAML syntax of GitLab.
"""

from __future__ import annotations

from ...bundle import File
from ...render import comment, scalar, text
from ...servers import RenderContext

FOLDER = "handoff/ci"

# What pip is to install: a requirement, a wheel or an address of a repository.
TOOLKIT = "DEPLOYMENT_TOOLKIT"
# Where each file goes in the team's repository.
PLACES = {
    "pre-commit-config": ".pre-commit-config.yaml",
    "github-workflow": ".github/workflows/deployment.yaml",
    "gitlab-ci": ".gitlab-ci.yml",
}


def files(context: RenderContext) -> dict[str, File]:
    name, found = context.deployment.name, dict[str, File]()
    for file, place in PLACES.items():
        words = f"{TOOLKIT} is a variable of the project: what pip is to install as the toolkit."
        if file == "pre-commit-config":
            words = "The toolkit must be installed."
        title = f"Copy to {place}, with {name} in folder {name} of this repository. {words}"
        values = {"name": name, "changed": scalar(f"^{name.replace('.', '[.]')}/")}
        values["variable"] = f"${{{{ vars.{TOOLKIT} }}}}"
        body = text(f"{FOLDER}/{file}.yaml.j2", **values)
        found[f"{FOLDER}/{file}.yaml"] = File(f"{comment(title)}\n{body}".encode())
    return found
