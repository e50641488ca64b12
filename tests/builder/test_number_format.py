"""Number formatting: significant digits, units and signs."""

from __future__ import annotations

import pytest

from builder import number_format
from builder.number_format import UNKNOWN, plain


@pytest.mark.parametrize(
    ("value", "text"),
    [(12345.6, "12,346"), (12.34, "12.3"), (1.0, "1"), (0, "0"), (0.01234, "0.0123"),
     (99.96, "100"), (-5, "-5"), (1e-7, "1e-07"), (1e20, "1e+20"), (None, UNKNOWN)],
)  # fmt: skip
def test_about_three_digits_that_mean_something(value: float | None, text: str) -> None:
    assert number_format.number(value) == text


@pytest.mark.parametrize(("value", "text"), [(83.6, "83.6 ms"), (5801, "5.8 s"), (None, UNKNOWN)])
def test_latencies_change_to_seconds(value: float | None, text: str) -> None:
    assert plain(number_format.milliseconds(value)) == text


@pytest.mark.parametrize(
    ("share", "text"), [(0.1, "+10.0 %"), (-0.5, "-50.0 %"), (2.5, "+250 %"), (None, UNKNOWN)]
)
def test_changes_carry_their_sign(share: float | None, text: str) -> None:
    assert plain(number_format.signed_percent(share)) == text


@pytest.mark.parametrize(("value", "text"), [(14.093, "$14.09"), (0.0123, "$0.012")])
def test_small_costs_keep_their_digits(value: float, text: str) -> None:
    assert number_format.usd(value) == text
