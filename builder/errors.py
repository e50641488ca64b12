"""Every error that a user can cause or meet, as a tree with one exit code per kind.

ToolkitError
├── BadInput       2  the user wrote something wrong
├── BadFacts       3  a checkpoint or a data file is missing, truncated or contradicts itself
├── DamagedBundle  4  a bundle is not what its manifest says
├── NotReady       5  a server died or did not become ready in time
└── ChecksFailed   6  a smoke suite or a benchmark found errors

An error carries all independent diagnostics of one run, one line each.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from .diagnostics import Diagnostic


class ToolkitError(Exception):
    """The base of all errors that are reported without a traceback."""

    exit_code: ClassVar[int] = 1

    def __init__(self, diagnostics: Diagnostic | Iterable[Diagnostic]) -> None:
        self.diagnostics = (
            [diagnostics] if isinstance(diagnostics, Diagnostic) else list(diagnostics)
        )
        super().__init__("\n".join(map(str, self.diagnostics)))

    def __reduce__(self) -> tuple[type[ToolkitError], tuple[list[Diagnostic]]]:
        """Between processes it stays what it is."""
        return type(self), (self.diagnostics,)


class BadInput(ToolkitError):
    exit_code = 2


class BadFacts(ToolkitError):
    exit_code = 3


class DamagedBundle(ToolkitError):
    exit_code = 4


class NotReady(ToolkitError):
    exit_code = 5


class ChecksFailed(ToolkitError):
    exit_code = 6
