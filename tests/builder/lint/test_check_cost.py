"""What a check costs: neither its memory nor its time grows with more than the files themselves."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks.commands import write_many
from builder import lint
from builder.diagnostics import Location
from builder.lint.model import Statement
from builder.lint.read import shell
from builder.lint.script_check import MOST_COMMANDS
from tests.conftest import ROOT
from tests.security.attacks import measured, survive

PEAK = "import resource, sys; from builder.cli.main import main; main(['check', sys.argv[1]]); "
PEAK += "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"


def peak_mib(folder: Path) -> float:
    """The most memory that a check of a folder took."""
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stderr.split()[-1]) / 1024


def test_memory_does_not_grow_with_the_number_of_files(tmp_path: Path) -> None:
    few, many = tmp_path / "few", tmp_path / "many"
    write_many(few, 20)
    write_many(many, 200)
    assert peak_mib(many) < peak_mib(few) + 4


def test_a_short_option_file_is_checked_without_what_it_does_not_need() -> None:
    """Imports are most of the time of one file: facts of models, bundles, images, programs."""
    code = (
        "import sys; from builder import lint; "
        "print(*(name for name in sys.modules if name.startswith('builder.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    unneeded = {
        f"builder.{name}"
        for name in (
            *("facts.checkpoint", "facts.published_results", "facts.images", "bundle"),
            *("lint.read.python", "lint.read.containers", "lint.read.shell"),
            *("lint.script_check", "lint.document_check", "lint.rules.jobs"),
        )
    }
    assert not unneeded & set(done.stdout.split())


JOB = """#!/bin/bash
#SBATCH --nodes=1
#SBATCH --ntasks=8
#SBATCH --gpus-per-node=8
# image: nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc11
MODEL=nvidia/DeepSeek-R1-FP4
cat > options.yaml <<EOF
tensor_parallel_size: 8
EOF
srun --ntasks=8 bash -c "trtllm-llmapi-launch trtllm-serve $MODEL --config options.yaml"
vllm serve $MODEL --tensor-parallel-size 8
"""
DOCKERFILE = """FROM nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc11
RUN echo 'tensor_parallel_size: 8' > /options.yaml
CMD ["trtllm-serve", "nvidia/DeepSeek-R1-FP4", "--config", "/options.yaml"]
"""
COMPOSE = """services:
  a:
    image: nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc11
    command:
      - bash
      - -c
      - |
        echo 'max_batch_size: 8' > /options.yaml
        trtllm-serve nvidia/DeepSeek-R1-FP4 --config /options.yaml
  b:
    image: vllm/vllm-openai:v0.11.0
    command: bash -c "export A=1; vllm serve nvidia/DeepSeek-R1-FP4 --tensor-parallel-size 8"
"""


@pytest.mark.parametrize(
    ("file", "text"), [("serve.sbatch", JOB), ("Dockerfile", DOCKERFILE), ("compose.yaml", COMPOSE)]
)
def test_no_text_of_a_shell_is_read_twice(
    file: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the number of releases, engines and rules that look at it."""
    reads: Counter[tuple[str, Location]] = Counter()
    read = shell._simple_commands

    def counted(script: str, start: Location) -> Iterator[Statement]:
        reads[script, start] += 1
        return read(script, start)

    monkeypatch.setattr(shell, "_simple_commands", counted)
    shell._read.cache_clear()
    (tmp_path / file).write_text(text)
    options = lint.CheckOptions(releases=("1.2.1", "1.1.0"))
    report = lint.check([tmp_path / file], options, lambda path, words: ())
    assert report.files[0].judged.commands
    assert reads
    assert set(reads.values()) == {1}, reads.most_common(3)


IMAGE = "nvcr.io/nvidia/tensorrt-llm/release"
RELEASES = ("1.0.0", "1.1.0", "1.2.1", *(f"1.3.0rc{n}" for n in range(30)))


class Growing(NamedTuple):
    """A file that can be made of any number of parts, and the number that it is checked with."""

    file: str
    text: Callable[[int], str]
    parts: int


def compose(service: Callable[[int], str]) -> Callable[[int], str]:
    """A Compose file of so many services."""
    return lambda parts: "services:\n" + "".join(f"  s{n}: {service(n)}\n" for n in range(parts))


def _mount(volume: Callable[[int], str]) -> Callable[[int], str]:
    return lambda parts: (
        f"services:\n  a:\n    image: {IMAGE}:1.2.1\n"
        f"    command: trtllm-serve m --config /c.yaml\n    volumes: ['{volume(parts)}']\n"
    )


LONG: Mapping[str, Growing] = {
    "servers one after the other": Growing("serve.sh", lambda n: "trtllm-serve m\n" * n, 1_000),
    "servers beside each other": Growing("serve.sh", lambda n: "trtllm-serve m &\n" * n, 600),
    "containers": Growing(
        "serve.sh", lambda n: f"docker run {IMAGE}:1.2.1 trtllm-serve m\n" * n, 500
    ),
    "marks of templates that do not end": Growing(
        "serve.sh", lambda n: "trtllm-serve m\n" + "echo {% {#\n" * n, 10_000
    ),
    "services with a release each": Growing(
        "compose.yaml",
        compose(
            lambda n: f"{{image: {IMAGE}:{RELEASES[n % 33]}, command: trtllm-serve m --tp_size 0}}"
        ),
        200,
    ),
    "services with a patch of one release each": Growing(
        "compose.yaml",
        compose(lambda n: f"{{image: {IMAGE}:1.2.1.post{n}, command: trtllm-serve m --tp_size 0}}"),
        200,
    ),
    "services of one release": Growing(
        "compose.yaml",
        compose(lambda _: f"{{image: {IMAGE}:1.2.1, command: trtllm-serve m --tp_size 0}}"),
        500,
    ),
    "services of a release between two tables": Growing(
        "compose.yaml",
        compose(lambda _: f"{{image: {IMAGE}:1.2.0, command: trtllm-serve m --no_such_flag 1}}"),
        400,
    ),
    "services of vLLM": Growing(
        "compose.yaml",
        compose(
            lambda _: "{image: 'vllm/vllm-openai:v0.10.2', command: --model m --max-num-seqs 0}"
        ),
        400,
    ),
    "mounts with variables that do not end": Growing(
        "compose.yaml", _mount(lambda parts: "${" * parts), 25_000
    ),
    "a mount of a name that no file can have": Growing(
        "compose.yaml", _mount(lambda parts: f"./{'x' * parts}.yaml:/c.yaml"), 300
    ),
    "selectors that are each almost a label": Growing(
        "pods.yaml",
        lambda parts: "".join(
            f"kind: Pod\nmetadata: {{labels: {{app: trt-worker-{n:04}}}}}\n"
            "spec:\n  containers: [{image: i, command: [trtllm-serve, m]}]\n---\n"
            f"kind: Service\nspec: {{selector: {{app: trtx-worker-{n:04}}}}}\n---\n"
            for n in range(parts)
        ),
        500,
    ),
    "here documents": Growing(
        "serve.sh", lambda n: "cat > o.txt <<EOF\na: 1\nEOF\n" * n + "trtllm-serve m\n", 1_500
    ),
    "keys that a program sets one by one": Growing(
        "write.py",
        lambda parts: (
            "# tensorrt_llm==1.2.1\nimport yaml\nfrom tensorrt_llm import LLM\n"
            + "cfg = {'kv_cache_config': {}}\n"
            + "".join(f"cfg['kv_cache_config']['a{n}'] = {n}\n" for n in range(parts))
            + "yaml.dump(cfg, open('extra_llm_api_options.yaml', 'w'))\n"
        ),
        400,
    ),
    "lists that double": Growing(
        "serve.py",
        lambda parts: (
            "from tensorrt_llm import LLM\nx0 = 1\n"
            + "".join(f"x{n + 1} = [x{n}, x{n}]\n" for n in range(parts))
            + f"LLM(model=x{parts})\n"
        ),
        60,
    ),
}

SHARE = 4  # the long file has so many times the parts of the short one
# Of the short file's time: a cost that grows with the square would take the 16th part there.
MOST_GROWTH = 8
LEAST_S = 0.3  # which a check of any file may take, on a busy machine
HANGS_S = 60.0


@pytest.mark.parametrize("name", LONG)
def test_time_does_not_grow_faster_than_the_file(name: str, tmp_path: Path) -> None:
    """Both times are of one machine at nearly one moment, so that neither its speed nor its other
    work counts."""
    file, text, parts = LONG[name]
    seconds = []
    for number in (parts // SHARE, parts):
        (tmp_path / file).write_text(text(number))
        done = measured("check", file, cwd=tmp_path, codes=(0, 2), lines=False, most_s=HANGS_S)
        seconds.append(done.seconds)
    short, long = seconds
    assert long < MOST_GROWTH * max(short, LEAST_S / SHARE), seconds


def test_of_very_many_commands_the_rest_is_said_not_to_be_judged(tmp_path: Path) -> None:
    text = "trtllm-serve m --tp_size 0\n" * (MOST_COMMANDS + 7)
    (tmp_path / "serve.sh").write_text(text)
    done = survive("check", "serve.sh", cwd=tmp_path, codes=(2,), lines=False)
    assert "7 more server commands" in done.stdout


def test_servers_want_the_port_of_the_first_that_runs(tmp_path: Path) -> None:
    text = "trtllm-serve m &\n" * 3 + "wait\ntrtllm-serve m\n"
    (tmp_path / "serve.sh").write_text(text)
    done = survive("check", "serve.sh", cwd=tmp_path, codes=(2,), lines=False)
    taken = [row for row in done.stdout.splitlines() if "[port-taken]" in row]
    assert [row.split(":")[1] for row in taken] == ["2", "3"]
    assert all("which the server of line 1 uses" in row for row in taken)
