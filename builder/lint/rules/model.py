"""Checks the model that options are for: its name, its precision and its GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...diagnostics import Diagnostic, Location, closest, located, nearest
from ...documents import Variable, Yaml, value_at
from ...errors import BadFacts, BadInput
from ...facts import hardware, model_names
from ...general_rules import Rule, Severity
from ...rules import answer_parsers
from ...rules.context import RuleContext
from ..engine import surroundings
from ..model import Named, Server, is_open

if TYPE_CHECKING:
    from ...facts.checkpoint import Checkpoint

UNKNOWN_MODEL = Rule(
    "unknown-model",
    "No facts are known for a model, so that no rule about models was checked.",
    "warning",
)
MODEL_ON_GPU = Rule("model-on-gpu", "The GPU has no arithmetic for the checkpoint's precision.")
MODEL_PRECISION = Rule(
    "model-precision", "The file names another precision than the checkpoint has.", "warning"
)
UNKNOWN_GPU = Rule("unknown-gpu", "No known GPU has this name.")

# Where files name the model outside the options, most reliable place first.
_MODELS = (
    "identity.model.repo",
    "model.path",
    "model",
    "environment.model_path",
    "metadata.model_dir_name",
    "metadata.model_name",
    "model_path",
    "modelPath",
)
# Next to options that are nested under a key.
_BESIDE = ("model", "model_path", "model_name_or_path", "modelPath")
_PRECISIONS = ("model.precision", "metadata.precision")
_GPUS = ("resources.gpu_type", "metadata.supported_gpus")
# Launchers have their own names for precisions.
_FORMATS: Mapping[str, tuple[str, ...]] = {
    "fp4": ("NVFP4", "FP4"),
    "nvfp4": ("NVFP4",),
    "mxfp4": ("MXFP4",),
    "fp8": ("FP8",),
    "bf16": ("BF16",),
}
_OTHER_PRECISIONS = ("fp16", "fp32", "int8", "int4", "mxfp8", "w4a8", "w4a16", "auto")
_PREFIX = "hf:"


@lru_cache(maxsize=256)
def find_model(name: str) -> Checkpoint | None:
    """Finds the facts of a model; `None` if it is unknown. The name is a name on the hub, a folder
    named after one, or a local folder."""
    name = name.removeprefix(_PREFIX).rstrip("/")
    if not name or is_open(name):
        return None
    from ...facts import checkpoint  # most files name no model

    shipped = model_names.shipped_file(_on_the_hub(name))
    try:
        return checkpoint.read_shipped(shipped) if shipped else checkpoint.gather(name)
    except (BadFacts, BadInput):
        return None


def _on_the_hub(name: str) -> str:
    """The name on the hub, or the part of a folder's path that may be one."""
    path = Path(name)
    if not path.is_absolute():
        return name
    return next((part for part in path.parts if part.startswith(model_names.CACHED)), path.name)


def named_model(options: Mapping[str, Any], document: Yaml, path: str) -> Named | None:
    """The model of an options block: its own, or the model of the surrounding file."""
    own = options.get("model")
    if isinstance(own, str) and not (isinstance(own, Variable) or is_open(own)):
        inner = f"{path}.model" if path else "model"
        return Named(own, document.locate(inner), inner)
    around = mapping_around(document, path) if "." in path else {}
    above = path.rpartition(".")[0]
    for name in _BESIDE:
        value = around.get(name)
        if isinstance(value, str) and value and not is_open(value):
            return Named(value, document.locate(f"{above}.{name}"), f"{above}.{name}")
    for where in _MODELS:
        value = value_at(document.data, where)
        if isinstance(value, str) and value and not is_open(value):
            return _of_launcher(Named(value, document.locate(where), where), document)
    return None


def mapping_around(document: Yaml, path: str) -> Mapping[str, Any]:
    """The mapping that contains the options at a path, which may be in a list."""
    data, keys = document.data, path.split(".")[:-1]
    for key in keys:
        if isinstance(data, list) and key.isdecimal() and int(key) < len(data):
            data = data[int(key)]
        else:
            data = data.get(key) if isinstance(data, Mapping) else None
    return data if isinstance(data, Mapping) else {}


def _of_launcher(model: Named, document: Yaml) -> Named:
    """Replaces a launcher's own name for a model, with or without a precision, by the real name."""
    names = surroundings()["models"]["names"]
    if model.name in names:
        return replace(model, name=names[model.name])
    for where in _PRECISIONS:
        if found := names.get(f"{model.name} {value_at(document.data, where)}"):
            return Named(found, document.locate(where), where)
    return model


def named_gpus(document: Yaml) -> list[Named]:
    """The GPU types that a file names."""
    for where in _GPUS:
        value = value_at(document.data, where)
        if isinstance(value, str):
            return [Named(value, document.locate(where), where)]
        if isinstance(value, list):
            rows = [(f"{where}.{n}", row) for n, row in enumerate(value) if isinstance(row, str)]
            return [Named(row, document.locate(at), at) for at, row in rows]
    return []


def named_gpu(document: Yaml) -> Named | None:
    """The GPU type that a file is for, if it names exactly one."""
    rows = named_gpus(document)
    return rows[0] if len(rows) == 1 else None


def for_model(rule_context: RuleContext, model: Named | None) -> RuleContext:
    """The rule context for a model; unchanged if the model is unknown."""
    facts = find_model(model.name) if model else None
    if facts is None:
        return rule_context
    context = RuleContext.of(rule_context.release, facts)
    return replace(
        context,
        **{
            name: getattr(rule_context, name)
            for name in ("role", "gpu", "isl", "osl", "concurrency", "block_size", "num_gpus")
        },
    )


def at_model(diagnostic: Diagnostic, model: Named | None) -> Diagnostic:
    """Moves an error about the model itself to the model's name."""
    if diagnostic.path.rpartition(".")[2] != "model" or model is None:
        return diagnostic
    return replace(diagnostic, location=model.location, path=model.path, within="")


def model_diagnostics(document: Yaml, options: Mapping[str, Any], path: str) -> list[Diagnostic]:
    """Reports an unknown model, a precision that it does not have, and unknown GPUs."""
    found = []
    model, gpus = named_model(options, document, path), named_gpus(document)
    facts = find_model(model.name) if model else None
    if model and facts is None:
        found.append(unknown_model_diagnostic(model))
    for where in _PRECISIONS:
        precision = value_at(document.data, where)
        if not isinstance(precision, str) or is_open(precision):
            continue
        here, name = Named(precision, document.locate(where), where), precision.lower()
        if name in _OTHER_PRECISIONS:
            continue
        words = _FORMATS.get(name)
        if words is None:
            what, fix = f"{precision[:60]} is not a known precision", nearest(precision, _FORMATS)
            found.append(located(here.location, where, what, fix, MODEL_PRECISION))
        elif facts and not any(word in facts.precision for word in words):
            what = f"{precision}, but {facts.name} is a checkpoint in {facts.precision}"
            fix = f"name a checkpoint in {precision}, or correct the precision"
            found.append(located(here.location, where, what, fix, MODEL_PRECISION))
        elif model and facts is None:
            found += _arithmetic_diagnostics(here, words, gpus)
    for gpu in gpus:
        found += unknown_gpu_diagnostics(gpu)
    return found


def _arithmetic_diagnostics(
    precision: Named, words: tuple[str, ...], gpus: Sequence[Named]
) -> Iterator[Diagnostic]:
    """Reports a precision that a GPU lacks if only the file gives the model's precision."""
    for gpu in gpus:
        name = gpu.name.lower()
        has = hardware.load(name).precisions.value if name in hardware.known() else words
        if not any(row.startswith(words) for row in has):
            what = f"{precision.name}, and {gpu.name} has no {words[0]} arithmetic"
            fix = f"use a GPU that has {words[0]}, unless the weights are of another kind"
            place, where = precision.location, precision.path
            yield located(place, where, what, fix, MODEL_ON_GPU, "warning")


def unknown_gpu_diagnostics(gpu: Named) -> list[Diagnostic]:
    """Reports a GPU type without facts: an error if it is misspelt, else a warning."""
    if gpu.name.lower() in hardware.known():
        return []
    near = closest(gpu.name, hardware.known())
    severity: Severity = "error" if near else "warning"
    what = f"no GPU is called {gpu.name}" + ("" if near else " here: no rule of GPUs was applied")
    fix = f"did you mean {near}?" if near else f"Known: {', '.join(hardware.known())}"
    return [located(gpu.location, gpu.path, what, fix, UNKNOWN_GPU, severity)]


def unknown_model_diagnostic(model: Named) -> Diagnostic:
    """Reports a model without facts, with a suggestion if a known name is similar."""
    name = model.name.removeprefix(_PREFIX)
    near = closest(name, model_names.known_names()) or _completed(name)
    fix = f"did you mean {near}?" if near else ""
    what = f"{model.name} is unknown here: no rule of models was applied"
    return located(model.location, model.path, what, fix, UNKNOWN_MODEL)


def _completed(name: str) -> str | None:
    """The only known model that a name may mean. It continues the name by letters or digits,
    has a zero for the letter O, or has another known publisher."""
    lower, names = name.lower(), list(model_names.known_names())
    publisher, _, model = lower.rpartition("/")
    publishers = {other.partition("/")[0].lower() for other in names}
    rows = [
        other
        for other in names
        if (publisher in publishers and other.lower().endswith(f"/{model}"))
        or re.fullmatch(rf"{re.escape(lower)}(?:[a-z]|\d+)", other.lower())
        or other.lower().replace("0", "o") == lower.replace("0", "o")
    ]
    return rows[0] if len(rows) == 1 and "/" in name else None


def unknown_model_diagnostics(workers: Sequence[Server]) -> Iterator[Diagnostic]:
    """Reports server models without facts, each once."""
    seen = set()
    for worker in workers:
        model = worker.model
        if model and model.name not in seen and not is_open(model.name):
            seen.add(model.name)
            if find_model(model.name) is None:
                yield unknown_model_diagnostic(model)


def parser_diagnostics(
    rule_context: RuleContext, options: Mapping[str, tuple[str, Location]], model: Named | None
) -> Iterator[Diagnostic | str]:
    """Reports parsers that do not read what the model's chat template writes, and names those that
    cannot be checked. `options` are values with their locations."""
    facts, values = rule_context.checkpoint, {name: value for name, (value, _) in options.items()}
    if facts is None and (model is None or is_open(model.name)):
        return
    name = facts.name if facts else _on_the_hub(model.name) if model else ""
    folder = facts.path if facts else None
    for option, found in answer_parsers.check(rule_context.release, values, name, folder):
        if isinstance(found, str):
            yield f"{option} {values[option]}: {found}"
        else:
            yield replace(found, location=options[option][1], path=option)


def context(rule_context: RuleContext, worker: Server | None) -> RuleContext:
    """The rule context for the options of a server: its model, GPU and role, if known."""
    if worker is None:
        return rule_context
    if worker.gpu:
        rule_context = replace(rule_context, gpu=hardware.load(worker.gpu))
    if worker.role:
        rule_context = replace(rule_context, role=worker.role)
    return for_model(rule_context, worker.model)
