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
from dataclasses import dataclass
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

# Linear layers that DeepSeek's FP8 checkpoints keep in BF16; their files do not list them.
_FP8_BLOCK_EXCLUDED = ("lm_head", "*.eh_proj", "*.shared_head.head", "*.indexer.weights_proj")

# `quant_method` of config.json: the format, and what it leaves in BF16 without listing it.
_METHODS: dict[str, tuple[str, tuple[str, ...]]] = {
    "fp8": ("FP8_BLOCK_SCALES", _FP8_BLOCK_EXCLUDED),
    "mxfp4": ("MXFP4", ()),
}

# Dtypes in which an unquantized tensor may be stored.
PLAIN_DTYPES = frozenset({"BF16", "F16", "F32"})

_FP32_SUFFIXES = (".e_score_correction_bias", ".A_log")


@dataclass(frozen=True)
class Quantization:
    """The quantization of a checkpoint; `quant_algo` is one of `FORMATS`, or `None` for BF16."""

    quant_algo: str | None = None
    kv_cache_quant_algo: str | None = None
    exclude_modules: tuple[str, ...] = ()
    source: str = "config.json has no quantization"

    @cached_property
    def _excluded(self) -> re.Pattern[str]:
        return re.compile("|".join(map(translate, self.exclude_modules)) or r"(?!)")

    def excludes(self, module: str) -> bool:
        """Whether a linear module stays BF16; exclude lists hold literal names and `*` globs."""
        return self._excluded.match(module) is not None

    def stored(self, tensors: Tensors, name: str) -> list[Stored]:
        """The tensors that stand in the files for the one named, weight first."""
        module = name.removesuffix(".weight")
        layout = _LAYOUTS.get((self.quant_algo, len(tensors.shape)))
        if not tensors.linear or layout is None or self.excludes(module):
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


# By format and rank: MXFP4 is used for tensors that hold all experts of a layer, the others for
# plain linear layers.
_LAYOUTS: dict[tuple[str | None, int], Callable[..., Iterator[Stored]]] = {
    ("NVFP4", 2): _nvfp4,
    ("FP8", 2): _fp8,
    ("FP8_BLOCK_SCALES", 2): _fp8_block,
    ("MXFP4", 3): _mxfp4,
}


def read_quantization(
    config: Mapping[str, Any], hf_quant_config: Mapping[str, Any] | None
) -> tuple[Quantization, list[Diagnostic]]:
    """The quantization that both files tell, and where they contradict each other.

    ModelOpt writes `hf_quant_config.json`, `config.json`, or both; the first one wins.
    """
    inline = _from_config(_mapping(config, "quantization_config"))
    if hf_quant_config is None:
        found, diagnostics = inline, []
    else:
        found = _from_modelopt(_mapping(hf_quant_config, "quantization"))
        diagnostics = _contradictions(found, inline) if inline.quant_algo else []
    if found.quant_algo not in (None, *FORMATS):
        diagnostics.append(
            Diagnostic(
                found.source,
                f"{found.quant_algo} is not supported",
                f"supported: {', '.join(FORMATS)}, or no quantization",
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
            f"{field} is {getattr(first, field)}, but {second.source} says "
            f"{getattr(second, field)}",
            "make the two files agree with the exporter's log",
        )
        for field in ("quant_algo", "kv_cache_quant_algo")
        if getattr(first, field) != getattr(second, field)
    ]


def _from_modelopt(fields: Mapping[str, Any]) -> Quantization:
    return Quantization(
        fields.get("quant_algo"),
        fields.get("kv_cache_quant_algo"),
        _names(fields, "exclude_modules"),
        "hf_quant_config.json",
    )


def _from_config(fields: Mapping[str, Any]) -> Quantization:
    if not fields:
        return Quantization()
    source, method = "config.json: quantization_config", fields.get("quant_method")
    if isinstance(method, str) and method in _METHODS:
        # A name stands for a module, or for a part of a module's path.
        listed = [
            form.format(name)
            for name in _names(fields, "modules_to_not_convert")
            for form in ("{}", "*.{}", "{}.*", "*.{}.*")
        ]
        algorithm, unlisted = _METHODS[method]
        return Quantization(algorithm, None, tuple(dict.fromkeys((*listed, *unlisted))), source)
    kv_bits = _mapping(fields, "kv_cache_scheme").get("num_bits")
    return Quantization(
        str(fields.get("quant_algo", f"quant_method {method}")),
        "FP8" if kv_bits == 8 else None,
        _names(fields, "ignore") or _names(fields, "exclude_modules"),
        source,
    )


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


def _module(name: str) -> str:
    """The module of a tensor: its name without `.weight`, a scale or a bias."""
    return re.sub(
        r"\.(weight(_scale(_2|_inv)?)?|input_scale|[kv]_scale|bias)$|_(blocks|scales)$", "", name
    )
