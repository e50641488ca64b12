"""Parsers of answers against chat templates: what a model writes is read back, without a GPU."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder import pipeline
from builder.cli.main import main
from builder.diagnostics import Diagnostic
from builder.documents import DATA
from builder.errors import BadFacts
from builder.facts import chat_turns, data_file, engines, release
from builder.facts.chat_render import MOST_CHARACTERS
from builder.facts.chat_turns import Parsers, Turn
from builder.facts.model_facts import ModelFacts
from builder.facts.model_names import known_names
from builder.facts.release import Release
from builder.planning import plan
from builder.rules import answer_parsers
from tests.tables import by_table

RELEASE = "main-00043967"

# Miniature templates, each with the form of a family: header, reasoning, call.
TURNS = """\
{%- for message in messages %}<|{{ message.role }}|>
{%- if message.role == "user" %}{{ message.content }}{% else %}REASON
{%- for call in message.tool_calls %}CALL{% endfor %}{% endif %}<|end|>
{%- endfor %}{% if add_generation_prompt %}<|assistant|>PROMPT{% endif %}"""
JSON_CALL = (
    '<tool_call>\n{"name": "{{ call.function.name }}", '
    '"arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
)
XML_CALL = (
    "<tool_call>\n<function={{ call.function.name }}>\n"
    "{% for key, value in call.function.arguments | items %}"
    "<parameter={{ key }}>\n{{ value }}\n</parameter>\n{% endfor %}</function>\n</tool_call>"
)
TEXT_CALL = (  # which takes arguments as text
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.{{ call.function.name }}:0"
    "<|tool_call_argument_begin|>{{ '' + call.function.arguments }}<|tool_call_end|>"
    "<|tool_calls_section_end|>"
)
THOUGHTS = "<think>\n{{ message.reasoning_content }}\n</think>\n\n"


def template(call: str, reason: str = "", prompt: str = "") -> str:
    return TURNS.replace("CALL", call).replace("REASON", reason).replace("PROMPT", prompt)


def checkpoint(folder: Path, text: str, **tokenizer: Any) -> Path:
    (folder / "chat_template.jinja").write_text(text)
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return folder


def findings(options: dict[str, str], folder: Path | None, name: str = "own/model") -> list[str]:
    rows = answer_parsers.check(release.load(RELEASE), options, name, folder)
    return [row.message if isinstance(row, Diagnostic) else row for _, row in rows]


def turn(folder: Path) -> Turn:
    found = chat_turns.turn_of("own/model", folder)
    assert isinstance(found, Turn), found
    return found


@pytest.mark.parametrize(
    ("call", "parser"), [(JSON_CALL, "qwen3"), (XML_CALL, "qwen3_coder"), (TEXT_CALL, "kimi_k2")]
)
def test_only_the_parser_of_its_form_reads_a_template(
    tmp_path: Path, call: str, parser: str
) -> None:
    folder = checkpoint(tmp_path, template(call, THOUGHTS))
    for name in ("qwen3", "qwen3_coder", "kimi_k2", "glm47"):
        found = findings({"tool_parser": name}, folder)
        assert (found == []) == (name == parser), (name, found)


def test_a_warning_names_the_parsers_that_read_it(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, template(XML_CALL))
    ((option, found),) = answer_parsers.check(
        release.load(RELEASE), {"tool_parser": "qwen3"}, "own/model", folder
    )
    assert isinstance(found, Diagnostic) and option == "tool_parser"
    assert found.severity == "warning" and found.fix == "set tool_parser to qwen3_coder"
    assert found.message.startswith("qwen3 finds no tool call in what the model writes, ")
    assert str(folder / "chat_template.jinja") in found.message


WAITS = "waits for <think>, which the model does not write"
TAKES = "takes every answer for reasoning"


@by_table
def test_reasoning_is_read_from_where_the_prompt_leaves_it(
    tmp_path: Path, reason: str, prompt: str, parser: str, what: str | None
) -> None:
    folder = checkpoint(tmp_path, template(XML_CALL, reason, prompt))
    found = findings({"reasoning_parser": parser}, folder)
    assert len(found) == (what is not None)
    assert what is None or what in found[0]


def test_a_template_is_read_from_the_files_that_servers_read(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": [{"name": "tool_use", "template": template(XML_CALL)}]})
    )
    assert "<function=get_weather>" in turn(tmp_path).text
    folder = checkpoint(
        tmp_path, "{{ bos_token }}" + template(JSON_CALL), bos_token={"content": "<s>"}
    )
    assert '{"name": "get_weather"' in turn(folder).text


DOUBLED = (
    "{% set s = namespace(t='ab') %}{% for _ in range(99) %}{% set s.t = s.t ~ s.t %}{% endfor %}"
)


@by_table
def test_a_template_that_cannot_be_rendered_is_not_checked(
    tmp_path: Path, text: str, why: str
) -> None:
    folder, began = checkpoint(tmp_path, text), time.monotonic()
    found = findings({"tool_parser": "qwen3"}, folder)
    assert time.monotonic() - began < chat_turns.TIMEOUT_S + 5
    assert len(found) == 1 and "cannot be rendered" in found[0] and why in found[0]


@pytest.mark.parametrize("engine", ["tensorrt_llm", "vllm"])
def test_hostile_answers_cost_little(engine: str) -> None:
    """Of each turn all tags but one, again and again: what a pattern looks for in vain."""
    table = newest(engine)
    parsers = data_file.shipped(f"parsers/{engine}.yaml", Parsers)
    names = [row.names[0] for row in parsers.tools]
    for shown in data_file.shipped("parsers/turns.yaml", tuple[Turn, ...]):
        tags = re.findall(r"<[^<>]+>|```json|\n|[{}]", shown.text)
        for left_out in set(tags):
            once = "".join(tag for tag in tags if tag != left_out)
            text = (once * MOST_CHARACTERS)[:MOST_CHARACTERS]
            began = time.process_time()
            for name in names:
                answer_parsers.finding(table, "tools", name, Turn(text, "a test"))
            assert time.process_time() - began < 1, (shown.models, left_out)


def test_what_is_not_known_is_not_checked(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, template(XML_CALL))
    assert findings({"tool_parser": "gemma4"}, folder) == [answer_parsers.UNKNOWN]
    assert findings({"tool_parser": "qwen3"}, None) == [
        "the chat template of own/model is not known here"
    ]
    (folder / "chat_template.jinja").unlink()
    assert "has no chat template" in findings({"tool_parser": "qwen3"}, folder)[0]
    (folder / "tokenizer_config.json").write_text("{")
    assert "tokenizer_config.json" in findings({"tool_parser": "qwen3"}, folder)[0]


def newest(engine: str) -> Release:
    name = RELEASE if engine == "tensorrt_llm" else "0.32.0"
    return release.load(name, engine=engines.load(engine))


def releases_with(option: str, value: str) -> list[Release]:
    rows = [release.load(name) for name in release.known(engines.default())]
    return [
        row
        for row in rows
        if any(flag.name == option and value in flag.values for flag in row.serve_flags)
    ]


def test_the_parsers_of_known_models_read_what_they_write() -> None:
    checked = set()
    for name, path in known_names().items():
        facts = data_file.load(path, ModelFacts)
        for option in ("tool_parser", "reasoning_parser"):
            row = getattr(facts, option)
            for table in releases_with(option, row.value) if row else []:
                found = list(answer_parsers.check(table, {option: row.value}, name, None))
                assert not any(isinstance(what, Diagnostic) for _, what in found), found
                checked |= set() if found else {row.value}
    assert checked >= {"qwen3", "qwen3_coder", "deepseek_v3", "deepseek_v31", "deepseek_v32"}
    assert checked >= {"glm47", "kimi_k2", "minimax_m2", "deepseek-r1", "qwen3_5", "nano-v3"}


@pytest.mark.parametrize("engine", ["tensorrt_llm", "vllm"])
def test_each_row_is_of_a_parser_that_a_release_has(engine: str) -> None:
    parsers = data_file.shipped(f"parsers/{engine}.yaml", Parsers)
    tables = [
        release.load_published(name, DATA, engines.load(engine), False)
        for name in release.known(engines.load(engine))
    ]
    texts = [json.dumps(table.table) for table in tables]
    for row in (*parsers.tools, *parsers.reasoning):
        for name in row.names:
            assert any(f'"{name}"' in text for text in texts), name


def test_a_row_is_checked_by_its_schema(tmp_path: Path) -> None:
    shipped = (DATA / "parsers" / "tensorrt_llm.yaml").read_text()
    wrong = tmp_path / "wrong.yaml"
    for old, new, what in [
        ("(?P<object>.*?)", "(.*?)", "has the groups []; give object, or name and arguments"),
        ("(?P<key>", "(?P<word>", "lacks the groups key and value"),
        ("(?P<object>.*?)", "(?P<object>.*?", "must be a regular expression"),
        ("begins: before", "begins: after", "begins"),
        ("read: 2026-11-28", "read: today", "YEAR-MONTH-DAY"),
    ]:
        wrong.write_text(shipped.replace(old, new, 1))
        with pytest.raises(BadFacts, match=re.escape(what)):
            data_file.read(wrong, Parsers)


def test_a_plan_warns_of_the_parser_of_a_folder(tmp_path: Path) -> None:
    found = pipeline.plan("qwen3.5-397b-nvfp4-b300").plan
    assert not [row for row in found.warnings if row.rule == "parser-mismatch"]
    folder = checkpoint(tmp_path, template(JSON_CALL, THOUGHTS, "<think>\n"))
    changed = replace(found.facts.checkpoint, path=folder)
    again = plan(found.deployment, replace(found.facts, checkpoint=changed))
    (warning,) = [row for row in again.warnings if row.rule == "parser-mismatch"]
    assert warning.where == "tool_parser" and warning.fix == "set tool_parser to qwen3"


def test_a_plan_says_what_it_did_not_check() -> None:
    found = pipeline.plan("deepseek-v4-pro-b200").plan
    reasons = [row.reason for row in found.flags if row.path == "--tool_parser"]
    assert "Not checked: the chat template of" in reasons[0]


SCRIPT = "#!/bin/bash\n{} --port 8000\n"


@by_table
def test_check_finds_the_parser_of_a_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, parser: str
) -> None:
    script = tmp_path / "serve.sh"
    script.write_text(SCRIPT.format(command))
    main(["check", str(script)])
    shown, column = capsys.readouterr().out, command.rindex(parser) + 1
    assert f"{script}:2:{column}: warning[parser-mismatch]" in shown and "qwen3_coder" in shown


def test_check_reads_the_template_of_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = checkpoint(tmp_path, template(XML_CALL))
    config = data_file.load(known_names()["Qwen/Qwen3-32B"], ModelFacts).config.values
    (folder / "config.json").write_text(json.dumps(config))
    script = tmp_path / "serve.sh"
    script.write_text(SCRIPT.format(f"trtllm-serve {folder} --tool_parser qwen3"))
    main(["check", str(script)])
    assert "chat_template.jinja, rendered" in capsys.readouterr().out
    script.write_text(SCRIPT.format("trtllm-serve own/model --tool_parser qwen3"))
    main(["check", str(script)])
    assert "not read: tool_parser qwen3: the chat template of own/model" in capsys.readouterr().out
