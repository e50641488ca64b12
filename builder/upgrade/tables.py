"""Compares the tables of two releases: options, their defaults, flags, metrics and endpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..facts.release import Release
from ..rules.options import ANY_KEY, of_other_kinds

Row = dict[str, Any]


@dataclass(frozen=True)
class Tables:
    """The tables of two releases; `used` and `decided` are the options that a plan sets in each."""

    old: Release
    new: Release
    used: Mapping[str, Any]
    decided: Mapping[str, Any]

    @property
    def carried(self) -> dict[str, list[str]]:
        """The parts of the new table that are those of another release."""
        found: dict[str, list[str]] = {}
        for part, other in self.new.carried_from.items():
            found.setdefault(other, []).append(part)
        return found

    @cached_property
    def options(self) -> dict[str, list[Any]]:
        """Options with another name or type.

        `changed` are rows, those in use first; options that are not in use are only named where
        they are `removed` or `wider`, which is to accept more values.
        """
        found: dict[str, list[Any]] = {"changed": [], "removed": [], "wider": []}
        for path in _paths(self.old):
            group, change = self._changed(path)
            if group == "changed" or (group and path in self.used):
                row = {"path": path, "change": change, "is_used": path in self.used}
                found["changed"].append(row)
            elif group:
                found[group].append(path)
        found["changed"].sort(key=lambda row: not row["is_used"])
        return found

    def _changed(self, path: str) -> tuple[str, str]:
        """The group of an option in `options`, empty for no change, and what changed."""
        if (other := self._renamed.get(path, path)) != path:
            return "changed", f"renamed to {other}"
        if path not in self.new.paths:
            return "removed", "removed"
        types: list[str] = []
        values: list[dict[str, None]] = []
        for release in (self.old, self.new):
            rows = release.paths[path]
            types.append(" or ".join(sorted({row["type"] for row in rows})))
            values.append({str(value): None for row in rows for value in row.get("values", ())})
        changes = [f"type {types[0]} is now {types[1]}"] if types[0] != types[1] else []
        if gone := [value for value in values[0] if value not in values[1]]:
            changes.append(f"no longer {', '.join(gone)}")
        is_wider = bool(values[0]) and not changes
        if more := [value for value in values[1] if value not in values[0]]:
            changes.append(f"{'now also' if values[0] else 'only'} {', '.join(more)}")
        return ("wider" if is_wider else "changed") if changes else "", "; ".join(changes)

    @cached_property
    def _renamed(self) -> dict[str, str]:
        """The new paths of options that both releases know by some name."""
        return {path: self.new.aliases.get(word, path) for word, path in self.old.aliases.items()}

    @cached_property
    def defaults(self) -> dict[str, list[Any]]:
        """Defaults of the engine that differ; of groups that the plan does not use only names."""
        found: dict[str, list[Any]] = {"near": [], "far": []}
        foreign = of_other_kinds(self.new, self.decided)
        groups = {path.partition(".")[0] for path in self.decided}
        for path in _paths(self.old):
            values = self.old.default(path), self.new.default(path)
            is_same = path in self.new.paths and self._renamed.get(path, path) == path
            if not is_same or values[0] == values[1]:
                continue
            if "." not in path or (path.partition(".")[0] in groups and path not in foreign):
                found["near"].append({"path": path, "before": values[0], "after": values[1]})
            else:
                found["far"].append(path)
        return found

    @property
    def new_options(self) -> list[str]:
        return [path for path in _paths(self.new) if path not in self.old.paths]

    @cached_property
    def flags(self) -> dict[str, list[Any]]:
        """Flags of the server that are gone or have another default, and new ones."""
        old, new = ({flag.name: flag for flag in row.serve_flags} for row in (self.old, self.new))
        found: dict[str, list[Any]] = {"changed": [], "new": []}
        for name, flag in old.items():
            row: Row = {"flag": flag.spellings[0], "is_gone": name not in new}
            if row["is_gone"]:
                found["changed"].append(row)
            elif flag.default != (default := new[name].default):
                found["changed"].append({**row, "before": flag.default, "after": default})
        found["new"] = [flag.spellings[0] for name, flag in new.items() if name not in old]
        return found

    @cached_property
    def metrics(self) -> dict[str, list[Any]]:
        """Metrics that are renamed, or gone with `None`, and new ones."""
        old, new = (
            {name: f"{row.metric_prefix}{name}" for name in row.metric_names}
            for row in (self.old, self.new)
        )
        changed = [(full, new.get(name)) for name, full in old.items() if new.get(name) != full]
        return {"changed": changed, "new": [new[name] for name in new if name not in old]}

    @property
    def gone_endpoints(self) -> list[str]:
        return [" ".join(row) for row in self.old.endpoints if row not in self.new.endpoints]


def _paths(release: Release) -> list[str]:
    return [path for path in release.paths if ANY_KEY not in path.split(".")]
