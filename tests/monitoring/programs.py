"""Prometheus and what belongs to it: installed, or unpacked by `tests/run.sh`."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.conftest import NO_TOOLS, ROOT

UNPACKED = ROOT / ".venv" / "prometheus" / "usr" / "bin"


def program(name: str) -> str:
    """The path of a program; skips the test where there is none."""
    if os.environ.get("TEST_FAST"):
        pytest.skip(NO_TOOLS)
    found = shutil.which(name, path=os.pathsep.join([os.environ["PATH"], str(UNPACKED)]))
    if found is None:
        pytest.skip(f"{name} is not installed; tests/run.sh unpacks it")
    return found
