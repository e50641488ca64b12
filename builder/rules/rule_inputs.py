"""Rule inputs: the value of every word that rules and heuristics use.

A word is a fact of the request, the checkpoint, the GPU or the release (`RuleContext`), or is
derived from facts and engine options. Any other word names an option: `a.b` as it is set,
`effective.a.b` as the engine uses it. `support.x` and `support_matrix.x` are a column of the
release's support matrix for the model, as a state and as the original text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, prod
from typing import Any, Final

from ..documents import Variable
from ..facts.release import support
from ..facts.release.support import Support
from .context import RuleContext
from .options import FALSE, TRUE

MISSING: Final[Any] = object()
"""A value that is neither set nor known; `None` is a null in the file."""

_LARGEST = 2**53  # no option comes near it, and up to it int and float are the same number

_SPECULATION = "speculative_config"
_GRAPHS = "cuda_graph_config"
MATRIX = ("support", "support_matrix")

# Kinds of position scaling whose factor max_position_embeddings already holds (model_engine.py).
_CONTEXT_INCLUDES_SCALING = ("su", "longrope", "llama3", "yarn")


# Facts by their word: the path in the context. Lengths are tokens.
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
    "arithmetic": "checkpoint.quantization.arithmetic",
    "quantized": "is_quantized",
    "moe": "has_experts",
    "mtp_layers": "mtp_layers",
    "num_experts": "num_experts",
    "model_name": "checkpoint.name",
    "model_type": "checkpoint.config.model_type",
    "num_attention_heads": "checkpoint.text_config.num_attention_heads",
    "expert_width": "checkpoint.text_config.moe_intermediate_size",
    "gpu_precisions": "gpu.precisions.value",
    "longest_context": "checkpoint.text_config.max_position_embeddings",
    "num_layers": "checkpoint.text_config.num_hidden_layers",
    "hidden_size": "checkpoint.text_config.hidden_size",
    "kv_cache_quant_algo": "checkpoint.quantization.kv_cache_quant_algo",
    "moe_backend_engine_default": "release.moe_engine_default",
    "load_balancer_backends": "release.moe_load_balancer_backends",
}


@dataclass(frozen=True)
class RuleInputs:
    """The values of words and options, each looked up once and then kept in `known`."""

    options: Mapping[str, Any]
    context: RuleContext
    known: dict[str, Any] = field(default_factory=dict)

    def value(self, word: str) -> Any:
        """The value of a word or option, `MISSING` if it is not set or not known."""
        if word not in self.known:
            self.known[word] = self._value(word)
        return self.known[word]

    def number(self, word: str | float) -> float | None:
        """The number of a word or a literal."""
        return as_number(self.value(word) if isinstance(word, str) else word)

    def count(self, word: str) -> int | None:
        """The whole number of a word."""
        value = self.number(word)
        return int(value) if value is not None and value == int(value) else None

    def _value(self, word: str) -> Any:
        space, _, name = word.partition(".")
        if word in _FACTS or space in MATRIX:
            known = self.context.known
            if word not in known:
                is_fact = word in _FACTS
                found = self._fact(_FACTS[word]) if is_fact else self._feature(space, name)
                known[word] = MISSING if found is None else found
            return known[word]
        if word in _DERIVED:
            found = _DERIVED[word](self)
            return MISSING if found is None else found
        return self._effective(name) if space == "effective" else self._given(word)

    def _fact(self, path: str) -> Any:
        value: Any = self.context
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else getattr(value, name)
            if value is None:
                break
        return value

    def _feature(self, space: str, name: str) -> str | None:
        """The entry of the release's support matrix for a feature of this model on this GPU."""
        context = self.context
        if context.architecture is None:
            return None
        sm = context.gpu.sm.value if context.gpu else None
        found = support.feature(context.release, context.architecture.name, name, sm)
        return getattr(found, "state" if space == "support" else "evidence", None)

    def _effective(self, path: str) -> Any:
        """What the engine uses: its default for an option that is not set."""
        given, release = self._given(path), self.context.release
        spelled = release.option_path(path)
        use_default = given in (MISSING, None) and spelled in release.paths
        return release.default(spelled) if use_default else given

    def _given(self, path: str) -> Any:
        value: Any = self.options
        for key in self.context.release.option_path(path).split("."):
            if not isinstance(value, Mapping) or key not in value:
                return MISSING
            value = value[key]
        return value


def option_of(word: str) -> str | None:
    """The path of the option that a word names; `None` for a fact or a derived value."""
    if word in _FACTS or word in _DERIVED or word.partition(".")[0] in MATRIX:
        return None
    return word.removeprefix("effective.")


def is_fact(word: str) -> bool:
    """Whether the value of a word does not depend on options."""
    return word in _FACTS or word.partition(".")[0] in MATRIX


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
    return word in TRUE if word in TRUE | FALSE else None


def _numbers(values: Any) -> list[float]:
    if not isinstance(values, Sequence) or isinstance(values, str):
        return []
    numbers = [number for value in values if (number := as_number(value)) is not None]
    return numbers if len(numbers) == len(values) else []


def _whole_numbers(values: Any) -> list[int]:
    numbers = _numbers(values)
    return [int(n) for n in numbers] if all(n == int(n) for n in numbers) else []


# Values derived from facts and options; `None` if unknown.


def _product(*factors: float | None) -> float | None:
    known = [factor for factor in factors if factor is not None]
    return prod(known) if len(known) == len(factors) else None


def _cp_type(inputs: RuleInputs) -> Any:
    """The kind of context parallelism; the engine's own default is ULYSSES (mapping.py)."""
    given = inputs.value("cp_config.cp_type")
    return "ULYSSES" if given in (MISSING, None) else given


def _moe_ranks(inputs: RuleInputs) -> float | None:
    """The ranks that share the experts (mapping.py: moe_world_size)."""
    split = str(_cp_type(inputs)).upper() != "ULYSSES"
    cp = inputs.count("effective.context_parallel_size") if split else 1
    return _product(inputs.count("tensor_parallel_size"), cp)


def _moe_product(inputs: RuleInputs) -> float | None:
    sizes = [inputs.count(f"moe_{part}_parallel_size") for part in ("tensor", "expert")]
    return _product(*sizes, inputs.count("moe_cluster_parallel_size") or 1)


def _draft_tokens(inputs: RuleInputs) -> int | None:
    """Draft tokens per step that the engine uses."""
    if inputs.value(_SPECULATION) in (MISSING, None):
        return 0
    paths = [f"{_SPECULATION}.max_draft_len"]
    if inputs.value(f"{_SPECULATION}.decoding_type") == inputs.context.release.engine.draft_method:
        spelled = inputs.context.release.option_path("mtp_draft_tokens")
        paths = [f"effective.{spelled}", f"{_SPECULATION}.num_nextn_predict_layers"]
    return next((n for path in paths if (n := inputs.count(path)) is not None), None)


def draft_tokens_path(options: Mapping[str, Any]) -> str:
    """The path of the option for draft tokens per step."""
    given = options.get(_SPECULATION)
    names = ("num_nextn_predict_layers", "max_draft_len")
    found = (name for name in names if isinstance(given, Mapping) and name in given)
    return ".".join((_SPECULATION, *list(found)[:1]))


def _tokens_per_step(inputs: RuleInputs) -> float | None:
    """Tokens of one decode step with a full batch: each request's own and its draft tokens."""
    drafts = _draft_tokens(inputs)
    return _product(inputs.count("max_batch_size"), None if drafts is None else 1 + drafts)


def _draft_model_path(inputs: RuleInputs) -> Any:
    names = ("speculative_model", "speculative_model_dir")
    given = (inputs.value(f"{_SPECULATION}.{name}") for name in names)
    return next((value for value in given if value not in (MISSING, None)), None)


def _tree_tokens(inputs: RuleInputs) -> float | None:
    names = ("dynamic_tree_max_topK", "max_draft_len")
    return _product(*(inputs.count(f"{_SPECULATION}.{name}") for name in names))


def _kv_dtype(inputs: RuleInputs) -> Any:
    """The type of the KV cache; `None` if it depends on an unknown checkpoint."""
    given = inputs.value("effective.kv_cache_config.dtype")
    if given not in (MISSING, None) and str(given).lower() != "auto":
        return given
    return inputs.context.kv_dtype


def _graph_sizes(inputs: RuleInputs) -> list[int]:
    return _whole_numbers(inputs.value(f"{_GRAPHS}.batch_sizes"))


def _misplaced_graphs(inputs: RuleInputs) -> list[int] | None:
    """Sizes that do not rise above the one before them."""
    return [size for last, size in pairwise(_graph_sizes(inputs)) if size <= last] or None


def _generated_graph_list(inputs: RuleInputs) -> list[int] | None:
    """The sizes that releases up to 1.2.1 make from `max_batch_size` (llm_args.py)."""
    largest = inputs.count(f"{_GRAPHS}.max_batch_size")
    if largest is None or largest < 1:
        return None
    padding = inputs.value(f"effective.{_GRAPHS}.enable_padding")
    sizes = [1, 2, 4, *range(8, 129, 8)] if padding is True else [*range(1, 33), 64, 128]
    sizes += [2**power for power in range(8, largest.bit_length())]
    return sorted({size for size in sizes if size < largest} | {largest})


def _schedule(inputs: RuleInputs) -> dict[int, int]:
    """`draft_len_schedule`: draft tokens by batch size, rising; empty if it cannot be read."""
    given = inputs.value(f"{_SPECULATION}.draft_len_schedule")
    if not isinstance(given, Mapping):
        return {}
    keys, values = _whole_numbers(list(given)), _whole_numbers(list(given.values()))
    return dict(sorted(dict(zip(keys, values, strict=True)).items())) if keys and values else {}


def _pool_ratio_sum(inputs: RuleInputs) -> float | None:
    ratios = _numbers(inputs.value("kv_cache_config.pool_ratio"))
    return round(sum(ratios), 6) if ratios else None


def _speculation(inputs: RuleInputs) -> Any:
    """The method of a separate draft model, or else that of the options."""
    return inputs.context.draft_method or inputs.value(f"{_SPECULATION}.decoding_type")


def _request_tokens(inputs: RuleInputs) -> int | None:
    context = inputs.context
    return None if context.isl is None or context.osl is None else context.isl + context.osl


def _model_seq_len(inputs: RuleInputs) -> int | None:
    """The longest context that the engine takes from the model's config (_init_max_seq_len)."""
    longest = inputs.count("longest_context")
    checkpoint = inputs.context.checkpoint
    if longest is None or checkpoint is None:
        return None
    config = checkpoint.text_config
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(scaling, Mapping):
        return None
    kind = scaling.get("type") or scaling.get("rope_type")
    factor = 1 if kind in _CONTEXT_INCLUDES_SCALING else as_number(scaling.get("factor"))
    return int(longest * (factor or 1))


def _batch_tokens(inputs: RuleInputs) -> float | None:
    """Tokens of one decode step with a full batch, which may be the engine's own.

    Draft tokens that are not set yet count as zero.
    """
    drafts = _draft_tokens(inputs) or 0
    return _product(inputs.count("effective.max_batch_size") or None, 1 + drafts)


def _checkpoint_lora_module(inputs: RuleInputs) -> str | None:
    """The first LoRA target with its name in checkpoints instead of that in the engine."""
    names = inputs.value("lora_config.lora_target_modules")
    rows = names if isinstance(names, list) else ()
    modules = (str(name) for name in rows if re.fullmatch(r"(?!mamba)\w+_proj", str(name)))
    return next(modules, None)


# Of a model on its GPUs: how ranks share it, what its weights take, and MoE backends.

_LEAST_ROOM_GIB = 2  # of a GPU next to the weights; no published configuration leaves less

# Of every engine, and of engines that have them.
_SIZES = ("tensor_parallel_size", "pipeline_parallel_size")
_SIZES_OF_SOME = ("context_parallel_size", "prefill_context_parallel_size", "data_parallel_size")


def _world_size(inputs: RuleInputs) -> float | None:
    """The GPUs of one server (mapping.py: world_size), with all copies of the attention."""
    options = inputs.context.release.top_level
    sizes = [*_SIZES, *(name for name in _SIZES_OF_SOME if name in options)]
    return _product(*(inputs.count(f"effective.{name}") for name in sizes))


def _requests_per_rank(inputs: RuleInputs) -> int | None:
    """Requests at once of each group of GPUs that shares the attention."""
    concurrency, size = inputs.context.concurrency, inputs.count("effective.tensor_parallel_size")
    if concurrency is None or size is None:
        return None
    if (copies := inputs.count("effective.data_parallel_size")) is not None:
        return ceil(concurrency / max(1, copies))
    return ceil(concurrency / (size if inputs.value("attention_dp") is True else 1))


def _attention_dp(inputs: RuleInputs) -> Any:
    """Whether whole requests stay on one rank: by a switch, or by copies of the attention."""
    copies = inputs.count("effective.data_parallel_size")
    return inputs.value("effective.enable_attention_dp") if copies is None else copies > 1


def _head_ranks(inputs: RuleInputs) -> int | None:
    """The ranks that share the attention heads; with attention DP each has all of them."""
    dp = inputs.value("attention_dp") is True
    return 1 if dp else inputs.count("effective.tensor_parallel_size")


def _head_sizes(inputs: RuleInputs) -> list[int] | None:
    heads = inputs.count("num_attention_heads") or 0
    return [size for size in range(1, heads + 1) if heads % size == 0] or None


def _expert_width_ranks(inputs: RuleInputs) -> int | None:
    """The ranks that share each expert's width."""
    given = inputs.count("moe_tensor_parallel_size") or 0
    ranks, split = inputs.count("moe_ranks"), inputs.count("moe_expert_parallel_size") or 1
    if given > 0 or ranks is None:
        return given or None
    return ranks // split if split > 0 and ranks % split == 0 else None


def _model_weights_gib(inputs: RuleInputs) -> float | None:
    """The weights of the whole model, without those of MTP layers, which may be left out."""
    model = inputs.context.checkpoint
    if model is None:
        return None
    return round(sum(group.nbytes for group in model.loaded_groups if not group.mtp) / 2**30, 1)


def _least_weights_gib(inputs: RuleInputs) -> float | None:
    """The weights of each GPU, if every tensor were split over all of them."""
    total, world = inputs.number("model_weights_gib"), inputs.number("world_size")
    return None if total is None or not world else round(total / world, 1)


def _least_gpus(inputs: RuleInputs) -> int | None:
    total, each = inputs.number("model_weights_gib"), inputs.number("gpu_memory_gib")
    return None if total is None or not each else ceil(total / each)


def _roomy_gpus(inputs: RuleInputs) -> int | None:
    """The fewest GPUs that also have room for the driver, activations and the KV cache."""
    total, each = inputs.number("model_weights_gib"), inputs.number("gpu_memory_gib")
    if total is None or each is None or each <= _LEAST_ROOM_GIB:
        return None
    return ceil(total / (each - _LEAST_ROOM_GIB))


def _most_room_gib(inputs: RuleInputs) -> float | None:
    """The most memory of a GPU that the weights leave, if they fit."""
    each, memory = inputs.number("least_weights_gib"), inputs.number("gpu_memory_gib")
    return None if each is None or memory is None or each > memory else round(memory - each, 1)


def _cache_tokens(inputs: RuleInputs) -> int | None:
    """The most tokens that the KV cache of one rank may hold, without what activations, graphs and
    the driver take. Unknown for several copies of the attention."""
    context = inputs.context
    model, gpu, engine = context.checkpoint, context.gpu, context.release.engine
    share = inputs.number("effective.kv_cache_config.free_gpu_memory_fraction")
    sizes = [inputs.count(f"effective.{name}") for name in _SIZES]
    copies = inputs.count("effective.data_parallel_size") or 1
    if model is None or gpu is None or share is None or not all(sizes) or copies > 1:
        return None
    from ..facts import memory  # most files that are checked name no model

    size, stages = (number or 1 for number in sizes)
    split = memory.Sharding(size, stages, inputs.value("attention_dp") is True)
    taken = memory.weights_bytes(model, split, with_mtp=False) / memory.GIB
    total, dtype = gpu.memory_gib, inputs.value("effective.kv_cache_config.dtype")
    room = (total - taken) * share if engine.memory_share == "left" else total * share - taken
    algo = model.quantization.kv_cache_quant_algo
    width = memory.kv_dtype_bytes("auto" if dtype in (MISSING, None) else str(dtype), algo)
    return int(max(0.0, room) * memory.GIB // memory.kv_bytes_per_token(model, split, width, 0))


def _nodes(inputs: RuleInputs) -> int | None:
    gpus, size = inputs.count("num_gpus"), inputs.count("node_gpus")
    return None if gpus is None or not size else ceil(gpus / size)


def _weights(inputs: RuleInputs, part: str) -> Any:
    """What is known of the format of the weights in this release, on the GPU if it is known."""
    context = inputs.context
    if context.checkpoint is None:
        return None
    # Most files that are checked name no model.
    from ..facts.release import weight_formats

    sm = context.gpu.sm.value if context.gpu else None
    query = context.release, context.checkpoint.quantization, bool(context.has_experts), sm
    if part == "remedy":
        return weight_formats.remedy(*query)
    return getattr(weight_formats.reading(*query), part, None)


def _moe_backends(inputs: RuleInputs) -> list[str] | None:
    """Backends with kernels for the checkpoint on the GPU, best first."""
    context = inputs.context
    if context.gpu is None or context.precision is None:
        return None
    rows = support.moe_backends(context.release, context.quant_algo, context.gpu.sm.value)
    return [row["backend"] for row in rows] or None


def _moe_backend_support(inputs: RuleInputs) -> Support | None:
    context, name = inputs.context, inputs.value("moe_config.backend")
    if context.gpu is None or not isinstance(name, str) or isinstance(name, Variable):
        return None
    sm = context.gpu.sm.value
    if context.precision is None:
        return support.moe_backend_on_gpu(context.release, name.upper(), sm)
    return support.moe_backend(context.release, name.upper(), context.quant_algo, sm)


def _moe_backend_remedy(inputs: RuleInputs) -> str:
    if names := _moe_backends(inputs):
        return f"known to work there: {', '.join(names)}"
    default = inputs.context.release.moe_engine_default
    return f"no source names one; without the key the engine uses {default}"


def _precision_backends(inputs: RuleInputs) -> list[str] | None:
    """Backends that sources name for the precision on some GPU, if they name the chosen one too."""
    context, given = inputs.context, inputs.value("moe_config.backend")
    rows = support.moe_backends_by_precision(context.release)
    if not isinstance(given, str) or not any(given.upper() in names for names in rows.values()):
        return None
    return rows.get(str(context.precision))


_DERIVED: Mapping[str, Callable[[RuleInputs], Any]] = {
    "version": lambda inputs: inputs.context.release.judged_name,
    "speculation": _speculation,
    "request_tokens": _request_tokens,
    "model_seq_len": _model_seq_len,
    "batch_sequence_tokens": lambda inputs: _product(
        inputs.count("max_batch_size"), inputs.count("max_seq_len")
    ),
    "batch_tokens": _batch_tokens,
    "prompt_tokens": lambda inputs: _product(
        inputs.count("effective.max_batch_size") or None, inputs.context.isl
    ),
    "cp_type": _cp_type,
    "moe_ranks": _moe_ranks,
    "moe_product": _moe_product,
    "weights_format": lambda inputs: _weights(inputs, "weights"),
    "weights_support": lambda inputs: _weights(inputs, "state"),
    "weights_evidence": lambda inputs: _weights(inputs, "evidence"),
    "weights_remedy": lambda inputs: _weights(inputs, "remedy"),
    "attention_dp": _attention_dp,
    "requests_per_rank": _requests_per_rank,
    "world_size": _world_size,
    "head_ranks": _head_ranks,
    "head_sizes": _head_sizes,
    "expert_width_ranks": _expert_width_ranks,
    "model_weights_gib": _model_weights_gib,
    "least_weights_gib": _least_weights_gib,
    "least_gpus": _least_gpus,
    "roomy_gpus": _roomy_gpus,
    "gpu_memory_gib": lambda inputs: (
        round(inputs.context.gpu.memory_gib, 1) if inputs.context.gpu else None
    ),
    "most_room_gib": _most_room_gib,
    "cache_tokens": _cache_tokens,
    "nodes": _nodes,
    "moe_backends": _moe_backends,
    "precision_backends": _precision_backends,
    "moe_backend_support": lambda inputs: getattr(_moe_backend_support(inputs), "state", None),
    "moe_backend_evidence": lambda inputs: getattr(_moe_backend_support(inputs), "evidence", None),
    "moe_backend_remedy": _moe_backend_remedy,
    "draft_tokens": _draft_tokens,
    "tokens_per_step": _tokens_per_step,
    "draft_model_path": _draft_model_path,
    "tree_tokens": _tree_tokens,
    "kv_dtype": _kv_dtype,
    "graph_list": lambda inputs: sorted(_graph_sizes(inputs)) or None,
    "largest_listed_graph": lambda inputs: max(_graph_sizes(inputs), default=None),
    "misplaced_graphs": _misplaced_graphs,
    "generated_graph_list": _generated_graph_list,
    "schedule_of_batch_1": lambda inputs: _schedule(inputs).get(1),
    "schedule_of_smallest_batch": lambda inputs: next(iter(_schedule(inputs).values()), None),
    "schedule_smallest": lambda inputs: min(_schedule(inputs).values(), default=None),
    "schedule_largest": lambda inputs: max(_schedule(inputs).values(), default=None),
    "checkpoint_lora_module": _checkpoint_lora_module,
    "pool_ratio_sum": _pool_ratio_sum,
    "partition_stages": lambda inputs: len(_whole_numbers(inputs.value("pp_partition"))) or None,
    "partition_layers": lambda inputs: sum(_whole_numbers(inputs.value("pp_partition"))) or None,
}
