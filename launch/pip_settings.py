"""Translates pip's settings for uv: reads `pip config list`, prints one argument per line.

A setting may be in several files and in the environment; as for pip, the last of `global`,
`install` and the environment counts. `launch/setup.sh` runs it before anything is installed.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping

SCOPES = ("global", "install", ":env:")  # the later ones count
FLAGS = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "trusted-host": "--allow-insecure-host",
}
VARIABLES = {"cert": "SSL_CERT_FILE", "proxy": "ALL_PROXY", "default-timeout": "UV_HTTP_TIMEOUT"}
TRUE = {"1", "true", "yes", "on"}


def read(lines: Iterable[str]) -> dict[str, str]:
    """What counts of each setting."""
    found: dict[str, dict[str, str]] = {scope: {} for scope in SCOPES}
    for line in lines:
        place, _, written = line.strip().partition("=")
        scope, _, name = place.rpartition(".")
        if scope in found:
            found[scope][name] = str(ast.literal_eval(written))
    merged: dict[str, str] = {}
    for settings in found.values():
        merged |= settings
    return merged


def arguments(settings: Mapping[str, str]) -> Iterator[str]:
    """Where uv fetches from."""
    for name, flag in FLAGS.items():
        yield from (f"{flag}={value}" for value in settings.get(name, "").split())
    if settings.get("no-index", "").lower() in TRUE:
        yield "--no-index"


def environment(settings: Mapping[str, str]) -> Iterator[str]:
    """How it reaches that."""
    for name, variable in VARIABLES.items():
        if value := settings.get(name):
            yield f"{variable}={value}"


if __name__ == "__main__":
    for row in {"arguments": arguments, "environment": environment}[sys.argv[1]](read(sys.stdin)):
        print(row)
