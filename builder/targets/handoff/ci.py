"""Examples for the receiving team's own repository: the bundle is checked before it is merged.

They take the bundle to lie in a folder with the name of the deployment. Formats: pre-commit's
configuration, the workflow syntax of GitHub Actions, the CI/CD YAML syntax of GitLab.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...bundle import File
from ...render import yaml_document
from ...servers import RenderContext

FOLDER = "handoff/ci"

# What pip is to install: a requirement, a wheel or an address of a repository.
TOOLKIT = "DEPLOYMENT_TOOLKIT"
PYTHON = "3.12"
SARIF = "deployment.sarif"
QUALITY = "gl-code-quality-report.json"


def files(context: RenderContext) -> dict[str, File]:
    name = context.deployment.name
    check, verify = f"trtllm-builder check {name}", f"trtllm-builder verify {name}"
    where = f"{name} in folder {name} of this repository. {TOOLKIT} is a variable of the project:"
    where += " what pip is to install as the toolkit."
    return {
        f"{FOLDER}/pre-commit-config.yaml": yaml_document(
            f"Copy to .pre-commit-config.yaml, with {name} in folder {name} of this repository. "
            "The toolkit must be installed.",
            _pre_commit(name, check, verify),
        ),
        f"{FOLDER}/github-workflow.yaml": yaml_document(
            f"Copy to .github/workflows/deployment.yaml, with {where}", _github(name, check, verify)
        ),
        f"{FOLDER}/gitlab-ci.yaml": yaml_document(
            f"Copy to .gitlab-ci.yml, with {where}", _gitlab(name, check, verify)
        ),
    }


def _pre_commit(name: str, check: str, verify: str) -> Mapping[str, Any]:
    changed = f"^{name.replace('.', '[.]')}/"
    hooks = [
        _hook("check-deployment", "check the deployment", check, changed),
        _hook("verify-deployment", "verify the deployment", verify, changed),
    ]
    return {"repos": [{"repo": "local", "hooks": hooks}]}


def _hook(id_: str, title: str, entry: str, changed: str) -> Mapping[str, Any]:
    return {
        "id": id_,
        "name": title,
        "entry": entry,
        "language": "system",
        "files": changed,
        "pass_filenames": False,
    }


def _github(name: str, check: str, verify: str) -> Mapping[str, Any]:
    steps = [
        {"uses": "actions/checkout@v4"},
        {"uses": "actions/setup-python@v5", "with": {"python-version": PYTHON}},
        {"name": "Install the toolkit", "run": f'python -m pip install "${TOOLKIT}"'},
        {"name": "Check", "run": f"{check} --sarif {SARIF}"},
        {
            "name": "Show findings in the review",
            "if": f"always() && hashFiles('{SARIF}') != ''",
            "uses": "github/codeql-action/upload-sarif@v3",
            "with": {"sarif_file": SARIF},
        },
        {"name": "Verify", "if": "always()", "run": verify},
    ]
    return {
        "name": "deployment",
        "on": {"push": {"paths": [f"{name}/**"]}, "pull_request": {"paths": [f"{name}/**"]}},
        "permissions": {"contents": "read", "security-events": "write"},
        "jobs": {
            "deployment": {
                "runs-on": "ubuntu-latest",
                "timeout-minutes": 10,
                "env": {TOOLKIT: f"${{{{ vars.{TOOLKIT} }}}}"},
                "steps": steps,
            }
        },
    }


def _gitlab(name: str, check: str, verify: str) -> Mapping[str, Any]:
    return {
        "deployment": {
            "image": {"name": f"python:{PYTHON}"},
            "rules": [{"changes": [f"{name}/**/*"]}],
            "script": [
                f'python -m pip install "${TOOLKIT}"',
                f"{check} --code-quality {QUALITY}",
                verify,
            ],
            "artifacts": {"when": "always", "reports": {"codequality": QUALITY}},
        }
    }
