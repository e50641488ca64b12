"""Workloads: what is asked, exact in its lengths and the same for the same seed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.errors import BadInput
from launch.bench import datasets, workload
from launch.bench import prompts as sources
from launch.bench.prompts import Prompts
from launch.bench.workload import TEMPLATE


@pytest.fixture(scope="module")
def text(make_miniature: Callable[[str], Path]) -> Prompts:
    return sources.from_tokenizer(make_miniature("llama-tiny"))


def prompts(made: workload.BenchWorkload, count: int = 5) -> list[sources.Prompt | None]:
    return [call.prompt for call in made.calls(0, count)]


def test_the_same_seed_asks_the_same_and_another_does_not(text: Prompts) -> None:
    one, same, other = (workload.fixed(text, 20, 8, TEMPLATE, seed) for seed in (1, 1, 2))
    assert prompts(one) == prompts(same)
    assert not set(map(str, prompts(one))) & set(map(str, prompts(other)))


@pytest.mark.parametrize("count", [1, 7, 800])
def test_text_has_exactly_the_tokens_that_are_asked_for(text: Prompts, count: int) -> None:
    [prompt] = prompts(workload.fixed(text, count, 8, TEMPLATE), 1)
    assert isinstance(prompt, str)
    assert text.count(prompt) == count


def test_lengths_are_drawn_from_the_ratio_up_to_the_full_ones(text: Prompts) -> None:
    made = workload.fixed(text, 100, 50, TEMPLATE, range_ratio=0.8)
    requests = made.calls(0, 200)
    inputs = {text.count(str(one.prompt)) or 0 for one in requests}
    assert (min(inputs), max(inputs)) == (80, 100)
    assert (min(one.max_tokens for one in requests), max(one.max_tokens for one in requests)) == (
        40,
        50,
    )


def test_token_ids_stay_away_from_both_ends_of_the_vocabulary() -> None:
    [prompt] = prompts(workload.fixed(sources.from_token_ids(1000), 500, 8, TEMPLATE), 1)
    assert isinstance(prompt, tuple)
    assert len(prompt) == 500
    assert 125 <= min(prompt) <= max(prompt) < 500


def test_words_say_that_only_the_server_counts_them() -> None:
    made = workload.fixed(sources.from_word_list(), 10, 8, TEMPLATE)
    assert len(str(prompts(made, 1)[0]).split()) == 10
    assert "server's own count" in made.facts["prompts"]


def test_a_prefix_is_shared_within_its_group_only(text: Prompts) -> None:
    made = workload.shared_prefix(text, 30, 50, 8, TEMPLATE, groups=2)
    a, b, also_a, _ = (str(prompt) for prompt in prompts(made, 4))
    words = [one.split() for one in (a, b, also_a)]
    assert {text.count(one) for one in (a, b)} == {50}
    assert words[0][:25] == words[2][:25]
    assert words[0][:5] != words[1][:5]
    assert a != also_a


def test_a_task_of_chats_has_a_message_for_each_call(text: Prompts) -> None:
    made = workload.agent(text, 30, 8, TEMPLATE, calls=3, turn=5, chat=True)
    [task] = made.tasks(0, 1)
    counts = [text.count(call.messages[0]["content"]) for call in task if call.messages]
    assert counts == [30, 5, 5]


def conversation(*values: str) -> dict[str, object]:
    return {"conversations": [{"from": "human", "value": value} for value in values]}


@pytest.fixture
def conversations(tmp_path: Path) -> Path:
    rows = [conversation(f"what is {n}", "a number", "never asked") for n in range(20)]
    rows += [conversation("alone"), conversation("x", ""), conversation("long " * 50, "a number")]
    file = tmp_path / "share.json"
    file.write_text(json.dumps(rows))
    return file


def test_sharegpt_takes_the_first_two_turns_that_fit(text: Prompts, conversations: Path) -> None:
    made = datasets.sharegpt(text, conversations, TEMPLATE, osl=16, context=40)
    asked = {str(prompt) for prompt in prompts(made, made.size or 0)}
    assert asked == {f"what is {n}" for n in range(20)}
    assert {call.max_tokens for call in made.calls(0, 20)} == {16}


def test_sharegpt_asks_for_as_many_tokens_as_the_answer_has(
    text: Prompts, conversations: Path
) -> None:
    made = datasets.sharegpt(text, conversations, TEMPLATE)
    assert {call.max_tokens for call in made.calls(0, 20)} == {text.count("a number")}


def test_sharegpt_is_shuffled_by_the_seed(text: Prompts, conversations: Path) -> None:
    orders = [
        prompts(datasets.sharegpt(text, conversations, TEMPLATE, seed), 10) for seed in (0, 0, 1)
    ]
    assert orders[0] == orders[1] != orders[2]


def test_sharegpt_needs_a_tokenizer(conversations: Path) -> None:
    with pytest.raises(BadInput, match="token counts"):
        datasets.sharegpt(sources.from_word_list(), conversations, TEMPLATE)


def test_sharegpt_says_that_nothing_fits(text: Prompts, conversations: Path) -> None:
    with pytest.raises(BadInput, match="no conversation that the rule keeps, of 22"):
        datasets.sharegpt(text, conversations, TEMPLATE, osl=16, context=17)


def rows(file: Path, *found: dict[str, object] | str) -> Path:
    lines = (one if isinstance(one, str) else json.dumps(one) for one in found)
    file.write_text("\n".join(lines))
    return file


def row(at_ms: int, isl: int, *hash_ids: int) -> dict[str, object]:
    return {"timestamp": at_ms, "input_length": isl, "output_length": 9, "hash_ids": hash_ids}


def test_a_trace_shares_the_blocks_of_the_same_hash(text: Prompts, tmp_path: Path) -> None:
    file = rows(tmp_path / "t.jsonl", row(5000, 600, 1, 2), row(6500, 1030, 1, 2, 3))
    made = datasets.trace(text, file, TEMPLATE)
    first, second = (str(prompt) for prompt in prompts(made, 2))
    assert [text.count(one) for one in (first, second)] == [600, 1030]
    assert second.startswith(first)  # the short block is the begin of the whole one


def test_a_trace_starts_at_once_and_keeps_its_gaps(text: Prompts, tmp_path: Path) -> None:
    file = rows(tmp_path / "t.jsonl", row(6500, 10), row(5000, 20), row(9000, 30))
    made = datasets.trace(text, file, TEMPLATE)
    assert [call.at_s for call in made.timed(None, 1.0)] == [0, 1.5, 4]
    assert [call.at_s for call in made.timed(2, 2.0)] == [0, 0.75]
    assert text.count(str(made.timed(1, 1.0)[0].prompt)) == 20


def test_every_wrong_line_of_a_trace_is_named(text: Prompts, tmp_path: Path) -> None:
    file = rows(tmp_path / "t.jsonl", row(0, 10), "{", {"timestamp": 1}, row(0, 0))
    with pytest.raises(BadInput) as fault:
        datasets.trace(text, file, TEMPLATE)
    assert [problem.where for problem in fault.value.diagnostics] == [
        f"{file}:{n}" for n in (2, 3, 4)
    ]
