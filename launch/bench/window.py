"""The window: which requests of a load, and which time of it, stand for its steady state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .load import NS, LoadPlan
from .seen import Seen

Wanted = Literal["steady", "whole"]

# A closed loop needs its first wave, its last wave and as much between them.
WAVES = 3
# Of the arrivals of an open loop, this share at each end is left out.
OPEN_RAMP = 0.1
OPEN_LEAST = 20


@dataclass(frozen=True, slots=True)
class Window:
    """`chosen` are the requests whose latencies count; throughput is that of the time."""

    kind: Wanted
    from_ns: int
    to_ns: int
    chosen: Sequence[Seen]

    @property
    def seconds(self) -> float:
        return (self.to_ns - self.from_ns) / NS

    def as_json(self, start_ns: int) -> dict[str, Any]:
        from_s, to_s = ((at_ns - start_ns) / NS for at_ns in (self.from_ns, self.to_ns))
        return {"kind": self.kind, "from_s": round(from_s, 4), "to_s": round(to_s, 4)}


def of(seen: Sequence[Seen], plan: LoadPlan, wanted: Wanted) -> Window:
    """Requests are chosen by the order in which they were sent, so that long ones are not favoured.

    Of a closed loop, the first wave comes all at once and the last one runs among ever fewer; the
    time is that in which all streams were busy. Tasks and traces count as a whole, and so does a
    load that is too short.
    """
    edge = _edge(len(seen), plan) if wanted == "steady" else 0
    chosen = seen[edge : len(seen) - edge]
    if edge and chosen[0].record.sent_ns < seen[-1].record.sent_ns:
        return Window("steady", chosen[0].record.sent_ns, seen[-1].record.sent_ns, chosen)
    last_ns = max(one.record.ended_ns for one in seen)
    return Window("whole", seen[0].record.sent_ns, last_ns + 1, seen)


def _edge(count: int, plan: LoadPlan) -> int:
    if plan.kind == "concurrency":
        return plan.concurrency if count >= WAVES * plan.concurrency else 0
    if plan.kind in ("poisson", "gamma") and count >= OPEN_LEAST:
        return int(count * OPEN_RAMP)
    return 0
