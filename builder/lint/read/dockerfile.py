"""Converts a Dockerfile to shell text without moving a word."""

from __future__ import annotations

import re

_RUNS = re.compile(
    r"^(?P<before>[ \t]*)(?P<word>RUN|CMD|ENTRYPOINT)(?P<rest>[ \t](?:.*\\\n)*.*)$",
    re.MULTILINE | re.IGNORECASE,
)
_FLAGS = re.compile(r"(?:[ \t]+--[a-z]+=\S+)+")  # flags of RUN, such as `--mount`
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\],]')
_LIST_FOLLOWS = re.compile(r"\n[ \t]*CMD[ \t]*\[", re.IGNORECASE)


def dockerfile_as_shell(text: str) -> str:
    """Replaces instruction names and list brackets by spaces. If a `CMD` list follows an
    `ENTRYPOINT` list, the two become one command."""
    return _RUNS.sub(_command, text)


def _command(found: re.Match[str]) -> str:
    rest = found["rest"]
    if flags := _FLAGS.match(rest):
        rest = " " * flags.end() + rest[flags.end() :]
    if rest.lstrip().startswith("["):
        rest = _STRING.sub(lambda part: part[0] if part[0][0] == '"' else " ", rest)
        if found["word"].upper() == "ENTRYPOINT" and _LIST_FOLLOWS.match(found.string, found.end()):
            rest += " \\"
    return found["before"] + " " * len(found["word"]) + rest
