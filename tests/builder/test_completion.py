"""Completion in real shells: what a Tab writes behind the words of a command line."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from select import select

import pytest

from tests import prefork
from tests.conftest import ROOT

READ_TIMEOUT_S = 60.0
SHELLS = {"bash": ["bash", "--norc", "--noprofile", "-i"], "zsh": ["zsh", "-f", "-i"]}


class Terminal:
    """An interactive shell with completion of both programs, which print what they are given."""

    def __init__(self, shell: str, folder: Path) -> None:
        lines = ["PS1=", "PROMPT="]
        for program in ("builder", "launch"):
            script = prefork.shared().run(["completion", shell], ROOT, program).done.stdout
            (folder / f"{program}.complete").write_text(script)
            lines += [f"source ./{program}.complete", f'trtllm-{program}() {{ echo "<$*>"; }}']
        (folder / "start").write_text(
            "\n".join([*lines, 'python() { echo "<$*>"; }', "echo re''ady"])
        )
        (folder / "own.yaml").touch()
        self.terminal, other = pty.openpty()
        self.process = subprocess.Popen(
            SHELLS[shell],
            stdin=other,
            stdout=other,
            stderr=other,
            cwd=folder,
            env={"PATH": os.environ["PATH"], "TERM": "dumb", "HOME": str(folder)},
            start_new_session=True,
        )
        os.close(other)
        os.write(self.terminal, b"source ./start\n")
        self.read_until("ready")

    def read_until(self, text: str) -> None:
        """Read what is shown until a text comes. Fails with what was shown if it does not."""
        shown, end_s = "", time.monotonic() + READ_TIMEOUT_S
        while text not in shown:
            if not select([self.terminal], [], [], max(0.0, end_s - time.monotonic()))[0]:
                pytest.fail(f"{text!r} is not in {shown!r}")
            shown += os.read(self.terminal, 4096).decode(errors="replace")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.terminal)


@pytest.fixture(params=SHELLS)
def terminal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Terminal]:
    if shutil.which(request.param) is None:
        pytest.skip(f"no {request.param} on this machine")
    found = Terminal(request.param, tmp_path)
    yield found
    found.close()


def test_a_tab_completes_verbs_options_values_and_files(terminal: Terminal) -> None:
    for typed, given in {
        "trtllm-builder pl\tllama-ti\t--targ\tkub\t": "plan llama-tiny --target kubernetes",
        "trtllm-builder plan ow\t--wh\t": "plan own.yaml --why",
        "trtllm-builder rel\tli\t": "release list",
        "trtllm-builder check own.yaml --gpu gb1\t": "check own.yaml --gpu gb10",
        "trtllm-launch up own.yaml --engine ref\t": "up own.yaml --engine reference",
        "trtllm-launch slurm subm\t": "slurm submit",
    }.items():
        os.write(terminal.terminal, f"{typed}\n".encode())
        terminal.read_until(f"<{given}>")


def test_bash_completes_modules_of_python_too(tmp_path: Path) -> None:
    terminal = Terminal("bash", tmp_path)
    os.write(terminal.terminal, b"python -m builder expl\tow\t\n")
    terminal.read_until("<-m builder explain own.yaml>")
    os.write(terminal.terminal, b"python -m launch smo\t\n")
    terminal.read_until("<-m launch smoke>")
    terminal.close()
