"""Dockerfiles, as the shell would read what they run: every word stays where it stands."""

from __future__ import annotations

import re

_RUNS = re.compile(
    r"^(?P<before>[ \t]*)(?P<word>RUN|CMD|ENTRYPOINT)(?P<rest>[ \t](?:.*\\\n)*.*)$",
    re.MULTILINE | re.IGNORECASE,
)
_FLAGS = re.compile(r"(?:[ \t]+--[a-z]+=\S+)+")  # of RUN itself, such as its mounts
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\],]')
_LIST_FOLLOWS = re.compile(r"\n[ \t]*CMD[ \t]*\[", re.IGNORECASE)


def dockerfile_as_shell(text: str) -> str:
    """The text with the names of instructions and the brackets of lists left blank.

    An entry point in the form of a list takes the words of the command that follows it.
    """
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
