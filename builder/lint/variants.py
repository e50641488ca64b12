"""Recipes with variants: a base, and what each override puts over it, read as recipes of their own.

NVIDIA/srt-slurm examples/features/override.yaml@b9947a0: an override is one variant, a zipped one
has as many as its lists have values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..diagnostics import Diagnostic, is_misspelling, located
from ..documents import Yaml, merged
from ..facts.release import Release
from . import rules, surroundings
from .coverage import Judged, Verdict
from .launchers import LAUNCHERS
from .section import below

_BASE, _OVERRIDE, _ZIPPED = "base", "override_", "zip_override_"
_MAX_VARIANTS = 50


def may_be(documents: Sequence[Yaml], release: Release) -> bool:
    """Whether a file is a recipe with variants."""
    data = documents[0].data if len(documents) == 1 else None
    base = data.get(_base(data)) if isinstance(data, Mapping) else None
    return isinstance(base, Mapping) and any(fits(base, release) for _, fits, _ in LAUNCHERS)


def verdict(document: Yaml, judge: Callable[[Yaml], Verdict]) -> Verdict:
    """What is wrong with each variant, said once, and with the names of the variants."""
    misspelt = list(_misspelt(document))
    found = [*document.diagnostics, *misspelt]
    kind, judged = None, Judged()
    unknown = {row.path.partition(".")[0] for row in misspelt}
    for variant, above in _variants(document, unknown):
        each = judge(variant)
        kind = kind or each.kind
        judged += each.judged
        found += (replace(row, path=_written(row.path, above)) for row in each.diagnostics)
    data = document.data
    for key in data:
        beyond = _count(data[key]) if key.startswith(_ZIPPED) else 0
        if beyond > _MAX_VARIANTS:
            said = f"{key}: variants {_MAX_VARIANTS + 1} to {beyond}"
            judged = replace(judged, unread=(*judged.unread, said))
    return Verdict(kind, list(dict.fromkeys(found)), judged)


def _base(data: Mapping[str, Any]) -> str:
    """The key of the base, which may be misspelt where there are overrides."""
    if _BASE in data:
        return _BASE
    named = any(str(key).startswith((_OVERRIDE, _ZIPPED)) for key in data)
    return next((str(key) for key in data if named and is_misspelling(str(key), _BASE)), "")


def _variants(document: Yaml, without: Collection[str]) -> Iterator[tuple[Yaml, Mapping[str, str]]]:
    """Each variant as a document, with the key above each of its paths."""
    name = _base(document.data)
    base = document.data[name]
    places, above = _inner(document, name)
    yield replace(document, data=base, places=places, diagnostics=[]), above
    for key, given in document.data.items():
        is_one = str(key).startswith((_OVERRIDE, _ZIPPED)) and isinstance(given, Mapping)
        if not is_one or key in without:
            continue
        own, own_above = _inner(document, key)
        count = _count(given) if key.startswith(_ZIPPED) else 0
        rows = [_of_one(given, n) for n in range(min(count, _MAX_VARIANTS))] if count else [given]
        for row in rows:
            variant = Yaml(merged(base, row), {**places, **own, "": places.get("", own[""])})
            yield variant, {**above, **own_above}


def _inner(document: Yaml, key: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The places of what stands below a key, by the paths from there on, and the key above each."""
    places = {"": document.locate(key)}
    for path, place in document.places.items():
        if path.startswith(f"{key}."):
            places[path.removeprefix(f"{key}.")] = place
    return places, dict.fromkeys(places, key)


def _written(path: str, above: Mapping[str, str]) -> str:
    """A path as it stands in the file."""
    inner = path
    while inner and inner not in above:
        inner = inner.rpartition(".")[0]
    return below(above[inner], path) if inner else path


def _count(data: Any) -> int:
    """How many variants the lists have values for: they stand beside each other, and a list of one
    value stands for all."""
    if isinstance(data, Mapping):
        return max((1, *map(_count, data.values())))
    return max(1, len(data)) if isinstance(data, list) else 1


def _of_one(data: Any, index: int) -> Any:
    if isinstance(data, Mapping):
        return {key: _of_one(value, index) for key, value in data.items()}
    if isinstance(data, list) and data:
        return data[min(index, len(data) - 1)]
    return data


def _misspelt(document: Yaml) -> Iterator[Diagnostic]:
    """Names of variants, and of what stands in them, that are misspelt: they are not read."""
    name = _base(document.data)
    layout = surroundings.layout(replace(document, data=document.data[name]))
    for key, given in document.data.items():
        if str(key).startswith((_OVERRIDE, _ZIPPED)) and isinstance(given, Mapping):
            places, _ = _inner(document, key)
            own = Yaml(given, places)
            rows = surroundings.misspelt_keys(own, layout)
            yield from (replace(row, path=below(key, row.path)) for row in rows)
        elif isinstance(given, Mapping) and key != _BASE and (near := _near(str(key), name)):
            what = "is no variant and no base: nothing below it is read"
            fix = f"did you mean {near}?"
            yield located(document.locate(key), key, what, fix, rules.MISSPELT_NAME)


def _near(key: str, base: str) -> str:
    """The name that a key is misspelt of, the part behind its mark as it is."""
    if key == base:
        return _BASE
    words = key.split("_")
    for mark in (_OVERRIDE, _ZIPPED):
        length = mark.count("_")
        if is_misspelling("_".join(words[:length]), mark.rstrip("_")):
            return f"{mark}{'_'.join(words[length:])}"
    return ""
