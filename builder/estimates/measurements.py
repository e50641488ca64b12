"""Reads measurements: `builder/data/measurements/*.csv`, one load per line.

`python -m maintenance.import_measurements` writes the files and says which rows it repaired or left
out; `index.yaml` in the same folder has its counts, the sources and the digests.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from io import StringIO
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from ..diagnostics import Diagnostic, Location
from ..documents import DATA
from ..errors import BadFacts
from ..facts import engines
from ..files import read_text

MEASUREMENTS = DATA / "measurements"
AGGREGATED = MEASUREMENTS / "aggregated.csv"
DISAGGREGATED = MEASUREMENTS / "disaggregated.csv"
# Rows of models with too few rows for estimates; shown if such a model is asked for.
OTHERS = MEASUREMENTS / "others.csv"
MAX_BYTES = 20_000_000

OWN = "own"  # the source of the user's own rows
ENGINES = (*engines.names(), "sglang")
LARGEST = 10_000_000  # of a size: beyond every deployment, and far from overflow
PRECISIONS = ("bf16", "fp8", "fp4", "int4", "int8", "w4a8", "w8a16")


# The schema of `index.yaml`.
_COUNTED: Any = {"*": {"rows": int, "what": str}}
MEASUREMENT_INDEX: Any = {
    "files": {"*": {"rows": int, "sha256": str}},
    "joined": {"source": str, "checked": {"*": int}},
    "repairs": _COUNTED,
    "left_out": _COUNTED,
}


Layout = tuple[int, int, int]  # TP, attention DP and EP


class Row(NamedTuple):
    """One measurement of one engine on one pool of GPUs.

    `tp` GPUs share the attention of a request, `attention_dp` such groups take requests in turn,
    `ep` GPUs share the routed experts. `mtp` is the number of draft tokens per step, `None` if
    the source has none; `drafting` is on or off if that is known or was inferred from other runs;
    `acceptance` is tokens per step. `published` is the layout in the source, if it was repaired.
    `ttft_ms` is `None` if only the speed was measured.
    """

    id: str
    source: str
    date: str
    engine: str
    release: str
    model: str
    gpu: str
    precision: str
    tp: int
    attention_dp: int
    ep: int
    mtp: int | None
    drafting: str
    acceptance: float | None
    isl: int
    osl: int
    concurrency: int
    ttft_ms: float | None
    tpot_ms: float
    published: str = ""

    @property
    def num_gpus(self) -> int:
        return self.tp * self.attention_dp

    @property
    def server(self) -> Row:
        return self

    @property
    def layout(self) -> Layout:
        return self.tp, self.attention_dp, self.ep

    def deployed(self, num_gpus: int | None = None) -> str:
        """The deployment without its layout."""
        release = f" {self.release}" if self.release else ""
        gpus = f"{num_gpus} {self.gpu}" if num_gpus else self.gpu
        return f"{self.model} {self.precision} on {gpus}, {self.engine}{release}"

    @property
    def measured(self) -> str:
        """The load and the measured times."""
        ttft = "" if self.ttft_ms is None else f", TTFT {time_text(self.ttft_ms)}"
        return (
            f"{self.isl:,} in and {self.osl:,} out, concurrency {self.concurrency:,}: "
            f"TPOT {time_text(self.tpot_ms)}{ttft}"
        )

    def describe(self) -> str:
        """The row in a few words, its values last."""
        return f"{self.deployed(self.num_gpus)}, {layout_text(*self.layout)}, {self.measured}"


class DisaggregatedRow(NamedTuple):
    """One measurement of separate prefill and decode servers. `server` is a row of one decode
    server with the load of all; the numbers of servers are `None` where they are unknown. `joined`
    names what comes from the benchmark's configurations."""

    server: Row
    decode_workers: int | None
    prefill_workers: int | None
    prefill_tp: int
    prefill_attention_dp: int
    prefill_ep: int
    joined: str = ""

    @property
    def servers(self) -> tuple[int | None, int | None, int, int, int]:
        """The numbers of servers, and the layout of a prefill server."""
        return self.decode_workers, self.prefill_workers, *self.prefill_layout

    @property
    def prefill_layout(self) -> Layout:
        return self.prefill_tp, self.prefill_attention_dp, self.prefill_ep

    def cells(self) -> tuple[Any, ...]:
        return (*self.server, *self[1:])

    def describe(self) -> str:
        """The row in a few words, its values last."""
        row = self.server
        decode, prefill = layout_text(*row.layout), layout_text(*self.prefill_layout)
        return (
            f"{row.deployed()}, separate servers: prefill {_times(self.prefill_workers)}{prefill}, "
            f"decode {_times(self.decode_workers)}{decode}, {row.measured}"
        )


DISAGGREGATED_FIELDS = (*Row._fields, *DisaggregatedRow._fields[1:])


def _times(workers: int | None) -> str:
    return f"{workers} x " if workers else ""


def time_text(time_ms: float) -> str:
    """A time in ms, or in s from one second on."""
    if time_ms < 1000:
        return f"{time_ms:.4g} ms"
    time_s = time_ms / 1000
    return f"{time_s:,.0f} s" if time_s >= 100 else f"{time_s:.3g} s"


def layout_text(tp: int, attention_dp: int, ep: int) -> str:
    parts = [f"TP{tp}"] if tp > 1 or attention_dp == 1 else []
    parts += [f"DP{attention_dp}"] if attention_dp > 1 else []
    parts += [f"EP{ep}"] if ep > 1 else []
    return "/".join(parts)


class _Kind(NamedTuple):
    """What the cells of a column hold; `read` raises `ValueError` for others."""

    read: Callable[[str], Any]
    what: str

    def optional(self) -> _Kind:
        return _Kind(lambda text: self.read(text) if text else None, f"{self.what}, or nothing")


def _checked(read: Callable[[str], Any], is_valid: Callable[[Any], bool]) -> Callable[[str], Any]:
    def checked(text: str) -> Any:
        if not is_valid(value := read(text)):
            raise ValueError
        return value

    return checked


def _one_of(*known: str) -> _Kind:
    what = f"one of {', '.join(name or 'nothing' for name in known)}"
    return _Kind(_checked(str, known.__contains__), what)


_COUNT = _Kind(_checked(int, lambda value: value >= 1), "a whole number of 1 or more")
_DRAFTS = _Kind(_checked(int, lambda value: value >= 0), "a whole number of 0 or more").optional()
_TIME = _Kind(_checked(float, lambda value: isfinite(value) and value > 0), "a number above 0")
_TEXT = _Kind(_checked(str, bool), "a text")
_KINDS: Mapping[str, _Kind] = {
    **dict.fromkeys(("id", "source", "model", "gpu"), _TEXT),
    **dict.fromkeys(("date", "release", "published", "joined"), _Kind(str, "a text")),
    "engine": _one_of(*ENGINES),
    "precision": _one_of(*PRECISIONS),
    **dict.fromkeys(("tp", "attention_dp", "ep", "isl", "osl", "concurrency"), _COUNT),
    "mtp": _DRAFTS,
    "drafting": _one_of("", "on", "off"),
    "acceptance": _TIME.optional(),
    "ttft_ms": _TIME.optional(),
    "tpot_ms": _TIME,
    **dict.fromkeys(("prefill_workers", "decode_workers"), _COUNT.optional()),
    **dict.fromkeys(DisaggregatedRow._fields[3:6], _COUNT),
}
_UNLIKE = frozenset(("id", "ttft_ms", "tpot_ms"))  # columns of which no two cells are alike


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def read(path: Path = AGGREGATED, model: str | None = None) -> tuple[list[Row], str]:
    """The rows of a file, or of one model in it, and the digest of the file.

    Raises `BadFacts` with every line that is wrong.
    """
    text = read_text(path, BadFacts, MAX_BYTES)
    lines = text if model is None else _of_model(text, model)
    return [Row._make(cells) for cells in _parse(lines, path, Row._fields)], digest(text)


def _of_model(text: str, model: str) -> str:
    """The header and the lines of a model; cells of other lines are not read."""
    head, *lines = text.splitlines(keepends=True)
    return "".join([head, *(line for line in lines if f",{model}," in line)])


def read_disaggregated(path: Path = DISAGGREGATED) -> list[DisaggregatedRow]:
    """The rows of separate prefill and decode servers."""
    text = read_text(path, BadFacts, MAX_BYTES)
    size, rows = len(Row._fields), _parse(text, path, DISAGGREGATED_FIELDS)
    return [DisaggregatedRow(Row._make(cells[:size]), *cells[size:]) for cells in rows]


@cache
def unused() -> Sequence[Row | DisaggregatedRow]:
    """Measurements that no estimate uses: too few of a kind, or of disaggregated serving."""
    return [*read(OTHERS)[0], *read_disaggregated()]


def _parse(text: str, path: Path, fields: tuple[str, ...]) -> list[list[Any]]:
    lines = csv.reader(StringIO(text))
    if tuple(next(lines, ())) != fields:
        what = "has other columns than a file of measured rows"
        raise BadFacts(Diagnostic(f"{path}:1", what, f"write {','.join(fields)}"))
    # Most columns hold the same few texts over and over.
    readers = [
        _KINDS[field].read if field in _UNLIKE else cache(_KINDS[field].read) for field in fields
    ]
    rows: list[list[Any]] = []
    found: list[Diagnostic] = []
    for number, cells in enumerate(lines, 2):
        try:
            rows.append([read(cell) for read, cell in zip(readers, cells, strict=True)])
        except ValueError:
            found += _wrong_cells(path, number, fields, cells)
    if found:
        raise BadFacts(found)
    return rows


def _wrong_cells(
    path: Path, number: int, fields: Sequence[str], cells: Sequence[str]
) -> Iterator[Diagnostic]:
    where, location = f"{path}:{number}", Location(number, 1)
    if len(cells) != len(fields):
        what = f"has {len(cells)} cells, not {len(fields)}"
        yield Diagnostic(where, what, "correct this line", location=location)
        return
    for field, cell in zip(fields, cells, strict=True):
        kind = _KINDS[field]
        try:
            kind.read(cell)
        except ValueError:
            what = f"{cell!r} is not {kind.what}"
            yield Diagnostic(f"{where}: {field}", what, "correct it", path=field, location=location)


def write(rows: Iterable[Sequence[Any]], fields: Sequence[str]) -> str:
    """Rows as the text of a file; floats have six digits."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(fields)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else value
