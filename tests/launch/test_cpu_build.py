"""The CPU build of an engine: found where it is whole, and started in place of the engine."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from builder import pipeline
from builder.errors import BadInput, NotReady
from builder.facts import checkpoint, engines
from builder.facts.architecture.tensors import head_dim
from builder.facts.engines import CpuBuild, Engine
from launch import cpu_build, engine, rehearsal
from launch import target as targets

BUILD = CpuBuild(
    package="some-cpu",
    release="1.0",
    unfit=(),
    unneeded=(),
    disk_gb=1.0,
    program=("some", "serve"),
    runs_as="some.server",
    model_flag="--model",
    options=("--tensor-parallel-size=1", "--eager"),
    environment=("A=b=c",),
    architectures=("LlamaForCausalLM",),
    head_sizes=(32, 64),
    unjudged=("cannot be judged",),
    source="this test",
)


@pytest.fixture
def some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An engine whose CPU build is set up: its Python says how it was started."""
    monkeypatch.setenv(cpu_build.ENVIRONMENTS, str(tmp_path))
    python = tmp_path / "some" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)
    (tmp_path / "some" / cpu_build.COMPLETE).write_text(BUILD.requirement)
    return replace(engines.default(), name="some", title="Some", module="some", cpu_build=BUILD)


def test_an_environment_counts_when_it_is_whole_and_of_the_release(
    some: Engine, tmp_path: Path
) -> None:
    assert cpu_build.folder(some) == tmp_path / "some"
    assert cpu_build.folder(replace(some, cpu_build=replace(BUILD, release="2.0"))) is None
    (tmp_path / "some" / cpu_build.COMPLETE).unlink()
    assert cpu_build.folder(some) is None
    assert cpu_build.folder(replace(some, cpu_build=None)) is None


@pytest.mark.parametrize(
    ("given", "started"),
    [
        (["serve", "a model", "--config", "c"], "--model a model --config c"),
        (["serve", "--config", "c"], "--config c"),
        (["serve"], ""),
    ],
)
def test_its_command_starts_the_build_and_its_options_come_last(
    some: Engine, tmp_path: Path, given: list[str], started: str
) -> None:
    program = cpu_build.write_program(some, tmp_path / "run bin") / "some"
    done = subprocess.run([program, *given], capture_output=True, text=True, check=True)
    options = "--tensor-parallel-size=1 --eager"
    assert done.stdout.split() == f"-m some.server {started} {options}".split()


def test_its_miniature_is_plain_and_has_heads_that_it_has_kernels_for(tmp_path: Path) -> None:
    quantized = checkpoint.gather("llama-3.3-70b-instruct-fp8")
    cpu_build.write_miniature(BUILD, quantized, tmp_path)
    made = checkpoint.gather(str(tmp_path))
    assert made.quantization.quant_algo is None
    assert head_dim(made.text_config) == 32
    assert cpu_build.serves(BUILD, made)
    assert not cpu_build.serves(BUILD, checkpoint.gather("deepseek-v3.2"))


def test_without_a_build_a_rehearsal_takes_the_reference_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cpu_build.ENVIRONMENTS, str(tmp_path))
    name = engines.default().name
    assert engine.choose_without_gpu("auto", name) == engine.REFERENCE
    with pytest.raises(NotReady, match="has no CPU build here; use --engine reference"):
        engine.choose_without_gpu(name, name)


def test_the_engine_of_another_bundle_is_refused() -> None:
    with pytest.raises(BadInput, match="--engine: is other, and the bundle is for TensorRT-LLM"):
        engine.choose("other", engines.default().name)


@pytest.mark.parametrize(
    ("words", "said"),
    [("its class cannot be judged", "cannot judge options for"), (None, "takes the options for")],
)
def test_options_that_it_cannot_judge_are_not_refused(
    words: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = pipeline.render("qwen3.5-397b-nvfp4-b300-vllm", tmp_path / "bundle", [])
    target = targets.read_one(bundle, None)
    record = replace(engines.load(target.engine), cpu_build=BUILD)
    monkeypatch.setattr(engines, "load", lambda name: record)
    monkeypatch.setattr(cpu_build, "refusal", lambda *_: words)
    heard: list[str] = []
    assert rehearsal.engine_for(target, record.name, heard.append) == engine.REFERENCE
    assert said in heard[0]
