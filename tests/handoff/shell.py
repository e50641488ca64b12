"""A shell that stays open, as that of somebody who types commands one after the other."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

BLOCK_TIMEOUT_S = 240.0
END_TIMEOUT_S = 60.0


class Shell:
    """Bash that gives up at the first command that fails, with a folder of its own to work in."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self._blocks = 0
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc", "-eu"],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self.folder.glob("*/server.pid"):
            _end(int(file.read_text()))
        for stream in (self._bash.stdin, self._bash.stdout):
            assert stream is not None
            stream.close()
        self._bash.wait(END_TIMEOUT_S)

    def type(self, script: str) -> str:
        """What the commands print. Fails with it if one of them fails."""
        assert self._bash.stdin is not None and self._bash.stdout is not None
        self._blocks += 1
        typed = self.folder / f".block{self._blocks}.sh"
        printed = typed.with_suffix(".out")
        typed.write_text(script)
        timer = threading.Timer(BLOCK_TIMEOUT_S, os.killpg, [self._bash.pid, signal.SIGKILL])
        timer.start()
        try:
            self._bash.stdin.write(f". ./{typed.name} >{printed.name} 2>&1; echo done\n")
            self._bash.stdin.flush()
            done = self._bash.stdout.readline()
        finally:  # also of an interrupted run: the timer would hold up its end
            timer.cancel()
        output = printed.read_text()
        assert done == "done\n", f"{script}\n--- failed:\n{output}"
        return output


def _end(pid: int) -> None:
    """A server that a failed test left behind ends in order, or is killed."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + END_TIMEOUT_S
        try:
            os.kill(pid, number)
            while time.monotonic() < deadline:
                os.kill(pid, 0)
                time.sleep(0.1)
        except ProcessLookupError:
            return
