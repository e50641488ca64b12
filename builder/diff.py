"""Compares two bundles: the request, the decisions, the memory, then the files."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from .bundle import Bundle
from .contents import MANIFEST
from .documents import load_yaml
from .facts.published_results import flatten

CONTEXT_LINES = 1

Kind = Literal["added", "removed", "changed", "renamed"]

# What the other sections of a comparison already say.
_DERIVED_FILES = frozenset({MANIFEST, "deployment.yaml", "checkpoint.json"})


@dataclass(frozen=True, slots=True)
class Change:
    """One value that differs.

    `path` is its name in the newer bundle, or in the older one if it is gone; `old_path` is set
    where the same decision is spelled otherwise. `reason` is the newer bundle's, if it has one.
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


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that differs between two bundles."""

    request: tuple[Change, ...]
    decisions: tuple[Change, ...]
    memory: tuple[Change, ...]
    inputs: tuple[Change, ...]
    files: tuple[FileChange, ...]

    @property
    def empty(self) -> bool:
        return not any((self.request, self.decisions, self.memory, self.inputs, self.files))


def compare(old: Bundle, new: Bundle) -> Comparison:
    """Compare two intact bundles."""
    return Comparison(
        request=tuple(_values(_request(old), _request(new))),
        decisions=tuple(_decisions(old.manifest["decisions"], new.manifest["decisions"])),
        memory=tuple(_values(flatten(old.manifest["memory"]), flatten(new.manifest["memory"]))),
        inputs=tuple(_values(*(bundle.manifest["inputs"]["files"] for bundle in (old, new)))),
        files=tuple(_files(old, new)),
    )


def _request(bundle: Bundle) -> dict[str, Any]:
    request = flatten(load_yaml((bundle.folder / "deployment.yaml").read_text(encoding="utf-8")))
    return {path: value for path, value in request.items() if value != {}}


def _values(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    for path in (*old, *(path for path in new if path not in old)):
        if path not in new:
            yield Change("removed", path, before=old[path])
        elif path not in old:
            yield Change("added", path, after=new[path])
        elif not _same(old[path], new[path]):
            yield Change("changed", path, old[path], new[path])


def _same(one: Any, other: Any) -> bool:
    """Whether two values are written alike; in Python, `True` equals 1."""
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
    """The decision of another name that has the same value for the same reason."""
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
