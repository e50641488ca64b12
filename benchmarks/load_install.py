"""What the extra `launch` adds to the default install, as it lies on disk here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

PROJECT = "trtllm-deployment-toolkit"
EXTRA = "launch"
NAME = re.compile(r"[\w.-]+")
EXTRAS = re.compile(r"\[([\w, -]+)\]")
NEEDED_FOR = re.compile(r"extra == ['\"]([\w-]+)['\"]")


def megabytes() -> float:
    """Of the packages that the extra needs and the default install does not."""
    added = closure(PROJECT, {EXTRA}) - closure(PROJECT, set())
    return sum(map(size, added)) / 1e6


def closure(name: str, extras: set[str]) -> set[str]:
    """The installed packages that a package with these extras needs, without itself."""
    found: set[str] = set()
    left = [(name, frozenset(extras))]
    seen = set(left)
    while left:
        for needed in requirements(*left.pop()):
            if needed not in seen:
                seen.add(needed)
                left.append(needed)
                found.add(needed[0])
    return found - {name}


def requirements(name: str, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    """Those that are installed: a marker of the platform needs no reading."""
    for line in metadata.requires(name) or ():
        only_for = NEEDED_FOR.findall(line)
        if only_for and not extras & set(only_for):
            continue
        matched = NAME.match(line)
        assert matched is not None
        needed = re.sub(r"[-_.]+", "-", matched[0]).lower()
        wanted = EXTRAS.search(line.partition(";")[0])
        if installed(needed):
            names = wanted[1].split(",") if wanted else ()
            yield needed, frozenset(one.strip() for one in names)


def installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def size(name: str) -> int:
    """In bytes, compiled files included."""
    paths = (Path(str(file.locate())) for file in metadata.files(name) or ())
    return sum(path.stat().st_size for path in paths if path.is_file())
