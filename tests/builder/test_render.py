"""Rendered bundles: golden files, the same bytes everywhere, and proof that they read back."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from builder import deployment, pipeline, render
from builder.bundle import Bundle, File
from builder.errors import BadInput
from builder.facts import servers
from tests.conftest import ROOT, Run
from tests.tables import by_table, tables

TABLES = tables(Path(__file__).with_suffix(".yaml"))

PRESETS = deployment.preset_names()
GOLDEN = ROOT / "tests" / "golden"

# Presets on a cluster, whose profile stands beside the golden bundles: Triton on one node, and
# trtllm-serve on four.
SITE = f"targets.slurm.site={GOLDEN / 'site.yaml'}"
SERVICES = {
    "slurm-one-node": ("deepseek-v3.2-nvfp4-gb200", (SITE, "targets.slurm.server=triton")),
    "slurm-four-nodes": ("deepseek-r1-0528-nvfp4-gb200x16", (SITE,)),
}
BUNDLES: dict[str, tuple[str, tuple[str, ...]]] = {
    **{name: (name, ()) for name in PRESETS},
    **SERVICES,
}


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    """A bundle of every preset, and those under Slurm."""
    folder = tmp_path_factory.mktemp("bundles")
    return {
        name: pipeline.render(preset, folder / name, changes)
        for name, (preset, changes) in BUNDLES.items()
    }


@pytest.mark.parametrize("name", BUNDLES)
def test_bundles_equal_the_golden_ones(
    name: str, bundles: dict[str, Bundle], request: pytest.FixtureRequest
) -> None:
    """Golden bundles are reviewed as diffs; `--update-golden` rewrites them, and fails then.

    The model's own code is left out: it is copied byte for byte, which another test holds; and
    with it the sums that hold its digests.
    """

    def is_code(path: str) -> bool:
        return Path(path).suffix in (".py", ".pbtxt") or Path(path).name == "__pycache__"

    files = {
        path: data
        for path, data in contents(bundles[name].folder).items()
        if not is_code(path) and path not in ("manifest.json", "SHA256SUMS")
    }
    manifest = json.loads((bundles[name].folder / "manifest.json").read_bytes())
    manifest["files"] = {
        path: {**entry, "sha256": "-", "bytes": 0} if is_code(path) else entry
        for path, entry in manifest["files"].items()
    }
    manifest["tool"]["version"] = "-"
    files["manifest.json"] = (json.dumps(manifest, indent=2, ensure_ascii=False) + "\n").encode()
    golden = contents(GOLDEN / name)
    changed = sorted(path for path in {*files, *golden} if files.get(path) != golden.get(path))
    if changed and request.config.getoption("--update-golden"):
        shutil.rmtree(GOLDEN / name, ignore_errors=True)
        for path, data in files.items():
            (GOLDEN / name / path).parent.mkdir(parents=True, exist_ok=True)
            (GOLDEN / name / path).write_bytes(data)
        pytest.fail(f"rewritten, to be reviewed as a diff: {', '.join(changed)}", pytrace=False)
    assert set(files) == set(golden)
    for path, data in files.items():
        assert data.decode() == golden[path].decode(), path


def test_no_golden_bundle_is_left_over() -> None:
    assert sorted(path.name for path in GOLDEN.iterdir() if path.is_dir()) == sorted(BUNDLES)


def test_the_model_is_copied_byte_for_byte(bundles: dict[str, Bundle]) -> None:
    source = ROOT / "model_repository" / "tensorrt_llm"
    copy = bundles[PRESETS[0]].folder / "triton/model_repository/tensorrt_llm"
    names = {p.relative_to(source) for p in source.rglob("*") if p.suffix in (".py", ".pbtxt")}
    assert Path("1/model.py") in names
    assert Path("config.pbtxt") in names
    for name in names:
        assert (copy / name).read_bytes() == (source / name).read_bytes()


def test_the_model_configuration_is_valid_protobuf_with_the_published_tensors() -> None:
    text = (ROOT / "model_repository/tensorrt_llm/config.pbtxt").read_text()
    config = text_format.Parse(text, model_config_pb2.ModelConfig())
    assert config.backend == "python"
    assert config.max_batch_size == 0, "model.yaml sets it when the server starts"
    assert not config.HasField("model_transaction_policy"), "likewise"
    inputs = {tensor.name: tensor for tensor in config.input}
    published = yaml.safe_load((ROOT / "builder/data/triton/llmapi_model.yaml").read_text())
    kinds = {
        kind: {row.name: model_config_pb2.DataType.Name(row.data_type) for row in rows}
        for kind, rows in (("inputs", config.input), ("outputs", config.output))
    }
    assert published["inputs"].items() <= kinds["inputs"].items()
    assert published["outputs"].items() <= kinds["outputs"].items()
    assert not [name for name, tensor in inputs.items() if not tensor.optional]


@pytest.mark.parametrize("preset", PRESETS)
def test_shell_scripts_pass_bash_and_shellcheck(preset: str, bundles: dict[str, Bundle]) -> None:
    scripts = list(bundles[preset].folder.rglob("*.sh"))
    own = [row for row in scripts if row.name == "serve.sh" and "prefill" not in row.parts]
    assert len(own) == len(bundles[preset].launch["targets"])
    for script in scripts:
        subprocess.run(["bash", "-n", script], check=True)
        shellcheck = Path(sys.executable).with_name("shellcheck")
        done = subprocess.run([shellcheck, script], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_the_same_bytes_from_a_wheel(
    wheel: Path, bundles: dict[str, Bundle], tmp_path: Path
) -> None:
    """The wheel is unpacked and run alone, with the checkout out of sight."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = (
        "import sys; sys.path.insert(0, 'site'); import builder.cli.main as cli\n"
        "assert 'site' in cli.__file__, cli.__file__\n"
        f"sys.exit(cli.main(['render', '{PRESETS[0]}', '-o', 'b']))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)
    assert contents(tmp_path / "b") == contents(bundles[PRESETS[0]].folder)


def test_a_wheel_holds_the_protocol_that_launch_and_supervisor_share(
    wheel: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = (
        "import sys; sys.path.insert(0, 'site'); import launch.cli.slurm, supervisor.state\n"
        "sys.exit('site' not in launch.__file__ or 'site' not in supervisor.__file__)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


AWKWARD = TABLES["AWKWARD"]


@pytest.fixture
def awkward_checkpoint(
    make_miniature: Callable[[str], Path], tmp_path: Path
) -> Callable[[str], Path]:
    def place(name: str) -> Path:
        return shutil.copytree(make_miniature("llama-tiny"), tmp_path / name)

    return place


@pytest.mark.parametrize("name", [*AWKWARD[:8], f"{AWKWARD[8]}/{'/'.join(AWKWARD[-3:])}"])
def test_no_folder_name_escapes_into_a_file(
    name: str, awkward_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """The serve script, run with stand-ins that print their arguments, gets the very path."""
    checkpoint = awkward_checkpoint(name)
    bundle = pipeline.render(
        "llama-tiny", tmp_path / "bundle", [f"checkpoint={json.dumps(str(checkpoint))}"]
    )
    for server in ("trtllm-serve", "tritonserver"):
        stand_in = tmp_path / "bin" / server
        stand_in.parent.mkdir(exist_ok=True)
        stand_in.write_text('#!/bin/sh\nprintf "%s" "$CHECKPOINT"\n')
        stand_in.chmod(0o755)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    for target in ("trtllm_serve", "triton"):
        done = subprocess.run(
            ["bash", bundle.folder / target / "serve.sh"],
            cwd=tmp_path,
            env={"PATH": path},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == str(checkpoint)
    assert not list(tmp_path.rglob("pwned"))
    model = bundle.folder / "triton/model_repository/tensorrt_llm/1/model.yaml"
    assert yaml.safe_load(model.read_text())["model"] == str(checkpoint)


def test_no_option_value_changes_its_type_or_its_place(tmp_path: Path) -> None:
    values = {value: value for value in AWKWARD}
    override = f"engine_config.env_overrides={json.dumps(values)}"
    bundle = pipeline.render("llama-tiny", tmp_path / "bundle", [override])
    config = yaml.safe_load((bundle.folder / "trtllm_serve/config.yaml").read_text())
    assert config["env_overrides"] == values


@pytest.mark.parametrize("host", ["$(reboot)", "a b", "x;y", "", "x\ny"])
def test_a_host_that_is_no_address_is_refused(host: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"targets\.triton\.host"):
        pipeline.render("llama-tiny", tmp_path / "b", [f"targets.triton.host={json.dumps(host)}"])


@pytest.mark.parametrize("host", ["localhost", "node7", "10.0.0"])
def test_triton_gets_an_address_and_no_name(host: str, tmp_path: Path) -> None:
    """It would listen nowhere, and say nothing."""
    with pytest.raises(BadInput, match=rf"triton\.host: {host} is a name.* such as 127\.0\.0\.1"):
        pipeline.render("llama-tiny", tmp_path / "b", [f"targets.triton.host={host}"])


@pytest.mark.parametrize("make", [render.option_file, render.yaml_document])
def test_a_file_that_reads_back_otherwise_is_caught(
    make: Callable[[str, Mapping[str, Any]], File], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render, "scalar", str)
    with pytest.raises(AssertionError, match="reads back as"):
        make("A title.", {"max_batch_size": "64"})


def test_servers_listen_on_loopback_unless_asked(
    bundles: dict[str, Bundle], builder: Run, tmp_path: Path
) -> None:
    for preset in PRESETS:
        for entry in bundles[preset].launch["targets"].values():
            assert entry["host"] == "127.0.0.1"
    builder("render", "llama-tiny", "-o", "b", "--set", "targets.triton.host=0.0.0.0")
    launch = json.loads((tmp_path / "b" / "launch.json").read_text())
    assert launch["targets"]["triton"]["environment"]["SERVE_HOST"] == "0.0.0.0"
    assert launch["targets"]["trtllm_serve"]["host"] == "127.0.0.1"


def start(bundle: Bundle, tmp_path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Triton's start script, run with a stand-in that prints its arguments."""
    stand_in = tmp_path / "bin" / "tritonserver"
    stand_in.parent.mkdir(exist_ok=True)
    stand_in.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    stand_in.chmod(0o755)
    path = f"{stand_in.parent}:{os.environ['PATH']}"
    command = ["bash", str(bundle.folder / "triton" / "serve.sh")]
    environment = {"PATH": path, **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def flags(bundle: Bundle, tmp_path: Path, **variables: str) -> dict[str, str]:
    words = start(bundle, tmp_path, **variables).stdout.splitlines()
    return dict(zip(words[::2], words[1::2], strict=True))


def test_triton_starts_closed(bundles: dict[str, Bundle], tmp_path: Path) -> None:
    """Loopback, no model control, no clouds' protocols, management behind a key nobody knows."""
    found = flags(bundles["llama-tiny"], tmp_path)
    assert {found[f"--{name}-address"] for name in ("http", "grpc", "metrics")} == {"127.0.0.1"}
    assert found["--model-control-mode"] == "none"
    assert found["--allow-sagemaker"] == found["--allow-vertex-ai"] == "false"
    assert found["--exit-on-error"] == found["--strict-readiness"] == "true"
    apis, _, key = found["--http-restricted-api"].partition(":api-key=")
    assert set(apis.split(",")) == {
        *("shared-memory", "model-repository", "model-config", "statistics", "trace", "logging")
    }
    assert len(key) == 64
    assert found["--grpc-restricted-protocol"] == found["--http-restricted-api"]
    assert key not in flags(bundles["llama-tiny"], tmp_path)["--http-restricted-api"]


def test_the_key_is_the_first_line_of_its_file(bundles: dict[str, Bundle], tmp_path: Path) -> None:
    (tmp_path / "key").write_text("0123456789abcdef\nmore\n")
    found = flags(bundles["llama-tiny"], tmp_path, SERVE_KEY_FILE=str(tmp_path / "key"))
    assert found["--http-restricted-api"].endswith(":api-key=0123456789abcdef")


@pytest.mark.parametrize("text", ["", "short", "0123456789 abcdef", "0123456789abcdef,x=y", None])
def test_a_key_file_that_is_none_stops_the_start(
    text: str | None, bundles: dict[str, Bundle], tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / "key").write_text(text)
    done = start(bundles["llama-tiny"], tmp_path, SERVE_KEY_FILE=str(tmp_path / "key"))
    assert done.returncode == 2
    assert done.stderr.startswith("triton/serve.sh: SERVE_KEY_FILE: ")
    assert len(done.stderr.splitlines()) == 1
    assert not text or text not in done.stderr
    assert done.stdout == ""


def test_a_path_that_triton_cannot_serve_from_is_refused_in_one_line(
    bundles: dict[str, Bundle], tmp_path: Path
) -> None:
    for name in ("grün", "a b"):
        copy = shutil.copytree(bundles["llama-tiny"].folder, tmp_path / name)
        for locale in ("C.UTF-8", "C"):
            done = start(replace(bundles["llama-tiny"], folder=copy), tmp_path, LC_ALL=locale)
            assert done.returncode == 2
            assert "only ASCII letters, digits and" in done.stderr
            assert len(done.stderr.splitlines()) == 1


def secure(tmp_path: Path, *settings: str) -> Bundle:
    given = [f"targets.triton.{setting}" for setting in settings]
    return pipeline.render("llama-tiny", tmp_path / "secure", given)


TLS = "grpc_tls={certificate: /tls/server.pem, key: /tls/server.key, client_ca: /tls/ca.pem}"


def test_mutual_tls_names_files_and_holds_no_secret(tmp_path: Path) -> None:
    bundle = secure(tmp_path, TLS)
    missing = start(bundle, tmp_path)
    assert missing.returncode == 2
    assert missing.stderr == (
        "triton/serve.sh: SERVE_TLS_CERTIFICATE: /tls/server.pem cannot be read\n"
    )
    names = ("SERVE_TLS_CERTIFICATE", "SERVE_TLS_KEY", "SERVE_TLS_CLIENT_CA")
    files = {name: str(tmp_path / name) for name in names}
    for file in files.values():
        Path(file).touch()
    found = flags(bundle, tmp_path, **files)
    assert found["--grpc-use-ssl"] == found["--grpc-use-ssl-mutual"] == "true"
    assert found["--grpc-server-key"] == files["SERVE_TLS_KEY"]
    assert found["--grpc-root-cert"] == files["SERVE_TLS_CLIENT_CA"]


def test_protocols_that_are_off_have_no_port(tmp_path: Path) -> None:
    bundle = secure(tmp_path, "http=false", "metrics=false")
    entry = bundle.launch["targets"]["triton"]
    assert entry["ports"] == {"grpc": 8001}
    assert entry["ready"] == {"port": "grpc"}
    found = flags(bundle, tmp_path)
    assert found["--allow-http"] == found["--allow-metrics"] == "false"
    assert "--http-port" not in found
    assert "--http-restricted-api" not in found


@by_table
def test_a_start_that_would_not_be_what_it_says_is_refused(
    settings: list[str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput) as raised:
        secure(tmp_path, *settings)
    assert message in "\n".join(map(str, raised.value.diagnostics))


def test_what_waits_in_triton_is_bounded_where_triton_knows_how(
    bundles: dict[str, Bundle], tmp_path: Path
) -> None:
    bundle = bundles["llama-tiny"]
    (file,) = bundle.folder.rglob("tensorrt_llm/1/model.yaml")
    most = yaml.safe_load(file.read_text())["triton_config"]["max_prompt_bytes"]
    longest = json.dumps({"text_input": "\0" * most, "sampling_param_max_tokens": 1})
    assert not {"--grpc-max-response-pool-size", "--http-max-input-size"} & {
        *flags(bundle, tmp_path)
    }
    known = "--grpc-max-response-pool-size <integer> --http-max-input-size <integer>"
    script = f'#!/bin/sh\n[ "$1" = --help ] && echo " {known}"\n'
    stand_in = tmp_path / "bin" / "tritonserver"
    stand_in.write_text(script + 'printf "%s\\n" "$@"\n')
    path = f"{stand_in.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", bundle.folder / "triton/serve.sh"],
        env={"PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    words = done.stdout.splitlines()
    assert words[words.index("--grpc-max-response-pool-size") + 1] == "1024"
    assert 0 <= int(words[words.index("--http-max-input-size") + 1]) - len(longest) < 2**20


@by_table
def test_the_limit_of_requests_follows_the_batch(
    settings: list[str], expected: int, tmp_path: Path
) -> None:
    bundle = pipeline.render("llama-tiny", tmp_path / "b", settings)
    model = bundle.folder / "triton/model_repository/tensorrt_llm/1/model.yaml"
    assert yaml.safe_load(model.read_text())["triton_config"]["max_requests"] == expected


@by_table
def test_what_one_request_or_kind_of_client_may_cost_follows_the_plan(
    settings: list[str], expected: dict[str, Any], tmp_path: Path
) -> None:
    bundle = pipeline.render("llama-tiny", tmp_path / "b", settings)
    model = bundle.folder / "triton/model_repository/tensorrt_llm/1/model.yaml"
    found = yaml.safe_load(model.read_text())["triton_config"]
    assert {name: found.get(name) for name in expected} == expected


def test_a_decoupled_model_has_a_second_one_for_unary_calls(tmp_path: Path) -> None:
    repository = pipeline.render("llama-tiny", tmp_path / "b").folder / "triton/model_repository"
    suffix = servers.load("triton").unary_suffix
    first, second = repository / "tensorrt_llm", repository / f"tensorrt_llm{suffix}"
    module = first / "1/trtllm_model/unary.py"
    assert f'SUFFIX = "{suffix}"' in module.read_text()
    assert (second / "1/model.py").read_bytes() == module.read_bytes()
    assert (second / "config.pbtxt").read_bytes() == (first / "config.pbtxt").read_bytes()


@pytest.mark.parametrize("option", ["unary_model=false", "decoupled=false"])
def test_the_second_model_is_left_out(option: str, tmp_path: Path) -> None:
    bundle = pipeline.render("llama-tiny", tmp_path / "b", [f"targets.triton.{option}"])
    assert [path.name for path in (bundle.folder / "triton/model_repository").iterdir()] == [
        "tensorrt_llm"
    ]


def test_the_server_may_exit_later_than_its_model(tmp_path: Path) -> None:
    bundle = secure(tmp_path, "drain_timeout_s=600")
    model = bundle.folder / "triton/model_repository/tensorrt_llm/1/model.yaml"
    assert yaml.safe_load(model.read_text())["triton_config"]["drain_timeout_s"] == 600
    assert flags(bundle, tmp_path)["--exit-timeout-secs"] == "660"
    assert bundle.launch["targets"]["triton"]["stop_timeout_s"] == 690
