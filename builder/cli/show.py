"""Presets, checkpoints, plans and decisions as text for a terminal of 80 columns."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ..diagnostics import Diagnostic, nearest
from ..errors import BadInput
from ..facts import advisories, release
from ..facts import checkpoint as checkpoints
from ..facts import published_results as results
from ..facts.checkpoint import Checkpoint
from ..facts.csaf import Update
from ..facts.release import Release, ServerRole
from ..lint import Checked, Report
from ..lint.report import as_line, subject

WIDTH = 80
MANY_FILES = 20


def preset_rows() -> list[dict[str, Any]]:
    """The presets as `presets --json` prints them."""
    from .. import deployment  # brings pydantic, which the other verbs here do without

    rows = []
    for name in deployment.preset_names():
        document = deployment.read(name)
        facts = checkpoints.gather(document.get("checkpoint"))
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
                    for row in results.published(facts, gpu, num_gpus, role)
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
    legend = "PUBLISHED: highest rate in output tokens/s, for prefill in prompt tokens/s"
    return f"{_columns(table)}\n\n{legend}"


def release_rows(tables: Sequence[Release]) -> list[dict[str, Any]]:
    """Option tables as `release list --json` prints them."""
    return [
        {
            "name": table.name,
            "options": sum("*" not in path for path in table.paths),
            "flags": len(table.serve_flags),
            "rules": len(table.rule_ids),
            "triton_containers": list(table.triton_containers),
            "confidence": table.confidence,
            "sources": list(table.sources),
            "carried_from": dict(table.carried_from),
        }
        for table in tables
    ]


def releases_table(rows: Sequence[Mapping[str, Any]]) -> str:
    table = [("RELEASE", "OPTIONS", "FLAGS", "TRITON CONTAINERS", "CARRIED FROM")]
    for row in rows:
        counts = (str(row["options"]), str(row["flags"]))
        carried = ", ".join(dict.fromkeys(row["carried_from"].values())) or "-"
        table.append((row["name"], *counts, ", ".join(row["triton_containers"]) or "-", carried))
    return _columns(table)


def advisory_rows() -> list[dict[str, Any]]:
    """Products and what their known versions are open to, as `advisories --json` prints them."""
    from ..facts import engines, images, servers

    carried = map(servers.load, servers.names())
    known = {row.image.product: images.versions(row.name) for row in carried}
    known[engines.default().product] = release.known()
    return [
        {
            "product": product,
            "name": advisories.name(product),
            "as_of": advisories.as_of(product),
            "minimum": asdict(advisories.minimum(product)),
            "closes_all": advisories.closes_all(product),
            "versions": [_open_row(product, version) for version in known[product]],
        }
        for product in advisories.products()
    ]


def _open_row(product: str, version: str) -> dict[str, Any]:
    keys = ("cve", "cvss", "cwe", "fixed_in", "bulletin", "published")
    found = [asdict(row) for row in advisories.open_for(product, version)]
    return {
        "version": version,
        "refused": advisories.is_refused(product, version),
        "open": [{key: row[key] for key in keys} for row in found],
    }


def advisories_text(rows: Sequence[Mapping[str, Any]]) -> str:
    return "\n\n".join("\n".join(_advisories_of(row)) for row in rows)


def _advisories_of(row: Mapping[str, Any]) -> Iterator[str]:
    least = row["minimum"]
    yield f"{row['name']}, advisories as of {row['as_of']}"
    yield from wrapped("  minimum:  ", f"{least['version']}: {least['reason']}")
    yield f"  {row['closes_all']} has every known fix"
    for version in row["versions"]:
        word = "refused" if version["refused"] else "allowed"
        found = [f"{each['cve']} ({_cvss(each['cvss'])})" for each in version["open"]]
        yield f"  {version['version']}: {word}, {len(found)} open"
        yield from wrapped("    ", ", ".join(found))


def _cvss(score: float | None) -> str:
    return "not scored" if score is None else f"{score:.1f}"


def advisory_updates(found: Sequence[Update]) -> str:
    """What an update of the advisories has changed."""
    lines = []
    for each in found:
        lines.append(f"{advisories.name(each.product)}: as of {' -> '.join(_once(each.as_of))}")
        for row in each.new:
            fixed = f"fixed in {row.fixed_in}" if row.fixed_in else "no fix known"
            lines.append(f"  new: {row.cve} ({_cvss(row.cvss)}), {fixed}, bulletin {row.bulletin}")
        for old, new in each.changed:
            one, two = asdict(old), asdict(new)
            words = [f"{key} {one[key]} -> {two[key]}" for key in one if one[key] != two[key]]
            lines.append(f"  changed: {old.cve}: {', '.join(words)}")
        if not each.new and not each.changed:
            lines.append("  nothing new")
        lines.append(f"  minimum: {' -> '.join(_once(each.minimum))}")
    return "\n".join(lines)


def _once(values: Iterable[str]) -> Iterable[str]:
    return dict.fromkeys(values)


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
        *wrapped("  facts          ", facts.source),
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
        lines += ["", *wrapped("note: ", note)]
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
                    *wrapped("  ", _difference(row)),
                    *wrapped("    ", f"{row['reason']} ({row['source']})"),
                ]
            )
            for row in document["differences"]
        ]
    parts.append(_memory(document["memory"]))
    for row in document["published"]:
        heading = "Published for this model on these GPUs"
        heading += ":" if row["engine"] == "tensorrt-llm" else f", with {row['engine']}:"
        figures = [line for item in row["figures"] for line in wrapped("  ", results.words(item))]
        parts.append("\n".join([heading, *figures]))
        text = f"{row['source']}; {row['workload']}"
        if row["incomplete"]:
            text += f"; not said: {', '.join(row['incomplete'])}"
        parts.append("\n".join(wrapped("  ", text)))
    return "\n\n".join(parts)


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


def findings(report: Report) -> str:
    """One line per finding, drift as a block each, then what was checked and as what."""
    lines = [as_line(row) for row in report.findings if row.rule != "drift"]
    for row in report.findings:
        if row.rule == "drift":
            line, column = row.location
            lines += ["", f"{row.where}:{line}:{column}: drift: {subject(row)}"]
            lines += wrapped("  ", f"{row.message}; {row.fix}" if row.fix else row.message)
    if lines:
        lines.append("")
    lines += [f"note: {note}" for note in report.notes]
    return "\n".join([*lines, *_checked(report), _totals(report)])


def _checked(report: Report) -> Iterator[str]:
    """What each file was taken for, or of many files the number per kind."""
    if len(report.files) <= MANY_FILES:
        yield from (f"{row.file}: {row.kind}{_by(row)}" for row in report.files)
        return
    counts = Counter(f"{row.kind}{_by(row)}" for row in report.files)
    yield from (f"{count} x {kind}" for kind, count in sorted(counts.items()))


def _by(row: Checked) -> str:
    if not row.releases:
        return ""
    guess = ", assumed: the newest stable one" if row.assumed else ""
    return f", release {' and '.join(row.releases)}{guess}"


def _totals(report: Report) -> str:
    files, errors = len(report.files), report.errors
    warnings = len(report.findings) - errors
    return (
        f"checked {files} file{'s' * (files != 1)}: {errors} error{'s' * (errors != 1)}, "
        f"{warnings} warning{'s' * (warnings != 1)}"
    )


def matching_decisions(manifest: Mapping[str, Any], path: str | None) -> list[dict[str, Any]]:
    """The decisions at or below an option path. Raises `BadInput` if there are none."""
    rows: list[dict[str, Any]] = manifest["decisions"]
    if path is None:
        return rows
    found = [row for row in rows if row["path"] == path or row["path"].startswith(f"{path}.")]
    if not found:
        known = [row["path"] for row in rows]
        raise BadInput(Diagnostic(path, "nothing was decided for it", nearest(path, known)))
    return found


def decisions(rows: Iterable[Mapping[str, Any]]) -> str:
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


def _size(nbytes: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= scale:
            return f"{nbytes / scale:.2f} {unit}"
    return f"{nbytes:.0f} B"


def wrapped(label: str, text: str) -> list[str]:
    """A text in lines of the terminal's width, the later ones below the first; names stay whole."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=label,
        subsequent_indent=" " * (len(label) or 4),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _columns(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def verified(report: Mapping[str, Any]) -> str:
    """An intact bundle: what was compared, and what the signature is worth."""
    lines = [
        f"{report['folder']}: {report['rendered']} files match, digest {report['digest']}",
        f"evidence: {report['evidence']} files" if report["evidence"] else "evidence: none",
    ]
    signer = report["signer"]
    if signer is None:
        lines.append("signature: none; who made these files is not known")
    elif signer["name"] is None:
        lines.append(f"signature: by key {signer['key']}; whose that is was not checked: --signers")
    else:
        lines.append(f"signature: by {signer['name']}, key {signer['key']}")
    return "\n".join(lines)
