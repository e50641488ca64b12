"""Formats numbers: three significant digits, thousands separators and units that fit."""

from __future__ import annotations

UNKNOWN = "\u2013"  # an en dash
SPACE = "\u00a0"  # a number and its unit stay on one line
MS_PER_S = 1000


def number(value: float | None) -> str:
    """Three significant digits, all of those before the point, thousands apart.

    >>> [number(x) for x in (12345.6, 12.34, 1.0, 0.01234)]
    ['12,346', '12.3', '1', '0.0123']
    """
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if 100 <= abs(value) < 1e15 else f"{value:.3g}"


def fitting(value: float, unit: str) -> tuple[float, str]:
    """How many of `unit` make the unit in which the value is shown, and its name: seconds instead
    of milliseconds from a second on."""
    return (MS_PER_S, "s") if unit == "ms" and abs(value) >= MS_PER_S else (1, unit)


def quantity(value: float | None, unit: str) -> str:
    """A value in the unit that fits.

    >>> [plain(quantity(x, "ms")) for x in (83.6, 5801)]
    ['83.6 ms', '5.8 s']
    """
    if value is None:
        return UNKNOWN
    size, shown = fitting(value, unit)
    return f"{number(value / size)}{SPACE}{shown}"


def milliseconds(value: float | None) -> str:
    return quantity(value, "ms")


def percent(share: float | None) -> str:
    return UNKNOWN if share is None else quantity(share * 100, "%")


def signed_percent(share: float | None) -> str:
    if share is None:
        return UNKNOWN
    return f"{share * 100:+,.{0 if abs(share) >= 1 else 1}f}{SPACE}%"


def usd(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"${value:,.2f}" if value >= 0.1 else f"${value:.2g}"


def value_text(value: object, unknown: str = UNKNOWN) -> str:
    """Any value of a document, with a text for what is not known."""
    if value is None:
        return unknown
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value) if isinstance(value, int | float) else str(value)


def plain(text: str) -> str:
    """The text for a terminal or a JSON document, with breaking spaces."""
    return text.replace(SPACE, " ")
