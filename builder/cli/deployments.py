"""The verbs of checkpoints and deployments: presets, inspect, render and miniature."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..diagnostics import Diagnostic, one_line
from ..errors import BadInput
from .arguments import Parser, add_deployment, add_json, add_output
from .terminal import columns, print_json, size, warn, wrapped

if TYPE_CHECKING:
    from pathlib import Path

    from ..facts.checkpoint import Checkpoint
    from ..facts.release import ServerRole


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
        rows.append(
            {
                "name": name,
                "model": facts.name,
                "precision": facts.precision,
                "gpu": gpu,
                "num_gpus": num_gpus,
                "release": document.get("engine.release"),
                "published": [
                    {"source": row.source, **figure}
                    for row in published_results.published(facts, gpu, num_gpus, role)
                    for figure in row.figures
                ],
            }
        )
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
GPUS: of one server
PUBLISHED: highest rate in output tokens/s, for prefill in prompt tokens/s"""

# What the table of presets shows of a metric, in this order.
_SHORT = {
    "output_tokens_per_s": " tok/s",
    "output_tokens_per_s_per_user": "/user",
    "output_tokens_per_s_per_gpu": "/GPU",
    "prefill_tokens_per_s_per_gpu": "/GPU",
}


def best_figure(figures: Sequence[Mapping[str, Any]]) -> str:
    """The highest rate of one kind; `plan` shows all figures with their load."""
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
    lines = [
        one_line(facts.name),
        f"  architecture   {facts.architecture.name}, attention {facts.architecture.attention}",
        f"  parameters     {facts.parameters / 1e9:.2f} billion",
        f"  size           {size(facts.nbytes)}{_published_size(facts)}",
        f"  precision      {facts.precision} ({quantization.source})",
        f"  KV cache       {quantization.kv_cache_quant_algo or 'not quantized'}",
        f"  MTP layers     {facts.mtp_layers}",
        *wrapped("  facts          ", facts.source),
        "",
        columns(
            [("TENSORS", "DTYPE", "COUNT", "SIZE")]
            + [
                (
                    ("mtp " if group.mtp else "") + group.role.replace("_", " "),
                    group.dtype,
                    f"{group.count:,}",
                    size(group.nbytes),
                )
                for group in facts.groups
            ]
        ),
    ]
    for note in facts.notes:
        lines += ["", *wrapped("note: ", note)]
    return "\n".join(lines)


def _published_size(facts: Checkpoint) -> str:
    return f", published {size(facts.published_bytes)}" if facts.published_bytes else ""


def add_render(parser: Parser) -> None:
    add_deployment(parser)
    add_output(parser)
    parser.add_argument("--force", action="store_true", help="replace whatever DIR holds")


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
    parser.add_argument("--seed", type=int, default=0, help="another seed gives other weights")


def run_miniature(options: argparse.Namespace) -> None:
    from .. import miniature
    from ..facts import checkpoint

    facts, folder = checkpoint.gather(options.checkpoint), options.output
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise BadInput(
                Diagnostic(str(folder), "exists and is not empty", "choose another folder")
            )
        folder.mkdir(parents=True, exist_ok=True)
        _write_miniature(lambda: miniature.write(facts, folder, options.seed), folder)
    except OSError as error:
        what = f"cannot be written: {error.strerror}"
        raise BadInput(Diagnostic(str(folder), what, "choose another folder")) from None
    print(f"{folder}: {facts.architecture.name}, {facts.precision}, random weights")


def _write_miniature(write: Callable[[], None], folder: Path) -> None:
    """Half of a checkpoint is none: what was written goes if the rest cannot be."""
    try:
        write()
    except BaseException:
        for path in folder.iterdir():
            path.unlink()
        raise
