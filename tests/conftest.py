"""Fixtures that all tests share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from builder.facts import advisories, checkpoint, images
from builder.miniature import checkpoint as miniature

ROOT = Path(__file__).parent.parent

# Marks the processes of a session's launch tests, apart from those of others on this machine.
LAUNCH_TAG = "LAUNCH_TEST_SESSION"

# Programs that the tests start run as they do for users, compiled once and not on every start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

Run = Callable[..., subprocess.CompletedProcess[str]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden")
    help_text = "how many requests that no sound client sends the Triton model gets"
    parser.addoption("--fuzzed-requests", type=int, default=1000, metavar="N", help=help_text)


def of_release(name: str) -> list[str]:
    """Settings for a release; one below the minimum comes with the exception that it needs."""
    image = images.image("triton", name)
    versions = {"tensorrt_llm": name, "triton": (image and image.version) or ""}
    rows = [
        f"{{product: {product}, version: '{version}', reason: a test of an old release}}"
        for product, version in versions.items()
        if advisories.is_refused(product, version)
    ]
    return [f"engine.release={name}", f"accepted_advisories=[{', '.join(rows)}]"]


@pytest.fixture(scope="session")
def make_miniature(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The miniature of a known checkpoint, made once per session; it must not be changed."""
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("miniature") / name.replace("/", "--")
            made[name].mkdir()
            miniature.write(checkpoint.gather(name), made[name])
        return made[name]

    return make


@pytest.fixture
def builder(tmp_path: Path) -> Iterator[Run]:
    """`python -m builder ARGUMENTS` of this checkout, in a folder of its own."""

    def run(*arguments: str | Path, cwd: Path = tmp_path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "builder", *map(str, arguments)]
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        return subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )

    yield run
