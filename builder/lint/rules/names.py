"""Checks for misspelt sections, keys and programs, and for unclosed quotes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...diagnostics import Diagnostic, Location, closest, is_misspelling, located
from ...documents import Variable, Yaml, value_at
from ...general_rules import UNKNOWN_VALUE, VALUE_TYPE
from ..engine import COMMAND, LAUNCHER, MPI_STARTERS, PROGRAMS, surroundings
from ..model import Statement, Word, below, role_of
from ..read.containers import COMMANDS, GPU, command_keys, containers, listed, objects, words_of
from ..read.shell import statements
from ..read.yaml_text import inside
from . import MISSPELT_NAME, NO_TEXT
from .ports import unreached_ports

_RESOURCES = ("limits", "requests", "claims")


def container_diagnostics(documents: Sequence[Yaml]) -> Iterator[Diagnostic]:
    """Checks the resources and ports of the containers in a manifest."""
    yield from misspelt_resources(documents)
    yield from unreached_ports(documents)


def misspelt_resources(documents: Sequence[Yaml]) -> Iterator[Diagnostic]:
    """Reports misspelt `limits` keys and misspelt GPU resources of containers."""
    for document in documents:
        for path, place in document.places.items():
            above, _, key = path.rpartition(".resources.")
            if above and key not in _RESOURCES and (near := closest(key, _RESOURCES)):
                what = "is not part of a container's resources: nothing below it is requested"
                yield located(place, path, what, f"did you mean {near}?", MISSPELT_NAME)
            above, _, key = path.partition(".limits.")
            if key and key != GPU and not above.endswith(".limits") and closest(key, [GPU]):
                what, fix = "is not a resource of a node", f"did you mean {GPU}?"
                yield located(place, path, what, fix, MISSPELT_NAME)


def misspelt_programs(document: Yaml) -> Iterator[Diagnostic]:
    """Reports container commands whose program is a misspelt server command."""
    for data, path, *_ in objects(document):
        rows = [
            row
            for key in command_keys(data)
            for row in words_of(document, data, path, key, _has_words)
        ]
        single = [word for _, word in rows if not _has_words(word.text)]
        yield from misspelt_program([Statement(tuple(single), "")] if single else [])
        for where, word in rows:
            if _has_words(word.text):
                for found in misspelt_program(statements(word.text)):
                    place = inside(document, where, word.text, found.location)
                    yield replace(found, location=place)


def _has_words(text: str) -> bool:
    return re.search(r"\s", text.strip()) is not None


def no_texts(documents: Sequence[Yaml]) -> Iterator[Diagnostic]:
    """Reports command words and environment rows of containers that are not strings. Kubernetes and
    Compose require strings."""
    for document in documents:
        for path, data in containers(document.data, ""):
            for key in COMMANDS if "image" in data else ():
                words = data.get(key)
                for index, word in enumerate(listed(words)):
                    if isinstance(word, int | float):
                        where = below(path, f"{key}.{index}")
                        shown = str(word).lower() if isinstance(word, bool) else str(word)
                        what = f"{shown} is not a string, and a container's arguments are strings"
                        fix = f'write "{shown}"'
                        yield located(document.locate(where), where, what, fix, NO_TEXT)
            for index, row in enumerate(listed(data.get("environment"))):
                if isinstance(row, Mapping) and len(row) == 1 and "image" in data:
                    where, name = below(path, f"environment.{index}"), str(next(iter(row)))
                    what = "is a mapping in a list where Compose expects strings"
                    fix = f"write {name}=VALUE, or remove the dashes"
                    yield located(document.locate(where), where, what, fix, NO_TEXT)


# Opening and closing characters, escapes and comments.
_PART = re.compile(r"\\.|\$'(?:[^'\\]|\\.)*'?|\$\(|\$\{|[\"'`(){}]|#[^\n]*", re.DOTALL)
_CLOSES = {"$(": ")", "(": ")", "${": "}", '"': '"', "`": "`"}
_IN_TEXT = frozenset(('"', "$(", "${", "`"))  # keep their meaning inside double quotes


def open_quote(text: str) -> Diagnostic | None:
    """Reports the last unclosed quote of a script; `text` must not have here documents."""
    at = _open(text)
    if at is None:
        return None
    place = Location(text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at))
    what = f"opens a quote {text[at]} that nothing closes: the shell refuses the script"
    return located(place, "", what, "close it, or an earlier one")


def _open(text: str) -> int | None:
    """The position of the quote that is still open at the end of a script."""
    stack: list[tuple[str, int]] = []
    position = 0
    while found := _PART.search(text, position):
        part, start, position = found[0], found.start(), found.end()
        inner = stack[-1][0] if stack else ""
        is_quoted = inner in ('"', "${")
        if part.startswith("#"):
            if is_quoted or (start and not re.match(r"[\s;&|()`]", text[start - 1])):
                position = start + 1
            elif inner == "`" and "`" in part:
                position = start + part.index("`")
        elif part.startswith("$'"):
            if is_quoted:
                position = start + 1
            elif len(part) < 3 or not part.endswith("'"):
                return start + 1
        elif stack and part == _CLOSES[inner]:
            stack.pop()
        elif part == "'" and not is_quoted:
            end = text.find("'", position)
            if end < 0:
                return start
            position = end + 1
        elif part in _CLOSES and (not is_quoted or part in _IN_TEXT):
            stack.append((part, start))
    return next((start for part, start in reversed(stack) if part in '"`'), None)


_SERVER_FLAGS = frozenset(("--tp_size", "--ep_size", "--max_batch_size", "--extra_llm_api_options"))
# Programs that start another program after their options; _CONTAINERS also take an image or a
# container (docker with `run` and `exec`).
_STARTERS = ("srun", *MPI_STARTERS)
_CONTAINERS = {
    **dict.fromkeys(("docker", "podman", "nerdctl"), ("run", "exec")),
    **dict.fromkeys(("singularity", "apptainer"), ("exec",)),
}
# Options of these programs that take no value; unknown options are assumed to take one.
_WITHOUT_VALUE = re.compile(
    r"-[A-Za-z]\d+|-[dilt]{1,4}|-P|--(?:rm|detach|init|interactive|tty|privileged|nv|contain"
    r"|allow-run-as-root|oversubscribe|bind-to-none|tag-output|report-bindings|overlap|exclusive"
    r"|label|unbuffered|export-all|no-container-\S+|container-writable)|-\S*=.*",
    re.DOTALL,
)
_OF_TWO_VALUES = ("-mca", "--mca", "-gmca", "--gmca")


def misspelt_program(rows: Iterable[Statement]) -> Iterator[Diagnostic]:
    """Reports commands whose program is a misspelt server or rank launcher."""
    for row in rows:
        names = [word.text.rpartition("/")[2] for word in row.words]
        behind = _behind(row.words, names)
        starts = {0, *(index + 1 for index, name in enumerate(names) if name == LAUNCHER)}
        given = {word.text.partition("=")[0] for word in row.words}
        if given & _SERVER_FLAGS and not set(names) & {*PROGRAMS}:
            starts |= behind
        for index in sorted(starts & {*range(len(names))}):
            name, word = names[index], row.words[index]
            is_own = "/" in word.text  # a user's wrapper script
            if (
                not is_own
                and name not in PROGRAMS
                and "-" in name
                and is_misspelling(name, COMMAND)
            ):
                yield _no_program(word, COMMAND)
        for index, name in enumerate(names):
            is_program = index == 0 or index in behind or names[index + 1 : index + 2] == [COMMAND]
            is_other = name != LAUNCHER and row.words[index].text == name
            if is_program and is_other and is_misspelling(name, LAUNCHER):
                yield _no_program(row.words[index], LAUNCHER)


def _behind(words: Sequence[Word], names: Sequence[str]) -> set[int]:
    """The positions of programs that other programs of a command start."""
    found = set()
    for index, name in enumerate(names):
        if name in _STARTERS:
            found.add(_after_options(words, index + 1))
        elif name in _CONTAINERS and {*names[index + 1 : index + 2]} & {*_CONTAINERS[name]}:
            found.add(_after_options(words, index + 2) + 1)
    return found


def _after_options(words: Sequence[Word], index: int) -> int:
    """The index of the first word that is neither an option nor an option's value."""
    while index < len(words) and words[index].text.startswith("-"):
        text = words[index].text
        values = 2 if text in _OF_TWO_VALUES else not _WITHOUT_VALUE.fullmatch(text)
        index += 1 if text == "--" else 1 + values
        if text == "--":
            break
    return index


def _no_program(word: Word, near: str) -> Diagnostic:
    what, fix = f"no program is called {word.text}", f"did you mean {near}?"
    return located(word.location, word.text, what, fix, MISSPELT_NAME)


_PLACEHOLDER = re.compile(r"[$<>{}`]")


def layout(document: Yaml) -> str:
    """The name of the launcher format that a document has by its keys; one key may be misspelt."""
    data = document.data
    if not isinstance(data, Mapping):
        return ""
    for name, row in surroundings()["layouts"].items():
        if sum(key in data for key in row["marks"]) >= len(row["marks"]) - 1:
            return str(name)
    return ""


def misspelt_sections(document: Yaml, name: str = "") -> Iterator[Diagnostic]:
    """Reports misspelt keys of a launcher's file, which the launcher ignores. For a part of such a
    file, `name` gives the layout."""
    name = name or layout(document)
    for path, known in surroundings()["layouts"][name]["keys"].items() if name else ():
        inside = value_at(document.data, path) if path else document.data
        for key in inside if isinstance(inside, Mapping) else ():
            left = [other for other in known if other not in inside]
            if key in known or not (near := closest(str(key), left) or _of_role(key, left)):
                continue
            where = below(path, str(key))
            what = "is not a section of such a file: nothing below it is read"
            if not isinstance(inside[key], Mapping):
                what = "is not a key of such a file and is not read"
            fix = f"did you mean {near}?"
            yield located(document.locate(where), where, what, fix, MISSPELT_NAME)


def _of_role(key: Any, known: Iterable[str]) -> str | None:
    """Another name for the same role: `gen` for `generation`."""
    role = role_of(str(key))
    return next((name for name in known if role and role == role_of(name)), None)


def wrong_values(document: Yaml) -> Iterator[Diagnostic]:
    """Reports values in a launcher's file that its keys do not accept."""
    row = surroundings()["layouts"].get(layout(document), {})
    for path, allowed in row.get("values", {}).items():
        value = value_at(document.data, path)
        if not isinstance(value, str) or isinstance(value, Variable) or value in allowed:
            continue
        if near := closest(value, allowed):
            what, place = f"{value[:60]} is not an allowed value", document.locate(path)
            yield located(place, path, what, f"did you mean {near}?", UNKNOWN_VALUE)
    for path in row.get("counts", ()):
        value = value_at(document.data, path)
        if isinstance(value, Variable | Mapping | list) or _is_count(value):
            continue
        if value is not None and not _PLACEHOLDER.search(str(value)):
            what, place = f"is {str(value)[:60]}", document.locate(path)
            yield located(place, path, what, "give a whole number above zero", VALUE_TYPE)


def _is_count(value: Any) -> bool:
    text = str(value).strip()
    return text.isascii() and text.isdigit() and text.strip("0") != ""
