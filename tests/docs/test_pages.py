"""The commands of the README and of `docs/` work as printed, and what the pages say is so."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder import deployment, pipeline
from builder.cli import deployments
from builder.facts import release
from launch.cli import main as launch
from tests.conftest import ROOT, Run
from tests.docs.pages import PAGES, Block, Machine, blocks, elsewhere, own_network

WITH_SERVERS = [page for page in PAGES if blocks(page, "bash server")]
WITHOUT_SERVERS = [page for page in PAGES if page not in WITH_SERVERS]
README_BYTES = 9000


def title(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def one(page: str, *parts: str, kind: str = "bash") -> Block:
    """The block of a page that holds all of the parts."""
    path = ROOT / page
    (found,) = (row for row in blocks(path, kind) if all(part in row.text for part in parts))
    return found


def prepare(folder: Path) -> None:
    """What pages take for granted: the profile that they show, and a key to sign with."""
    (folder / "my-cluster.yaml").write_text(one("README.md", "partition:", kind="yaml").text)
    key = folder / ".ssh/id_ed25519"
    key.parent.mkdir()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    public = key.with_suffix(".pub").read_text()
    (folder / "allowed_signers").write_text(f"us@example {public}")


@pytest.mark.parametrize("page", WITHOUT_SERVERS, ids=title)
def test_every_command_of_a_page_works_in_its_order(page: Path, machine: Machine) -> None:
    """What is run elsewhere is left out; docker and the engine's own commands are stand-ins."""
    prepare(machine.folder)
    for block in blocks(page, "bash"):
        commands = [row for row in block.commands if elsewhere(row) is None]
        if commands:
            machine.run("\n".join(commands))


@pytest.mark.parametrize("page", WITH_SERVERS, ids=title)
def test_every_command_of_a_page_works_beside_its_servers(page: Path, tmp_path: Path) -> None:
    """A server runs until the next one is started."""
    if "haproxy" in page.read_text() and shutil.which("haproxy") is None:
        pytest.skip("haproxy could not be installed on this platform")
    with own_network() as enter:
        machine = Machine(tmp_path, stand_ins=False, enter=enter)
        parts: list[tuple[str, list[str]]] = [("", [])]
        for number, block in enumerate(blocks(page, "bash", "bash server", "python")):
            if block.kind == "bash server":
                parts.append((block.text.strip(), []))
            elif block.kind == "python":
                (tmp_path / f"client{number}.py").write_text(block.text)
                parts[-1][1].append(f"python client{number}.py")
            else:
                parts[-1][1].extend(row for row in block.commands if elsewhere(row) is None)
        for server, commands in parts:
            if server:
                with machine.serving(server):
                    for command in commands:
                        printed = machine.run(command)
                        assert printed or re.search(r" > \S+", command), f"{command} prints nothing"
            else:
                machine.run("\n".join(commands))


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_commands_that_are_run_elsewhere_are_ones_that_the_launcher_has(page: Path) -> None:
    for block in blocks(page, "bash"):
        for command in block.commands:
            words = shlex.split(command.replace("\\\n", ""), comments=True)
            if command.startswith("python -m launch"):
                launch.parser(words[3:]).parse_args(words[3:])
            elif words[0] == "bash" and elsewhere(command):
                assert (ROOT / words[1]).is_file()
            elif command.startswith("python -m benchmarks."):
                assert (ROOT / f"{words[2].replace('.', '/')}.py").is_file()


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_every_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("file", [*PAGES, ROOT / "builder/data/runbook.yaml"], ids=title)
def test_every_grpc_client_of_an_example_is_closed(file: Path) -> None:
    """A program that ends with an open one may hang: its finalizer waits for a thread of grpc's
    that the end of the interpreter has stopped."""
    made = [line.strip() for line in file.read_text().splitlines() if "ServerClient(" in line]
    assert [line for line in made if not line.startswith("with ")] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= README_BYTES


def test_the_builder_commands_show_what_they_are_for(machine: Machine) -> None:
    output = machine.run(one("README.md", "builder render", "builder explain").text)
    assert "speculative_config.num_nextn_predict_layers = 3" in output
    assert "files match" in output


def test_a_signed_bundle_says_by_whom(machine: Machine) -> None:
    prepare(machine.folder)
    commands = one("docs/handover.md", "builder sign").commands
    output = machine.run("\n".join(row for row in commands if elsewhere(row) is None))
    assert "signature: by us@example" in output


def test_old_versions_are_listed_and_refused(machine: Machine) -> None:
    assert "1.1.0: refused" in machine.run(one("docs/security.md", "builder advisories").text)


CONTAINERS = [row for page in PAGES for row in blocks(page, "bash") if "docker run" in row.text]


@pytest.mark.parametrize("block", CONTAINERS, ids=lambda block: block.page.stem)
def test_containers_start_the_engine_with_the_bundle(block: Block, machine: Machine) -> None:
    bundle = pipeline.render("deepseek-v3.2-nvfp4-gb200", machine.folder / "bundle").folder
    lines = machine.run(block.text).splitlines()
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


def test_scripts_start_the_engine_without_a_container(machine: Machine) -> None:
    pipeline.render("deepseek-v3.2-nvfp4-gb200", machine.folder / "bundle")
    block = one("docs/deployments.md", "bash bundle/trtllm_serve/serve.sh")
    lines = machine.run(block.text).splitlines()
    servers = [line.split()[0] for line in lines if not line.startswith("checkpoint")]
    assert servers == ["trtllm-serve", "tritonserver"]


def test_the_deployment_file_is_valid(
    tmp_path: Path, make_miniature: Callable[[str], Path]
) -> None:
    folder = shutil.copytree(make_miniature("nvidia/DeepSeek-V3.2-NVFP4"), tmp_path / "weights")
    (tmp_path / "mine.yaml").write_text(one("docs/deployments.md", "workload:", kind="yaml").text)
    planned = pipeline.plan(str(tmp_path / "mine.yaml"), [f"checkpoint={folder}"])
    assert planned.engine.options["kv_cache_config"]["free_gpu_memory_fraction"] == 0.75


@pytest.mark.parametrize("page", ["README.md", "docs/slurm.md"])
def test_the_site_profile_renders_jobs(page: str, machine: Machine) -> None:
    (machine.folder / "my-cluster.yaml").write_text(one(page, "partition:", kind="yaml").text)
    machine.run(one(page, "--site my-cluster.yaml").commands[0])
    script = machine.folder / "service/slurm/serve.sbatch"
    assert "#SBATCH --partition=batch" in script.read_text()


def test_the_error_example_is_what_the_builder_prints(builder: Run, tmp_path: Path) -> None:
    data = yaml.safe_load((deployment.PRESETS / "deepseek-v3.2-nvfp4-gb200.yaml").read_text())
    data["hardware"]["gpu"], data["workload"]["isl"] = "gb2000", -800
    lines = [f"{key}: {value!r}" for key, value in data.items()]
    (tmp_path / "deployment.yaml").write_text("\n".join(lines))
    done = builder("plan", "deployment.yaml")
    assert done.stderr and done.stderr in (ROOT / "docs/deployments.md").read_text()


def test_the_limits_on_the_page_are_those_that_plan_prints(builder: Run) -> None:
    done = builder("plan", "deepseek-v3.2-nvfp4-gb200")
    (limits,) = (part for part in done.stdout.split("\n\n") if part.startswith("LIMIT"))
    assert limits in (ROOT / "docs/deployments.md").read_text()


@pytest.mark.parametrize("preset", deployments.preset_rows(), ids=lambda row: row["name"])
def test_every_preset_is_in_the_table_with_its_published_figure(preset: dict[str, Any]) -> None:
    lines = (ROOT / "docs/presets.md").read_text().splitlines()
    (row,) = (line for line in lines if line.startswith(f"| `{preset['name']}`"))
    *_, release_cell, published, state, _ = (cell.strip() for cell in row.split("|"))
    assert release_cell == preset["release"]
    assert published.startswith(deployments.best_figure(preset["published"]))
    latencies = [figure.get("median_e2e_latency_ms") for figure in preset["published"]]
    assert all(f"{value / 1000:.1f} s" in published for value in latencies if value)
    warned = pipeline.plan(preset["name"]).plan.warnings
    unproven = any("no published configuration" in warning.message for warning in warned)
    assert ("assumed" in state) == (unproven and preset["name"] != "llama-tiny")


@pytest.mark.parametrize("page", ["README.md", "docs/linting.md"])
def test_check_finds_what_the_pages_say(page: str, machine: Machine) -> None:
    output = machine.run(one(page, "cat > config.yaml").text)
    for text in ("did you mean free_gpu_memory_fraction", "moe_expert_parallel_size"):
        assert text in output
    assert "write num_nextn_predict_layers: 3" in output
    assert ("drift" in output) == (page == "docs/linting.md")
