"""Reads the quantization of a checkpoint from its files, whoever wrote them.

ModelOpt writes `hf_quant_config.json`, `quantization_config` of `config.json`, or both; the models'
publishers and llm-compressor write the latter. TensorRT-LLM reads them in
tensorrt_llm/llmapi/llm_utils.py, `_update_from_hf_quant_config`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..diagnostics import Diagnostic
from . import weight_layouts
from .architecture import NESTED, architectures
from .quantization import MAX_LONG, MAX_REPETITIONS, Quantization, are_slow, general_name, is_slow
from .weight_layouts import COMPRESSED_TENSORS, FORMATS, FP8_BLOCK, MIXED, Groups


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


_KV_CACHE = ("FP8", "NVFP4")
_NUL = "\0"

# Linear layers that DeepSeek's FP8 checkpoints keep in BF16; their files do not list them.
_FP8_BLOCK_EXCLUDED = ("lm_head", "*.eh_proj", "*.shared_head.head", "*.indexer.weights_proj")

_WEIGHT_ONLY = {"awq 4": "W4A16_AWQ", "gptq 4": "W4A16_GPTQ", "gptq 8": "W8A16_GPTQ"}

# ModelOpt's names of formats that others name otherwise, and how it lays them out.
_MODELOPT_NAMES = {
    "FP8_PER_CHANNEL_PER_TOKEN": ("FP8", weight_layouts.MODELOPT_BY_CHANNEL),
    "FP8_PB_WO": ("FP8_BLOCK_SCALES", weight_layouts.MODELOPT_BY_BLOCK),
}

# For a checkpoint in a format that cannot be planned, such as bitsandbytes.
_NEXT_STEP = (
    "take the model in one of these, export it so with ModelOpt from its BF16 weights, or write "
    "the options of a server for it by hand and run check on them"
)


def read_quantization(
    config: Mapping[str, Any], hf_quant_config: Mapping[str, Any] | None, folder: str = ""
) -> tuple[Quantization, list[Diagnostic]]:
    """The quantization in both files, and where they contradict each other.

    `hf_quant_config.json` wins; `folder` is where the files are, for messages.
    """
    inline = _from_config(config)
    if hf_quant_config is None:
        found, wrong = inline, []
    else:
        fields = mapping(hf_quant_config, "quantization")
        kv_cache, excluded = (
            none(fields.get("kv_cache_quant_algo")),
            names(fields, "exclude_modules"),
        )
        found = _modelopt(fields, kv_cache, excluded, "hf_quant_config.json")
        differ = inline.quant_algo and inline.quant_algo != MIXED
        wrong = _contradictions(found, inline) if differ else []
    if found.parts and (main := _of_experts(config, found)):
        found = replace(found, quant_algo=main)
    unknown = sorted(set(found.parts.values()) - set(FORMATS))
    if found.quant_algo in (None, *FORMATS) and unknown:
        what = f"{', '.join(unknown)} of some modules is not supported"
        wrong.append(Diagnostic(found.source, what, f"{', '.join(FORMATS)} are; {_NEXT_STEP}"))
    if found.quant_algo not in (None, *FORMATS):
        what = f"{found.quant_algo} is not supported"
        remedy = f"supported: {', '.join(FORMATS)}, or no quantization; {_NEXT_STEP}"
        wrong.append(Diagnostic(found.source, what, remedy))
    if found.kv_cache_quant_algo not in (None, *_KV_CACHE):
        what = f"a KV cache in {found.kv_cache_quant_algo} is not supported"
        remedy = f"export it again with {' or '.join(_KV_CACHE)}, or without a quantized KV cache"
        wrong.append(Diagnostic(found.source, what, remedy))
    if spoiled := [name for name in found.exclude_modules if _NUL in name]:
        # nvidia-modelopt 0.47 with transformers 5, of Nemotron-H
        what = f"{len(spoiled)} names of modules go on after a NUL, which fit no module"
        kept = spoiled[0].partition(_NUL)[0].rstrip(".")
        remedy = f"cut them off there, here and in config.json: the first is {kept}"
        wrong.append(Diagnostic(found.source, what, remedy))
    patterns = (*found.exclude_modules, *found.parts)
    if slow := [name for name in patterns if is_slow(name)]:
        what = f"{slow[0].removeprefix('re:')} could take hours to compare with a name"
        remedy = f"write at most {MAX_REPETITIONS} repetitions, none of a group, and as many groups"
        wrong.append(Diagnostic(found.source, what, remedy))
    elif are_slow(patterns):
        what = "its expressions for modules take long to compare with all names"
        remedy = f"write at most {MAX_LONG} with three repetitions or more, such as .*"
        wrong.append(Diagnostic(found.source, what, remedy))
    return found, [replace(row, where=f"{folder}{row.where}") for row in wrong]


def _of_experts(config: Mapping[str, Any], found: Quantization) -> str | None:
    """The format of the routed experts in the last layer that has some."""
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    known = architectures().get(name) if isinstance(name, str) else None
    if known is None or known.of(config).missing_fields(config):
        return None
    architecture = known.of(config)
    for tensors in architecture.tensors(architecture.text(config)):
        if tensors.role == "routed_expert" and tensors.linear and tensors.layers:
            module = tensors.pattern.format(layer=tensors.layers[-1], expert=0)
            return found.format_of(module.removesuffix(".weight"))
    return None


def _contradictions(first: Quantization, second: Quantization) -> list[Diagnostic]:
    return [
        Diagnostic(
            first.source,
            f"{name} is {getattr(first, name)}, but {second.source} says {getattr(second, name)}",
            "make the two files agree with the exporter's log",
        )
        for name in ("quant_algo", "kv_cache_quant_algo")
        if getattr(first, name) != getattr(second, name)
    ]


def modelopt_name(quantization: Quantization) -> str | None:
    """What ModelOpt calls the main format."""
    known = (quantization.quant_algo, quantization.writer)
    named = (name for name, meant in _MODELOPT_NAMES.items() if meant == known)
    return next(named, quantization.quant_algo)


def _modelopt(
    fields: Mapping[str, Any], kv_cache: str | None, excluded: tuple[str, ...], source: str
) -> Quantization:
    algorithm = fields.get("quant_algo")
    if algorithm == MIXED:
        return _modelopt_parts(fields, kv_cache, excluded, source)
    name, writer = _MODELOPT_NAMES.get(str(algorithm).upper(), (algorithm, None))
    named = None if name is None else str(name)
    size = group_size(fields, named)
    return Quantization(named, kv_cache, excluded, source, writer=writer, group_size=size)


# The second one is of releases of llm-compressor before 0.4.
_KEYS = ("quantization_config", "compression_config")


def _from_config(config: Mapping[str, Any]) -> Quantization:
    """That of the whole model, or else of the language model in it."""
    places = [(key, mapping(config, key)) for key in _KEYS]
    for name in NESTED:
        inner = mapping(config, name)
        places += [(f"{name}.{key}", mapping(inner, key)) for key in _KEYS]
    place, fields = next((row for row in places if row[1]), places[0])
    source = f"config.json: {place}"
    method = fields.get("quant_method")
    if method is None and "quant_algo" not in fields:
        given = [str(name) for name, value in fields.items() if value]
        if not given:
            return Quantization()
        return Quantization(f"{', '.join(given)} without quant_method", source=source)
    kv_cache = none(_kv_cache(fields))
    excluded = names(fields, "ignore") or names(fields, "exclude_modules")
    if method in ("fp8", "mxfp4", "mxfp8"):
        return _published(config, fields, source)
    if "quant_algo" in fields:
        return _modelopt(fields, kv_cache, excluded, source)
    if method == COMPRESSED_TENSORS:
        return _compressed(fields, kv_cache, excluded, source)
    if method in ("awq", "gptq"):
        return _weight_only(fields, source)
    return Quantization(f"quant_method {method}", kv_cache, excluded, source)


def _weight_only(fields: Mapping[str, Any], source: str) -> Quantization:
    """INT4 or INT8 weights of AutoAWQ and GPTQModel, whose lists name parts of modules' names."""
    method = fields["quant_method"]
    bits = fields.get("bits", fields.get("w_bit"))
    listed = tuple(f"*{name}*" for name in names(fields, "modules_to_not_convert"))
    # GPTQModel: after "-:" stands a regular expression of what is left as it is.
    rules = list(map(str, mapping(fields, "dynamic")))
    ruled = (f"re:{rule[2:]}" for rule in rules if rule.startswith("-:"))
    name = _WEIGHT_ONLY.get(f"{method} {bits}", f"quant_method {method} of {bits} bits")
    if other := next((rule for rule in rules if not rule.startswith("-:")), None):
        name = f"quant_method {method} with bits or groups of their own for {other}"
    size = fields.get("group_size", fields.get("q_group_size"))  # AutoAWQ's own word
    plain = (*listed, *ruled)
    return Quantization(
        name,
        None,
        plain if fields.get("lm_head") is True else (*plain, "*lm_head"),
        source,
        {f"re:.*{re.escape(part)}": name for part in _blocks(fields)},
        writer=weight_layouts.AWQ if method == "awq" else weight_layouts.GPTQ,
        group_size=group_size({"group_size": size}, name),
    )


def _blocks(fields: Mapping[str, Any]) -> Iterator[str]:
    """The parts of names of the only modules that GPTQ has quantized, where they are listed."""
    listed = fields.get("modules_in_block_to_quantize")
    if not isinstance(listed, list):
        return
    for row in listed:
        names = row if isinstance(row, list) else [row]
        yield from (name for name in names if isinstance(name, str))


def _kv_cache(fields: Mapping[str, Any]) -> str | None:
    """ModelOpt writes the format of the KV cache in words or, in `config.json`, as a scheme, which
    may be a word as well."""
    scheme = fields.get("kv_cache_scheme")
    named = fields.get("kv_cache_quant_algo", scheme)
    bits = scheme.get("num_bits") if isinstance(scheme, Mapping) else None
    if isinstance(named, str):
        return named
    return {8: "FP8", 4: "NVFP4"}.get(bits) if isinstance(bits, int) else None


def _compressed(
    fields: Mapping[str, Any], kv_cache: str | None, excluded: tuple[str, ...], source: str
) -> Quantization:
    """What llm-compressor writes: one format for all modules, or groups of them with one each."""
    groups = [row for row in mapping(fields, "config_groups").values() if isinstance(row, Mapping)]
    written = str(fields.get("format") or "")
    found = [_compressed_form(group, str(group.get("format") or written)) for group in groups]
    if written == "mxfp4-pack-quantized" and not found:
        found = [("MXFP4", COMPRESSED_TENSORS)]
    if len(found) == 1 and found[0] is not None:
        name, writer = found[0]
        zeros = any(map(_has_zero_points, groups))
        size = group_size(fields, name)
        return Quantization(name, kv_cache, excluded, source, {}, None, writer, size, zeros)
    forms = {form for form in found if form is not None}
    if len(found) > 1 and None not in found and {row for _, row in forms} == {COMPRESSED_TENSORS}:
        names = [form[0] for form in found if form]
        return _compressed_parts(groups, names, kv_cache, excluded, source)
    weights = mapping(groups[0], "weights") if len(groups) == 1 else {}
    inputs = mapping(groups[0], "input_activations") if len(groups) == 1 else {}
    kinds = f" of {len(groups)} groups" if len(groups) > 1 else _words(weights, inputs)
    algorithm = " ".join(filter(None, ("quant_method", COMPRESSED_TENSORS, written)))
    return Quantization(f"{algorithm}{kinds}", kv_cache, excluded, source)


def _compressed_form(group: Mapping[str, Any], written: str) -> tuple[str, str] | None:
    """The format of a group of modules, and who names its tensors."""
    weights, inputs = mapping(group, "weights"), mapping(group, "input_activations")
    if written == "mxfp4-pack-quantized":
        return "MXFP4", COMPRESSED_TENSORS
    strategies = weights.get("strategy"), inputs.get("strategy")
    form = (weights.get("num_bits"), weights.get("type"), *strategies)
    if form[:3] == (8, "float", "tensor") and inputs.get("num_bits") == weights["num_bits"]:
        return "FP8", weight_layouts.COMPRESSED_BY_TENSOR
    if form[:2] == (8, "int") and (inputs.get("num_bits"), inputs.get("type")) == form[:2]:
        return "W8A8_INT8", COMPRESSED_TENSORS
    named = next((name for known, name in _COMPRESSED.items() if known == form), None)
    if named in ("MXFP4", "MXFP8") and weights.get("group_size") not in (
        None,
        weight_layouts.MXFP4_BLOCK,
    ):
        return None
    if weights.get("block_structure") not in (None, [FP8_BLOCK, FP8_BLOCK]):
        return None
    return None if named is None else (named, COMPRESSED_TENSORS)


# By bits, type and strategy of the weights, and the strategy of the inputs.
_COMPRESSED: Mapping[tuple[object, ...], str] = {
    (4, "float", "tensor_group", "tensor_group"): "NVFP4",
    (4, "float", "tensor_group", None): "W4A16_NVFP4",
    (8, "float", "block", "group"): "FP8_BLOCK_SCALES",
    (8, "float", "channel", "token"): "FP8",
    (8, "float", "group", "group"): "MXFP8",
    (4, "float", "group", None): "MXFP4",
    (4, "int", "group", None): "W4A16",
    (4, "int", "channel", None): "W4A16",
    (8, "int", "group", None): "W8A16",
    (8, "int", "channel", None): "W8A16",
}


def _compressed_parts(
    groups: Sequence[Mapping[str, Any]],
    formats: Sequence[str],
    kv_cache: str | None,
    excluded: tuple[str, ...],
    source: str,
) -> Quantization:
    """Groups of modules: those of a class have what no name or pattern of another group takes."""
    parts: dict[str, str] = {}
    kept: dict[str, Groups] = {}
    for group, name in zip(groups, formats, strict=True):
        size = group_size({"config_groups": {"": group}}, name)
        for target in names(group, "targets"):
            parts[target], kept[target] = name, Groups(size, _has_zero_points(group))
    rest, rest_kept = parts.pop("Linear", None), kept.pop("Linear", Groups())
    return replace(
        mixed(parts, kv_cache, excluded, source, rest),
        writer=COMPRESSED_TENSORS,
        group_size=rest_kept.group_size,
        zero_points=rest_kept.zero_points,
        groups={name: row for name, row in kept.items() if row != rest_kept},
    )


def _has_zero_points(group: Mapping[str, Any]) -> bool:
    return mapping(group, "weights").get("symmetric") is False


_EXTENTS = ("group_size", "block_structure")


def _words(weights: Mapping[str, Any], inputs: Mapping[str, Any]) -> str:
    """How weights and inputs are quantized, for a combination that is not supported."""
    parts = [
        f"{name} {fields.get('type')}{fields.get('num_bits')} by {fields.get('strategy')}"
        + "".join(f" of {fields[key]}" for key in _EXTENTS if fields.get(key))
        for name, fields in (("weights", weights), ("inputs", inputs))
        if fields
    ]
    return f" ({', '.join(parts)})" if parts else ""


def _published(config: Mapping[str, Any], fields: Mapping[str, Any], source: str) -> Quantization:
    """The formats of the models' own publishers: FP8 in blocks or by tensor, MXFP4, or two of them.

    DeepSeek-V4 keeps its experts in MXFP4 (`expert_dtype`) and the rest in FP8; NVIDIA's export of
    it has the experts of all decoder layers in NVFP4 (`moe_quant_algo`) and changes nothing else.
    MiMo-V2.6 says of its experts that they are stored so (`store_dtype`).
    """
    # A name matches a module, or a part of a module's path.
    listed: list[str] = []
    for name in names(fields, "ignored_layers") + names(fields, "modules_to_not_convert"):
        listed += (name, f"*.{name}", f"{name}.*", f"*.{name}.*")
    if fields["quant_method"] != "fp8":
        name = str(fields["quant_method"]).upper()
        writer = weight_layouts.PUBLISHED_MXFP8 if name == "MXFP8" else None
        return Quantization(name, None, tuple(listed), source, writer=writer)
    plain = tuple(dict.fromkeys((*listed, *_FP8_BLOCK_EXCLUDED)))
    if fields.get("weight_block_size") is None:
        return Quantization("FP8", None, plain, source, writer=weight_layouts.STATIC_FP8)
    if (block := fields["weight_block_size"]) != [FP8_BLOCK, FP8_BLOCK]:
        return Quantization(f"quant_method fp8 in blocks of {block}", None, plain, source)
    algorithm = "FP8_BLOCK_SCALES"
    stored = str(fields.get("store_dtype") or "fp8").upper()
    if stored not in ("FP8", "MXFP4"):
        return Quantization(f"quant_method fp8 stored as {stored[:40]}", None, plain, source)
    if stored != "FP8":
        name = stored
        parts, writer = {"model.layers.*.mlp.experts": name}, weight_layouts.PUBLISHED_MXFP4
        return Quantization(name, None, plain, source, parts, algorithm, writer)
    if config.get("expert_dtype") != "fp4":
        return Quantization(algorithm, None, plain, source)
    experts = str(fields.get("moe_quant_algo") or "MXFP4")
    parts = {"layers.*.ffn.experts": experts, "mtp.*.ffn.experts": "MXFP4"}
    return Quantization(experts, _kv_cache(fields), (*plain, "head"), source, parts, algorithm)


def _modelopt_parts(
    fields: Mapping[str, Any], kv_cache: str | None, excluded: tuple[str, ...], source: str
) -> Quantization:
    """The format of each module of a mixed checkpoint, alike modules in one entry."""
    found: dict[str, dict[str, tuple[str, Groups]]] = {}
    for name, row in mapping(fields, "quantized_layers").items():
        form = row if isinstance(row, Mapping) else {"quant_algo": row}
        algorithm = str(form.get("quant_algo"))
        kept = Groups(group_size(form, algorithm))
        found.setdefault(general_name(name), {})[name] = algorithm, kept
    forms: dict[str, tuple[str, Groups]] = {}
    for general, modules in found.items():
        alike = len(set(modules.values())) == 1
        forms |= {general: next(iter(modules.values()))} if alike else modules
    meant = {name: _MODELOPT_NAMES.get(name, (name, None)) for name, _ in forms.values()}
    writers = {writer for _, writer in meant.values() if writer}
    if len(writers) > 1 or len({name for name, _ in meant.values()}) < len(meant):
        writers, meant = set(), {name: (name, None) for name in meant}  # laid out in two ways
    parts = {name: meant[algorithm][0] for name, (algorithm, _) in forms.items()}
    groups = {name: kept for name, (_, kept) in forms.items() if kept != Groups()}
    whole = mixed(parts, kv_cache, excluded, source)
    return replace(whole, writer=next(iter(writers), None), groups=groups)
