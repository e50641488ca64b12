"""Runs one verb of a command line: prints its errors and returns its exit code.

Whatever the verb prints, names of files and what others wrote among it, reaches the terminal as
letters only.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, TextIO, cast

from .diagnostics import one_line, printable
from .errors import ToolkitError

DEBUG = "TRTLLM_TOOLKIT_DEBUG"


class PrintableText:
    """A stream that writes out what could act on a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        encoding = self._stream.encoding or "utf-8"
        safe = printable(text).encode(encoding, "backslashreplace")
        return self._stream.write(safe.decode(encoding))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def run(verb: Callable[[], None]) -> int:
    """The exit code of a verb: 0, that of its error, 1 for a bug, 130 when interrupted.

    A `KeyboardInterrupt` may carry an `exit_code` of its own.
    """
    streams = (cast("TextIO", PrintableText(stream)) for stream in (sys.stdout, sys.stderr))
    with redirect_stdout(next(streams)), redirect_stderr(next(streams)):
        return _run(verb)


def _run(verb: Callable[[], None]) -> int:
    try:
        verb()
        sys.stdout.flush()
    except ToolkitError as error:
        for diagnostic in error.diagnostics:
            print(f"{diagnostic.severity}: {diagnostic}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader went away, as `| head` does; nothing more can be said.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt as interrupt:
        return int(getattr(interrupt, "exit_code", 130))
    except Exception as bug:
        if os.environ.get(DEBUG):
            traceback.print_exc()
        what = one_line(f"a bug in this toolkit, {type(bug).__name__}: {bug}")
        print(f"error: {what}; please report it with the output of {DEBUG}=1", file=sys.stderr)
        return 1
    return 0
