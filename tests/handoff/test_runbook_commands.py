"""Every command of a rendered runbook, typed as it is printed, with a real server behind it.

Triton has a scripted engine, trtllm-serve is the reference engine's, and the smoke suite has a few
of its checks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from builder import bundle as bundles
from builder.bundle import Bundle
from launch import rehearsal
from launch.target import FILES, Target
from tests.handoff import runbook
from tests.handoff.conftest import Generations, free_port
from tests.handoff.runbook import Block
from tests.handoff.shell import Shell
from tests.launch.slurm.conftest import with_service
from tests.monitoring.conftest import Start, watch
from tests.monitoring.programs import program
from tests.slurm.cluster import Cluster, Shape, why_not

STOP = "node-stop"
PORTS = {"triton": ("http_port", "grpc_port", "metrics_port"), "trtllm_serve": ("port",)}
SITE = """\
name: test
gpu_request: gres
container: {{runtime: none}}
mpi: pmi2
exclusive: false
cpus_per_node: 4
python: {python}
state_folder: {state}
"""


def blocks(bundle: Bundle) -> list[Block]:
    return runbook.read(bundle.folder / "handoff" / "runbook.md")


def typed(shell: Shell, commands: Sequence[Block]) -> str:
    """What they print, every one after those before it."""
    outputs = []
    for block in commands:
        outputs.append(output := shell.type(block.script))
        assert block.prints is None or block.prints in output, f"{block}\n{output}"
    return "".join(outputs)


def in_order(commands: Sequence[Block]) -> list[Block]:
    """As they are printed. Alerts are about a server that runs: theirs come before it is stopped,
    and what several of them look at is typed once."""
    alerts = list({b.script: b for b in commands if b.chapter == "alerts"}.values())
    others = [block for block in commands if block.chapter != "alerts"]
    last = next(index for index, block in enumerate(others) if block.place[-1] == STOP)
    return [*others[:last], *alerts, *others[last:]]


def with_secrets(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Options of a Triton with a key and mutual TLS, and the variables that its clients set."""
    (folder := folder / "secrets").mkdir()
    environment = dict.fromkeys(FILES, "") | {"SERVE_HOST": "127.0.0.1"}
    bare = Target("triton", folder, (), {}, environment, "http", None, 1, 1, None, (), "1.2.1", "")
    files = rehearsal.with_dummy_credentials(bare, folder)
    key, certificate, server_key, client_ca = (files.environment[name] for name in FILES)
    tls = {"certificate": certificate, "key": server_key, "client_ca": client_ca}
    clients = files.client_files
    own = {
        "TLS_CA": clients.tls_ca,
        "TLS_CERTIFICATE": clients.tls_certificate,
        "TLS_KEY": clients.tls_key,
    }
    return {"key_file": key, "grpc_tls": tls}, {name: str(path) for name, path in own.items()}


@pytest.mark.parametrize("server", PORTS)
def test_every_command_on_a_node_does_what_the_runbook_says(
    server: str,
    generations: Generations,
    signed: Callable[[Bundle], None],
    with_engine: Mapping[str, str],
    with_script: Mapping[str, str],
    start: Start,
    tmp_path: Path,
) -> None:
    """The first part, about the bundle itself, is the same for both servers and is typed once."""
    secrets, own = with_secrets(tmp_path) if server == "triton" else ({}, {})
    ports = {name: free_port() for name in PORTS[server]}
    bundle = generations({server: {**ports, **secrets}, "monitoring": {}})
    signed(bundle)
    prometheus = watch(start, bundle, free_port(), tmp_path / "metrics")
    installed = with_script if server == "triton" else with_engine
    path = f"{Path(program('promtool')).parent}:{installed['PATH']}"
    environment = {**installed, **own, "PATH": path, "PROMETHEUS_URL": prometheus.url}
    commands = [b for b in blocks(bundle) if b.chapter != "verify" or server == "triton"]
    with Shell(tmp_path, environment) as shell:
        typed(shell, in_order(commands))
    for file in tmp_path.glob("*/server.pid"):
        assert not Path(f"/proc/{file.read_text().strip()}").exists()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    if reason := why_not():
        pytest.skip(f"no Slurm cluster on this machine: {reason}")
    with Cluster(tmp_path / "c", Shape(nodes=2)) as running:
        yield running


def admitted_quickly(folder: Path, spare: Path) -> None:
    """By the supervisor's own question: the suite that admits a service has tests of its own."""
    whole = folder.rename(spare / f"whole-{folder.name}")
    with_service(bundles.read(whole), folder, smoke=None)


@pytest.mark.slurm
def test_every_command_under_slurm_does_what_the_runbook_says(
    generations: Generations, with_engine: Mapping[str, str], cluster: Cluster, tmp_path: Path
) -> None:
    site = tmp_path / "site.yaml"
    site.write_text(SITE.format(python=sys.executable, state=tmp_path / "state"))
    slurm = {"site": str(site), "drain_s": 3}
    bundle = generations({"trtllm_serve": {"port": free_port()}, "slurm": slurm})
    for folder in sorted(tmp_path.glob(f"{bundle.folder.name}*")):
        admitted_quickly(folder, tmp_path)
    path = f"{with_engine['PATH']}:{cluster.environment['PATH']}"
    environment = {**with_engine, **cluster.environment, "PATH": path, "SERVICE_FREE_PORTS": "1"}
    chapters = ("setup", "slurm")
    commands = [block for block in blocks(bundle) if block.chapter in chapters]
    assert {block.chapter for block in commands} == set(chapters)
    with Shell(tmp_path, environment) as shell:
        typed(shell, commands)
    cluster.wait_idle()
    runs = [json.loads(path.read_text()) for path in (tmp_path / "state").glob("*/jobs/*/run.json")]
    assert {run["outcome"] for run in runs} == {"stopped", "handed_over"}
