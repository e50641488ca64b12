"""The smoke suite: each fault of a server is found by the checks that are there for it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pytest

from builder.bundle import Bundle
from builder.errors import NotReady
from launch import endpoint, target
from launch.cli import text_tables
from launch.endpoint import Endpoint
from launch.process import ServerProcess
from launch.smoke import concurrency, generation, health, metrics, negative, suite
from launch.smoke.client import CheckFailure
from launch.smoke.results import CheckResult, junit, summary
from tests import prefork
from tests.conftest import ROOT
from tests.launch import faulty_server, faulty_suites, faulty_triton
from tests.launch.conftest import Child
from tests.launch.faulty_suites import OPTIONS, Case, Results

REFUSALS = ["N2", "N3.type", "N3.shape", "N3.input", "N3.name", "N4", "N7", "N8"]
REFUSALS += ["N9.tokens0", "N9.tokens", "N9.top_k", "N9.heat", "N9.prompt", "N16", "N17"]
NEGATIVE = ["N1", *REFUSALS, "N10", "N11", "N13.url", "N13.verb"]
STREAMING = ["P8", "P9", "P9.final", "P13"]

OPENAI_FAULTS: dict[str, list[str]] = {
    "health": ["P2", *NEGATIVE],
    "empty": [
        *("P6", "P6.chat", "P8", "P9", "P9.final", "P10", "P12", "P17", "P18", "P24"),
        *NEGATIVE,
    ],
    "wavers": ["P7", "P8", "P10", "P11", "P12", "P13", "P20"],
    "loses_text": ["P8", "P13"],
    "shrinks": ["P8", "P9", "P13"],
    "two_finals": ["P9.final"],
    "no_done": STREAMING,
    "more_after_done": STREAMING,
    "splits_characters": ["P13"],
    "mixes_requests": ["P10"],
    "stop_word": ["P11"],
    "max_tokens": ["P6", "P12", "P17"],
    "miscounts": ["P6", "P12", "P17"],
    "serial": ["P14"],
    "usage": ["P17"],
    "logprobs": ["P18"],
    "steps": ["P19"],
    "unseeded": ["P20"],
    "guided": ["P21"],
    "ignores_format": ["P21"],
    "refuses_format": ["P21"],
    "other_tool": ["P21.tools"],
    "bad_arguments": ["P21.tools"],
    "call_in_text": ["P21.tools"],
    "counts": ["P22"],
    "other_name": ["P22.name"],
    "null_content": ["P6.chat"],
    "weak": ["P24"],
    "internals": REFUSALS,
    "accepts_prompt": ["N2"],
    "accepts_max_tokens": ["N3.type", "N3.shape", "N9.tokens"],
    "accepts_field": ["N3.input", "N3.name"],
    "any_json": ["N4"],
    "accepts_top_p": ["N7"],
    "accepts_too_long": ["N8"],
    "accepts_temperature": ["N9.heat"],
    "breaks_on_bad_value": ["N9.heat", "N9.prompt", "N10", "N11", "N13.url", "N13.verb"],
    "any_url": ["N13.url", "N13.verb"],
    "accepts_stream_options": ["N16"],
    "accepts_image": ["N17"],
    "generates_for_nobody": ["N10"],
    "stuck": ["N10"],
}
OPENAI_FAULTS["breaks_on_bad_value"] += ["N16", "N17"]
HTTP_FAULTS: dict[str, list[str]] = {
    "index": ["P3"],
    "metadata": ["P4"],
    "ignores_names": ["P12.name", "N3.input", "N3.name"],
    "config": ["P5"],
    "no_cumulative": ["P9.all"],
    "wrong_id": ["P10"],
    "counts": ["P22"],
    "pending": ["P22"],
    "kv_cache": ["P24"],
    "any_model": ["N1"],
    "unary": ["N5"],
    "first_part": ["N6"],
    "accepts_tokens": ["N9.tokens0", "N9.tokens"],
    "accepts_top_k": ["N9.top_k"],
    "accepts_prompt": ["N9.prompt"],
    "cancel_uncounted": ["N10"],
    "loads": ["N12"],
    "takes_all": ["N15"],
    "open": ["N18"],
}
GRPC_FAULTS: dict[str, list[str]] = {
    "ignores_names": ["P12.name", "N3.name"],
    "loading": ["P3"],
    "no_final": ["P9.final"],
    "all_final": ["P9.final"],
    "wrong_id": ["P10"],
    "unary": ["N5"],
}
WARNINGS = {"batching": ["P7.batch"], "forgets": ["P16"], "blank_json": ["P21"]}

# What a server that tells no version is.
UNKNOWN: dict[str, Any] = {"version": None, "rehearsal": None}


@pytest.fixture(scope="module")
def suites(request: pytest.FixtureRequest) -> Iterator[Mapping[Case, Future[Results]]]:
    """For every case of the tests that were chosen."""
    ours = (item for item in request.session.items if item.path == request.path)
    calls = (getattr(item, "callspec", None) for item in ours)
    found = [call.params["found"] for call in calls if call and "found" in call.params]
    with faulty_suites.pool(found) as started:
        yield started


@pytest.fixture
def found(request: pytest.FixtureRequest, suites: Mapping[Case, Future[Results]]) -> Results:
    return suites[request.param].result()


def against(kind: str, *faults: str) -> pytest.MarkDecorator:
    """`found` is what the suite finds of such a server."""
    return pytest.mark.parametrize(
        "found", [(kind, fault) for fault in faults], indirect=True, ids=[*faults]
    )


def expecting(kind: str, faults: Mapping[str, Sequence[str]]) -> pytest.MarkDecorator:
    """`expected` is what should be found of a server with this fault."""
    rows = [((kind, fault), expected) for fault, expected in faults.items()]
    return pytest.mark.parametrize(("found", "expected"), rows, indirect=["found"], ids=[*faults])


def ids(results: Results, outcome: str) -> list[str]:
    return [one.id for one in results.values() if one.outcome == outcome]


@against("openai", "")
def test_a_right_openai_server_passes_every_check_that_applies(found: Results) -> None:
    assert {one.id: one.evidence for one in found.values() if one.outcome == "failed"} == {}
    assert ids(found, "warned") == []
    skipped = [
        check.id for check in (*suite.POSITIVE, *suite.NEGATIVE) if check.apis == ("kserve",)
    ]
    skipped += ["P1", "P15.needle", "P23", "N13.rpc", "N15"]
    assert sorted(ids(found, "skipped")) == sorted(skipped)


@expecting("openai", OPENAI_FAULTS)
def test_a_fault_of_an_openai_server_is_found(found: Results, expected: list[str]) -> None:
    assert sorted(ids(found, "failed")) == sorted(expected)


@expecting("openai", WARNINGS)
def test_what_a_model_may_do_is_a_warning_only(found: Results, expected: list[str]) -> None:
    assert ids(found, "warned") == expected
    assert ids(found, "failed") == []


@pytest.mark.parametrize(
    "found",
    [("openai", "runs_ahead"), ("triton over http", "runs_ahead")],
    indirect=True,
    ids=["openai", "triton"],
)
def test_a_request_that_was_over_before_it_was_left_is_no_fault(found: Results) -> None:
    assert ids(found, "failed") == []
    assert "left after the first text" in found["N10"].evidence


@against("triton over http", "over_at_once")
def test_a_crowd_whose_first_is_over_before_its_last_has_begun_is_no_fault(found: Results) -> None:
    assert ids(found, "failed") == []
    assert "of 28 refused" in found["N15"].evidence


@against("openai", "breaks_on_cancel")
def test_a_cancelled_stream_that_breaks_the_server_is_found(found: Results) -> None:
    assert {"P14", "N10", "N11"} <= set(ids(found, "failed"))


@expecting("openai", {"": "new text", "cumulative": "all text so far"})
def test_the_kind_of_a_whole_stream_is_recognised(found: Results, expected: str) -> None:
    assert ids(found, "failed") == []
    assert found["P9"].evidence == f"32 parts with {expected} each"


@against("triton over http", "")
def test_a_right_triton_passes_over_http(found: Results) -> None:
    assert {one.id: one.evidence for one in found.values() if one.outcome == "failed"} == {}
    assert found["P18"].evidence == "the model has no input return_cumulative_logprob"
    assert found["P18"].outcome == "skipped"


@expecting("triton over http", HTTP_FAULTS)
def test_a_fault_of_triton_over_http_is_found(found: Results, expected: list[str]) -> None:
    assert sorted(ids(found, "failed")) == sorted(expected)


@against("triton over grpc", "")
def test_a_right_triton_passes_over_grpc(found: Results) -> None:
    assert {one.id: one.evidence for one in found.values() if one.outcome == "failed"} == {}
    assert "DEADLINE_EXCEEDED" in found["N11"].evidence


@expecting("triton over grpc", GRPC_FAULTS)
def test_a_fault_of_triton_over_grpc_is_found(found: Results, expected: list[str]) -> None:
    assert sorted(ids(found, "failed")) == sorted(expected)


@against("triton over grpc", "not_ready")
def test_a_model_that_is_not_ready_fails_every_negative_check(found: Results) -> None:
    assert found["P2"].evidence == "ModelReady gives false, true expected"
    assert found["N2"].outcome == "failed"


@against("triton over grpc", "")
def test_an_unknown_server_with_open_management_is_warned_of(found: Results) -> None:
    assert found["N18"].outcome == "warned"
    assert found["N18"].evidence == "open for everyone: model-repository"


def of_checks(url: str, *wanted: str, **options: Any) -> Results:
    """Some checks alone, of a server whose bundle has these options."""
    chosen = [check for check in suite.POSITIVE if check.id in wanted]
    at = replace(endpoint.from_url(url), options=options)
    return faulty_suites.by_id(suite.run(at, lambda _: None, chosen))


@pytest.mark.parametrize(
    ("fault", "options", "outcome", "evidence"),
    [
        ("four_at_once", {"max_batch_size": 4}, "passed", "4 of 4 max_tokens 64, 4 of 4 without"),
        ("four_at_once", {"max_batch_size": 2, "enable_attention_dp": True,
                          "tensor_parallel_size": 2}, "passed", "4 of 4 max_tokens 64"),
        ("four_at_once", {"max_batch_size": 64}, "failed", "4 of 8 streams have begun after 1 s"),
        ("serial", {"max_batch_size": 4}, "failed", "the second of 4 begins when the first one"),
        ("serial", {"max_batch_size": 1}, "skipped", "runs one request at a time"),
    ],
)  # fmt: skip
def test_streams_overlap_as_far_as_the_plan_runs_them_at_once(
    monkeypatch: pytest.MonkeyPatch, fault: str, options: Any, outcome: str, evidence: str
) -> None:
    if "streams have begun after" in evidence:
        monkeypatch.setattr(concurrency, "BEGIN_TIMEOUT_S", 1.0)
    with faulty_server.running(fault) as url:
        found = of_checks(url, "P14", **options)
    assert (found["P14"].outcome, evidence in found["P14"].evidence) == (outcome, True), found


@pytest.mark.parametrize(
    ("fault", "options", "outcome", "evidence"),
    [
        ("ignores_format", {}, "warned", "not enforced, finish_reason length; the server may have"),
        ("ignores_format", {"guided_decoding_backend": "xgrammar"}, "failed", "finish_reason len"),
        ("ignores_format", {"max_batch_size": 4}, "skipped", "the server drops response_format"),
        ("refuses_format", {}, "skipped", "no backend for guided decoding; refused: 400: no guid"),
        ("", {}, "passed", "fits the schema"),
    ],
)
def test_a_schema_is_enforced_where_the_plan_has_a_backend_for_it(
    fault: str, options: Any, outcome: str, evidence: str
) -> None:
    with faulty_server.running(fault) as url:
        found = of_checks(url, "P21", **options)
    assert (found["P21"].outcome, evidence in found["P21"].evidence) == (outcome, True), found


def test_a_server_that_passes_over_unknown_fields_is_warned_of() -> None:
    wanted = [check for check in suite.NEGATIVE if check.id in ("N3.input", "N3.name")]
    with faulty_server.running("accepts_field") as url:
        at = replace(endpoint.from_url(url), server="vllm_serve")
        found = suite.run(at, lambda _: None, wanted)
    assert [one.outcome for one in found] == ["warned", "warned"]
    assert "a misspelt one goes unnoticed" in found[0].evidence


def test_an_answer_without_content_is_named_as_such() -> None:
    with faulty_server.running("null_content") as url:
        found = of_checks(url, "P6.chat")
    assert found["P6.chat"].evidence == "content is null, a text is expected"


def test_a_prompt_below_the_limit_that_is_refused_is_found() -> None:
    with faulty_server.running() as url:
        promised = {**OPTIONS, "max_seq_len": 2 * faulty_server.LIMIT}
        server = replace(endpoint.from_url(url), options=promised)
        found = faulty_suites.checked(server)
    assert ids(found, "failed") == ["P15"]
    assert found["P15"].evidence == "a valid request was rejected: 400: too_long"


def test_a_process_that_is_gone_is_found() -> None:
    with faulty_server.running() as url:
        ended = subprocess.Popen(["true"])
        ended.wait()
        at, process = endpoint.from_url(url), suite.POSITIVE[:1]
        [gone] = suite.run(replace(at, pid=ended.pid), lambda _: None, process)
        [here] = suite.run(replace(at, pid=os.getpid()), lambda _: None, process)
    assert gone.evidence == f"process {ended.pid} is gone, a running one is expected"
    assert here.outcome == "passed"


DRAINS = """
import sys
sys.path.insert(0, {root!r})
import signal, threading
from tests.launch.faulty_server import Server
server = Server("", {port})
server.daemon_threads = False
{handler}
server.serve_forever(0.02)
server.server_close()
"""
LETS_STREAMS_END = (
    "signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())"
)


@pytest.mark.parametrize(
    ("handler", "outcome", "evidence"),
    [
        (LETS_STREAMS_END, "passed", "its stream ran to its end, exit status 0, nothing left"),
        ("", "failed", "exit status 143, 0 expected; the stream was cut off: "),
    ],
)
def test_a_stop_is_judged_by_its_streams_and_its_exit_status(
    child: Child, bundle: Bundle, handler: str, outcome: str, evidence: str
) -> None:
    one = target.read(bundle, "trtllm_serve").on_free_ports()
    program = DRAINS.format(root=str(ROOT), port=one.ports["http"], handler=handler)
    with child(program) as server:
        at = Endpoint("trtllm_serve", one.urls["http"])
        wait_until_it_listens(at, server)
        [result] = suite.stop(at, server, None)
    assert result.evidence.startswith(evidence)
    assert result.outcome == outcome


def wait_until_it_listens(at: Endpoint, server: ServerProcess) -> None:
    for _ in range(400):
        try:
            return at.check_listens()
        except NotReady:
            assert server.exit_status(0.05) is None, server.last_lines()
    raise AssertionError("the server does not listen")


@against("openai", "stop_word")
def test_evidence_says_what_was_expected_and_what_came(found: Results) -> None:
    evidence = found["P11"].evidence
    assert evidence.startswith("stop word '")
    assert "expected it to end before the word" in evidence


@pytest.mark.parametrize(
    ("texts", "mode"),
    [
        (["a", "b", "c"], "delta"),
        (["a", "ab", "abc"], "cumulative"),
        (["a", "a", "a", "a"], "delta"),
        (["ha", "ha", "ha!"], "cumulative"),
        (["ha", "ha", "ha", "ho"], "delta"),
        (["a"], "delta"),
        ([], "delta"),
    ],
)
def test_the_kind_of_a_stream_is_seen_from_its_texts(texts: list[str], mode: str) -> None:
    assert generation.detect_stream_mode(texts) == mode


@pytest.mark.parametrize("whole", ["to together", "together"])
def test_few_texts_of_either_kind_are_what_the_whole_text_says(whole: str) -> None:
    texts = ["to ", "together"] if whole == "to together" else ["to", "together"]
    assert generation.whole_text(texts, whole) == whole


def test_a_word_said_again_and_again_in_parts_of_several_is_new_text() -> None:
    texts = [" and", " and and", " and"]
    assert generation.stream_mode_of(texts, " and and and and") == "delta"


def test_texts_that_grow_and_shrink_are_a_fault() -> None:
    with pytest.raises(CheckFailure, match="part 4 is 'b' after 'abc'"):
        generation.detect_stream_mode(["a", "ab", "abc", "b", "bc"])


def test_every_check_has_an_id_of_its_own_a_title_and_a_reason() -> None:
    rows = (*suite.POSITIVE, *suite.NEGATIVE)
    assert len({row.id for row in rows}) == len(rows)
    assert all(row.title and row.reason for row in rows)
    numbers = {row.id.partition(".")[0] for row in rows}
    assert numbers == {f"P{n}" for n in range(1, 25)} | {f"N{n}" for n in range(1, 20)}
    assert suite.STOP_ID == "P25"


def smoke(*arguments: str) -> subprocess.CompletedProcess[str]:
    return prefork.shared().run(["smoke", *arguments], ROOT, "launch").done


def test_the_command_prints_a_line_per_check_in_80_columns(tmp_path: Path) -> None:
    """And marks a rehearsal."""
    file = tmp_path / "smoke.xml"
    with faulty_server.running("reference") as url:
        done = smoke(url, "--junit", str(file))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "a rehearsal: 1.2.1+reference is the reference engine" in lines
    assert ElementTree.parse(file).getroot().attrib["name"] == "smoke of a rehearsal"
    end = lines.index("")
    begun = [line.split()[2] for line in lines[:end] if not line.startswith(" ")]
    assert begun == [check.id for check in (*suite.POSITIVE, *suite.NEGATIVE)]
    assert next(line for line in lines if " P2 " in line).split()[:2] == ["pass", "http"]
    assert lines[end + 1].split()[:4] == ["TRANSPORT", "CHECKS", "PASSED", "FAILED"]
    assert lines[end + 2].split()[0] == "http"
    assert max(map(len, lines)) <= 80


def test_a_check_that_went_alike_over_both_transports_has_one_line() -> None:
    one = CheckResult("P6", "Generation", "why", "grpc", "passed", "seen", 0.1)
    other = replace(one, transport="http")
    words = " ".join(text_tables.check_lines([one, other]).split())
    assert words == "pass both P6 Generation seen"
    wrong = replace(other, outcome="failed", evidence="nothing came")
    lines = text_tables.check_lines([one, wrong]).splitlines()
    assert [line.split()[:2] for line in lines[:2]] == [["pass", "grpc"], ["FAIL", "http"]]
    assert lines[1].endswith("nothing came")
    both = [replace(wrong, transport="grpc", evidence="another reason"), wrong]
    lines = text_tables.check_lines(both).splitlines()
    assert [line.strip() for line in lines[1:]] == ["another reason", "nothing came"]


def test_the_command_fails_with_6_and_names_the_faults() -> None:
    with faulty_server.running("accepts_temperature") as url:
        done = smoke(url)
    assert done.returncode == 6
    assert "FAIL  http  N9.heat    temperature -1" in done.stdout
    assert done.stderr.startswith("error: check N9.heat over http: served with text")
    assert "Traceback" not in done.stderr


def test_a_server_that_is_not_there_is_named_once_per_address() -> None:
    done = smoke("triton://127.0.0.1:9?grpc=10")
    assert done.returncode == 5
    assert [line.partition(";")[0] for line in done.stderr.splitlines()] == [
        "error: http://127.0.0.1:9: no server answers: connection refused",
        "error: grpc://127.0.0.1:10: no server answers: connection refused",
    ]


def test_the_command_writes_json_and_junit(tmp_path: Path) -> None:
    file = tmp_path / "smoke.xml"
    with faulty_server.running("batching") as url:
        done = smoke(url, "--json", "--junit", str(file))
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["failed"], document["warnings"]) == (0, 1)
    assert document["checks"] + document["skipped"] == len(document["results"])
    assert document["transports"]["http"]["warnings"] == 1
    assert set(document["results"][0]) == {
        *("id", "title", "reason", "transport", "outcome", "evidence", "seconds")
    }
    [cases] = ElementTree.parse(file).getroot()
    assert cases.attrib["name"] == "smoke.http"
    assert int(cases.attrib["tests"]) == len(document["results"]) == len(cases)
    assert int(cases.attrib["skipped"]) == document["skipped"]


@pytest.mark.parametrize(
    ("fault", "version", "rehearsal"),
    [("", "1.2.1", False), ("reference", "1.2.1+reference", True)],
)
def test_the_engine_is_known_by_its_version(fault: str, version: str, rehearsal: bool) -> None:
    with (
        faulty_server.running(fault) as openai_url,
        faulty_server.running(fault, faulty_triton.Handler) as url,
    ):
        port = url.rpartition(":")[2]
        for server in (openai_url, f"triton://127.0.0.1:{port}?grpc=off&metrics={port}"):
            found = metrics.engine_info(endpoint.from_url(server))
            assert found == {"version": version, "rehearsal": rehearsal}
    silent = endpoint.from_url("triton://127.0.0.1?http=off&metrics=off")
    assert metrics.engine_info(silent) == UNKNOWN


def test_junit_tells_failures_skips_and_warnings_apart() -> None:
    one = CheckResult("P6", "Generation", "why", "grpc", "passed", "seen", 0.1)
    rows = [
        one,
        replace(one, id="P7", outcome="failed", evidence="a \x00 b"),
        replace(one, id="P8", outcome="skipped"),
        replace(one, id="P9", outcome="warned"),
    ]
    [cases] = ElementTree.fromstring(junit(rows, UNKNOWN))
    tags = ["system-out", "failure", "skipped", "system-out"]
    assert [[part.tag for part in case] for case in cases] == [[tag] for tag in tags]
    assert cases[1][0].attrib["message"] == "a   b"
    assert (cases[3][0].text or "").startswith("warning: seen")
    assert summary(rows, UNKNOWN)["checks"] == 3


def test_metadata_that_differs_from_the_rendered_one_is_named(
    bundle: Bundle, tmp_path: Path
) -> None:
    one = endpoint.from_target(target.read(bundle, "triton"))
    assert one.model_folder is not None
    text = (one.model_folder / "config.pbtxt").read_text()
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.yaml").write_text("triton_config: {max_batch_size: 0}")
    (tmp_path / "config.pbtxt").write_text('input { name: "a" data_type: TYPE_INT32 dims: [ 1 ] }')
    served = {
        "inputs": [{"name": "a", "datatype": "INT64", "shape": ["1"]}],
        "outputs": [{"name": "b", "datatype": "BYTES", "shape": [-1]}],
    }
    with pytest.raises(CheckFailure) as raised:
        health.compare_metadata(served, replace(one, model_folder=tmp_path))
    assert str(raised.value) == (
        "input a is ('INT64', [1]), ('INT32', [1]) expected; "
        "output b is ('BYTES', [-1]), none expected"
    )
    assert "text_input" in text


def test_a_configuration_that_differs_from_the_rendered_one_is_named(bundle: Bundle) -> None:
    one = endpoint.from_target(target.read(bundle, "triton"))
    with pytest.raises(
        CheckFailure, match="decoupled is False, True expected; max_batch_size is 8, 0 exp"
    ):
        health.compare_config({"max_batch_size": 8}, one)


def test_an_address_with_tls_of_a_server_without_it_is_said() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    Thread(target=server.serve_forever, daemon=True).start()
    address = f"127.0.0.1:{server.server_port}"
    try:
        with pytest.raises(NotReady) as refused:
            endpoint.from_url(f"https://{address}").check_listens()
        endpoint.from_url(f"http://{address}").check_listens()
    finally:
        server.shutdown()
        server.server_close()
    [diagnostic] = refused.value.diagnostics
    assert (diagnostic.message, diagnostic.fix) == (
        "answers, but speaks no TLS",
        f"write http://{address}",
    )


@pytest.mark.parametrize(
    ("greeting", "said"),
    [
        (None, "takes connections, but answers no TLS in 0.2 s"),
        (b"", "takes connections, but closes them at a greeting of TLS"),
        (b"\x15\x03\x03\x00\x02\x02\x28", None),  # an alert: it wants another greeting
    ],
    ids=["mute", "closes", "refuses"],
)
def test_an_address_with_tls_that_answers_none_is_said(
    monkeypatch: pytest.MonkeyPatch, greeting: bytes | None, said: str | None
) -> None:
    monkeypatch.setattr(endpoint, "GREETING_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with listener.accept()[0] as connection:
                connection.recv(65536)
                if greeting is None:
                    connection.recv(1)  # until the client leaves
                else:
                    connection.sendall(greeting)

        (server := Thread(target=answer)).start()
        one = endpoint.from_url(f"https://127.0.0.1:{listener.getsockname()[1]}")
        with nullcontext() if said is None else pytest.raises(NotReady, match=said):
            one.check_listens()
        server.join()


def test_a_server_that_hangs_is_waited_for_once(
    local_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "TOKEN_TIMEOUT_S", 0.3)
    served = endpoint.from_target(target.read(local_bundle, "trtllm_serve"))
    address = urlsplit(served.url or "")
    with socket.create_server((address.hostname or "", address.port or 0)):
        found = [one for one in suite.run(served, lambda _: None) if one.outcome != "skipped"]
    tried = [one.id for one in found if one.evidence != suite.NOT_RUN]
    assert tried == [found[0].id]
    assert len(found) > 10
    assert {one.outcome for one in found} <= {"failed", "warned"}


def test_a_server_that_never_generates_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "TOKEN_TIMEOUT_S", 0.3)
    with faulty_server.running("never_generates") as url:
        found = faulty_suites.checked(endpoint.from_url(url))
    assert found["P3"].outcome == "passed"
    failed = {one for one in ids(found, "failed") if found[one].evidence == suite.NOT_RUN}
    assert {"P6", "P8", "P24", "N2", "N10"} <= failed
    assert not {one.id for one in found.values() if one.outcome == "passed"} - {"P2", "P3"}


def test_a_server_that_is_slow_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "TOKEN_TIMEOUT_S", 0.5)
    with faulty_server.running("slow") as url:
        found = of_checks(url, "P6")
    assert (found["P6"].outcome, found["P6"].seconds > 0.8) == ("passed", True)


def test_a_server_that_refuses_all_at_once_is_not_said_to_take_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refused(*_: object) -> tuple[list[str], bool]:
        return ["503 busy"], False

    monkeypatch.setattr(negative, "_refusals", refused)
    monkeypatch.setattr(negative, "_longer_tokens", lambda _: [256, 2048])
    served: Any = SimpleNamespace(options={"triton_config": {"max_requests": 24}})
    client: Any = None
    with pytest.raises(CheckFailure, match="none was taken, the limit is 24: 503 busy"):
        asyncio.run(negative.overload(client, served))
