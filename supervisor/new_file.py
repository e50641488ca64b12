"""A new file: whole, and under a name that nothing has yet, on any file system."""

from __future__ import annotations

import errno
import os
from pathlib import Path

# What a file system says that has no hard links, or none that a user may make.
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)


def name_new(whole: Path, path: Path) -> None:
    """Give a whole file that name. Raises `FileExistsError` where something has it.

    Where there are no hard links the name is taken first, by an empty file, and the whole one then
    replaces it: of two writers one is still refused.
    """
    try:
        os.link(whole, path)
    except OSError as fault:
        if fault.errno not in NO_LINKS:
            raise
        path.open("x").close()
        try:
            whole.replace(path)
        except OSError:
            path.unlink(missing_ok=True)
            raise
