"""The verb plan: what was decided and what it admits and costs on one screen, then why."""

from __future__ import annotations

import argparse
import json
import shlex
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .arguments import Parser, add_deployment, add_json
from .terminal import WIDTH, columns, print_json, warn, wrapped

if TYPE_CHECKING:
    from ..deployment import Deployment
    from ..planning import Plan

_KEYS = (
    *("decisions", "engine_defaults", "differences", "warnings"),
    *("limits", "memory", "estimate", "published", "nearest_published"),
)


def add_plan(parser: Parser) -> None:
    add_deployment(parser)
    parser.add_argument("--why", action="store_true", help="also say why each value is what it is")
    add_json(parser)


def run_plan(options: argparse.Namespace) -> None:
    from .. import pipeline

    planned = pipeline.plan(options.deployment, options.set, options.target)
    document = pipeline.manifest_facts(planned)
    document = {**document, "nearest_published": _nearest_published(planned.plan)}
    if options.json:
        accepted = document.get("accepted_warnings", [])
        print_json({**{key: document[key] for key in _KEYS}, "accepted_warnings": accepted})
    else:
        changes = (word for change in options.set for word in ("--set", change))
        words = shlex.join([options.deployment, *changes])
        print(summary_text(document, planned.plan.deployment, words))
        print(f"\n{reasons_text(document)}" if options.why else f"\n{_rest(document)}")
    warn(document["warnings"])


def _nearest_published(plan: Plan) -> str | None:
    """What was published that is the most alike, where nothing was for these GPUs."""
    from ..facts import published_results

    facts, request = plan.facts, plan.deployment
    if facts.published:
        return None
    where = facts.gpu.name, request.hardware.num_gpus, request.role, request.engine.name
    row = published_results.nearest(facts.checkpoint, *where)
    if row is None:
        return f"nothing of {facts.checkpoint.architecture.name}"
    what = f"{row.checkpoint} on {row.num_gpus} {row.gpu} with {row.engine}"
    what = f"{what}, {row.workload}: {row.source}"
    return f"not for these GPUs; the most alike: {what}"


def summary_text(document: Mapping[str, Any], request: Deployment, words: str) -> str:
    """What is planned, what its servers admit, its memory and its options: one screen.

    `words` are those that name the deployment on a command line.
    """
    hardware, load = request.hardware, request.workload
    engine = f"{request.engine.name} {request.engine.release}"
    count = f"{request.instances} instances on " if request.instances > 1 else ""
    what = f"{document['inputs']['checkpoint']['name']}, {count}{hardware.num_gpus} {hardware.gpu}"
    parts = [
        *wrapped(f"{request.name}: ", f"{what}, {engine}, role {request.role}"),
        *wrapped(
            "workload: ",
            f"{load.isl:,} prompt and {load.osl:,} answer tokens, {load.concurrency:,} at once",
        ),
        "",
        _limits(document["limits"]),
        "",
        _memory(document["memory"], hardware.num_gpus),
        "",
        *_speed(document["estimate"]),
        "",
        *_elsewhere(document, words),
        _options(document),
    ]
    return "\n".join(parts)


def _elsewhere(document: Mapping[str, Any], words: str) -> Iterator[str]:
    """What is known of others where nothing is of this model on these GPUs."""
    from ..estimates.plan_estimate import NO_ROW

    estimate = document["estimate"]
    if nearest := document.get("nearest_published"):
        yield from wrapped("PUBLISHED  ", nearest)
        if estimate.get("refused", "").startswith(NO_ROW) and not estimate["nearest"]:
            command = f"python -m builder estimate {words}"
            yield from wrapped(" " * 11, f"the nearest measured rows: {command}")
        yield ""


def _limits(limits: Mapping[str, Any]) -> str:
    """Limits of a rank, of a server and of all servers, where these are not the same."""
    ranks, instances = limits["ranks"], limits["instances"]
    heads = {"EACH RANK": 1, "EACH SERVER": ranks, "ALL SERVERS": ranks * instances}
    shown = [
        name
        for name, several in zip(heads, (ranks > 1, True, instances > 1), strict=True)
        if several
    ]
    length, bound = limits["longest_prompt_tokens"], limits["bounded_by"]
    unit = f"requests of {limits['tokens_per_request']:,} tokens"
    each = (
        ("KV cache holds", limits["kv_requests_per_rank"], unit),
        ("a batch holds", limits["batch_requests_per_rank"], "requests"),
        ("CUDA graphs up to", limits["graph_requests_per_rank"], "requests"),
        ("KV cache", limits["kv_tokens_per_rank"], "tokens"),
        ("one step computes", limits["step_tokens_per_rank"], "tokens"),
    )
    blank = [""] * (len(shown) - 1)
    rows = [
        ["LIMIT", *(name if len(shown) > 1 else "VALUE" for name in shown), "UNIT"],
        ["longest prompt", *blank, f"{length:,}", f"tokens, by {bound}"],
        *([name, *(f"{value * heads[at]:,}" for at in shown), of] for name, value, of in each),
    ]
    return columns(rows, range(1, len(shown) + 1))


def _memory(memory: Mapping[str, Any], num_gpus: int) -> str:
    gib = dict(memory["per_gpu"])
    total = gib.pop("total_gib")
    total_label = "total that CUDA reports" if memory["total_verified"] else "total, estimated too"
    parts = {
        "weights": gib["weights_gib"],
        "activations": gib["activations_gib"],
        "CUDA graphs": gib["cuda_graphs_gib"],
        "context and workspaces": gib["other_gib"],
        "KV cache": gib["kv_cache_gib"],
        "free": max(0.0, total - sum(gib.values())),
        total_label: total,
    }
    several = [f"{num_gpus} GPUS"] if num_gpus > 1 else []
    rows = [["ESTIMATED MEMORY", "EACH GPU", *several, "UNIT"]]
    for name, value in parts.items():
        sums = [f"{value * num_gpus:,.1f}"] if several else []
        rows.append([name, f"{value:,.1f}", *sums, "GiB"])
    return columns(rows, range(1, len(several) + 2))


def _speed(estimate: Mapping[str, Any]) -> Iterator[str]:
    """How fast the servers are by measured rows, or why there is no number and what would tell."""
    from ..estimates import measuring_plan, plan_estimate
    from ..estimates.question import number
    from ..facts.measures import MEASURES

    if "refused" in estimate:
        yield from wrapped("ESTIMATED SPEED  ", f"none: {estimate['refused']}")
        if loads := estimate["measure"]:
            command = measuring_plan.command(estimate["isl"], estimate["osl"], loads)
            yield from wrapped("  measure: ", command)
    else:
        rows = [["ESTIMATED SPEED", "VALUE", "FROM", "TO", "UNIT"]]
        for key, (name, unit) in MEASURES.items():
            ends = (number(estimate[key][end]) for end in ("value", "low", "high"))
            rows.append([name, *ends, unit])
        yield columns(rows, range(1, 4))
        yield from wrapped("  from ", plan_estimate.evidence_text(estimate))
        yield from (line for note in estimate["notes"] for line in wrapped("  note: ", note))
    if found := estimate.get("disagreement"):
        yield from wrapped("  measured rows disagree: ", found)
    for near in estimate["nearest"][:1]:
        yield from wrapped("  nearest: ", near)
    for point in estimate.get("published", ()):
        if not point["agrees"]:
            yield from wrapped("  published: ", plan_estimate.published_text(point))


def _options(document: Mapping[str, Any]) -> str:
    """Every option and server flag that is set, and those that are left to the engine."""
    rows = [row for row in document["decisions"] if not row["path"].startswith("environment.")]
    width = WIDTH - 4 - max(len(row["path"]) for row in rows)
    width -= max(len(row["evidence"]) for row in rows)
    table = [("OPTION", "VALUE", "FROM")]
    for row in rows:
        first, *more = textwrap.wrap(_shown(row["value"]), max(width, 16)) or [""]
        table.append((row["path"], first, row["evidence"]))
        table += [("", line, "") for line in more]
    left = document["engine_defaults"]
    known = [f"{row['path']} {_shown(row['value'])}" for row in left if row["value"] is not None]
    unset = [row["path"] for row in left if row["value"] is None]
    lines = wrapped("engine defaults: ", ", ".join(known)) if known else []
    lines += wrapped("not set:         ", ", ".join(unset)) if unset else []
    return "\n".join([columns(table), "", *lines])


def _shown(value: Any) -> str:
    """A value as JSON; of a list of rising numbers, those side by side as a range."""
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        return json.dumps(value, ensure_ascii=False)
    runs: list[list[int]] = []
    for item in value:
        if runs and item == runs[-1][-1] + 1:
            runs[-1].append(item)
        else:
            runs.append([item])
    parts = (f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
    return f"[{', '.join(parts)}]"


def _rest(document: Mapping[str, Any]) -> str:
    """What `--why` would add."""
    variables = sum(row["path"].startswith("environment.") for row in document["decisions"])
    counts = {
        "environment variable": variables,
        "published option not used": len(document["differences"]),
        "published result": len(document["published"]),
    }
    more = [f"{count} {name}{'s' * (count != 1)}" for name, count in counts.items() if count]
    listed = ", ".join(["the reason and the source of each value", *more])
    return "\n".join(wrapped("--why adds ", listed))


def reasons_text(document: Mapping[str, Any]) -> str:
    """Why each value is what it is, and what was published for this model on these GPUs."""
    parts = [decisions_text([*document["decisions"], *document["engine_defaults"]])]
    if document["differences"]:
        parts.append("Published options that this plan does not use:")
        parts += map(_difference, document["differences"])
    parts += (part for row in document["published"] for part in _published(row))
    for row in document.get("accepted_warnings", ()):
        text = f"{row['where']}: {row['what']}; {row['reason']}"
        parts.append("\n".join(wrapped("accepted warning: ", text)))
    return "\n\n".join(parts)


def decisions_text(rows: Iterable[Mapping[str, Any]]) -> str:
    return "\n\n".join(
        "\n".join(
            [
                *wrapped("", f"{row['path']} = {json.dumps(row['value'], ensure_ascii=False)}"),
                *wrapped("  why       ", row["reason"]),
                *wrapped("  evidence  ", f"{row['evidence']}: {row['source']}"),
            ]
        )
        for row in rows
    )


def _difference(row: Mapping[str, Any]) -> str:
    planned = "not set" if row["planned"] is None else json.dumps(row["planned"])
    text = f"{row['path']}: published {json.dumps(row['published'])}, here {planned}"
    return "\n".join([*wrapped("  ", text), *wrapped("    ", f"{row['reason']} ({row['source']})")])


def _published(row: Mapping[str, Any]) -> Iterator[str]:
    from ..facts import published_results

    heading = "Published for this model on these GPUs"
    heading += ":" if row["engine"] == "tensorrt-llm" else f", with {row['engine']}:"
    figures: Sequence[str] = [
        line for item in row["figures"] for line in wrapped("  ", published_results.describe(item))
    ]
    yield "\n".join([heading, *figures])
    text = f"{row['source']}; {row['workload']}"
    if row["incomplete"]:
        text += f"; not said: {', '.join(row['incomplete'])}"
    yield "\n".join(wrapped("  ", text))
