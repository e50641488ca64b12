"""A server that lets in only who may: keys, certificates, and secrets that stay in their files."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import grpc  # type: ignore[import-untyped]
import pytest
from tritonclient.grpc import service_pb2
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from builder import pipeline
from builder.bundle import Bundle
from builder.errors import BadInput, NotReady
from launch import access, discovery, endpoint, rehearsal, serving, target
from launch.access import ClientFiles
from launch.bench import server_metrics, system_under_test
from launch.cli.main import main
from launch.smoke import concurrency, http, metrics
from launch.target import Target
from tests.launch.conftest import FEW_CHECKS, NAME, Launch, Rehearse, checked, free_settings

pytestmark = pytest.mark.usefixtures("nothing_left")

KEY = "key-of-the-test-0123456789"
TLS = "targets.triton.grpc_tls={certificate: /tls/server.pem, key: /tls/server.key%s}"
MUTUAL = TLS % ", client_ca: /tls/ca.pem"

Render = Callable[..., Bundle]


@pytest.fixture
def render(tmp_path: Path) -> Render:
    def make(*settings: str) -> Bundle:
        given = [*settings, f"name={NAME}", *free_settings()]
        return pipeline.render("llama-tiny", tmp_path / "secure", given, False)

    return make


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    (tmp_path / "key").write_text(f"{KEY}\n")
    return tmp_path / "key"


def with_certificates(bundle: Bundle, folder: Path) -> tuple[Target, dict[str, str]]:
    """The target with files of a CA of its own, and the variables that name them."""
    folder.mkdir()
    one = rehearsal.with_dummy_credentials(target.read(bundle, "triton"), folder)
    return one, {name: one.environment[name] for name in target.FILES if name in one.environment}


def client_options(files: ClientFiles) -> list[str]:
    named = {
        "--tls-ca": files.tls_ca,
        "--tls-certificate": files.tls_certificate,
        "--tls-key": files.tls_key,
        "--key-file": files.key_file,
    }
    return [word for name, path in named.items() if path for word in (name, str(path))]


def smoke(bundle: Bundle, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "launch", "smoke", str(bundle.folder), "--target", "triton"]
    command += ["--json", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(FEW_CHECKS)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@contextmanager
def asking(one: Target) -> Iterator[GRPCInferenceServiceStub]:
    with one.access().channel(one.urls["grpc"], grpc) as channel:
        yield GRPCInferenceServiceStub(channel)


def refusal(one: Target) -> grpc.StatusCode:
    with asking(one) as server, pytest.raises(grpc.RpcError) as raised:
        server.ServerReady(service_pb2.ServerReadyRequest(), timeout=60)
    return raised.value.code()


def test_a_server_of_mutual_tls_alone_serves_who_has_a_certificate(
    render: Render, launch: Launch, tmp_path: Path
) -> None:
    bundle = render(MUTUAL, "targets.triton.http=false")
    one, variables = with_certificates(bundle, tmp_path / "tls")
    options = client_options(one.client_files)
    launcher = launch("up", bundle.folder, "--target", "triton", *options, **variables)
    assert launcher.line("grpc").startswith("grpc: 127.0.0.1:")
    assert refusal(replace(one, client_files=ClientFiles())) == grpc.StatusCode.UNAVAILABLE
    plain = replace(one, environment={}, client_files=ClientFiles(), ports=one.ports)
    plain = replace(plain, environment={"SERVE_HOST": "127.0.0.1"})
    assert refusal(plain) == grpc.StatusCode.UNAVAILABLE
    stranger = ClientFiles(
        tls_ca=tmp_path / "tls" / "server.pem",
        tls_certificate=tmp_path / "tls" / "server.pem",
        tls_key=tmp_path / "tls" / "client.key",
    )
    assert refusal(replace(one, client_files=stranger)) == grpc.StatusCode.UNAVAILABLE
    done = smoke(bundle, *options)
    assert done.returncode == 0, done.stderr + done.stdout
    document = json.loads(done.stdout)
    assert set(document["transports"]) == {"grpc"}
    launcher.signal(signal.SIGTERM)
    assert launcher.end() == 0


def test_the_key_opens_what_is_closed_and_stays_in_its_file(
    render: Render, launch: Launch, key_file: Path, tmp_path: Path
) -> None:
    bundle = render(f"targets.triton.key_file={key_file}")
    launcher = launch("up", bundle.folder, "--target", "triton")
    launcher.line("metrics")
    found = checked(bundle, "triton", "P3", "P5", "N18")
    assert {(one.transport, one.id) for one in found if one.outcome == "passed"} == {
        *(("grpc", "P3"), ("grpc", "P5"), ("grpc", "N18")),
        *(("http", "P3"), ("http", "P5"), ("http", "N18")),
    }
    launcher.signal(signal.SIGTERM)
    assert launcher.end() == 0
    texts = [path for path in tmp_path.rglob("*") if path.is_file() and path != key_file]
    assert len(texts) > 20
    assert [path for path in texts if KEY.encode() in path.read_bytes()] == []


def test_without_a_key_file_nobody_is_let_in(render: Render, launch: Launch) -> None:
    bundle = render()
    launcher = launch("up", bundle.folder, "--target", "triton")
    launcher.line("metrics")
    found = {one.id: one for one in checked(bundle, "triton", "P3", "P5", "P6", "N18")}
    assert found["P3"].evidence == "the model index is closed, and no key is given"
    assert found["P5"].evidence == "model-config is closed, and no key is given"
    assert found["P6"].outcome == found["N18"].outcome == "passed"
    launcher.signal(signal.SIGTERM)
    assert launcher.end() == 0


def test_a_rehearsal_makes_up_the_files_of_another_machine_and_tells_no_key(
    render: Render, tmp_path: Path, rehearse_quickly: Rehearse
) -> None:
    bundle = render(MUTUAL, "targets.triton.http=false", "targets.triton.key_file=/run/key")
    run = ("--target", "triton", "--run-dir", tmp_path / "run")
    row = rehearse_quickly(("P1", "P6"), bundle.folder, *run)
    assert set(row["smoke"]["transports"]) == {"grpc"}
    key = (tmp_path / "run" / "triton" / "key").read_text().strip()
    evidence = ("server.log", "run.json", "smoke.json", "smoke.xml")
    assert not any(key in (tmp_path / "run" / "triton" / name).read_text() for name in evidence)


def test_files_are_named_by_variables_of_the_script(bundle: Bundle, key_file: Path) -> None:
    one = target.read(bundle, "triton").as_set_in(
        {"SERVE_KEY_FILE": str(key_file), "SERVE_TLS_KEY": "/not/of/this/target"}
    )
    assert one.access().http_headers == {"api-key": KEY, "Authorization": f"Bearer {KEY}"}
    assert "SERVE_TLS_KEY" not in one.environment


def test_a_key_is_never_shown(bundle: Bundle, key_file: Path) -> None:
    one = target.read(bundle, "triton").with_environment(SERVE_KEY_FILE=str(key_file))
    assert KEY not in repr(one.access())


def test_a_file_that_is_named_and_not_there_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"--key-file: .* cannot be read: no such file"):
        access.read({}, ClientFiles(key_file=tmp_path / "none"), None)


def test_a_certificate_without_its_key_is_bad_input(bundle: Bundle, tmp_path: Path) -> None:
    done = smoke(bundle, "--tls-certificate", tmp_path / "a")
    assert done.returncode == 2
    assert "--tls-certificate and --tls-key: must be given together" in done.stderr


def test_a_server_of_grpc_that_is_not_there_is_not_ready(render: Render) -> None:
    bundle = render("targets.triton.http=false")
    assert not serving.is_ready(target.read(bundle, "triton").on_free_ports())


def test_a_rehearsal_without_openssl_says_so(
    render: Render, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = render(TLS % "")
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    with pytest.raises(NotReady, match="openssl: is not installed"):
        with_certificates(bundle, tmp_path / "tls")


class WantsBearer(BaseHTTPRequestHandler):
    """What `vllm serve --api-key` answers to who asks what it serves."""

    def do_GET(self) -> None:
        allowed = self.path == "/health" or self.headers["Authorization"] == f"Bearer {KEY}"
        models = [{"id": "served", "owned_by": "vllm", "max_model_len": 512}]
        body = json.dumps({"version": "0.32.0", "data": models} if allowed else {}).encode()
        if allowed and self.path == "/metrics":
            body = b'vllm:num_requests_running{model_name="served"} 0\n'
        self.send_response(200 if allowed else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def test_a_key_is_shown_as_servers_of_openai_want_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "key").write_text(f"{KEY}\n")
    with ThreadingHTTPServer(("127.0.0.1", 0), WantsBearer) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert main(["bench", url, "--run-dir", str(tmp_path / "run")]) == 5
        assert "give the server's key in a file with --key-file" in capsys.readouterr().err
        assert main(["smoke", url]) == 6
        assert capsys.readouterr().err.count("give the server's key in a file with --key-file") == 1
        shown = access.read({}, ClientFiles(key_file=tmp_path / "key"), None)
        given = discovery.identified(endpoint.from_url(url, shown), url)
        assert (given.server, given.positions) == ("vllm_serve", 512)
        assert system_under_test.reported(given) == ("0.32.0", "served")
        assert asyncio.run(metrics.engine_version(given)) == "0.32.0"
        assert server_metrics.read(given).samples
        named = asyncio.run(concurrency.served_name(http.OpenAIClient(given, 9.0), given))
        assert "served" in named
        server.shutdown()
