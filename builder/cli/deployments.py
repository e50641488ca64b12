"""Runs the verbs for checkpoints and deployments: presets, inspect, plan, render, miniature."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from ..diagnostics import Diagnostic, one_line
from ..errors import BadInput
from ..files import reported
from .terminal import (
    WIDTH,
    Parser,
    add_deployment,
    add_json,
    add_output,
    columns,
    print_json,
    size,
    warn,
    wrapped,
)

if TYPE_CHECKING:
    from ..deployment import Deployment
    from ..facts.checkpoint import Checkpoint
    from ..facts.release import ServerRole
    from ..planning import Plan


def add_presets(parser: Parser) -> None:
    add_json(parser)


def run_presets(options: argparse.Namespace) -> None:
    rows = preset_rows()
    print_json(rows) if options.json else print(presets_table(rows))


def preset_rows() -> list[dict[str, Any]]:
    """The presets as `presets --json` prints them."""
    from .. import deployment
    from ..facts import checkpoint, published_results

    rows = []
    for name in deployment.preset_names():
        document = deployment.read(name)
        facts = checkpoint.gather(document.get("checkpoint"))
        gpu, num_gpus = document.get("hardware.gpu"), document.get("hardware.num_gpus")
        role: ServerRole = document.get("role") or "agg"
        published: list[dict[str, Any]] = []
        for found in published_results.published(facts, gpu, num_gpus, role):
            published += ({"source": found.source, **figure} for figure in found.figures)
        row = {"name": name, "model": facts.name, "precision": facts.precision, "gpu": gpu}
        release = document.get("engine.release")
        rows.append({**row, "num_gpus": num_gpus, "release": release, "published": published})
    return rows


def presets_table(rows: Sequence[Mapping[str, Any]]) -> str:
    table = [("PRESET", "PRECISION", "GPUS", "RELEASE", "PUBLISHED")]
    for row in rows:
        precision = row["precision"].removesuffix("_BLOCK_SCALES")
        gpus = f"{row['num_gpus']} {row['gpu']}"
        best = best_figure(row["published"])
        table.append((row["name"], precision, gpus, row["release"], best))
    return f"{columns(table)}\n\n{_LEGEND}"


_LEGEND = """\
GPUS: per server
PUBLISHED: highest rate in output tokens/s (prefill: prompt tokens/s)"""

# The unit of each metric in the table of presets; the first one that was published is shown.
_SHORT = {
    "output_tokens_per_s": " tok/s",
    "output_tokens_per_s_per_user": "/user",
    "output_tokens_per_s_per_gpu": "/GPU",
    "prefill_tokens_per_s_per_gpu": "/GPU",
}


def best_figure(figures: Sequence[Mapping[str, Any]]) -> str:
    """The highest published rate; `plan` shows all figures with their load."""
    for metric, unit in _SHORT.items():
        if found := [figure[metric] for figure in figures if metric in figure]:
            best = max(found)
            return f"{best:.0f}{unit}" if best < 1000 else f"{best / 1000:.2g}k{unit}"
    return "-"


def add_inspect(parser: Parser) -> None:
    parser.add_argument("checkpoint", help="a folder, or a hub name whose facts ship")
    add_json(parser)


def run_inspect(options: argparse.Namespace) -> None:
    from ..facts import checkpoint

    facts = checkpoint.gather(options.checkpoint)
    print_json(checkpoint_document(facts)) if options.json else print(checkpoint_text(facts))


def checkpoint_document(facts: Checkpoint) -> dict[str, Any]:
    """The facts as `inspect --json` prints them."""
    return {
        "name": facts.name,
        "path": str(facts.path) if facts.path else None,
        "source": facts.source,
        "verified": facts.verified,
        "architecture": facts.architecture.name,
        "attention": facts.architecture.attention,
        "precision": facts.precision,
        "quant_algo": facts.quantization.quant_algo,
        "kv_cache_quant_algo": facts.quantization.kv_cache_quant_algo,
        "mtp_layers": facts.mtp_layers,
        "parameters": facts.parameters,
        "bytes": facts.nbytes,
        "published_bytes": facts.published_bytes,
        "tensor_groups": [
            {
                "role": group.role,
                "mtp": group.mtp,
                "dtype": group.dtype,
                "count": group.count,
                "bytes": group.nbytes,
            }
            for group in facts.groups
        ],
        "notes": list(facts.notes),
    }


def checkpoint_text(facts: Checkpoint) -> str:
    quantization = facts.quantization
    published = f", published {size(facts.published_bytes)}" if facts.published_bytes else ""
    rows = [("TENSORS", "DTYPE", "COUNT", "SIZE")]
    for group in facts.groups:
        role = ("mtp " if group.mtp else "") + group.role.replace("_", " ")
        rows.append((role, group.dtype, f"{group.count:,}", size(group.nbytes)))
    lines = [
        one_line(facts.name),
        f"  architecture   {facts.architecture.name}, attention {facts.architecture.attention}",
        f"  parameters     {facts.parameters / 1e9:.2f} billion",
        f"  size           {size(facts.nbytes)}{published}",
        f"  precision      {facts.precision} ({quantization.source})",
        f"  KV cache       {quantization.kv_cache_quant_algo or 'not quantized'}",
        f"  MTP layers     {facts.mtp_layers}",
        *wrapped("  facts          ", facts.source),
        "",
        columns(rows),
    ]
    for note in facts.notes:
        lines += ["", *wrapped("note: ", note)]
    return "\n".join(lines)


def add_render(parser: Parser) -> None:
    add_deployment(parser)
    add_output(parser)
    parser.add_argument("--force", action="store_true", help="replace DIR, whatever it contains")


def run_render(options: argparse.Namespace) -> None:
    from .. import pipeline

    bundle = pipeline.render(
        options.deployment, options.output, options.set, options.force, options.target
    )
    warn(bundle.manifest["warnings"])
    files = len(bundle.manifest["files"])
    print(f"{bundle.folder}\n{files} files, digest {bundle.digest}")


def add_miniature(parser: Parser) -> None:
    parser.add_argument("checkpoint", help="a folder, or a hub name whose facts ship")
    add_output(parser)
    parser.add_argument("--seed", type=int, default=0, help="seed of the random weights")


def run_miniature(options: argparse.Namespace) -> None:
    from .. import miniature
    from ..facts import checkpoint

    facts, folder = checkpoint.gather(options.checkpoint), options.output
    remedy = "choose another folder"
    with reported(folder, "cannot be written", remedy):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise BadInput(Diagnostic(str(folder), "exists and is not empty", remedy))
        folder.mkdir(parents=True, exist_ok=True)
        try:
            miniature.write(facts, folder, options.seed)
        except BaseException:
            for path in folder.iterdir():
                path.unlink()
            raise
    print(f"{folder}: {facts.architecture.name}, {facts.precision}, random weights")


_KEYS = (
    *("decisions", "engine_defaults", "differences", "warnings"),
    *("limits", "memory", "estimate", "published", "nearest_published", "known_defects"),
)


def add_plan(parser: Parser) -> None:
    add_deployment(parser)
    parser.add_argument("--why", action="store_true", help="also show the reason of each value")
    add_json(parser)


def run_plan(options: argparse.Namespace) -> None:
    from .. import pipeline

    planned = pipeline.plan(options.deployment, options.set, options.target)
    document = pipeline.manifest_facts(planned)
    document = {**document, "nearest_published": _nearest_published(planned.plan)}
    found = pipeline.known_defects(planned)
    document["known_defects"] = [row.document() for row in found]
    if options.json:
        accepted = document.get("accepted_warnings", [])
        print_json({**{key: document[key] for key in _KEYS}, "accepted_warnings": accepted})
    else:
        words = [options.deployment]
        for change in options.set:
            words += ["--set", change]
        print(summary_text(document, planned.plan.deployment, shlex.join(words)))
        print(f"\n{reasons_text(document)}" if options.why else f"\n{_rest(document)}")
    warn(document["warnings"])
    if options.json or options.why:
        return
    for product, said in _open_defects(document):
        if product == planned.plan.deployment.engine.name:
            print(f"warning: {said}", file=sys.stderr)


def _nearest_published(plan: Plan) -> str | None:
    from ..facts import published_results

    facts, request = plan.facts, plan.deployment
    if facts.published:
        return None
    where = facts.gpu.name, request.hardware.num_gpus, request.role, request.engine.name
    row = published_results.nearest(facts.checkpoint, *where)
    if row is None:
        return f"no published results for {facts.checkpoint.architecture.name}"
    what = f"{row.checkpoint} on {row.num_gpus} {row.gpu} with {row.engine}"
    what = f"{what}, {row.workload}: {row.source}"
    return f"none for these GPUs; most similar: {what}"


def summary_text(document: Mapping[str, Any], request: Deployment, words: str) -> str:
    """The plan on one screen: limits, memory, speed and options.

    `words` name the deployment on a command line.
    """
    hardware, load = request.hardware, request.workload
    engine = f"{request.engine.name} {request.engine.release}"
    count = f"{request.instances} instances on " if request.instances > 1 else ""
    what = f"{document['inputs']['checkpoint']['name']}, {count}{hardware.num_gpus} {hardware.gpu}"
    parts = [
        *wrapped(f"{request.name}: ", f"{what}, {engine}, role {request.role}"),
        *wrapped(
            "workload: ",
            f"{load.isl:,} prompt and {load.osl:,} output tokens, "
            f"{load.concurrency:,} concurrent requests",
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
    """The nearest published result, and how to find the nearest measurements."""
    from ..estimates.plan_estimate import NO_ROW

    estimate = document["estimate"]
    if nearest := document.get("nearest_published"):
        yield from wrapped("PUBLISHED  ", nearest)
        if estimate.get("refused", "").startswith(NO_ROW) and not estimate["nearest"]:
            command = f"python -m builder estimate {words}"
            yield from wrapped(" " * 11, f"nearest measurements: {command}")
        yield ""


def _limits(limits: Mapping[str, Any]) -> str:
    """Limits per rank, per server and in total; equal columns are shown once."""
    ranks, instances = limits["ranks"], limits["instances"]
    heads = {"EACH RANK": 1, "EACH SERVER": ranks, "ALL SERVERS": ranks * instances}
    is_shown = {"EACH RANK": ranks > 1, "EACH SERVER": True, "ALL SERVERS": instances > 1}
    shown = [name for name in heads if is_shown[name]]
    length, bound = limits["longest_prompt_tokens"], limits["bounded_by"]
    unit = f"requests of {limits['tokens_per_request']:,} tokens"
    each = (
        ("KV cache holds", limits["kv_requests_per_rank"], unit),
        ("max batch size", limits["batch_requests_per_rank"], "requests"),
        ("max CUDA graph batch size", limits["graph_requests_per_rank"], "requests"),
        ("KV cache size", limits["kv_tokens_per_rank"], "tokens"),
        ("tokens per step", limits["step_tokens_per_rank"], "tokens"),
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
    total_label = "total reported by CUDA" if memory["total_verified"] else "total, also estimated"
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
    title = "MEASURED MEMORY" if memory.get("evidence") else "ESTIMATED MEMORY"
    rows = [[title, "EACH GPU", *several, "UNIT"]]
    for name, value in parts.items():
        sums = [f"{value * num_gpus:,.1f}"] if several else []
        rows.append([name, f"{value:,.1f}", *sums, "GiB"])
    return columns(rows, range(1, len(several) + 2))


def _speed(estimate: Mapping[str, Any]) -> Iterator[str]:
    from ..estimates import Interval, plan_estimate, refusals
    from ..facts.published_results import MEASURES

    if "refused" in estimate:
        yield from wrapped("ESTIMATED SPEED  ", f"none: {estimate['refused']}")
        if loads := estimate["measure"]:
            command = refusals.command(estimate["isl"], estimate["osl"], loads)
            yield from wrapped("  measure: ", command)
    else:
        rows = [("ESTIMATED SPEED", "VALUE (INTERVAL)", "UNIT")]
        for key, (name, unit) in MEASURES.items():
            interval, shown = Interval(**estimate[key]).in_unit(unit)
            rows.append((name, str(interval), shown))
        yield columns(rows)
        yield from wrapped("  from ", plan_estimate.evidence_text(estimate))
        for note in estimate["notes"]:
            yield from wrapped("  note: ", note)
    if found := estimate.get("disagreement"):
        yield from wrapped("  measurements disagree: ", found)
    for near in estimate["nearest"][:1]:
        yield from wrapped("  nearest: ", near)
    for point in estimate.get("published", ()):
        if not point["agrees"]:
            yield from wrapped("  published: ", plan_estimate.published_text(point))


def _options(document: Mapping[str, Any]) -> str:
    """Every option and server flag that is set, and the ones left to the engine."""
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


def _open_defects(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Known defects under conditions that no deployment tells, each with its product."""
    for row in document["known_defects"]:
        if row["only_if"]:
            yield row["product"], f"only if {row['only_if']}: {row['what']}; {row['remedy']}"


def _shown(value: Any) -> str:
    """A value as JSON; runs of consecutive numbers in a list are shown as ranges."""
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
    variables = sum(row["path"].startswith("environment.") for row in document["decisions"])
    counts = {
        "environment variable": variables,
        "published option not used": len(document["differences"]),
        "published result": len(document["published"]),
        "known defect": sum(bool(row["only_if"]) for row in document["known_defects"]),
    }
    more = [f"{count} {name}{'s' * (count != 1)}" for name, count in counts.items() if count]
    listed = ", ".join(["the reason and the source of each value", *more])
    return "\n".join(wrapped("--why adds ", listed))


def reasons_text(document: Mapping[str, Any]) -> str:
    """The reason of each value, and published results for this model on these GPUs."""
    parts = [decisions_text([*document["decisions"], *document["engine_defaults"]])]
    if document["differences"]:
        parts.append("Published options not used by this plan:")
        parts += map(_difference, document["differences"])
    for row in document["published"]:
        parts += _published(row)
    for row in document.get("accepted_warnings", ()):
        text = f"{row['where']}: {row['what']}; {row['reason']}"
        parts.append("\n".join(wrapped("accepted warning: ", text)))
    for _, said in _open_defects(document):
        parts.append("\n".join(wrapped("known defect ", said)))
    return "\n\n".join(parts)


def decisions_text(rows: Iterable[Mapping[str, Any]]) -> str:
    parts = []
    for row in rows:
        lines = wrapped("", f"{row['path']} = {json.dumps(row['value'], ensure_ascii=False)}")
        lines += wrapped("  why       ", row["reason"])
        lines += wrapped("  evidence  ", f"{row['evidence']}: {row['source']}")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _difference(row: Mapping[str, Any]) -> str:
    planned = "not set" if row["planned"] is None else json.dumps(row["planned"])
    text = f"{row['path']}: published {json.dumps(row['published'])}, here {planned}"
    return "\n".join([*wrapped("  ", text), *wrapped("    ", f"{row['reason']} ({row['source']})")])


def _published(row: Mapping[str, Any]) -> Iterator[str]:
    from ..facts import published_results

    heading = "Published for this model on these GPUs"
    heading += ":" if row["engine"] == "tensorrt-llm" else f", with {row['engine']}:"
    figures = [wrapped("  ", published_results.describe(item)) for item in row["figures"]]
    yield "\n".join([heading, *chain.from_iterable(figures)])
    text = f"{row['source']}; {row['workload']}"
    if row["incomplete"]:
        text += f"; not published: {', '.join(row['incomplete'])}"
    yield "\n".join(wrapped("  ", text))
