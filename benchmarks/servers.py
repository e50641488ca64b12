"""The servers that are compared: started on free ports of loopback, and stopped.

All run the same stand-in engine in their own process, and all Triton servers the same options.
"""

from __future__ import annotations

import http.client
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from builder.diagnostics import Diagnostic
from builder.errors import NotReady
from launch import engine, serving, triton
from launch.process import Interrupts, ServerProcess
from supervisor.ports import free_ports

FOLDER = Path(__file__).parent
TOOLKIT = FOLDER.parent
MODEL = TOOLKIT / "model_repository" / "tensorrt_llm"
MODEL_YAML = """\
triton_config: {max_batch_size: 0, decoupled: true}
model: stand-in
backend: pytorch
"""
# As rendered for the model; the baselines get it too.
THREAD_POOL_SIZE = 4
HOST = "127.0.0.1"
START_TIMEOUT_S = 60.0
STOP_GRACE_S = 30.0
PROBE_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Variant:
    """How a server is asked. `cumulative`: every message holds all text so far."""

    protocol: Literal["grpc", "sse"]
    cumulative: bool
    ready_path: str


VARIANTS = {
    "model": Variant("grpc", False, "/v2/health/ready"),
    "per_token": Variant("grpc", True, "/v2/health/ready"),
    "floor": Variant("grpc", False, "/v2/health/ready"),
    "sse": Variant("sse", False, "/health"),
    "peer": Variant("grpc", True, "/v2/health/ready"),
}


@dataclass(frozen=True, slots=True)
class Running:
    """`address` is HOST:PORT of the protocol that clients speak."""

    variant: Variant
    address: str
    server: ServerProcess

    def cpu_s(self) -> float:
        """CPU time so far of all processes of the server's group."""
        ticks = sum(int(fields[11]) + int(fields[12]) for _, fields in self._processes())
        return ticks / os.sysconf("SC_CLK_TCK")

    def pids(self) -> list[int]:
        return [pid for pid, _ in self._processes()]

    def _processes(self) -> Iterator[tuple[int, list[str]]]:
        """Those of the server's group, each with the fields of `/proc/PID/stat` after its name."""
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                # After the name, which may hold spaces: state, parent, group; then the times.
                fields = stat.read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[2]) == self.server.pid:
                yield int(stat.parent.name), fields


def programs(folder: Path) -> list[Path]:
    """Folders for the front of the path: a Python with the stand-in engine, and Triton."""
    found = triton.prepare(folder / "tritonserver")
    packages = [FOLDER / "engine", TOOLKIT]
    overlay = engine.python_overlay(folder / "python", packages, Path)
    return [overlay, *([found] if found else [])]


@contextmanager
def start(
    name: str,
    folder: Path,
    path: Sequence[Path],
    interrupts: Interrupts,
    peer: Path | None = None,
) -> Iterator[Running]:
    """A server of this variant that is ready. Its log and files are in `folder`, which is new.

    `peer` is the folder of the model that the variant of this name serves.

    Raises `NotReady` with the end of its log.
    """
    folder.mkdir()
    variant = VARIANTS[name]
    http_port, grpc_port, metrics_port = free_ports(3, HOST)
    region = f"benchmark-{uuid.uuid4().hex}"
    if variant.protocol == "grpc":
        repository = _repository(name, peer, folder / "repository")
        argv = _triton(repository, http_port, grpc_port, metrics_port, region)
    else:
        argv = ["python3", "-m", "benchmarks.sse", str(http_port)]
    environment = {**os.environ, "PATH": os.pathsep.join([*map(str, path), os.environ["PATH"]])}
    with ExitStack() as stack:
        stack.callback(triton.sweep_shared_memory, region)
        server = stack.enter_context(
            ServerProcess(
                ["env", *argv],  # which looks for the command on the path given here
                cwd=folder,
                environment=environment,
                log=folder / "server.log",
                grace_s=STOP_GRACE_S,
                interrupts=interrupts,
            )
        )
        state, elapsed_s = serving.wait_until_ready(
            server,
            lambda: _answers(http_port, variant.ready_path),
            START_TIMEOUT_S,
            serving.Progress(name),
        )
        if state != "ready":
            what = f"{state.replace('_', ' ')} after {elapsed_s:.1f} s"
            raise NotReady(Diagnostic(name, "\n".join([what, *server.last_lines()])))
        port = grpc_port if variant.protocol == "grpc" else http_port
        yield Running(variant, f"{HOST}:{port}", server)


def _repository(name: str, peer: Path | None, folder: Path) -> Path:
    """A model repository with the toolkit's model or the peer's as it is, or with a baseline."""
    model = folder / "tensorrt_llm"
    if (FOLDER / name / "model.py").is_file():
        (model / "1").mkdir(parents=True)
        shutil.copy(FOLDER / name / "config.pbtxt", model)
        shutil.copy(FOLDER / name / "model.py", model / "1")
    else:
        unwanted = shutil.ignore_patterns("__pycache__", "model.yaml")
        shutil.copytree(peer if name == "peer" and peer else MODEL, model, ignore=unwanted)
        (model / "1").chmod(0o700)  # that of the peer may be read-only
        (model / "1" / "model.yaml").write_text(MODEL_YAML)
    return folder


def _triton(
    repository: Path, http_port: int, grpc_port: int, metrics_port: int, region: str
) -> list[str]:
    return [
        "tritonserver",
        *("--model-repository", str(repository)),
        *("--http-address", HOST, "--http-port", str(http_port)),
        *("--grpc-address", HOST, "--grpc-port", str(grpc_port)),
        *("--metrics-address", HOST, "--metrics-port", str(metrics_port)),
        *("--backend-config", f"python,shm-region-prefix-name={region}"),
        *("--backend-config", f"python,thread-pool-size={THREAD_POOL_SIZE}"),
    ]


def _answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=PROBE_TIMEOUT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
