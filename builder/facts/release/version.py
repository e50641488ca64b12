"""Orders versions: engine releases, containers, and the names of development tables."""

from __future__ import annotations

import re
from functools import lru_cache

Order = tuple[tuple[int, ...], int, int, int]
NO_VERSION: Order = ((), 0, 0, 0)  # before all others

_VERSION = re.compile(r"v?(?P<numbers>\d+(?:\.\d+)+)(?P<rest>[a-z0-9.]*)", re.IGNORECASE)
_BEFORE_RELEASE = re.compile(r"\.?(?P<stage>dev|a|b|rc)(?P<number>\d+)", re.IGNORECASE)
_AFTER_RELEASE = re.compile(r"\.?post(?P<number>\d+)", re.IGNORECASE)
_WHOLE = re.compile(
    r"v?\d+(\.\d+)+(\.?(a|b|rc)\d+)?(\.?post\d+)?(\.?dev\d+)?(\+[a-z0-9.]+)?", re.IGNORECASE
)
_SEPARATED = re.compile(r"[-_.]?(?P<stage>rc|post)[-_.]?(?P<number>\d+)", re.IGNORECASE)
_STAGES = {"dev": 0, "a": 1, "b": 2, "rc": 3}
_RELEASE_STAGE = 4


@lru_cache(maxsize=10_000)
def order(version: str) -> Order | None:
    """A key by which versions sort: 1.2.1 < 1.3.0rc17 < 1.3.0, 26.04 < 26.07.

    What follows a version in a container's tag is ignored. `None` for text without a version.
    """
    match = _VERSION.match(version.strip())
    if match is None:
        return None
    numbers = [int(number) for number in match["numbers"].split(".")]
    while numbers[-1] == 0 and len(numbers) > 1:
        numbers.pop()
    before = _BEFORE_RELEASE.match(match["rest"])
    after = _AFTER_RELEASE.search(match["rest"])
    return (
        tuple(numbers),
        _STAGES[before["stage"].lower()] if before else _RELEASE_STAGE,
        int(before["number"]) if before else 0,
        int(after["number"]) + 1 if after else 0,
    )


def is_version(text: str) -> bool:
    """Whether a text is exactly a version, as Python packages have them."""
    return _WHOLE.fullmatch(text) is not None


def canonical(text: str) -> str:
    """A version as package indexes spell it; other text stays as it is.

    >>> [canonical(text) for text in ("v1.2.1", "1.3.0-RC24", "1.2.0rc6-post2", "main-00043967")]
    ['1.2.1', '1.3.0rc24', '1.2.0rc6.post2', 'main-00043967']
    """
    plain = text.strip().lower().removeprefix("v")
    plain = _SEPARATED.sub(
        lambda found: f"{'.post' if found['stage'] == 'post' else 'rc'}{found['number']}", plain
    )
    return plain if is_version(plain) else text.strip()


def is_stable(version: str) -> bool:
    """Whether a version is final, not a candidate or development build."""
    found = order(version)
    return found is not None and found[1] == _RELEASE_STAGE


def without_post(version: str) -> str:
    """A version without the number of a later patch of the same code, or the name of a build.

    >>> without_post("1.2.0rc6.post2"), without_post("0.20.0+cu130")
    ('1.2.0rc6', '0.20.0')
    """
    return _AFTER_RELEASE.sub("", version.partition("+")[0])


def oldest_first(name: str) -> tuple[bool, Order, str]:
    """A key for names of releases; those without a version, development tables, come last."""
    found = order(name)
    return found is None, found or NO_VERSION, name
