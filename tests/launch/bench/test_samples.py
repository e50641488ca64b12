"""Intervals hold the true value as often as they say, on distributions that are known."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable

import pytest

from launch.bench import samples

RUNS = 300
CHANGE = 1.1
# With 300 runs, an interval of 95 % holds the true value in fewer of them once in 1,000 times.
LEAST_COVERAGE = 0.91

Draw = Callable[[random.Random, int], list[float]]


def independent(draw: Callable[[random.Random], float]) -> Draw:
    return lambda chance, count: [draw(chance) for _ in range(count)]


def waves(chance: random.Random, count: int) -> list[float]:
    """Requests of a batch have nearly the same latency."""
    batches = [chance.gauss(0, 0.4) for _ in range(-(-count // 8))]
    return [math.exp(batches[n // 8] + chance.gauss(0, 0.02)) for n in range(count)]


def drift(chance: random.Random, count: int) -> list[float]:
    """Each latency is near the one before."""
    found, value = [], 0.0
    for _ in range(count):
        value = 0.7 * value + chance.gauss(0, 0.7)
        found.append(math.exp(0.4 * value))
    return found


DISTRIBUTIONS: dict[str, Draw] = {
    "normal": independent(lambda chance: chance.gauss(100, 20)),
    "lognormal": independent(lambda chance: chance.lognormvariate(0, 0.6)),
    "exponential": independent(lambda chance: chance.expovariate(1)),
}


def coverage(draw: Draw, count: int, share: float | None) -> float:
    """How often the interval of the change, where there is one, holds a change that is known."""
    held = []
    for seed in range(RUNS):
        chance = random.Random(f"{seed}-{count}")
        a, b = draw(chance, count), [CHANGE * value for value in draw(chance, count)]
        found = samples.ratio(a, b, share)
        if found:
            held.append(found[0] <= CHANGE <= found[1])
    assert len(held) > 0.9 * RUNS
    return statistics.fmean(held)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize(
    ("count", "share"), [(18, 0.5), (18, None), (80, 0.5), (80, 0.9), (80, None)]
)
def test_an_interval_holds_the_change_as_often_as_it_says(
    name: str, count: int, share: float | None
) -> None:
    assert coverage(DISTRIBUTIONS[name], count, share) >= LEAST_COVERAGE


@pytest.mark.parametrize("draw", [waves, drift])
@pytest.mark.parametrize("share", [0.5, None])
def test_requests_that_depend_on_each_other_count_for_fewer(
    draw: Draw, share: float | None
) -> None:
    assert coverage(draw, 320, share) >= LEAST_COVERAGE
    assert samples.effective_size(draw(random.Random(1), 320)) < 160


def test_an_interval_is_no_wider_than_it_must_be() -> None:
    """The mean of 320 normal samples with a spread of 20 % is known to 2.2 %, a quotient of two to
    3.1 %."""
    chance = random.Random(5)
    a, b = (DISTRIBUTIONS["normal"](chance, 320) for _ in range(2))
    found = samples.ratio(a, b, None)
    assert found is not None
    assert math.log(found[1] / found[0]) / 2 == pytest.approx(0.031, rel=0.2)


@pytest.mark.parametrize(("share", "least"), [(0.5, 6), (0.9, 36), (None, 6)])
def test_of_too_few_samples_there_is_no_interval(share: float | None, least: int) -> None:
    assert not samples.has_interval(least - 1, share)
    assert samples.has_interval(least, share)
    assert samples.LEAST_SAMPLES == 6


@pytest.mark.parametrize("freedom", [5, 10, 17, 100])
def test_students_quantile_is_that_of_the_tables(freedom: int) -> None:
    tables = {5: 2.570582, 10: 2.228139, 17: 2.109816, 100: 1.983972}
    # The first term of the expansion that is left out, in the same place of the handbook.
    coefficients = {9: 79, 7: 776, 5: 1482, 3: -1920, 1: -945}
    rest = sum(factor * samples.Z**power for power, factor in coefficients.items()) / 92160
    found = samples.student(freedom) + rest / freedom**4
    assert found == pytest.approx(tables[freedom], abs=3 / freedom**5 + 1e-6)


def test_the_median_of_ten_is_between_the_second_and_the_ninth() -> None:
    """As in tables of the binomial distribution: with 97.9 %, and with 89.1 % between the next."""
    row = TEN
    assert samples.effective_size(row) == 10
    # Around a change of nothing, the errors of both sides add up as right angles do.
    below, above = math.log(5.5 / 2), math.log(9 / 5.5)
    width = math.hypot(below, above)
    assert samples.ratio(row, row, 0.5) == pytest.approx((math.exp(-width), math.exp(width)))


def test_a_quantile_is_interpolated_as_in_a_result() -> None:
    rising = [float(n) for n in range(1, 8)]
    for percent in (50, 90):
        expected = statistics.quantiles(rising, n=100, method="inclusive")[percent - 1]
        assert samples.estimate(rising, percent / 100) == pytest.approx(expected)


TEN = [6.0, 1.0, 9.0, 3.0, 10.0, 5.0, 2.0, 8.0, 4.0, 7.0]  # none of which tells of the next


def half_width(row: list[float]) -> float:
    """Of the interval of the mean, relative to it."""
    found = samples._of_mean(row)
    assert found is not None
    mean = statistics.fmean(row)
    assert math.log(found[1] / mean) == pytest.approx(math.log(mean / found[0]))
    return math.log(found[1] / mean)


def test_the_mean_of_ten_has_nine_degrees_of_freedom() -> None:
    """Student's quantile is 2.262157 in the tables, and the samples' deviation 3.02765."""
    assert samples.effective_size(TEN) == 10
    assert half_width(TEN) == pytest.approx(2.262157 * 3.02765 / math.sqrt(10) / 5.5, rel=1e-3)


@pytest.mark.parametrize(("size", "quantile"), [(6, 2.570582), (11, 2.228139), (18, 2.109816)])
def test_samples_that_depend_on_each_other_are_as_many_as_they_tell_of(
    monkeypatch: pytest.MonkeyPatch, size: float, quantile: float
) -> None:
    """Both in the error of the mean and in its degrees of freedom."""
    row = TEN * 4
    monkeypatch.setattr(samples, "effective_size", lambda _: float(size))
    expected = quantile * statistics.stdev(row) / math.sqrt(size) / 5.5
    assert half_width(row) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize(("size", "has_one"), [(5.99, False), (6.0, True)])
def test_six_samples_are_enough_for_a_mean(
    monkeypatch: pytest.MonkeyPatch, size: float, has_one: bool
) -> None:
    monkeypatch.setattr(samples, "effective_size", lambda _: size)
    assert (samples._of_mean(TEN) is not None) is has_one


@pytest.mark.parametrize(
    ("size", "bounds"), [(6.0, (4, 24)), (6.9, (4, 24)), (12.0, (6, 20)), (24.0, (7, 18))]
)
def test_a_median_of_dependent_samples_lies_between_ranks_of_fewer(
    monkeypatch: pytest.MonkeyPatch, size: float, bounds: tuple[float, float]
) -> None:
    """As in tables: the first and the sixth of 6, the third and the tenth of 12, the seventh and
    the eighteenth of 24; each at its share of the 24 that there are."""
    monkeypatch.setattr(samples, "effective_size", lambda _: size)
    assert samples._of_quantile([float(n) for n in range(1, 25)], 0.5) == bounds


def test_the_errors_of_a_difference_add_up_as_right_angles_do() -> None:
    low, high = samples.difference((1, 3), (4, 8), (2, 5))
    assert (low, high) == pytest.approx((3 - math.hypot(1, 1), 3 + math.hypot(3, 1)))


def test_samples_that_rise_tell_as_much_as_fewer() -> None:
    """Of twelve ranks around 0 the squares add up to 143, neighbours' products to 107.25: 0.75. Of
    every second one it is 0.507, which comes by chance in twelve samples."""
    assert samples.effective_size([float(number) for number in range(12)]) == pytest.approx(
        12 / 2.5
    )
