"""Checks what a Triton model configuration means: batching, instances, tensors and parameters."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ...diagnostics import Diagnostic, Location, closest, either, located, nearest
from ...documents import DATA
from ...errors import BadInput
from ...facts import data_file, plain_data
from ...files import load_json_mapping, read_text
from ...general_rules import (
    DUPLICATE_KEY,
    MISSING_KEY,
    UNKNOWN_KEY,
    UNKNOWN_VALUE,
    VALUE_RANGE,
    VALUE_TYPE,
    Rule,
    Severity,
)
from ..engine import ENGINE_FILE
from ..read.triton_config import Message, Scalar

EXCLUSIVE_KEYS = Rule("exclusive-keys", "Only one of these keys may be used.")
DUPLICATE_NAME = Rule("duplicate-name", "Two tensors of one model have the same name.")
TRITON_BATCHING = Rule("triton-batching", "The batching of a model contradicts itself.")
TRITON_BACKEND = Rule("triton-backend", "The backend or platform of a model does not exist.")
TRITON_INSTANCES = Rule("triton-instances", "Triton cannot make the instances of a model.")
TRITON_SHAPE = Rule("triton-shape", "The shape of a tensor is impossible.")
TRITON_TEMPLATE = Rule("triton-template", "A placeholder of a template is not filled in.")
TRITON_VERSIONS = Rule("triton-versions", "Triton finds no version of the model that it may load.")
TRITON_MODEL_FILE = Rule("triton-model-file", "A model's configuration contradicts its own files.")

TRITON = DATA / "triton"
_TRUTHS = ("True", "true", "TRUE", "1", "False", "false", "FALSE", "0")
TRUE, _FALSE = ("true", "t", "1"), ("false", "f", "0")
# Form of a parameter's value by its type, and what to write.
_FORMS = {
    "int": (re.compile(r"\s*[-+]?\d+\s*"), "give a whole number"),
    "ints": (re.compile(r"\s*\d+\s*(?:,\s*\d+\s*)*"), "give whole numbers with commas"),
    "share": (re.compile(r"(?s:.*)"), "give a share from 0 to 1, such as 0.9"),
    "bool": (re.compile("|".join(_TRUTHS)), "give true or false"),
    "any_bool": (re.compile("true|false", re.I), "give true or false"),
    "text": (re.compile(r"(?s:.*)"), "give a text"),
}


@cache
def backends() -> Mapping[str, Any]:
    """What the server and each backend read of a model configuration."""
    document: dict[str, Any] = data_file.load(
        TRITON / "backends.yaml", plain_data.TRITON_BACKENDS_FILE
    )
    return document


def backend_of(config: Message) -> str:
    """The backend of a model: as written, or that of its platform. An ensemble has `ensemble`."""
    platform = config.text("platform")
    return config.text("backend") or backends()["platforms"].get(platform, platform)


def completes(config: Message, path: Path) -> bool:
    """Whether the backend may add inputs and outputs to a configuration when it loads the model."""
    backend = backend_of(config)
    if backend != "python":
        return backend in backends()["completes"]
    texts = (read(file) for file in path.parent.glob("*/model.py"))
    return any("auto_complete_config" in text for text in texts)


def read(path: Path) -> str:
    """The text of a file next to a configuration; empty if it cannot be read."""
    try:
        return read_text(path)
    except BadInput:
        return ""


def meaning_diagnostics(config: Message, path: Path) -> Iterator[Diagnostic]:
    """Reports values that Triton or the backend refuses, or reads in another way than written."""
    yield from _template_diagnostics(config, path)
    yield from _backend_diagnostics(config)
    yield from _batching_diagnostics(config)
    yield from _sequence_diagnostics(config)
    yield from _instance_diagnostics(config)
    most = config.number("max_batch_size")
    for group in ("input", "output"):
        for index, tensor in enumerate(config.messages(group)):
            yield from _shape_diagnostics(tensor, f"{group}.{index}", most)
    yield from _version_diagnostics(config, path.parent)
    yield from _parameter_diagnostics(config, path)
    own = backends()["parameters"].get(backend_of(config), {})
    yield from _backend_file_diagnostics(config, path, own)


def _template_diagnostics(config: Message, path: Path) -> Iterator[Diagnostic]:
    """Reports the first placeholder outside of quotes, which Triton cannot read. It is an error
    where models next to it are filled in; a folder of templates is only a warning."""
    first = next(iter(config.open_values), None)
    if first is None:
        return
    severity: Severity = "warning" if _is_template(config, _repository(path)) else "error"
    what = f"{first.text} is not filled in: Triton cannot read it"
    fix = "fill in the template (fill_template.py -i), and check the result"
    yield located(first.location, "", what, fix, TRITON_TEMPLATE, severity)


# A parameter that every copy of TensorRT-LLM's models fills in.
_FILLED = re.compile(
    r"\"(?:gpt_model_type|gpt_model_path|tokenizer_dir)\"\s*value\s*:?\s*\{\s*string_value\s*:"
    r"\s*\"(?!\$\{)[^\"]"
)


def _repository(path: Path) -> list[str]:
    """The configurations of all models in the repository of one."""
    return [read(other) for other in path.parent.parent.glob("*/config.pbtxt")]


def _is_unused(models: Iterable[str]) -> bool:
    """Whether no model of a repository has what each model of TensorRT-LLM needs."""
    return not any(_FILLED.search(text) for text in models)


def _is_template(config: Message, models: Sequence[str]) -> bool:
    """Whether a configuration is in a folder of templates that are not filled in."""
    values = {value.text for value in config.open_values}
    is_one_of_many = len(models) > 1 and all("${" in text for text in models)
    return _is_unused(models) and (len(values) > 1 or is_one_of_many)


def _backend_diagnostics(config: Message) -> Iterator[Diagnostic]:
    known = {"backend": backends()["backends"], "platform": backends()["platforms"]}
    for field, names in known.items():
        value = config.scalar(field)
        if not value or not value.text or value.is_open or value.text in names:
            continue
        near = closest(value.text, names)
        is_named = config.named("backend") or config.named("default_model_filename")
        if field == "platform" and value.text in known["backend"] and not is_named:
            what, fix = f"{value.text} is a backend", f'write backend: "{value.text}"'
            yield located(value.location, field, what, fix, TRITON_BACKEND)
        elif near:
            what, fix = f"no {field} is called {value.text}", f"did you mean {near}?"
            yield located(value.location, field, what, fix, TRITON_BACKEND)
    platform, backend = config.text("platform"), config.text("backend")
    wanted = backends()["platforms"].get(platform)
    if backend and wanted and backend != wanted:
        what = f"{platform} is a platform of {wanted}, not of {backend}"
        if wanted == "ensemble":
            what = f"an ensemble has no backend, but {backend} is set"
        yield located(config.place("platform"), "platform", what, "keep one", TRITON_BACKEND)
    if platform == "ensemble" or not config.named("ensemble_scheduling"):
        return
    if not closest(platform, known["platform"]):
        what = f"needs the platform ensemble, but the model has {platform or backend or 'none'}"
        place, fix = config.place("ensemble_scheduling"), 'set platform: "ensemble"'
        yield located(place, "ensemble_scheduling", what, fix, TRITON_BACKEND)


def _batching_diagnostics(config: Message) -> Iterator[Diagnostic]:
    most, batching = config.number("max_batch_size"), config.first("dynamic_batching")
    if batching is None:
        return
    yield from preferred_diagnostics(batching, most, "dynamic_batching")
    if most == 0 and any(row.name == "max_batch_size" for row in config.fields):
        what, fix = "makes batches of one request: max_batch_size is 0", "raise max_batch_size"
        place = config.place("dynamic_batching")
        yield located(place, "dynamic_batching", what, fix, TRITON_BATCHING, "warning")
    levels = batching.number("priority_levels") or 0
    start = batching.number("default_priority_level") or 0
    if levels and not 1 <= start <= levels:
        where = "default_priority_level"
        what, fix = f"{start} is no level of {levels}", f"give 1 to {levels}"
        place = batching.place(where)
        yield located(place, f"dynamic_batching.{where}", what, fix, VALUE_RANGE)
    policies = [("default_queue_policy", batching.first("default_queue_policy"))]
    for index, row in enumerate(batching.messages("priority_queue_policy")):
        path, key = f"priority_queue_policy.{index}", row.number("key")
        policies.append((path, row.first("value")))
        if levels and key is not None and not 1 <= key <= levels:
            what, fix = f"{key} is no level of {levels}", f"give 1 to {levels}"
            place = row.place("key")
            yield located(place, f"dynamic_batching.{path}.key", what, fix, VALUE_RANGE)
    for where, policy in policies:
        size = policy.number("max_queue_size") if policy else None
        if policy and size and most and size < most:
            path, place = f"dynamic_batching.{where}.max_queue_size", policy.place("max_queue_size")
            what, fix = f"{size} requests fill no batch of {most}", f"give at least {most}"
            yield located(place, path, what, fix, TRITON_BATCHING, "warning")
    if batching.text("preserve_ordering").lower() not in TRUE:
        return
    if levels > 1:
        what, fix = "keeps no order between several priority levels", "remove one of the two"
        place = batching.place("preserve_ordering")
        yield located(place, "dynamic_batching.preserve_ordering", what, fix, TRITON_BATCHING)
    for where, policy in policies:
        delays = policy and policy.text("timeout_action") == "DELAY"
        if policy and delays and policy.number("default_timeout_microseconds"):
            what = "DELAY is not allowed with preserve_ordering"
            path, place = f"dynamic_batching.{where}.timeout_action", policy.place("timeout_action")
            yield located(place, path, what, "give REJECT", TRITON_BATCHING)


def preferred_diagnostics(batching: Message, most: int | None, path: str) -> Iterator[Diagnostic]:
    """Compares preferred batch sizes with the largest batch; unset, that may be completed."""
    for value in batching.scalars("preferred_batch_size"):
        size, where = value.number, f"{path}.preferred_batch_size"
        if size is not None and size <= 0:
            what, fix = f"{size} is out of range", "must be >= 1"
            yield located(value.location, where, what, fix, VALUE_RANGE)
        elif size is not None and most is not None and size > most:
            what = f"{size} is above max_batch_size, {most}"
            fix = f"give at most {most}, or raise max_batch_size"
            yield located(value.location, where, what, fix, TRITON_BATCHING)


def _sequence_diagnostics(config: Message) -> Iterator[Diagnostic]:
    batching = config.first("sequence_batching")
    cache_on = (config.first("response_cache") or Message(config.location)).text("enable")
    policy = config.first("model_transaction_policy")
    is_decoupled = policy is not None and policy.text("decoupled").lower() in TRUE
    if cache_on.lower() in TRUE and (batching or is_decoupled):
        other = "sequence_batching" if batching else "a decoupled model"
        what, fix = f"does not work with {other}", "disable it"
        yield located(config.place("response_cache"), "response_cache", what, fix, EXCLUSIVE_KEYS)
    if batching is None:
        return
    path, most = "sequence_batching", config.number("max_batch_size")
    if oldest := batching.first("oldest"):
        yield from preferred_diagnostics(oldest, most, f"{path}.oldest")
    direct = batching.first("direct")
    share = direct and direct.scalar("minimum_slot_utilization")
    if share and share.kind == "number" and not _is_share(share.text.rstrip("fF")):
        where = f"{path}.direct.minimum_slot_utilization"
        what, fix = f"{share.text} is out of range", "give a share from 0 to 1"
        yield located(share.location, where, what, fix, VALUE_RANGE)
    for index, row in enumerate(batching.messages("control_input")):
        for inner, control in enumerate(row.messages("control")):
            where = f"{path}.control_input.{index}.control.{inner}"
            yield from _control_diagnostics(control, where)


def _control_diagnostics(control: Message, path: str) -> Iterator[Diagnostic]:
    """Checks the tensor by which a sequence tells its start, end, readiness or id."""
    found, kind = control.scalar("data_type"), control.text("kind")
    ids = ("TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32", "TYPE_STRING")
    if kind == "CONTROL_SEQUENCE_CORRID":
        if found and found.text.startswith("TYPE_") and found.text not in ids:
            what, fix = f"{found.text} holds no id of a sequence", f"give {either(ids)}"
            yield located(found.location, f"{path}.data_type", what, fix, UNKNOWN_VALUE)
        return
    pairs = [f"{name}_false_true" for name in ("int32", "fp32", "bool")]
    given = [name for name in pairs if control.named(name)]
    if kind and len(given) != 1:
        what, fix = f"has {len(given)} of {either(pairs)}", "give one of them"
        yield located(control.location, path, what, fix, MISSING_KEY)
    for name in given:
        if (count := len(control.named(name))) != 2:
            what, fix = f"has {count} values", "give two: one for false, one for true"
            yield located(control.place(name), f"{path}.{name}", what, fix, VALUE_RANGE)


def _instance_diagnostics(config: Message) -> Iterator[Diagnostic]:
    for index, group in enumerate(config.messages("instance_group")):
        path, kind = f"instance_group.{index}", group.text("kind")
        if kind in ("KIND_CPU", "KIND_MODEL") and group.named("gpus"):
            what, fix = f"{kind} takes no GPUs", "remove gpus, or give KIND_GPU"
            yield located(group.place("gpus"), f"{path}.gpus", what, fix, TRITON_INSTANCES)
        count = group.number("count")
        if count is not None and count < 1:
            what, fix = f"{count} is below 1: Triton takes its default", "give at least 1"
            place = group.place("count")
            yield located(place, f"{path}.count", what, fix, VALUE_RANGE, "warning")
        seen, fix = set[int](), "list each GPU once, from 0"
        for value in group.scalars("gpus"):
            number, where, rule = value.number, f"{path}.gpus", TRITON_INSTANCES
            if number is not None and number < 0:
                yield located(value.location, where, f"{number} is no GPU", fix, rule)
            elif number in seen:
                what = f"{number} is listed twice: it has twice the instances"
                yield located(value.location, where, what, fix, rule, "warning")
            seen |= {number} if number is not None else set()
        if group.named("profile") and backend_of(config) not in ("tensorrt", ""):
            what, fix = "only TensorRT has profiles", "remove it"
            yield located(group.place("profile"), f"{path}.profile", what, fix, TRITON_INSTANCES)


def sizes(message: Message, field: str) -> list[int] | None:
    """The dimensions in a field; `None` if a template leaves one open."""
    found = [value.number for value in message.scalars(field)]
    return None if None in found else [size for size in found if size is not None]


def _shape_diagnostics(tensor: Message, path: str, most: int | None) -> Iterator[Diagnostic]:
    dims, reshape = sizes(tensor, "dims"), tensor.first("reshape")
    fields = [(tensor, "dims", f"{path}.dims")]
    if reshape:
        fields.append((reshape, "shape", f"{path}.reshape.shape"))
    is_whole = True
    for holder, field, where in fields:
        for value in holder.scalars(field):
            size = value.number
            if size is not None and size < 1 and size != -1:
                is_whole = False
                what, fix = f"{size} is no size", "give at least 1, or -1 if it varies"
                yield located(value.location, where, what, fix, TRITON_SHAPE)
    if dims == [] and tensor.named("name") and any(row.name == "dims" for row in tensor.fields):
        what, fix = "is empty", "give [ 1 ], with reshape: { shape: [ ] } if the model has a scalar"
        yield located(tensor.place("dims"), f"{path}.dims", what, fix, TRITON_SHAPE)
    if tensor.text("format") in ("FORMAT_NHWC", "FORMAT_NCHW") and dims and len(dims) != 3:
        what, fix = f"needs 3 dims and has {len(dims)}", "give 3 dims, or FORMAT_NONE"
        yield located(tensor.place("format"), f"{path}.format", what, fix, TRITON_SHAPE)
    shape = sizes(reshape, "shape") if reshape else None
    if shape is None or not dims or not is_whole:
        return
    place, where = tensor.place("reshape"), f"{path}.reshape"
    if not shape and most == 0:
        what, fix = "is empty, and the model has no batches", "give a shape, or max_batch_size"
        yield located(place, where, what, fix, TRITON_SHAPE)
    elif _blocks(dims) != _blocks(shape):
        what = f"{shape} has not as many elements as dims, {dims}"
        yield located(place, where, what, "let both multiply to the same", TRITON_SHAPE)


def _blocks(shape: list[int]) -> list[int]:
    """The elements of a shape between its variable sizes."""
    text = " ".join(map(str, shape))
    return [math.prod(map(int, part.split())) for part in re.split(r"(?:^|(?<= ))-1(?= |$)", text)]


def _version_diagnostics(config: Message, folder: Path) -> Iterator[Diagnostic]:
    """Compares the version policy and the folders of a model. No folder says nothing: versions may
    be made later."""
    try:
        names = [row.name for row in folder.iterdir() if row.is_dir()]
    except OSError:
        return
    versions = {name for name in names if name.isdigit() and name[0] != "0"}
    policy = config.first("version_policy")
    latest = policy and policy.first("latest")
    if latest and latest.number("num_versions") == 0:
        what, fix, where = "0 is out of range", "must be >= 1", "version_policy.latest.num_versions"
        yield located(latest.place("num_versions"), where, what, fix, VALUE_RANGE)
    specific = policy and policy.first("specific")
    for value in specific.scalars("versions") if specific and versions else ():
        if value.number is not None and str(value.number) not in versions:
            what, fix = f"{value.number} has no folder", f"give {either(sorted(versions))}"
            where = "version_policy.specific.versions"
            yield located(value.location, where, what, fix, TRITON_VERSIONS)
    odd = [name for name in names if re.fullmatch(r"(?:v|version[-_]?|0)\d+", name)]
    if odd and not versions and config.fields:
        what = f"{odd[0]} is no version: the name of its folder must be a number without zeros"
        fix = f"rename it to {int(re.sub('[^0-9]', '', odd[0])) or 1}"
        yield located(config.fields[0].location, "", what, fix, TRITON_VERSIONS)


def _parameter_diagnostics(config: Message, path: Path) -> Iterator[Diagnostic]:
    rows: dict[str, Message] = {}
    for row in config.messages("parameters"):
        if first := rows.get(row.text("key")):
            what = f"is given twice, first in line {first.location.line}: the last one counts"
            where, place = f"parameters.{row.text('key')}", row.place("key")
            yield located(place, where, what, "keep one", DUPLICATE_KEY, "warning")
        rows[row.text("key")] = row
    backend = backend_of(config)
    own = backends()["parameters"].get(backend, {})
    marked = backends()["parameters"]["tensorrtllm"]
    if backend == "python" and not rows.keys().isdisjoint(marked["marks"]):
        own = {**marked, "is_closed": False}  # its Python model reads the same parameters
    for name, row in rows.items():
        yield from _value_diagnostics(name, row, own)
    for group, needed in own.get("tensors", {}).items() if backend == "tensorrtllm" else ():
        tensors = config.messages(group)
        given = {tensor.text("name") for tensor in tensors}
        missing = [name for name in needed if tensors and name not in given]
        for name in missing:
            what, fix = f"has no {name}, which the backend needs", f"add the {group} {name}"
            yield located(config.place(group), group, what, fix, MISSING_KEY, "warning")
    filled = {name for name, row in rows.items() if not (value := _value(row)) or not value.is_open}
    severity: Severity = "error"
    if len(filled) < len(rows) and _is_unused(_repository(path)):
        severity = "warning"
    for names in own.get("needed", ()):
        if filled.isdisjoint(names):
            here = next((rows[name] for name in names if name in rows), None)
            what, fix = "has no value, which the backend needs", f"set {either(names)}"
            place = _place(here) if here else config.place("parameters")
            rule = TRITON_TEMPLATE if here else MISSING_KEY
            yield located(place, f"parameters.{names[0]}", what, fix, rule, severity)
    for name in own.get("filled", ()):
        if name in rows and name not in filled:
            what, fix = "is not filled in", "fill in the template, and check the result"
            place = _place(rows[name])
            yield located(place, f"parameters.{name}", what, fix, TRITON_TEMPLATE, severity)


def _value(row: Message) -> Scalar | None:
    inner = row.first("value")
    return inner.scalar("string_value") if inner else None


def _is_share(text: str) -> bool:
    try:
        return 0 <= float(text) <= 1
    except ValueError:
        return False


def _place(row: Message) -> Location:
    value = _value(row)
    return value.location if value else row.location


def _value_diagnostics(name: str, row: Message, own: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """Checks one parameter. An empty value or a placeholder is as good as none."""
    types, value, path = own.get("types", {}), _value(row), f"parameters.{name}"
    if name not in types:
        near = closest(name, types) if types else None
        if not near and not own.get("is_closed"):
            return
        severity: Severity = "error" if near and name not in own.get("former", ()) else "warning"
        what, fix = "is no parameter of the backend, which ignores it", nearest(name, types)
        yield located(row.place("key"), path, what, fix, UNKNOWN_KEY, severity)
        return
    if value is None or not value.text or value.is_open:
        return
    kind = types[name]
    if isinstance(kind, tuple | list):
        if value.text not in kind:
            what, fix = f"{value.text} is not allowed", nearest(value.text, kind)
            yield located(value.location, path, what, fix, UNKNOWN_VALUE)
        return
    form, fix = _FORMS[kind]
    if not form.fullmatch(value.text) or (kind == "share" and not _is_share(value.text)):
        rule = VALUE_RANGE if kind == "share" else VALUE_TYPE
        yield located(value.location, path, f"is {value.text[:60]}", fix, rule)


def _backend_file_diagnostics(
    config: Message, path: Path, own: Mapping[str, Any]
) -> Iterator[Diagnostic]:
    """Checks the transaction policy that a backend needs, and the kind of the instances against the
    ranks of its option file."""
    policy = config.first("model_transaction_policy")
    if own.get("is_decoupled") and policy and policy.text("decoupled").lower() in _FALSE:
        what, fix = "the backend needs a decoupled model", "give decoupled: true"
        place = policy.place("decoupled")
        yield located(place, "model_transaction_policy.decoupled", what, fix, TRITON_MODEL_FILE)
    if not own.get("ranks"):
        return
    for file in sorted(path.parent.glob(f"[1-9]*/{ENGINE_FILE}")):
        try:
            options = load_json_mapping(file)
        except BadInput:
            continue  # reported with the file itself
        ranks = 1
        for name in own["ranks"]:
            ranks *= size if isinstance(size := options.get(name), int) else 1
        for index, group in enumerate(config.messages("instance_group")):
            if ranks > 1 and group.text("kind") == "KIND_GPU":
                what = f"KIND_GPU has one GPU, and {file.parent.name}/{file.name} asks for {ranks}"
                where, place = f"instance_group.{index}.kind", group.place("kind")
                yield located(place, where, what, "give KIND_MODEL", TRITON_MODEL_FILE)
