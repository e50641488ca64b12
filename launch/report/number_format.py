"""Number formatting: significant digits, thousands separators and units."""

from __future__ import annotations

UNKNOWN = "\u2013"  # an en dash
SPACE = "\u00a0"  # a number and its unit stay on one line
DECIMALS = ((100, 0), (10, 1), (1, 2), (0.1, 3), (0, 4))  # of numbers from a size on


def number(value: float | None) -> str:
    """About three significant digits, thousands apart.

    >>> [number(x) for x in (12345.6, 12.34, 1.0, 0.01234)]
    ['12,346', '12.3', '1', '0.0123']
    """
    if value is None:
        return UNKNOWN
    size = abs(value)
    if size >= 1e15 or 0 < size < 1e-4:
        return f"{value:.3g}"
    decimals = next(count for least, count in DECIMALS if size >= least)
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def unit(value: float | None, name: str) -> str:
    return UNKNOWN if value is None else f"{number(value)}{SPACE}{name}"


def milliseconds(value: float | None) -> str:
    """
    >>> [milliseconds(x).replace(SPACE, ' ') for x in (83.6, 5801)]
    ['83.6 ms', '5.8 s']
    """
    if value is not None and abs(value) >= 1000:
        return unit(value / 1000, "s")
    return unit(value, "ms")


def unit_text(value: float | None, name: str) -> str:
    """A value with its unit; milliseconds may become seconds."""
    return milliseconds(value) if name == "ms" else unit(value, name)


def percent(share: float | None) -> str:
    return UNKNOWN if share is None else unit(share * 100, "%")


def signed_percent(share: float | None) -> str:
    if share is None:
        return UNKNOWN
    return f"{share * 100:+,.{0 if abs(share) >= 1 else 1}f}{SPACE}%"


def usd(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"${value:,.2f}" if value >= 0.1 else f"${value:.2g}"
