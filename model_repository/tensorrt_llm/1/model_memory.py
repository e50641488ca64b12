"""The shared memory between this process and the server, through which prompts and answers pass."""

from __future__ import annotations

from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")


def close_to_others() -> None:
    """Triton makes it readable for every user of the machine.

    To be called before the first request: who has opened it by then goes on reading.
    """
    _region().chmod(0o600)


def forget() -> None:
    """Remove its name, which stays where the server does not end in order."""
    _region().unlink(missing_ok=True)


def _region() -> Path:
    """Triton gives it to its Python process as the second argument."""
    name = Path("/proc/self/cmdline").read_text().split("\0")[2]
    return SHARED_MEMORY / Path(name).name
