"""Compares two bundles: the request, the decisions, the memory, then the files.

Of two engines, decisions are compared by what they mean: each by the planner's word for it.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
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


Row = dict[str, Any]


def compare(old: Bundle, new: Bundle) -> dict[str, list[Row]]:
    """Everything that differs between two intact bundles, as `diff --json` prints it.

    `request`, `decisions`, `memory` and `inputs` are changed values, `files` changed files with the
    lines of a unified diff. For different engines, `counterparts` has all decisions, including
    equal ones, and `decisions` is empty.
    """
    tables = _release(old), _release(new)
    rows = old.manifest["decisions"], new.manifest["decisions"]
    same_engine = tables[0].engine == tables[1].engine
    return {
        "request": list(_values(_request(old), _request(new))),
        "decisions": list(_decisions(*rows)) if same_engine else [],
        "memory": list(_values(flatten(old.manifest["memory"]), flatten(new.manifest["memory"]))),
        "inputs": list(_values(*(bundle.manifest["inputs"]["files"] for bundle in (old, new)))),
        "files": list(_files(old, new)),
        "counterparts": [] if same_engine else list(_counterparts(*rows, *tables)),
    }


def _change(
    kind: Kind, path: str, before: Any = None, after: Any = None, reason: str = "", old: str = ""
) -> Row:
    """A value that differs.

    `path` is its name in the newer bundle, or in the older one if it is gone; `old` is set if the
    same decision has another name there. `reason` is the newer bundle's, if it has one.
    """
    row = {"kind": kind, "path": path, "before": before, "after": after}
    return {**row, "reason": reason, "old_path": old}


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
) -> Iterator[Row]:
    """Each decision under its names in two engines, matched by the planner's; `note` explains
    differences in meaning."""

    def row(verdict: str, old_path: str, before: Any, path: str, after: Any, *known: str) -> Row:
        note = next((meanings[name] for name in known if name in meanings), "")
        sides = {"old_path": old_path, "before": before, "path": path, "after": after}
        return {"verdict": verdict, **sides, "note": note}

    words = (*old.aliases, *new.aliases)
    pairs = {new.option_path(word): old.option_path(word) for word in words}
    meanings: dict[str, str] = {}
    for table in (old, new):
        for word, note in table.engine.other_meanings.items():
            meanings[table.option_path(word)] = note
    left = {row["path"]: row["value"] for row in old_rows}
    for decision in new_rows:
        path, value = decision["path"], decision["value"]
        before = next((one for one in (pairs.get(path), path) if one in left), None)
        if before is None:
            yield row("only_new", "", None, path, value, path)
            continue
        given = left.pop(before)
        verdict = "same" if _same(_meant(given, old), _meant(value, new)) else "differs"
        yield row(verdict, before, given, path, value, path, before)
    for path, value in left.items():
        yield row("only_old", path, value, "", None, path)


def _meant(value: Any, table: Release) -> Any:
    """A value under the planner's name, if engines name the same method differently."""
    if value == table.engine.draft_method:
        return "own layers"
    names = heuristics.method_names(table.engine).items()
    return next((word for word, known in names if value in known), value)


def _values(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Row]:
    for path in (*old, *(path for path in new if path not in old)):
        if path not in new:
            yield _change("removed", path, before=old[path])
        elif path not in old:
            yield _change("added", path, after=new[path])
        elif not _same(old[path], new[path]):
            yield _change("changed", path, old[path], new[path])


def _same(one: Any, other: Any) -> bool:
    """Whether two values are written the same; in Python, `True` equals 1."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _decisions(
    old_rows: list[Mapping[str, Any]], new_rows: list[Mapping[str, Any]]
) -> Iterator[Row]:
    old = {row["path"]: row for row in old_rows}
    new = {row["path"]: row for row in new_rows}
    gone = [row for path, row in old.items() if path not in new]
    for path, row in new.items():
        before = old.get(path) or _renamed(row, gone)
        if before is None:
            yield _change("added", path, after=row["value"], reason=row["reason"])
        elif before["path"] != path:
            gone.remove(before)
            yield _change("renamed", path, before["value"], row["value"], "", before["path"])
        elif not _same(before["value"], row["value"]):
            yield _change("changed", path, before["value"], row["value"], row["reason"])
    for row in gone:
        yield _change("removed", row["path"], before=row["value"])


def _renamed(row: Mapping[str, Any], gone: list[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The decision with another name but the same value and reason."""
    same = ("value", "reason")
    return next((old for old in gone if all(_same(old[key], row[key]) for key in same)), None)


def _files(old: Bundle, new: Bundle) -> Iterator[Row]:
    before, after = old.manifest["files"], new.manifest["files"]
    for path in sorted({*before, *after} - _DERIVED_FILES):
        if path not in after:
            yield {"kind": "removed", "path": path, "lines": []}
        elif path not in before:
            yield {"kind": "added", "path": path, "lines": []}
        elif before[path] != after[path]:
            lines = list(_unified(old.folder / path, new.folder / path))
            yield {"kind": "changed", "path": path, "lines": lines}


def _unified(old: Path, new: Path) -> Iterator[str]:
    try:
        before, after = (file.read_text(encoding="utf-8").splitlines() for file in (old, new))
    except UnicodeDecodeError:
        return
    lines = difflib.unified_diff(before, after, n=CONTEXT_LINES, lineterm="")
    yield from (line for line in lines if not line.startswith(("--- ", "+++ ")))
