"""Fields of a quantization configuration that are read alike, whoever wrote them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from .quantization import Quantization
from .weight_layouts import FORMATS

MIXED = "MIXED_PRECISION"


def mapping(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = document.get(key)
    return value if isinstance(value, Mapping) else {}


def names(fields: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = fields.get(key)
    return (
        tuple(filter(lambda name: isinstance(name, str), value)) if isinstance(value, list) else ()
    )


def none(name: Any) -> Any:
    """Some exporters write the word for nothing."""
    return None if isinstance(name, str) and name.lower() in ("none", "null", "") else name


def group_size(fields: Mapping[str, Any], name: str | None) -> int | None:
    """How many weights share a scale, as the whole says it, or its only group: of a format that
    does not fix it."""
    if name is None or name not in FORMATS or FORMATS[name].arithmetic:
        return None
    groups = mapping(fields, "config_groups")
    weights = mapping(mapping(groups, next(iter(groups))), "weights") if groups else {}
    if weights.get("strategy") == "channel":
        return -1
    size = fields.get("group_size", weights.get("group_size"))
    usable = isinstance(size, int) and not isinstance(size, bool) and (size == -1 or size > 0)
    return size if usable else None


def mixed(
    parts: Mapping[str, str],
    kv_cache: str | None,
    excluded: tuple[str, ...],
    source: str,
    rest: str | None = None,
) -> Quantization:
    """The main format is the narrowest one, until the architecture tells that of the experts: not
    every GPU has kernels of four bits, and it is rarely that of few weights."""
    formats = [*parts.values(), *([rest] if rest else [])]
    bits = {name: FORMATS[name].bits for name in formats if name in FORMATS}
    narrow = [name for name in formats if bits.get(name) == min(bits.values())] if bits else formats
    most = Counter(narrow).most_common(1)
    main = most[0][0] if most else MIXED
    return Quantization(main, kv_cache, excluded, source, parts, rest)
