"""Fixtures that all tests share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from builder import checkpoint, miniature

ROOT = Path(__file__).parent.parent

Run = Callable[..., subprocess.CompletedProcess[str]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden")
    help_text = "how many requests that no sound client sends the Triton model gets"
    parser.addoption("--fuzzed-requests", type=int, default=1000, metavar="N", help=help_text)


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
