"""Forms in which people publish configurations: each is read for what it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.builder.lint.test_check_files import DISAGGREGATED, checked, edited, findings
from tests.conftest import Run
from tests.tables import by_table, tables

TABLES = tables(Path(__file__).with_suffix(".yaml"))

AUTODEPLOY = TABLES["AUTODEPLOY"]

SERVER = """\
cat > ad.yaml <<'EOF'
compile_backend: torch-cudagraph
max_batch_size: 64
EOF
trtllm-serve model --backend _autodeploy --extra_llm_api_options ad.yaml
"""

POD = TABLES["POD"]

EXEC_FORM = TABLES["EXEC_FORM"]

SHELL_FORM = TABLES["SHELL_FORM"]


def errors(rows: list[Any]) -> list[Any]:
    return [row for row in rows if row["severity"] == "error"]


def test_a_memory_fraction_may_stand_beside_the_servers_of_a_disaggregated_file(
    builder: Run, tmp_path: Path
) -> None:
    """The server passes it to the function that starts a worker, which has a parameter for it."""
    top = f"free_gpu_memory_fraction: 0.2\n{DISAGGREGATED}"
    assert errors(findings(builder, tmp_path, top)) == []
    inside = edited(DISAGGREGATED, "  max_batch_size: 32", "  free_gpu_memory_fraction: 0.2")
    assert errors(findings(builder, tmp_path, inside)) == []
    (row,) = errors(findings(builder, tmp_path, edited(top, "0.2", "20")))
    assert (row["line"], row["path"], row["rule"]) == (1, "free_gpu_memory_fraction", "value-range")


def test_a_memory_fraction_that_differs_from_the_one_at_the_top_is_refused(
    builder: Run, tmp_path: Path
) -> None:
    text = edited(DISAGGREGATED, "  max_batch_size: 32", "  free_gpu_memory_fraction: 0.3")
    (row,) = errors(findings(builder, tmp_path, f"free_gpu_memory_fraction: 0.2\n{text}"))
    assert row["path"] == "generation_servers.free_gpu_memory_fraction"
    assert row["rule"] == "conflicting-values"


def test_a_memory_fraction_is_no_option_of_an_option_file(builder: Run, tmp_path: Path) -> None:
    text = "max_batch_size: 8\nfree_gpu_memory_fraction: 0.2\n"
    (row,) = errors(findings(builder, tmp_path, text))
    assert row["rule"] == "unknown-key"


def test_autodeploy_options_are_a_kind_of_their_own(builder: Run, tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(AUTODEPLOY)
    report = checked(builder("check", "f.yaml", "--json"))
    assert report["files"][0]["kind"] == "AutoDeploy options"
    (row,) = report["findings"]
    assert (row["line"], row["rule"], row["severity"]) == (1, "autodeploy-backend", "warning")
    assert "--backend _autodeploy" in row["fix"]


def test_shared_options_of_an_autodeploy_file_are_judged(builder: Run, tmp_path: Path) -> None:
    (row,) = errors(findings(builder, tmp_path, edited(AUTODEPLOY, "dtype", "dtyp")))
    assert (row["path"], row["rule"]) == ("kv_cache_config.dtyp", "unknown-key")
    (row,) = errors(findings(builder, tmp_path, edited(AUTODEPLOY, "runtime: t", "runtime: x")))
    assert (row["path"], row["rule"]) == ("runtime", "unknown-value")


DEFAULTS = TABLES["DEFAULTS"]


@pytest.mark.parametrize("line", DEFAULTS)
def test_autodeploy_takes_the_default_alone_of_what_it_refuses(
    line: str, builder: Run, tmp_path: Path
) -> None:
    rows = errors(findings(builder, tmp_path, f"{AUTODEPLOY}world_size: 8\n{line}\n"))
    assert [row["path"] for row in rows] == DEFAULTS[line]


def test_a_server_without_that_backend_refuses_autodeploy_options(
    builder: Run, tmp_path: Path
) -> None:
    rows = errors(findings(builder, tmp_path, AUTODEPLOY, "--release", "1.0.0"))
    assert {row["rule"] for row in rows} == {"unknown-key"}


def test_one_option_of_autodeploy_makes_no_autodeploy_file(builder: Run, tmp_path: Path) -> None:
    (row,) = errors(findings(builder, tmp_path, "max_batch_size: 8\nworld_size: 8\n"))
    assert (row["path"], row["rule"]) == ("world_size", "unknown-key")


def test_a_script_says_which_backend_takes_its_options(builder: Run, tmp_path: Path) -> None:
    assert findings(builder, tmp_path, SERVER, name="f.sh") == []
    other = edited(SERVER, "_autodeploy", "pytorch")
    (row,) = findings(builder, tmp_path, other, name="f.sh")
    assert (row["line"], row["rule"], row["severity"]) == (2, "autodeploy-backend", "error")


FORMER = TABLES["FORMER"]


@pytest.mark.parametrize("text", FORMER)
def test_an_option_of_former_releases_is_named_with_its_place_now(
    text: str, builder: Run, tmp_path: Path
) -> None:
    """Alone in its file, too: it is what makes the file one of engine options."""
    name = "1.2.1" if text.startswith("build_config") else "1.0.0"
    (row,) = errors(findings(builder, tmp_path, f"{text}\n", "--release", name))
    assert row["rule"] == "unknown-key"
    assert FORMER[text] in row["fix"]


def test_a_flag_of_the_server_in_an_option_file_is_named_as_one(
    builder: Run, tmp_path: Path
) -> None:
    text = "max_batch_size: 8\nhost: 0.0.0.0\n"
    (row,) = errors(findings(builder, tmp_path, text))
    assert row["fix"] == "this is a flag of the server; give --host on its command line"


def test_options_that_only_a_later_release_has_are_engine_options(
    builder: Run, tmp_path: Path
) -> None:
    text = "mm_encoder_only: true\nencode_only: false\n"
    rows = findings(builder, tmp_path, text, "--release", "1.0.0")
    assert {row["rule"] for row in rows} == {"unknown-key"}
    assert "it came with release" in rows[0]["fix"]


@pytest.mark.parametrize("text", [EXEC_FORM, SHELL_FORM])
def test_the_server_command_of_a_container_is_checked(
    text: str, builder: Run, tmp_path: Path
) -> None:
    (tmp_path / "f.yaml").write_text(text)
    report = checked(builder("check", "f.yaml", "--json"))
    assert (report["files"][0]["kind"], report["findings"]) == ("Kubernetes manifest", [])
    wrong = edited(text, "--max_batch_size", "--max_bach_size")
    line = next(n for n, row in enumerate(wrong.splitlines(), 1) if "--max_bach_size" in row)
    (row,) = errors(findings(builder, tmp_path, wrong))
    assert (row["line"], row["rule"]) == (line, "unknown-flag")
    assert row["fix"].startswith("did you mean --max_batch_size?")


def test_an_option_file_that_a_container_writes_is_checked(builder: Run, tmp_path: Path) -> None:
    text = edited(SHELL_FORM, "max_num_tokens", "max_num_token")
    (row,) = errors(findings(builder, tmp_path, text))
    assert (row["line"], row["column"]) == (14, 11)
    assert row["path"] == "max_num_token"
    assert row["within"].endswith("containers.0.args.0: /tmp/options.yaml")


def test_a_container_command_of_another_program_is_nothing_to_check(
    builder: Run, tmp_path: Path
) -> None:
    text = edited(EXEC_FORM, "[trtllm-serve]", "[sleep]")
    (tmp_path / "f.yaml").write_text(text)
    report = checked(builder("check", "f.yaml", "--json"))
    assert report["files"][0]["kind"] == "Kubernetes manifest without engine options"


def test_the_server_started_as_a_module_is_a_server_command(builder: Run, tmp_path: Path) -> None:
    text = "python3 -m tensorrt_llm.commands.serve serve model --tp_sise 2\n"
    (row,) = findings(builder, tmp_path, text, name="f.sh")
    assert (row["rule"], row["fix"].split("?")[0]) == ("unknown-flag", "did you mean --tp_size")


def test_a_script_that_starts_no_server_is_no_error(builder: Run, tmp_path: Path) -> None:
    (row,) = findings(builder, tmp_path, "#!/bin/sh\nsleep 1\n", name="f.sh")
    assert (row["rule"], row["severity"]) == ("unknown-kind", "warning")


WORKERS = TABLES["WORKERS"]

RECIPE_2 = TABLES["RECIPE_2"]

SERVICE = TABLES["SERVICE"]


@by_table
def test_workers_recipes_and_services_of_other_tools_are_judged(
    builder: Run, tmp_path: Path, text: str, old: str, new: str, line: str | None, says: str
) -> None:
    (tmp_path / "f.yaml").write_text(text if line is None else edited(text, old, new))
    document = checked(builder("check", "f.yaml", "--json"))
    (file,) = document["files"]
    assert file["sections"] or file["commands"]
    rows = [row for row in document["findings"] if row["rule"] != "vulnerable-version"]
    if line is None:
        assert rows == []
        return
    lines = (tmp_path / "f.yaml").read_text().splitlines()
    assert any(
        line in lines[row["line"] - 1] and says in f"{row['message']} {row['fix']}" for row in rows
    ), rows


MAPS = TABLES["MAPS"]
SIDE = """\
    {side}:
      componentType: worker
      subComponentType: {side}
      resources: {{limits: {{gpu: "{gpus}"}}}}
      extraPodSpec:
        mainContainer:
          image: nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:1.3.1
          command: [python3, -m, dynamo.trtllm]
          args: [--model-path, one/model, --extra-engine-args, /configs/config.yaml]
          volumeMounts: [{{name: options, mountPath: /configs}}]
        volumes: [{{name: options, configMap: {{name: of-{side}}}}}]
"""


def test_of_files_of_one_name_each_worker_has_that_of_its_own_config_map(
    builder: Run, tmp_path: Path
) -> None:
    text = MAPS + SIDE.format(side="prefill", gpus=1) + SIDE.format(side="decode", gpus=2)
    rows = findings(builder, tmp_path, text)
    assert {row["rule"] for row in rows} <= {"vulnerable-version"}
    assert "cuda_graph_config: null" in text
    text = text.replace("cuda_graph_config: null", "cuda_graph_config: {max_batch_size: 8}")
    text = text.replace('gpu: "2"', 'gpu: "1"')
    rows = findings(builder, tmp_path, text)
    places = {row["rule"]: text.splitlines()[row["line"] - 1].strip() for row in rows}
    assert places["prefill-graphs"] == "cuda_graph_config: {max_batch_size: 8}"
    assert 'gpu: "1"' in places["gpus-below-ranks"]


SUITE = TABLES["SUITE"]


def test_the_entries_of_a_suite_have_keys_that_are_none_of_the_servers(
    builder: Run, tmp_path: Path
) -> None:
    assert findings(builder, tmp_path, SUITE.format(tokens=8192, world=4)) == []
    assert "not read: server_configs.1: configs/two.yaml" in builder("check", "f.yaml").stdout
    rows = findings(builder, tmp_path, SUITE.format(tokens="many", world="all"))
    assert [row["path"] for row in rows] == [
        "server_configs.0.max_num_tokens",
        "server_configs.1.world_size",
    ]


def test_names_of_a_sweep_stand_for_its_values(builder: Run, tmp_path: Path) -> None:
    swept = edited(RECIPE_2, "max_batch_size: 64", 'max_batch_size: "{batch}"')
    (row,) = findings(builder, tmp_path, swept)
    assert row["message"].startswith("is {batch}")
    assert findings(builder, tmp_path, f"{swept}sweep: {{batch: [32, 64]}}\n") == []


def test_the_coordinator_of_two_sides_has_no_model_of_its_own(builder: Run, tmp_path: Path) -> None:
    (tmp_path / "up.sh").write_text("#!/bin/sh\ntrtllm-serve disaggregated -c both.yaml\n")
    assert "is unknown here" not in builder("check", "up.sh").stdout
