"""What every test of the builder starts from."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.conftest import ROOT

Say = Callable[[str], None]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Print past the capture of pytest."""

    def line(text: str) -> None:
        with capsys.disabled():
            print(f"\n  {text}", end="")

    return line


@pytest.fixture(autouse=True)
def this_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes import this checkout too, whichever one is installed."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
