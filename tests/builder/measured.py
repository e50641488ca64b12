"""A whole `python -m builder` process, with its processor time and its peak memory."""

from __future__ import annotations

from pathlib import Path

from tests import prefork
from tests.prefork import Measured as Measured


def run(*arguments: str, cwd: Path) -> Measured:
    return prefork.shared().run(arguments, cwd)
