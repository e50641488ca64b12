"""How a checkpoint's weights are stored: the tensors that each format keeps for one linear layer,
added up by role and dtype.

Layouts: NVFP4 and FP8 as ModelOpt exports them (NVIDIA/Model-Optimizer, nvfp4_tensor.py and
quant_utils.py), FP8 in 128x128 blocks as DeepSeek publishes it, MXFP4 as OpenAI publishes gpt-oss
(Hugging Face transformers 5.23, integrations/mxfp4.py).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import translate
from functools import cached_property
from math import ceil
from typing import Any

from ..diagnostics import Diagnostic
from .architecture import Architecture, Config, Role, Tensors
from .checkpoint_files import Stored

Kind = tuple[Role, bool, str]

NVFP4_GROUP = 16
FP8_BLOCK = 128
MXFP4_BLOCK = 32

FORMATS = ("NVFP4", "FP8", "FP8_BLOCK_SCALES", "MXFP4")
# Those that some modules of a checkpoint are stored in, beside its main one.
_PART_FORMATS = (*FORMATS, "MXFP8")
_MIXED = "MIXED_PRECISION"

# Linear layers that DeepSeek's FP8 checkpoints keep in BF16; their files do not list them.
_FP8_BLOCK_EXCLUDED = ("lm_head", "*.eh_proj", "*.shared_head.head", "*.indexer.weights_proj")

# `quant_method` of config.json: the format, and what it leaves in BF16 without listing it.
_METHODS: dict[str, tuple[str, tuple[str, ...]]] = {
    "fp8": ("FP8_BLOCK_SCALES", _FP8_BLOCK_EXCLUDED),
    "mxfp4": ("MXFP4", ()),
}

# For a checkpoint in a format of which no plan is made, such as AWQ or GPTQ.
_NEXT_STEP = (
    "take the model in one of these, export it so with ModelOpt from its BF16 weights, or write "
    "the options of a server for it by hand, which check judges"
)

# Dtypes in which an unquantized tensor may be stored.
PLAIN_DTYPES = frozenset({"BF16", "F16", "F32"})

_FP32_SUFFIXES = (".e_score_correction_bias", ".A_log")


@dataclass(frozen=True)
class Quantization:
    """The quantization of a checkpoint; `quant_algo` is one of `FORMATS`, or `None` for BF16.

    Where modules differ, `quant_algo` is that of the routed experts, which are most of the weights,
    `parts` has the format of each module or group of modules, and `rest` that of all others. In the
    name of a group `*` stands for a number, and a name stands for the modules below it as well.
    """

    quant_algo: str | None = None
    kv_cache_quant_algo: str | None = None
    exclude_modules: tuple[str, ...] = ()
    source: str = "config.json has no quantization"
    parts: Mapping[str, str] = field(default_factory=dict)
    rest: str | None = None

    @cached_property
    def _excluded(self) -> re.Pattern[str]:
        return re.compile("|".join(map(_expression, self.exclude_modules)) or r"(?!)")

    def excludes(self, module: str) -> bool:
        """Whether a linear module stays BF16.

        Exclude lists hold literal names, `*` globs and, after `re:`, regular expressions.
        """
        return self._excluded.match(module) is not None

    def format_of(self, module: str) -> str | None:
        """The format of a linear module, `None` for a plain one."""
        if not self.parts:
            return None if self.excludes(module) else self.quant_algo
        for name in (module, _general(module)):
            while name:
                if name in self.parts:
                    return self.parts[name]
                name = name.rpartition(".")[0]
        return None if self.excludes(module) else self.rest

    def stored(self, tensors: Tensors, name: str) -> list[Stored]:
        """The tensors that stand in the files for the one named, weight first."""
        module = name.removesuffix(".weight")
        found = self.format_of(module) if tensors.linear else None
        layout = _LAYOUTS.get((found, len(tensors.shape)))
        if layout is None:
            dtype = "F32" if name.endswith(_FP32_SUFFIXES) else tensors.dtype
            return [Stored(name, dtype, tensors.shape)]
        return list(layout(module, *tensors.shape))

    def kv_scales(self, architecture: Architecture, tensors: Tensors, name: str) -> list[Stored]:
        """The FP8 KV-cache scale that ModelOpt stores beside a key or value projection."""
        if self.kv_cache_quant_algo != "FP8" or architecture.attention.startswith("mla"):
            return []
        module = name.removesuffix(".weight")
        for projection, scale in (("k_proj", "k_scale"), ("v_proj", "v_scale")):
            if tensors.role == "attention" and module.endswith(f".{projection}"):
                return [Stored(f"{module}.{scale}", "F32", ())]
        return []


def _nvfp4(module: str, out_features: int, in_features: int) -> Iterator[Stored]:
    yield Stored(f"{module}.weight", "U8", (out_features, in_features // 2))
    groups = (out_features, in_features // NVFP4_GROUP)
    yield Stored(f"{module}.weight_scale", "F8_E4M3", groups)
    yield Stored(f"{module}.weight_scale_2", "F32", ())
    yield Stored(f"{module}.input_scale", "F32", ())


def _fp8(module: str, out_features: int, in_features: int) -> Iterator[Stored]:
    yield Stored(f"{module}.weight", "F8_E4M3", (out_features, in_features))
    yield Stored(f"{module}.weight_scale", "F32", ())
    yield Stored(f"{module}.input_scale", "F32", ())


def _fp8_block(module: str, out_features: int, in_features: int) -> Iterator[Stored]:
    yield Stored(f"{module}.weight", "F8_E4M3", (out_features, in_features))
    blocks = (ceil(out_features / FP8_BLOCK), ceil(in_features / FP8_BLOCK))
    yield Stored(f"{module}.weight_scale_inv", "F32", blocks)


def _mxfp4(module: str, experts: int, in_features: int, out_features: int) -> Iterator[Stored]:
    blocks = (experts, out_features, in_features // MXFP4_BLOCK)
    yield Stored(f"{module}_blocks", "U8", (*blocks, MXFP4_BLOCK // 2))
    yield Stored(f"{module}_scales", "U8", blocks)


def _mxfp4_linear(module: str, out_features: int, in_features: int) -> Iterator[Stored]:
    yield Stored(f"{module}.weight_packed", "U8", (out_features, in_features // 2))
    yield Stored(f"{module}.weight_scale", "U8", (out_features, in_features // MXFP4_BLOCK))


def _mxfp8(module: str, out_features: int, in_features: int) -> Iterator[Stored]:
    yield Stored(f"{module}.weight", "F8_E4M3", (out_features, in_features))
    yield Stored(f"{module}.weight_scale", "U8", (out_features, in_features // MXFP4_BLOCK))


# By format and rank: of rank three are tensors that hold all experts of a layer.
_LAYOUTS: dict[tuple[str | None, int], Callable[..., Iterator[Stored]]] = {
    ("NVFP4", 2): _nvfp4,
    ("FP8", 2): _fp8,
    ("FP8_BLOCK_SCALES", 2): _fp8_block,
    ("MXFP4", 3): _mxfp4,
    ("MXFP4", 2): _mxfp4_linear,
    ("MXFP8", 2): _mxfp8,
}


def _expression(pattern: str) -> str:
    """A regular expression for a name of an exclude list; one that is none stands for itself."""
    if not pattern.startswith("re:"):
        return translate(pattern)
    try:
        return f"(?:{re.compile(pattern[3:]).pattern})"
    except re.error:
        return translate(pattern)


def _general(module: str) -> str:
    """The name of a module with `*` for its numbers."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", module)


def read_quantization(
    config: Mapping[str, Any], hf_quant_config: Mapping[str, Any] | None
) -> tuple[Quantization, list[Diagnostic]]:
    """The quantization that both files tell, and where they contradict each other.

    ModelOpt writes `hf_quant_config.json`, `config.json`, or both; the first one wins.
    """
    inline = _from_config(config)
    if hf_quant_config is None:
        found, diagnostics = inline, []
    else:
        found = _from_modelopt(_mapping(hf_quant_config, "quantization"))
        differ = inline.quant_algo and inline.quant_algo != _MIXED
        diagnostics = _contradictions(found, inline) if differ else []
    unknown = sorted(set(found.parts.values()) - set(_PART_FORMATS))
    if found.quant_algo in (None, *FORMATS) and unknown:
        what = f"{', '.join(unknown)} of some modules is not supported"
        remedy = f"supported: {', '.join(_PART_FORMATS)}"
        diagnostics.append(Diagnostic(found.source, what, remedy))
    if found.quant_algo not in (None, *FORMATS):
        diagnostics.append(
            Diagnostic(
                found.source,
                f"{found.quant_algo} is not supported",
                f"supported: {', '.join(FORMATS)}, or no quantization; {_NEXT_STEP}",
            )
        )
    return found, diagnostics


def _mapping(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = document.get(key)
    return value if isinstance(value, Mapping) else {}


def _names(fields: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = fields.get(key)
    return (
        tuple(filter(lambda name: isinstance(name, str), value)) if isinstance(value, list) else ()
    )


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


def _from_modelopt(fields: Mapping[str, Any]) -> Quantization:
    source = "hf_quant_config.json"
    excluded = _names(fields, "exclude_modules")
    kv_cache, algorithm = fields.get("kv_cache_quant_algo"), fields.get("quant_algo")
    if algorithm == _MIXED:
        return _mixed(_parts(fields), kv_cache, excluded, source)
    return Quantization(algorithm, kv_cache, excluded, source)


def _from_config(config: Mapping[str, Any]) -> Quantization:
    fields = _mapping(config, "quantization_config")
    if not fields:
        return Quantization()
    source, method = "config.json: quantization_config", fields.get("quant_method")
    if isinstance(method, str) and method in _METHODS:
        return _published(config, fields, method, source)
    kv_cache = _kv_cache(fields)
    excluded = _names(fields, "ignore") or _names(fields, "exclude_modules")
    algorithm = fields.get("quant_algo", f"quant_method {method}")
    if fields.get("format") == _PACKED_MXFP4:
        return Quantization("MXFP4", kv_cache, excluded, source)
    if algorithm == _MIXED:
        return _mixed(_parts(fields), kv_cache, excluded, source)
    return Quantization(str(algorithm), kv_cache, excluded, source)


def _kv_cache(fields: Mapping[str, Any]) -> str | None:
    """ModelOpt writes the format of the KV cache in words or, in `config.json`, as a scheme."""
    named = fields.get("kv_cache_quant_algo")
    bits = _mapping(fields, "kv_cache_scheme").get("num_bits")
    return named if isinstance(named, str) else {8: "FP8", 4: "NVFP4"}.get(bits or 0)


# compressed-tensors, in its files of MXFP4 weights.
_PACKED_MXFP4 = "mxfp4-pack-quantized"


def _published(
    config: Mapping[str, Any], fields: Mapping[str, Any], method: str, source: str
) -> Quantization:
    """The formats of the models' own publishers: FP8 in blocks, MXFP4, or both.

    DeepSeek-V4 keeps its experts in MXFP4 (`expert_dtype`) and the rest in FP8; NVIDIA's export of
    it has the experts of all decoder layers in NVFP4 (`moe_quant_algo`) and changes nothing else.
    """
    # A name stands for a module, or for a part of a module's path.
    listed = [
        form.format(name)
        for name in _names(fields, "modules_to_not_convert")
        for form in ("{}", "*.{}", "{}.*", "*.{}.*")
    ]
    algorithm, unlisted = _METHODS[method]
    plain = tuple(dict.fromkeys((*listed, *unlisted)))
    if config.get("expert_dtype") != "fp4":
        return Quantization(algorithm, None, plain, source)
    experts = fields.get("moe_quant_algo") or "MXFP4"
    parts = {"layers.*.ffn.experts": experts, "mtp.*.ffn.experts": "MXFP4"}
    return Quantization(experts, _kv_cache(fields), (*plain, "head"), source, parts, algorithm)


def _parts(fields: Mapping[str, Any]) -> dict[str, str]:
    """The format of each module of a mixed checkpoint, alike modules in one entry."""
    found: dict[str, dict[str, str]] = {}
    for name, row in _mapping(fields, "quantized_layers").items():
        algorithm = row.get("quant_algo") if isinstance(row, Mapping) else row
        found.setdefault(_general(name), {})[name] = str(algorithm)
    parts: dict[str, str] = {}
    for general, modules in found.items():
        alike = len(set(modules.values())) == 1
        parts |= {general: next(iter(modules.values()))} if alike else modules
    return parts


def _mixed(
    parts: Mapping[str, str], kv_cache: str | None, excluded: tuple[str, ...], source: str
) -> Quantization:
    """The main format is that of the routed experts, or else of most modules."""
    experts = [part for name, part in parts.items() if ".experts" in name]
    most = Counter(experts or parts.values()).most_common(1)
    main = most[0][0] if most else _MIXED
    return Quantization(main, kv_cache, excluded, source, parts)


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """What the tensors of one role and dtype add up to."""

    role: Role
    mtp: bool
    dtype: str
    count: int
    nbytes: int


def computed_groups(
    architecture: Architecture, config: Config, quantization: Quantization
) -> tuple[TensorGroup, ...]:
    """By arithmetic; one expert stands for all experts of its layer."""

    def rows() -> Iterator[tuple[Kind, int, int]]:
        for tensors in architecture.tensors(architecture.text(config)):
            experts = max(1, tensors.experts)
            for layer in (None,) if tensors.layers is None else tensors.layers:
                name = tensors.pattern.format(layer=layer, expert=0)
                scales = quantization.kv_scales(architecture, tensors, name)
                for tensor in quantization.stored(tensors, name) + scales:
                    kind = (tensors.role, tensors.mtp, tensor.dtype)
                    yield kind, experts, tensor.nbytes * experts

    return _added_up(rows())


def stored_groups(
    architecture: Architecture, config: Config, found: Iterable[Stored]
) -> tuple[TensorGroup, ...]:
    """Those of files, each tensor under the role that its name has."""
    roles = _roles(architecture, config)

    def rows() -> Iterator[tuple[Kind, int, int]]:
        for tensor in found:
            known = roles.get(_module(tensor.name))
            if known is not None:  # else of a vision tower or the like, not of the language model
                yield (known.role, known.mtp, tensor.dtype), 1, tensor.nbytes

    return _added_up(rows())


def _added_up(rows: Iterable[tuple[Kind, int, int]]) -> tuple[TensorGroup, ...]:
    counts: Counter[Kind] = Counter()
    totals: Counter[Kind] = Counter()
    for kind, count, nbytes in rows:
        counts[kind] += count
        totals[kind] += nbytes
    return tuple(TensorGroup(*kind, counts[kind], totals[kind]) for kind in sorted(counts))


def _roles(architecture: Architecture, config: Config) -> dict[str, Tensors]:
    return {
        _module(name): tensors
        for tensors in architecture.tensors(architecture.text(config))
        for name in tensors.names()
    }


_BESIDE = re.compile(
    r"\.(weight(_scale(_2|_inv)?)?|input_scale|[kv]_scale|bias)$|_(blocks|scales)$"
)


def _module(name: str) -> str:
    """The module of a tensor: its name without `.weight`, a scale or a bias."""
    if name.endswith(".weight"):  # of tens of thousands nearly all: no pattern is needed
        return name.removesuffix(".weight")
    return _BESIDE.sub("", name)
