"""The production model on the reference engine: a real tokenizer, real log probabilities."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from launch import engine
from tests.model_repository.conftest import Serve, Served

MODEL_YAML = """
triton_config: {{max_batch_size: 0, decoupled: true}}
model: {folder}
backend: pytorch
max_batch_size: 16
max_seq_len: 512
guided_decoding_backend: xgrammar
"""
HELLO = json.dumps([{"role": "user", "content": "hello"}])


@pytest.fixture(scope="module")
def checkpoint(make_miniature: Callable[[str], Path]) -> Path:
    return make_miniature("meta-llama/Llama-3.2-1B-Instruct")


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Path) -> Any:
    return import_module("transformers").AutoTokenizer.from_pretrained(checkpoint)


@pytest.fixture(scope="module")
def reference(
    start: Serve,
    programs: list[Path],
    checkpoint: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Served:
    folder = tmp_path_factory.mktemp("python") / "reference"
    path = [*engine.path_entries("reference", folder, Path), *programs[1:]]
    return start(
        MODEL_YAML.format(folder=checkpoint),
        PATH=os.pathsep.join([*map(str, path), os.environ["PATH"]]),
    )


def test_a_conversation_is_the_prompt_that_the_tokenizer_makes_of_it(
    reference: Served, tokenizer: Any
) -> None:
    prompt = tokenizer.apply_chat_template(
        json.loads(HELLO), tokenize=False, add_generation_prompt=True
    )
    ids = tokenizer.encode(prompt, add_special_tokens=False)
    asked: dict[str, Any] = {"max_tokens": 5, "ignore_eos": True, "return_output_ids": True}
    [chat] = reference.client.ask(None, messages=HELLO, **asked)
    [same] = reference.client.ask(None, input_ids=ids, exclude_input_from_output=True, **asked)
    assert chat.outputs["output_ids"] == same.outputs["output_ids"]
    assert len(chat.outputs["output_ids"]) == 5
    assert chat.text == same.text


def test_streamed_ids_and_text_are_those_of_the_whole_answer(
    reference: Served, tokenizer: Any
) -> None:
    asked: dict[str, Any] = {"max_tokens": 40, "ignore_eos": True, "return_output_ids": True}
    asked |= {"temperature": 50.0, "seed": 7}
    [whole] = reference.client.ask(None, messages=HELLO, **asked)
    stream = reference.client.ask(None, messages=HELLO, streaming=True, **asked)
    ids = [token for part in stream for token in part.outputs.get("output_ids", [])]
    assert ids == whole.outputs["output_ids"]
    assert "".join(part.text[0] for part in stream) == whole.text[0]


@pytest.mark.parametrize(
    ("guide", "text", "pattern"),
    [
        ("json", '{"type": "object", "properties": {"a": {"type": "null"}}}', "{.*}"),
        ("json_object", True, "{.*}"),
        ("regex", "[a-c]{4}", "[a-c]{4}"),
        ("grammar", 'root ::= "yes" | "no"', "yes|no"),
        ("structural_tag", '{"format": {"type": "regex", "pattern": "[0-9]x"}}', "[0-9]x"),
    ],
)
def test_an_answer_follows_its_guide(
    reference: Served, guide: str, text: str | bool, pattern: str
) -> None:
    asked: dict[str, Any] = {f"guided_decoding_{guide}": text, "max_tokens": 200}
    [response] = reference.client.ask(None, messages=HELLO, **asked)
    assert re.fullmatch(pattern, response.text[0]), response.text


def test_counts_leave_out_a_prompt_that_the_answer_repeats(
    reference: Served, tokenizer: Any
) -> None:
    [response] = reference.client.ask(
        "hello there",
        max_tokens=4,
        ignore_eos=True,
        return_num_input_tokens=True,
        return_num_output_tokens=True,
    )
    assert response.text[0].startswith("hello there")
    assert response.outputs["num_output_tokens"] == [4]
    assert response.outputs["num_input_tokens"] == [len(tokenizer.encode("hello there"))]


def test_log_probabilities_are_those_of_the_tokens(reference: Served) -> None:
    asked: dict[str, Any] = {"max_tokens": 4, "ignore_eos": True, "return_output_ids": True}
    [response] = reference.client.ask(
        None, messages=HELLO, logprobs=3, prompt_logprobs=2, return_cumulative_logprob=True, **asked
    )
    entries = json.loads(response.outputs["logprobs"][0])
    assert [entry["token_id"] for entry in entries] == response.outputs["output_ids"]
    assert [len(entry["top"]) for entry in entries] == [3] * 4
    assert all(entry["rank"] == 1 for entry in entries), "greedy decoding takes the likeliest"
    total = sum(entry["logprob"] for entry in entries)
    assert response.outputs["cumulative_logprob"][0] == pytest.approx(total, rel=1e-5)
    prompt = json.loads(response.outputs["prompt_logprobs"][0])
    assert all(len(entry) >= 2 for entry in prompt)


def test_a_token_that_is_none_of_the_likeliest_is_beside_them(reference: Served) -> None:
    asked: dict[str, Any] = {"max_tokens": 16, "ignore_eos": True, "temperature": 50.0, "seed": 3}
    [response] = reference.client.ask(None, messages=HELLO, logprobs=2, **asked)
    entries = json.loads(response.outputs["logprobs"][0])
    assert all([other["rank"] for other in entry["top"]] == [1, 2] for entry in entries)
    assert sum(entry["rank"] > 2 for entry in entries) > len(entries) / 2


def test_a_bad_word_does_not_come(reference: Served, tokenizer: Any) -> None:
    asked: dict[str, Any] = {"max_tokens": 6, "ignore_eos": True, "return_output_ids": True}
    [free] = reference.client.ask(None, messages=HELLO, **asked)
    [first, *_] = free.outputs["output_ids"]
    [bound] = reference.client.ask(None, messages=HELLO, bad_token_ids=[first], **asked)
    assert first not in bound.outputs["output_ids"]
    word = tokenizer.decode([first])
    if tokenizer.encode(word, add_special_tokens=False) == [first]:
        [bound] = reference.client.ask(None, messages=HELLO, bad=[word], **asked)
        assert first not in bound.outputs["output_ids"]


def test_a_stop_token_ends_the_text(reference: Served) -> None:
    asked: dict[str, Any] = {"max_tokens": 6, "ignore_eos": True, "return_output_ids": True}
    [free] = reference.client.ask(None, messages=HELLO, **asked)
    ids = free.outputs["output_ids"]
    [ended] = reference.client.ask(
        None, messages=HELLO, stop_token_ids=[ids[3]], return_stop_reason=True, **asked
    )
    assert ended.outputs.get("output_ids", []) == ids[: ids.index(ids[3])]
    assert ended.outputs["stop_reason"] == [str(ids[3])]


def test_seeded_choices_are_several_and_the_same_again(reference: Served) -> None:
    asked: dict[str, Any] = {"n": 3, "temperature": 50.0, "seed": 11, "max_tokens": 8}
    asked |= {"ignore_eos": True, "return_output_ids": True}
    [one] = reference.client.ask(None, messages=HELLO, **asked)
    [again] = reference.client.ask(None, messages=HELLO, **asked)
    ids = one.outputs["output_ids"]
    assert again.outputs["output_ids"] == ids
    assert len({tuple(ids[start : start + 8]) for start in (0, 8, 16)}) == 3


def test_what_the_reference_engine_cannot_do_is_said(reference: Served) -> None:
    error = reference.client.refusal("hello", use_beam_search=True)
    assert error == "use_beam_search: not supported by the reference engine"


def test_token_ids_beyond_the_vocabulary_are_refused(reference: Served, tokenizer: Any) -> None:
    error = reference.client.refusal(None, input_ids=[len(tokenizer)])
    assert error.endswith(f"this model's token ids are 0 to {len(tokenizer) - 1}")


def test_priority_is_taken(reference: Served) -> None:
    [response] = reference.client.ask(None, messages=HELLO, max_tokens=1, priority=0.9)
    assert response.final
