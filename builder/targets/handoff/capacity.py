"""What one GPU holds, what the servers take, and what others measured."""

from __future__ import annotations

from collections.abc import Iterator

from ...facts.published_results import Published, describe
from ...servers import RenderContext
from .document import Block, Section, code, facts, note, paragraph, table
from .runbook_text import section

# Limits of the engine's options and of the model behind Triton: what each does to a request.
ENGINE_LIMITS = {
    "max_batch_size": "requests that run at once on a rank; others wait in the engine",
    "max_num_tokens": "tokens that one step computes",
    "max_seq_len": "tokens of a request, prompt and answer together; a longer one is refused",
}
MODEL_LIMITS = {
    "max_requests": "requests that run or wait; one more is refused at once, and may be sent again",
    "max_unary_http_requests": "of these, over HTTP and not streamed: nobody says when they leave",
    "max_unary_http_running": "of those, in the engine at once; others wait in the model",
    "max_prompt_bytes": "bytes of a request's inputs; a longer one is refused before it is read",
    "max_tokens_per_request": "answer tokens that a request may ask for",
    "max_seconds_per_request": "seconds that a request may take, then it ends as it is",
    "drain_timeout_s": "seconds that running requests have when the server is stopped",
    "engine_stall_timeout_s": "seconds without a token after which the server ends itself",
}


def capacity(context: RenderContext) -> Section:
    budget = context.plan.budget
    parts = (
        ("weights", budget.weights_gib),
        ("activations", budget.activations_gib),
        ("CUDA graphs", budget.cuda_graphs_gib),
        ("context and workspaces", budget.other_gib),
        ("KV cache", budget.kv_cache_gib),
    )
    free = max(0.0, budget.total_gib - sum(gib for _, gib in parts))
    rows = (*parts, ("free", free), ("total that CUDA reports", budget.total_gib))
    memory = table(
        "Memory of one GPU",
        ("part", "GiB"),
        [(name, f"{gib:,.1f}") for name, gib in rows],
        numeric={1},
    )
    columns = ("limit", "value", "of", "what it means")
    limits = table("Limits", columns, tuple(_limits(context)), frozenset({1}))
    values = {"uncertainty_gib": f"{budget.uncertainty_gib:.0f}"}
    return section("capacity", values, memory, facts(tuple(_kv_cache(context))), limits)


def _kv_cache(context: RenderContext) -> Iterator[tuple[str, str]]:
    budget, workload = context.plan.budget, context.deployment.workload
    yield (
        "KV cache",
        f"{budget.kv_tokens:,} tokens of {budget.kv_bytes_per_token:,} bytes on each GPU",
    )
    yield (
        "Requests at once",
        (
            f"{budget.max_concurrency:,} per server, of {workload.isl:,} prompt and "
            f"{workload.osl:,} answer tokens; {workload.concurrency:,} are planned"
        ),
    )
    yield (
        "Beyond that",
        "requests wait for others to end: the time to the first token grows, no answer is wrong",
    )


def _limits(context: RenderContext) -> Iterator[tuple[str, ...]]:
    longest = context.plan.limits
    meaning = f"tokens, by {longest.bounded_by}; a longer prompt is refused"
    yield "longest prompt", f"{longest.longest_prompt_tokens:,}", "plan", meaning
    for name, meaning in ENGINE_LIMITS.items():
        if (value := context.engine.options.get(name)) is not None:
            yield code(name), f"{value:,}", "engine", meaning
    for server in context.servers.values():
        for name, meaning in MODEL_LIMITS.items():
            if (value := server.settings.get(name)) is not None:
                yield code(name), f"{value:,}", server.record.title, meaning


def figures(context: RenderContext) -> Section:
    """Whose figures these are stands before them: this deployment was never measured."""
    facts = context.plan.facts
    text = (
        f"Nobody had run this deployment on {facts.gpu.product} when this page was made. What was "
        "measured since then is attached as evidence."
    )
    blocks: list[Block] = [note("Not measured", text)]
    rows = tuple(row for one in facts.published for row in _published(one))
    if rows:
        text = (
            "Others measured the same model on the same GPUs, each under a workload of their own:"
        )
        columns = ("figure", "workload and engine", "source")
        blocks += [paragraph(text), table("Published figures", columns, rows)]
    else:
        text = "No figures for this model on these GPUs are known."
        blocks.append(paragraph(text))
    return section("figures", {}, *blocks)


def _published(row: Published) -> Iterator[tuple[str, ...]]:
    workload = f"{row.workload}; {row.engine}"
    if row.incomplete:
        workload += f"; not said: {', '.join(row.incomplete)}"
    for figure in row.figures:
        yield describe(figure), workload, row.source
