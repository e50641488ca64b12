"""Plain names for paths: links in a folder of their own, for a server that breaks on other letters.

Triton starts its Python through a shell without quotes, and that Python knows ASCII only, whatever
the locale: a blank or an umlaut in a path ends in a server that never becomes ready.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Self

_PLAIN = re.compile(r"[A-Za-z0-9._/+=@%:,-]+")


class PlainPaths:
    """While entered, gives every path a plain name; the links are gone at the end."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="launch-")
        self._links: dict[Path, Path] = {}

    def __enter__(self) -> Self:
        self._folder.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def __call__(self, path: Path) -> Path:
        """The path itself, or a link to it if its name is not plain."""
        if _PLAIN.fullmatch(str(path)):
            return path
        if path not in self._links:
            link = Path(self._folder.name) / str(len(self._links))
            link.symlink_to(path, target_is_directory=True)
            self._links[path] = link
        return self._links[path]
