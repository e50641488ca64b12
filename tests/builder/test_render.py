"""Rendered bundles: golden files, the same bytes everywhere, and proof that they read back."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from builder import deployment, pipeline, render
from builder.bundle import Bundle
from builder.errors import BadInput
from tests.conftest import ROOT, Run

PRESETS = deployment.preset_names()
BOTH_SERVERS = [name for name in PRESETS if "triton" in deployment.read(name).data["targets"]]
GOLDEN = ROOT / "tests" / "golden"


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    """A bundle of every preset."""
    folder = tmp_path_factory.mktemp("bundles")
    return {name: pipeline.render(name, folder / name) for name in PRESETS}


@pytest.mark.parametrize("preset", PRESETS)
def test_bundles_equal_the_golden_ones(
    preset: str, bundles: dict[str, Bundle], request: pytest.FixtureRequest
) -> None:
    """Golden bundles are reviewed as diffs; `--update-golden` rewrites them.

    The model's own code is left out: it is copied byte for byte, which another test holds.
    """

    def is_code(path: str) -> bool:
        return Path(path).suffix in (".py", ".pbtxt") or Path(path).name == "__pycache__"

    files = {
        path: data
        for path, data in contents(bundles[preset].folder).items()
        if not is_code(path) and path != "manifest.json"
    }
    manifest = json.loads((bundles[preset].folder / "manifest.json").read_bytes())
    manifest["files"] = {
        path: {**entry, "sha256": "-", "bytes": 0} if is_code(path) else entry
        for path, entry in manifest["files"].items()
    }
    manifest["tool"]["version"] = "-"
    files["manifest.json"] = (json.dumps(manifest, indent=2, ensure_ascii=False) + "\n").encode()
    if request.config.getoption("--update-golden"):
        shutil.rmtree(GOLDEN / preset, ignore_errors=True)
        for path, data in files.items():
            (GOLDEN / preset / path).parent.mkdir(parents=True, exist_ok=True)
            (GOLDEN / preset / path).write_bytes(data)
    golden = contents(GOLDEN / preset)
    assert set(files) == set(golden)
    for path, data in files.items():
        assert data.decode() == golden[path].decode(), path


def test_no_golden_bundle_is_left_over() -> None:
    assert sorted(path.name for path in GOLDEN.iterdir()) == PRESETS


@pytest.mark.parametrize("preset", BOTH_SERVERS)
def test_one_value_set_feeds_both_servers(preset: str, bundles: dict[str, Bundle]) -> None:
    folder = bundles[preset].folder
    config = yaml.safe_load((folder / "trtllm_serve" / "config.yaml").read_text())
    model = yaml.safe_load(
        (folder / "triton/model_repository/tensorrt_llm/1/model.yaml").read_text()
    )
    assert model.pop("triton_config") == {
        "max_batch_size": 0,
        "decoupled": True,
        "cancellation_check_period_ms": 100,
    }
    assert model.pop("backend") == "pytorch"
    assert model.pop("model") == deployment.read(preset).get("checkpoint")
    assert model == config


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
    assert [name for name, tensor in inputs.items() if not tensor.optional] == ["text_input"]
    assert len(inputs) == 17
    assert len(config.output) == 16


@pytest.mark.parametrize("preset", PRESETS)
def test_shell_scripts_pass_bash_and_shellcheck(preset: str, bundles: dict[str, Bundle]) -> None:
    scripts = list(bundles[preset].folder.rglob("*.sh"))
    assert len(scripts) == len(bundles[preset].launch["targets"])
    for script in scripts:
        subprocess.run(["bash", "-n", script], check=True)
        shellcheck = Path(sys.executable).with_name("shellcheck")
        done = subprocess.run([shellcheck, script], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("seed", ["0", "1", "4711"])
def test_the_same_bytes_for_every_hash_seed(
    seed: str, bundles: dict[str, Bundle], tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "builder", "render", PRESETS[0], "-o", str(tmp_path / "b")]
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert contents(tmp_path / "b") == contents(bundles[PRESETS[0]].folder)


def test_the_same_bytes_from_a_wheel(
    wheel: Path, bundles: dict[str, Bundle], tmp_path: Path
) -> None:
    """The wheel is unpacked and run alone, with the checkout out of sight."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = (
        "import sys; sys.path.insert(0, 'site'); import builder.cli as cli\n"
        "assert 'site' in cli.__file__, cli.__file__\n"
        f"sys.exit(cli.main(['render', '{PRESETS[0]}', '-o', 'b']))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)
    assert contents(tmp_path / "b") == contents(bundles[PRESETS[0]].folder)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


AWKWARD = [
    "$(touch pwned)",
    "`touch pwned`",
    "'; touch pwned; '",
    '"; touch pwned; "',
    "a b",
    "{{ 7 * 7 }}",
    "{% raw %}",
    "line\nbreak: true",
    "# no comment",
    "no",
    "0x10",
    "1e3",
    "~",
    "ünïcödé →",
    "}x{",
    "\\",
]


@pytest.fixture
def awkward_checkpoint(
    make_miniature: Callable[[str], Path], tmp_path: Path
) -> Callable[[str], Path]:
    def place(name: str) -> Path:
        return shutil.copytree(make_miniature("llama-tiny"), tmp_path / name)

    return place


@pytest.mark.parametrize("name", AWKWARD)
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


@pytest.mark.parametrize("value", AWKWARD)
def test_no_option_value_changes_its_type_or_its_place(value: str, tmp_path: Path) -> None:
    override = f"engine_config.env_overrides={json.dumps({value: value})}"
    bundle = pipeline.render("llama-tiny", tmp_path / "bundle", [override])
    config = yaml.safe_load((bundle.folder / "trtllm_serve/config.yaml").read_text())
    assert config["env_overrides"] == {value: value}


@pytest.mark.parametrize("host", ["$(reboot)", "a b", "x;y", "", "x\ny"])
def test_a_host_that_is_no_address_is_refused(host: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"targets\.triton\.host"):
        pipeline.render("llama-tiny", tmp_path / "b", [f"targets.triton.host={json.dumps(host)}"])


def test_a_template_that_loses_a_value_is_caught() -> None:
    expected: dict[str, Any] = {"max_batch_size": 64}
    with pytest.raises(AssertionError, match="reads back as"):
        render.yaml_text(
            "trtllm_serve/config.yaml.j2", expected, name="x", release="1.2.1", options=[]
        )


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


def test_no_bundle_trusts_remote_code_unless_asked(bundles: dict[str, Bundle]) -> None:
    for preset in PRESETS:
        for path, data in contents(bundles[preset].folder).items():
            if Path(path).name in ("config.yaml", "model.yaml", "serve.sh"):
                assert b"trust_remote_code" not in data
