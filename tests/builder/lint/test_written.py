"""Option files that scripts write: what is literal is judged, what is a variable is said."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

from tests.builder.lint.test_check_files import checked, findings
from tests.builder.lint.test_public_forms import POD, errors
from tests.conftest import Run
from tests.tables import tables

TABLES = tables(Path(__file__).with_suffix(".yaml"))

SERVE = 'trtllm-serve "$MODEL" --tp_size "$TP" --extra_llm_api_options "$CONFIG"\n'

# How a script writes a misspelt option, and the line, the column and the path of it.
WAYS = TABLES["WAYS"]


# What makes the file that a server reads out of the one that a script writes, or brings another.
MAKERS = TABLES["MAKERS"]
WRITTEN = "cat > /tmp/base.yaml <<EOF\nmax_batch_size: 64\nEOF\n"
STARTED = "trtllm-serve model --tp_size 1 --config /tmp/final.yaml"


@pytest.mark.parametrize("way", WAYS)
def test_a_misspelt_option_is_found_however_a_script_writes_it(
    way: str, builder: Run, tmp_path: Path
) -> None:
    text, line, column, path = WAYS[way]
    report = of_script(builder, tmp_path, text + SERVE)
    (row,) = errors(report["findings"])
    assert (row["line"], row["column"], row["path"]) == (line, column, path)
    assert row["rule"] == "unknown-key" and row["fix"].startswith("did you mean ")


OPTIONS = '{"max_num_tokens": 64, "tensor_parallel_size": 4, "%s": %s}'
WRONG, RIGHT = OPTIONS % ("max_bach_size", 8), OPTIONS % ("max_batch_size", 8)
DUMPED = 'with open("{0}.yaml", "w") as f:\n    yaml.dump({1}, f)\n'

# How a program writes options, and the lines and the files of the misspelt ones.
PROGRAMS = TABLES["PROGRAMS"]


@pytest.mark.parametrize("way", PROGRAMS)
def test_of_all_files_that_a_program_writes_the_misspelt_option_is_found(
    way: str, builder: Run, tmp_path: Path
) -> None:
    text, places = PROGRAMS[way]
    (tmp_path / "f.py").write_text(f"import yaml\n{text}")
    rows = checked(builder("check", "f.py", "--release", "1.2.1", "--json"))["findings"]
    assert [[row["line"], row["within"]] for row in rows] == places


# Each would take hours by a pattern that can read a text in many ways.
HARD = {
    "f.py": f'import os\ns = "{"x=" + "a=a" * 30} " * 8\ns = "{"x=a=a=a=a=a=a=a " * 30}"\n'
    'os.system(["trtllm-serve", "m"])\n',
    "f.sh": f'#!/bin/bash\nN="$(({"$abcdefgh" * 30}("\ntrtllm-serve m --tp_size 1\n',
}


@pytest.mark.parametrize("name", HARD)
def test_no_text_takes_long_to_be_read(name: str, builder: Run, tmp_path: Path) -> None:
    (tmp_path / name).write_text(HARD[name])
    done = builder("check", name)
    assert done.returncode == 0


VARIABLE = TABLES["VARIABLE"]


def test_a_variable_has_no_type_yet_and_is_said(builder: Run, tmp_path: Path) -> None:
    report = of_script(builder, tmp_path, VARIABLE + SERVE, "--gpu", "gb200")
    assert errors(report["findings"]) == []
    (file,) = report["files"]
    assert (file["sections"], file["commands"]) == (1, 1)
    assert file["variables"] == [
        "enable_attention_dp",
        "max_batch_size",
        "moe_config.backend",
        "speculative_config.decoding_type",
        "speculative_config.max_draft_len",
        "kv_cache_config.free_gpu_memory_fraction",
    ]
    assert "values set at run time were not checked" in builder("check", "run.sh").stdout


def test_what_stands_between_quotes_is_no_variable(builder: Run, tmp_path: Path) -> None:
    text = "cat > options.yaml <<'EOF'\nmax_batch_size: $N\nEOF\n"
    (row,) = errors(of_script(builder, tmp_path, text + SERVE)["findings"])
    assert (row["line"], row["path"], row["rule"]) == (2, "max_batch_size", "value-type")
    later = f"{text}envsubst < options.yaml > filled.yaml\n{SERVE}"
    assert errors(of_script(builder, tmp_path, later)["findings"]) == []


def test_options_of_two_branches_are_not_given_twice(builder: Run, tmp_path: Path) -> None:
    text = (
        "echo 'max_batch_size: 8' > c.yaml\nif a; then echo 'max_num_tokens: 64' >> c.yaml\n"
        "else echo 'max_num_tokens: 128' >> c.yaml; fi\n"
    )
    assert errors(of_script(builder, tmp_path, text + SERVE)["findings"]) == []


def test_a_file_that_is_written_under_a_variables_name_belongs_to_its_command(
    builder: Run, tmp_path: Path
) -> None:
    text = "CONFIG=/tmp/c.yaml\ncat > $CONFIG <<EOF\ntensor_parallel_size: 4\nEOF\n"
    for name in ("/tmp/c.yaml", "$CONFIG", '"${CONFIG}"'):
        line = f"trtllm-serve model --tp_size 8 --extra_llm_api_options {name}\n"
        rows = of_script(builder, tmp_path, text + line)["findings"]
        assert [(row["line"], row["rule"]) for row in rows] == [(5, "flag-value-lost")], name


def test_a_script_that_a_script_writes_is_read(builder: Run, tmp_path: Path) -> None:
    text = "cat > serve.sh <<'EOF'\n#!/bin/bash\ntrtllm-serve model --tp_sise 8\nEOF\n"
    (row,) = errors(of_script(builder, tmp_path, text)["findings"])
    assert (row["line"], row["rule"]) == (3, "unknown-flag")


def test_files_that_hold_no_options_are_nobodys_business(builder: Run, tmp_path: Path) -> None:
    text = (
        "echo 'done: yes' > report.yaml\nprintf 'a: %s\\n' 1 > x.yaml\n"
        "python3 - <<EOF\nimport json\njson.dump({'a': 1}, open('x', 'w'))\nEOF\n"
    )
    report = of_script(builder, tmp_path, text + SERVE)
    assert errors(report["findings"]) == [] and report["files"][0]["sections"] == 0


def of_script(builder: Run, folder: Path, text: str, *more: str) -> dict[str, Any]:
    (folder / "run.sh").write_text(text)
    return checked(builder("check", "run.sh", "--release", "1.2.1", *more, "--json"))


@pytest.mark.parametrize("maker", MAKERS)
def test_a_file_that_is_made_of_another_is_not_missing(
    maker: str, builder: Run, tmp_path: Path
) -> None:
    script = f"{WRITTEN}{maker}\n{STARTED}\n"
    pod = (
        f"{POD}        command: [bash, -c]\n        args:\n        - |\n{indent(script, ' ' * 10)}"
    )
    for name, text in (("serve.sh", script), ("pod.yaml", pod)):
        assert errors(findings(builder, tmp_path, text, name=name)) == []


def test_a_file_of_a_volume_is_not_that_of_a_config_map_which_the_pod_has_not(
    builder: Run, tmp_path: Path
) -> None:
    maps = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: other}\ndata:\n  base.yaml: |\n"
    claim = (
        f"{POD}        command: [sh, -c, {STARTED}]\n"
        "        volumeMounts: [{name: work, mountPath: /tmp}]\n"
        "      volumes: [{name: work, persistentVolumeClaim: {claimName: work}}]\n"
        f"---\n{maps}    max_batch_size: 64\n"
    )
    assert errors(findings(builder, tmp_path, claim, name="pod.yaml")) == []
    mounted = claim.replace("persistentVolumeClaim: {claimName: work}", "configMap: {name: other}")
    [found] = errors(findings(builder, tmp_path, mounted, name="pod.yaml"))
    assert found["rule"] == "missing-option-file"
    initial = (
        "      initContainers:\n      - {name: fill, image: one,"
        " command: [sh, -c, envsubst < /from/base.yaml > /tmp/final.yaml]}\n---\n"
    )
    filled = mounted.replace("---\n", initial, 1)
    assert errors(findings(builder, tmp_path, filled, name="pod.yaml")) == []


def test_a_file_that_nothing_makes_is_missing_where_only_options_are_meant(
    builder: Run, tmp_path: Path
) -> None:
    options = f"{WRITTEN}{STARTED}\n"
    [found] = errors(findings(builder, tmp_path, options, name="serve.sh"))
    assert (found["rule"], found["line"]) == ("missing-option-file", 4)
    assert "base.yaml" in found["fix"]
    other = f"cat > prometheus.yaml <<EOF\nscrape_configs: []\nEOF\n{STARTED}\n"
    assert errors(findings(builder, tmp_path, other, name="serve.sh")) == []


def test_values_of_a_file_that_is_edited_later_are_unknown(builder: Run, tmp_path: Path) -> None:
    """What `sed -i` makes of a file is not followed: keys are checked, values are not."""
    text = "cat > /tmp/o.yaml <<EOF\nmax_batch_size: TODO\nmax_num_token: 8\nEOF\n"
    edit = "sed -i s/TODO/8/ /tmp/o.yaml\n"
    report = of_script(builder, tmp_path, f"{text}{edit}trtllm-serve m --config /tmp/o.yaml\n")
    assert [row["path"] for row in errors(report["findings"])] == ["max_num_token"]
    assert "line 5: sed writes /tmp/o.yaml" in report["files"][0]["not_read"]
