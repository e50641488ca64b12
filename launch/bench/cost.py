"""What tokens and tasks cost at a price per GPU hour."""

from __future__ import annotations

from collections.abc import Mapping

SECONDS_PER_HOUR = 3600
TOKENS = 1_000_000
DIGITS = 6


def of(
    price_per_gpu_hour_usd: float | None,
    num_gpus: int | None,
    per_s: Mapping[str, float | None],
) -> dict[str, float | None] | None:
    """In USD, from what is done in a second: `output_tokens`, `total_tokens` and `tasks`."""
    if price_per_gpu_hour_usd is None or not num_gpus:
        return None
    usd_per_s = price_per_gpu_hour_usd * num_gpus / SECONDS_PER_HOUR

    def each(name: str, count: int) -> float | None:
        done = per_s.get(name)
        return round(usd_per_s / done * count, DIGITS) if done else None

    return {
        "usd_per_million_output_tokens": each("output_tokens", TOKENS),
        "usd_per_million_total_tokens": each("total_tokens", TOKENS),
        "usd_per_task": each("tasks", 1),
    }
