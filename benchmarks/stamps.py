"""Token texts that carry their place in the stream and the time at which the engine emitted them.

A token is `WIDTH` characters: its index, then CLOCK_MONOTONIC in µs, both in hexadecimal and both
cut to their last digits. That clock is one for all processes of a machine.
"""

from __future__ import annotations

PLACE_DIGITS = 3
TIME_DIGITS = 7
WIDTH = PLACE_DIGITS + TIME_DIGITS
PLACES = 1 << 4 * PLACE_DIGITS
PERIOD_US = 1 << 4 * TIME_DIGITS


class WrongText(Exception):
    """A stream lost, repeated or changed text."""


def write(index: int, emitted_ns: int) -> str:
    return f"{index % PLACES:03x}{emitted_ns // 1000 % PERIOD_US:07x}"


def latency_us(token: str, index: int, received_ns: int) -> int:
    """Time from the emission of the token to its receipt, which is below 134 s.

    Raises `WrongText` if this is not the token of that index.
    """
    if token[:PLACE_DIGITS] != f"{index % PLACES:03x}":
        raise WrongText(f"token {index} reads {token!r}")
    late = (received_ns // 1000 - int(token[PLACE_DIGITS:], 16)) % PERIOD_US
    if late > PERIOD_US // 2:
        raise WrongText(f"token {index} reads {token!r}, which comes from the future")
    return late
