"""How a checkpoint's weights are stored: in which format each module is, and what their tensors add
up to by role and dtype.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import translate
from functools import cached_property

from .architecture import Architecture, Config, Role, Tensors
from .checkpoint_files import Stored
from .weight_layouts import AWQ, FORMATS, GPTQ, Groups, stored_weight

Kind = tuple[Role, bool, str]

# Dtypes in which an unquantized tensor may be stored.
PLAIN_DTYPES = frozenset({"BF16", "F16", "F32"})

_FP32_SUFFIXES = (".e_score_correction_bias", ".A_log")
_PATTERN = "re:"  # before a regular expression in the place of a name
MAX_LONG = 16  # expressions with three of them or more: compared with a model's names in a second
_DIGIT = re.compile(r"\\d|\[0-9\]")
MAX_REPETITIONS = 4  # and groups of alternatives: a name is compared in about 0.01 s
_REPETITION = re.compile(r"(?:[*+?]|\{\d*,?\d*\})[?+]?")
_ALTERNATIVES = re.compile(r"\([^()]*\|")
_DIGITS = re.compile(r"0" + _REPETITION.pattern)


@dataclass(frozen=True)
class Quantization:
    """The quantization of a checkpoint; `quant_algo` is one of `FORMATS`, or `None` for BF16.

    In a mixed checkpoint `quant_algo` is the format of the routed experts, which are most of the
    weights, `parts` the format of each module or group of modules, and `rest` that of all others.
    In the name of a group `*` matches a number, and a name includes the modules below it; after
    `re:` it is a regular expression for modules that are not excluded. `writer` is set if the
    tensors have other names than ModelOpt and the models' publishers give them. `group_size` and
    `zero_points` are those of `Groups`; `groups` has the exceptions.
    """

    quant_algo: str | None = None
    kv_cache_quant_algo: str | None = None
    exclude_modules: tuple[str, ...] = ()
    source: str = "config.json has no quantization"
    parts: Mapping[str, str] = field(default_factory=dict)
    rest: str | None = None
    writer: str | None = None
    group_size: int | None = None
    zero_points: bool = False
    groups: Mapping[str, Groups] = field(default_factory=dict)

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
        part = self._part_of(module)
        if part is not None:
            return self.parts[part]
        if self.excludes(module):
            return None
        return self.rest if self.parts else self.quant_algo

    def _part_of(self, module: str) -> str | None:
        """The name among the parts that a module comes under."""
        if not self.parts:
            return None
        for name in (module, general_name(module)):
            while name:
                if name in self.parts:
                    return name
                name = name.rpartition(".")[0]
        if self.excludes(module):
            return None
        return next((part for pattern, part in self._patterns if pattern.match(module)), None)

    @property
    def arithmetic(self) -> str | None:
        """What a GPU must compute with; `None` where the rows of engines say which GPUs do."""
        return FORMATS[self.quant_algo].arithmetic if self.quant_algo else "BF16"

    @property
    def arithmetics(self) -> tuple[str, ...]:
        """Those of all its formats, the main one first."""
        found = (FORMATS[name].arithmetic for name in self.formats)
        return tuple(filter(None, found)) if self.formats else ("BF16",)

    @cached_property
    def _patterns(self) -> list[tuple[re.Pattern[str], str]]:
        """The regular expressions among the parts: the first one that fits wins."""
        names = sorted(name for name in self.parts if name.startswith(_PATTERN))
        return [(re.compile(_expression(name)), name) for name in names]

    @property
    def formats(self) -> tuple[str, ...]:
        """Every format that some of the weights have, the main one first."""
        found = (self.quant_algo, *self.parts.values(), self.rest)
        return tuple(dict.fromkeys(filter(None, found)))

    def stored(self, tensors: Tensors, name: str) -> list[Stored]:
        """The tensors in the files that make up the named one, weight first."""
        module = name.removesuffix(".weight")
        # What AWQ and GPTQ never quantize, listed or not.
        plain = tensors.role == "router" and self.writer in (AWQ, GPTQ)
        found = self.format_of(module) if tensors.linear and not plain else None
        part = self._part_of(module) if self.groups else None
        groups = self.groups.get(part or "", Groups(self.group_size, self.zero_points))
        shape, shards = tensors.shape, tensors.shards
        if quantized := stored_weight(self.writer, found, module, shape, groups, shards):
            return quantized
        dtype = "F32" if name.endswith(_FP32_SUFFIXES) else tensors.dtype
        return [Stored(name, dtype, tensors.shape)]

    def kv_scales(self, architecture: Architecture, tensors: Tensors, name: str) -> list[Stored]:
        """The FP8 KV-cache scale that ModelOpt stores beside a key or value projection."""
        if self.kv_cache_quant_algo != "FP8" or architecture.attention.startswith("mla"):
            return []
        module = name.removesuffix(".weight")
        for projection, scale in (("k_proj", "k_scale"), ("v_proj", "v_scale")):
            if tensors.role == "attention" and module.endswith(f".{projection}"):
                return [Stored(f"{module}.{scale}", "F32", ())]
        return []


def is_slow(pattern: str) -> bool:
    """Whether comparing a name with what may be an expression may take more than a moment.

    Python tries every way to split a name among repetitions and alternatives: with `.*.*!` the
    square of its length, with `(.*)*!` twice as many for each letter.
    """
    if not pattern.startswith(_PATTERN):
        return False
    found = _signs(pattern)
    most = max(len(_REPETITION.findall(found)), len(_ALTERNATIVES.findall(found)))
    return re.search(r"\)(?:[*+]|\{)", found) is not None or most > MAX_REPETITIONS


def _signs(expression: str) -> str:
    """An expression with `x` for each character class and each escaped character."""
    found = re.sub(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", "x", expression, flags=re.DOTALL)
    return found.replace("(?", "(")


def are_slow(patterns: Iterable[str]) -> bool:
    """Whether expressions that are each quick take too long together.

    Only expressions with three or more repetitions count, without repetitions of digits, which are
    few in a name.
    """
    found = (_signs(_DIGIT.sub("0", row)) for row in patterns if row.startswith(_PATTERN))
    counts = (len(_REPETITION.findall(_DIGITS.sub("", signs))) for signs in found)
    return sum(count > 2 for count in counts) > MAX_LONG


def _expression(pattern: str) -> str:
    """A regular expression for a name of an exclude list; an invalid one matches itself."""
    if not pattern.startswith(_PATTERN) or is_slow(pattern):
        return translate(pattern)
    try:
        return f"(?:{re.compile(pattern.removeprefix(_PATTERN)).pattern})"
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
    """By arithmetic; one expert represents all experts of its layer."""

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
    found: dict[str, Tensors] = {}
    for tensors in architecture.tensors(architecture.text(config)):
        found |= dict.fromkeys(map(_module, tensors.names()), tensors)
    return found


_BESIDE = re.compile(
    r"\.(weight(_packed|_shape|_zero_point|_g_idx|(_global)?_scale(_2|_inv)?)?"
    r"|(input|activation)(_global)?_scale|pre_quant_scale|qweight|qzeros|scales|g_idx"
    r"|[kv]_scale|bias)$|_(blocks|scales|packed|weight_scale(_2)?|input_scale|scale_inv)$"
)


def _module(name: str) -> str:
    """The module of a tensor: its name without `.weight`, a scale or a bias."""
    if name.endswith(".weight"):  # of tens of thousands nearly all: no pattern is needed
        return name.removesuffix(".weight")
    return _BESIDE.sub("", name)
