"""The README's commands work as printed; those that need a GPU, up to where the engine starts."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder import deployment, pipeline
from builder.cli import deployments
from builder.facts import release
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text()
BLOCKS: list[str] = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
YAML_BLOCKS: list[str] = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)

# Stands in for docker: runs the command of the container on this machine, with the paths of the
# mounts put back and the variables set.
DOCKER = """\
import os, subprocess, sys
arguments = sys.argv[1:]
assert arguments.pop(0) == "run", arguments
mounts, environment = {}, {}
with_value = {"--gpus", "--ipc", "--network", "--ulimit"}
while arguments[0].startswith("-"):
    option = arguments.pop(0)
    if option == "-v":
        source, target, mode = arguments.pop(0).split(":")
        assert mode == "ro", "the bundle and the weights are mounted read-only"
        mounts[target] = source
    elif option == "-e":
        name, _, value = arguments.pop(0).partition("=")
        environment[name] = value
    elif option in with_value:
        arguments.pop(0)
    else:
        assert option == "--rm", option
image, *command = arguments
for target, source in mounts.items():
    command = [source + word[len(target):] if word.startswith(target) else word for word in command]
print("image", image, flush=True)
sys.exit(subprocess.call(command, env={**os.environ, **environment}))
"""

SERVER = """\
import os, pathlib, sys
print(pathlib.Path(sys.argv[0]).name, *sys.argv[1:])
print("checkpoint", os.environ["CHECKPOINT"])
"""


def blocks(*parts: str) -> list[str]:
    """The README's blocks that hold all of the parts."""
    found = [block for block in BLOCKS if all(part in block for part in parts)]
    assert found, parts
    return found


@pytest.fixture
def shell(tmp_path: Path) -> Callable[[str], str]:
    """A shell in an empty folder, with stand-ins for docker and the servers on its path."""
    stand_ins = tmp_path / "bin"
    stand_ins.mkdir()
    for name, code in (("docker", DOCKER), ("trtllm-serve", SERVER), ("tritonserver", SERVER)):
        (stand_ins / name).write_text(f"#!{sys.executable}\n{code}")
        (stand_ins / name).chmod(0o755)
    path = f"{stand_ins}:{Path(sys.executable).parent}:{os.environ['PATH']}"

    def run(script: str) -> str:
        done = subprocess.run(
            ["bash", "-euc", script],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return pipeline.render("deepseek-v3.2-nvfp4-gb200", tmp_path / "bundle").folder


def test_the_builder_commands_run_in_order(shell: Callable[[str], str]) -> None:
    (block,) = blocks("builder render", "builder explain")
    output = shell(block)
    assert "speculative_config.num_nextn_predict_layers = 3" in output
    assert "files match" in output


def test_a_deployment_is_handed_over(shell: Callable[[str], str], tmp_path: Path) -> None:
    """But for the rehearsal, which the demo shows, and its evidence."""
    (block,) = blocks("builder sign")
    key: list[str | Path] = [
        "ssh-keygen",
        "-q",
        "-t",
        "ed25519",
        "-N",
        "",
        "-f",
        tmp_path / ".ssh/id_ed25519",
    ]
    (tmp_path / ".ssh").mkdir()
    subprocess.run(key, check=True)
    public = (tmp_path / ".ssh/id_ed25519.pub").read_text()
    (tmp_path / "allowed_signers").write_text(f"us@example {public}")
    typed = [line for line in block.splitlines() if "python -m launch" not in line]
    assert "signature: by us@example" in shell(f"HOME=$PWD\n{chr(10).join(typed)}")


def test_old_versions_are_listed_and_refused(shell: Callable[[str], str]) -> None:
    (block,) = blocks("builder advisories")
    assert "1.1.0: refused" in shell(block)


@pytest.mark.parametrize("block", blocks("docker run"))
def test_containers_start_the_engine_with_the_bundle(
    block: str, shell: Callable[[str], str], bundle: Path
) -> None:
    lines = shell(block).splitlines()
    assert "checkpoint /models/DeepSeek-V3.2-NVFP4" in lines
    image, command = lines[0].removeprefix("image "), shlex.split(lines[1])
    if command[0] == "trtllm-serve":
        assert image.endswith(f":{release.newest_stable()}")
        assert command[command.index("--port") + 1] == "30000"
        assert Path(command[-1]) == bundle / "trtllm_serve" / "config.yaml"
    else:
        tag = image.partition(":")[2].partition("-")[0]
        assert tag in release.load(release.newest_stable()).containers["triton"]
        repository = command[command.index("--model-repository") + 1]
        assert Path(repository) == bundle / "triton" / "model_repository"


def test_scripts_start_the_engine_without_a_container(
    shell: Callable[[str], str], bundle: Path
) -> None:
    (block,) = blocks("bash bundle/trtllm_serve/serve.sh", "bash bundle/triton/serve.sh")
    servers = [line for line in shell(block).splitlines() if not line.startswith("checkpoint")]
    assert [line.split()[0] for line in servers] == ["trtllm-serve", "tritonserver"]


def test_the_deployment_file_is_valid(
    tmp_path: Path, make_miniature: Callable[[str], Path]
) -> None:
    (text,) = [block for block in YAML_BLOCKS if "workload:" in block]
    folder = shutil.copytree(make_miniature("nvidia/DeepSeek-V3.2-NVFP4"), tmp_path / "weights")
    (tmp_path / "mine.yaml").write_text(text)
    planned = pipeline.plan(str(tmp_path / "mine.yaml"), [f"checkpoint={folder}"])
    assert planned.engine.options["kv_cache_config"]["free_gpu_memory_fraction"] == 0.75


def test_the_site_profile_renders_jobs(tmp_path: Path) -> None:
    (text,) = [block for block in YAML_BLOCKS if "partition:" in block]
    (tmp_path / "my-cluster.yaml").write_text(text)
    (block,) = blocks("--site my-cluster.yaml")
    render = shlex.split(block.replace("\\\n", "").splitlines()[0])[1:]
    done = subprocess.run([sys.executable, *render], cwd=tmp_path, check=False)
    assert done.returncode == 0
    assert "#SBATCH --partition=batch" in (tmp_path / "service/slurm/serve.sbatch").read_text()


def test_the_error_example_is_what_the_builder_prints(tmp_path: Path) -> None:
    data = yaml.safe_load((deployment.PRESETS / "deepseek-v3.2-nvfp4-gb200.yaml").read_text())
    data["hardware"]["gpu"], data["workload"]["isl"] = "gb20", -800
    lines = [f"{key}: {value!r}" for key, value in data.items()]
    (tmp_path / "deployment.yaml").write_text("\n".join(lines))
    command = [sys.executable, "-m", "builder", "plan", "deployment.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr in README


@pytest.mark.parametrize("preset", deployments.preset_rows(), ids=lambda row: row["name"])
def test_every_preset_is_in_the_table_with_its_published_figure(preset: dict[str, Any]) -> None:
    (row,) = (line for line in README.splitlines() if line.startswith(f"| `{preset['name']}`"))
    *_, release_cell, published, state, _ = (cell.strip() for cell in row.split("|"))
    assert release_cell == preset["release"]
    assert published.startswith(deployments.best_figure(preset["published"]))
    latencies = [figure.get("median_e2e_latency_ms") for figure in preset["published"]]
    assert all(f"{value / 1000:.1f} s" in published for value in latencies if value)
    warned = pipeline.plan(preset["name"]).plan.warnings
    unproven = any("no published configuration" in warning.message for warning in warned)
    assert ("assumed" in state) == (unproven and preset["name"] != "llama-tiny")


def test_check_finds_what_the_readme_says(shell: Callable[[str], str]) -> None:
    (block,) = blocks("builder check")
    output = shell(block)
    for text in ("did you mean free_gpu_memory_fraction", "moe_expert_parallel_size", "drift"):
        assert text in output
    assert "write num_nextn_predict_layers: 3" in output


def test_the_scripts_of_the_first_screen_exist() -> None:
    for block in blocks("bash launch/demo.sh") + blocks("bash tests/run.sh"):
        script = shlex.split(block, comments=True)[1]
        assert (ROOT / script).is_file()
