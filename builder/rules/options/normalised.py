"""Options as the engine holds them: every key by its own name, every value in its own type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...facts.release import Field, Release, discriminator
from .values import SHAPES, TRUE, spelled


def normalise(release: Release, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options without `problems`, as the engine holds them."""
    return _normalised_record(release, release.top_level, options)


_CONVERT: dict[str, Callable[[Any], Any]] = {
    "int": lambda value: int(value.partition(".")[0]) if isinstance(value, str) else int(value),
    "float": lambda value: float(value) if isinstance(value, str) else value,
    "bool": lambda value: str(value).lower() in TRUE | {"1.0"},
}


def _normalised_record(
    release: Release, fields: Mapping[str, Field], value: Mapping[str, Any]
) -> dict[str, Any]:
    own = {alias: name for name, row in fields.items() for alias in row.get("alias", ())}
    return {
        own.get(key, key): _normalised(release, fields[own.get(key, key)], item)
        if own.get(key, key) in fields
        else item
        for key, item in value.items()
    }


def _normalised(release: Release, field: Field, value: Any) -> Any:
    kind, types = field["type"], release.table["types"]
    if value is None:
        return None
    if kind in ("record", "union", "mapping") and not isinstance(value, Mapping):
        return value
    if kind == "record":
        return _normalised_record(release, types[field["of"]]["fields"], value)
    if kind == "union":
        union = release.table["unions"][field["of"]]
        chooser = discriminator(union)
        name = spelled(chooser, value.get(union["discriminator"], union.get("default")))
        kinds = [union["types"][name]] if name else reversed(union["types"].values())
        fields = {key: row for kind in kinds for key, row in types[kind]["fields"].items()}
        return _normalised_record(release, {**fields, union["discriminator"]: chooser}, value)
    if kind == "mapping":
        convert = _CONVERT.get(field.get("keys", "any"), lambda key: key)
        return {
            convert(key): _normalised(release, field["items"], item) for key, item in value.items()
        }
    if kind == "list" and SHAPES["list"](value):
        return [_normalised(release, field["items"], item) for item in value]
    if kind == "enum":
        own = spelled(field, value)
        return value if own is None else own
    if kind in _CONVERT and SHAPES[kind](value):
        return _CONVERT[kind](value)
    return value
