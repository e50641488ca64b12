"""Failures made here, on real servers and a real Slurm, and what `launch diagnose` says of them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from launch import engine, triton
from launch.cli.main import main
from supervisor.ports import free_ports
from tests import watcher
from tests.conftest import ROOT
from tests.slurm.cluster import Cluster, why_not
from tests.slurm.conftest import MakeCluster

REFERENCE = ROOT / "launch" / "reference"
LIMIT_S = 240.0
CONFIG = """\
name: "{name}"
backend: "{backend}"
max_batch_size: 0
input [{{name: "a", data_type: TYPE_INT32, dims: [1]}}]
output [{{name: "b", data_type: TYPE_INT32, dims: [1]}}]
instance_group [{{kind: {kind}}}]
"""
PYTHON = "import {module}\nclass TritonPythonModel:\n    def initialize(self, args): {body}\n"


@dataclass(frozen=True)
class Place:
    """A folder with a checkpoint, and the programs on the path."""

    folder: Path
    programs: Sequence[Path]

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    @property
    def environment(self) -> dict[str, str]:
        path = [*map(str, self.programs), os.environ["PATH"]]
        return {**os.environ, "PATH": os.pathsep.join(path), "HF_HUB_OFFLINE": "1"}

    def begin(self, *argv: str | Path) -> subprocess.Popen[bytes]:
        with (self.folder / "server.log").open("ab") as log:
            return subprocess.Popen(
                list(map(str, argv)),
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
            )

    def run(self, *argv: str | Path) -> None:
        """Until the program ends, as it has to."""
        with self.begin(*argv) as server:
            try:
                assert server.wait(LIMIT_S) != 0
            finally:
                server.kill()

    def serve(self, *options: str | Path, before: Sequence[str] = (), port: int = 0) -> None:
        address = ("--host", "127.0.0.1", "--port", str(port or free_ports(1)[0]))
        self.run(*before, "trtllm-serve", self.checkpoint, *address, *options)

    def change(self, name: str, text: str) -> None:
        (self.checkpoint / name).write_text(text)

    def model(self, module: str = "json", body: str = "pass", **changes: str) -> Path:
        """A Triton repository with one Python model."""
        folder = self.folder / "repository" / "llm"
        (folder / "1").mkdir(parents=True)
        values = {"name": "llm", "backend": "python", "kind": "KIND_CPU", **changes}
        (folder / "config.pbtxt").write_text(CONFIG.format(**values))
        (folder / "1" / "model.py").write_text(PYTHON.format(module=module, body=body))
        return folder

    def triton(self, **ports: int) -> list[str]:
        given = dict(zip(("http", "grpc", "metrics"), free_ports(3), strict=True)) | ports
        words = ["tritonserver", f"--model-repository={self.folder / 'repository'}"]
        words.append(f"--backend-config=python,shm-region-prefix-name={watcher.unique('test')}")
        for name, port in given.items():
            words += [f"--{name}-address=127.0.0.1", f"--{name}-port={port}"]
        return words

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + 60
        while text not in (self.folder / "server.log").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("programs")
    found = triton.prepare(folder / "tritonserver")
    overlay = engine.python_overlay(folder / "python", [REFERENCE], Path)
    return [overlay, REFERENCE / "bin", *([found] if found else [])]


def an_unknown_option(place: Place) -> None:
    (place.folder / "options.yaml").write_text("enable_chunked_prefil: true\n")
    place.serve("--extra_llm_api_options", place.folder / "options.yaml")


def broken_options(place: Place) -> None:
    (place.folder / "options.yaml").write_text("kv_cache_config: {a: 1\nb: 2\n")
    place.serve("--extra_llm_api_options", place.folder / "options.yaml")


def no_options(place: Place) -> None:
    place.serve("--extra_llm_api_options", "nowhere.yaml")


def an_unknown_argument(place: Place) -> None:
    place.serve("--max_batch", "4")


def a_cut_checkpoint(place: Place) -> None:
    os.truncate(place.checkpoint / "model.safetensors", 300_000)
    place.serve()


def a_broken_config(place: Place) -> None:
    place.change("config.json", '{"architectures": ["LlamaForCausalLM"')
    place.serve()


def a_wrong_tokenizer(place: Place) -> None:
    text = (place.checkpoint / "tokenizer.json").read_text()
    place.change(
        "tokenizer.json", re.sub(r'"type": *"(BPE|WordLevel|Unigram)"', '"type": "Odd"', text)
    )
    place.serve()


def a_missing_folder(place: Place) -> None:
    shutil.rmtree(place.checkpoint)
    place.serve()


def a_forbidden_folder(place: Place) -> None:
    (place.checkpoint / "config.json").chmod(0)
    rights = "-dac_override,-dac_read_search"
    place.serve(before=["setpriv", f"--bounding-set={rights}", f"--inh-caps={rights}"])


def a_taken_port(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        place.serve(port=other.getsockname()[1])


def a_model_of_the_hub(place: Place) -> None:
    place.run("python3", "-c", "from huggingface_hub import snapshot_download as get; get('a/b')")


def a_full_disk(place: Place) -> None:
    program = "open('/dev/full', 'wb', 0).write(open('model.safetensors', 'rb').read())"
    place.run("env", "-C", place.checkpoint, "python3", "-c", program)


def too_large_a_file(place: Place) -> None:
    program = "open('copy', 'wb').write(bytes(9_000_000))"
    place.run("prlimit", "--fsize=1000000", "python3", "-c", program)


def a_missing_gpu(place: Place) -> None:
    place.model(kind="KIND_GPU")
    place.run(*place.triton())


def an_unknown_backend(place: Place) -> None:
    place.model(backend="tensorrtllm")
    place.run(*place.triton())


def a_missing_package(place: Place) -> None:
    place.model(module="unheard_of")
    place.run(*place.triton())


def a_refusal_of_the_model(place: Place) -> None:
    place.model(body="raise ValueError('model.yaml: max_batch_size: is no number')")
    place.run(*place.triton())


def a_broken_pbtxt(place: Place) -> None:
    (place.model() / "config.pbtxt").write_text('name: "llm"\nmax_batch_size: many\n')
    place.run(*place.triton())


def an_unfilled_template(place: Place) -> None:
    (place.model() / "config.pbtxt").write_text('name: "llm"\nmax_batch_size: ${size}\n')
    place.run(*place.triton())


def a_missing_version(place: Place) -> None:
    shutil.rmtree(place.model() / "1")
    place.run(*place.triton())


def no_repository(place: Place) -> None:
    place.run(*place.triton())


def a_taken_port_of_triton(place: Place) -> None:
    place.model()
    with socket.create_server(("127.0.0.1", 0)) as other:
        place.run(*place.triton(http=other.getsockname()[1]))


def too_little_memory(place: Place) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 31, 1 << 31))"
    place.model(body=f"{limit}; bytearray(1 << 32)")
    place.run(*place.triton())


def a_killed_stub(place: Place) -> None:
    place.model(body="import os; os.kill(os.getpid(), 9)")
    place.run(*place.triton())


def a_hanging_load(place: Place) -> None:
    place.model(body="import time; time.sleep(600)")
    server = place.begin(*place.triton())
    place.wait_for("loading: llm:1")
    state = "process_alive: true\nlast_write: 2026-09-14T12:00:00\nnow: 2026-09-14T13:00:00\n"
    (place.folder / "server.state.yaml").write_text(state)
    server.send_signal(signal.SIGKILL)
    server.wait()
    for entry in Path("/proc").glob("[0-9]*"):  # its stub outlives it
        with suppress(OSError):
            if str(place.folder).encode() in (entry / "cmdline").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)


Make = Callable[[Place], None]
# What is done, the name of the cause (or none), the phase.
SERVERS: list[tuple[Make, str, str]] = [
    (an_unknown_option, "reference-engine-refuses", "setup"),
    (broken_options, "reference-engine-refuses", "setup"),
    (an_unknown_argument, "vllm-option-unknown", "setup"),
    (a_cut_checkpoint, "reference-engine-refuses", "setup"),
    (a_broken_config, "reference-engine-refuses", "setup"),
    (a_wrong_tokenizer, "tokenizers-package-too-old", "setup"),
    (a_forbidden_folder, "reference-engine-refuses", "setup"),
    (a_taken_port, "address-is-taken", "setup"),
    (a_model_of_the_hub, "offline-and-not-in-the-cache", "setup"),
    (a_full_disk, "disk-is-full", "setup"),
    (too_large_a_file, "file-is-too-large", "setup"),
    (a_missing_gpu, "triton-sees-no-gpu", "load"),
    (an_unknown_backend, "triton-backend-missing", "load"),
    (a_missing_package, "triton-stub-python-lacks-a-package", "load"),
    (a_refusal_of_the_model, "triton-model-initialize-failed", "load"),
    (a_broken_pbtxt, "triton-config-not-valid", "load"),
    (an_unfilled_template, "triton-config-has-a-placeholder", "load"),
    (a_missing_version, "triton-model-without-a-version", "load"),
    (no_repository, "triton-repository-missing", "load"),
    (a_taken_port_of_triton, "triton-port-taken", "setup"),
    (too_little_memory, "host-memory-refused", "load"),
    (a_killed_stub, "triton-stub-died-silently", "load"),
    (a_hanging_load, "", "load"),
]


def diagnosed(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    main(["diagnose", "--json", str(folder)])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(
    ("make", "cause", "phase"), SERVERS, ids=lambda value: getattr(value, "__name__", None)
)
def test_a_server_that_fails(
    make: Make,
    cause: str,
    phase: str,
    programs: list[Path],
    make_miniature: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = Place(tmp_path, programs)
    shutil.copytree(make_miniature("llama-tiny"), place.checkpoint)
    make(place)
    shutil.rmtree(place.checkpoint, ignore_errors=True)
    found = diagnosed(tmp_path, capsys)
    ids = [row["id"] for row in found["causes"]]
    assert (ids[:1], found["phase"]) == ([cause] if cause else [], phase), (
        place.folder / "server.log"
    ).read_text()
    assert ids or found["verdict"] == "stalled" or found["first_error"]


# Options of a batch job, what it runs, and the cause.
JOBS = [
    ("--partition=nowhere", "true", "slurm-partition-not-valid"),
    ("--gres=gpu:9", "true", "slurm-no-such-nodes"),
    ("--gres=tpu:1", "true", "slurm-gres-not-valid"),
    ("--time=1", "srun sleep 300", "job-reached-its-time-limit"),
    ("--ntasks=1", "trtllm-serve-missing model", "program-not-in-path"),
    ("--ntasks=1", "srun --mpi=odd true", "slurm-mpi-type-missing"),
    ("--ntasks=1", "srun /nowhere/serve.sh", "slurm-program-missing"),
    ("--ntasks=1", "srun /etc/hostname", "slurm-program-not-executable"),
    ("--ntasks=1", "srun --chdir=/nowhere pwd; srun false", "slurm-working-folder-missing"),
    ("--ntasks=1", "srun -n 99 true", "slurm-node-count-not-valid"),
]


@pytest.fixture(scope="module")
def cluster(make_cluster: MakeCluster) -> Iterator[Cluster]:
    if why := why_not():
        pytest.skip(why)
    yield make_cluster(nodes=2)


@pytest.mark.slurm
@pytest.mark.parametrize(("option", "script", "cause"), JOBS)
def test_a_job_that_fails(
    option: str,
    script: str,
    cause: str,
    cluster: Cluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = tmp_path / "job.log"
    done = cluster.run(
        "sbatch",
        "--wait",
        f"--output={log}",
        option,
        f"--wrap={script}",
        check=False,
        cwd=tmp_path,
    )
    if not log.exists():
        log.write_text(done.stdout + done.stderr)
    found = diagnosed(tmp_path, capsys)
    assert ([row["id"] for row in found["causes"]][:1], found["phase"]) == ([cause], "cluster"), (
        log.read_text()
    )


@pytest.mark.slurm
def test_a_node_that_dies(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "job.log"
    options = ["--parsable", "--nodes=2", "--no-requeue", f"--output={log}"]
    job = cluster.run(
        "sbatch", *options, "--wrap=srun bash -c 'echo begun; sleep 300'", cwd=tmp_path
    ).stdout.strip()
    deadline = time.monotonic() + LIMIT_S
    while not log.exists() or log.read_text().count("begun") < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    cluster.kill_node("node2")
    while job in cluster.run("squeue", "-h", "-o", "%i", check=False).stdout.split():
        assert time.monotonic() < deadline + LIMIT_S
        time.sleep(0.2)
    found = diagnosed(tmp_path, capsys)
    assert [row["id"] for row in found["causes"]][:1] == ["slurm-node-failed"]
