"""Runs one verb of a command line: prints its errors and returns its exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable

from .errors import ToolkitError

DEBUG = "TRTLLM_TOOLKIT_DEBUG"


def run(verb: Callable[[], None]) -> int:
    """The exit code of a verb: 0, that of its error, 1 for a bug, 130 when interrupted.

    A `KeyboardInterrupt` may carry an `exit_code` of its own.
    """
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
        what = f"a bug in this toolkit, {type(bug).__name__}: {bug}"
        print(f"error: {what}; please report it with the output of {DEBUG}=1", file=sys.stderr)
        return 1
    return 0
