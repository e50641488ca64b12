"""What a plan costs in memory, and whether the workload fits."""

from __future__ import annotations

from collections.abc import Iterator

from ..diagnostics import Diagnostic
from .case import Case
from .memory import Budget, Load, Sharding, budget

_CACHE = "kv_cache_config"


def of(case: Case) -> Budget:
    """The budget of one GPU; every instance has GPUs of its own."""
    sharding = Sharding(
        tensor_parallel_size=case.value("tensor_parallel_size"),
        pipeline_parallel_size=case.value("pipeline_parallel_size"),
        enable_attention_dp=case.value("enable_attention_dp"),
        moe_expert_parallel_size=case.value("moe_expert_parallel_size") or 1,
    )
    facts = case.facts
    return budget(facts.checkpoint, facts.gpu, sharding, _load(case), facts.draft)


def _load(case: Case) -> Load:
    release = case.facts.release
    return Load(
        max_num_tokens=case.value("max_num_tokens"),
        tokens_per_request=_tokens_per_request(case),
        free_gpu_memory_fraction=case.value(f"{_CACHE}.free_gpu_memory_fraction"),
        concurrency=_requests(case),
        role=case.deployment.role,
        max_batch_size=case.value("max_batch_size"),
        max_seq_len=case.value("max_seq_len"),
        num_cuda_graphs=_num_graphs(case),
        kv_cache_dtype=case.value(f"{_CACHE}.dtype") or "auto",
        tokens_per_block=case.value(f"{_CACHE}.tokens_per_block") or 32,
        max_attention_window=case.value(f"{_CACHE}.max_attention_window") or (),
        mtp_draft_tokens=0 if case.deployment.draft else case.draft_tokens(),
        mtp_kv_layers=release.mtp_kv_layers,
        moe_backend=case.value("moe_config.backend"),
        moe_max_num_tokens=case.value("moe_config.max_num_tokens"),
    )


def _ranks(case: Case) -> int:
    """The ranks that each have requests, and a batch, of their own."""
    return int(case.value("tensor_parallel_size") if case.value("enable_attention_dp") else 1)


def _requests(case: Case) -> int:
    """Requests that the cache of one instance holds at once; of a prefill server, one batch."""
    batch = case.value("max_batch_size")
    if case.deployment.role != "prefill" or not batch:
        return case.concurrency
    return min(case.concurrency, int(batch) * _ranks(case))


def _tokens_per_request(case: Case) -> int:
    """A prefill server hands a request on before its answer grows."""
    workload = case.deployment.workload
    return workload.isl + (0 if case.deployment.role == "prefill" else workload.osl)


def _num_graphs(case: Case) -> int:
    graphs = case.given("cuda_graph_config.batch_sizes")
    if graphs is not None:
        return len(graphs)
    for where in (case.overrides, {path: row.value for path, row in case.decisions.items()}):
        if where.get("cuda_graph_config", {}) is None:
            return 0
    return case.facts.release.cuda_graphs_engine_default


def check(case: Case, result: Budget) -> None:
    """A request fits, and the workload's requests run at once."""
    if not result.fits:
        case.diagnostics.append(_too_large(case, result))
        return
    warnings = list(_waiting(case, result))
    if not warnings and result.tight:
        what = (
            f"the KV cache holds the workload with {result.margin_gib:.1f} GiB to spare, and such "
            f"budgets were off by up to {result.uncertainty_gib:.1f}"
        )
        remedy = "measure with the real engine, or take more memory"
        warnings.append(Diagnostic("workload.concurrency", what, remedy, severity="warning"))
    case.warnings += warnings


def _waiting(case: Case, result: Budget) -> Iterator[Diagnostic]:
    """Requests of the workload that wait for the cache or for a place in a batch."""
    wanted, each = _requests(case), "" if case.deployment.instances == 1 else "of each instance "
    if (held := result.cached_requests) < wanted:
        what = (
            f"the KV cache {each}holds {held} requests of {_tokens_per_request(case)} tokens, the "
            f"workload has {wanted}: the others wait"
        )
        remedy = "lower concurrency, or take more GPUs"
        yield Diagnostic("workload.concurrency", what, remedy, severity="warning")
    batch = case.value("max_batch_size")
    if batch and (places := int(batch) * _ranks(case)) < wanted:
        what = f"a batch {each}has {places} places, the workload {wanted} requests: the rest waits"
        given = "max_batch_size" in case.overrides
        where = "engine_config.max_batch_size" if given else "workload.concurrency"
        remedy = "raise it, or lower concurrency" if given else "lower it, or take more instances"
        yield Diagnostic(where, what, remedy, severity="warning")


def _too_large(case: Case, result: Budget) -> Diagnostic:
    """Why not even one request fits: every part, the largest one, and what it follows from."""
    gpu, tokens = case.facts.gpu, _tokens_per_request(case)
    where, remedy = _cause(case, result)
    what = (
        f"{case.deployment.checkpoint} does not fit on {case.num_gpus} x {gpu.name}: each GPU has "
        f"{result.total_gib:.1f} GiB, weights take {result.weights_gib:.1f}, activations "
        f"{result.activations_gib:.1f}, CUDA graphs {result.cuda_graphs_gib:.1f}, the rest of the "
        f"engine {result.other_gib:.1f}, which leaves {result.kv_cache_gib:.1f} GiB of KV cache "
        f"for requests of {tokens} tokens, {result.request_gib:.1f} GiB each"
    )
    return Diagnostic(where, what, remedy)


def _cause(case: Case, result: Budget) -> tuple[str, str]:
    """The option or field behind the part that is too large, and what to do about it."""
    left, slack = result.total_gib - result.used_gib, result.uncertainty_gib
    fraction, block = f"{_CACHE}.free_gpu_memory_fraction", f"{_CACHE}.tokens_per_block"
    if left - slack > result.request_gib and fraction in case.overrides:
        remedy = f"give a larger share of the {left:.1f} GiB that are left, such as 0.8"
        return f"engine_config.{fraction}", remedy
    tokens = _tokens_per_request(case)
    if (case.value(block) or 0) > tokens and block in case.overrides:
        return (
            f"engine_config.{block}",
            f"give 32 or 64: a block of {tokens} or more holds one request",
        )
    largest = max(
        (result.weights_gib, "weights"),
        (result.activations_gib + result.other_gib, "max_num_tokens"),
        (result.cuda_graphs_gib, "cuda_graph_config.batch_sizes"),
        (result.request_gib, "workload"),
    )[1]
    if largest == "workload":
        return "workload", "shorten isl or osl, or take more GPUs or larger ones"
    if largest != "weights" and case.overriding(largest):
        return f"engine_config.{largest}", "lower it: it is the largest part of the memory"
    if largest == "max_num_tokens":
        return "workload.isl", f"shorten it: a step of {case.value(largest)} tokens is too large"
    return "hardware.num_gpus", "take more GPUs, larger ones, or a checkpoint of lower precision"
