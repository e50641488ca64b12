"""`launch attach`: the results of runs become the evidence of the bundle that they are of."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from builder import bundle as bundles
from builder import pipeline, verification
from builder.bundle import EVIDENCE, SUMS
from builder.errors import BadInput
from launch.attach import attach as attach_runs
from tests import prefork

Attach = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pipeline.render("llama-tiny", tmp_path_factory.mktemp("attach") / "bundle").folder


@pytest.fixture
def bundle(rendered: Path, tmp_path: Path) -> Path:
    return shutil.copytree(rendered, tmp_path / "bundle")


@pytest.fixture
def attach(tmp_path: Path) -> Attach:
    """`python -m launch attach ARGUMENTS`."""

    def run(*arguments: Path) -> subprocess.CompletedProcess[str]:
        words = ["attach", *map(str, arguments)]
        return prefork.shared().run(words, tmp_path, "launch").done

    return run


def make_run(folder: Path, bundle: Path, digest: str | None = None) -> Path:
    """A run of a bundle, rehearsed, with its smoke results, as `launch` leaves it."""
    folder.mkdir(parents=True)
    found = bundles.read(bundle)
    about = {
        "format": 1,
        "bundle": {"name": "llama-tiny", "folder": str(bundle), "digest": digest or found.digest},
        "target": "triton",
        "engine": {
            **found.launch["engine"],
            "used": "reference",
            "rehearsal": True,
        },
        "started": "2026-01-02T03:04:05.678Z",
        "stopped": "2026-01-02T03:05:05.678Z",
        "ready_after_s": 4.2,
        "outcome": "stopped",
    }
    (folder / "run.json").write_text(json.dumps(about))
    numbers = {"checks": 0, "passed": 0, "failed": 0, "warnings": 0, "skipped": 0, "seconds": 0.5}
    smoke = {**numbers, "transports": {}, "results": []}
    (folder / "smoke.json").write_text(json.dumps(smoke))
    (folder / "server.log").write_text("token=secret\n")
    return folder


def evidence_in(bundle: Path) -> set[str]:
    folder = bundle / EVIDENCE
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_results_lie_in_the_bundle_with_one_page(
    bundle: Path, tmp_path: Path, attach: Attach
) -> None:
    runs = [make_run(tmp_path / name, bundle) for name in ("one", "two words")]
    done = attach(bundle, *runs)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(bundle / "evidence")
    results = {
        f"{run}/{name}" for run in ("one", "two-words") for name in ("run.json", "smoke.json")
    }
    assert evidence_in(bundle) == {"report.html", *results}, "and no logs"
    report = verification.verify(bundle)
    assert not report.damage
    assert report.evidence == 5
    subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=bundle, check=True)


def test_the_page_shows_the_bundle_and_no_folder_of_this_machine(
    bundle: Path, tmp_path: Path, attach: Attach
) -> None:
    run = make_run(tmp_path / "run", bundle)
    text = (run / "run.json").read_text()
    (run / "run.json").write_text(text.replace(str(bundle), "/gone"))
    attach(bundle, run)
    page = (bundle / "evidence" / "report.html").read_text()
    assert str(tmp_path) not in page
    assert "The bundle is not shown" not in page
    assert "decisions with their reasons" in page


def test_a_bundle_with_evidence_is_the_same_bundle(
    bundle: Path, tmp_path: Path, attach: Attach
) -> None:
    before = bundles.read(bundle)
    attach(bundle, make_run(tmp_path / "run", bundle))
    assert bundles.read(bundle) == before


def test_the_same_runs_again_change_nothing(bundle: Path, tmp_path: Path, attach: Attach) -> None:
    run = make_run(tmp_path / "run", bundle)
    attach(bundle, run)
    sign(bundle, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in bundle.rglob("*")}
    assert attach(bundle, run).stderr == ""
    assert {path: path.stat().st_mtime_ns for path in bundle.rglob("*")} == before


def test_other_runs_take_the_place_and_end_a_signature(
    bundle: Path, tmp_path: Path, attach: Attach
) -> None:
    attach(bundle, make_run(tmp_path / "one", bundle))
    sign(bundle, tmp_path)
    done = attach(bundle, make_run(tmp_path / "two", bundle))
    assert "the signature was of other files and is removed" in done.stderr
    assert evidence_in(bundle) == {"report.html", "two/run.json", "two/smoke.json"}
    report = verification.verify(bundle)
    assert not report.signed
    assert not report.damage


def sign(bundle: Path, folder: Path) -> None:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "key")]
    subprocess.run(command, check=True)
    verification.sign(bundle, folder / "key")


def test_every_run_that_is_no_evidence_is_named(
    bundle: Path, tmp_path: Path, attach: Attach
) -> None:
    good = make_run(tmp_path / "good", bundle)
    other = make_run(tmp_path / "other", bundle, digest="0")
    nameless = make_run(tmp_path / "nameless", bundle)
    (nameless / "run.json").unlink()
    (tmp_path / "empty").mkdir()
    own = bundles.read(bundle).digest
    done = attach(bundle, good, other, nameless, tmp_path / "empty", tmp_path / "none")
    assert done.returncode == 2
    assert f"other/run.json: is of a bundle of digest 0, this one has {own}" in done.stderr
    assert "nameless: does not name its bundle" in done.stderr
    assert "empty: holds neither smoke.json nor bench.json" in done.stderr
    assert "none: holds neither smoke.json nor bench.json" in done.stderr
    assert not (bundle / EVIDENCE).exists()


def test_a_damaged_bundle_takes_no_evidence(bundle: Path, tmp_path: Path, attach: Attach) -> None:
    run = make_run(tmp_path / "run", bundle)
    (bundle / "launch.json").write_text("{}")
    assert attach(bundle, run).returncode == 4


def test_a_swap_that_fails_leaves_what_was_there(
    bundle: Path, tmp_path: Path, attach: Attach
) -> None:
    attach(bundle, make_run(tmp_path / "one", bundle))
    before, found = evidence_in(bundle), bundles.read(bundle)
    run = make_run(tmp_path / "two", bundle)
    (bundle / SUMS).unlink()
    (bundle / SUMS).mkdir()  # nothing can be put in its place
    with pytest.raises(BadInput, match="cannot be written"):
        attach_runs(found, [run])
    assert evidence_in(bundle) == before
    assert {path.name for path in tmp_path.iterdir()} == {"bundle", "one", "two"}
