"""Patches of objects as kubectl sends them: JSON merge patches, and strategic ones by a schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Schema = Mapping[str, Any]
# The schema of a field, by that of the object around it and its name.
FieldOf = Callable[[Schema, str], Schema]

MERGE_KEY = "x-kubernetes-patch-merge-key"


def merge(old: Any, patch: Any) -> Any:
    """A JSON merge patch, RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    found = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merge(found.get(key), value)
    return found


def strategic(old: Any, patch: Any, schema: Schema, field_of: FieldOf) -> Any:
    """Lists that the schema gives a key are merged by it, and other lists replaced."""
    if not isinstance(patch, dict):
        return patch
    directives = {key: value for key, value in patch.items() if key.startswith("$")}
    changes = {key: value for key, value in patch.items() if key not in directives}
    if directives.pop("$patch", None) == "replace":
        return changes
    found = dict(old) if isinstance(old, dict) else {}
    kept = directives.pop("$retainKeys", found)
    found = {key: value for key, value in found.items() if key in kept}
    for key, value in changes.items():
        field = field_of(schema, key)
        if value is None:
            found.pop(key, None)
        elif name := field.get(MERGE_KEY):
            found[key] = _merged(found.get(key, []), value, name, field, field_of)
        else:
            found[key] = strategic(found.get(key), value, field, field_of)
    for directive, rows in directives.items():
        what, _, key = directive.partition("/")
        if what != "$setElementOrder":
            raise NotImplementedError(directive)
        name = field_of(schema, key).get(MERGE_KEY)
        if name and key in found:
            order = [row[name] for row in rows]
            found[key] = sorted(found[key], key=lambda row: order.index(row[name]))
    return found


def _merged(
    old: list[Any], patch: list[Any], name: str, field: Schema, field_of: FieldOf
) -> list[Any]:
    rows = {row[name]: row for row in old}
    for change in patch:
        if change.get("$patch") == "delete":
            rows.pop(change[name], None)
        else:
            items = field_of(field, "items")
            rows[change[name]] = strategic(rows.get(change[name]), change, items, field_of)
    return list(rows.values())
