"""Bundles of all targets, and servers' scripts that run without servers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builder import pipeline
from builder.bundle import Bundle
from tests.security import hostile

# Programs that say how they were called, instead of the servers.
STUB = """\
#!{python}
import json, os, sys
if "--help" in sys.argv:
    print("--grpc-max-response-pool-size --http-max-input-size")
else:
    with open(os.environ["CALLED"], "w") as file:
        json.dump({{"argv": sys.argv[1:], "environment": dict(os.environ)}}, file)
"""

Render = Callable[[str], Bundle]


@pytest.fixture(scope="session")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Render:
    """The bundle of all targets with a text in every string that takes any; made once for each."""
    made: dict[str, Bundle] = {}

    def make(value: str) -> Bundle:
        if value not in made:
            folder = tmp_path_factory.mktemp("hostile")
            document = hostile.request(value, hostile.printable(value))
            (folder / "deployment.json").write_text(json.dumps(document))
            made[value] = pipeline.render(str(folder / "deployment.json"), folder / "bundle")
        return made[value]

    return make


def run(script: Path, folder: Path) -> dict[str, Any]:
    """How a script of a bundle calls its server."""
    stubs = folder / "stubs"
    stubs.mkdir()
    for name in ("tritonserver", "trtllm-serve"):
        (stubs / name).write_text(STUB.format(python=sys.executable))
        (stubs / name).chmod(0o755)
    key = folder / "key"
    key.write_text("0123456789abcdef\n")
    called = folder / "called.json"
    environment = {
        "PATH": f"{stubs}{os.pathsep}{os.environ['PATH']}",
        "CALLED": str(called),
        "SERVE_KEY_FILE": str(key),
    }
    done = subprocess.run(
        ["bash", script], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(called.read_text())
    return found
