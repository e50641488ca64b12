"""Ways of using bench, diff and report wrongly: each is said, and none ends as a success."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builder.bundle import Bundle
from launch.cli.main import main
from tests.launch.conftest import bundle as bundle

SAMPLE = Path(__file__).parent / "sample_bench.json"
# No server listens there: the port is that of "discard", which nobody runs any more.
NOBODY = "http://127.0.0.1:9"

Change = Callable[[dict[str, Any]], Any]
Refused = Callable[..., tuple[int, str]]


def with_three_successes(document: dict[str, Any]) -> None:
    point = document["points"][0]
    point["requests"] |= {"sent": 3, "ok": 3}
    point["samples"] = {name: row[:3] for name, row in point["samples"].items()}


# What is done to one of two results that are otherwise comparable, and what is said of it.
RESULTS: dict[str, tuple[Change, str]] = {
    "few successes": (with_three_successes, "point c1 of B: has 3 successes of 3 requests; 6 at"),
    "end of answers": (
        lambda d: d["workload"].update(ignore_eos=False),
        "workload: its ignore_eos is True in A and False in B",
    ),
    "no outcome": (lambda d: d.pop("outcome"), "that of B is unknown"),
    "no points": (lambda d: d["points"].clear(), "have no point in common"),
    "counts that do not agree": (
        lambda d: d["points"][0]["requests"].update(failed=99),
        "points[0].requests.sent: is 20, with 20 successes and 99 failures",
    ),
    "a speed below 0": (
        lambda d: d["points"][0].update(output_tokens_per_s=-5.0),
        "points[0].output_tokens_per_s: is below 0",
    ),
    "no speed": (
        lambda d: d["points"][0].update(output_tokens_per_s=None),
        "points: output_tokens_per_s of c1 is measured in A and missing in B",
    ),
    "no first tokens": (
        lambda d: d["points"][0]["samples"].pop("ttft_ms"),
        "points: ttft_ms of c1 is measured in A and missing in B",
    ),
    "a point twice": (lambda d: d["points"].append(d["points"][0]), "points: has c1 twice"),
    "no window": (
        lambda d: d["points"][0].update(window=None),
        "window: that of c1 is steady in A and unknown in B",
    ),
    "unknown lengths": (
        lambda d: d["workload"].pop("isl"),
        "workload: its isl is 800 in A and unknown in B",
    ),
    "format as text": (lambda d: d.update(format="1"), 'has format "1"; this toolkit reads 1'),
    "other format": (lambda d: d.update(format=2), "has format 2; this toolkit reads 1"),
    "other tool": (lambda d: d.update(kind="smoke"), "is not a bench.json of this toolkit"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with two results that are compared as a success."""
    monkeypatch.chdir(tmp_path)
    sample = json.loads(SAMPLE.read_text())
    sample["workload"]["ignore_eos"] = True
    (tmp_path / "a.json").write_text(json.dumps(sample | {"started": "earlier"}))
    (tmp_path / "b.json").write_text(json.dumps(sample))
    return tmp_path


@pytest.fixture
def refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> Refused:
    """The exit code of a command that must not succeed, and what it says."""

    def run(*arguments: str | Path) -> tuple[int, str]:
        try:
            status = main([str(word) for word in arguments])
        except SystemExit as end:  # argparse's
            status = int(end.code or 0)
        said = capsys.readouterr()
        assert status != 0
        assert said.out == ""
        assert "error: " in said.err
        assert "Traceback" not in said.err
        return status, said.err

    return run


def test_two_results_of_one_workload_are_compared(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "diff", "a.json", "b.json"]) == 0
    assert "B is " in capsys.readouterr().out


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_that_cannot_be_compared_has_no_verdict(
    name: str, folder: Path, refused: Refused
) -> None:
    change, message = RESULTS[name]
    document = json.loads((folder / "b.json").read_text())
    change(document)
    (folder / "b.json").write_text(json.dumps(document))
    status, said = refused("bench", "diff", "a.json", "b.json")
    assert (status, message in said) == (2, True), said
    assert refused("bench", "diff", "a.json", "b.json", "--json")[0] == 2


@pytest.mark.parametrize(("part", "key"), [("subject", "model"), ("client", "api")])
def test_what_is_unknown_in_both_is_not_the_same(
    part: str, key: str, folder: Path, refused: Refused
) -> None:
    for name in ("a.json", "b.json"):
        document = json.loads((folder / name).read_text())
        del document[part][key]
        (folder / name).write_text(json.dumps(document))
    status, said = refused("bench", "diff", "a.json", "b.json")
    assert (status, f"{key}: it is unknown in both" in said) == (2, True), said
    assert main(["bench", "diff", "a.json", "b.json", "--allow", key]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a.json",), "the following arguments are required: B"),
        (("a.json", "missing.json"), "missing.json: cannot be read: no such file"),
        (("a.json", "empty"), "bench.json: cannot be read: no such file"),
        (("a.json", "text.json"), "text.json: is not JSON"),
        (("a.json", "list.json"), "list.json: is not a bench.json of this toolkit"),
        (("a.json", "vllm.json"), "vllm.json: is not a bench.json of this toolkit"),
        (("a.json", "b.json", "--allow", "speed"), "unknown aspect speed; known: workload, api"),
        (("a.json", "b.json", "--margin", "200"), "200 must be a percentage >= 0 and < 100"),
        (("a.json", "b.json", "--margin", "nan"), "nan must be a percentage"),
        (("http://127.0.0.1:8000", "b.json"), "cannot be read"),
        (("published", "missing"), "missing: does not exist"),
        (("published", "empty"), "empty: holds no run"),
        (("published", "other.json"), "published figures for other.json: has none"),
        (("published", "runs"), "runs: holds 2 runs, and one is compared"),
    ],
)
def test_a_wrong_comparison_is_said(
    arguments: tuple[str, ...], message: str, folder: Path, refused: Refused
) -> None:
    (folder / "empty").mkdir()
    (folder / "text.json").write_text("B is same")
    (folder / "list.json").write_text("[]")
    other = json.loads((folder / "a.json").read_text())
    other["subject"]["model"] = "nobody/published-it"
    (folder / "other.json").write_text(json.dumps(other))
    for name in ("a", "b"):
        (folder / "runs" / name).mkdir(parents=True)
        (folder / "runs" / name / "bench.json").write_text((folder / f"{name}.json").read_text())
    (folder / "vllm.json").write_text('{"total_token_throughput": 1.0}')
    status, said = refused("bench", "diff", *arguments)
    assert (status, message in said) == (2, True), said


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ((), 2, "the following arguments are required: BUNDLE|URL"),
        (
            ("localhost:9999",),
            2,
            "neither a bundle's folder nor a URL; write http://localhost:9999",
        ),
        (("node1:8000/v1",), 2, "write http://node1:8000"),
        (("missing",), 2, "missing: is not a bundle"),
        (("dif", "a.json", "b.json"), 2, "dif is no form of bench; did you mean diff?"),
        (("ftp://node",), 2, "is not the URL of a server; write http://HOST:PORT"),
        (("http://node:8000?modle=m",), 2, "is not a URL of trtllm-serve"),
        (("triton://node:8000?port=1",), 2, "is not a URL of Triton Inference Server"),
        ((NOBODY,), 5, "no server answers: connection refused; start it"),
        (("triton://127.0.0.1:9",), 5, "no server answers"),
        ((NOBODY, "--target", "triton"), 2, "--target: is for bundles"),
        ((NOBODY, "--concurrency", "0"), 2, "0 must be >= 1"),
        ((NOBODY, "--concurrency", "4,8,4"), 2, "4 is there twice"),
        ((NOBODY, "--concurrency", "1;2"), 2, "--concurrency: '1;2' is no whole number"),
        ((NOBODY, "--isl", "1e3"), 2, "--isl: '1e3' is no whole number"),
        ((NOBODY, "--slo", "ttft_ms=fast"), 2, "--slo: 'fast' is no number"),
        ((NOBODY, "--rate", "0"), 2, "0 must be > 0"),
        ((NOBODY, "--rate", "2", "--concurrency", "2"), 2, "--rate: is for open loops"),
        ((NOBODY, "--requests", "0"), 2, "0 must be >= 1"),
        ((NOBODY, "--duration", "inf"), 2, "inf must be a number of seconds > 0"),
        ((NOBODY, "--temperature", "nan"), 2, "nan must be >= 0"),
        ((NOBODY, "--workload", "sharegpt"), 2, "--data: is needed for sharegpt"),
        ((NOBODY, "--workload", "agent", "--duration", "3"), 2, "--duration: is not for agent"),
        ((NOBODY, "--data", "a.json"), 2, "--data: is not for fixed"),
        ((NOBODY, "--prefix", "8"), 2, "--prefix: is for shared-prefix only"),
        ((NOBODY, "--slo", "ttft=3"), 2, "unknown limit ttft; known: ttft_ms"),
        ((NOBODY, "--api", "openai"), 2, "invalid choice: 'openai'"),
        ((NOBODY, "--quality", "lm-eval"), 2, "--quality-python: is needed"),
        ((NOBODY, "--key-file", "missing"), 2, "missing"),
    ],
)
def test_a_wrong_measurement_is_said_before_it_begins(
    arguments: tuple[str, ...], status: int, message: str, folder: Path, refused: Refused
) -> None:
    found, said = refused("bench", *arguments)
    assert (found, message in said) == (status, True), said
    assert {file.name for file in folder.iterdir()} == {"a.json", "b.json"}


def test_where_smoke_cannot_write_is_said_before_it_asks_the_server(refused: Refused) -> None:
    status, said = refused("smoke", NOBODY, "--junit", "missing/smoke.xml")
    assert (status, "missing/smoke.xml: cannot be written: no such folder" in said) == (2, True)


def test_a_bundle_of_two_servers_needs_the_name_of_one(bundle: Bundle, refused: Refused) -> None:
    status, said = refused("bench", bundle.folder)
    assert (status, "--target: is needed: the bundle has 2 targets" in said) == (2, True)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("missing",),
        ("empty",),
        ("text.json",),
        ("a.json", "-o", "text.json"),
        ("a.json", "-o", "."),
    ],
)
def test_a_wrong_report_is_said(arguments: tuple[str, ...], folder: Path, refused: Refused) -> None:
    (folder / "empty").mkdir()
    (folder / "text.json").write_text("no result")
    assert refused("report", *arguments)[0] == 2
    assert (folder / "text.json").read_text() == "no result"
