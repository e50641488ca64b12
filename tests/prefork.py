"""Processes of `builder` and `launch`, forked from one that has imported the package already.

Each is a process like any other, with a folder, an environment, an exit status and a peak of memory
of its own. Only the 0.3 s of processor time that Python and the imports take are spent once.
"""

from __future__ import annotations

import atexit
import functools
import gc
import io
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parent.parent
TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class Measured:
    """A process that has ended: what it printed, its processor time, its peak of memory.

    The peak counts what it shares with the first process too.
    """

    done: subprocess.CompletedProcess[str]
    seconds: float
    peak_mb: float


class Prefork:
    """The first process. It ends when it is closed, or with this one."""

    def __init__(self) -> None:
        self._first = subprocess.Popen(
            [sys.executable, __file__],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        self._first.communicate()

    def run(
        self,
        arguments: Sequence[str],
        cwd: Path,
        module: str = "builder",
        environment: Mapping[str, str] = os.environ,
    ) -> Measured:
        """`python -m MODULE ARGUMENTS` in that folder."""
        assert self._first.stdin and self._first.stdout
        with tempfile.TemporaryDirectory(prefix="prefork-") as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            order = {
                "module": module,
                "arguments": list(arguments),
                "cwd": str(cwd),
                "environment": dict(environment),
                "out": str(out),
                "err": str(err),
            }
            self._first.stdin.write(json.dumps(order) + "\n")
            self._first.stdin.flush()
            ended = json.loads(self._first.stdout.readline())
            command = [sys.executable, "-m", module, *arguments]
            done = subprocess.CompletedProcess(
                command, ended["status"], out.read_text(), err.read_text()
            )
        assert done.returncode != -signal.SIGALRM, f"{command} hangs: it ran for {TIMEOUT_S} s"
        return Measured(done, ended["seconds"], ended["peak_kb"] / 1024)


@functools.cache
def shared() -> Prefork:
    """That of this session, started by the first test that needs it."""
    started = Prefork()
    atexit.register(started.close)
    return started


def _become(order: Mapping[str, Any]) -> NoReturn:
    """What a new process does: as if Python had been started with this folder and environment."""
    signal.alarm(TIMEOUT_S)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["environment"])
    for number, path in ((0, os.devnull), (1, order["out"]), (2, order["err"])):
        opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    sys.argv = [order["module"], *order["arguments"]]
    try:
        runpy.run_module(order["module"], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        if not isinstance(end.code, int):
            raise
        status = end.code
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # to take apart all that was imported takes as long as many a command


def _warm_up() -> None:
    """The imports of most verbs, and the tables that they read."""
    import builder.cli.main as builder
    import launch.cli.main as launch

    with tempfile.TemporaryDirectory(prefix="prefork-") as folder:
        bundle = str(Path(folder, "bundle"))
        builder.main(["presets"])
        builder.main(["render", "llama-tiny", "-o", bundle])
        builder.main(["verify", bundle])
        builder.main(["check", bundle])
    launch.main(["report", "nothing", "-o", "page.html"])
    launch.main(["bench", "diff", "nothing", "nothing"])


def _serve() -> None:
    orders, answers = sys.stdin, os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    with redirect_stderr(io.StringIO()):
        _warm_up()
    gc.collect()
    gc.freeze()
    while line := orders.readline():
        sys.stdout.flush()
        if (child := os.fork()) == 0:
            _become(json.loads(line))
        _, status, usage = os.wait4(child, 0)
        answer = {
            "status": os.waitstatus_to_exitcode(status),
            "seconds": usage.ru_utime + usage.ru_stime,
            "peak_kb": usage.ru_maxrss,
        }
        os.write(answers, (json.dumps(answer) + "\n").encode())


if __name__ == "__main__":
    sys.path[0] = str(ROOT)
    _serve()
