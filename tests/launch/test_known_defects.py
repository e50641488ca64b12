"""Known defects before a start and beside a failure, held against the machine's packages."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from builder.bundle import Bundle
from launch import known_defects
from launch.cli.main import main

PAIR = "nvidia-ml-py-by-value"
SEGFAULT = "[TensorRT-LLM] TensorRT LLM version: 1.2.1\nSegmentation fault (core dumped)\n"


@pytest.mark.parametrize(
    ("installed", "said"),
    [
        ({}, "(holds only if nvidia-ml-py >= 13.610)"),
        ({"tensorrt-llm": "1.2.1", "nvidia-ml-py": "13.610.43"}, "by value; install"),
        ({"tensorrt-llm": "1.2.1", "nvidia-ml-py": "12.575.51"}, None),
        ({"nvidia-ml-py": "12.575.51"}, "(holds only if nvidia-ml-py >= 13.610)"),
    ],
)
def test_a_start_knows_the_packages_of_its_engine(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], said: str | None
) -> None:
    rows = [SimpleNamespace(name=name, version=version) for name, version in installed.items()]
    monkeypatch.setattr(known_defects, "distributions", lambda: rows)
    state = known_defects.machine("tensorrt_llm")
    lines = known_defects.lines(known_defects.of_bundle(bundle.folder, state))
    shown = [text for text in lines if PAIR in text]
    assert len(shown) == (said is not None)
    assert all(said in text for text in shown if said)


def test_a_driver_is_read_from_the_kernel_s_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.126.09  Release Build\n"
    (tmp_path / "version").write_text(text)
    monkeypatch.setattr(known_defects, "_DRIVER", tmp_path / "version")
    assert known_defects.machine("tensorrt_llm")["driver"] == "580.126.09"


def test_a_bundle_that_cannot_be_planned_again_has_no_known_defects(tmp_path: Path) -> None:
    assert known_defects.of_bundle(tmp_path, {}) == []


def test_a_failure_lists_the_defects_that_its_state_confirms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.log").write_text(SEGFAULT)
    state = "pip: {tensorrt-llm: 1.2.1, nvidia-ml-py: 13.610.43}\n"
    (tmp_path / "a.state.yaml").write_text(state)
    main(["diagnose", "--json", str(tmp_path / "a.log")])
    found = json.loads(capsys.readouterr().out)
    assert [row["id"] for row in found["known_defects"]] == [PAIR]
    main(["diagnose", str(tmp_path / "a.log")])
    assert f"known defect {PAIR}: 1.2.1 ends" in capsys.readouterr().out


def test_a_healthy_server_has_no_known_defects_to_look_at(
    bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.log").write_text("INFO:     Application startup complete.\n")
    main(["diagnose", "--json", "--bundle", str(bundle.folder), str(tmp_path / "a.log")])
    assert json.loads(capsys.readouterr().out)["known_defects"] == []
