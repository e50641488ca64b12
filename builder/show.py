"""Presets, checkpoints, plans and decisions as text for a terminal of 80 columns."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from . import checkpoint as checkpoints
from . import deployment, results
from .checkpoint import Checkpoint
from .errors import BadInput, Problem, nearest

WIDTH = 80


def preset_rows() -> list[dict[str, Any]]:
    """The presets as `presets --json` prints them."""
    rows = []
    for name in deployment.preset_names():
        document = deployment.read(name)
        facts = checkpoints.gather(document.get("checkpoint"))
        gpu, num_gpus = document.get("hardware.gpu"), document.get("hardware.num_gpus")
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
                    for row in results.published(facts, gpu, num_gpus)
                    for figure in row.figures
                ],
            }
        )
    return rows


def presets_table(rows: Sequence[Mapping[str, Any]]) -> str:
    table = [("PRESET", "PRECISION", "GPUS", "RELEASE", "PUBLISHED")]
    for row in rows:
        figures = [
            f"{item['output_tokens_per_s']:.0f} tok/s at {item['concurrency']}"
            for item in row["published"]
        ]
        precision = row["precision"].removesuffix("_BLOCK_SCALES")
        gpus = f"{row['num_gpus']}x {row['gpu']}"
        table.append((row["name"], precision, gpus, row["release"], ", ".join(figures) or "-"))
    return _columns(table)


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


def checkpoint(facts: Checkpoint) -> str:
    quantization = facts.quantization
    lines = [
        f"{facts.name}",
        f"  architecture   {facts.architecture.name}, attention {facts.architecture.attention}",
        f"  parameters     {facts.parameters / 1e9:.2f} billion",
        f"  size           {_size(facts.nbytes)}{_published_size(facts)}",
        f"  precision      {facts.precision} ({quantization.source})",
        f"  KV cache       {quantization.kv_cache_quant_algo or 'not quantized'}",
        f"  MTP layers     {facts.mtp_layers}",
        *_wrapped("  facts          ", facts.source),
        "",
        _columns(
            [("TENSORS", "DTYPE", "COUNT", "SIZE")]
            + [
                (
                    ("mtp " if group.mtp else "") + group.role.replace("_", " "),
                    group.dtype,
                    f"{group.count:,}",
                    _size(group.nbytes),
                )
                for group in facts.groups
            ]
        ),
    ]
    for note in facts.notes:
        lines += ["", *_wrapped("note: ", note)]
    return "\n".join(lines)


def _published_size(facts: Checkpoint) -> str:
    return f", published {_size(facts.published_bytes)}" if facts.published_bytes else ""


def plan(document: Mapping[str, Any]) -> str:
    """Decisions, memory and published figures of `plan`."""
    parts = [decisions(document["decisions"])]
    if document["differences"]:
        parts.append("Published options that this plan does not use:")
        parts += [
            "\n".join(
                [
                    *_wrapped("  ", _difference(row)),
                    *_wrapped("    ", f"{row['reason']} ({row['source']})"),
                ]
            )
            for row in document["differences"]
        ]
    parts.append(_memory(document["memory"]))
    for row in document["published"]:
        figures = "; ".join(
            f"concurrency {item['concurrency']:.0f}: {item['output_tokens_per_s']:.0f} output "
            f"tok/s, median latency {item['median_e2e_latency_ms'] / 1000:.1f} s"
            for item in row["figures"]
        )
        heading = "Published for this model on these GPUs:"
        parts.append("\n".join([heading, *_wrapped("  ", figures)]))
        parts.append("\n".join(_wrapped("  ", f"{row['source']}; {row['workload']}")))
    return "\n\n".join(parts)


def _difference(row: Mapping[str, Any]) -> str:
    planned = "not set" if row["planned"] is None else json.dumps(row["planned"])
    return f"{row['path']}: published {json.dumps(row['published'])}, here {planned}"


def _memory(memory: Mapping[str, Any]) -> str:
    gib = memory["per_gpu"]
    rows = [
        ("weights", gib["weights_gib"]),
        ("activations", gib["activations_gib"]),
        ("CUDA graphs", gib["cuda_graphs_gib"]),
        ("context and workspaces", gib["other_gib"]),
        ("KV cache", gib["kv_cache_gib"]),
        (_total_label(memory), gib["total_gib"]),
    ]
    return "\n".join(
        [
            "Memory of one GPU, estimated, in GiB:",
            *(f"  {name:<26}{value:>8.1f}" for name, value in rows),
            f"The KV cache holds {memory['kv_tokens']:,} tokens of "
            f"{memory['kv_bytes_per_token']:,} bytes,",
            f"or {memory['max_concurrency']:,} requests of the workload's length at once.",
        ]
    )


def _total_label(memory: Mapping[str, Any]) -> str:
    return "total that CUDA reports" if memory["total_verified"] else "total, itself estimated"


def matching_decisions(manifest: Mapping[str, Any], path: str | None) -> list[dict[str, Any]]:
    """The decisions at or below an option path. Raises `BadInput` if there are none."""
    rows: list[dict[str, Any]] = manifest["decisions"]
    if path is None:
        return rows
    found = [row for row in rows if row["path"] == path or row["path"].startswith(f"{path}.")]
    if not found:
        known = [row["path"] for row in rows]
        raise BadInput(Problem(path, "nothing was decided for it", nearest(path, known)))
    return found


def decisions(rows: Iterable[Mapping[str, Any]]) -> str:
    return "\n\n".join(
        "\n".join(
            [
                *_wrapped("", f"{row['path']} = {json.dumps(row['value'], ensure_ascii=False)}"),
                *_wrapped("  why       ", row["reason"]),
                *_wrapped("  evidence  ", f"{row['evidence']}: {row['source']}"),
            ]
        )
        for row in rows
    )


def _size(nbytes: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= scale:
            return f"{nbytes / scale:.2f} {unit}"
    return f"{nbytes:.0f} B"


def _wrapped(label: str, text: str) -> list[str]:
    indent = " " * (len(label) or 4)
    return textwrap.wrap(text, WIDTH, initial_indent=label, subsequent_indent=indent)


def _columns(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
