"""Checks server flags, alone and with an option file: which of two values the server drops."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from functools import lru_cache
from typing import Any

from ..diagnostics import Diagnostic, closest, nearest, of_same_words
from ..facts import engines
from ..facts.release import Flag, Release, of_engine
from ..general_rules import VALUE_RANGE
from . import remedies
from .constraints import flag_rule
from .context import RuleContext
from .evaluation import same
from .options import set_option
from .rule_inputs import MISSING, RuleInputs
from .validation import validate

Flags = Mapping[str, Any]
"""Flags as typed: spelling to value, `True` for a switch."""


SERVE = "serve"
MAX_DIGITS = 300

# What the command line reads as a number of each type.
_NUMBERS: Mapping[str, str] = {
    "int": r"[+-]?\d+",
    "float": r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?",
}


def flag_traps(flags: Flags, options: Mapping[str, Any], release: Release) -> Iterator[Diagnostic]:
    """Flags that the release does not accept, and values that it drops without a message.

    `where` is the flag's spelling.
    """
    spelled = spellings(release)
    for spelling, value in flags.items():
        yield from flag_faults(spelling, value, release)
        if spelling in spelled and (path := option_path(spelled[spelling], release)):
            yield from _lost(path, spelling, value, options, release)


@lru_cache(maxsize=64)
def spellings(release: Release, subcommand: str = SERVE) -> Mapping[str, Flag]:
    """The flags of a subcommand by every spelling."""
    flags = release.serve_flags if subcommand == SERVE else release.subcommands[subcommand]
    found: dict[str, Flag] = {}
    for flag in flags:
        found |= dict.fromkeys(flag.spellings, flag)
    return found


def flag_faults(
    spelling: str, value: Any, release: Release, subcommand: str = SERVE
) -> Iterator[Diagnostic]:
    """Errors of one flag; `value` is `None` for a flag without a value."""
    spelled = spellings(release, subcommand)
    flag = spelled.get(spelling)
    if flag is None:
        remedy = _of_unknown(spelling, release, subcommand)
        yield _problem("unknown-flag", spelling, release, remedy=remedy, subcommand=subcommand)
    elif value is None:
        if flag.type != "flag":
            yield _problem("flag-without-value", spelling, release)
    elif flag.values and str(value) not in flag.values:
        remedy = nearest(str(value), flag.values)
        yield _problem("flag-value", spelling, release, value, remedy=remedy)
    elif flag.type in _NUMBERS and not re.fullmatch(_NUMBERS[flag.type], str(value)):
        remedy = "give a whole number" if flag.type == "int" else "give a number"
        yield _problem("flag-value", spelling, release, value, remedy=remedy)
    elif flag.type in _NUMBERS and (path := option_path(flag, release)):
        options: dict[str, Any] = {}
        # A number of more digits than Python reads is a float, which no bound takes either.
        whole = flag.type == "int" and len(str(value)) <= MAX_DIGITS
        number = int(value) if whole else float(str(value))
        set_option(options, path, number)
        for row in validate(release, options):
            if row.rule == VALUE_RANGE:
                remedy = f"{path} {row.fix}"
                yield _problem("flag-value", spelling, release, value, remedy=remedy)


@lru_cache(maxsize=1_000)  # the servers of a file may all have the same one
def _of_unknown(spelling: str, release: Release, subcommand: str) -> str:
    """The remedy for a flag that a subcommand does not have."""
    spelled = spellings(release, subcommand)
    names = [text for text in spelled if text.startswith("-")]
    remedy = _elsewhere(spelling, release, spelled, subcommand)
    remedy = remedy or _of_subcommand(spelling, release, subcommand)
    if not (remedy or closest(spelling, names)):
        remedy = _of_option(spelling, release, spelled)
    return remedy or nearest(spelling, names)


def _elsewhere(
    spelling: str, release: Release, spelled: Mapping[str, Flag], subcommand: str
) -> str:
    """The name here of a flag of other releases, or else the releases that have it."""
    others = {
        row.name: spellings(row, subcommand).get(spelling)
        for row in of_engine(release.engine)
        if subcommand in (SERVE, *row.subcommands)
    }
    having = {name: flag for name, flag in others.items() if flag}
    names = {flag.name for flag in having.values()}
    if here := [text for text, flag in spelled.items() if flag.name in names]:
        return f"release {release.name} calls it {max(here, key=len)}"
    return f"it is a flag of {', '.join(having)}" if having else ""


def _of_subcommand(spelling: str, release: Release, subcommand: str) -> str:
    """Which other subcommand has the flag, and the similar flag here."""
    having = [
        name
        for name in (SERVE, *release.subcommands)
        if name != subcommand and spelling in spellings(release, name)
    ]
    if not having:
        return ""
    own = of_same_words(spelling, spellings(release, subcommand))
    is_file = spellings(release, having[0])[spelling].type in ("path", "path_or_str")
    if subcommand == SERVE and is_file:
        own = f"{release.spelling(release.engine.option_file_flag)}, with the engine's options,"
    return f"it is a flag of {having[0]}{f'; {own} here' if own else ''}"


def _of_option(spelling: str, release: Release, spelled: Mapping[str, Flag]) -> str:
    """The flag for the option that was meant, under its own name or that of another engine."""
    first, space, rest = spelling.partition(" ")
    if space and first in spelled:
        return f"that is two words in one: write them apart, or {first}={rest.strip()}"
    name = spelling.lstrip("-").replace("-", "_")
    flags = {path: flag for flag in spelled.values() if (path := option_path(flag, release))}
    if near := closest(name, release.top_level):
        if flag := flags.get(near):
            return f"the flag for {near} is {flag.spellings[0]}"
        return f"it is no flag: give {near} in the option file"
    rows = engines.counterparts(name, release.engine.name)
    if flag := next((flags[row.own] for row in rows if row.own in flags), None):
        title = engines.load(rows[0].engine).title
        return f"that is {title}'s; {max(flag.spellings, key=len)} here"
    if remedy := remedies.of_other_engine(release, name) or remedies.former(release, name):
        return remedy
    near = of_same_words(spelling, (text for text in spelled if text.startswith("--")))
    return f"did you mean {near}?" if near else ""


def with_flags(flags: Flags, options: Mapping[str, Any], release: Release) -> dict[str, Any]:
    """The options that the engine uses, from the file and the flags."""
    merged: dict[str, Any] = deepcopy(dict(options))
    spelled = spellings(release)
    for spelling, value in flags.items():
        flag = spelled.get(spelling)
        path = option_path(flag, release) if flag else None
        if path and _loser(path, options, release) != "flag":
            set_option(merged, path, value)
    return merged


def option_path(flag: Flag, release: Release) -> str | None:
    """The option that a flag sets; `None` if it is the server's own."""
    sets_option = flag.name in release.top_level and not flag.positional
    return flag.yaml_path or (flag.name if sets_option else None)


def _loser(path: str, options: Mapping[str, Any], release: Release) -> str:
    """Which value is dropped if both set an option: `flag`, `file` or neither."""
    top, _, nested = path.partition(".")
    given = RuleInputs(options, RuleContext(release)).value(path) is not MISSING
    if release.precedence != "yaml":
        return "file" if given else ""
    is_replaced = nested and top in options and top not in release.deep_merged_keys
    return "flag" if given or is_replaced else ""


def _lost(
    path: str, spelling: str, value: Any, options: Mapping[str, Any], release: Release
) -> Iterator[Diagnostic]:
    file_value = RuleInputs(options, RuleContext(release)).value(path)
    if not (loser := _loser(path, options, release)):
        return
    if file_value is MISSING:
        block = path.partition(".")[0]
        yield _problem("flag-lost-with-block", spelling, release, value, path, block=block)
    elif not same(file_value, value):
        yield _problem(f"{loser}-value-lost", spelling, release, value, path, file=file_value)


def _problem(
    rule: str, spelling: str, release: Release, value: Any = MISSING, path: str = "", **more: Any
) -> Diagnostic:
    names = {"flag": spelling, "value": value, "path": path, "release": release.name, **more}
    found = flag_rule(rule, release.engine).problem(spelling, names.__getitem__)
    return replace(found, fix=more["remedy"]) if "remedy" in more else found  # in all its words
