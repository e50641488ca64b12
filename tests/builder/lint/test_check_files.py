"""`check` on files of every kind: each is recognised, and each fault has place, rule and remedy."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from builder import lint, pipeline
from builder.facts.release import known, load
from tests.conftest import ROOT, Run
from tests.tables import by_table, tables

TABLES = tables(Path(__file__).with_suffix(".yaml"))

ENGINE = TABLES["ENGINE"]

TRITON = TABLES["TRITON"]

DISAGGREGATED = TABLES["DISAGGREGATED"]

ROUTER = TABLES["ROUTER"]

RECIPE = TABLES["RECIPE"]

BENCHMARK = TABLES["BENCHMARK"]

SUITE = TABLES["SUITE"]

KUBERNETES = TABLES["KUBERNETES"]

DEPLOYMENT = TABLES["DEPLOYMENT"]

SCRIPT = TABLES["SCRIPT"]

KINDS = TABLES["KINDS"]


def checked(done: Any) -> dict[str, Any]:
    """The report of a run with `--json`."""
    assert done.stderr == ""
    document: dict[str, Any] = json.loads(done.stdout)
    worst = any(row["severity"] == "error" for row in document["findings"])
    assert done.returncode == (2 if worst else 0)
    return document


def findings(builder: Run, folder: Path, text: str, *more: str, name: str = "f.yaml") -> list[Any]:
    (folder / name).write_text(text)
    rows: list[Any] = checked(builder("check", name, "--json", *more))["findings"]
    return [row for row in rows if row["rule"] != "vulnerable-version"]


def edited(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_recognised_by_its_content_and_passes(
    kind: str, builder: Run, tmp_path: Path
) -> None:
    (tmp_path / "named-alike.txt").write_text(KINDS[kind])
    report = checked(builder("check", "named-alike.txt", "--json"))
    assert kind.endswith(report["files"][0]["kind"])
    assert [row for row in report["findings"] if row["severity"] == "error"] == []


def test_options_in_json_are_engine_options(builder: Run, tmp_path: Path) -> None:
    text = '{"tensor_parallel_size": 8,\n\t"max_batch_sise": 4}'
    (row,) = findings(builder, tmp_path, text, name="f.json")
    assert (row["line"], row["column"], row["path"]) == (2, 2, "max_batch_sise")


# Case: kind, what is changed in its file, and place, path, rule and remedy of what follows.
CASES = TABLES["CASES"]


@pytest.mark.parametrize("case", CASES)
def test_each_fault_has_its_place_rule_and_remedy(case: str, builder: Run, tmp_path: Path) -> None:
    kind, old, new, expected = CASES[case]
    rows = [
        row
        for row in findings(builder, tmp_path, edited(KINDS[kind], old, new))
        if row["severity"] == "error"
    ]
    found = [[row["line"], row["column"], row["path"], row["rule"]] for row in rows]
    assert found == [row[:4] for row in expected]
    for row, (*_, remedy) in zip(rows, expected, strict=True):
        assert row["fix"].startswith(remedy)
        assert row["file"] == "f.yaml"


def test_the_output_is_one_line_per_fault_and_says_what_was_checked(
    builder: Run, tmp_path: Path
) -> None:
    (tmp_path / "c.yaml").write_text(edited(ENGINE, "dtype: fp8", "dtyp: fp8"))
    done = builder("check", "c.yaml")
    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout.splitlines() == [
        "c.yaml:5:3: error[unknown-key] kv_cache_config.dtyp: unknown option in kv_cache_config; "
        "did you mean dtype?",
        "",
        "note: c.yaml names no engine release: 1.2.1, the newest stable one, is assumed; "
        "give --release if the server has another",
        "c.yaml: engine options, release 1.2.1, assumed: the newest stable one",
        "checked 1 file: 1 error, 0 warnings",
    ]


def test_all_faults_of_all_files_come_at_once_in_order(builder: Run, tmp_path: Path) -> None:
    text = edited(edited(ENGINE, "64", "sixty"), "dtype", "dtyp")
    for name in ("b.yaml", "a.yaml"):
        (tmp_path / name).write_text(text)
    rows = checked(builder("check", "b.yaml", "a.yaml", "--json"))["findings"]
    assert [(row["file"], row["line"]) for row in rows] == [
        ("a.yaml", 2),
        ("a.yaml", 5),
        ("b.yaml", 2),
        ("b.yaml", 5),
    ]


def test_a_file_that_is_meant_twice_is_checked_once(builder: Run, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.yaml").write_text(ENGINE)
    assert checked(builder("check", "sub/a.yaml", "sub", "--json"))["checked"] == 1


def test_json_findings_have_exactly_the_agreed_fields(builder: Run, tmp_path: Path) -> None:
    (row,) = findings(builder, tmp_path, edited(ENGINE, "dtype", "dtyp"))
    fields = ("file", "line", "column", "path", "rule", "severity", "message", "fix")
    assert tuple(row) == fields


def test_a_wrong_release_guess_is_named(builder: Run, tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text("max_batch_size: 8\nmoe_config: {backend: AUTO}\n")
    done = builder("check", "f.yaml")
    newer = [load(name) for name in known() if name.startswith(("1.3", "main"))]
    later = ", ".join(row.name for row in newer if not row.may_lack_options)
    assert f"note: f.yaml: no errors for release {later}; choose with" in done.stdout
    assert builder("check", "f.yaml", "--release", "main-00043967").returncode == 0


def test_what_a_later_release_takes_is_warned_of_where_the_release_is_a_guess(
    builder: Run, tmp_path: Path
) -> None:
    text = "max_bach_size: 8\nkv_cache_config: {use_kv_cache_manager_v2: true}\n"
    guessed = {row["path"]: row for row in findings(builder, tmp_path, text)}
    assert guessed["max_bach_size"]["severity"] == "error"
    later = guessed["kv_cache_config.use_kv_cache_manager_v2"]
    assert later["severity"] == "warning" and "1.2.1 is assumed" in later["message"]
    named = findings(builder, tmp_path, f"# tensorrt_llm==1.2.1\n{text}")
    assert [row["severity"] for row in named] == ["error", "error"]


def test_so_are_flags_that_a_later_server_takes(builder: Run, tmp_path: Path) -> None:
    text = "#!/bin/bash\n{}trtllm-serve some/model --grpc --trust_remot_code\n"
    new, wrong = findings(builder, tmp_path, text.format(""), name="f.sh")
    assert (new["severity"], wrong["severity"]) == ("warning", "error")
    assert "1.2.1 is assumed" in new["message"] and "1.3.0rc24" in new["fix"]
    named = findings(builder, tmp_path, text.format("# tensorrt_llm==1.2.1\n"), name="f.sh")
    assert [row["severity"] for row in named] == ["error", "error"]


def test_a_deployment_that_cannot_be_planned_is_no_wrong_guess(
    builder: Run, tmp_path: Path
) -> None:
    """Which release it is for, it says itself; no other one was planned for."""
    (tmp_path / "f.yaml").write_text(edited(DEPLOYMENT, "h100", "h1000").replace("1.2.1", "9.9.9"))
    done = builder("check", "f.yaml")
    assert done.returncode == 2 and "no errors for release" not in done.stdout


def test_a_model_configuration_is_of_no_release(builder: Run, tmp_path: Path) -> None:
    (tmp_path / "config.pbtxt").write_text('backend: "python"\nmax_batch_size: -4\n')
    for more in ([], ["--release", "1.0.0", "--release", "1.2.1"]):
        done = builder("check", "config.pbtxt", *more)
        assert done.stdout.splitlines() == [
            "config.pbtxt:2:17: error[value-range] max_batch_size: -4 is out of range; "
            "must be >= 0",
            "",
            "config.pbtxt: Triton config.pbtxt",
            "checked 1 file: 1 error, 0 warnings",
        ]


@by_table
def test_one_fault_is_reported_once(
    text: str, release: str, rule: str, builder: Run, tmp_path: Path
) -> None:
    (row,) = findings(builder, tmp_path, f"max_batch_size: 8\n{text}", "--release", release)
    assert row["rule"] == rule


def worker(builder: Run, role: str, *more: str) -> str:
    given = (f"role={role}", "targets=[trtllm_serve]", *more)
    options = [part for each in given for part in ("--set", each)]
    done = builder("render", "llama-tiny", *options, "-o", role)
    assert done.returncode == 0, done.stderr
    return role


def test_workers_of_two_bundles_that_cannot_talk_to_each_other_are_found(builder: Run) -> None:
    blocks = "engine_config.kv_cache_config.tokens_per_block"
    workers = worker(builder, "prefill"), worker(builder, "decode", f"{blocks}=64")
    rows = checked(builder("check", *workers, "--json"))["findings"]
    (row,) = (row for row in rows if row["rule"].startswith("disagg-"))
    assert (row["rule"], row["severity"]) == ("disagg-tokens-per-block", "error")
    assert (row["file"], row["path"]) == (
        "decode/trtllm_serve/config.yaml",
        "kv_cache_config.tokens_per_block",
    )
    assert row["line"] > 1
    assert row["message"].startswith("64, but the prefill worker has 32")
    assert "prefill/trtllm_serve/config.yaml" in row["message"]
    alone = checked(builder("check", "decode", "--json"))["findings"]
    assert not [row for row in alone if row["rule"].startswith("disagg-")]


def test_workers_of_two_bundles_that_agree_are_not_reported(builder: Run) -> None:
    workers = worker(builder, "prefill"), worker(builder, "decode")
    rows = checked(builder("check", *workers, "--json"))["findings"]
    assert not [row for row in rows if row["rule"].startswith("disagg-")]


def test_a_rule_that_the_file_breaks_by_itself_is_not_repeated_at_a_flag(
    builder: Run, tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text("tensor_parallel_size: 8\nmoe_expert_parallel_size: 3\n")
    text = edited(SCRIPT, "--port 8000", "--ep_size 5")
    both = findings(builder, tmp_path, text, "--release", "1.2.1", name="serve.sh")
    assert [row["rule"] for row in both] == ["flag-value-lost"]
    (tmp_path / "config.yaml").write_text("tensor_parallel_size: 8\n")
    (row,) = findings(builder, tmp_path, text, "--release", "1.2.1", name="serve.sh")
    assert (row["path"], row["rule"]) == ("--ep_size", "ep-divides-tp")


def test_a_server_that_is_listed_twice_is_named(builder: Run, tmp_path: Path) -> None:
    text = edited(DISAGGREGATED, "two:8001", "one:8001")
    (row,) = errors(findings(builder, tmp_path, text))
    assert (row["line"], row["column"], row["path"]) == (7, 22, "context_servers.urls.1")
    assert row["message"] == "one:8001 is listed twice"


def test_a_vulnerable_release_is_no_drift(builder: Run, tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(DEPLOYMENT)
    both = ("--release", "1.0.0", "--release", "main-00043967")
    rows = checked(builder("check", "f.yaml", *both, "--json"))["findings"]
    assert "vulnerable-version" in {row["rule"] for row in rows}
    assert not [row for row in rows if row["rule"] == "drift" and "vulnerab" in row["message"]]


def test_an_unknown_release_is_refused_with_the_known_ones(builder: Run, tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(ENGINE)
    done = builder("check", "f.yaml", "--release", "0.9.0")
    assert done.returncode == 2
    assert done.stdout == ""
    assert re.match(r"error: .*0\.9\.0 .*known: 1\.0\.0, 1\.1\.0, 1\.2\.1, 1\.3", done.stderr)


def test_role_and_gpu_of_the_command_line_are_used(builder: Run, tmp_path: Path) -> None:
    text = "cache_transceiver_config: {backend: UCX}\nmax_batch_size: 8\n"
    assert findings(builder, tmp_path, text, "--role", "decode") == []
    rows = findings(builder, tmp_path, text, "--role", "prefill")
    assert "prefill-overlap" in {row["rule"] for row in rows}
    done = builder("check", "f.yaml", "--gpu", "h1000")
    assert done.returncode == 2
    assert "h1000 is unknown" in done.stderr


def test_a_file_of_another_kind_is_not_misreported(builder: Run, tmp_path: Path) -> None:
    (row,) = findings(builder, tmp_path, "mem-fraction-static: 0.8\ntp-size: 8\n")
    assert (row["rule"], row["severity"]) == ("unknown-kind", "warning")
    (tmp_path / "sub").mkdir()
    shutil.move(tmp_path / "f.yaml", tmp_path / "sub")
    report = checked(builder("check", "sub", "--json"))
    assert report["checked"] == 0
    assert report["notes"] == ["no supported files found"]


def test_a_template_of_something_else_is_passed_over_in_a_folder(
    builder: Run, tmp_path: Path
) -> None:
    """A broken option file is not, and neither is anything that was named itself."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "helm.yaml").write_text("name: {{ .Values.name }}\n")
    assert checked(builder("check", "sub", "--json"))["findings"] == []
    (tmp_path / "sub" / "config.yaml").write_text("max_batch_size: 8\n\tx: 1\n")
    (row,) = checked(builder("check", "sub", "--json"))["findings"]
    assert (row["file"], row["line"], row["rule"]) == ("sub/config.yaml", 2, "syntax")


def rendered(builder: Run, name: str = "llama-tiny") -> str:
    assert builder("render", name, "-o", "bundle").returncode == 0
    return "bundle"


def errors(rows: Sequence[Any]) -> list[Any]:
    return [row for row in rows if row["severity"] == "error"]


def test_a_bundle_is_checked_as_a_whole_by_its_own_release(builder: Run) -> None:
    report = checked(builder("check", rendered(builder), "--json"))
    kinds = {Path(row["file"]).name: (row["kind"], row["releases"]) for row in report["files"]}
    assert kinds["config.yaml"] == ("engine options", ["1.2.1"])
    assert kinds["model.yaml"] == ("Triton model.yaml", ["1.2.1"])
    assert kinds["config.pbtxt"][0] == "Triton config.pbtxt"
    assert kinds["deployment.yaml"][0] == "deployment"
    assert errors(report["findings"]) == []


def test_a_file_of_a_bundle_that_was_changed_is_found_and_checked(
    builder: Run, tmp_path: Path
) -> None:
    config = tmp_path / rendered(builder) / "trtllm_serve" / "config.yaml"
    config.write_text(edited(config.read_text(), "max_batch_size", "max_bach_size"))
    rows = errors(checked(builder("check", "bundle", "--json"))["findings"])
    assert {row["rule"] for row in rows} == {"damaged-bundle", "unknown-key"}
    assert {row["file"] for row in rows} == {"bundle/trtllm_serve/config.yaml"}


def test_one_file_of_a_bundle_takes_release_and_model_from_the_bundle(builder: Run) -> None:
    done = builder("render", "deepseek-v3.2-nvfp4-gb200", "-o", "bundle")
    assert done.returncode == 0
    done = builder("check", "bundle/trtllm_serve/config.yaml")
    assert "engine options, release 1.2.1\n" in done.stdout
    for part in ("bundle", "bundle/trtllm_serve", "bundle/trtllm_serve/config.yaml"):
        report = checked(builder("check", part, "--release", "1.1.0", "--json"))
        assert "sparse-absent" in {row["rule"] for row in report["findings"]}, part


def test_a_link_does_not_lead_to_folders_outside(builder: Run, tmp_path: Path) -> None:
    """One to `/` would have all of the machine read; files that are linked one by one are meant."""
    for folder in ("sub/inside", "outside"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "f.yaml").write_text(ENGINE)
    (tmp_path / "sub" / "all").symlink_to("/")
    (tmp_path / "sub" / "there").symlink_to(tmp_path / "outside")
    (tmp_path / "sub" / "again").symlink_to("inside")
    (tmp_path / "sub" / "linked.yaml").symlink_to("../outside/f.yaml")
    report = checked(builder("check", "sub", "--json"))
    assert [row["file"] for row in report["files"]] == ["sub/again/f.yaml", "sub/linked.yaml"]
    assert report["unread"] == {"link to a folder elsewhere": 2}


def test_links_to_a_folder_above_end(builder: Run, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "up").symlink_to("..")
    (tmp_path / "sub" / "self.yaml").symlink_to("self.yaml")
    (tmp_path / "sub" / "f.yaml").write_text(ENGINE)
    assert checked(builder("check", "sub", "--json"))["checked"] == 1


@pytest.mark.parametrize("release", ["1.0.0", "1.2.1", "main-00043967"])
def test_flags_are_those_of_the_release(release: str, builder: Run, tmp_path: Path) -> None:
    text = edited(SCRIPT, "--port", "--custom_tokenizer t --prt")
    rows = findings(builder, tmp_path, text, "--release", release, name="serve.sh")
    unknown = {row["path"] for row in errors(rows)}
    assert unknown == {"--prt"} | ({"--custom_tokenizer"} if release == "1.0.0" else set())
    (row,) = (row for row in rows if row["path"] == "--prt")
    assert (row["line"], row["rule"]) == (3, "unknown-flag")
    assert row["fix"].startswith("did you mean --port?")


def test_a_flag_beside_a_value_of_its_option_file_is_named(builder: Run, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("tensor_parallel_size: 4\n")
    text = edited(SCRIPT, "--port 8000", "--tp_size 8 --max_batch_size many")
    rows = findings(builder, tmp_path, text, "--release", "1.2.1", name="serve.sh")
    assert [(row["path"], row["rule"], row["severity"]) for row in rows] == [
        ("--tp_size", "flag-value-lost", "warning"),
        ("--max_batch_size", "flag-value", "error"),
    ]


def test_the_option_file_that_a_script_writes_is_checked_at_its_lines(
    builder: Run, tmp_path: Path
) -> None:
    text = """\
cat > extra.yaml <<EOF
tensor_parallel_size: $TP
kv_cache_config:
  dtyp: fp8
EOF
srun bash -c "trtllm-llmapi-launch trtllm-serve $MODEL --tp-size 8 \\
  --extra_llm_api_options extra.yaml"
"""
    rows = findings(builder, tmp_path, text, name="run.sbatch")
    assert [(row["line"], row["column"], row["path"]) for row in errors(rows)] == [
        (4, 3, "kv_cache_config.dtyp"),
        (6, 56, "--tp-size"),
    ]
    assert errors(rows)[0]["within"] == "extra.yaml" and "within" not in errors(rows)[1]
    said = builder("check", "run.sbatch").stdout
    assert "run.sbatch:4:3: error[unknown-key] kv_cache_config.dtyp in extra.yaml: unknown" in said


def test_an_image_with_known_vulnerabilities_is_named(builder: Run, tmp_path: Path) -> None:
    text = KUBERNETES + "---\nspec:\n  image: nvcr.io/nvidia/tritonserver:25.04-trtllm-python-py3\n"
    (tmp_path / "f.yaml").write_text(text)
    for flags, severity in ((), "warning"), (("--refuse-vulnerable",), "error"):
        (row,) = checked(builder("check", "f.yaml", "--json", *flags))["findings"]
        assert (row["line"], row["rule"], row["severity"]) == (16, "vulnerable-version", severity)


def test_an_image_of_many_places_is_warned_of_once(builder: Run, tmp_path: Path) -> None:
    text = "image: nvcr.io/nvidia/tritonserver:25.04-trtllm-python-py3\n"
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(f"one:\n  {text}two:\n  {text}")
    (row,) = checked(builder("check", ".", "--json"))["findings"]
    assert row["file"].endswith("a.yaml") and "(and in 3 more places)" in row["message"]
    assert len(checked(builder("check", ".", "--json", "--refuse-vulnerable"))["findings"]) == 4


def test_what_is_right_for_one_release_only_is_explained(builder: Run, tmp_path: Path) -> None:
    text = edited(ENGINE, "TRTLLM", "WIDEEP")
    both = ("--release", "1.2.1", "--release", "main-00043967")
    rows = findings(builder, tmp_path, text, *both)
    drift = {row["path"]: row for row in rows if row["rule"] == "drift"}
    assert set(drift) == {"moe_config.backend", "speculative_config.num_nextn_predict_layers"}
    renamed = drift["speculative_config.num_nextn_predict_layers"]
    assert renamed["message"].startswith("right for 1.2.1, not for main-00043967: ")
    assert renamed["fix"] == "main-00043967 knows it as speculative_config.max_draft_len"
    assert {row["release"] for row in rows if row["rule"] != "drift"} <= set(both)
    assert (
        "drift: moe_config.backend\n  right for 1.2.1" in builder("check", "f.yaml", *both).stdout
    )


def test_what_both_releases_take_is_no_drift(builder: Run, tmp_path: Path) -> None:
    text = "tensor_parallel_size: 8\nmax_batch_size: 64\n"
    assert findings(builder, tmp_path, text, "--release", "1.0.0", "--release", "1.2.1") == []


def test_the_golden_bundles_option_files_pass(builder: Run) -> None:
    golden = ROOT / "tests" / "golden"
    files = [path for path in golden.rglob("*.yaml") if path.name != "deployment.yaml"]
    report = checked(builder("check", *files, "--json"))
    skipped = [Path(row["file"]) for row in report["skipped"]]
    starting = [path for path in skipped if "kubernetes" not in path.parts]  # some start nothing
    assert [path.name for path in starting] == ["site.yaml"]
    assert "workload.yaml" not in [path.name for path in skipped]
    assert report["checked"] == len(files) - len(skipped) > 0
    assert errors(report["findings"]) == []


def test_requirements_are_checked_where_they_pin_an_engine(tmp_path: Path) -> None:
    (tmp_path / "requirements-gpu.txt").write_text(
        "tensorrt_llm == 1.2.1\nnvidia-ml-py==13.610.43\n# vllm==0.1\n"
    )
    (tmp_path / "requirements.txt").write_text("fastapi==0.115.0\n")
    report = lint.check([tmp_path], lint.CheckOptions(), pipeline.deployment_diagnostics)
    [found] = report.findings
    assert (found.rule, found.severity, found.location.line) == ("known-issue", "warning", 2)
    assert found.where.endswith("requirements-gpu.txt")
