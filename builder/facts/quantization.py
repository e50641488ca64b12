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

from .architecture import Architecture, Config, Role, Tensors
from .checkpoint_files import Stored

Kind = tuple[Role, bool, str]

NVFP4_GROUP = 16
FP8_BLOCK = 128
MXFP4_BLOCK = 32

# Writers that name the tensors of a format in their own way.
COMPRESSED_TENSORS = "compressed-tensors"
STATIC_FP8 = "static fp8"

FORMATS = ("NVFP4", "FP8", "FP8_BLOCK_SCALES", "MXFP4")

# Dtypes in which an unquantized tensor may be stored.
PLAIN_DTYPES = frozenset({"BF16", "F16", "F32"})

_FP32_SUFFIXES = (".e_score_correction_bias", ".A_log")


@dataclass(frozen=True)
class Quantization:
    """The quantization of a checkpoint; `quant_algo` is one of `FORMATS`, or `None` for BF16.

    Where modules differ, `quant_algo` is that of the routed experts, which are most of the weights,
    `parts` has the format of each module or group of modules, and `rest` that of all others. In the
    name of a group `*` stands for a number, and a name stands for the modules below it as well.
    `writer` is who names the tensors otherwise than ModelOpt and the models' publishers.
    """

    quant_algo: str | None = None
    kv_cache_quant_algo: str | None = None
    exclude_modules: tuple[str, ...] = ()
    source: str = "config.json has no quantization"
    parts: Mapping[str, str] = field(default_factory=dict)
    rest: str | None = None
    writer: str | None = None

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
        for name in (module, general_name(module)):
            while name:
                if name in self.parts:
                    return self.parts[name]
                name = name.rpartition(".")[0]
        return None if self.excludes(module) else self.rest

    def stored(self, tensors: Tensors, name: str) -> list[Stored]:
        """The tensors that stand in the files for the one named, weight first."""
        module = name.removesuffix(".weight")
        found = self.format_of(module) if tensors.linear else None
        kind = found, len(tensors.shape)
        layout = _WRITERS.get((self.writer, *kind)) or _LAYOUTS.get(kind)
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


def _nvfp4_packed(module: str, out_features: int, in_features: int) -> Iterator[Stored]:
    yield Stored(f"{module}.weight_packed", "U8", (out_features, in_features // 2))
    groups = (out_features, in_features // NVFP4_GROUP)
    yield Stored(f"{module}.weight_scale", "F8_E4M3", groups)
    yield Stored(f"{module}.weight_global_scale", "F32", (1,))
    yield Stored(f"{module}.input_global_scale", "F32", (1,))


def _fp8(module: str, out_features: int, in_features: int) -> Iterator[Stored]:
    yield Stored(f"{module}.weight", "F8_E4M3", (out_features, in_features))
    yield Stored(f"{module}.weight_scale", "F32", ())
    yield Stored(f"{module}.input_scale", "F32", ())


def _fp8_static(module: str, out_features: int, in_features: int) -> Iterator[Stored]:
    yield Stored(f"{module}.weight", "F8_E4M3", (out_features, in_features))
    yield Stored(f"{module}.weight_scale_inv", "F32", ())
    yield Stored(f"{module}.activation_scale", "F32", ())


def _fp8_channel(module: str, out_features: int, in_features: int) -> Iterator[Stored]:
    yield Stored(f"{module}.weight", "F8_E4M3", (out_features, in_features))
    yield Stored(f"{module}.weight_scale", "BF16", (out_features, 1))


def _fp8_block_compressed(module: str, out_features: int, in_features: int) -> Iterator[Stored]:
    yield Stored(f"{module}.weight", "F8_E4M3", (out_features, in_features))
    blocks = (ceil(out_features / FP8_BLOCK), ceil(in_features / FP8_BLOCK))
    yield Stored(f"{module}.weight_scale", "BF16", blocks)


def _fp8_block(module: str, out_features: int, in_features: int) -> Iterator[Stored]:
    yield Stored(f"{module}.weight", "F8_E4M3", (out_features, in_features))
    blocks = (ceil(out_features / FP8_BLOCK), ceil(in_features / FP8_BLOCK))
    yield Stored(f"{module}.weight_scale_inv", "F32", blocks)


def _mxfp4(module: str, experts: int, in_features: int, out_features: int) -> Iterator[Stored]:
    blocks = (experts, out_features, in_features // MXFP4_BLOCK)
    yield Stored(f"{module}_blocks", "U8", (*blocks, MXFP4_BLOCK // 2))
    yield Stored(f"{module}_scales", "U8", blocks)


def _nvfp4_fused(module: str, experts: int, rows: int, columns: int) -> Iterator[Stored]:
    yield Stored(module, "U8", (experts, rows // 2, columns))
    groups = (experts, rows // NVFP4_GROUP, columns)
    yield Stored(f"{module}_weight_scale", "F8_E4M3", groups)
    yield Stored(f"{module}_weight_scale_2", "F32", ())
    yield Stored(f"{module}_input_scale", "F32", ())


def _fp8_fused(module: str, experts: int, rows: int, columns: int) -> Iterator[Stored]:
    yield Stored(module, "F8_E4M3", (experts, rows, columns))
    yield Stored(f"{module}_weight_scale", "F32", ())
    yield Stored(f"{module}_input_scale", "F32", ())


def _fp8_block_fused(module: str, experts: int, rows: int, columns: int) -> Iterator[Stored]:
    yield Stored(module, "F8_E4M3", (experts, rows, columns))
    blocks = (experts, ceil(rows / FP8_BLOCK), ceil(columns / FP8_BLOCK))
    yield Stored(f"{module}_scale_inv", "F32", blocks)


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
    ("NVFP4", 3): _nvfp4_fused,
    ("FP8", 3): _fp8_fused,
    ("FP8_BLOCK_SCALES", 3): _fp8_block_fused,
    ("MXFP4", 3): _mxfp4,
    ("MXFP4", 2): _mxfp4_linear,
    ("MXFP8", 2): _mxfp8,
}

_WRITERS: dict[tuple[str | None, str | None, int], Callable[..., Iterator[Stored]]] = {
    (COMPRESSED_TENSORS, "NVFP4", 2): _nvfp4_packed,
    (COMPRESSED_TENSORS, "FP8_BLOCK_SCALES", 2): _fp8_block_compressed,
    (COMPRESSED_TENSORS, "FP8", 2): _fp8_channel,
    (STATIC_FP8, "FP8", 2): _fp8_static,
}


def _expression(pattern: str) -> str:
    """A regular expression for a name of an exclude list; one that is none stands for itself."""
    if not pattern.startswith("re:"):
        return translate(pattern)
    try:
        return f"(?:{re.compile(pattern[3:]).pattern})"
    except re.error:
        return translate(pattern)


def general_name(module: str) -> str:
    """The name of a module with `*` for its numbers."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", module)


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
    r"\.(weight(_packed|(_global)?_scale(_2|_inv)?)?|(input|activation)(_global)?_scale"
    r"|[kv]_scale|bias)$|_(blocks|scales|weight_scale(_2)?|input_scale|scale_inv)$"
)


def _module(name: str) -> str:
    """The module of a tensor: its name without `.weight`, a scale or a bias."""
    if name.endswith(".weight"):  # of tens of thousands nearly all: no pattern is needed
        return name.removesuffix(".weight")
    return _BESIDE.sub("", name)
