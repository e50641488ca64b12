"""A server says which engine it runs, and a rehearsal is known by that."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from builder.bundle import Bundle
from launch import target
from launch.bench import system_under_test
from launch.bench.system_under_test import SystemUnderTest
from launch.endpoint import Endpoint
from tests.launch.conftest import bundle as bundle
from tests.model_repository.conftest import Served

TRITON = Endpoint("triton", None, grpc="127.0.0.1:8001", model="tensorrt_llm")


@pytest.mark.parametrize(
    ("version", "used", "rehearsal"),
    [
        ("Triton 2.51.0, tensorrt_llm 1 is READY, TensorRT-LLM 1.2.1", "tensorrt_llm", False),
        ("Triton 2.51.0, tensorrt_llm 1 is READY, TensorRT-LLM 1.2.1+reference", "reference", True),
        ("Triton 2.51.0, tensorrt_llm 1 is READY", "unknown", False),
    ],
)
def test_the_engine_behind_triton_is_known_by_its_version(
    version: str, used: str, rehearsal: bool
) -> None:
    engine = SystemUnderTest(TRITON).described((version, None))["engine"]
    assert (engine["used"], engine["rehearsal"]) == (used, rehearsal)


def test_the_vocabulary_is_that_of_the_folder_that_is_served(
    bundle: Bundle, tmp_path: Path
) -> None:
    """Which may be a miniature of the bundle's model."""
    served = target.read(bundle, "triton")
    known = SystemUnderTest(TRITON, bundle, served)
    assert known.vocabulary_size("Triton 2.51.0") == 2048
    assert known.vocabulary_size("Triton 2.51.0, TensorRT-LLM 1.2.1") == 2048
    # A run that is not known here has a miniature of its own.
    assert known.vocabulary_size("Triton 2.51.0, TensorRT-LLM 1.2.1+reference") is None
    (tmp_path / "config.json").write_text('{"text_config": {"vocab_size": 512}}')
    ours = replace(known, run={"checkpoint": str(tmp_path)})
    assert ours.vocabulary_size("Triton 2.51.0, TensorRT-LLM 1.2.1+reference") == 512
    named = replace(known, target=served.on_checkpoints_of({"CHECKPOINT": str(tmp_path)}))
    assert named.vocabulary_size("Triton 2.51.0") == 512


def test_the_record_of_another_run_may_hold_anything(bundle: Bundle, tmp_path: Path) -> None:
    """Below the folder in which somebody measures."""
    for name, text in {"a": "", "b": "[]", "c": '{"bundle": 5}', "d": "[" * 100_000}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(text)
    (tmp_path / "e").mkdir()
    os.mkfifo(tmp_path / "e" / "run.json")
    assert system_under_test.running(bundle, {"http": 1}, tmp_path) is None
    ours = {"bundle": {"digest": bundle.digest}, "outcome": "ready", "ports": {"http": 1}}
    (tmp_path / "a" / "run.json").write_text(json.dumps(ours))
    assert system_under_test.running(bundle, {"http": 1}, tmp_path) == ours


def test_triton_tells_the_version_of_its_engine(served: Served) -> None:
    endpoint = replace(TRITON, grpc=served.client.grpc_url, metrics=served.metrics_url)
    version, _ = system_under_test.reported(endpoint)
    assert version.startswith("Triton 2.")
    assert version.endswith(", TensorRT-LLM 1.2.1+stub")


def test_a_server_without_metrics_does_not_tell_its_engine(served: Served) -> None:
    version, _ = system_under_test.reported(replace(TRITON, grpc=served.client.grpc_url))
    assert version.endswith("is READY")
