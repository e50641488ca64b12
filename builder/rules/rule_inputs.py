"""Rule inputs: every word that rules and heuristics may ask for, each named once.

A word is a fact of the request, the checkpoint, the GPU or the release (`RuleContext`), or what
follows from facts and engine options. Anything else names an option: `a.b` as it is given,
`effective.a.b` as the engine uses it. `support.x` and `support_matrix.x` are a column of the
release's support matrix for the model, as a state and in its own words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, prod
from typing import Any, Final

from ..facts.release.support import Support
from .context import RuleContext

MISSING: Final[Any] = object()
"""Stands for a value that nobody gave and nobody knows; `None` is a null that somebody wrote."""

_LARGEST = 2**53  # no option comes near it, and up to it int and float are the same number

_TRUE = frozenset({"true", "yes", "on", "y", "t", "1"})
_FALSE = frozenset({"false", "no", "off", "n", "f", "0"})

_SPECULATION = "speculative_config"
_GRAPHS = "cuda_graph_config"
MATRIX = ("support", "support_matrix")


# Facts by their word: the path of an attribute of the context.
_FACTS: Mapping[str, str] = {
    "release": "release.name",
    "role": "role",
    "gpu": "gpu.name",
    "sm": "gpu.sm.value",
    "node_gpus": "gpu.gpus_per_node.value",
    "num_gpus": "num_gpus",
    "isl": "isl",
    "osl": "osl",
    "concurrency": "concurrency",
    "workload_concurrency": "workload_concurrency",
    "itl_slo": "has_itl_slo",
    "monitored": "is_monitored",
    "attention": "architecture.attention",
    "precision": "precision",
    "mtp_layers": "mtp_layers",
    "num_experts": "num_experts",
    "kv_cache_quant_algo": "checkpoint.quantization.kv_cache_quant_algo",
    "moe_backend_engine_default": "release.moe_engine_default",
    "load_balancer_backends": "release.moe_load_balancer_backends",
}


@dataclass(frozen=True)
class RuleInputs:
    """The values of words and options, each looked up once; `known` are those at hand."""

    options: Mapping[str, Any]
    context: RuleContext
    known: dict[str, Any] = field(default_factory=dict)

    def value(self, word: str) -> Any:
        """The value of a word or option, `MISSING` where it is not given or not known."""
        if word not in self.known:
            self.known[word] = self._value(word)
        return self.known[word]

    def number(self, word: str | float) -> float | None:
        """The number that a word or a literal stands for."""
        return as_number(self.value(word) if isinstance(word, str) else word)

    def count(self, word: str) -> int | None:
        """The whole number that a word stands for."""
        value = self.number(word)
        return int(value) if value is not None and value == int(value) else None

    def _value(self, word: str) -> Any:
        if word in _FACTS:
            return self._fact(_FACTS[word])
        if word in _DERIVED:
            return _DERIVED[word](self)
        space, _, name = word.partition(".")
        if space in MATRIX:
            return self._feature(name, space == "support")
        if space == "effective":
            given, release = self._given(name), self.context.release
            use_default = given in (MISSING, None) and name in release.paths
            return release.default(name) if use_default else given
        return self._given(word)

    def _fact(self, path: str) -> Any:
        value: Any = self.context
        for name in path.split("."):
            value = getattr(value, name) if value is not None else None
        return MISSING if value is None else value

    def _feature(self, name: str, state: bool) -> Any:
        """What the release's support matrix says of a feature of this model on this GPU."""
        context = self.context
        if context.architecture is None:
            return MISSING
        sm = context.gpu.sm.value if context.gpu else None
        found = context.release.feature_support(context.architecture.name, name, sm)
        return MISSING if found is None else found.state if state else found.evidence

    def _given(self, path: str) -> Any:
        value: Any = self.options
        for key in path.split("."):
            if not isinstance(value, Mapping) or key not in value:
                return MISSING
            value = value[key]
        return value


def option_of(word: str) -> str | None:
    """The path of the option that a word names; `None` for a fact or what follows from facts."""
    if word in _FACTS or word in _DERIVED or word.partition(".")[0] in MATRIX:
        return None
    return word.removeprefix("effective.")


def words() -> frozenset[str]:
    """Every word that is not the path of an option, features of the support matrix left out."""
    return frozenset((*_FACTS, *_DERIVED))


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


def _cp_type(inputs: RuleInputs) -> Any:
    """The kind of context parallelism; the engine's own default is ULYSSES (mapping.py)."""
    given = inputs.value("cp_config.cp_type")
    return "ULYSSES" if given in (MISSING, None) else given


def _moe_ranks(inputs: RuleInputs) -> Any:
    """The ranks that share the experts (mapping.py: moe_world_size)."""
    split = str(_cp_type(inputs)).upper() != "ULYSSES"
    cp = inputs.count("effective.context_parallel_size") if split else 1
    return _product(inputs.count("tensor_parallel_size"), cp)


def _moe_product(inputs: RuleInputs) -> Any:
    return _product(
        inputs.count("moe_tensor_parallel_size"),
        inputs.count("moe_expert_parallel_size"),
        inputs.count("moe_cluster_parallel_size") or 1,
    )


def _draft_tokens(inputs: RuleInputs) -> Any:
    """Draft tokens per step that the engine really uses, whatever the file meant."""
    if inputs.value(_SPECULATION) in (MISSING, None):
        return 0
    paths = [f"{_SPECULATION}.max_draft_len"]
    if inputs.value(f"{_SPECULATION}.decoding_type") == "MTP":
        spelled = inputs.context.release.option_path("mtp_draft_tokens")
        paths = [f"effective.{spelled}", f"{_SPECULATION}.num_nextn_predict_layers"]
    return next((n for path in paths if (n := inputs.count(path)) is not None), MISSING)


def _tokens_per_step(inputs: RuleInputs) -> Any:
    """Tokens of one decode step with a full batch: each request's own and its draft tokens."""
    drafts = as_number(_draft_tokens(inputs))
    return _product(inputs.count("max_batch_size"), None if drafts is None else 1 + drafts)


def _draft_model_path(inputs: RuleInputs) -> Any:
    names = ("speculative_model", "speculative_model_dir")
    given = (inputs.value(f"{_SPECULATION}.{name}") for name in names)
    return next((value for value in given if value not in (MISSING, None)), MISSING)


def _tree_tokens(inputs: RuleInputs) -> Any:
    """The most draft tokens of a dynamic tree."""
    return _product(
        inputs.count(f"{_SPECULATION}.dynamic_tree_max_topK"),
        inputs.count(f"{_SPECULATION}.max_draft_len"),
    )


def _whole_numbers(values: Any) -> list[int] | None:
    """Whole numbers of a list that holds nothing else."""
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        return None
    numbers = [as_number(value) for value in values]
    whole = [int(number) for number in numbers if number is not None and number == int(number)]
    return whole if len(whole) == len(numbers) else None


def _kv_dtype(inputs: RuleInputs) -> Any:
    """The type of the KV cache, `MISSING` where the checkpoint says it and is not known."""
    given = inputs.value("effective.kv_cache_config.dtype")
    if given not in (MISSING, None) and str(given).lower() != "auto":
        return given
    return inputs.context.kv_dtype or MISSING


def _graph_list(inputs: RuleInputs) -> Any:
    """The sizes of CUDA graphs as the engine sorts them."""
    sizes = _whole_numbers(inputs.value(f"{_GRAPHS}.batch_sizes"))
    return sorted(sizes) if sizes else MISSING


def _largest_listed_graph(inputs: RuleInputs) -> Any:
    sizes = _graph_list(inputs)
    return sizes[-1] if sizes is not MISSING else MISSING


def _misplaced_graphs(inputs: RuleInputs) -> Any:
    """Sizes that do not rise above the one before them."""
    sizes = _whole_numbers(inputs.value(f"{_GRAPHS}.batch_sizes")) or []
    wrong = [size for last, size in pairwise(sizes) if size <= last]
    return wrong or MISSING


def _generated_graph_list(inputs: RuleInputs) -> Any:
    """The sizes that releases up to 1.2.1 make from `max_batch_size` (llm_args.py)."""
    largest = inputs.count(f"{_GRAPHS}.max_batch_size")
    if largest is None or largest < 1:
        return MISSING
    padding = inputs.value(f"effective.{_GRAPHS}.enable_padding")
    sizes = [1, 2, 4, *range(8, 129, 8)] if padding is True else [*range(1, 33), 64, 128]
    sizes += [2**power for power in range(8, largest.bit_length())]
    return sorted({size for size in sizes if size < largest} | {largest})


def _schedule(inputs: RuleInputs) -> dict[int, int]:
    """`draft_len_schedule`: draft tokens by batch size; empty if it cannot be read."""
    given = inputs.value(f"{_SPECULATION}.draft_len_schedule")
    if not isinstance(given, Mapping):
        return {}
    keys, values = _whole_numbers(list(given)), _whole_numbers(list(given.values()))
    return dict(zip(keys, values, strict=True)) if keys and values else {}


def _schedule_value(pick: Callable[[dict[int, int]], int | None]) -> Callable[[RuleInputs], Any]:
    def value(inputs: RuleInputs) -> Any:
        schedule = _schedule(inputs)
        picked = pick(schedule) if schedule else None
        return MISSING if picked is None else picked

    return value


def _moe_backends(inputs: RuleInputs) -> Any:
    """Backends with kernels for the checkpoint on the GPU, best first."""
    context = inputs.context
    if context.gpu is None or context.precision is None:
        return MISSING
    rows = context.release.moe_backends(context.quant_algo, context.gpu.sm.value)
    return [row.name for row in rows] or MISSING


def _moe_backend_support(inputs: RuleInputs) -> Support | None:
    """What is known of the given backend for the checkpoint on the GPU."""
    context, name = inputs.context, inputs.value("moe_config.backend")
    if context.gpu is None or context.precision is None or not isinstance(name, str):
        return None
    sm = context.gpu.sm.value
    return context.release.moe_backend_support(name.upper(), context.quant_algo, sm)


def _moe_backend_remedy(inputs: RuleInputs) -> Any:
    """Which backend to name instead."""
    names, default = _moe_backends(inputs), inputs.context.release.moe_engine_default
    if names is MISSING:
        return f"no source names one; without the key the engine uses {default}"
    return f"known to work there: {', '.join(names)}"


def _pool_ratio_sum(inputs: RuleInputs) -> Any:
    given = inputs.value("kv_cache_config.pool_ratio")
    if not isinstance(given, Sequence) or isinstance(given, str):
        return MISSING
    known = [number for value in given if (number := as_number(value)) is not None]
    return round(sum(known), 6) if known and len(known) == len(given) else MISSING


def _moe(inputs: RuleInputs) -> Any:
    """Whether the model has experts."""
    architecture = inputs.context.architecture
    return MISSING if architecture is None else architecture.experts_field is not None


def _quantized(inputs: RuleInputs) -> Any:
    context = inputs.context
    return MISSING if context.precision is None else context.quant_algo is not None


def _model_type(inputs: RuleInputs) -> Any:
    model = inputs.context.checkpoint
    found = None if model is None else model.config.get("model_type")
    return MISSING if found is None else found


def _longest_context(inputs: RuleInputs) -> Any:
    """Tokens of the longest request that the model was made for."""
    model = inputs.context.checkpoint
    found = None if model is None else model.text_config.get("max_position_embeddings")
    return MISSING if found is None else found


def _speculation(inputs: RuleInputs) -> Any:
    """The method of a separate draft model, or else what the options ask for."""
    return inputs.context.draft_method or inputs.value(f"{_SPECULATION}.decoding_type")


def _request_tokens(inputs: RuleInputs) -> Any:
    """Tokens of one request, prompt and answer."""
    known = inputs.context
    return MISSING if known.isl is None or known.osl is None else known.isl + known.osl


def _requests_per_rank(inputs: RuleInputs) -> Any:
    """Requests at once of each group of GPUs that shares the attention."""
    concurrency, size = inputs.context.concurrency, inputs.count("effective.tensor_parallel_size")
    if concurrency is None or size is None:
        return MISSING
    return ceil(concurrency / (size if inputs.value("attention_dp") is True else 1))


def _batch_tokens(inputs: RuleInputs) -> Any:
    """Tokens of one decode step with a full batch, which may be the engine's own.

    Draft tokens that nobody set yet count as none.
    """
    drafts = as_number(_draft_tokens(inputs)) or 0
    return _product(inputs.count("effective.max_batch_size") or None, 1 + drafts)


def _prompt_tokens(inputs: RuleInputs) -> Any:
    """Tokens of the prompts of a full batch."""
    return _product(inputs.count("effective.max_batch_size") or None, inputs.context.isl)


_DERIVED: Mapping[str, Callable[[RuleInputs], Any]] = {
    "moe": _moe,
    "quantized": _quantized,
    "model_type": _model_type,
    "longest_context": _longest_context,
    "speculation": _speculation,
    "attention_dp": lambda inputs: inputs.value("effective.enable_attention_dp"),
    "request_tokens": _request_tokens,
    "requests_per_rank": _requests_per_rank,
    "batch_tokens": _batch_tokens,
    "prompt_tokens": _prompt_tokens,
    "cp_type": _cp_type,
    "moe_ranks": _moe_ranks,
    "moe_product": _moe_product,
    "draft_tokens": _draft_tokens,
    "tokens_per_step": _tokens_per_step,
    "draft_model_path": _draft_model_path,
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
    "moe_backend_support": lambda inputs: getattr(_moe_backend_support(inputs), "state", MISSING),
    "moe_backend_evidence": lambda inputs: getattr(
        _moe_backend_support(inputs), "evidence", MISSING
    ),
    "moe_backend_remedy": _moe_backend_remedy,
    "pool_ratio_sum": _pool_ratio_sum,
}
