"""What a deployment promises: targets at a percentile, and choices that are left to `choose`."""

from __future__ import annotations

from pathlib import Path

from builder import deployment
from builder.deployment import Deployment
from builder.observability import alerts
from tests.builder.test_deployment import GOOD
from tests.conftest import Run
from tests.tables import by_table


def read(folder: Path, old: str = "", new: str = "") -> Deployment:
    file = folder / "deployment.yaml"
    file.write_text(GOOD.replace(old, new))
    found, diagnostics = deployment.read(str(file)).validate(
        ["trtllm_serve", "triton"], lambda _name: deployment.Strict
    )
    assert found is not None, diagnostics
    return found


@by_table
def test_an_open_choice_is_left_to_choose(
    old: str, new: str, where: str, tmp_path: Path, builder: Run
) -> None:
    file = tmp_path / "deployment.yaml"
    file.write_text(GOOD.replace(old, new))
    done = builder("plan", file)
    assert done.returncode == 2
    assert done.stderr.count("error:") == 1
    assert where in done.stderr
    assert f"run `python -m builder choose {file} -o FILE` first" in done.stderr


def test_the_percentile_of_an_objective_is_that_of_its_alerts(tmp_path: Path) -> None:
    given = read(tmp_path, "targets:", "slo: {itl_ms: 20, percentile: p99}\ntargets:")
    assert [row.share for row in alerts.objectives(given) if row.kind == "itl"] == [0.99]
    assert alerts.latency_share(given) == 0.99
    assert alerts.latency_share(read(tmp_path)) == 0.95


def test_a_percentile_that_nobody_reports_is_refused(tmp_path: Path, builder: Run) -> None:
    file = tmp_path / "deployment.yaml"
    file.write_text(GOOD + "slo: {itl_ms: 20, percentile: p42}\nobjective: speed\n")
    report = builder("plan", file).stderr
    assert ":7: slo.percentile: p42 is not allowed; Known: p50, p90, p95, p99" in report
    assert ":8: objective: speed is not allowed; Known: cost, latency, output" in report
