"""Takes public measurements into `builder/data/measurements`: repairs them, and says what it did.

    python -m maintenance.import_measurements ROWS.csv [--newer NEWER.csv] [--configurations C.csv]

ROWS.csv is in the form of AIConfigurator's table of measured rows, NEWER.csv in that of our own
collection of published figures; C.csv has what runs of InferenceX were configured as, by day. The
same files give the same bytes. Run `python -m maintenance.fit_estimates` afterwards.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from builder import command
from builder.documents import dump_yaml
from builder.estimates import measurements, names
from builder.estimates.cells import key_of
from builder.estimates.measurements import DisaggregatedRow, Row
from builder.facts import hardware

from . import infer_drafting
from .join_configurations import SOURCE, Configurations, check, join

Raw = Mapping[str, str]

MOST_TP = 8  # no engine of these sources splits one model's attention over more GPUs

COPY = 0.005  # how far rounding moves a listed time
GAP_ANALYSIS = "gap-analysis"

_ENGINES = {"trtllm": "tensorrt_llm", "vllm": "vllm", "sglang": "sglang"}

# What a repair is, by its name in `index.yaml`.
REPAIRS = {
    "square": "tp or attention DP is the product of MoE TP and MoE EP, both of which count the "
    "same GPUs (tp 64 for 8 GPUs with EP 8); listings of the same measurement say 8",
    "dp_twice": "tp and attention DP both count the GPUs and EP is their product (4, 4, 16 for 4 "
    "GPUs): vLLM's attention DP has no TP",
    "dp_missing": "attention DP is not given, MoE TP x EP says how many GPUs there are",
    "model": "a measurement of DeepSeek-R1 (its id says so, and 94 are listed as both) is listed "
    "as DeepSeek-V3",
    "precision": "the precision is not given; that of the checkpoint",
    "repeated": "the same measurement listed more than once, to the digit or rounded: one is kept",
    "joined_drafting": "whether MTP drafts tokens, from the benchmark's configuration of that day",
    "joined_servers": "the servers of both pools and their layouts, from the same configurations",
    "drafting": "whether MTP drafts tokens is nowhere said; inferred from runs at the same points",
}
LEFT_OUT = {
    "pools": "prefill and decode pools counted as one server (tp above 8)",
    "values": "no time to the first token or per token",
    "layout": "no layout, lengths or load",
    "model": "a model whose shape is not known here",
    "hardware": "an engine or a GPU that is not known here",
    "role": "one side of disaggregated serving, or both, without their layouts",
}


@dataclass
class Import:
    """What was taken in; repairs and rows left out by their names."""

    rows: list[Row] = field(default_factory=list)
    others: list[Row] = field(default_factory=list)
    disaggregated: list[DisaggregatedRow] = field(default_factory=list)
    repairs: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    checked: Counter[str] = field(default_factory=Counter)


def take(
    raw: Sequence[Raw], newer: Sequence[Raw] = (), configurations: Sequence[Raw] = ()
) -> Import:
    """Rows of both files, in an order of their own; pools with what was configured for them."""
    found = Import()
    for row in raw:
        if row["mode"] == "agg":
            _take_aggregated(row, found)
        else:
            _take_disaggregated(row, found)
    for row in newer:
        _take_newer(row, found)
    found.rows = sorted(infer_drafting.infer(list(_without_repeats(found))), key=_order)
    found.others.sort(key=_order)
    found.repairs["drafting"] = sum(bool(row.drafting and row.mtp is None) for row in found.rows)
    pools = list(_pools_without_repeats(found))
    if configurations:
        table = Configurations(configurations)
        found.checked = check(pools, table)
        pools = join(pools, table)
    found.disaggregated = sorted(pools, key=lambda row: _order(row.server))
    for name in ("drafting", "servers"):
        found.repairs[f"joined_{name}"] = sum(name in row.joined for row in pools)
    return found


def _order(row: Row) -> tuple[object, ...]:
    return (*key_of(row), *row.layout, row.isl, row.osl, row.concurrency, row.id)


def _take_aggregated(raw: Raw, found: Import) -> None:
    model = _model(raw, found)
    size = {name: int(raw[f"{name}_size"] or 0) for name in ("tp", "attention_dp")}
    moe_tp, moe_ep = int(raw["moe_tp_size"] or 0), int(raw["moe_ep_size"] or 0)
    is_listing = source_of(raw["silicon_data_source"]) != GAP_ANALYSIS
    layout, repair = layout_of(size["tp"], size["attention_dp"], moe_tp, moe_ep, is_listing)
    ttft_ms, tpot_ms = float(raw["silicon_ttft_ms"]), float(raw["silicon_tpot_ms"])
    if layout[0] > MOST_TP:
        found.left_out["pools"] += 1
    elif model is None:
        found.left_out["model"] += 1
    elif ttft_ms <= 0 or tpot_ms <= 0:
        found.left_out["values"] += 1
    else:
        if repair:
            found.repairs[repair] += 1
        written = size["tp"] or 1, size["attention_dp"] or 1, moe_ep or 1
        published = measurements.layout_text(*written) if written != layout else ""
        found.rows.append(_row(raw, model, layout, found)._replace(published=published))


def _row(raw: Raw, model: str, layout: tuple[int, int, int], found: Import) -> Row:
    """A row of AIConfigurator's table, with its layout as it was run."""
    day = re.search(r"measured=(\d{4}-\d{2}-\d{2})", raw["silicon_data_source"])
    return Row(
        id=raw["id"],
        source=source_of(raw["silicon_data_source"]),
        date=day[1] if day else "",
        engine=_ENGINES[raw["backend"]],
        release=raw["backend_version"],
        model=model,
        gpu=names.gpu_name(raw["system"]),
        precision=_precision(raw, model, found),
        tp=layout[0],
        attention_dp=layout[1],
        ep=layout[2],
        mtp=None,
        drafting="",
        acceptance=None,
        isl=int(raw["isl"]),
        osl=int(raw["osl"]),
        concurrency=_concurrency(raw),
        ttft_ms=_rounded(float(raw["silicon_ttft_ms"])),
        tpot_ms=_rounded(float(raw["silicon_tpot_ms"])),
    )


def layout_of(
    tp: int, attention_dp: int, moe_tp: int, moe_ep: int, is_listing: bool
) -> tuple[tuple[int, int, int], str]:
    """TP, attention DP and EP as they were run, and the name of the repair, if any.

    Only listings of a public benchmark write the product of MoE TP and EP as a size.
    """
    tp, dp, moe_tp, moe_ep = (max(value, 1) for value in (tp, attention_dp, moe_tp, moe_ep))
    if is_listing and moe_tp == moe_ep > 1 and moe_tp * moe_ep == tp * dp:
        return ((moe_ep, 1, moe_ep) if dp == 1 else (1, moe_ep, moe_ep)), "square"
    if tp == dp > 1 and moe_ep == tp * dp:
        return (1, dp, dp), "dp_twice"
    if dp == 1 and moe_tp * moe_ep > tp and tp <= MOST_TP:
        return (tp, moe_tp * moe_ep // tp, moe_ep), "dp_missing"
    return (tp, dp, moe_ep), ""


def _take_disaggregated(raw: Raw, found: Import) -> None:
    model = _model(raw, found)
    names = [f"{pool}_tp_size" for pool in ("prefill", "decode")]
    if model is None:
        found.left_out["model"] += 1
    elif not all(raw[name] for name in names):
        found.left_out["role"] += 1
    else:
        workers, tp, dp, ep = _pool(raw, "decode")
        row = _row(raw, model, (tp, dp, ep), found)
        found.disaggregated.append(DisaggregatedRow(row, workers, *_pool(raw, "prefill")))


def _pool(raw: Raw, pool: str) -> tuple[int | None, int, int, int]:
    """Workers of a pool of servers, and the layout of one."""
    tp, dp, ep = (
        int(raw[f"{pool}_{size}_size"] or 0) or 1 for size in ("tp", "attention_dp", "moe_ep")
    )
    return int(raw[f"{pool}_num_workers"] or 0) or None, tp, dp, ep


def source_of(text: str) -> str:
    """The listing that a row comes from, by its name in `index.yaml`."""
    name = text.split(";")[0].rpartition("=")[2].removesuffix(".csv").replace("/", "-")
    return GAP_ANALYSIS if GAP_ANALYSIS in name else name


def _model(raw: Raw, found: Import) -> str | None:
    name = raw["model_path"]
    if name == "deepseek-ai/DeepSeek-V3" and raw["id"].startswith("dsr1_"):
        found.repairs["model"] += 1
        name = "deepseek-ai/DeepSeek-R1"
    return names.listed(name)


def _precision(raw: Raw, model: str, found: Import) -> str:
    said = raw["precision"] or ("fp8" if "FP8" in raw["model_path"] else "bf16")
    precision = names.precision_of(model, said)
    found.repairs["precision"] += precision != raw["precision"]
    return precision


def _concurrency(raw: Raw) -> int:
    said = re.search(r"silicon_concurrency=(\d+)", raw["silicon_data_source"])
    return int(said[1] if said else raw["batch_size"] or raw["decode_batch_size"])


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def _take_newer(raw: Raw, found: Import) -> None:
    model, engine = names.listed(raw["checkpoint"]), _ENGINES.get(raw["engine"].split()[0])
    gpu, note = names.gpu_name(raw["gpu"].split()[0]), raw["note"].lower()
    if engine is None or gpu not in hardware.known():
        found.left_out["hardware"] += 1
    elif not raw["tpot_ms"]:
        found.left_out["values"] += 1
    elif "disagg" in note or "prefill" in note:
        found.left_out["role"] += 1
    elif not all(raw[name] for name in ("tp", "isl", "osl", "concurrency")):
        found.left_out["layout"] += 1
    else:
        tp, dp = int(raw["tp"]), int(raw["dp"] or 1)
        mtp = int(raw["mtp_draft"]) if raw["mtp_draft"] else None
        (found.rows if model else found.others).append(
            Row(
                id=raw["id"],
                source=raw["source"],
                date=raw["date"],
                engine=engine,
                release=raw["release"] if re.match(r"\d", raw["release"]) else "",
                model=model or names.plain_name(raw["checkpoint"]),
                gpu=gpu,
                precision=names.precision_of(model or "", raw["precision"].split()[0]),
                tp=tp // dp,
                attention_dp=dp,
                ep=int(raw["ep"] or 1),
                mtp=mtp,
                drafting="" if mtp is None else "on" if mtp else "off",
                acceptance=float(raw["acceptance"]) if raw["acceptance"] else None,
                isl=int(raw["isl"]),
                osl=int(raw["osl"]),
                concurrency=int(raw["concurrency"]),
                ttft_ms=_rounded(float(raw["ttft_ms"])) if raw["ttft_ms"] else None,
                tpot_ms=_rounded(float(raw["tpot_ms"])),
            )
        )


def _without_repeats(found: Import) -> Iterator[Row]:
    """Of listings of one measurement the one with its exact release and its day, or the first."""
    kept: dict[tuple[object, ...], list[Row]] = {}
    for row in sorted(found.rows, key=lambda row: (not row.release, not row.date, row.id)):
        same = kept.setdefault((*key_of(row), *row.layout, row.isl, row.osl, row.concurrency), [])
        if any(_is_copy(row, other) for other in same):
            found.repairs["repeated"] += 1
        else:
            same.append(row)
            yield row


def _pools_without_repeats(found: Import) -> Iterator[DisaggregatedRow]:
    """The same for two pools: the listing with the numbers of servers, or the first."""
    kept: dict[tuple[object, ...], list[Row]] = {}
    every = set(found.disaggregated)
    for row in sorted(every, key=lambda row: (row.decode_workers is None, row.server.id)):
        server = row.server
        same = kept.setdefault((*key_of(server), server.isl, server.osl, server.concurrency), [])
        if any(_is_copy(server, other) for other in same):
            found.repairs["repeated"] += 1
        else:
            same.append(server)
            yield row


def _is_copy(row: Row, other: Row) -> bool:
    """Whether both times are the same, as no two runs have them."""
    return abs(row.tpot_ms / other.tpot_ms - 1) < COPY and (
        row.ttft_ms is None or other.ttft_ms is None or abs(row.ttft_ms / other.ttft_ms - 1) < COPY
    )


def index(found: Import, texts: Mapping[str, str]) -> str:
    """`index.yaml`: files with digests and rows, repairs and rows left out with their counts."""
    return dump_yaml(
        {
            "files": {
                name: {"rows": text.count("\n") - 1, "sha256": measurements.digest(text)}
                for name, text in texts.items()
            },
            "joined": {"source": SOURCE, "checked": dict(found.checked)},
            "repairs": {
                name: {"rows": found.repairs[name], "what": what} for name, what in REPAIRS.items()
            },
            "left_out": {
                name: {"rows": found.left_out[name], "what": what}
                for name, what in LEFT_OUT.items()
            },
        }
    )


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rows", type=Path)
    parser.add_argument("--newer", type=Path)
    parser.add_argument("--configurations", type=Path)
    options = parser.parse_args(words)
    return command.run(lambda: _run(options.rows, options.newer, options.configurations))


def _run(rows: Path, *others: Path | None) -> None:
    found = take(raw(rows), *(raw(path) if path else () for path in others))
    texts = {
        measurements.AGGREGATED.name: measurements.write(found.rows, Row._fields),
        measurements.OTHERS.name: measurements.write(found.others, Row._fields),
        measurements.DISAGGREGATED.name: measurements.write(
            (row.cells() for row in found.disaggregated), measurements.DISAGGREGATED_FIELDS
        ),
    }
    measurements.MEASUREMENTS.mkdir(exist_ok=True)
    for name, text in {**texts, "index.yaml": index(found, texts)}.items():
        (measurements.MEASUREMENTS / name).write_text(text, encoding="utf-8")
    print(index(found, texts), end="")


def raw(path: Path) -> list[Raw]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
