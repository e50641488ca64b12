"""Where the services that this user submitted keep their state, for the commands that come later.

There is a small file for each service below `$XDG_STATE_HOME` or `~/.local/state`. It holds the
path of the service's folder, and its time is that of the last submission. Submissions of different
services never write the same file.
"""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

from supervisor.state import ServiceFolder, read_json, write_json

OWN_FOLDER = Path("trtllm-deployment-toolkit", "slurm")
FOLDER = "folder"  # the key of a file: the path of the service's folder


def remember(service: ServiceFolder) -> None:
    """The service was submitted now. Raises `OSError`."""
    digest = hashlib.sha256(os.fsencode(service.path)).hexdigest()
    write_json(_own_folder() / f"{digest[:16]}.json", {FOLDER: str(service.path)})


def remembered() -> list[ServiceFolder]:
    """The services that this user submitted, the last one first, wherever their state is now."""
    found = []
    try:
        for file in _own_folder().glob("*.json"):
            path = Path(str((read_json(file) or {}).get(FOLDER, "")))
            if path.is_absolute() and path.name:
                found.append((file.stat().st_mtime_ns, ServiceFolder(path.parent, path.name)))
    except OSError:  # as if nothing were remembered: --state names the folder
        return []
    return [service for _, service in sorted(found, key=lambda one: one[0], reverse=True)]


def _own_folder() -> Path:
    """Raises `OSError` where this user has no home."""
    try:
        base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    except RuntimeError as fault:
        raise OSError(errno.ENOENT, str(fault), "~") from None
    return base / OWN_FOLDER
