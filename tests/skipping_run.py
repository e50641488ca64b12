"""Tests that are skipped, and one of a signal, for the runs that `test_run_rules.py` starts."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.conftest import ABSENT


def test_without_a_tool() -> None:
    pytest.skip("no such tool on this machine")


@pytest.mark.skipif(True, reason="no such cluster on this machine")
def test_without_a_cluster() -> None:
    raise AssertionError


def test_without_shared_data() -> None:
    pytest.skip(ABSENT)


def test_a_program_ends_with_its_terminal() -> None:
    program = "import os, signal; os.kill(os.getpid(), signal.SIGHUP); signal.pause()"
    done = subprocess.run([sys.executable, "-c", program], check=False, timeout=60)
    assert done.returncode == -signal.SIGHUP
