"""Statements of a script that only speak of a server: their programs find, read or print text."""

from __future__ import annotations

import re
from collections.abc import Sequence

_PRINTERS = frozenset(("echo", "printf"))
# What scripts call their own functions that print.
_OWN_PRINTERS = frozenset(("log", "info", "warn", "die", "error", "say", "logger"))
# Wherever they stand in a statement, behind `ssh HOST` or `kubectl exec` as well.
_FINDERS = frozenset(("grep", "egrep", "fgrep", "zgrep", "rg", "pgrep", "pkill", "killall"))
# fmt: off
_READERS = frozenset(
    (
        "ps", "pidof", "awk", "sed", "cat", "less", "more", "head", "tail", "wc", "sort",
        "cut", "tr", "jq", "yq", "man", "which", "type", "whatis", "ls", "curl", "wget",
        "git", "read", "test", "[", "[[", ":", "true", "false"
    )
)
# fmt: on
# fmt: off
_BEFORE = frozenset(
    (
        "if", "then", "else", "elif", "while", "until", "do", "!", "{", "time", "sudo",
        "command", "exec", "env"
    )
)
# fmt: on
_FOR_READERS = re.compile(r"(?:.*\.)?(?:txt|md|out|err|csv)|.*log[\w}]*|/dev/\w+", re.I)


# Programs that run a text of another language than a shell's, and their flags before it.
_INTERPRETERS = re.compile(r"(?:python|pypy|ruby|perl|node|deno|php|lua|Rscript|awk)[\d.]*")
_CODE = re.compile(r"-[a-zA-Z]*[cer]|--eval|--command")


def runs_code(words: Sequence[str]) -> bool:
    """Whether words give an interpreter a program of its language: `python3 -c 'print("...")'`."""
    for index, word in enumerate(words):
        if not _INTERPRETERS.fullmatch(word.rpartition("/")[2]):
            continue
        for flag in words[index + 1 :]:
            if not flag.startswith("-"):
                break
            if _CODE.fullmatch(flag):
                return True
    return False


def is_mention(words: Sequence[str], files: Sequence[str], piped_to: Sequence[str]) -> bool:
    """Whether a statement of these words starts nothing. What is printed may be a script, unless
    only readers get it: `files` are those that it is redirected to, `piped_to` the words of the
    statement that reads it."""
    program = _program(words)
    if program in _READERS or program in _OWN_PRINTERS:
        return True
    if not _FINDERS.isdisjoint(word.rpartition("/")[2] for word in words) or runs_code(words):
        return True
    if program not in _PRINTERS:
        return False
    reader = _program(piped_to)
    if reader == "tee":
        files = [*files, *(word for word in piped_to[1:] if not word.startswith("-"))]
    is_read = not piped_to or reader == "tee" or reader in _READERS or reader in _FINDERS
    return is_read and all(_FOR_READERS.fullmatch(name) for name in files)


def _program(words: Sequence[str]) -> str:
    """The name of what a statement runs, behind keywords, assignments and `sudo -n`."""
    for word in words:
        name = word.rpartition("/")[2]
        if name not in _BEFORE and not re.match(r"-|[A-Za-z_]\w*=", word):
            return name
    return ""
