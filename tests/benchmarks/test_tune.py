"""What the tuning search is worth is what the command measured by replaying measurements."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks import tune
from builder.estimates import fits, measurements

FIGURES: dict[str, Any] = json.loads(tune.PAGE.figures.read_text())


def test_the_page_has_the_table_of_the_figures() -> None:
    """Run `python -m benchmarks.tune --write` after a change of them."""
    table = tune.table(FIGURES)
    assert tune.PAGE.with_table(table) == tune.PAGE.path.read_text()


def test_every_bound_holds_and_a_missed_one_is_named() -> None:
    assert not list(tune.misses(FIGURES))
    worse = json.loads(json.dumps(FIGURES))
    worse["scenes"]["model never seen"]["starts"] = 5.6
    assert list(tune.misses(worse)) == ["model never seen: starts is 5.6, above 5.5"]


def test_problems_can_be_solved_and_know_their_best() -> None:
    found = list(tune.problems(measurements.read()[0]))
    assert len(found) == FIGURES["problems"]
    for one in found:
        assert len(one.servers) >= tune.LEAST_CONFIGURATIONS
        assert one.best > 0
    assert found[0].limits_ms["itl_ms"] < found[1].limits_ms["itl_ms"]


@pytest.mark.parametrize("gpu", ["h100", None])
def test_the_prior_has_not_seen_what_is_asked(gpu: str | None, monkeypatch: Any) -> None:
    seen: list[str] = []

    def fitted(rows: Any) -> Any:
        seen.extend({f"{row.model} {row.gpu}" for row in rows})
        return fits.load()

    monkeypatch.setattr(tune, "fitted", fitted)
    tune.prior_without(measurements.read()[0], "Qwen3-32B", gpu)
    assert "Qwen3-32B h100" not in seen
    assert any(row.startswith("Qwen3-32B") for row in seen) == (gpu is not None)


def test_a_replay_starts_at_measured_loads_until_it_stops() -> None:
    rows, _ = measurements.read()
    problem = next(one for one in tune.problems(rows) if one.model == "Qwen3-32B")
    prior = tune.prior_without(rows, "Qwen3-32B", None)
    regrets, loads = tune.replay(problem, prior, by_rank=1)
    assert regrets == sorted(regrets, reverse=True)
    assert len(regrets) <= loads <= 4 * len(regrets)
