"""Tools of clusters, as `tests/run.sh` installs them."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest


def tool(name: str) -> Path:
    """A program beside this Python, or on the path."""
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
