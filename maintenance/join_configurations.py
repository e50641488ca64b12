"""Joins a benchmark's own configurations to its measurements, which do not record them.

The table has every configuration of InferenceX and the days on which it was in force: model, GPU,
precision, engine, lengths, loads, layout, servers of both pools, speculative decoding (MTP). A
measurement takes a value if all configurations of its point, layout and day agree on it; the column
`joined` names what it took. `check` joins measurements that record their servers.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import date, timedelta
from typing import Any, NamedTuple

from builder.estimates import names
from builder.estimates.cells import key_of
from builder.estimates.measurements import DisaggregatedRow, Layout, Row

SOURCE = "SemiAnalysisAI/InferenceX, its configurations at 843c6254 (Apache-2.0)"
ENGINES = {"trt": "tensorrt_llm", "vllm": "vllm", "sglang": "sglang"}
LATE = timedelta(days=1)  # a run and the change that starts it may have two dates

Raw = Mapping[str, str]
Pool = tuple[int, Layout]  # servers, and the layout of one


class Configuration(NamedTuple):
    """What ran from one day to another. `pools` are decode and prefill servers, or one server;
    `mtp` is the number of draft tokens, `None` if only `drafting` is known."""

    days: tuple[date, date]
    pools: tuple[Pool, ...]
    drafting: str
    mtp: int | None


class Configurations:
    """All configurations by model, GPU, precision, engine, lengths and load."""

    def __init__(self, raw: Sequence[Raw]) -> None:
        days = sorted({date.fromisoformat(row[end]) for row in raw for end in _ENDS})
        self.last_day = days[-1]
        self._at: dict[Hashable, list[Configuration]] = defaultdict(list)
        models = {row["model_prefix"]: name for row in raw if (name := names.listed(row["model"]))}
        for row in raw:
            model = models.get(row["model_prefix"].removesuffix("-fp8"))
            if model is None:
                continue
            gpu = names.gpu_name(row["runner"].split("-")[0])
            engine = ENGINES[row["framework"].removeprefix("dynamo-")]
            cell = (model, gpu, names.precision_of(model, row["precision"]), engine)
            found = _configuration(row, days)
            for load in row["concurrency"].split():
                point = (*cell, int(row["isl"]), int(row["osl"]), int(load))
                self._at[point].append(found)

    def of(self, row: Row, sizes: Sequence[int]) -> list[Configuration]:
        """The configurations of a measurement whose pools have servers of `sizes` GPUs."""
        if not row.date:
            return []
        day = date.fromisoformat(row.date)
        return [
            one
            for one in self._at.get((*key_of(row), row.isl, row.osl, row.concurrency), ())
            if one.days[0] - LATE <= day <= one.days[1] + LATE
            and [_num_gpus(layout) for _, layout in one.pools] == [*sizes]
        ]


_ENDS = ("first_day", "last_day")


def _configuration(row: Raw, days: Sequence[date]) -> Configuration:
    first, last = (date.fromisoformat(row[end]) for end in _ENDS)
    until = days[min(bisect_right(days, last), len(days) - 1)]  # it was in force until the next one
    is_one = row["serving"] == "agg"
    pools = tuple(_pool(row, name) for name in (("",) if is_one else ("decode_", "prefill_")))
    drafts, count = row["spec_decoding"] != "none", re.search(r"mtp(\d)", row["config_file"])
    mtp = int(count[1]) if drafts and count else None if drafts else 0
    return Configuration((first, until), pools, "on" if drafts else "off", mtp)


def _pool(row: Raw, name: str) -> Pool:
    tp, ep = int(row[f"{name}tp"]), int(row[f"{name}ep"] or 1)
    layout = (1, tp, ep) if row[f"{name}dp_attention"] == "true" else (tp, 1, ep)
    return int(row[f"{name}workers"]) if name else 1, layout


def _num_gpus(layout: Layout) -> int:
    return layout[0] * layout[1]


def join(rows: Iterable[DisaggregatedRow], table: Configurations) -> list[DisaggregatedRow]:
    """Rows of two pools with the servers and the drafting of their configurations."""
    return [_joined(row, table) for row in rows]


def _joined(row: DisaggregatedRow, table: Configurations) -> DisaggregatedRow:
    found = _of_pools(row, table)
    if row.decode_workers is not None:
        found = [one for one in found if one.pools == _pools(row)]
    elif (pools := _agreed(one.pools for one in found)) is not None:
        row = _with(row, pools)
    server = row.server
    drafting, mtp = _agreed(one.drafting for one in found), _agreed(one.mtp for one in found)
    if not server.drafting and drafting:
        server = server._replace(drafting=drafting, mtp=mtp)
        row = row._replace(server=server, joined=f"{row.joined} drafting".strip())
    return row


def _of_pools(row: DisaggregatedRow, table: Configurations) -> list[Configuration]:
    return table.of(row.server, [row.server.num_gpus, row.prefill_tp * row.prefill_attention_dp])


def _pools(row: DisaggregatedRow) -> tuple[tuple[int | None, Layout], ...]:
    prefill = (row.prefill_tp, row.prefill_attention_dp, row.prefill_ep)
    return (row.decode_workers, row.server.layout), (row.prefill_workers, prefill)


def _with(row: DisaggregatedRow, pools: tuple[Pool, ...]) -> DisaggregatedRow:
    """The row with servers and layouts, which listings without servers do not tell apart."""
    (decode_workers, decode), (prefill_workers, prefill) = pools
    server = row.server._replace(tp=decode[0], attention_dp=decode[1], ep=decode[2])
    return DisaggregatedRow(server, decode_workers, prefill_workers, *prefill, joined="servers")


def _agreed(values: Iterable[Any]) -> Any:
    """The only value, or `None` if there are others or none."""
    found = set(values)
    return found.pop() if len(found) == 1 else None


def check(rows: Iterable[DisaggregatedRow], table: Configurations) -> Counter[str]:
    """How often the joined number of servers is right where measurements record it."""
    found: Counter[str] = Counter()
    for row in rows:
        if row.decode_workers is not None and "servers" not in row.joined:
            servers = {tuple(workers for workers, _ in c.pools) for c in _of_pools(row, table)}
            joined = _agreed(servers)
            is_right = joined == (row.decode_workers, row.prefill_workers)
            found["right" if is_right else "wrong" if joined else "undecided"] += 1
    return found
