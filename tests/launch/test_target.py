"""Targets of a bundle: ports, addresses, what is started, and the environment of the engine."""

from __future__ import annotations

import gzip
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from builder import pipeline
from builder.bundle import Bundle
from builder.errors import BadInput, NotReady
from launch import discovery, endpoint, engine, serving, target, triton
from launch.run import create


def test_a_target_has_what_launch_json_says(bundle: Bundle) -> None:
    one = target.read(bundle, "triton")
    assert one.urls == {
        "http": "http://127.0.0.1:8000",
        "grpc": "127.0.0.1:8001",
        "metrics": "http://127.0.0.1:8002/metrics",
    }
    assert one.command == ["bash", str(bundle.folder / "triton" / "serve.sh")]
    assert one.model_name == "tensorrt_llm"
    assert one.release == "1.2.1"


def test_a_server_on_all_addresses_is_asked_on_this_machine(bundle: Bundle) -> None:
    one = target.read(bundle, "triton").with_environment(SERVE_HOST="0.0.0.0")
    assert one.urls["http"] == "http://127.0.0.1:8000"
    assert one.with_environment(SERVE_HOST="::").urls["grpc"] == "[::1]:8001"


def test_an_unknown_target_is_named(bundle: Bundle) -> None:
    with pytest.raises(BadInput, match="target trition: is not in the bundle; did you mean triton"):
        target.read(bundle, "trition")


def test_a_bundle_with_several_targets_leaves_a_choice(bundle: Bundle) -> None:
    with pytest.raises(BadInput, match="--target: is needed: the bundle has 2 targets; choose"):
        target.read_one(bundle, None)


def test_free_ports_are_different_and_reach_the_script(bundle: Bundle) -> None:
    one = target.read(bundle, "triton").on_free_ports()
    assert len(set(one.ports.values())) == 3
    assert one.environment["SERVE_GRPC_PORT"] == str(one.ports["grpc"])
    one.check_ports()


def test_address_and_ports_may_be_set_as_for_the_script_alone(bundle: Bundle) -> None:
    environment = {"SERVE_HOST": "0.0.0.0", "SERVE_GRPC_PORT": "9001", "SERVE_HTTP_PORT": ""}
    one = target.read(bundle, "triton").as_set_in(environment)
    assert (one.urls["http"], one.urls["grpc"]) == ("http://127.0.0.1:8000", "127.0.0.1:9001")
    assert one.environment["SERVE_GRPC_PORT"] == "9001"
    http_only = target.read(bundle, "trtllm_serve").as_set_in(environment)
    assert "SERVE_GRPC_PORT" not in http_only.environment


@pytest.mark.parametrize("port", ["0", "65536", "-1", "http", "8000 ", "٨٠٠٠", "999999"])
def test_a_port_of_the_environment_that_is_none_is_bad_input(bundle: Bundle, port: str) -> None:
    with pytest.raises(BadInput, match=r"SERVE_HTTP_PORT: .* is not a port; write 1 to 65535"):
        target.read(bundle, "triton").as_set_in({"SERVE_HTTP_PORT": port})


def test_every_taken_port_is_named(bundle: Bundle) -> None:
    one = target.read(bundle, "triton").on_free_ports()
    with (
        socket.create_server(("127.0.0.1", one.ports["grpc"])),
        socket.create_server(("127.0.0.1", one.ports["metrics"])),
        pytest.raises(NotReady) as raised,
    ):
        one.check_ports()
    assert [problem.where for problem in raised.value.diagnostics] == [
        f"triton: grpc port {one.ports['grpc']}",
        f"triton: metrics port {one.ports['metrics']}",
    ]


def test_a_run_never_overwrites(bundle: Bundle, tmp_path: Path) -> None:
    first = create(bundle, "triton", "reference", tmp_path / "run")
    assert first.folder == tmp_path / "run"
    assert first.folder.stat().st_mode & 0o077 == 0, "others may read what users asked for"
    with pytest.raises(BadInput, match=r"run: is not empty; choose another --run-dir"):
        create(bundle, "triton", "reference", tmp_path / "run")


def test_checkpoint_of_the_environment_wins(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = tmp_path / "weights"
    weights.mkdir()
    monkeypatch.chdir(tmp_path)
    (weights / "config.json").touch()
    (weights / "model.safetensors").touch()
    found = target.read(bundle, "triton").on_checkpoints_of({"CHECKPOINT": "weights"})
    run = create(bundle, "triton", "reference", tmp_path / "run")
    one = serving.with_checkpoint(found, "reference", run)
    assert one.environment["CHECKPOINT"] == str(weights)


def test_a_draft_of_the_environment_wins(tmp_path: Path) -> None:
    drafting = pipeline.render("minimax-m2.5-nvfp4-b300", tmp_path / "bundle")
    (tmp_path / "draft").mkdir()
    environment = {"DRAFT_CHECKPOINT": str(tmp_path / "draft")}
    found = target.read(drafting, "triton").on_checkpoints_of(environment)
    run = create(drafting, "triton", "tensorrt_llm", tmp_path / "run")
    one = serving.with_checkpoint(found, "tensorrt_llm", run)
    assert one.environment["DRAFT_CHECKPOINT"] == str(tmp_path / "draft")
    assert one.environment["CHECKPOINT"] == "nvidia/MiniMax-M2.5-NVFP4"


def test_a_checkpoint_that_is_not_here_is_left_to_the_real_engine(
    bundle: Bundle, tmp_path: Path
) -> None:
    found = target.read(bundle, "triton").on_checkpoints_of({"CHECKPOINT": "some/hub-name"})
    run = create(bundle, "triton", "tensorrt_llm", tmp_path / "run")
    one = serving.with_checkpoint(found, "tensorrt_llm", run)
    assert one.environment["CHECKPOINT"] == "some/hub-name"


def test_a_miniature_that_stands_in_is_said(
    bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether the checkpoint is a name, or a folder without weights."""
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "config.json").touch()
    for name, why in {
        "a-name": "is not a folder of this machine",
        "bare": "has no weights",
    }.items():
        place = str(tmp_path / name) if name == "bare" else name
        found = target.read(bundle, "triton").with_environment(CHECKPOINT=place)
        run = create(bundle, "triton", "reference", tmp_path / f"run-{name}")
        one = serving.with_checkpoint(found, "reference", run)
        assert one.environment["CHECKPOINT"] == str(run.folder / "miniature")
        said = f"triton: {place} {why}; using a miniature with random weights\n"
        assert capsys.readouterr().err == said


def test_a_path_of_the_bundle_that_is_not_here_is_refused_for_the_real_engine(
    bundle: Bundle, tmp_path: Path
) -> None:
    found = target.read(bundle, "triton").with_environment(CHECKPOINT=str(tmp_path / "none"))
    run = create(bundle, "triton", "tensorrt_llm", tmp_path / "run")
    with pytest.raises(BadInput, match=r"CHECKPOINT: \S+/none: there is no such folder"):
        serving.with_checkpoint(found, "tensorrt_llm", run)


def chosen(wanted: str, packages: Path) -> str:
    """The engine that a launcher chooses with these packages on its path."""
    program = f"from launch import engine; print(engine.choose({wanted!r}, 'tensorrt_llm'))"
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_auto_takes_the_reference_engine_where_there_is_no_other(tmp_path: Path) -> None:
    assert chosen("auto", tmp_path) == "reference"


def test_an_engine_that_is_not_installed_is_not_started(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as raised:
        chosen("tensorrt_llm", tmp_path)
    assert "NotReady: TensorRT-LLM: is neither in this Python" in raised.value.stderr


def test_auto_takes_tensorrt_llm_where_it_is_installed_without_importing_it(tmp_path: Path) -> None:
    (tmp_path / "tensorrt_llm").mkdir()
    (tmp_path / "tensorrt_llm" / "__init__.py").write_text("raise SystemExit('imported')")
    assert chosen("auto", tmp_path) == "tensorrt_llm"
    assert chosen("reference", tmp_path) == "reference"


def test_an_overlay_has_its_packages_before_those_of_this_python(tmp_path: Path) -> None:
    (tmp_path / "packages" / "httpx").mkdir(parents=True)
    (tmp_path / "packages" / "httpx" / "__init__.py").write_text("mine = True")
    programs = engine.python_overlay(tmp_path / "overlay", [tmp_path / "packages"], Path)
    program = "import httpx, builder, numpy; print(httpx.mine, builder.__name__)"
    isolated = [str(programs / "python3"), "-I", "-c", program]
    result = subprocess.run(isolated, capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["True", "builder"]


def test_an_installed_triton_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "tritonserver"
    installed.write_text("#!/bin/sh\n")
    installed.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert triton.prepare(tmp_path / "not-made") is None


def test_shared_memory_of_one_server_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton, "SHARED_MEMORY", tmp_path)
    for name in ("mine-1", "mine-2", "other"):
        (tmp_path / name).touch()
    assert triton.sweep_shared_memory("mine-") == ["mine-1", "mine-2"]
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


@pytest.mark.parametrize(
    ("url", "kind", "grpc", "model"),
    [
        ("http://node:8000", "trtllm_serve", None, None),
        ("http://node:8000/v1", "trtllm_serve", None, None),
        ("http://node:8000?model=org/name%2B1", "trtllm_serve", None, "org/name+1"),
        ("triton://node:9000", "triton", "node:9001", "tensorrt_llm"),
        ("triton://node:9000?grpc=7&model=m", "triton", "node:7", "m"),
        ("triton://[::1]:9000", "triton", "[::1]:9001", "tensorrt_llm"),
    ],
)
def test_a_url_names_a_server(url: str, kind: str, grpc: str | None, model: str | None) -> None:
    one = endpoint.from_url(url)
    assert (one.server, one.grpc, one.model) == (kind, grpc, model)
    assert one.url in ("http://node:8000", "http://node:9000", "http://[::1]:9000")


@pytest.mark.parametrize(
    "url", ["ftp://node", "http://", "http://node:x", "http://node?modle=m", "triton://n?port=1"]
)
def test_anything_else_is_no_url_of_a_server(url: str) -> None:
    with pytest.raises(BadInput, match="write"):
        endpoint.from_url(url)


@contextmanager
def answering(
    *paths: str, index: Sequence[str] = (), body: str | None = None, models: str | None = None
) -> Iterator[str]:
    """HOST:PORT of a server that answers at these paths, with an index of models if it has any,
    or with another body in its place; `models` is what it lists for clients of OpenAI. It packs
    what it may."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            lists = self.path == "/v1/models" and models is not None
            self.send_response(200 if self.path in paths or lists else 404)
            body = (models or "").encode() if lists else b""
            if "gzip" in self.headers.get("Accept-Encoding", ""):
                self.send_header("Content-Encoding", "gzip")
                body = gzip.compress(body)
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            has_index = self.path == "/v2/repository/index" and (index or body is not None)
            self.send_response(200 if has_index else 404)
            self.end_headers()
            rows = [{"name": name, "version": "1", "state": "READY"} for name in index]
            found = json.dumps([*rows, {"name": "off", "state": "UNAVAILABLE"}])
            self.wfile.write((found if body is None else body).encode())

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


OPENAI, KSERVE = "/health", "/v2/health/live"


@pytest.mark.parametrize(
    ("path", "scheme", "kind"),
    [
        (OPENAI, "http", "trtllm_serve"),
        (KSERVE, "http", "triton"),
        (OPENAI, "triton", "trtllm_serve"),
        (KSERVE, "triton", "triton"),
        ("/other", "http", "trtllm_serve"),
    ],
)
def test_a_server_is_what_answers_whatever_its_url_says(path: str, scheme: str, kind: str) -> None:
    with answering(path) as address:
        url = f"{scheme}://{address}"
        found = discovery.identified(endpoint.from_url(url), url)
    assert (found.server, found.url) == (kind, f"http://{address}")
    if scheme == "http":
        assert found.grpc is None  # nobody listens there


@pytest.mark.parametrize(
    ("models", "kind", "positions"),
    [
        ('{"data": [{"id": "a", "owned_by": "vllm", "max_model_len": 2048}]}', "vllm_serve", 2048),
        ('{"data": [{"id": "a", "owned_by": "tensorrt_llm"}]}', "trtllm_serve", None),
        ('{"data": [{"id": "a", "owned_by": "somebody"}]}', "trtllm_serve", None),
        ('{"data": [{"id": "a", "owned_by": null, "max_model_len": "x"}]}', "trtllm_serve", None),
        ('{"data": []}', "trtllm_serve", None),
        ("[]", "trtllm_serve", None),
        ("<html>", "trtllm_serve", None),
    ],
)
def test_servers_of_one_protocol_are_told_by_whose_models_they_list(
    models: str, kind: str, positions: int | None
) -> None:
    with answering(OPENAI, models=models) as address:
        url = f"http://{address}"
        found = discovery.identified(endpoint.from_url(url), url)
    assert (found.server, found.positions) == (kind, positions)


def test_options_are_known_by_the_same_words_whatever_the_engine(tmp_path: Path) -> None:
    document = {
        "name": "tiny",
        "checkpoint": "llama-tiny",
        "hardware": {"gpu": "h100", "num_gpus": 1},
        "engine": {"name": "vllm", "release": "0.32.0"},
        "workload": {"isl": 512, "osl": 128, "concurrency": 16},
        "engine_config": {"max_num_seqs": 7, "kv_cache_dtype": "fp8"},
        "targets": {"vllm_serve": {}},
    }
    (tmp_path / "d.yaml").write_text(json.dumps(document))
    rendered = pipeline.render(str(tmp_path / "d.yaml"), tmp_path / "bundle", [], False)
    options = endpoint.from_target(target.read(rendered, "vllm_serve")).options
    assert (options["max_num_seqs"], options["max_batch_size"]) == (7, 7)
    assert options["kv_cache_config"]["dtype"] == "fp8"


@pytest.mark.parametrize(
    ("index", "url", "model"),
    [
        (["llama"], "triton://{}", "llama"),
        (["llama"], "http://{}", "llama"),
        (["llama", "llama_unary"], "http://{}", "llama"),
        (["llama", "tensorrt_llm"], "triton://{}", "tensorrt_llm"),
        (["llama"], "triton://{}?model=qwen", "qwen"),
        ([], "triton://{}", "tensorrt_llm"),
    ],
)
def test_the_only_model_that_is_ready_needs_no_name(index: list[str], url: str, model: str) -> None:
    with answering(KSERVE, index=index) as address:
        text = url.format(address)
        assert discovery.identified(endpoint.from_url(text), text).model == model


def test_one_of_several_models_must_be_named() -> None:
    with answering(KSERVE, index=["a", "b"]) as address:
        url = f"triton://{address}"
        with pytest.raises(BadInput, match=r"has 2 models ready: a, b; name one: .*model=a"):
            discovery.identified(endpoint.from_url(url), url)


@pytest.mark.parametrize(
    "body", ["", "<html>", "7", "{}7", '{"a": 1}', "[7]", '[{"state": "READY"}]']
)
def test_what_answers_without_an_index_of_models_is_no_triton(body: str) -> None:
    with answering(KSERVE, body=body) as address:
        url = f"triton://{address}"
        with pytest.raises(BadInput, match="answers with something else than the models of"):
            discovery.identified(endpoint.from_url(url), url)


def test_a_bundle_names_its_servers(bundle: Bundle) -> None:
    one = endpoint.from_target(target.read(bundle, "triton"))
    assert one.grpc == "127.0.0.1:8001"
    assert one.model_folder == bundle.folder / "triton/model_repository/tensorrt_llm"
    assert replace(one, model_folder=None, grpc=None, model=None).url == "http://127.0.0.1:8000"
