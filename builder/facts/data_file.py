"""Reads data files, YAML or JSON, as typed facts with the line of every error.

Validating the shipped files and parsing their YAML would take most of a short command's time. So
the data of a valid one is kept as JSON in the user's cache folder, under a name that changes with
the file's text and with the toolkit's code, and is read from there the next time. An invalid file
is never kept; without a cache folder each file is validated whenever it is read.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeVar, overload

from .. import credentials
from ..diagnostics import NOWHERE, Diagnostic, Location, located
from ..documents import DATA, Yaml, load_yaml, scan_yaml, with_file
from ..errors import BadFacts
from ..files import read_text
from ..general_rules import CREDENTIAL, SYNTAX
from ..schema import Plain, build, fields_of, is_alike, shape

MAX_BYTES = 20_000_000
MOST_STATES = 8  # states of the code that the cache keeps data for: half a megabyte each

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
    """The content of a data file that may change while this process runs."""
    text = read_text(path, BadFacts, MAX_BYTES)
    kept = _kept_path(path, text)
    if kept and (data := _read_kept(kept)) is not None:
        return _build_checked(kind, json.loads(data) if data else _plain_data(path, text))
    value, diagnostics = _read(path, text, kind)
    if diagnostics:
        raise BadFacts(diagnostics)
    if kept:
        _keep(kept, path, text)
    return value


def validate(path: Path, kind: Any) -> list[Diagnostic]:
    """Every error of a data file, whether or not its data is kept."""
    try:
        text = read_text(path, BadFacts, MAX_BYTES)
    except BadFacts as error:
        return error.diagnostics
    return _read(path, text, kind)[1]


def _kept_path(path: Path, text: str) -> Path | None:
    """Where the data of a shipped file is kept; `None` for other files and without a cache."""
    folder = _cache_folder()
    if folder is None or not path.is_relative_to(DATA):
        return None
    name = f"{path.relative_to(DATA).as_posix()} {text}"
    return folder / f"{hashlib.sha256(name.encode()).hexdigest()}.json"


@cache
def _cache_folder() -> Path | None:
    """The folder of this code in the user's cache folder; `None` where the user has none."""
    # `Path.expanduser` raises an error for a user without a home folder.
    base = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))  # noqa: PTH111
    return base / "trtllm-deployment-toolkit" / _code_stamp() if base.is_absolute() else None


def _code_stamp() -> str:
    """Changes with each module of `builder`, as any of them may hold a schema."""
    size = newest_ns = 0
    folders = [str(DATA.parent)]
    while folders:
        for entry in os.scandir(folders.pop()):
            if entry.name.endswith(".py"):
                stat = entry.stat()
                size += stat.st_size
                newest_ns = max(newest_ns, stat.st_mtime_ns)
            elif "." not in entry.name and entry.name != DATA.name and entry.is_dir():
                folders.append(entry.path)
    return f"{size}-{newest_ns}"


def _read_kept(path: Path) -> str | None:
    """The JSON that is kept, empty for data that JSON cannot hold; `None` if there is nothing."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None


def _keep(kept: Path, path: Path, text: str) -> None:
    """Keep the data of a valid file: as JSON, or as an empty text where JSON cannot hold it."""
    plain = _plain_data(path, text)
    data = json.dumps(plain, separators=(",", ":"))
    if path.suffix == ".json" or json.loads(data) != plain:
        data = ""
    with suppress(OSError):  # without a writable cache the program is slower, with the same results
        if not kept.parent.is_dir():
            kept.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _remove_oldest(kept.parent.parent)
        new = kept.with_name(f".{kept.name}.{os.getpid()}")
        try:
            new.write_text(data, encoding="utf-8")
            new.replace(kept)
        finally:
            new.unlink(missing_ok=True)


def _remove_oldest(folder: Path) -> None:
    """Remove what was kept for all but the newest states of the code."""
    import shutil  # takes a while to import

    kept = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    for path in kept[:-MOST_STATES]:
        shutil.rmtree(path, ignore_errors=True)


def _plain_data(path: Path, text: str) -> Any:
    return json.loads(text) if path.suffix == ".json" else load_yaml(text)


def _read(path: Path, text: str, kind: Any) -> tuple[Any, list[Diagnostic]]:
    """The value and the errors of a text, in the order of its lines."""
    is_json = path.suffix == ".json"
    document = _scan_json(text) if is_json else _scan_yaml(text)
    diagnostics, value = list(document.diagnostics), None
    if document.readable and not any(row.rule == SYNTAX for row in diagnostics):
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
    """Credentials in a file of others, which error messages would show."""
    remedy = "remove it, and take back what was given out"
    return [
        Diagnostic("", what, remedy, CREDENTIAL, path=path)
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
    """Parses a JSON text by the rules of JSON: YAML would read some numbers as text."""
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


def _build_checked(kind: Any, data: Any) -> Any:
    """Builds an object of `kind` from data that was already checked; faster than `build`."""
    convert = _converter(kind)
    return convert(data) if convert else data


_Convert = Callable[[Any], Any]


def _converter(kind: Any) -> _Convert | None:
    """The function that turns checked data into a type; `None` if the data is used unchanged."""
    return None if isinstance(kind, dict | list | tuple | Plain) else _converter_of(kind)


@cache
def _converter_of(kind: Any) -> _Convert | None:
    origin, arguments = shape(kind)
    if origin is typing.Annotated:
        return _converter(arguments[0])
    if origin is typing.Union:
        return _converter_of_union(arguments)
    if origin is tuple:
        item = _converter(arguments[0])
        return (lambda value: tuple(map(item, value))) if item else tuple
    if origin is Mapping or origin is dict:
        below = _converter(arguments[1]) if arguments else None
        return below and (lambda value: {key: below(each) for key, each in value.items()})
    if origin is Path:
        return lambda value: DATA / value
    return _converter_of_class(kind) if dataclasses.is_dataclass(origin) else None


def _converter_of_union(kinds: tuple[Any, ...]) -> _Convert | None:
    converters = [(kind, _converter(kind)) for kind in kinds]
    if not any(convert for _, convert in converters):
        return None

    def convert(value: Any) -> Any:
        alike = [row for row in converters if is_alike(row[0], value)]
        if len(alike) == 1:
            ((_, found),) = alike
            return found(value) if found else value
        found, _ = build(typing.Union[kinds], value)  # noqa: UP007, of a tuple
        return found

    return convert


def _converter_of_class(kind: Any) -> _Convert:
    origin, _ = shape(kind)
    converters: dict[str, _Convert | None] = {}

    def convert(value: Any) -> Any:
        if not converters:  # only now: a type may contain itself
            fields = fields_of(kind).items()
            converters.update({name: _converter(inner) for name, (inner, _) in fields})
        values = dict(value)
        for name, item in value.items():
            if found := converters[name]:
                values[name] = found(item)
        return origin(**values)

    return convert


def repeated_ids(name: str, rows: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """The inconsistencies of a field of rows, each of which has an id of its own."""
    seen: set[str] = set()
    for index, row in enumerate(rows):
        if row.id in seen:
            yield f"{name}.{index}.id", f"repeats {row.id}; give another name"
        seen.add(row.id)
