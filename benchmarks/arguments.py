"""Arguments that all benchmarks share: how often to measure, where the rows go, what is judged."""

from __future__ import annotations

import argparse
from pathlib import Path

from builder.diagnostics import Diagnostic
from builder.errors import BadInput


def count(text: str) -> int:
    """A whole number from 1 on."""
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} must be >= 1")
    return value


def parser(name: str, description: str | None, rounds: int) -> argparse.ArgumentParser:
    """Of the benchmark of this name, which takes so many rounds unless told otherwise."""
    found = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    found.add_argument("--rounds", type=count, default=rounds, metavar="N")
    found.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    found.add_argument("--check", action="store_true", help="exit with 6 if a bound is missed")
    return found


def check_json_folder(file: Path | None) -> None:
    """Before anything is measured. Raises `BadInput`."""
    if file and not file.parent.is_dir():
        raise BadInput(Diagnostic("--json", f"there is no folder {file.parent}", "make it"))
