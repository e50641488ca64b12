"""Compares two bundles: the request, the decisions, the memory, then the files.

Of two engines, decisions are compared by what they mean: each by the planner's word for it.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from .bundle import MANIFEST, Bundle
from .documents import load_yaml
from .facts import engines, release
from .facts.published_results import flatten
from .facts.release import Release
from .rules import heuristics

CONTEXT_LINES = 1

Kind = Literal["added", "removed", "changed", "renamed"]

# What the other sections of a comparison already say.
_DERIVED_FILES = frozenset({MANIFEST, "deployment.yaml", "checkpoint.json"})


@dataclass(frozen=True, slots=True)
class Change:
    """A value that differs.

    `path` is its name in the newer bundle, or in the older one if it is gone; `old_path` is set if
    the same decision has another name there. `reason` is the newer bundle's, if it has one.
    """

    kind: Kind
    path: str
    before: Any = None
    after: Any = None
    reason: str = ""
    old_path: str = ""


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file that differs; `lines` is the unified diff, empty for files that are not text."""

    kind: Kind
    path: str
    lines: tuple[str, ...] = ()


Verdict = Literal["same", "differs", "only_old", "only_new"]


@dataclass(frozen=True, slots=True)
class Counterpart:
    """A decision under its names in two engines, or in the only one that has it.

    `note` explains differences in meaning.
    """

    verdict: Verdict
    old_path: str = ""
    before: Any = None
    path: str = ""
    after: Any = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that differs between two bundles.

    For different engines, `counterparts` has all decisions, including equal ones, and `decisions`
    is empty.
    """

    request: tuple[Change, ...]
    decisions: tuple[Change, ...]
    memory: tuple[Change, ...]
    inputs: tuple[Change, ...]
    files: tuple[FileChange, ...]
    counterparts: tuple[Counterpart, ...] = ()

    @property
    def empty(self) -> bool:
        return not any((self.request, self.decisions, self.memory, self.inputs, self.files))


def compare(old: Bundle, new: Bundle) -> Comparison:
    """Compare two intact bundles."""
    tables = _release(old), _release(new)
    rows = old.manifest["decisions"], new.manifest["decisions"]
    same_engine = tables[0].engine == tables[1].engine
    return Comparison(
        request=tuple(_values(_request(old), _request(new))),
        decisions=tuple(_decisions(*rows)) if same_engine else (),
        counterparts=() if same_engine else tuple(_counterparts(*rows, *tables)),
        memory=tuple(_values(flatten(old.manifest["memory"]), flatten(new.manifest["memory"]))),
        inputs=tuple(_values(*(bundle.manifest["inputs"]["files"] for bundle in (old, new)))),
        files=tuple(_files(old, new)),
    )


def _request(bundle: Bundle) -> dict[str, Any]:
    request = flatten(load_yaml((bundle.folder / "deployment.yaml").read_text(encoding="utf-8")))
    return {path: value for path, value in request.items() if value != {}}


def _release(bundle: Bundle) -> Release:
    engine = load_yaml((bundle.folder / "deployment.yaml").read_text(encoding="utf-8"))["engine"]
    return release.load(engine["release"], bundle.folder, engines.load(engine["name"]))


def _counterparts(
    old_rows: list[Mapping[str, Any]],
    new_rows: list[Mapping[str, Any]],
    old: Release,
    new: Release,
) -> Iterator[Counterpart]:
    """Matches the decisions of two engines by the planner's names."""
    words = (*old.aliases, *new.aliases)
    pairs = {new.option_path(word): old.option_path(word) for word in words}
    meanings: dict[str, str] = {}
    for table in (old, new):
        for word, note in table.engine.other_meanings.items():
            meanings[table.option_path(word)] = note
    left = {row["path"]: row["value"] for row in old_rows}
    for row in new_rows:
        path, value = row["path"], row["value"]
        before = next((one for one in (pairs.get(path), path) if one in left), None)
        if before is None:
            yield Counterpart("only_new", path=path, after=value, note=meanings.get(path, ""))
            continue
        given = left.pop(before)
        same = _same(_meant(given, old), _meant(value, new))
        note = meanings.get(path) or meanings.get(before, "")
        yield Counterpart("same" if same else "differs", before, given, path, value, note)
    for path, value in left.items():
        yield Counterpart("only_old", path, value, note=meanings.get(path, ""))


def _meant(value: Any, table: Release) -> Any:
    """A value under the planner's name, if engines name the same method differently."""
    if value == table.engine.draft_method:
        return "own layers"
    names = heuristics.method_names(table.engine).items()
    return next((word for word, known in names if value in known), value)


def _values(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    for path in (*old, *(path for path in new if path not in old)):
        if path not in new:
            yield Change("removed", path, before=old[path])
        elif path not in old:
            yield Change("added", path, after=new[path])
        elif not _same(old[path], new[path]):
            yield Change("changed", path, old[path], new[path])


def _same(one: Any, other: Any) -> bool:
    """Whether two values are written the same; in Python, `True` equals 1."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _decisions(
    old_rows: list[Mapping[str, Any]], new_rows: list[Mapping[str, Any]]
) -> Iterator[Change]:
    old = {row["path"]: row for row in old_rows}
    new = {row["path"]: row for row in new_rows}
    gone = [row for path, row in old.items() if path not in new]
    for path, row in new.items():
        before = old.get(path) or _renamed(row, gone)
        if before is None:
            yield Change("added", path, after=row["value"], reason=row["reason"])
        elif before["path"] != path:
            gone.remove(before)
            yield Change("renamed", path, before["value"], row["value"], "", before["path"])
        elif not _same(before["value"], row["value"]):
            yield Change("changed", path, before["value"], row["value"], row["reason"])
    for row in gone:
        yield Change("removed", row["path"], before=row["value"])


def _renamed(row: Mapping[str, Any], gone: list[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The decision with another name but the same value and reason."""
    same = ("value", "reason")
    return next((old for old in gone if all(_same(old[key], row[key]) for key in same)), None)


def _files(old: Bundle, new: Bundle) -> Iterator[FileChange]:
    before, after = old.manifest["files"], new.manifest["files"]
    for path in sorted({*before, *after} - _DERIVED_FILES):
        if path not in after:
            yield FileChange("removed", path)
        elif path not in before:
            yield FileChange("added", path)
        elif before[path] != after[path]:
            yield FileChange("changed", path, tuple(_unified(old.folder / path, new.folder / path)))


def _unified(old: Path, new: Path) -> Iterator[str]:
    try:
        before, after = (file.read_text(encoding="utf-8").splitlines() for file in (old, new))
    except UnicodeDecodeError:
        return
    lines = difflib.unified_diff(before, after, n=CONTEXT_LINES, lineterm="")
    yield from (line for line in lines if not line.startswith(("--- ", "+++ ")))


def document(comparison: Comparison) -> dict[str, Any]:
    """The comparison as `diff --json` prints it."""
    return asdict(comparison)
