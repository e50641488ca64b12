"""pip's settings in uv's words: `pip config list` on standard input, an argument of uv a line.

A setting may stand in several files and in the environment; as for pip, the last of `global`,
`install` and the environment counts. `launch/setup.sh` runs it before anything is installed.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator

RANKS = ("global", "install", ":env:")
FLAGS = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "trusted-host": "--allow-insecure-host",
}
TRUE = {"1", "true", "yes", "on"}


def uv_arguments(lines: Iterable[str]) -> Iterator[str]:
    """The arguments that make uv fetch from where pip does."""
    settings: dict[str, tuple[int, str]] = {}
    for line in lines:
        place, _, written = line.strip().partition("=")
        scope, _, name = place.rpartition(".")
        if scope in RANKS:
            found = (RANKS.index(scope), str(ast.literal_eval(written)))
            settings[name] = max(found, settings.get(name, found), key=lambda one: one[0])
    for name, flag in FLAGS.items():
        if name in settings:
            yield from (f"{flag}={value}" for value in settings[name][1].split())
    if settings.get("no-index", (0, ""))[1].lower() in TRUE:
        yield "--no-index"


if __name__ == "__main__":
    for argument in uv_arguments(sys.stdin):
        print(argument)
