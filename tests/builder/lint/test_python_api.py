"""Programs of the LLM API: the options that they construct an engine with. None of them is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder import lint, pipeline
from builder.documents import Variable
from builder.facts import release
from builder.lint.read import python_api

TABLE = release.load("1.2.1")
CONFIGS = "from tensorrt_llm.llmapi import KvCacheConfig, EagleDecodingConfig\n"

# A program, and the options of each engine that it constructs.
READ: dict[str, tuple[str, list[dict[str, object]]]] = {
    "literal arguments": (
        'from tensorrt_llm import LLM\nLLM("llama", max_batch_size=8)\n',
        [{"model": "llama", "max_batch_size": 8}],
    ),
    "another name": (
        "from tensorrt_llm import LLM as Engine\nEngine(max_batch_size=2 ** 3)\n",
        [{"max_batch_size": Variable("2 ** 3")}],
    ),
    "the module": ("import tensorrt_llm as t\nt.LLM(max_batch_size=8)\n", [{"max_batch_size": 8}]),
    "a module below": (
        "import tensorrt_llm\ntensorrt_llm.llmapi.LLM(max_batch_size=8)\n",
        [{"max_batch_size": 8}],
    ),
    "classes of options": (
        "from tensorrt_llm import LLM\n"
        + CONFIGS
        + 'LLM(kv_cache_config=KvCacheConfig(dtype="fp8"),'
        " speculative_config=EagleDecodingConfig(max_draft_len=3))\n",
        [
            {
                "kv_cache_config": {"dtype": "fp8"},
                "speculative_config": {"decoding_type": "Eagle", "max_draft_len": 3},
            }
        ],
    ),
    "a name that is set once": (
        "from tensorrt_llm import LLM\nN = 8\ndef main():\n  LLM(max_batch_size=N)\n",
        [{"max_batch_size": 8}],
    ),
    "a name that is set twice": (
        "from tensorrt_llm import LLM\nN = 8\nN = 9\nLLM(max_batch_size=N)\n",
        [{"max_batch_size": Variable("N")}],
    ),
    "an argument of a function": (
        "from tensorrt_llm import LLM\ndef main(n):\n  LLM(max_batch_size=n)\n",
        [{"max_batch_size": Variable("n")}],
    ),
    "options as mappings": (
        'from tensorrt_llm import LLM\nkw = {"max_batch_size": 8}\n'
        'LLM(**kw, **dict(dtype="auto"))\n',
        [{"max_batch_size": 8, "dtype": "auto"}],
    ),
    "a mapping that is changed": (
        'from tensorrt_llm import LLM\nkw = {}\nkw["max_batch_size"] = 8\nLLM(**kw)\n',
        [{}],
    ),
    "two engines": (
        "from tensorrt_llm import LLM\nLLM(max_batch_size=8)\nLLM(max_batch_size=9)\n",
        [{"max_batch_size": 8}, {"max_batch_size": 9}],
    ),
    "another engine of the same name": ("from vllm import LLM\nLLM(max_batch_size=8)\n", []),
    "the engine of TensorRT": (
        "from tensorrt_llm._tensorrt_engine import LLM\nLLM(max_batch_size=8)\n",
        [],
    ),
    "AutoDeploy": (
        "from tensorrt_llm._torch.auto_deploy import LLM\nLLM(compile_backend='x')\n",
        [],
    ),
}


@pytest.mark.parametrize("case", READ)
def test_options_are_read_from_the_text(case: str) -> None:
    text, expected = READ[case]
    sections = python_api.sections(text, TABLE)
    assert sections is not None
    assert [section.options for section in sections] == expected


def test_a_program_is_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    path = tmp_path / "a.py"
    path.write_text(
        f"from tensorrt_llm import LLM\nopen({str(mark)!r}, 'w')\nLLM(max_batch_size=8)\n"
    )
    _check(path)
    assert not mark.exists()


@pytest.mark.parametrize("text", ["LLM(", "LLM(a=" + "(" * 5000 + ")" * 5000 + ")", "LLM(\0)"])
def test_what_is_no_python_is_said_not_to_be_judged(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(f"from tensorrt_llm import LLM\n{text}\n")
    report = _check(path)
    assert report.checked == 0 and len(report.skipped) == 1


def test_more_options_than_are_seen_keep_rules_of_several_silent(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    graphs = "cuda_graph_config={'enable_padding': True, 'batch_sizes': [1, 640]}"
    path.write_text(f"from tensorrt_llm import LLM\nLLM(max_batch_size=64, {graphs})\n")
    assert [row.rule for row in _check(path).findings]
    path.write_text(f"from tensorrt_llm import LLM\nLLM(max_batch_size=64, {graphs}, **more())\n")
    assert _check(path).findings == []


def test_programs_of_a_folder_are_read_if_they_construct_an_engine(tmp_path: Path) -> None:
    (tmp_path / "serve.py").write_text("from tensorrt_llm import LLM\nLLM(max_bach_size=8)\n")
    (tmp_path / "other.py").write_text("print('tensorrt_llm')\n")
    report = _check(tmp_path)
    assert [row.path for row in report.findings] == ["max_bach_size"]
    assert report.unread == {".py": 1} and report.skipped == []


CLIENT = 'client.chat.completions.create(response_format={"type": "%s"})\n'


@pytest.mark.parametrize(
    ("kind", "options", "count"),
    [
        ("json_object", "max_batch_size: 8\n", 1),
        ("json_schema", "max_batch_size: 8\n", 1),
        ("text", "max_batch_size: 8\n", 0),
        ("json_object", "max_batch_size: 8\nguided_decoding_backend: xgrammar\n", 0),
        ("json_object", "services: {}\n", 0),
    ],
)
def test_a_client_that_asks_for_structured_output_needs_a_backend_beside_it(
    kind: str, options: str, count: int, tmp_path: Path
) -> None:
    (tmp_path / "client.py").write_text(CLIENT % kind)
    (tmp_path / "config.yaml").write_text(options)
    found = [row for row in _check(tmp_path).findings if row.rule == "guide-ignored"]
    assert [(Path(row.where).name, row.location.line) for row in found] == [
        ("client.py", 1)
    ] * count


def _check(path: Path) -> lint.Report:
    return lint.check([path], lint.CheckOptions(("1.2.1",)), pipeline.deployment_diagnostics)
