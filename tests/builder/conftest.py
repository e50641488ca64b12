"""What every test of the builder starts from."""

from __future__ import annotations

import os

import pytest

from tests.conftest import ROOT


@pytest.fixture(autouse=True)
def this_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes import this checkout too, whichever one is installed."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
