"""What a check costs: neither its memory nor its time grows with more than the files themselves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.commands import write_many
from tests.conftest import ROOT

PEAK = "import resource, sys; from builder.cli.main import main; main(['check', sys.argv[1]]); "
PEAK += "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"


def peak_mib(folder: Path) -> float:
    """The most memory that a check of a folder took."""
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stderr.split()[-1]) / 1024


def test_memory_does_not_grow_with_the_number_of_files(tmp_path: Path) -> None:
    few, many = tmp_path / "few", tmp_path / "many"
    write_many(few, 20)
    write_many(many, 400)
    assert peak_mib(many) < peak_mib(few) + 8


def test_a_short_option_file_is_checked_without_what_it_does_not_need() -> None:
    """Imports are most of the time of one file: facts of models, bundles, images, schemas."""
    code = (
        "import sys; from builder import lint; "
        "print(*(name for name in sys.modules if name.startswith('builder.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    unneeded = {
        f"builder.{name}"
        for name in ("facts.checkpoint", "facts.published_results", "facts.images", "bundle")
    }
    assert not unneeded & set(done.stdout.split())
