"""`launch report` as a command: where its page goes, what it prints, what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from launch.cli.main import main
from tests.launch.report import samples

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return samples.run_folder(tmp_path / "run", samples.bench())


def test_the_page_of_a_run_lies_in_its_folder(folder: Path, capsys: Captured) -> None:
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder / 'report.html'}\n"
    assert (folder / "report.html").read_text().endswith("</html>\n")


def test_the_page_of_several_runs_lies_here(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(folder), str(folder / "bench.json")]) == 0
    assert (tmp_path / "report.html").is_file()


def test_any_mix_of_folders_is_taken_and_what_is_no_run_is_named(
    folder: Path, tmp_path: Path, capsys: Captured
) -> None:
    rehearsal, bundle = tmp_path / "rehearsal", tmp_path / "bundle"
    for target in ("triton", "trtllm_serve"):
        samples.run_folder(rehearsal / target, samples.bench(target, rehearsal=True))
    samples.run_folder(bundle / "evidence" / "night", samples.bench("attached"))
    (bundle / "manifest.json").write_text("{}")
    started = samples.run_folder(tmp_path / "runs" / "up", samples.bench("up"))
    for name in ("bench.json", "smoke.json"):
        (started / name).unlink()
    samples.run_folder(tmp_path / "runs" / "day", samples.bench("day"))
    (tmp_path / "notes.txt").write_text("nothing\nhere")
    (tmp_path / "empty").mkdir()
    given = (
        folder,
        rehearsal,
        bundle,
        tmp_path / "runs",
        tmp_path / "notes.txt",
        tmp_path / "empty",
    )
    file = tmp_path / "all.html"
    assert main(["report", *map(str, given), "-o", str(file), "--json"]) == 0
    said = capsys.readouterr()
    document = json.loads(said.out)
    titles = ["deepseek-v3.2-nvfp4-gb200", "triton", "trtllm_serve", "attached", "day"]
    assert sorted(run["title"] for run in document["runs"]) == sorted(titles)
    shown = file.read_text()
    for place, reason in (
        (started, "is a run that measured nothing"),
        (tmp_path / "notes.txt", "is neither JSON nor lines of JSON"),
        (tmp_path / "empty", "holds no run"),
    ):
        assert f"skipped: {place}: {reason}" in said.err
        assert f"Skipped: {place}: {reason}" in shown
    assert len(document["skipped"]) == 3


def test_no_page_is_left_in_a_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    night = samples.run_folder(tmp_path / "bundle" / "evidence" / "night", samples.bench())
    (tmp_path / "bundle" / "manifest.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    for given in ("bundle", "bundle/evidence", str(night)):
        assert main(["report", given]) == 0
        assert capsys.readouterr().out == "report.html\n"
    assert not list((tmp_path / "bundle").rglob("report.html"))


def test_a_damaged_result_is_never_skipped(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    damaged = samples.run_folder(tmp_path / "damaged", samples.bench())
    (damaged / "bench.json").write_text('{"kind": "bench", ')
    assert main(["report", str(folder), str(damaged), "-o", str(tmp_path / "x.html")]) == 2
    assert "damaged/bench.json: is neither JSON" in capsys.readouterr().err


def test_json_says_what_differs(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    slow = samples.bench("slow", points=[samples.point(8, tpot_ms=6.8)])
    other = samples.run_folder(tmp_path / "slow", slow)
    file = tmp_path / "out.html"
    assert main(["report", str(folder), str(other), "-o", str(file), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["file"] == str(file)
    assert [run["title"] for run in said["runs"]] == ["deepseek-v3.2-nvfp4-gb200", "slow"]
    (row,) = said["differences"]
    assert (row["run"], row["load"]) == ("slow", "c8")
    assert row["changes"]["TPOT p50"] == pytest.approx(1.0)


def test_a_report_is_replaced_and_nothing_else_is(folder: Path, capsys: Captured) -> None:
    assert main(["report", str(folder)]) == 0
    assert main(["report", str(folder)]) == 0
    assert main(["report", str(folder), "-o", str(folder / "bench.json")]) == 2
    assert "bench.json: exists and is not a report; choose another file" in capsys.readouterr().err
    assert json.loads((folder / "bench.json").read_text())["kind"] == "bench"


def test_a_fault_leaves_no_page(folder: Path, capsys: Captured) -> None:
    (folder / "bench.json").write_text("{}")
    assert main(["report", str(folder)]) == 2
    assert "bench.json: has no known result format" in capsys.readouterr().err
    assert {path.name for path in folder.iterdir()} == {"bench.json", "run.json", "smoke.json"}


def test_a_place_that_cannot_be_written_is_named(folder: Path, capsys: Captured) -> None:
    target = folder / "bench.json" / "report.html"
    assert main(["report", str(folder), "-o", str(target)]) == 2
    assert "report.html: cannot be written" in capsys.readouterr().err


def test_it_needs_nothing_but_the_default_install(folder: Path) -> None:
    code = (
        "import sys; from launch.cli.main import main\n"
        f"assert main(['report', {str(folder)!r}]) == 0\n"
        "sys.exit(bool({'numpy', 'grpc', 'httpx', 'tritonclient', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_help_is_light() -> None:
    code = (
        "import sys; from launch.cli.main import main\n"
        "try: main(['report', '--help'])\n"
        "except SystemExit: sys.exit('jinja2' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    assert done.returncode == 0
