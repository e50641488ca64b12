"""Parts of an estimate, to the number: what fills a cache, drafts, knots, and what to measure."""

from __future__ import annotations

from dataclasses import replace
from math import exp, inf
from types import SimpleNamespace
from typing import Any

import pytest

from builder.estimates import Estimate, Interval, Question, cells, interpolation, refusals, roofline
from builder.estimates.roofline import WEIGHT_BYTES, Shape
from builder.facts import hardware

# No model has such round numbers.
SHAPE = Shape(10, 1e9, 4e9, 8, 2, 1000.0, False, 0.0)
GB = 1e9


def load(**changes: Any) -> Question:
    plain = Question("m", "h100", "bf16", "tensorrt_llm", 2, 1, 1, 1000, 500, 16, mtp=0)
    return replace(plain, **changes)


def test_requests_half_way_through_their_answers_fill_the_cache() -> None:
    free = 0.9 * hardware.load("h100").memory_nominal_gb.value * GB
    free -= WEIGHT_BYTES["bf16"] * (1e9 + 4e9) / 2
    # 1,250 tokens of each, of which each of two GPUs keeps 500 values of a byte.
    assert roofline.kv_cache_share(load(), SHAPE, "h100") == pytest.approx(16 * 1250 * 500 / free)


def test_ranks_of_attention_data_parallelism_share_the_requests() -> None:
    """Each holds the dense weights, and its half of the routed ones."""
    free = 0.9 * hardware.load("h100").memory_nominal_gb.value * GB
    free -= WEIGHT_BYTES["bf16"] * (1e9 + 4e9 / 2)
    shared = load(tp=1, attention_dp=2)
    assert roofline.kv_cache_share(shared, SHAPE, "h100") == pytest.approx(8 * 1250 * 1000 / free)


def test_latent_attention_is_whole_on_every_rank() -> None:
    whole = SHAPE._replace(is_latent=True)
    found = [roofline.kv_cache_share(load(), shape, "h100") for shape in (SHAPE, whole)]
    assert found[1] == pytest.approx(2 * found[0])


def test_weights_that_leave_no_room_fill_it_whatever_the_load() -> None:
    assert roofline.kv_cache_share(load(), SHAPE._replace(dense=1e12), "h100") == inf


def test_a_step_that_drafts_nothing_has_no_drafting_layers() -> None:
    plain: Any = SimpleNamespace(
        shape=SHAPE,
        speeds=SimpleNamespace(bytes_per_ms=3e9, flops_per_ms=1e12),
        fits=SimpleNamespace(tpot=SimpleNamespace(time=lambda _, terms: sum(terms))),
    )
    for drafts, more in ((0, 1.0), (1, 1.1), (3, 1.3)):
        terms = roofline.decode_terms(load(), SHAPE, plain.speeds, drafts)
        assert cells._step(load(), plain, drafts) == pytest.approx(sum(terms) * more)
    found = cells._computed(load(mtp=1, acceptance=1.8), plain, 1).gain
    assert found is not None
    longer = cells._step(load(), plain, 1) / cells._step(load(), plain, 0)
    assert found.value == pytest.approx(1.8 / longer)
    assert found.low == pytest.approx(found.value / exp(0.08))
    assert found.high == pytest.approx(found.value * exp(0.08))


def test_knots_are_own_sizes_and_others_that_are_not_near_to_one() -> None:
    found = interpolation.knots((1, 1000), [100], [2, 104, 105, 106, 1000, 2000])
    assert found == [1, 2, 100, 106, 1000]
    assert list(interpolation.doublings(3, 16)) == [4, 8, 16]


def test_a_measurement_tells_most_where_most_is_unknown() -> None:
    kernel: Any = SimpleNamespace(scales=SimpleNamespace(noise=0.5))
    unknown = [[4.0, 2.0], [2.0, 1.0]]
    assert refusals._gain(unknown, 0, kernel) == pytest.approx((16 + 4) / 4.25)
    assert refusals._gain(unknown, 1, kernel) == pytest.approx((4 + 1) / 1.25)
    after = refusals._after(unknown, 0, kernel)
    assert after == [
        pytest.approx([4 - 16 / 4.25, 2 - 8 / 4.25]),
        pytest.approx([2 - 8 / 4.25, 1 - 4 / 4.25]),
    ]


def test_speeds_are_of_all_gpus_and_of_one_user() -> None:
    times = Interval(8.0, 10.0, 12.5)
    asked = load(tp=2, attention_dp=4)
    found = Estimate(asked, times, times, times, Interval(700.0, 800.0, 900.0), 1, lambda: ())
    assert found.tok_s_per_gpu == Interval(700 / 8, 100.0, 900 / 8)
    assert found.tok_s_per_user == Interval(80.0, 100.0, 125.0)
    cost = found.usd_per_million_tokens(3.6)  # 0.001 USD a second for 100 tokens
    assert cost.value == pytest.approx(10.0)
    assert (cost.low, cost.high) == pytest.approx((1000 / (900 / 8), 1000 / (700 / 8)))
