"""Data files: YAML and JSON of the toolkit, read as typed facts with the line of every error.

A shipped file whose digest stands in `builder/data/index.txt` was validated when the index was
written, and its data is taken from there: validating it again and parsing YAML would take most of a
short command's time. Any other one, edited or added, is parsed and validated whenever it is read.
`python -m maintenance.index_data` validates all files and writes the index: a line for each file
with its path, the digest of its text, and its data as JSON, but for a file that is JSON itself or
has keys that are no texts, which JSON would make of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeVar, overload

from .. import credentials
from ..diagnostics import NOWHERE, Diagnostic, Location, located
from ..documents import DATA, Yaml, load_yaml, scan_yaml, with_file
from ..errors import BadFacts
from ..files import read_text
from .schema import build
from .validated import build_validated

INDEX = DATA / "index.txt"
MAX_BYTES = 20_000_000

T = TypeVar("T")

_loaded: dict[Path, tuple[Any, Any]] = {}  # with the kind that each was read as


@overload
def load(path: Path, kind: type[T]) -> T: ...
@overload
def load(path: Path, kind: object) -> Any: ...
def load(path: Path, kind: Any) -> Any:
    """The content of a data file as `kind`, read once. Raises `BadFacts` with all its errors."""
    kept = _loaded.get(path)
    if kept is None or kept[0] != kind:
        kept = _loaded[path] = kind, read(path, kind)
    return kept[1]


def names(folder: Path, *suffixes: str) -> tuple[str, ...]:
    """Names of a folder's files without their suffixes, in order; listed anew when it changes."""
    return _names(folder, suffixes, folder.stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _names(folder: Path, suffixes: tuple[str, ...], changed_ns: int) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in folder.iterdir() if path.suffix in suffixes))


def shipped(name: str, kind: Any) -> Any:
    """The content of a data file of the toolkit by its path in `builder/data`."""
    return load(DATA / name, kind)


def read(path: Path, kind: Any) -> Any:
    """That of a file that may change while this process runs."""
    text = read_text(path, BadFacts, MAX_BYTES)
    if (listed := _listed(path, text)) is not None:
        return build_validated(kind, json.loads(listed) if listed else _plain_data(path, text))
    value, diagnostics = _read(path, text, kind)
    if diagnostics:
        raise BadFacts(diagnostics)
    return value


def validate(path: Path, kind: Any) -> list[Diagnostic]:
    """Every error of a data file, whether or not the index lists it."""
    try:
        text = read_text(path, BadFacts, MAX_BYTES)
    except BadFacts as error:
        return error.diagnostics
    return _read(path, text, kind)[1]


def _listed(path: Path, text: str) -> str | None:
    """What the index has of a shipped file that was validated with this text; `None` of another."""
    if not path.is_relative_to(DATA):
        return None
    digest, data = _index().get(path.relative_to(DATA).as_posix(), ("", ""))
    if digest != _digest(text):
        return None
    return data


@cache
def _index() -> Mapping[str, tuple[str, str]]:
    """Digest and data by path."""
    if not INDEX.is_file():
        return {}
    rows = (line.split(" ", 2) for line in INDEX.read_text(encoding="utf-8").splitlines())
    return {path: (digest, data) for path, digest, data in rows}


def index_line(path: Path) -> str:
    """What the index says of a valid file."""
    text = path.read_text(encoding="utf-8")
    plain = _plain_data(path, text)
    data = json.dumps(plain, separators=(",", ":"))
    if path.suffix == ".json" or json.loads(data) != plain:
        data = ""
    return f"{path.relative_to(DATA).as_posix()} {_digest(text)} {data}\n"


def _plain_data(path: Path, text: str) -> Any:
    return json.loads(text) if path.suffix == ".json" else load_yaml(text)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _read(path: Path, text: str, kind: Any) -> tuple[Any, list[Diagnostic]]:
    """The value and the errors of a text, in the order of its lines."""
    is_json = path.suffix == ".json"
    document = _scan_json(text) if is_json else _scan_yaml(text)
    diagnostics, value = list(document.diagnostics), None
    if document.readable and not any(row.rule == "syntax" for row in diagnostics):
        value, found = build(kind, document.data)
        # JSON is YAML too, so that the same reader knows its lines.
        places = scan_yaml(text)[0] if is_json and found else document
        if not found and not path.is_relative_to(DATA):
            found += _held(document.data)
        diagnostics += [replace(row, location=places.locate(row.path)) for row in found]
    diagnostics.sort(key=lambda diagnostic: diagnostic.location)
    return value, [
        replace(with_file(row, str(path)), path=row.path, location=row.location)
        for row in diagnostics
    ]


def _held(data: Any) -> list[Diagnostic]:
    """Credentials in a file of others, which would be shown with what it says."""
    remedy = "remove it, and take back what was given out"
    return [
        Diagnostic("", what, remedy, "credential", path=path)
        for path, what in credentials.found(data, by_name=False)
    ]


def _scan_yaml(text: str) -> Yaml:
    document, *others = scan_yaml(text)
    if others:
        what = "begins a second document"
        document.diagnostics.append(
            located(others[0].places[""], "", what, "write one document per file")
        )
    return document


def _scan_json(text: str) -> Yaml:
    """A JSON text as JSON has it: YAML would read some numbers as text."""
    repeated: set[str] = set()

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            repeated.update(key for key, _ in pairs)
        return found

    try:
        data = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        place = Location(error.lineno, error.colno)
        diagnostic = located(place, "", f"is not JSON: {error.msg}", "correct this line")
    except (ValueError, RecursionError) as error:
        diagnostic = located(NOWHERE, "", f"is not JSON: {error}", "correct it")
    else:
        diagnostics = scan_yaml(text)[0].diagnostics if repeated else []
        return Yaml(data, diagnostics=diagnostics)
    return Yaml(diagnostics=[diagnostic], readable=False)
