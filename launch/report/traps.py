"""What is known to mislead in the numbers of each tool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Trap:
    what: str
    source: str


_SUITE = "trap suite on a server with a known schedule, 2026-11"
_TRUNCATED = "A stream that ends early without its final mark counts as a success"
_MESSAGES = (
    "Its ITL is the gap between messages: with several tokens in a message (speculative decoding, "
    "stream_interval) it is longer than a token takes"
)
_FIRST_LOADED = "At 64 streams on one core its TTFT was {} ms too long"

TRAPS: Mapping[str, tuple[Trap, ...]] = {
    "aiperf": (
        Trap(f"{_TRUNCATED}; so does an error inside an answer with status 200.",
             f"{_SUITE}, aiperf 0.13.0"),
        Trap(f"{_FIRST_LOADED.format(30)} and its TPOT 2.6 %.", f"{_SUITE}, aiperf 0.13.0"),
        Trap("On generate_stream with cumulative text it counted 1,275 tokens instead of 50.",
             f"{_SUITE}, aiperf 0.13.0"),
    ),
    "sglang.bench_serving": (
        Trap(f"{_TRUNCATED} of full length: throughput 14 % too high, TPOT 12 to 13 % too low. "
             "So does an error inside an answer with status 200.",
             f"{_SUITE}, sglang 0.5.23"),
        Trap("Failed requests are dropped and not counted in its file.",
             f"{_SUITE}, sglang 0.5.23"),
        Trap("Without a usage message it takes the requested length for the real one.",
             f"{_SUITE}, sglang 0.5.23"),
        Trap(f"{_MESSAGES}.", f"{_SUITE}, sglang 0.5.23"),
    ),
    "vllm bench serve": (
        Trap(f"{_TRUNCATED}; so does an error inside an answer with status 200.",
             f"{_SUITE}, vllm 0.33.0"),
        Trap("reasoning_content is no token to it: with half of the tokens there, TTFT was six "
             "times too long and TPOT half.", f"{_SUITE}, vllm 0.33.0"),
        Trap(f"{_MESSAGES}.", f"{_SUITE}, vllm 0.33.0"),
        Trap(f"{_FIRST_LOADED.format(14)}.", f"{_SUITE}, vllm 0.33.0"),
    ),
    "guidellm": (
        Trap(f"{_TRUNCATED}: throughput 14 % too high, TPOT 13 % too low.",
             f"{_SUITE}, guidellm 0.8.1"),
        Trap(f"{_FIRST_LOADED.format(30)}.", f"{_SUITE}, guidellm 0.8.1"),
        Trap("Its ITL is a mean per request, shown as TPOT here; gaps are not in its file.",
             "guidellm, GenerativeMetrics"),
    ),
}  # fmt: skip
