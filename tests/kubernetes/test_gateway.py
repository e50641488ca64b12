"""The gateway as it is rendered, on loopback: a real HAProxy before a real Triton."""

from __future__ import annotations

import gzip
import json
import os
import random
import ssl
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import grpc  # type: ignore[import-untyped]
import httpx
import pytest
from tritonclient.grpc import service_pb2
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from builder.targets.kubernetes import gateway
from supervisor.ports import free_ports
from tests.kubernetes import cluster_files
from tests.kubernetes.cluster_files import ALL_PARTS
from tests.kubernetes.conftest import tool
from tests.model_repository.conftest import Serve, Served
from tests.model_repository.conftest import programs as programs
from tests.model_repository.conftest import start as start

PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Door:
    """A running gateway at an address of its own, and the certificates of who may pass."""

    host: str
    folder: Path
    process: subprocess.Popen[bytes]

    def client(self, name: str | None) -> httpx.Client:
        """A client that trusts the gateway, with the certificate of that name if it has one."""
        context = ssl.create_default_context(cafile=str(self.folder / "ca.pem"))
        if name:
            context.load_cert_chain(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        url = f"https://{self.host}:{gateway.PORTS['http']}"
        return httpx.Client(verify=context, base_url=url, trust_env=False, timeout=PATIENCE_S)

    def channel(self, name: str | None) -> grpc.Channel:
        files = [self.folder / "ca.pem"]
        files += [self.folder / f"{name}.key", self.folder / f"{name}.pem"] if name else []
        credentials = grpc.ssl_channel_credentials(*(path.read_bytes() for path in files))
        return grpc.secure_channel(f"{self.host}:{gateway.PORTS['grpc']}", credentials)

    def health(self, path: str) -> int:
        url = f"http://{self.host}:{gateway.HEALTH_PORT}{path}"
        return httpx.get(url, trust_env=False, verify=False).status_code

    def wait_for_health(self, path: str, status: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                if self.health(path) == status:
                    return
            except httpx.TransportError:
                assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, (path, status, self.log)
            time.sleep(0.05)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def make_authority(folder: Path, name: str) -> None:
    openssl(
        folder,
        *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"),
        *("-keyout", f"{name}.key", "-out", f"{name}.pem"),
    )


def make_certificate(folder: Path, name: str, authority: str, host: str) -> None:
    (folder / "names").write_text(f"subjectAltName=IP:{host}\n")
    subject = ("-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}")
    openssl(folder, "req", *subject, "-keyout", f"{name}.key", "-out", f"{name}.csr")
    signer = ("-CA", f"{authority}.pem", "-CAkey", f"{authority}.key", "-CAcreateserial")
    request = ("x509", "-req", "-in", f"{name}.csr", "-days", "2", "-extfile", "names")
    openssl(folder, *request, *signer, "-out", f"{name}.pem")


@contextmanager
def opened(folder: Path, http_port: int, grpc_port: int) -> Iterator[Door]:
    """The gateway of a deployment whose server is on these ports of this machine."""
    haproxy = tool("haproxy")
    host = f"127.{random.randint(64, 127)}.{random.randint(1, 254)}.{random.randint(1, 254)}"
    ports = f"targets.triton={{http_port: {http_port}, grpc_port: {grpc_port}}}"
    found = cluster_files.render(folder / "bundle", "llama-tiny", "triton", ports, *ALL_PARTS)
    configs = cluster_files.of_kind(found, "ConfigMap")
    [files] = [row["data"] for row in configs if gateway.FILE in row["data"]]
    for name, text in files.items():
        (folder / name).write_text(text)
    for authority in ("ca", "stranger"):
        make_authority(folder, authority)
    for name, authority in {"server": "ca", "friend": "ca", "foe": "stranger"}.items():
        make_certificate(folder, name, authority, host)
    names = {"tls.crt": "server.pem", "tls.key": "server.key", "ca.crt": "ca.pem"}
    secret = folder / "secret"
    secret.mkdir()
    for key, path in gateway.TLS_FILES.items():  # as the volume of the Secret gives them
        (secret / path).write_bytes((folder / names[key]).read_bytes())
    own = {
        "GATEWAY_HOST": host,
        "GATEWAY_FOLDER": str(folder),
        "GATEWAY_TLS_FOLDER": str(secret),
        "GATEWAY_SERVERS": "127.0.0.1",
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [haproxy, "-W", "-db", "-f", folder / gateway.FILE],
            env={**os.environ, **own},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Door(host, folder, process)
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


@pytest.fixture(scope="module")
def served(start: Serve) -> Served:
    """A real Triton with the production model on a scripted engine."""
    return start()


@pytest.fixture(scope="module")
def door(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    ports = [urlsplit(f"//{served.client.grpc_url}").port, urlsplit(served.client.http_url).port]
    assert ports[0] and ports[1]
    with opened(tmp_path_factory.mktemp("door"), ports[1], ports[0]) as found:
        found.wait_for_health("/ready", 200)
        yield found


def test_who_shows_no_certificate_is_refused(door: Door) -> None:
    with door.client(None) as client, pytest.raises(httpx.TransportError, match="certificate"):
        client.get("/v2/health/ready")


def test_who_shows_the_certificate_of_a_stranger_is_refused(door: Door) -> None:
    with door.client("foe") as client, pytest.raises(httpx.TransportError, match="unknown ca"):
        client.get("/v2/health/ready")


def test_a_friend_is_served_and_named_in_the_log(door: Door) -> None:
    with door.client("friend") as client:
        assert client.get("/v2/health/ready").status_code == 200
    deadline = time.monotonic() + PATIENCE_S
    while "friend GET /v2/health/ready 200" not in door.log:
        assert time.monotonic() < deadline, door.log
        time.sleep(0.05)


def test_answers_stream_through(door: Door) -> None:
    """The first words are there long before the last."""
    body = {
        "text_input": "tokens=20 step_ms=50",
        "sampling_param_max_tokens": 20,
        "streaming": True,
    }
    times, path = [], "/v2/models/tensorrt_llm/generate_stream"
    with door.client("friend") as client, client.stream("POST", path, json=body) as response:
        for line in response.iter_lines():
            if line.startswith("data:"):
                times.append(time.monotonic())
                assert "error" not in json.loads(line.removeprefix("data:"))
    assert len(times) > 5
    assert times[-1] - times[0] > 0.3


GENERATE = "/v2/models/tensorrt_llm/generate"
# Below and above the 16 KiB that HAProxy reads at a time.
MOST = 100
DEPTHS = (MOST + 1, 8_000, 150_000, 2_000_000)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("bracket", ["[", '{"":'])
def test_json_that_would_end_triton_is_refused(door: Door, bracket: str, depth: int) -> None:
    with door.client("friend") as client:
        for before in ("", '{"text_input": "[]\\"\\\\", "x": ', " " * 100_000):
            refused = client.post(GENERATE, content=before + bracket * depth)
            assert refused.status_code == 400
            assert "Bad request" in refused.text  # of the gateway
        packed = gzip.compress((bracket * depth).encode())
        refused = client.post(GENERATE, content=packed, headers={"Content-Encoding": "gzip"})
        assert refused.status_code == 400 and "Bad request" in refused.text
        assert client.post(GENERATE, json={"text_input": "tokens=1"}).is_success


def test_brackets_of_a_prompt_and_of_binary_tensors_pass(door: Door) -> None:
    brackets = '["{\\' * 50_000
    tensor = struct.pack("<I", len(brackets)) + brackets.encode()
    sizes = {"parameters": {"binary_data_size": len(tensor)}}
    rows = [{"name": "text_input", "datatype": "BYTES", "shape": [1], **sizes}]
    head = json.dumps({"inputs": rows}).encode()
    length = {"Inference-Header-Content-Length": str(len(head))}
    with door.client("friend") as client:
        answer = client.post(GENERATE, json={"text_input": f"tokens=1 name={brackets}"})
        assert answer.is_success, answer.text
        path = "/v2/models/tensorrt_llm/infer"
        answer = client.post(path, content=head + tensor, headers=length)
        assert "decoupled" in answer.text  # Triton has read the tensor
        answer = client.post(path, content=head + tensor, headers={"X-Other": "1"})
        assert "Bad request" in answer.text
        twice = [*length.items(), *length.items()]
        answer = client.post(path, content=head + tensor, headers=twice)
        assert "Bad request" in answer.text


def depth_of(text: str) -> int:
    """How deep brackets outside strings nest."""
    most, depth, in_string = 0, 0, False
    letters = iter(text)
    for letter in letters:
        if letter == '"':
            in_string = not in_string
        elif in_string and letter == "\\":
            next(letters, None)
        elif not in_string:
            depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(letter, 0)
        most = max(most, depth)
    return most


@pytest.mark.parametrize("seed", range(40))
def test_depth_is_counted_as_json_does(door: Door, seed: int) -> None:
    """Also of what is no JSON, and where a string or an escape spans two reads."""
    some = random.Random(seed)
    letters = some.choices('[]{}"\\a', [30, 25, 10, 8, 4, 10, 1], k=some.choice([300, 20_000]))
    text = "".join(letters)
    with door.client("friend") as client:
        answer = client.post(GENERATE, content=text)
    assert answer.status_code == (400 if depth_of(text) > MOST else 500)
    assert ("Bad request" in answer.text) is (depth_of(text) > MOST)


def test_grpc_needs_a_certificate_too(door: Door) -> None:
    question = service_pb2.ServerReadyRequest()
    with door.channel("friend") as channel:
        assert GRPCInferenceServiceStub(channel).ServerReady(question, timeout=PATIENCE_S).ready
    with door.channel(None) as channel, pytest.raises(grpc.RpcError) as raised:
        GRPCInferenceServiceStub(channel).ServerReady(question, timeout=PATIENCE_S)
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


def test_plain_http_is_no_way_in(door: Door) -> None:
    url = f"http://{door.host}:{gateway.PORTS['http']}/v2/health/ready"
    with pytest.raises(httpx.TransportError):
        httpx.get(url, trust_env=False, verify=False, timeout=PATIENCE_S)


def test_a_gateway_without_servers_lives_and_is_not_ready(tmp_path: Path) -> None:
    with opened(tmp_path, *free_ports(2)) as lonely:
        lonely.wait_for_health("/ready", 503)
        assert lonely.health("/live") == 200
        assert lonely.health("/v2/health/ready") == 404


def test_the_server_answers_the_health_questions_that_kubernetes_asks_over_grpc(
    served: Served,
) -> None:
    """Where HTTP is off; 1 stands for serving."""
    with grpc.insecure_channel(served.client.grpc_url) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"", timeout=PATIENCE_S) == b"\x08\x01"
