"""Checks the ensembles of a Triton model repository against the models that they compose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ...diagnostics import Diagnostic, closest, either, is_misspelling, located, nearest
from ...general_rules import Rule, Severity
from ..read.triton_config import Message, Scalar, parse
from .model_config import completes, read, sizes, versions
from .triton_fields import (
    TRITON_ENSEMBLE_MISMATCH,
    TRITON_VERSIONS,
    backend_of,
    field_diagnostics,
)

TRITON_ENSEMBLE_MODEL = Rule(
    "triton-ensemble-model", "An ensemble composes a model that is not in its repository."
)
TRITON_ENSEMBLE_TENSOR = Rule(
    "triton-ensemble-tensor", "A tensor of an ensemble is made by nothing, or used by nothing."
)
TRITON_ENSEMBLE_CYCLE = Rule("triton-ensemble-cycle", "The steps of an ensemble wait in a circle.")

_TRUE = ("true", "t", "1")
_STEPS = "ensemble_scheduling.step"


@dataclass(frozen=True, slots=True)
class _Link:
    """One entry of a step's map: a tensor of the composed model, and one of the ensemble."""

    key: Scalar
    value: Scalar
    path: str


@dataclass(frozen=True, slots=True)
class _Step:
    """A step of an ensemble, with what it takes and makes."""

    message: Message
    path: str
    model: str
    takes: tuple[_Link, ...]
    makes: tuple[_Link, ...]


def ensemble_diagnostics(config: Message, path: Path) -> Iterator[Diagnostic]:
    """Reports what ends the loading of an ensemble; `path` is in the folder of its model."""
    yield from field_diagnostics(config, "ensemble")
    steps = [
        _step(row, f"{_STEPS}.{index}")
        for holder in config.messages("ensemble_scheduling")
        for index, row in enumerate(holder.messages("step"))
    ]
    yield from _graph_diagnostics(config, steps)
    yield from _model_diagnostics(config, steps, path)


def _step(row: Message, path: str) -> _Step:
    takes, makes = (tuple(_links(row, name, path)) for name in ("input_map", "output_map"))
    return _Step(row, path, row.text("model_name"), takes, makes)


def _links(step: Message, name: str, path: str) -> Iterator[_Link]:
    for index, row in enumerate(step.messages(name)):
        key, value = row.scalar("key"), row.scalar("value")
        if key and value:
            yield _Link(key, value, f"{path}.{name}.{index}")


def _names(config: Message, group: str) -> dict[str, Message]:
    return {tensor.text("name"): tensor for tensor in config.messages(group)}


def _graph_diagnostics(config: Message, steps: list[_Step]) -> Iterator[Diagnostic]:
    """Follows the tensors of an ensemble through its steps, as Triton does before it loads it."""
    inputs, outputs = _names(config, "input"), _names(config, "output")
    made: dict[str, _Link] = {}
    for step in steps:
        for link in step.makes:
            if first := made.get(link.value.text):
                what = f"{link.value.text} is made twice, first in line {first.value.location.line}"
                where, fix = f"{link.path}.value", "rename one"
                yield located(link.value.location, where, what, fix, TRITON_ENSEMBLE_TENSOR)
            made.setdefault(link.value.text, link)
    used = {link.value.text for step in steps for link in step.takes}
    for step in steps:
        keys: dict[str, _Link] = {}
        for link in step.takes:
            name = link.value.text
            if link.key.text in keys:
                what, where = f"{link.key.text} is mapped twice", f"{link.path}.key"
                yield located(link.key.location, where, what, "keep one", TRITON_ENSEMBLE_TENSOR)
            keys[link.key.text] = link
            if name not in inputs and name not in made and not link.value.is_open:
                what = f"{name} is no input of the ensemble, and no step makes it"
                fix, where = nearest(name, [*inputs, *made]), f"{link.path}.value"
                yield located(link.value.location, where, what, fix, TRITON_ENSEMBLE_TENSOR)
    for name, link in made.items():
        if name not in used and name not in outputs and not link.value.is_open:
            what = f"{name} is no output of the ensemble, and no step takes it"
            left = [other for other in outputs if other not in made] or outputs
            fix, where = "remove it from the map", f"{link.path}.value"
            fix = f"{nearest(name, left)}; or {fix}" if left else fix
            yield located(link.value.location, where, what, fix, TRITON_ENSEMBLE_TENSOR)
    for group, names, known in (("input", inputs, used), ("output", outputs, set(made))):
        for index, (name, tensor) in enumerate(names.items() if steps else ()):
            if name and name not in known:
                told = "no step takes it" if group == "input" else "no step makes it"
                what, fix = f"{name}: {told}", nearest(name, known)
                place, where = tensor.place("name"), f"{group}.{index}.name"
                yield located(place, where, what, fix, TRITON_ENSEMBLE_TENSOR)
    yield from _cycle_diagnostics(steps, {*inputs}, {*made})


def _cycle_diagnostics(steps: list[_Step], ready: set[str], made: set[str]) -> Iterator[Diagnostic]:
    """Reports the first step that waits for its own result. What nothing makes counts as there."""
    waiting = list(steps)
    while waiting:
        able = [
            step
            for step in waiting
            if all(link.value.text in ready or link.value.text not in made for link in step.takes)
        ]
        if not able:
            link = next(row for row in waiting[0].takes if row.value.text not in ready)
            what = f"{link.value.text} comes from a step that waits for this one"
            fix = "take an input of the ensemble, or the result of a step before"
            where = f"{link.path}.value"
            yield located(link.value.location, where, what, fix, TRITON_ENSEMBLE_CYCLE)
            return
        for step in able:
            ready |= {link.value.text for link in step.makes}
        waiting = [step for step in waiting if step not in able]


@lru_cache(maxsize=256)
def _parsed(text: str) -> Message | None:
    """The configuration of a composed model; `None` if it cannot be read."""
    config, broken = parse(text)
    return None if broken else config


def _model_diagnostics(config: Message, steps: list[_Step], path: Path) -> Iterator[Diagnostic]:
    folder = path.absolute().parent
    if path.name != "config.pbtxt":
        return
    try:
        folders = {row.name: row for row in folder.parent.iterdir() if row.is_dir()}
    except OSError:
        return
    folders.pop(folder.name, None)
    tensors: dict[str, _Tensor] = {}
    for group in ("input", "output"):
        for index, tensor in enumerate(config.messages(group)):
            row = _Tensor.of(tensor, config, "the ensemble", f"{group}.{index}")
            tensors[tensor.text("name")] = row
    decoupled: set[str] = set()
    for step in steps:
        named = step.message.scalar("model_name")
        if named is None or not named.text or named.is_open:
            continue
        if step.model == folder.name or folder.name in _composed(step.model, folders, set()):
            what, fix = f"{step.model} composes this ensemble itself", "name another model"
            where = f"{step.path}.model_name"
            yield located(named.location, where, what, fix, TRITON_ENSEMBLE_CYCLE)
            continue
        if step.model not in folders:
            near = closest(step.model, folders)
            is_misspelt = near is not None and is_misspelling(step.model, near)
            severity: Severity = "error" if is_misspelt else "warning"  # it may be made later
            what = f"{step.model} is not in the repository, {folder.parent.name}"
            fix = f"did you mean {near}?" if near else "add the model, or name one that is there"
            where = f"{step.path}.model_name"
            yield located(named.location, where, what, fix, TRITON_ENSEMBLE_MODEL, severity)
            continue
        version, there = step.message.scalar("model_version"), versions(folders[step.model])
        if version and (version.number or 0) > 0 and there and version.text not in there:
            what, where = (
                f"{step.model} has no version {version.text}",
                f"{step.path}.model_version",
            )
            fix = f"give {either(there)}, or -1 for the newest"
            yield located(version.location, where, what, fix, TRITON_VERSIONS)
        file = folders[step.model] / "config.pbtxt"
        if model := _parsed(read(file)):
            policy = model.first("model_transaction_policy")
            if policy and policy.text("decoupled").lower() in _TRUE:
                decoupled.add(step.model)
            yield from _batch_diagnostics(config, step, model)
            yield from _map_diagnostics(step, model, file)
            yield from _tensor_diagnostics(step, model, tensors)
    yield from _branch_diagnostics(steps, decoupled)


def _branch_diagnostics(steps: list[_Step], decoupled: set[str]) -> Iterator[Diagnostic]:
    """Reports a step that takes responses of different decoupled models, which come at different
    times. A tensor has the path of the step with the decoupled model that it comes from."""
    sources: dict[str, str] = {}
    waiting, left = [*steps], len(steps) + 1
    while waiting and len(waiting) < left:
        left = len(waiting)
        later = {link.value.text for step in waiting for link in step.makes}
        for step in [row for row in waiting if later.isdisjoint(x.value.text for x in row.takes)]:
            waiting.remove(step)
            found = {sources.get(link.value.text, "") for link in step.takes}
            if len(found) > 1:
                what = "takes responses of different decoupled models"
                fix = "take tensors of one of them, or make the models not decoupled"
                place, where = step.message.place("model_name"), f"{step.path}.input_map"
                yield located(place, where, what, fix, TRITON_ENSEMBLE_MISMATCH)
            source = step.path if step.model in decoupled else min(found, default="")
            sources |= {link.value.text: source for link in step.makes}


def _composed(name: str, folders: Mapping[str, Path], seen: set[str]) -> set[str]:
    """The models that an ensemble composes, also through other ensembles."""
    model = _parsed(read(folders[name] / "config.pbtxt")) if name in folders else None
    for holder in model.messages("ensemble_scheduling") if model else ():
        for inner in (row.text("model_name") for row in holder.messages("step")):
            if inner not in seen:
                seen.add(inner)
                _composed(inner, folders, seen)
    return seen


def _batch_diagnostics(config: Message, step: _Step, model: Message) -> Iterator[Diagnostic]:
    most, own = config.number("max_batch_size"), model.number("max_batch_size")
    if most and own and own < most:
        what = f"{most} is above that of {step.model}, {own}"
        place, fix = config.place("max_batch_size"), f"give at most {own}"
        yield located(place, "max_batch_size", what, fix, TRITON_ENSEMBLE_MISMATCH)


def _map_diagnostics(step: _Step, model: Message, file: Path) -> Iterator[Diagnostic]:
    """Compares the names in a step's maps with the inputs and outputs of its model."""
    for group, links in (("input", step.takes), ("output", step.makes)):
        known = _names(model, group)
        may_have = not known or (completes(model, file) and backend_of(model) != "onnxruntime")
        for link in links:
            if link.key.text in known or link.key.is_open or may_have:
                continue
            what = f"{step.model} has no {group} {link.key.text}"
            where, fix = f"{link.path}.key", nearest(link.key.text, known)
            yield located(link.key.location, where, what, fix, TRITON_ENSEMBLE_MISMATCH)
        mapped = {link.key.text for link in links}
        for name, tensor in known.items() if group == "input" and links else ():
            is_optional = tensor.text("optional").lower() in _TRUE
            if name and name not in mapped and not is_optional:
                what = f"{step.model} needs the input {name}, which is not mapped"
                place, where = step.message.place("model_name"), f"{step.path}.input_map"
                fix = f'add input_map {{ key: "{name}" value: ... }}'
                yield located(place, where, what, fix, TRITON_ENSEMBLE_MISMATCH)


@dataclass(frozen=True, slots=True)
class _Tensor:
    """What a model says of a tensor: `dims` are unknown if a template leaves them open, and
    `is_batched` if the batch size is not written. `owner` is the model; `path` is that of a tensor
    of the ensemble itself."""

    message: Message
    owner: str
    kind: str
    dims: list[int] | None
    is_batched: bool | None
    path: str = ""

    @classmethod
    def of(cls, tensor: Message, model: Message, owner: str, path: str = "") -> _Tensor:
        reshape, most = tensor.first("reshape") if path else None, model.number("max_batch_size")
        dims = sizes(reshape, "shape") if reshape else sizes(tensor, "dims")
        kind, is_batched = tensor.text("data_type"), None if most is None else most > 0
        return cls(tensor, owner, kind, dims, is_batched, path)

    def fits(self, other: _Tensor) -> bool:
        """Whether the shapes agree; what is unknown or varies agrees with everything."""
        if self.dims is None or other.dims is None or not (self.dims and other.dims):
            return True
        if _agree(self.dims, other.dims):
            return True
        if self.is_batched is None or other.is_batched is None:
            return len(self.dims) != len(other.dims)
        ours, theirs = (
            [-1, *(row.dims or ())] if row.is_batched else row.dims or [] for row in (self, other)
        )
        return _agree(ours, theirs)


def _agree(ours: list[int], theirs: list[int]) -> bool:
    pairs = zip(ours, theirs, strict=False)
    return len(ours) == len(theirs) and all(a == b or -1 in (a, b) for a, b in pairs)


def _tensor_diagnostics(
    step: _Step, model: Message, tensors: dict[str, _Tensor]
) -> Iterator[Diagnostic]:
    """Compares types and shapes of a model's tensors with what the steps before said of them."""
    rows: list[tuple[Mapping[str, Message], tuple[_Link, ...]]] = [
        (_names(model, "input"), step.takes),
        (_names(model, "output"), step.makes),
    ]
    for known, links in rows:
        for link in links:
            if link.key.text not in known:
                continue
            found = _Tensor.of(known[link.key.text], model, step.model)
            first = tensors.setdefault(link.value.text, found)
            told = f"{link.key.text} of {step.model}"
            for field, ours, theirs in _differences(first, found):
                place = first.message.place(field) if first.path else link.value.location
                what = f"is {ours} in {first.owner}, but {theirs} in {told}"
                where = f"{first.path}.{field}" if first.path else f"{link.path}.value"
                yield located(place, where, what, "let both agree", TRITON_ENSEMBLE_MISMATCH)


def _differences(first: _Tensor, found: _Tensor) -> Iterator[tuple[str, str, str]]:
    """The fields in which two descriptions of a tensor differ, with both values."""
    is_known = first.kind.startswith("TYPE_") and found.kind.startswith("TYPE_")
    if is_known and first.kind != found.kind:
        yield "data_type", first.kind, found.kind
    if not first.fits(found):
        yield "dims", str(first.dims), str(found.dims)
