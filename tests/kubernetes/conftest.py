"""Tools of clusters, as `tests/run.sh` installs them."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.conftest import NO_TOOLS


def tool(name: str) -> Path:
    """A program beside this Python, or on the path."""
    if os.environ.get("TEST_FAST"):
        pytest.skip(NO_TOOLS)
    beside = Path(sys.executable).parent / name
    found = beside if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} could not be installed on this platform")
    return Path(found)


@pytest.fixture(scope="session")
def kubectl() -> Path:
    return tool("kubectl")


@pytest.fixture(scope="session")
def docker_compose() -> Path:
    return tool("docker-compose")
