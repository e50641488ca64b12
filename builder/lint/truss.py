"""The configuration of a Truss for TensorRT-LLM: its own options, and those of the engine in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from ..diagnostics import Diagnostic, located
from ..documents import DATA, Yaml, value_at
from ..facts import data_file, hardware
from ..facts.release import Release
from ..facts.release.table import FORMAT_TABLE
from ..general_rules import UNKNOWN_KEY
from ..rules.validation import validate
from . import rules
from .content import Content
from .kinds import is_option
from .section import Section, StatedWorkload, below, int_at
from .serving import Named, unknown_gpu
from .surroundings import gpu_diagnostic

FORMAT = DATA / "formats" / "truss.yaml"
_TOP, _RUNTIME = "trt_llm", "trt_llm.runtime"
_QUANTIZED = "build.quantization_type"
_FLOATS = {"fp8": "FP8", "fp4": "NVFP4"}
_PATCH, _ENGINE = "patch_kwargs", "engine_config"
_COUNTS = {
    "V1": ("build.tensor_parallel_count", "build.pipeline_parallel_count"),
    "V2": ("runtime.tensor_parallel_size",),
}


def is_truss(data: Any) -> bool:
    return isinstance(data, Mapping) and isinstance(data.get(_TOP), Mapping)


def read(document: Yaml, content: Content, release: Release) -> None:
    """Add what a Truss gives its inference stack: the first one builds an engine, the second hands
    options of the LLM API on."""
    given = document.data[_TOP]
    stack = "V2" if given.get("inference_stack") == "v2" else "V1"
    own = Section({}, document, _TOP)
    content.diagnostics += (own.locate(row) for row in _faults(given, stack))
    content.diagnostics += _gpus(document, given, stack)
    content.is_read = True
    runtime = given.get("runtime")
    if stack == "V1" or not isinstance(runtime, Mapping):
        return
    load = StatedWorkload(gpu=_accelerator(document)[0])
    handed = runtime.get(_PATCH)
    handed = handed if isinstance(handed, Mapping) else {}
    content.diagnostics += (own.locate(row) for row in _twice(handed))
    options, path, inherited = {**runtime, **handed}, _RUNTIME, frozenset[str]()
    if isinstance(engine := handed.get(_ENGINE), Mapping):  # it has the last word
        inherited = frozenset(map(str, options)) - frozenset(map(str, engine))
        options, path = {**options, **engine}, f"{_RUNTIME}.{_PATCH}.{_ENGINE}"
    # What the stack takes beside the engine's options is its own business.
    options = {key: row for key, row in options.items() if is_option(str(key), release)}
    if options:
        here = _with_handed(document)
        row = Section(options, here, path, workload=load)
        content.sections.append(replace(row, inherited=inherited, inherited_at=_RUNTIME))


def _with_handed(document: Yaml) -> Yaml:
    """The document with what is handed to the engine found beside the options of the stack."""
    prefix = f"{_RUNTIME}.{_PATCH}."
    moved = {
        below(_RUNTIME, path.removeprefix(prefix)): place
        for path, place in document.places.items()
        if path.startswith(prefix)
    }
    return replace(document, places={**moved, **document.places})


def _twice(handed: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """Options that the stack has itself: it refuses them where it hands others on."""
    for key in handed:
        if key in _table().table["types"]["RuntimeV2"]["fields"]:
            where = f"runtime.{_PATCH}.{key}"
            what = f"stands in {_PATCH}, and is an option of {_RUNTIME} itself"
            yield Diagnostic(where, what, f"write {_RUNTIME}.{key}", rules.CONFLICTING_VALUES)


@cache
def _table() -> Release:
    return Release(data_file.load(FORMAT, FORMAT_TABLE), FORMAT)


def _faults(given: Mapping[str, Any], stack: str) -> Iterator[Diagnostic]:
    """What the tool refuses; an option that it may have got since is only warned of."""
    table = _table()
    own = Release({**table.table, "root": stack}, FORMAT)
    for row in validate(own, given):
        is_new = row.rule == UNKNOWN_KEY and "did you mean" not in (row.fix or "")
        yield replace(row, severity="warning") if is_new else row


def _accelerator(document: Yaml) -> tuple[str | None, int]:
    """The kind of GPU and their number, as `H100:2` says it."""
    kind, _, count = str(value_at(document.data, "resources.accelerator") or "").partition(":")
    return kind.lower() or None, int(count) if count.isdecimal() and len(count) < 5 else 1


def _gpus(document: Yaml, given: Mapping[str, Any], stack: str) -> Iterator[Diagnostic]:
    kind, gpus = _accelerator(document)
    world = 1
    for path in _COUNTS[stack]:
        world *= int_at(given, path) or 1
    where = "resources.accelerator"
    if not kind:
        return
    place = document.locate(where)
    yield from (replace(x, severity="warning") for x in unknown_gpu(Named(kind, place, where)))
    if found := gpu_diagnostic(world, gpus, place, where):
        yield found
    quantized = _FLOATS.get(str(value_at(given, _QUANTIZED)).partition("_")[0])
    has = hardware.load(kind).precisions.value if kind in hardware.known() else ()
    if has and quantized and not any(row.startswith(quantized) for row in has):
        path = below(_TOP, _QUANTIZED)
        what = f"{value_at(given, _QUANTIZED)}, and {kind} has no {quantized} arithmetic"
        fix = f"take a GPU that has {quantized}, or another quantization_type"
        yield located(document.locate(path), path, what, fix, rules.MODEL_ON_GPU)
