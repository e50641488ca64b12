"""Parses the words of a command, and the keys of its configuration file, as argparse does.

Names take dashes or underscores. `--no-x` turns `--x` off. `--x.y 1` sets a key of a JSON option,
and `--x.y+ a,b` appends to a list in it. `-O3` sets the optimisation level. A flag can be shortened
if the short form is unambiguous.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from ...diagnostics import Location
from ...documents import Variable
from ...facts.release import Field, Flag, Release
from ...general_rules import DUPLICATE_KEY
from ..engine import formats
from ..model import OptionsBlock, Word
from ..read.yaml_text import SHELL
from ..rules import FLAG_ABBREVIATED, FLAG_VALUE, FLAG_WITHOUT_VALUE, STRAY_WORD

_FLAG = re.compile(r"--?[A-Za-z]")
_SCALED = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_NOTHING = ("", "None")  # unset an optional option on the command line
_LEVEL = "optimization_level"


def read_arguments(words: Sequence[Word], release: Release, is_part: bool = False) -> OptionsBlock:
    """Parses the options of a command. `is_part` means that the model and other flags are
    elsewhere."""
    found = OptionsBlock(is_open=is_part, as_flags=True)
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if joined := _joined(word, release):
            what, fix = "and its value are one word", f"make two words of it, or {'='.join(joined)}"
            found.wrong(word.text, word.location, what, fix, STRAY_WORD)
            rest[:0] = [replace(word, text=text) for text in joined]
        elif _is_flag(word):
            _read_flag(word, rest, release, found)
        elif not word.certain or "$" in word.text:
            found.is_open = True
            found.model = found.model or word
        elif found.model is None and not is_part:
            found.model = word
        elif not found.is_open and not _is_placeholder(word.text):
            what = "is not a flag, and the command takes only one model"
            fix = "write a flag with two dashes, and what belongs together in quotes"
            if found.model and found.model.text == formats(release.engine.name).subcommand:
                word, found.model = found.model, word
                what, fix = (
                    "is read as the model",
                    "drop it: the image starts the server by itself",
                )
            found.wrong(word.text, word.location, what, fix, STRAY_WORD)
    name = release.engine.option_file_flag
    file = found.options.get(name)
    if isinstance(file, str) and not isinstance(file, Variable):
        found.option_file = Word(file, found.places[name], True)
    return found


def _joined(word: Word, release: Release) -> list[str]:
    """Splits a word that contains both a flag and its value, which the parser rejects."""
    name, _, value = word.text.partition(" ")
    is_flag = (
        word.quoted and word.certain and _FLAG.match(name) and "=" not in name and value.strip()
    )
    return [name, value.strip()] if is_flag and find_flag(spelled(name), release) else []


def _is_placeholder(text: str) -> bool:
    """Whether a word is a placeholder for other words, or a space after a backslash."""
    try:
        if isinstance(json.loads(text), dict | list):
            return False
    except ValueError:
        pass
    return not text.strip() or not re.search(r"[A-Za-z0-9]", text) or text[0] in "[<{"


def _read_flag(word: Word, rest: list[Word], release: Release, found: OptionsBlock) -> None:
    name, equals, value_text = word.text.partition("=")
    if "$" in name:
        found.is_open = True
        return
    value = Word(value_text, word.location, word.certain) if equals else None
    if equals and not value_text and rest and not word.quoted and not _is_flag(rest[0]):
        what, fix = "has a space after its =", f"write {name}={rest[0].text}"
        found.wrong(name, word.location, what, fix, STRAY_WORD)
        value = rest.pop(0)
    if name.startswith("-O"):
        name, value = "--optimization-level", _level(name, value, rest, word)
    top, dot, keys = spelled(name).partition(".")
    meant = find_flag(top, release)
    if meant is None:
        following = value or _following(rest)
        found.unknown[name] = (following.text if following else "", word.location)
        while value is None and rest and not _is_flag(rest[0]):
            rest.pop(0)
        return
    argument = meant.argument
    if meant.is_begun:
        what = f"is short for {meant.spelling}"
        fix = f"write {meant.spelling}"
        if other := find_flag(f"--enable-{top.removeprefix('--')}", release):
            fix = f"{fix}, or {other.spelling} if that is meant"
        found.wrong(name, word.location, what, fix, FLAG_ABBREVIATED, warns=True)
    if dot:
        _read_key(argument, keys, value, rest, word, found)
        return
    if argument.name in found.options and argument.kind != "many":
        what = "is set twice; only the last value counts"
        found.wrong(name, word.location, what, "keep one", DUPLICATE_KEY, warns=True)
    if argument.kind == "switch":
        _read_switch(argument, not meant.is_off, value, rest, word, found)
        return
    values = [value] if value else _values(argument, rest)
    if not values and argument.kind == "maybe":
        found.set(argument.name, True, name, word.location)
        return
    if not values:
        fix = f"write {argument.spelling} VALUE"
        found.wrong(name, word.location, "needs a value", fix, FLAG_WITHOUT_VALUE)
        return
    given = [_value(argument, each, found) for each in values]
    many = argument.kind == "many"
    found.set(argument.name, given if many else given[0], name, values[0].location)


def _is_flag(word: Word) -> bool:
    return bool(_FLAG.match(word.text)) and " " not in word.text.partition("=")[0]


def _following(rest: Sequence[Word]) -> Word | None:
    return rest[0] if rest and not _is_flag(rest[0]) else None


def _level(name: str, value: Word | None, rest: list[Word], word: Word) -> Word | None:
    """The optimisation level from `-O`, `-O3`, `-O=3` or `-O 3`."""
    if value is None and name != "-O":
        return Word(name[2:], word.location, word.certain)
    return value or (rest.pop(0) if _following(rest) else None)


def _values(argument: Argument, rest: list[Word]) -> list[Word]:
    values: list[Word] = []
    while rest and not _is_flag(rest[0]) and (argument.kind == "many" or not values):
        values.append(rest.pop(0))
    return values


def _read_switch(
    argument: Argument,
    is_on: bool,
    value: Word | None,
    rest: list[Word],
    word: Word,
    found: OptionsBlock,
) -> None:
    found.set(argument.name, is_on, word.text, word.location)
    after = _following(rest)
    told = after and after.certain and not _is_placeholder(after.text)
    if value is None and after and told and (found.model or found.is_open or _is_truth(after)):
        value = rest.pop(0)
    if value is not None and value.certain:
        off = f"--no-{argument.spelling.removeprefix('--')}"
        what = f"takes no value, but has {value.text}"
        fix = f"write {argument.spelling} alone, or {off} to turn it off"
        found.wrong(word.text.partition("=")[0], word.location, what, fix, FLAG_VALUE)


def _is_truth(word: Word) -> bool:
    return word.text.lower() in ("true", "false", "0", "1")


def _read_key(
    argument: Argument,
    keys: str,
    value: Word | None,
    rest: list[Word],
    word: Word,
    found: OptionsBlock,
) -> None:
    """Parses a dotted flag, which sets one key of a JSON option."""
    value = value or (rest.pop(0) if rest else None)
    name = word.text.partition("=")[0]
    if value is None:
        found.wrong(name, word.location, "needs a value", f"write {name} VALUE", FLAG_WITHOUT_VALUE)
        return
    adds = keys.endswith("+")
    data: Any = [*value.text.split(",")] if adds else _of_json(value)
    steps = keys.removesuffix("+").split(".")
    into = found.options.setdefault(argument.name, {})
    if not isinstance(into, dict):
        return
    for step in steps[:-1]:
        if not isinstance(into.get(step), dict):
            into[step] = {}
        into = into[step]
    before = into.get(steps[-1])
    into[steps[-1]] = [*before, *data] if adds and isinstance(before, list) else data
    path = ".".join((argument.name, *steps))
    found.places.setdefault(argument.name, word.location)
    found.written.setdefault(argument.name, spelled(name).partition(".")[0])
    found.places[path] = value.location


def _of_json(word: Word) -> Any:
    """The value of a dotted flag: JSON, a number with a unit, or text."""
    if not word.certain or SHELL.search(word.text):
        return Variable(word.text)
    try:
        return json.loads(word.text)
    except ValueError:
        return scaled(word.text)


def scaled(text: str) -> Any:
    """Parses `8k` as 8000 and `8K` as 8192; returns any other text unchanged."""
    match = _SCALED.fullmatch(text.strip())
    if not match:
        return text
    number, unit = match.groups()
    if unit in _UNITS:
        return int(float(number) * _UNITS[unit])
    return int(number) * _BINARY[unit] if number.isdigit() else text


def _value(argument: Argument, word: Word, found: OptionsBlock) -> Any:
    text = word.text
    if not word.certain:
        return Variable(text)
    if argument.kind == "json" or (argument.kind == "loose" and text.lstrip()[:1] in ("{", "[")):
        return _json_value(argument.spelling, word, found)
    items = argument.option.get("items", {})
    is_named = "=" in text or text.lstrip().startswith("{")
    told = any(row.path == argument.spelling for row in found.diagnostics)
    if items.get("type") == "record" and not is_named and not told:
        what = f"{text} is neither NAME=PATH nor JSON"
        fix = f"write {argument.spelling} NAME=PATH"
        found.wrong(argument.spelling, word.location, what, fix, FLAG_VALUE)
    return _of_text(argument, text)


def _of_text(argument: Argument, text: str) -> Any:
    """Converts a word to a value as the parser does: a number with a unit, or an enum value.
    Records have their own syntax, which is not checked."""
    row = argument.option
    if text in _NOTHING and row.get("nullable") and row.get("type") != "list":
        return None
    if row.get("human_readable"):
        return -1 if text.lower() == "auto" else scaled(text)
    row = row.get("items", row)
    if row.get("type") == "record":
        return Variable(text)
    if row.get("type") == "enum":
        return next((value for value in row["values"] if str(value) == text), text)
    return text


def _json_value(name: str, word: Word, found: OptionsBlock) -> Any:
    """Parses JSON; a part of it may be a variable."""
    text = word.text
    if text in _NOTHING:
        return None
    try:
        return json.loads(re.sub(r"(?<![\w\"])(\d+(?:\.\d+)?[kKmMgGtT])\b(?!\")", _number, text))
    except ValueError as fault:
        if SHELL.search(text):
            return Variable(text)
        reason = str(fault).partition(":")[0].lower()
        what = f"is not JSON: {reason}"
        fix = "write it in single quotes, with its keys and texts in double ones"
        found.wrong(name, word.location, what, fix, FLAG_VALUE)
        return Variable(text)


def _number(match: re.Match[str]) -> str:
    return str(scaled(match[1]))


def of_mapping(
    data: Mapping[str, Any], places: Mapping[str, Location], release: Release, is_parsed: bool
) -> OptionsBlock:
    """Parses the options of a configuration file, whose keys are flags without dashes. If the
    command's parser does not read the file (`is_parsed` is false), names cannot be shortened."""
    found = OptionsBlock()
    for key, value in data.items():
        name, place = str(key), places[str(key)]
        meant = find_flag(spelled(f"--{name}"), release)
        if meant is None or (meant.is_begun and not is_parsed):
            found.unknown[name] = ("" if isinstance(value, Mapping) else str(value), place)
            continue
        argument, is_off = meant.argument, meant.is_off
        if meant.is_begun:
            what, whole = f"is short for {meant.spelling}", meant.spelling[2:]
            found.wrong(name, place, what, f"write {whole}", FLAG_ABBREVIATED, warns=True)
        given = _of_file(argument, is_off, value, Word(name, place, True), found)
        found.set(argument.name, given, name, place)
        if (
            argument.kind == "switch"
            and not isinstance(value, bool | Variable)
            and value is not None
        ):
            what = f"takes true or false, and {value} is neither"
            found.wrong(name, place, what, "write true, or leave it out", FLAG_VALUE)
            found.options[argument.name] = not is_off
        elif argument.kind != "switch" and value is True:
            found.wrong(name, place, "needs a value", f"write {name}: VALUE", FLAG_WITHOUT_VALUE)
            del found.options[argument.name]
    return found


def _of_file(argument: Argument, is_off: bool, value: Any, key: Word, found: OptionsBlock) -> Any:
    """A value of a configuration file as the parser sees it: text, unless it is a group."""
    if isinstance(value, Variable):
        return value
    if argument.kind == "switch":
        return value is not is_off
    if argument.kind in ("json", "loose") and isinstance(value, str):
        return _json_value(key.text, Word(value, key.location, True), found)
    if argument.kind == "many" and not isinstance(value, Mapping):
        values = value if isinstance(value, list) else [value]
        return [_of_text(argument, str(each)) for each in values]
    if value is None or isinstance(value, Mapping | list):
        return value
    return _of_text(argument, str(value))


Kind = Literal["switch", "one", "maybe", "many", "json", "loose"]


@dataclass(frozen=True, slots=True)
class Argument:
    """A flag as the parser defines it. `kind` is a switch, or a flag with one value, an optional
    value, several values, JSON, or text that may be JSON (`loose`). `option` is its row in the
    release table, or its type."""

    name: str
    spelling: str
    kind: Kind
    option: Field


@dataclass(frozen=True, slots=True)
class Meant:
    """The flag that a name matches, with its full `spelling`. `is_off` means that the name turns
    the flag off, `is_begun` that the name is shortened."""

    argument: Argument
    spelling: str
    is_off: bool = False
    is_begun: bool = False


@lru_cache(maxsize=16)
def known_flags(release: Release) -> Mapping[str, Argument]:
    """Every flag of the server by every spelling, including the ones that turn a flag off."""
    found, json_flags = {}, formats(release.engine.name).json_flags
    for flag in release.serve_flags:
        own = {"type": flag.type} if flag.type in ("int", "float") else {}
        field = release.top_level.get(flag.name) or release.server_options.get(flag.name) or own
        argument = Argument(flag.name, _long(flag), _kind(flag, field, json_flags), field)
        for spelling in () if flag.positional else flag.spellings:
            found[spelling] = argument
    return found


def _long(flag: Flag) -> str:
    return next((each for each in flag.spellings if each.startswith("--")), flag.spellings[0])


def _kind(flag: Flag, field: Field, json_flags: Collection[str]) -> Kind:
    if flag.type == "flag":
        return "switch"
    if flag.name in json_flags:
        return "json"
    if flag.multiple or any(row["type"] == "list" for row in _alternatives(field)):
        return "many"
    if {"bool", "str"} <= {row["type"] for row in _alternatives(field)}:
        return "maybe"
    if flag.type != "json":
        return "one"
    return "json" if field.get("type") in ("record", "mapping", "union") else "loose"


def _alternatives(field: Field) -> list[Field]:
    return list(field["of"]) if field.get("type") == "either" else []


def spelled(text: str) -> str:
    """A flag with dashes up to its first dot, as the parser compares it."""
    if not text.startswith("--"):
        return text
    name, dot, rest = text[2:].partition(".")
    return f"--{name.replace('_', '-')}{dot}{rest}"


def find_flag(name: str, release: Release) -> Meant | None:
    """The flag with this name, or the only flag that begins with it."""
    flags = known_flags(release)
    begun = [name] if name in flags else []
    if not begun and name.startswith("--") and len(name) > 3:
        begun = [other for other in flags if other.startswith(name)]
    if len(begun) != 1:
        return None
    spelling, argument = begun[0], flags[begun[0]]
    return Meant(argument, spelling, _turns_off(spelling, argument), spelling != name)


def _turns_off(spelling: str, argument: Argument) -> bool:
    return spelling == f"--no-{argument.spelling.removeprefix('--')}"
