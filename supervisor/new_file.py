"""A new file: whole, and under a name that nothing has yet, on any file system."""

from __future__ import annotations

import errno
import os
import uuid
from pathlib import Path

# What a file system says that has no hard links, or none that a user may make.
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)


def name_new(whole: Path, path: Path) -> None:
    """Give a whole file that name. Raises `FileExistsError` where something has it.

    Where there are no hard links the name is taken first, by an empty file, and the whole one then
    replaces it, unless somebody gave the name to another file meanwhile: one of two is refused.
    """
    try:
        os.link(whole, path)
    except OSError as fault:
        if fault.errno not in NO_LINKS:
            raise
        with path.open("x") as taken:
            own = os.fstat(taken.fileno())
        try:
            if not _is_still(own, path):
                raise FileExistsError(errno.EEXIST, "taken over meanwhile", str(path)) from None
            whole.replace(path)
        except OSError:
            if _is_still(own, path):
                path.unlink(missing_ok=True)
            raise


def _is_still(file: os.stat_result, path: Path) -> bool:
    try:
        return os.path.samestat(path.lstat(), file)
    except FileNotFoundError:
        return False


def name_of_damaged(path: Path) -> Path:
    """A path in the same folder for a file that a new one replaces."""
    return path.with_name(f".{path.name}.damaged-{uuid.uuid4().hex[:8]}")
