"""Files of vLLM: its commands wherever they stand, its configuration files, and their releases."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from builder import lint as check
from builder import pipeline
from builder.diagnostics import Diagnostic
from builder.facts import engines, release
from builder.lint.engine import formats
from builder.lint.releases import Pins
from tests.tables import tables

TABLES = tables(Path(__file__).with_suffix(".yaml"))

NEWEST = "0.32.0"


def checked(folder: Path, name: str, text: str, *releases: str) -> check.Report:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return check.check([path], check.CheckOptions(releases), pipeline.deployment_diagnostics)


def errors(folder: Path, name: str, text: str, *releases: str) -> list[Diagnostic]:
    found = checked(folder, name, text, *releases).findings
    return [row for row in found if row.severity == "error"]


def command(*flags: str) -> str:
    return f"#!/bin/bash\nvllm serve some/model {' '.join(flags)}\n"


RIGHT = TABLES["RIGHT"]


@pytest.mark.parametrize("flags", RIGHT)
def test_what_the_parser_of_the_engine_takes_is_right(flags: str, tmp_path: Path) -> None:
    report = checked(tmp_path, "serve.sh", command(flags), NEWEST)
    assert [str(row) for row in report.findings] == []
    assert report.judged.commands == 1


WRONG = TABLES["WRONG"]


@pytest.mark.parametrize("flags", WRONG)
def test_a_mistake_in_a_command_is_named_with_its_remedy(flags: str, tmp_path: Path) -> None:
    (found,) = errors(tmp_path, "serve.sh", command(flags), NEWEST)
    path, remedy = WRONG[flags]
    assert found.path == path
    assert remedy in found.fix
    assert found.location.line == 2


def test_of_a_flag_that_is_given_twice_the_last_one_counts(tmp_path: Path) -> None:
    report = checked(tmp_path, "serve.sh", command("--max-model-len 8k -tp 2 -tp 4"), NEWEST)
    (found,) = report.findings
    assert (found.severity, found.rule, found.path) == ("warning", "duplicate-key", "-tp")
    (found,) = errors(tmp_path, "config.yaml", "max-num-seqs: 8\nmax-num-seqs: 4\n", NEWEST)
    assert (found.rule, found.location.line) == ("duplicate-key", 2)


def test_an_image_that_starts_the_server_is_not_told_to_serve(tmp_path: Path) -> None:
    text = "docker run vllm/vllm-openai:v0.32.0 serve some/model --max-num-sequs 4\n"
    found = errors(tmp_path, "run.sh", text)
    assert [row.path for row in found] == ["serve", "--max-num-sequs"]
    assert "drop it" in found[0].fix


VALUES = TABLES["VALUES"]


def test_values_of_a_chart_are_read_by_the_options_that_they_stand_for(tmp_path: Path) -> None:
    found = checked(tmp_path, "values.yaml", VALUES, NEWEST).findings
    rows = sorted((row.location.line, row.severity, row.path.rpartition(".")[2]) for row in found)
    assert rows == [
        (6, "error", "tensor_parallel_size"),
        (8, "warning", "max_num_sqs"),
        (10, "error", "--max-num-sequs"),
    ]


SERVED = TABLES["SERVED"]


@pytest.mark.parametrize(("command", "lines"), [("vllmServe", [5, 7]), ("imageDefault", [7])])
def test_flags_are_read_where_a_chart_or_a_variable_hands_them_on(
    tmp_path: Path, command: str, lines: list[int]
) -> None:
    found = errors(tmp_path, "values.yaml", SERVED.replace("{command}", command), NEWEST)
    assert [row.location.line for row in found] == lines


WORKER = """args=(--namespace one --model $MODEL)
if [ "$ROLE" = decode ]; then
  args+=(--disaggregation-mode decode --max-num-sequs 4)
fi
python3 -m dynamo.vllm "${args[@]}"
"""


def test_flags_that_a_worker_gets_from_a_list_may_be_its_own(tmp_path: Path) -> None:
    (found,) = checked(tmp_path, "worker.sh", WORKER, NEWEST).findings
    assert (found.severity, found.path) == ("warning", "--max-num-sequs")


def test_the_beginning_of_a_flag_is_taken_for_it_with_a_warning(tmp_path: Path) -> None:
    (found,) = checked(tmp_path, "s.sh", command("--max-num-batched 4096"), NEWEST).findings
    assert (found.severity, found.rule) == ("warning", "flag-abbreviated")
    assert "--max-num-batched-tokens" in found.fix


BAD = "--max-num-sequs 64"
COMMANDS = TABLES["COMMANDS"]


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_are_found_wherever_a_script_has_them(name: str, tmp_path: Path) -> None:
    (found,) = errors(tmp_path, name, COMMANDS[name], NEWEST)
    assert found.path.lstrip("-") == "max-num-sequs"
    lines = COMMANDS[name].splitlines()
    assert "max-num-sequs" in lines[found.location.line - 1]


ARGS = ["--model", "some/model", "--max-num-sequs", "64"]
POD = TABLES["POD"]
MANIFESTS = TABLES["MANIFESTS"]


@pytest.mark.parametrize("kind", MANIFESTS)
def test_commands_are_found_in_manifests_and_recipes(kind: str, tmp_path: Path) -> None:
    text = yaml.safe_dump(MANIFESTS[kind], sort_keys=False)
    report = checked(tmp_path, "file.yaml", text, NEWEST)
    (found,) = report.findings
    assert "max-num-sequs" in found.path
    assert "max-num-seqs" in found.fix.replace("_", "-")
    assert report.judged.commands + report.judged.sections == 1
    # What a worker may have of its own is not known.
    assert found.severity == ("warning" if kind.startswith(("worker", "launcher")) else "error")


def test_flags_of_workers_and_extensions_are_unknown_and_no_error(tmp_path: Path) -> None:
    worker = "#!/bin/bash\npython3 -m dynamo.vllm --model m --disaggregation-mode prefill\n"
    assert checked(tmp_path, "worker.sh", worker).findings == []
    extension = command("--omni --stage-init-timeout 600 --ulysses-degree 2")
    assert checked(tmp_path, "omni.sh", extension).findings == []


def test_a_configuration_file_is_told_from_one_of_the_other_engine(tmp_path: Path) -> None:
    text = "tensor_parallel_size: 8\nmax_num_seqs: 64\nmax_model_len: 8192\nkv_cache_dtyp: fp8\n"
    report = checked(tmp_path, "config.yaml", text)
    (found,) = report.findings
    assert (found.path, found.location) == ("kv_cache_dtyp", (4, 1))
    assert found.fix == "did you mean kv_cache_dtype?"
    assert [row.kind for row in report.files] == ["vLLM options"]
    in_a_map = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"config.yaml": text}}
    report = checked(tmp_path, "map.yaml", yaml.safe_dump(in_a_map))
    assert [(row.path, row.within) for row in report.findings] == [
        ("kv_cache_dtyp", "data.config.yaml")
    ]
    mixed = "model: m\nmax-num-seqs: 4\nkv_cache_config: {free_gpu_memory_fraction: 0.9}\n"
    (row,) = errors(tmp_path, "config.yaml", mixed)
    assert row.fix.startswith("that is TensorRT-LLM's; vLLM has gpu_memory_utilization")
    other = "tensor_parallel_size: 8\nmax_batch_size: 64\nmax_num_seqs: 64\nmax_seq_len: 8192\n"
    (row,) = errors(tmp_path, "config.yaml", other)
    assert row.path == "max_num_seqs"
    assert row.fix == "that is vLLM's; TensorRT-LLM has max_batch_size"


def test_values_of_a_configuration_file_are_those_of_the_command_line(tmp_path: Path) -> None:
    text = "model: m\nport: '8000'\nserved-model-name: 3\nno-enable-prefix-caching: true\n"
    text += "max-model-len: 8k\ncudagraph-capture-sizes: [1, 2, 4]\nenforce-eager: false\n"
    text += "speculative-config: {method: mtp, num_speculative_tokens: 3}\n"
    assert checked(tmp_path, "config.yaml", text, NEWEST).findings == []
    wrong = "max-model-len: true\nenforce-eager: 3\nspeculative-config: {metod: mtp}\n"
    found = errors(tmp_path, "config.yaml", wrong, NEWEST)
    assert [row.path for row in found] == [
        "max-model-len",
        "enforce-eager",
        "speculative-config.metod",
    ]
    assert [row.location.line for row in found] == [1, 2, 3]


def test_options_of_tritons_backend_have_the_names_of_the_engine(tmp_path: Path) -> None:
    options = {"model": "m", "gpu_memory_utilization": 0.9, "enforce_eager": True}
    report = checked(tmp_path, "1/model.json", json.dumps(options), NEWEST)
    assert (report.findings, report.files[0].kind) == ([], "Triton model.json")
    wrong = {**options, "max-model-len": 100, "gpu_memory_utilisation": 0.9, "port": 8000}
    found = errors(tmp_path, "1/model.json", json.dumps(wrong, indent=1), NEWEST)
    assert [row.path for row in found] == ["max-model-len", "gpu_memory_utilisation", "port"]
    assert "max_model_len" in found[0].fix
    assert "gpu_memory_utilization" in found[1].fix
    (syntax,) = errors(tmp_path, "1/model.json", '{"model": "m",\n"seed": 1,\n}\n', NEWEST)
    assert (syntax.rule, syntax.location.line) in (("syntax", 2), ("syntax", 3))  # by Python's own


RELEASES = {
    "#!/bin/bash\ndocker run vllm/vllm-openai:v0.20.0-ubuntu2404 --model m -tp 2\n": "0.20.0",
    "#!/bin/bash\npip install vllm==0.14.1\nvllm serve m -tp 2\n": "0.14.1",
    "#!/bin/bash\nVLLM_VERSION=0.20.0\nvllm serve m -tp 2\n": "0.20.0",
    "#!/bin/bash\nvllm serve m -tp 2\n": "0.32.0",
}


@pytest.mark.parametrize("text", RELEASES)
def test_the_release_that_a_file_names_is_the_one_that_judges_it(text: str, tmp_path: Path) -> None:
    (row,) = checked(tmp_path, "serve.sh", text).files
    assert row.releases == (RELEASES[text],)
    assert row.assumed == (RELEASES[text] == "0.32.0")


def test_a_release_without_a_table_is_judged_by_its_neighbours(tmp_path: Path) -> None:
    text = "#!/bin/bash\ndocker run vllm/vllm-openai:v0.16.0 --model m --moe-backend triton\n"
    report = checked(tmp_path, "serve.sh", text)
    (found,) = [row for row in report.findings if row.rule != "vulnerable-version"]
    assert found.severity == "warning"
    assert found.message.startswith("0.14.1 refuses it, 0.20.0 not")
    assert "it came with release 0.20.0" in found.fix
    assert any("checked against its neighbours 0.14.1 and 0.20.0" in note for note in report.notes)


def test_what_came_after_the_newest_table_is_not_known(tmp_path: Path) -> None:
    text = "#!/bin/bash\ndocker run vllm/vllm-openai:v0.40.0 --model m --brand-new 1 {}\n"
    (found,) = checked(tmp_path, "serve.sh", text.format("")).findings
    assert found.severity == "warning"
    assert "newer releases are unknown" in found.message
    assert errors(tmp_path, "serve.sh", text.format(BAD))[0].path == "--max-num-sequs"


def test_an_option_that_went_nobody_knows_when_is_warned_of_where_no_release_is_named(
    tmp_path: Path,
) -> None:
    """The table before the newest one is of twelve releases earlier."""
    text = command("--attention-config.use_fp4_indexer_cache true --max-num-sequs 8")
    gone, wrong = checked(tmp_path, "serve.sh", text).findings
    assert (gone.severity, wrong.severity) == ("warning", "error")
    assert "0.32.0 is assumed" in gone.message and "gone since" in gone.fix
    assert len(errors(tmp_path, "serve.sh", text, NEWEST)) == 2


def test_a_minimum_stands_for_every_release_from_there_on(tmp_path: Path) -> None:
    recipe = {
        "model": {
            "min_vllm_version": "0.12.0",
            "base_args": ["--swap-space", "4", "--max-num-sequs", "64"],
        }
    }
    report = checked(tmp_path, "recipe.yaml", yaml.safe_dump(recipe))
    by_path = {row.path: row.severity for row in report.findings}
    assert by_path == {"--swap-space": "warning", "--max-num-sequs": "error"}
    assert report.files[0].kind == "vLLM recipe"


def test_commands_in_a_guide_are_warned_of(tmp_path: Path) -> None:
    guide = f"Start it:\n\n```bash\n$ vllm serve <model> \\\n  {BAD}\n```\n"
    recipe = {"model": {"min_vllm_version": "0.20.0", "base_args": ["-tp", "2"]}, "guide": guide}
    text = yaml.safe_dump(recipe, default_style="|")
    (found,) = checked(tmp_path, "recipe.yaml", text).findings
    assert (found.severity, found.path, found.within) == ("warning", "--max-num-sequs", "guide")
    assert "--max-num-sequs" in text.splitlines()[found.location.line - 1]


def test_several_releases_explain_what_changed_between_them(tmp_path: Path) -> None:
    report = checked(tmp_path, "s.sh", command("--moe-backend triton"), "0.14.1", "0.32.0")
    drift = [row for row in report.findings if row.rule == "drift"]
    assert [row.message for row in drift] == [
        "right for 0.32.0, not for 0.14.1: is not a flag of vLLM 0.14.1"
    ]


def test_a_file_of_both_engines_is_judged_by_both(tmp_path: Path) -> None:
    text = f"#!/bin/bash\nvllm serve some/model {BAD}\ntrtllm-serve some/model --max_batch_siz 4\n"
    report = checked(tmp_path, "both.sh", text)
    assert {row.path for row in report.findings if row.severity == "error"} == {
        "--max-num-sequs",
        "--max_batch_siz",
    }
    (row,) = report.files
    assert row.judged.commands == 2
    assert len(row.releases) == 2


BROUGHT = TABLES["BROUGHT"]


@pytest.mark.parametrize("flags", BROUGHT)
def test_a_value_that_only_a_plugin_may_bring_is_warned_of(flags: str, tmp_path: Path) -> None:
    (found,) = checked(tmp_path, "serve.sh", command(flags), NEWEST).findings
    assert found.severity == "warning"
    assert BROUGHT[flags] in found.fix


# Lines of files beside a server, and what is said of the variable in them.
VARIABLES = TABLES["VARIABLES"]


@pytest.mark.parametrize("line", VARIABLES)
def test_a_variable_that_the_release_does_not_read_is_warned_of(line: str, tmp_path: Path) -> None:
    text = f"#!/bin/bash\n{line}\nvllm serve some/model\n"
    found = checked(tmp_path, "serve.sh", text, NEWEST).findings
    said = [VARIABLES[line]] if VARIABLES[line] else []
    assert [row.fix for row in found] == said
    assert all((row.severity, row.location.line) == ("warning", 2) for row in found)


def test_a_file_is_of_the_engine_whose_release_alone_is_asked_for(tmp_path: Path) -> None:
    """It has no option that tells it from one of the other engine."""
    text = "model: m\nhost: 0.0.0.0\ncuda_graph_config: {batch_sizes: [1, 2]}\n"
    (found,) = errors(tmp_path, "config.yaml", text, NEWEST)
    assert found.path == "cuda_graph_config"
    assert "cudagraph_capture_sizes" in found.fix


GPUS = TABLES["GPUS"]


@pytest.mark.parametrize("line", GPUS)
def test_the_ranks_of_a_server_have_their_gpus(line: str, tmp_path: Path) -> None:
    found = checked(tmp_path, "serve.sh", f"#!/bin/bash\n{line}\n", NEWEST).findings
    assert [row.rule for row in found] == ([GPUS[line]] if GPUS[line] else [])


@pytest.mark.parametrize(("count", "rule"), [(2, "gpus-below-ranks"), (4, ""), (8, "gpus-idle")])
def test_the_ranks_of_a_pod_have_its_gpus(count: int, rule: str, tmp_path: Path) -> None:
    container = {
        "image": "vllm/vllm-openai:v0.32.0",
        "args": ["--model", "m", "-tp", "4"],
        "resources": {"limits": {"nvidia.com/gpu": count}},
    }
    text = yaml.safe_dump({**POD, "spec": {"hostIPC": True, "containers": [container]}})
    found = checked(tmp_path, "pod.yaml", text, NEWEST).findings
    assert [row.rule for row in found] == ([rule] if rule else [])


def test_the_model_that_a_command_names_has_its_say(tmp_path: Path) -> None:
    flags = "--tensor-parallel-size 3 --enable-expert-parallel --max-model-len 262144"
    text = f"#!/bin/bash\nvllm serve nvidia/Llama-3.3-70B-Instruct-FP8 {flags}\n"
    found = errors(tmp_path, "serve.sh", text, NEWEST)
    assert [(row.path, row.rule) for row in found] == [
        ("--tensor-parallel-size", "heads-per-rank"),
        ("--enable-expert-parallel", "experts-of-dense-models"),
        ("--max-model-len", "length-beyond-model"),
    ]
    assert errors(tmp_path, "serve.sh", command(flags), NEWEST) == []
    allowed = f"#!/bin/bash\nexport VLLM_ALLOW_LONG_MAX_MODEL_LEN=1\n{text}"
    assert "length-beyond-model" not in {row.rule for row in errors(tmp_path, "x.sh", allowed)}


MODEL_FORMATS = {
    # Whether the release reads the weights of the model that a configuration file names.
    ("nvidia/MiniMax-M3-NVFP4", "0.14.1"): ["error"],
    ("nvidia/MiniMax-M3-NVFP4", NEWEST): [],
    ("openai/gpt-oss-120b", "0.14.1"): [],
}


@pytest.mark.parametrize(("model", "release"), MODEL_FORMATS)
def test_the_weights_of_the_model_in_a_configuration_file_are_those_that_the_release_reads(
    model: str, release: str, tmp_path: Path
) -> None:
    text = f"model: {model}\nmax-num-seqs: 8\ngpu-memory-utilization: 0.9\n"
    found = checked(tmp_path, "config.yaml", text, release).findings
    assert [row.severity for row in found] == MODEL_FORMATS[model, release]
    assert {row.rule for row in found} <= {"weights-format"}
    elsewhere = f"#!/bin/bash\nvllm serve {model} --config config.yaml\n"
    beside = checked(tmp_path, "serve.sh", elsewhere, release).findings
    assert [row.severity for row in beside] == MODEL_FORMATS[model, release]
    assert not any(row.fix.endswith("...") or "...;" in str(row) for row in found)


def test_what_a_configuration_file_lacks_its_command_may_have(tmp_path: Path) -> None:
    text = "max-num-seqs: 64\nenable-auto-tool-choice: true\n"
    (found,) = checked(tmp_path, "config.yaml", text, NEWEST).findings
    assert (found.severity, found.rule) == ("warning", "tool-parser")
    assert "other parts of the options may change this" in found.message
    both = command("--config config.yaml --enable-auto-tool-choice")
    (found,) = checked(tmp_path, "serve.sh", both, NEWEST).findings
    assert found.severity == "warning"
    whole = json.dumps({"model": "m", "max_num_seqs": 64, "max_num_batched_tokens": 32})
    assert [row.rule for row in errors(tmp_path, "model.json", whole, NEWEST)] == [
        "batch-in-tokens"
    ]


def test_the_workers_of_a_recipe_have_their_gpus(tmp_path: Path) -> None:
    resources = {"gpu_type": "gb200", "gpus_per_node": 4, "decode_nodes": 1, "decode_workers": 1}
    decode = {"tensor-parallel-size": 4, "data-parallel-size": 2, "max-num-seqs": 64}
    recipe = {
        "resources": resources,
        "backend": {"type": "vllm", "vllm_config": {"decode": decode}},
    }
    (found,) = checked(tmp_path, "recipe.yaml", yaml.safe_dump(recipe), NEWEST).findings
    assert (found.rule, found.path) == ("gpus-below-ranks", "resources.decode_nodes")
    assert "1 workers of 8 GPUs want 8, 1 nodes have 4" in found.message
    resources["decode_nodes"] = 2
    assert checked(tmp_path, "recipe.yaml", yaml.safe_dump(recipe), NEWEST).findings == []


def test_a_flag_of_another_release_is_none_of_a_workers_own(tmp_path: Path) -> None:
    image = "nvcr.io/nvidia/ai-dynamo/vllm-runtime:0.9.0-cuda13"
    text = f"#!/bin/bash\ndocker run {image} python3 -m dynamo.vllm --model m --moe-backend x\n"
    (found,) = checked(tmp_path, "worker.sh", text).findings
    assert found.message == "is not a flag of vLLM 0.14.1"
    assert found.fix == "it came with release 0.20.0"


CARRIERS = TABLES["CARRIERS"]


@pytest.mark.parametrize("image", CARRIERS)
def test_images_of_other_products_tell_the_release_that_they_carry(image: str) -> None:
    pins = Pins(f"image: {image}", (), engines.load("vllm"))
    found = [name for row in pins.statements for name in row.releases]
    assert found == [CARRIERS[image]] * bool(CARRIERS[image])


def test_a_deployment_on_it_without_a_release_is_judged_by_its_newest(tmp_path: Path) -> None:
    text = "name: one\ncheckpoint: llama-tiny\nhardware: {gpu: h100, num_gpus: 1}\n"
    text += "workload: {isl: 512, osl: 128, concurrency: 4}\nengine: {name: vllm}\n"
    text += "targets: {vllm_serve: {}}\n"
    (row,) = checked(tmp_path, "deployment.yaml", text).files
    assert row.releases == (NEWEST,)


def test_remedies_name_only_options_that_every_release_has() -> None:
    told = formats("vllm").former | formats("vllm").foreign
    tables = [json.dumps(table.table) for table in release.of_engine(engines.load("vllm"))]
    for option, words in told.items():
        for word in re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", words):
            is_of_a_request = word in formats("vllm").request_names
            known = is_of_a_request or all(f'"{word}"' in table for table in tables)
            assert known, (option, word)
