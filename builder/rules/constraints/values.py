"""The values that rules are written in: options, the engine's defaults, facts, what follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Any, Final

from ...facts.release.support import Support
from .situation import Situation

MISSING: Final[Any] = object()
"""Stands for a value that nobody gave and nobody knows; `None` is a null that somebody wrote."""

_LARGEST = 2**53  # no option comes near it, and up to it int and float are the same number

_TRUE = frozenset({"true", "yes", "on", "y", "t", "1"})
_FALSE = frozenset({"false", "no", "off", "n", "f", "0"})

_SPECULATION = "speculative_config"
_GRAPHS = "cuda_graph_config"


@dataclass(frozen=True)
class View:
    """Values by the operands that rules are written in.

    `a.b` is the option as given, `effective.a.b` what the engine uses: the option, or its default.
    `situation.x` is a fact, `derived.x` a function of `DERIVED`, `support.x` the state of a feature
    in the release's support matrix and `support_matrix.x` the words of its cell.
    """

    options: Mapping[str, Any]
    situation: Situation
    _seen: dict[str, Any] = field(default_factory=dict)

    def value(self, operand: str) -> Any:
        """The value of an operand, `MISSING` where it is not given or not known."""
        if operand not in self._seen:
            self._seen[operand] = self._value(operand)
        return self._seen[operand]

    def number(self, operand: str | float) -> float | None:
        """The number that an operand or a literal stands for."""
        return as_number(self.value(operand) if isinstance(operand, str) else operand)

    def count(self, operand: str) -> int | None:
        """The whole number that an operand stands for."""
        value = self.number(operand)
        return int(value) if value is not None and value == int(value) else None

    def _value(self, operand: str) -> Any:
        space, _, name = operand.partition(".")
        if space == "situation":
            fact = getattr(self.situation, name)
            return MISSING if fact is None else fact
        if space in ("support", "support_matrix"):
            return self._feature(name, space == "support")
        if space == "derived":
            return DERIVED[name](self)
        if space == "effective":
            given, release = self._given(name), self.situation.release
            known = given is MISSING and name in release.paths
            return release.default(name) if known else given
        return self._given(operand)

    def _feature(self, name: str, state: bool) -> Any:
        """What the release's support matrix says of a feature of this model on this GPU."""
        situation = self.situation
        if situation.architecture is None:
            return MISSING
        model = situation.architecture.name
        found = situation.release.feature_support(model, name, situation.sm)
        return MISSING if found is None else found.state if state else found.evidence

    def _given(self, path: str) -> Any:
        value: Any = self.options
        for key in path.split("."):
            if not isinstance(value, Mapping) or key not in value:
                return MISSING
            value = value[key]
        return value


def as_number(value: Any) -> float | None:
    """A number, given as one or as text; `None` for anything else."""
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            try:
                value = float(value)
            except ValueError:
                return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) <= _LARGEST else None


def as_truth(value: Any) -> bool | None:
    """True or false as the engine's validation reads it; `None` for anything else."""
    word = str(value).lower() if isinstance(value, bool | int | str) else ""
    return True if word in _TRUE else False if word in _FALSE else None


def _product(*factors: float | None) -> Any:
    known = [factor for factor in factors if factor is not None]
    return prod(known) if len(known) == len(factors) else MISSING


def _cp_type(view: View) -> Any:
    """The kind of context parallelism; the engine's own default is ULYSSES (mapping.py)."""
    given = view.value("cp_config.cp_type")
    return "ULYSSES" if given in (MISSING, None) else given


def _moe_ranks(view: View) -> Any:
    """The ranks that share the experts (mapping.py: moe_world_size)."""
    split = str(_cp_type(view)).upper() != "ULYSSES"
    cp = view.count("effective.context_parallel_size") if split else 1
    return _product(view.count("tensor_parallel_size"), cp)


def _moe_product(view: View) -> Any:
    return _product(
        view.count("moe_tensor_parallel_size"),
        view.count("moe_expert_parallel_size"),
        view.count("moe_cluster_parallel_size") or 1,
    )


def _draft_tokens(view: View) -> Any:
    """Draft tokens per step that the engine really uses, whatever the file meant."""
    if view.value(_SPECULATION) in (MISSING, None):
        return 0
    paths = [f"{_SPECULATION}.max_draft_len"]
    if view.value(f"{_SPECULATION}.decoding_type") == "MTP":
        spelled = view.situation.release.option_path("mtp_draft_tokens")
        paths = [f"effective.{spelled}", f"{_SPECULATION}.num_nextn_predict_layers"]
    return next((n for path in paths if (n := view.count(path)) is not None), MISSING)


def _tokens_per_step(view: View) -> Any:
    """Tokens of one decode step with a full batch: each request's own and its draft tokens."""
    drafts = as_number(_draft_tokens(view))
    return _product(view.count("max_batch_size"), None if drafts is None else 1 + drafts)


def _draft_model(view: View) -> Any:
    names = ("speculative_model", "speculative_model_dir")
    given = (view.value(f"{_SPECULATION}.{name}") for name in names)
    return next((value for value in given if value not in (MISSING, None)), MISSING)


def _tree_tokens(view: View) -> Any:
    """The most draft tokens of a dynamic tree."""
    return _product(
        view.count(f"{_SPECULATION}.dynamic_tree_max_topK"),
        view.count(f"{_SPECULATION}.max_draft_len"),
    )


def _whole_numbers(values: Any) -> list[int] | None:
    """Whole numbers of a list that holds nothing else."""
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        return None
    numbers = [as_number(value) for value in values]
    whole = [int(number) for number in numbers if number is not None and number == int(number)]
    return whole if len(whole) == len(numbers) else None


def _kv_dtype(view: View) -> Any:
    """The type of the KV cache, `MISSING` where the checkpoint says it and is not known."""
    given = view.value("effective.kv_cache_config.dtype")
    if given not in (MISSING, None) and str(given).lower() != "auto":
        return given
    return view.value("situation.kv_dtype")


def _graph_list(view: View) -> Any:
    """The sizes of CUDA graphs as the engine sorts them."""
    sizes = _whole_numbers(view.value(f"{_GRAPHS}.batch_sizes"))
    return sorted(sizes) if sizes else MISSING


def _largest_listed_graph(view: View) -> Any:
    sizes = _graph_list(view)
    return sizes[-1] if sizes is not MISSING else MISSING


def _misplaced_graphs(view: View) -> Any:
    """Sizes that do not rise above the one before them."""
    sizes = _whole_numbers(view.value(f"{_GRAPHS}.batch_sizes")) or []
    wrong = [size for last, size in pairwise(sizes) if size <= last]
    return wrong or MISSING


def _generated_graph_list(view: View) -> Any:
    """The sizes that releases up to 1.2.1 make from `max_batch_size` (llm_args.py)."""
    largest = view.count(f"{_GRAPHS}.max_batch_size")
    if largest is None or largest < 1:
        return MISSING
    padding = view.value(f"effective.{_GRAPHS}.enable_padding")
    sizes = [1, 2, 4, *range(8, 129, 8)] if padding is True else [*range(1, 33), 64, 128]
    sizes += [2**power for power in range(8, largest.bit_length())]
    return sorted({size for size in sizes if size < largest} | {largest})


def _schedule(view: View) -> dict[int, int]:
    """`draft_len_schedule`: draft tokens by batch size; empty if it cannot be read."""
    given = view.value(f"{_SPECULATION}.draft_len_schedule")
    if not isinstance(given, Mapping):
        return {}
    keys, values = _whole_numbers(list(given)), _whole_numbers(list(given.values()))
    return dict(zip(keys, values, strict=True)) if keys and values else {}


def _schedule_value(pick: Callable[[dict[int, int]], int | None]) -> Callable[[View], Any]:
    def value(view: View) -> Any:
        schedule = _schedule(view)
        picked = pick(schedule) if schedule else None
        return MISSING if picked is None else picked

    return value


def _moe_backends(view: View) -> Any:
    """Backends with kernels for the checkpoint on the GPU, best first."""
    situation = view.situation
    if situation.sm is None or situation.quant_algo is None:
        return MISSING
    quant_algo = None if situation.quant_algo == "BF16" else situation.quant_algo
    names = [row.name for row in situation.release.moe_backends(quant_algo, situation.sm)]
    return names or MISSING


def _moe_backend_support(view: View) -> Support | None:
    """What is known of the given backend for the checkpoint on the GPU."""
    situation, name = view.situation, view.value("moe_config.backend")
    if situation.sm is None or situation.quant_algo is None or not isinstance(name, str):
        return None
    quant_algo = None if situation.quant_algo == "BF16" else situation.quant_algo
    return situation.release.moe_backend_support(name.upper(), quant_algo, situation.sm)


def _moe_backend_state(view: View) -> Any:
    support = _moe_backend_support(view)
    return support.state if support else MISSING


def _moe_backend_evidence(view: View) -> Any:
    support = _moe_backend_support(view)
    return support.evidence if support else MISSING


def _moe_backend_remedy(view: View) -> Any:
    """Which backend to name instead."""
    names, default = _moe_backends(view), view.situation.release.moe_engine_default
    if names is MISSING:
        return f"no source names one; without the key the engine uses {default}"
    return f"known to work there: {', '.join(names)}"


def _moe_backend_engine_default(view: View) -> Any:
    return view.situation.release.moe_engine_default


def _load_balancer_backends(view: View) -> Any:
    return list(view.situation.release.moe_load_balancer_backends)


def _pool_ratio_sum(view: View) -> Any:
    given = view.value("kv_cache_config.pool_ratio")
    if not isinstance(given, Sequence) or isinstance(given, str):
        return MISSING
    known = [number for value in given if (number := as_number(value)) is not None]
    return round(sum(known), 6) if known and len(known) == len(given) else MISSING


DERIVED: dict[str, Callable[[View], Any]] = {
    "cp_type": _cp_type,
    "moe_ranks": _moe_ranks,
    "moe_product": _moe_product,
    "draft_tokens": _draft_tokens,
    "tokens_per_step": _tokens_per_step,
    "draft_model": _draft_model,
    "tree_tokens": _tree_tokens,
    "kv_dtype": _kv_dtype,
    "graph_list": _graph_list,
    "largest_listed_graph": _largest_listed_graph,
    "misplaced_graphs": _misplaced_graphs,
    "generated_graph_list": _generated_graph_list,
    "schedule_of_batch_1": _schedule_value(lambda schedule: schedule.get(1)),
    "schedule_of_smallest_batch": _schedule_value(lambda schedule: schedule[min(schedule)]),
    "schedule_largest": _schedule_value(lambda schedule: max(schedule.values())),
    "moe_backends": _moe_backends,
    "moe_backend_support": _moe_backend_state,
    "moe_backend_evidence": _moe_backend_evidence,
    "moe_backend_remedy": _moe_backend_remedy,
    "moe_backend_engine_default": _moe_backend_engine_default,
    "load_balancer_backends": _load_balancer_backends,
    "pool_ratio_sum": _pool_ratio_sum,
}
