"""What a plan costs in memory, and whether the workload fits."""

from __future__ import annotations

from ..errors import Problem
from ..memory import Budget, Sharding, budget
from .case import Case


def of(case: Case) -> Budget:
    """The budget of one GPU; every instance has GPUs of its own."""
    return budget(
        case.facts.checkpoint,
        case.facts.gpu,
        Sharding(
            tensor_parallel_size=case.value("tensor_parallel_size"),
            pipeline_parallel_size=case.value("pipeline_parallel_size"),
            enable_attention_dp=case.value("enable_attention_dp"),
            moe_expert_parallel_size=case.value("moe_expert_parallel_size") or 1,
        ),
        kv_dtype_bytes=1 if case.given("kv_cache_config.dtype") == "fp8" else 2,
        free_gpu_memory_fraction=case.value("kv_cache_config.free_gpu_memory_fraction"),
        max_num_tokens=case.value("max_num_tokens"),
        num_cuda_graphs=_num_graphs(case),
        mtp_draft_tokens=0 if case.deployment.draft else case.draft_tokens(),
        tokens_per_request=_tokens_per_request(case),
        concurrency=_requests(case),
        role=case.deployment.role,
        max_batch_size=case.value("max_batch_size") or 1,
        max_seq_len=case.value("max_seq_len"),
        tokens_per_block=case.value("kv_cache_config.tokens_per_block") or 32,
        moe_backend=case.value("moe_config.backend"),
        moe_max_num_tokens=case.value("moe_config.max_num_tokens"),
        draft=case.facts.draft,
    )


def _requests(case: Case) -> int:
    """Requests that the cache of one instance holds at once; of a prefill server, one batch."""
    batch = case.value("max_batch_size")
    if case.deployment.role != "prefill" or not batch:
        return case.concurrency
    ranks = case.value("tensor_parallel_size") if case.value("enable_attention_dp") else 1
    return min(case.concurrency, int(batch * ranks))


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
    return case.facts.release.cuda_graphs_when_missing


def check(case: Case, result: Budget) -> None:
    gpu = case.facts.gpu
    tokens = _tokens_per_request(case)
    if not result.fits:
        what = (
            f"{case.deployment.checkpoint} does not fit on {case.num_gpus} x {gpu.name}: each GPU "
            f"has {result.total_gib:.1f} GiB, weights take {result.weights_gib:.1f} and the engine "
            f"{result.used_gib - result.weights_gib:.1f}, which leaves {result.kv_cache_gib:.1f} "
            f"GiB of KV cache for requests of {tokens} tokens"
        )
        remedy = "take more GPUs, larger ones, or a checkpoint of lower precision"
        case.problems.append(Problem("hardware.num_gpus", what, remedy))
        return
    held, wanted = result.max_concurrency, _requests(case)
    if held < wanted:
        each = "" if case.deployment.instances == 1 else "of each instance "
        what = (
            f"the KV cache {each}holds {held} requests of {tokens} tokens, the workload has "
            f"{wanted}: the others wait"
        )
        remedy = "lower concurrency, or take more GPUs"
        case.warnings.append(Problem("workload.concurrency", what, remedy, severity="warning"))
    elif result.tight:
        what = (
            f"the KV cache holds the workload with {result.margin_gib:.1f} GiB to spare, and such "
            f"budgets were off by up to {result.uncertainty_gib:.1f}"
        )
        remedy = "measure with the real engine, or take more memory"
        case.warnings.append(Problem("workload.concurrency", what, remedy, severity="warning"))
