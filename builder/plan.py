"""Decisions: deployment and facts in, every engine value with its reason out. Pure.

A value is decided in this order: what the user set in `engine_config`, what a published deployment
of the same checkpoint on the same GPUs used, the rule. Each rule is one function of `RULES`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from .checkpoint import Checkpoint
from .deployment import Deployment
from .errors import BadInput, Problem
from .hardware import Gpu
from .memory import Budget, Sharding, budget
from .release import Release
from .results import Published, leaves

Evidence = Literal["measured", "documented", "derived", "assumed", "override"]

MTP_DRAFT_TOKENS = "mtp_draft_tokens"  # a release spells this its own way

_EVERY_GRAPH_UP_TO = 16

# Draft tokens without and with attention data parallelism.
_DRAFT_TOKENS: dict[bool, tuple[int, str]] = {
    False: (
        3,
        "TensorRT-LLM tech blog 1: 111, 198, 250, 253, 245 and 239 tokens/s with 0 to 5 draft "
        "tokens, DeepSeek-R1 on 8 B200; 53 of 54 published configurations",
    ),
    True: (1, "21 of 21 published TensorRT-LLM configurations with attention data parallelism"),
}

# What a user may set in the place of a rule's option; the engine refuses or ignores both together.
_INSTEAD: dict[str, tuple[str, ...]] = {
    "cuda_graph_config.batch_sizes": ("cuda_graph_config.max_batch_size",),
    MTP_DRAFT_TOKENS: (
        "speculative_config.max_draft_len",
        "speculative_config.num_nextn_predict_layers",
    ),
}

# Options of published deployments that are not taken over, and why.
_NOT_TAKEN: dict[str, str] = {
    "trust_remote_code": (
        "Off unless engine_config asks for it: it runs Python code from the checkpoint on the "
        "server, and the engine has this architecture built in."
    ),
}

_OVERRIDDEN = "Set otherwise in engine_config."


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known, gathered before anything is decided."""

    checkpoint: Checkpoint
    gpu: Gpu
    release: Release
    published: tuple[Published, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """One engine value. `path` is an option path, or a word that the release spells."""

    path: str
    value: Any
    reason: str
    evidence: Evidence
    source: str


@dataclass(frozen=True, slots=True)
class Difference:
    """A published option that this plan does not use."""

    path: str
    published: Any
    planned: Any
    reason: str
    source: str


@dataclass(frozen=True, slots=True)
class Plan:
    """All decisions, in the order in which they were made, and what they cost in memory.

    `flags` are those on the server's command line; all other settings live in the option file.
    """

    deployment: Deployment
    facts: Facts
    decisions: tuple[Decision, ...]
    flags: tuple[Decision, ...]
    differences: tuple[Difference, ...]
    budget: Budget
    warnings: tuple[Problem, ...]


@dataclass
class _Case:
    """One plan in the making."""

    deployment: Deployment
    facts: Facts
    overrides: Mapping[str, Any]
    decisions: dict[str, Decision] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)

    @property
    def published(self) -> list[Published]:
        """Published deployments of this shape that were measured at this concurrency."""
        concurrency = self.deployment.workload.concurrency
        return [row for row in self.facts.published if concurrency <= row.max_concurrency]

    def decide(self, path: str, value: Any, reason: str, evidence: Evidence, source: str) -> None:
        """Take the user's value, the published one, or the rule's.

        What is derived from the request stays; a published value only confirms it.
        """
        spelled = self.facts.release.spell(path)
        if owner := _overriding(spelled, self.overrides):
            if owner == spelled:
                text = f"Set in engine_config. The rule would give {json.dumps(value)}: {reason}"
                given = self.overrides[owner]
                self.decisions[path] = Decision(path, given, text, "override", "deployment")
            return
        if any(other in self.overrides for other in _INSTEAD.get(path, ())):
            return
        for row in self.published:
            if path not in row.options or path in self.refused:
                continue
            published = row.options[path]
            if published != value:
                if evidence == "derived":
                    continue
                rule = json.dumps(value)
                reason = f"The published deployment uses it; the rule would give {rule}."
            value, evidence, source = published, "documented", f"{row.source}; {source}"
        self.decisions[path] = Decision(path, value, reason, evidence, source)

    def given(self, path: str) -> Any:
        """What is decided or set for a path so far, or `None`."""
        if path in self.decisions:
            return self.decisions[path].value
        return self.overrides.get(self.facts.release.spell(path))

    def value(self, path: str) -> Any:
        """What the engine will use for an option: what is given, or its own default."""
        given = self.given(path)
        return self.facts.release.default(path) if given is None else given


def _overriding(path: str, overrides: Mapping[str, Any]) -> str | None:
    """The override that sets `path` itself or a mapping above it."""
    while path:
        if path in overrides:
            return path
        path = path.rpartition(".")[0]
    return None


def plan(deployment: Deployment, facts: Facts) -> Plan:
    """Decide every engine value.

    Raises `BadInput` with the numbers if the deployment is impossible.
    """
    overrides = leaves(facts.release.normalise(deployment.engine_config))
    case = _Case(deployment, facts, overrides)
    for rule in RULES:
        rule(case)
    if case.problems:
        raise BadInput(case.problems)
    _add_remaining_overrides(case)
    result = _budget(case)
    _check_memory(case, result)
    if case.problems:
        raise BadInput(case.problems)
    return Plan(
        deployment,
        facts,
        tuple(case.decisions.values()),
        tuple(_server_flags(facts)),
        tuple(_differences(case)),
        result,
        tuple(case.warnings),
    )


def _precision(case: _Case) -> None:
    """The GPU must have the arithmetic that the checkpoint is stored for."""
    precision, gpu = case.facts.checkpoint.precision, case.facts.gpu
    if precision not in gpu.precisions:
        what = f"{gpu.name} has no {precision} arithmetic, which {case.deployment.checkpoint} needs"
        remedy = f"use a checkpoint in {', '.join(gpu.precisions)}, or a GPU that has {precision}"
        case.problems.append(Problem("hardware.gpu", what, remedy))


def _architecture(case: _Case) -> None:
    """The release must know the model."""
    name, release = case.facts.checkpoint.architecture.name, case.facts.release
    if reason := release.unsupported(name):
        what = f"release {release.name} does not serve {name}: {reason}"
        case.problems.append(Problem("engine.release", what, "choose a later release"))


def _parallelism(case: _Case) -> None:
    """Tensor parallelism over all GPUs of the node."""
    gpus, gpu = case.deployment.hardware.num_gpus, case.facts.gpu
    case.decide(
        "tensor_parallel_size",
        gpus,
        "Every layer is split over all GPUs, which gives the lowest latency within one node.",
        "derived",
        f"hardware.num_gpus {gpus}",
    )
    if gpus > gpu.gpus_per_node:
        what = f"{gpus} GPUs need more than one node: a {gpu.name} node has {gpu.gpus_per_node}"
        remedy = f"give at most {gpu.gpus_per_node}; several nodes are not rendered yet"
        case.problems.append(Problem("hardware.num_gpus", what, remedy))
    size, pipeline = case.value("tensor_parallel_size"), case.value("pipeline_parallel_size")
    if size < 1 or pipeline < 1 or size * pipeline != gpus:
        what = f"{size} x pipeline_parallel_size {pipeline} uses {size * pipeline} GPUs"
        where = "engine_config.tensor_parallel_size"
        case.problems.append(Problem(where, what, f"hardware.num_gpus is {gpus}"))
    if size >= 1:
        _check_division(case, size)


# What tensor parallelism splits; key-value heads may also be duplicated evenly.
_SPLIT: dict[str, Callable[[int, int], bool]] = {
    "num_attention_heads": lambda value, size: value % size == 0,
    "num_key_value_heads": lambda value, size: value % size == 0 or size % value == 0,
    "moe_intermediate_size": lambda value, size: value % size == 0,
    "intermediate_size": lambda value, size: value % size == 0,
}


def _check_division(case: _Case, size: int) -> None:
    config = case.facts.checkpoint.text_config
    wrong = [name for name in _SPLIT if name in config and not _SPLIT[name](config[name], size)]
    if wrong:
        overridden = "tensor_parallel_size" in case.overrides
        where = "engine_config.tensor_parallel_size" if overridden else "hardware.num_gpus"
        listing = ", ".join(f"{name} {config[name]}" for name in wrong)
        limit = case.facts.gpu.gpus_per_node
        sizes = [
            n for n in range(1, limit + 1) if all(_SPLIT[name](config[name], n) for name in wrong)
        ]
        what = f"tensor parallelism over {size} GPUs does not divide {listing}"
        remedy = f"give one of {', '.join(map(str, sizes))}"
        case.problems.append(Problem(where, what, remedy))


def _limits(case: _Case) -> None:
    """Batch size and token limits from the workload."""
    workload, config = case.deployment.workload, case.facts.checkpoint.text_config
    case.decide(
        "max_batch_size",
        workload.concurrency,
        "As many requests run at once as the workload has; more would only cost memory.",
        "derived",
        f"workload.concurrency {workload.concurrency}",
    )
    length, longest = workload.isl + workload.osl, config.get("max_position_embeddings")
    if longest is not None and length > longest:
        what = f"isl + osl is {length} tokens, the model's longest context is {longest}"
        case.problems.append(Problem("workload", what, "shorten isl or osl"))
    step = case.facts.release.default("max_num_tokens")
    if workload.isl > step:
        case.decide(
            "max_num_tokens",
            -(-workload.isl // 1024) * 1024,
            f"One prompt must fit into one step: the default {step} would reject it.",
            "derived",
            f"workload.isl {workload.isl}",
        )


def _check_limits(case: _Case) -> None:
    """Limits that the user set must let the workload through."""
    workload = case.deployment.workload
    length, longest = workload.isl + workload.osl, case.given("max_seq_len")
    problems = []
    if case.value("max_batch_size") < 1:
        problems.append(("max_batch_size", case.value("max_batch_size"), "give at least 1"))
    if case.value("max_num_tokens") < workload.isl and not case.value("enable_chunked_prefill"):
        remedy = f"give at least workload.isl {workload.isl}, or set enable_chunked_prefill"
        problems.append(("max_num_tokens", case.value("max_num_tokens"), remedy))
    if longest is not None and longest < length:
        problems.append(("max_seq_len", longest, f"give at least isl + osl, {length}"))
    for path, value, remedy in problems:
        where, what = f"engine_config.{path}", f"{value} is too small for the workload"
        case.problems.append(Problem(where, what, remedy))


def _cuda_graphs(case: _Case) -> None:
    """A captured graph for every small batch, padding between powers of two above."""
    largest = case.value("max_batch_size")
    case.decide(
        "cuda_graph_config.enable_padding",
        True,
        "A batch without a graph of its own is padded up to the next one instead of running "
        "without a graph.",
        "derived",
        "TensorRT-LLM: cuda_graph_config.enable_padding",
    )
    sizes = [*range(1, min(largest, _EVERY_GRAPH_UP_TO) + 1)]
    size = 2 * _EVERY_GRAPH_UP_TO
    while size < largest:
        sizes.append(size)
        size *= 2
    if largest > _EVERY_GRAPH_UP_TO:
        sizes.append(largest)
    case.decide(
        "cuda_graph_config.batch_sizes",
        sizes,
        f"Every batch of up to {_EVERY_GRAPH_UP_TO} requests, where latency matters most, gets an "
        f"exact graph; larger ones are padded to powers of two, up to max_batch_size {largest}.",
        "derived",
        "max_batch_size",
    )


def _kv_cache(case: _Case) -> None:
    """An FP8 KV cache for quantized checkpoints, and its share of the memory."""
    quantization = case.facts.checkpoint.quantization
    source = "515 of 531 published configurations, most of them without scales in the checkpoint"
    if quantization.kv_cache_quant_algo == "FP8":
        source = f"{quantization.source}: kv_cache_quant_algo FP8"
    if quantization.quant_algo:
        case.decide(
            "kv_cache_config.dtype",
            "fp8",
            "FP8 halves the bytes per token against BF16, so twice as many tokens fit.",
            "documented",
            source,
        )
    case.decide(
        "kv_cache_config.free_gpu_memory_fraction",
        0.8,
        "The share of what is left after weights, graphs and the activation peak; the rest is "
        "headroom for workspaces that the engine's dry run does not see.",
        "assumed",
        "the most frequent value of published configurations, 229 of 875",
    )


def _moe(case: _Case) -> None:
    """The MoE kernels for this quantization on this GPU."""
    checkpoint, gpu, release = case.facts.checkpoint, case.facts.gpu, case.facts.release
    if checkpoint.architecture.experts_field is None:
        return
    known = release.moe_backends(checkpoint.quantization.quant_algo, gpu.sm)
    if not known:
        return  # `_precision` refuses what no row covers
    path, names = "moe_config.backend", [backend.name for backend in known]
    for row in case.published:
        if (used := row.options.get(path)) is not None and used not in names:
            case.refused[path] = (
                f"{used} is not made for {checkpoint.precision} on {gpu.name}, whose compute "
                f"capability is {gpu.sm / 10}; known to work there: {', '.join(names)}."
            )
    case.decide(
        path,
        names[0],
        f"The first choice of those with kernels for {checkpoint.precision} on {gpu.name}; without "
        f"this key the engine uses {release.table['moe']['when_missing']}.",
        known[0].evidence,
        known[0].source,
    )


def _speculation(case: _Case) -> None:
    """Speculative decoding with the checkpoint's own MTP layer."""
    layers = case.facts.checkpoint.mtp_layers
    if not layers:
        return
    config = case.facts.checkpoint.architecture.mtp_field
    case.decide(
        "speculative_config.decoding_type",
        "MTP",
        "The checkpoint carries a multi-token-prediction layer: several tokens per step at the "
        "same output.",
        "documented",
        f"config.json: {config} {layers}",
    )
    if case.given("speculative_config.decoding_type") != "MTP":
        return
    draft, source = _DRAFT_TOKENS[case.value("enable_attention_dp")]
    case.decide(
        MTP_DRAFT_TOKENS,
        draft,
        "Draft tokens per step: more raise the tokens per step, and the work wasted on rejected "
        "ones.",
        "documented",
        source,
    )


RULES: tuple[Callable[[_Case], None], ...] = (
    _precision,
    _architecture,
    _parallelism,
    _limits,
    _check_limits,
    _cuda_graphs,
    _kv_cache,
    _moe,
    _speculation,
)


def _add_remaining_overrides(case: _Case) -> None:
    """Overrides of options that no rule decides."""
    spelled = {case.facts.release.spell(path) for path in case.decisions}
    for path, value in case.overrides.items():
        if path not in spelled:
            reason = "Set in engine_config; no rule decides it."
            case.decisions[path] = Decision(path, value, reason, "override", "deployment")


def _server_flags(facts: Facts) -> Iterator[Decision]:
    """Flags of the server's command line that the model needs."""
    for row in facts.release.flags_for(facts.checkpoint.architecture.name):
        path, evidence = facts.release.spelling(row["flag"]), cast(Evidence, row["evidence"])
        yield Decision(path, row["value"], row["reason"], evidence, row["source"])


def _budget(case: _Case) -> Budget:
    workload, release = case.deployment.workload, case.facts.release
    graphs = case.given("cuda_graph_config.batch_sizes")
    if graphs is None:
        off = case.overrides.get("cuda_graph_config", {}) is None
        num_graphs = 0 if off else int(release.table["cuda_graphs_when_missing"])
    else:
        num_graphs = len(graphs)
    drafts = case.given(MTP_DRAFT_TOKENS)
    if drafts is None:
        drafts = 1 if case.given("speculative_config.decoding_type") == "MTP" else 0
    return budget(
        case.facts.checkpoint,
        case.facts.gpu,
        Sharding(
            case.value("tensor_parallel_size"),
            case.value("pipeline_parallel_size"),
            case.value("enable_attention_dp"),
        ),
        kv_dtype_bytes=1 if case.given("kv_cache_config.dtype") == "fp8" else 2,
        free_gpu_memory_fraction=case.value("kv_cache_config.free_gpu_memory_fraction"),
        max_num_tokens=case.value("max_num_tokens"),
        num_cuda_graphs=num_graphs,
        mtp_draft_tokens=drafts,
        tokens_per_request=workload.isl + workload.osl,
    )


def _check_memory(case: _Case, result: Budget) -> None:
    workload, gpu = case.deployment.workload, case.facts.gpu
    gpus = case.deployment.hardware.num_gpus
    if not result.fits:
        what = (
            f"{case.deployment.checkpoint} does not fit on {gpus} x {gpu.name}: each GPU has "
            f"{result.total_gib:.1f} GiB, weights take {result.weights_gib:.1f} and the engine "
            f"{result.used_gib - result.weights_gib:.1f}, which leaves {result.kv_cache_gib:.1f} "
            f"GiB of KV cache for requests of {workload.isl + workload.osl} tokens"
        )
        remedy = "take more GPUs, larger ones, or a checkpoint of lower precision"
        case.problems.append(Problem("hardware.num_gpus", what, remedy))
    elif result.max_concurrency < workload.concurrency:
        what = (
            f"the KV cache holds {result.max_concurrency} requests of "
            f"{workload.isl + workload.osl} tokens, the workload has {workload.concurrency}: the "
            "others wait"
        )
        remedy = "lower concurrency, or take more GPUs"
        case.warnings.append(Problem("workload.concurrency", what, remedy, severity="warning"))


def _differences(case: _Case) -> Iterator[Difference]:
    """Published options that the plan sets otherwise, each with the reason."""
    for row in case.published:
        for path, published in row.options.items():
            planned = case.given(path)
            if planned == published:
                continue
            reason = case.refused.get(path) or _NOT_TAKEN.get(path)
            if not reason and path in case.decisions:
                decision = case.decisions[path]
                reason = f"{decision.reason} ({decision.source})"
            yield Difference(path, published, planned, reason or _OVERRIDDEN, row.source)
