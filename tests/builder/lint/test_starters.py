"""An option file is judged as the server reads it that a file beside it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.lint import CheckOptions, Report, check

OPTIONS = "max_seq_len: 200000\n"
IMAGE = "nvcr.io/nvidia/tensorrt-llm/release:1.1.0"
SHORT = "tensorrt-llm/release:1.1.0"
COMMAND = "trtllm-serve openai/gpt-oss-120b --tp_size 4 --config"
COMPOSE = f"""
services:
  trt:
    image: {IMAGE}
    command: {COMMAND} /mounted/options.yaml
    deploy: {{resources: {{reservations: {{devices: [{{count: 2, capabilities: [gpu]}}]}}}}}}
"""


def checked(folder: Path, **files: str) -> Report:
    for name, text in files.items():
        stem, _, suffix = name.rpartition("_")
        (folder / f"{stem}.{suffix}").write_text(text)
    return check([folder], CheckOptions(), lambda path, overrides: [])


def rules(report: Report, name: str) -> set[str]:
    return {row.rule for row in report.findings if Path(row.where).name == name}


def test_the_command_says_the_release_and_the_model(tmp_path: Path) -> None:
    script = f"#!/bin/bash\ndocker run {IMAGE} {COMMAND} options.yaml\n"
    report = checked(tmp_path, options_yaml=OPTIONS, run_sh=script)
    [options] = [row for row in report.files if row.file.endswith("options.yaml")]
    assert options.releases == ("1.1.0",)
    assert options.named_by == (f"{tmp_path / 'run.sh'}, line 2: {SHORT}",)
    assert "seq-len-beyond-model" in rules(report, "options.yaml")


def test_a_file_that_is_mounted_elsewhere_lies_beside_the_manifest(tmp_path: Path) -> None:
    report = checked(tmp_path, options_yaml=OPTIONS, compose_yaml=COMPOSE)
    assert "seq-len-beyond-model" in rules(report, "options.yaml")
    assert "gpus-below-ranks" in rules(report, "compose.yaml")


def test_the_sizes_of_the_file_count_for_the_gpus_of_its_server(tmp_path: Path) -> None:
    compose = COMPOSE.replace("count: 2", "count: 4")
    enough = checked(tmp_path, options_yaml=OPTIONS, compose_yaml=compose)
    assert "gpus-below-ranks" not in rules(enough, "compose.yaml")
    two_stages = checked(tmp_path, options_yaml=OPTIONS + "pipeline_parallel_size: 2\n")
    assert "gpus-below-ranks" in rules(two_stages, "compose.yaml")


def test_what_the_file_itself_names_goes_before(tmp_path: Path) -> None:
    script = f"#!/bin/bash\ndocker run {IMAGE} {COMMAND} options.yaml\n"
    own = f"# tensorrt_llm==1.2.1\n{OPTIONS}"
    report = checked(tmp_path, options_yaml=own, run_sh=script)
    [options] = [row for row in report.files if row.file.endswith("options.yaml")]
    assert options.releases == ("1.2.1",)


@pytest.mark.parametrize("other", ["release:1.2.1 trtllm-serve openai/gpt-oss-120b"])
def test_commands_that_disagree_say_nothing(tmp_path: Path, other: str) -> None:
    first = f"docker run {IMAGE} {COMMAND} options.yaml"
    second = f"docker run nvcr.io/nvidia/tensorrt-llm/{other} --config options.yaml"
    report = checked(tmp_path, options_yaml=OPTIONS, one_sh=first, two_sh=second)
    [options] = [row for row in report.files if row.file.endswith("options.yaml")]
    assert options.assumed


def test_a_command_elsewhere_starts_another_file(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    script = f"docker run {IMAGE} {COMMAND} options.yaml"
    (tmp_path / "other" / "run.sh").write_text(script)
    report = checked(tmp_path, options_yaml=OPTIONS)
    [options] = [row for row in report.files if row.file.endswith("options.yaml")]
    assert options.assumed and not rules(report, "options.yaml") & {"seq-len-beyond-model"}
