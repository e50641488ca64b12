"""Dockerfiles are judged by what they run, on the image that they are built on."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.lint import CheckOptions, Report, check
from builder.lint.read import shell
from builder.lint.read.commands import in_script
from tests.tables import by_table

BASE = "FROM nvcr.io/nvidia/tensorrt-llm/release:1.1.0\n"


def checked(folder: Path, text: str, name: str = "Dockerfile") -> Report:
    (folder / name).write_text(text)
    return check([folder], CheckOptions(), lambda path, overrides: [])


def words(text: str) -> list[list[str]]:
    found = in_script(shell.read_script(text), "tensorrt_llm")
    return [[word.text for word in line.words] for line in found]


@by_table
def test_every_form_of_an_instruction_is_a_command(instructions: str) -> None:
    assert words(shell.dockerfile_as_shell(BASE + instructions)) == [
        ["openai/gpt-oss-120b", "--tp_size", "4"]
    ]


def test_two_lists_are_two_commands_if_the_first_is_no_entry_point() -> None:
    text = shell.dockerfile_as_shell('CMD ["trtllm-serve", "a"]\nCMD ["trtllm-serve", "b"]')
    assert words(text) == [["a"], ["b"]]


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.gb200", "serve.dockerfile"])
def test_a_dockerfile_in_a_folder_is_judged_at_its_lines(tmp_path: Path, name: str) -> None:
    text = (
        f"{BASE}ENV TLLM_LOG_LEVL=INFO\n"
        'ENTRYPOINT ["trtllm-serve"]\nCMD ["openai/gpt-oss-120b", "--tp_siz", "4"]\n'
    )
    report = checked(tmp_path, text, name)
    found = {(row.rule, *row.location) for row in report.findings}
    assert {("misspelt-variable", 2, 5), ("unknown-flag", 4, 29)} <= found
    [row] = report.files
    assert (row.kind, row.releases) == ("Dockerfile", ("1.1.0",))


def test_the_option_file_that_is_copied_in_is_judged_for_its_command(tmp_path: Path) -> None:
    (tmp_path / "options.yaml").write_text("max_seq_len: 200000\n")
    flag = "--extra_llm_api_options"
    command = f"trtllm-serve openai/gpt-oss-120b {flag} /etc/options.yaml"
    text = f"{BASE}COPY options.yaml /etc/\nCMD {command}\n"
    report = checked(tmp_path, text)
    assert "seq-len-beyond-model" in {row.rule for row in report.findings}


def test_an_option_file_that_stands_in_the_dockerfile_is_judged_at_its_lines(
    tmp_path: Path,
) -> None:
    command = "CMD trtllm-serve openai/gpt-oss-120b --extra_llm_api_options /etc/options.yaml"
    options = "max_num_tokens: 64\nmax_bach_size: 8\n"
    text = f"{BASE}COPY <<EOF /etc/options.yaml\n{options}EOF\n{command}\n"
    report = checked(tmp_path, text)
    assert ("unknown-key", 4, 1) in {(row.rule, *row.location) for row in report.findings}


def test_a_file_of_that_name_which_builds_nothing_is_none(tmp_path: Path) -> None:
    report = checked(tmp_path, "cuda_graph_config: {batch_sizes: [1, 2]}\n", "Dockerfile.yaml")
    assert [row.kind for row in report.files] == ["engine options"]
