"""What is estimated of a server's speed, and measured: words and units by name."""

from __future__ import annotations

from collections.abc import Mapping

LATENCIES: Mapping[str, tuple[str, str]] = {
    "ttft_ms": ("time to first token", "ms"),
    "tpot_ms": ("time per output token", "ms"),
    "e2e_ms": ("time to last token", "ms"),
}
# Those without "of" are of all servers.
RATES: Mapping[str, tuple[str, str]] = {
    "output_tokens_per_s": ("output of all servers", "tokens/s"),
    "output_tokens_per_s_per_user": ("output of a user", "tokens/s"),
    "output_tokens_per_s_per_gpu": ("output of a GPU", "tokens/s"),
}
MEASURES = {**LATENCIES, **RATES}
