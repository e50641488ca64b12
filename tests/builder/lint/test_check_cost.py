"""What a check costs: neither its memory nor its time grows with more than the files themselves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.commands import write_many
from builder.lint.script_judging import MOST_COMMANDS
from tests.conftest import ROOT
from tests.security.attacks import survive

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
    write_many(many, 400)
    assert peak_mib(many) < peak_mib(few) + 8


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
            *("lint.python_api", "lint.python_writing", "lint.stream_editing"),
        )
    }
    assert not unneeded & set(done.stdout.split())


IMAGE = "nvcr.io/nvidia/tensorrt-llm/release:1.2.1"
LONG: Mapping[str, tuple[str, str]] = {
    "servers one after the other": ("serve.sh", "trtllm-serve m\n" * 3_000),
    "servers beside each other": ("serve.sh", "trtllm-serve m &\n" * 3_000),
    "containers": ("serve.sh", f"docker run {IMAGE} trtllm-serve m\n" * 1_000),
    "marks of templates that do not end": (
        "serve.sh",
        "trtllm-serve m\n" + "echo {% {#\n" * 25_000,
    ),
    "an expression with ways beyond number": (
        "serve.sh",
        "printf 'model: %s\\n' " + "a" * 64 + " > o.yaml\nsed -i -E 's/(a+)+b/x/' o.yaml\n"
        "trtllm-serve m --config o.yaml\n",
    ),
    "expressions that share long lines": (
        "serve.sh",
        "printf 'model: %s\\n' " + "a" * 2_000 + " > o.yaml\n"
        "sed -i 's/.*.*.*!/x/; s/a*a*a*a*b/x/' o.yaml\ntrtllm-serve m --config o.yaml\n",
    ),
    "edits that double a line": (
        "serve.sh",
        "echo 'model: a' > o.yaml\n"
        + "sed -i s/a/aa/g o.yaml\n" * 60
        + "trtllm-serve m --config o.yaml\n",
    ),
    "services with a release each": (
        "compose.yaml",
        "services:\n"
        + "".join(
            f"  s{n}: {{image: {IMAGE}, command: trtllm-serve m --tp_size 0}}\n"
            for n in range(3_000)
        ),
    ),
    "mounts with variables that do not end": (
        "compose.yaml",
        f"services:\n  a:\n    image: {IMAGE}\n    command: trtllm-serve m --config /c.yaml\n"
        + f"    volumes: ['{'${' * 25_000}']\n",
    ),
    "a mount of a name that no file can have": (
        "compose.yaml",
        f"services:\n  a:\n    image: {IMAGE}\n    command: trtllm-serve m --config /c.yaml\n"
        + f"    volumes: ['./{'x' * 300}.yaml:/c.yaml']\n",
    ),
    "selectors that are each almost a label": (
        "pods.yaml",
        "".join(
            f"kind: Pod\nmetadata: {{labels: {{app: trt-worker-{n:04}}}}}\n"
            "spec:\n  containers: [{image: i, command: [trtllm-serve, m]}]\n---\n"
            f"kind: Service\nspec: {{selector: {{app: trtx-worker-{n:04}}}}}\n---\n"
            for n in range(1_000)
        ),
    ),
    "here documents": ("serve.sh", "cat > o.txt <<EOF\na: 1\nEOF\n" * 30_000 + "trtllm-serve m\n"),
    "keys that a program sets one by one": (
        "write.py",
        "# tensorrt_llm==1.2.1\nimport yaml\nfrom tensorrt_llm import LLM\n"
        + "cfg = {'kv_cache_config': {}}\n"
        + "".join(f"cfg['kv_cache_config']['a{n}'] = {n}\n" for n in range(3_000))
        + "yaml.dump(cfg, open('extra_llm_api_options.yaml', 'w'))\n",
    ),
    "lists that double": (
        "serve.py",
        "from tensorrt_llm import LLM\nx0 = 1\n"
        + "".join(f"x{n + 1} = [x{n}, x{n}]\n" for n in range(60))
        + "LLM(model=x60)\n",
    ),
}


@pytest.mark.parametrize("name", LONG)
def test_time_does_not_grow_faster_than_the_file(name: str, tmp_path: Path) -> None:
    file, text = LONG[name]
    (tmp_path / file).write_text(text)
    survive("check", file, cwd=tmp_path, codes=(0, 2), lines=False)


def test_edits_that_are_left_out_for_their_time_are_said(tmp_path: Path) -> None:
    for name, (file, text) in LONG.items():
        if "sed -i" in text:
            (tmp_path / file).write_text(text)
            done = survive("check", file, cwd=tmp_path, codes=(0, 2), lines=False)
            assert "sed writes o.yaml" in done.stdout, name


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
    assert all("which the server of line 1 has" in row for row in taken)
