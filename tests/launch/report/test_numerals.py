"""Numbers as a reader likes them."""

from __future__ import annotations

import pytest

from launch.report import numerals


@pytest.mark.parametrize(
    ("value", "text"),
    [(12345.6, "12,346"), (12.34, "12.3"), (1.0, "1"), (0, "0"), (0.01234, "0.0123"),
     (99.96, "100"), (-5, "-5"), (1e-7, "1e-07"), (1e20, "1e+20"), (None, numerals.NONE)],
)  # fmt: skip
def test_about_three_digits_that_mean_something(value: float | None, text: str) -> None:
    assert numerals.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(83.6, "83.6 ms"), (5801, "5.8 s"), (None, numerals.NONE)]
)
def test_latencies_change_to_seconds(value: float | None, text: str) -> None:
    assert numerals.milliseconds(value).replace(numerals.SPACE, " ") == text


@pytest.mark.parametrize(
    ("value", "base", "text"),
    [(110, 100, "+10.0 %"), (50, 100, "-50.0 %"), (350, 100, "+250 %"), (1, 0, numerals.NONE),
     (1, None, numerals.NONE), (None, 1, numerals.NONE)],
)  # fmt: skip
def test_changes_carry_their_sign(value: float | None, base: float | None, text: str) -> None:
    assert numerals.ratio(value, base).replace(numerals.SPACE, " ") == text


@pytest.mark.parametrize(("value", "text"), [(14.093, "$14.09"), (0.0123, "$0.012")])
def test_small_costs_keep_their_digits(value: float, text: str) -> None:
    assert numerals.usd(value) == text
