"""The memory budget of a plan: computes it, its limits, and whether the workload fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..facts.hardware import MeasuredMemory
from ..facts.memory import MEASURED_SM, Budget, Load, Sharding, budget
from ..facts.release.support import compute_capability
from .decision import Limits, concurrency_per_instance, gpus_per_instance
from .plan_builder import MTP_DRAFT_TOKENS, PlanBuilder
from .requirements import undivided

_CACHE = "kv_cache_config"
_POLICY = "scheduler_config.capacity_scheduler_policy"
_MOST_NODES = 16  # of one server, which are tried for how many are enough
_PAUSES = "MAX_UTILIZATION"


def budget_of(builder: PlanBuilder) -> Budget:
    """The budget of one GPU; instances share no GPUs."""
    facts, sharding, load = builder.facts, sharding_of(builder), load_of(builder)
    measured = _measured(builder, load)
    return budget(facts.checkpoint, facts.gpu, sharding, load, facts.draft, measured)


# What all memory but that of the KV cache depends on.
_MEASURED_WITH = (
    *("tensor_parallel_size", "pipeline_parallel_size", "enable_attention_dp"),
    *("moe_expert_parallel_size", "max_num_tokens", "max_batch_size", MTP_DRAFT_TOKENS),
    *("moe_config.backend", "cuda_graph_config.batch_sizes"),
)


def _measured(builder: PlanBuilder, load: Load) -> MeasuredMemory | None:
    """The measurements of a start, if it is the one of this plan; else a warning."""
    request, release = builder.deployment, builder.facts.release
    measured, spell = request.measured, release.option_path
    if measured is None:
        return None
    ours = {
        "checkpoint": request.checkpoint,
        "gpu": request.hardware.gpu,
        "num_gpus": request.hardware.num_gpus,
        "engine": request.engine.name,
        "release": request.engine.release,
    }
    pairs = {name: (getattr(measured, name), value) for name, value in ours.items()}
    for path in _MEASURED_WITH:
        own, default = builder.given(path), release.default(spell(path))
        pairs[path] = measured.options.get(spell(path), default), default if own is None else own
    differing = [name for name, (theirs, own) in pairs.items() if theirs != own]
    if not differing:
        share = measured.options.get(spell(f"{_CACHE}.free_gpu_memory_fraction"))
        known = measured.kv_cache_fraction or share or load.free_gpu_memory_fraction
        return measured.replaced(kv_cache_fraction=known)
    theirs, own = pairs[differing[0]]
    what = f"not used: {differing[0]} was {theirs} there, and this plan has {own}"
    builder.warn("measured", what, "measure again with these values, or leave out --facts")
    return None


def sharding_of(builder: PlanBuilder) -> Sharding:
    """How the model is split over the GPUs of one server."""
    copies = builder.copies
    size = builder.value("tensor_parallel_size") * copies
    whole_experts = size if builder.value("enable_expert_parallel") else 1
    return Sharding(
        tensor_parallel_size=size,
        pipeline_parallel_size=builder.value("pipeline_parallel_size"),
        enable_attention_dp=copies > 1 or builder.value("enable_attention_dp"),
        moe_expert_parallel_size=builder.value("moe_expert_parallel_size") or whole_experts,
    )


def _least_gpus(builder: PlanBuilder, is_enough: Callable[[Budget], bool]) -> str:
    """The fewest GPUs that are enough with the same options, as text; "" if none are."""
    facts, now, load = builder.facts, sharding_of(builder), load_of(builder)
    instances, limit = builder.deployment.instances, facts.gpu.gpus_per_node.value
    stages = now.pipeline_parallel_size
    for gpus in (*range(1, limit + 1), *range(2 * limit, (_MOST_NODES + 1) * limit, limit)):
        size = gpus // stages
        if size <= now.tensor_parallel_size or gpus % stages or undivided(facts.checkpoint, size):
            continue
        split = now.moe_expert_parallel_size == now.tensor_parallel_size
        experts = size if split else now.moe_expert_parallel_size
        more = replace(now, tensor_parallel_size=size, moe_expert_parallel_size=experts)
        if is_enough(budget(facts.checkpoint, facts.gpu, more, load, facts.draft)):
            has = builder.deployment.hardware.num_gpus
            return f"at least {gpus * instances} GPUs (this has {has})"
    return ""


def load_of(builder: PlanBuilder) -> Load:
    """The settings and requests that the memory of one server depends on."""
    release = builder.facts.release
    has_experts = builder.facts.checkpoint.architecture.experts_field is not None
    graphs = _graphs(builder)
    is_made = bool(graphs) and builder.given("cuda_graph_config.batch_sizes") is None
    return Load(
        max_num_tokens=builder.value("max_num_tokens"),
        tokens_per_request=_tokens_per_request(builder),
        free_gpu_memory_fraction=builder.value(f"{_CACHE}.free_gpu_memory_fraction"),
        concurrency=_requests(builder),
        role=builder.deployment.role,
        max_batch_size=builder.value("max_batch_size"),
        max_seq_len=builder.value("max_seq_len"),
        num_cuda_graphs=release.cuda_graphs_engine_default if is_made else len(graphs),
        kv_cache_dtype=builder.value(f"{_CACHE}.dtype") or "auto",
        tokens_per_block=builder.value(f"{_CACHE}.tokens_per_block") or 32,
        max_attention_window=builder.value(f"{_CACHE}.max_attention_window") or (),
        mtp_draft_tokens=0 if builder.deployment.draft else builder.draft_tokens(),
        mtp_kv_layers=release.mtp_kv_layers,
        moe_backend=builder.value("moe_config.backend") if has_experts else None,
        moe_max_num_tokens=builder.value("moe_config.max_num_tokens"),
        share_of=release.engine.memory_share,
    )


def limits_of(builder: PlanBuilder, result: Budget) -> Limits:
    """The longest prompt that is accepted, and how many requests run at once."""
    spell, config = builder.facts.release.option_path, builder.facts.checkpoint.text_config
    longest = {
        spell("max_seq_len"): builder.value("max_seq_len"),
        "the model's longest context": config.get("max_position_embeddings"),
        "the KV cache": result.kv_tokens,
    }
    bounds = {name: max(0, int(end) - 1) for name, end in longest.items() if end}
    # A decode server receives the prompt's KV cache, which takes none of its steps.
    whole = builder.deployment.role == "decode" or _chunks_prompts(builder)
    step = int(builder.value("max_num_tokens"))
    if not whole:
        bounds[spell("max_num_tokens")] = step
    bounded_by = min(bounds, key=lambda name: bounds[name])
    ranks = _ranks(builder)
    return Limits(
        longest_prompt_tokens=bounds[bounded_by],
        bounded_by=bounded_by,
        tokens_per_request=_tokens_per_request(builder),
        instances=builder.deployment.instances,
        ranks=ranks,
        kv_tokens_per_rank=result.kv_tokens,
        kv_requests_per_rank=result.cached_requests // ranks,
        batch_requests_per_rank=int(builder.value("max_batch_size")),
        step_tokens_per_rank=step,
        graph_requests_per_rank=max(_graphs(builder), default=0),
    )


def _chunks_prompts(builder: PlanBuilder) -> bool:
    chunked = builder.value("enable_chunked_prefill")
    return bool(builder.facts.release.engine.chunks_prompts if chunked is None else chunked)


def _ranks(builder: PlanBuilder) -> int:
    """The ranks that each have requests, and a batch, of their own."""
    if builder.copies > 1:
        return builder.copies
    return int(builder.value("tensor_parallel_size") if builder.value("enable_attention_dp") else 1)


def _requests(builder: PlanBuilder) -> int:
    """Requests that the cache of one instance holds at once; of a prefill server, one batch."""
    batch = builder.value("max_batch_size")
    if builder.deployment.role != "prefill" or not batch:
        return concurrency_per_instance(builder.deployment)
    return min(concurrency_per_instance(builder.deployment), int(batch) * _ranks(builder))


def _tokens_per_request(builder: PlanBuilder) -> int:
    """Tokens of a request; a prefill server passes it on before its answer."""
    workload = builder.deployment.workload
    return workload.isl + (0 if builder.deployment.role == "prefill" else workload.osl)


def _graphs(builder: PlanBuilder) -> list[int]:
    """The batch sizes that are captured; only the largest if the engine makes the list."""
    sizes = builder.given("cuda_graph_config.batch_sizes")
    if sizes is not None:
        return [size for size in sizes if size <= _largest_graph(builder)]
    for where in (builder.overrides, {path: row.value for path, row in builder.decisions.items()}):
        if where.get("cuda_graph_config", {}) is None:
            return []
    own = builder.facts.release.engine.largest_graph
    largest = builder.given("cuda_graph_config.max_batch_size") or own
    return [min(int(largest), _largest_graph(builder))]


def _largest_graph(builder: PlanBuilder) -> int:
    """The largest batch that a step can hold; the engine captures no graph of a larger one."""
    fitting = int(builder.value("max_num_tokens")) // (1 + builder.draft_tokens())
    return min(int(builder.value("max_batch_size")), fitting)


def check_budget(builder: PlanBuilder, result: Budget) -> None:
    """Checks that one request fits, and warns if some of the workload wait."""
    if not result.fits:
        _refuse_too_large(builder, result)
        return
    if not result.measured:
        _warn_unmeasured(builder)
    before = len(builder.warnings)
    _warn_waiting(builder, result)
    if len(builder.warnings) == before and result.tight:
        what = (
            f"the KV cache holds the workload with {result.margin_gib:.1f} GiB to spare, and such "
            f"budgets were off by up to {result.uncertainty_gib:.1f}"
        )
        remedy = "measure with the real engine, or take more memory"
        builder.warn("workload.concurrency", what, remedy)


def _warn_unmeasured(builder: PlanBuilder) -> None:
    """Warns of a GPU or an engine without measurements of the engine's own memory."""
    gpu, engine = builder.facts.gpu, builder.facts.release.engine
    if engine.memory_doubt:
        what = (
            f"the memory budget follows the sum that {engine.title} makes, with parts that were "
            f"measured with another engine; {engine.memory_doubt}"
        )
        remedy = "compare the budget with the engine's log of its first start"
        builder.warn("engine.name", what, remedy)
    if gpu.sm.value in MEASURED_SM:
        return
    measured = ", ".join(map(compute_capability, MEASURED_SM))
    what = (
        f"what the engine itself takes of a {gpu.name} is unknown: the budget follows logs of GPUs "
        f"of compute capability {measured}, and this one has {compute_capability(gpu.sm.value)}"
    )
    remedy = "compare the budget with the engine's log of its first start"
    builder.warn("hardware.gpu", what, remedy)


def _warn_waiting(builder: PlanBuilder, result: Budget) -> None:
    """Warns of requests that wait for the KV cache or for a place in a batch."""
    wanted = _requests(builder)
    each = "" if builder.deployment.instances == 1 else "of each instance "
    if (held := result.cached_requests) < wanted:
        what = (
            f"the KV cache {each}holds {held} requests of {_tokens_per_request(builder)} tokens, "
            f"the workload has {wanted}: the others wait"
        )
        builder.warn("workload.concurrency", what, _room_for_cache(builder, result))
        _warn_pauses(builder)
    batch = builder.value("max_batch_size")
    if batch and (places := int(batch) * _ranks(builder)) < wanted:
        what = f"a batch {each}has {places} places, the workload {wanted} requests: the rest waits"
        given = "max_batch_size" in builder.overrides
        where = "engine_config.max_batch_size" if given else "workload.concurrency"
        lower = places * builder.deployment.instances
        remedy = f"raise it to {-(-wanted // _ranks(builder))}, or lower concurrency to {lower}"
        if not given:
            remedy = f"lower it to {lower}, or {_more_instances(builder, places)}"
        builder.warn(where, what, remedy)


def _room_for_cache(builder: PlanBuilder, result: Budget) -> str:
    """How to give the KV cache more memory, or to need less."""
    if result.activations_gib <= max(result.kv_cache_gib, result.weights_gib):
        wanted, held = _requests(builder), result.cached_requests
        if not held:
            return "shorten isl or osl"
        more = _least_gpus(builder, lambda found: found.cached_requests >= wanted)
        more = f"take {more}" if more else _more_instances(builder, held)
        return f"lower concurrency to {held * builder.deployment.instances}, or {more}"
    # With attention DP a GPU's experts take the tokens of all ranks: more GPUs would take more.
    step, spell = builder.value("max_num_tokens"), builder.facts.release.option_path
    parts = f", with {spell('enable_chunked_prefill')}: true for prompts longer than that"
    return (
        f"lower engine_config.{spell('max_num_tokens')}: a step of {step} tokens takes "
        f"{result.activations_gib:.1f} of {result.total_gib:.1f} GiB"
        + ("" if _chunks_prompts(builder) else parts)
    )


def _more_instances(builder: PlanBuilder, requests: int) -> str:
    """How many servers of so many requests each the workload needs."""
    count = -(-builder.deployment.workload.concurrency // requests)
    return f"take {count} instances with their own GPUs"


def _warn_pauses(builder: PlanBuilder) -> None:
    """Warns of a scheduler that starts more requests than the cache holds, and repeats some."""
    if str(builder.given(_POLICY)).upper() != _PAUSES:
        return
    what = f"{_PAUSES} begins requests that the KV cache cannot finish, and computes them again"
    remedy = f"give GUARANTEED_NO_EVICT: under such pressure {_PAUSES} was measured 41 % slower"
    builder.warn(f"engine_config.{_POLICY}", what, remedy)


def _refuse_too_large(builder: PlanBuilder, result: Budget) -> None:
    """Refuses a plan without room for one request: every part, and the cause of the largest."""
    gpu, tokens = builder.facts.gpu, _tokens_per_request(builder)
    where, remedy = _cause(builder, result)
    count = gpus_per_instance(builder.deployment)
    what = (
        f"{builder.deployment.checkpoint} does not fit on {count} x {gpu.name}: "
        f"each GPU has {result.total_gib:.1f} GiB, weights take {result.weights_gib:.1f}, "
        f"activations {result.activations_gib:.1f}, CUDA graphs {result.cuda_graphs_gib:.1f}, "
        f"the rest of the engine {result.other_gib:.1f}, which leaves "
        f"{result.kv_cache_gib:.1f} GiB of KV cache for requests of {tokens} tokens, "
        f"{result.request_gib:.1f} GiB each"
    )
    builder.refuse(where, what, remedy)


def _cause(builder: PlanBuilder, result: Budget) -> tuple[str, str]:
    """The option or field behind the part that is too large, and what to do about it."""
    left, slack = result.total_gib - result.used_gib, result.uncertainty_gib
    fraction, block = f"{_CACHE}.free_gpu_memory_fraction", f"{_CACHE}.tokens_per_block"
    if left - slack > result.request_gib and fraction in builder.overrides:
        remedy = f"give a larger share of the {left:.1f} GiB that are left, such as 0.8"
        return f"engine_config.{fraction}", remedy
    tokens = _tokens_per_request(builder)
    if (builder.value(block) or 0) > tokens and block in builder.overrides:
        remedy = f"give 32 or 64: a block of {tokens} or more holds one request"
        return f"engine_config.{block}", remedy
    largest = max(
        (result.weights_gib, "weights"),
        (result.activations_gib + result.other_gib, "max_num_tokens"),
        (result.cuda_graphs_gib, "cuda_graph_config.batch_sizes"),
        (result.request_gib, "workload"),
    )[1]
    more = _least_gpus(builder, lambda found: found.fits)
    if largest == "workload":
        ways = f"take {more} or larger ones" if more else "take larger GPUs"
        return "workload", f"shorten isl or osl, or {ways}"
    if builder.overriding(largest):
        return f"engine_config.{largest}", "lower it: it is the largest part of the memory"
    if largest == "max_num_tokens":
        return "workload.isl", f"shorten it: a step of {builder.value(largest)} tokens is too large"
    ways = f"take {more}, larger ones" if more else "take larger GPUs"
    return "hardware.num_gpus", f"{ways}, or a checkpoint of lower precision"
