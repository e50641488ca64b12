"""What was measured: rounds as rows of medians, ratios to the baselines, and what must hold."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from builder.diagnostics import Diagnostic

# One round: field -> value.
Sample = Mapping[str, float]
# (case, streams, variant) -> its rounds, in the same order for all variants of a case.
Samples = Mapping[tuple[str, int, str], Sequence[Sample]]

BASELINES = ("per_token", "floor", "sse", "peer")
RATIO_FIELDS = ("tokens_per_s", "p50_ms", "p99_ms", "server_cpu_s_per_1k_tokens")
WIDTH = 16


class Spread(NamedTuple):
    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        ordered = sorted(values)
        return cls(statistics.median(ordered), ordered[0], ordered[-1])


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound on the model's own median or, with `against`, on its ratio to a baseline."""

    case: str
    streams: int
    field: str
    against: str | None
    relation: Literal["at least", "at most"]
    limit: float

    def violation(self, samples: Samples) -> Diagnostic | None:
        """What is missed, if it was measured and is missed."""
        if any(
            (self.case, self.streams, variant) not in samples
            for variant in ("model", self.against or "model")
        ):
            return None
        value = spread(samples, self.case, self.streams, self.field, self.against).median
        holds = value >= self.limit if self.relation == "at least" else value <= self.limit
        if holds:
            return None
        of = f" of {self.against}'s" if self.against else ""
        what = f"{self.field} is {value:.4g}{of}; it must be {self.relation} {self.limit:.6g}"
        return Diagnostic(f"{self.case}, {self.streams} streams", what)


def _bounds() -> Iterator[Bound]:
    for streams, latency in ((64, 0.8), (256, 0.6)):
        yield Bound("overload", streams, "offered_tokens_per_s", None, "at least", 40_000)
        yield Bound("overload", streams, "tokens_per_s", "per_token", "at least", 4.0)
        yield Bound("overload", streams, "tokens_per_s", "sse", "at least", 0.85)
        yield Bound("overload", streams, "p99_ms", None, "at most", 100.0)
        yield Bound("paced", streams, "p50_ms", "per_token", "at most", latency)
        yield Bound("paced", streams, "p99_ms", "per_token", "at most", latency)
        yield Bound("paced", streams, "server_cpu_s_per_1k_tokens", "per_token", "at most", 0.65)
    for streams, tokens, p50, cpu in ((64, 8.0, 0.7, 0.8), (256, 5.5, 0.75, 0.85)):
        for case in ("overload", "saturated"):
            yield Bound(case, streams, "tokens_per_s", "peer", "at least", tokens)
        yield Bound("paced", streams, "p50_ms", "peer", "at most", p50)
        yield Bound("paced", streams, "p99_ms", "peer", "at most", 0.7)
        yield Bound("paced", streams, "server_cpu_s_per_1k_tokens", "peer", "at most", cpu)


MUST_HOLD = tuple(_bounds())


def spread(
    samples: Samples, case: str, streams: int, field: str, against: str | None = None
) -> Spread:
    """Of the model's values or, with `against`, of its ratios to that baseline.

    A ratio is taken within a round, whose runs followed each other.
    """
    ours = [sample[field] for sample in samples[case, streams, "model"]]
    if against is None:
        return Spread.of(ours)
    theirs = (sample[field] for sample in samples[case, streams, against])
    return Spread.of(a / b for a, b in zip(ours, theirs, strict=True))


def rows(samples: Samples) -> list[dict[str, Any]]:
    """One row per case and variant: medians, under `range` least and most, and the ratios."""
    table = []
    for (case, streams, variant), rounds in samples.items():
        fields = {field: Spread.of(one[field] for one in rounds) for field in rounds[0]}
        row: dict[str, Any] = {"case": case, "streams": streams, "variant": variant}
        row |= {field: values.median for field, values in fields.items()}
        row["range"] = {field: [values.min, values.max] for field, values in fields.items()}
        row["rounds"] = len(rounds)
        if variant == "model":
            row["ratios"] = {
                baseline: {
                    field: spread(samples, case, streams, field, baseline)._asdict()
                    for field in RATIO_FIELDS
                }
                for baseline in BASELINES
                if (case, streams, baseline) in samples
            }
        table.append(row)
    return table


def text(table: Sequence[Mapping[str, Any]]) -> str:
    """The rows for a terminal: medians, and for the model its ratios with their range."""
    head = ("case", "streams", "variant", "offered/s", "tokens/s", "p50 ms", "p99 ms")
    lines = [_line(*head, "CPU-s/1k", "msgs/token", "bytes/token")]
    for row in table:
        lines.append(
            _line(
                row["case"],
                row["streams"],
                row["variant"],
                f"{row['offered_tokens_per_s']:.0f}",
                f"{row['tokens_per_s']:.0f}",
                f"{row['p50_ms']:.2f}",
                f"{row['p99_ms']:.2f}",
                f"{row['server_cpu_s_per_1k_tokens']:.4f}",
                f"{row['messages_per_token']:.2f}",
                f"{row['wire_bytes_per_token']:.0f}",
            )
        )
    lines += ["", _line("case", "streams", "model to", *RATIO_TITLES)]
    for row in table:
        for baseline, fields in row.get("ratios", {}).items():
            values = [
                f"{one['median']:.2f} ({one['min']:.2f}-{one['max']:.2f})"
                for one in fields.values()
            ]
            lines.append(_line(row["case"], row["streams"], baseline, *values))
    return "\n".join(lines)


RATIO_TITLES = ("tokens/s", "p50", "p99", "CPU")


def _line(*cells: object) -> str:
    names, values = cells[:3], cells[3:]
    width = 11 if len(values) > len(RATIO_TITLES) else 20
    return "  ".join(
        [*(f"{cell!s:<9}" for cell in names), *(f"{cell!s:>{width}}" for cell in values)]
    )
