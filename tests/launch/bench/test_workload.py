"""Workloads: what is asked, exact in its lengths and the same for the same seed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from builder.errors import BadInput
from launch.bench import workload
from launch.bench.workload import TEMPLATE, Prompts


@pytest.fixture(scope="module")
def text(make_miniature: Callable[[str], Path]) -> Prompts:
    return workload.from_tokenizer(make_miniature("llama-tiny"))


def prompts(made: workload.BenchWorkload, count: int = 5) -> list[workload.Prompt | None]:
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
    [prompt] = prompts(workload.fixed(workload.from_token_ids(1000), 500, 8, TEMPLATE), 1)
    assert isinstance(prompt, tuple)
    assert len(prompt) == 500
    assert 125 <= min(prompt) <= max(prompt) < 500


def test_words_say_that_only_the_server_counts_them() -> None:
    made = workload.fixed(workload.from_word_list(), 10, 8, TEMPLATE)
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


def test_calls_and_tasks_have_their_places_from_any_first_one_on(text: Prompts) -> None:
    made = workload.fixed(text, 10, 8, TEMPLATE)
    every = made.calls(0, 7)
    later = made.calls(4, 3)
    assert [call.index for call in later] == [0, 1, 2]
    assert [call.prompt for call in later] == [call.prompt for call in every[4:]]
    tasks = workload.agent(text, 10, 8, TEMPLATE, calls=2)
    found = tasks.tasks(3, 2)
    assert [[call.task for call in task] for task in found] == [[0, 0], [1, 1]]
    assert found[1][0].prompt == tasks.tasks(4, 1)[0][0].prompt == tasks.request(4).prompt


def test_each_kind_says_what_it_asks(text: Prompts) -> None:
    """As the document of a run holds it, and in words."""
    source = {"prompts": text.source}
    assert workload.fixed(text, 20, 8, TEMPLATE).facts == {
        "isl": 20,
        "osl": 8,
        "range_ratio": 1.0,
        "words": "20 prompt tokens, 8 output tokens",
        **source,
    }
    assert workload.fixed(text, 20, 8, TEMPLATE, range_ratio=0.5).facts["words"] == (
        "10 to 20 prompt tokens, 4 to 8 output tokens"
    )
    assert workload.shared_prefix(text, 5, 20, 8, TEMPLATE, groups=3).facts == {
        "isl": 20,
        "osl": 8,
        "prefix": 5,
        "groups": 3,
        **source,
        "words": "20 prompt tokens, of which 5 are shared within 3 groups, 8 output tokens",
    }
    assert workload.agent(text, 20, 8, TEMPLATE, calls=4, turn=6).facts == {
        "isl": 20,
        "osl": 8,
        "calls": 4,
        "turn": 6,
        **source,
        "words": "tasks of 4 calls: 20 prompt tokens, then 6 new ones, 8 output tokens each",
    }


def test_tasks_are_of_five_calls_and_200_new_tokens_where_nothing_is_said(text: Prompts) -> None:
    facts = workload.agent(text, 20, 8, TEMPLATE).facts
    assert (facts["calls"], facts["turn"]) == (5, 200)


@pytest.mark.parametrize("chat", [False, True])
def test_a_call_has_what_all_requests_share_and_its_prompt(text: Prompts, chat: bool) -> None:
    template = replace(TEMPLATE, temperature=0.5, headers={"a": "b"})
    [[first, later]] = workload.agent(text, 9, 8, template, calls=2, turn=4, chat=chat).tasks(0, 1)
    for call, count in ((first, 9), (later, 4)):
        said = call.messages[0]["content"] if call.messages else str(call.prompt)
        assert text.count(said) == count
        assert call == replace(
            template,
            prompt=None if chat else said,
            messages=({"role": "user", "content": said},) if chat else None,
            max_tokens=8,
            task=0,
        )


def test_a_drawn_length_is_never_none_at_all(text: Prompts) -> None:
    made = workload.fixed(text, 3, 1, TEMPLATE, range_ratio=0.1)
    counts = [(text.count(str(one.prompt)), one.max_tokens) for one in made.calls(0, 60)]
    assert {isl for isl, _ in counts} == {1, 2, 3}
    assert {osl for _, osl in counts} == {1}
    assert made.facts["words"] == "1 to 3 prompt tokens, 1 output tokens"


def test_prefixes_of_token_ids_are_shared_too() -> None:
    made = workload.shared_prefix(workload.from_token_ids(1000), 6, 10, 8, TEMPLATE, groups=2)
    a, b, also_a, _ = prompts(made, 4)
    assert isinstance(a, tuple)
    assert isinstance(b, tuple)
    assert isinstance(also_a, tuple)
    assert [len(one) for one in (a, b, also_a)] == [10, 10, 10]
    assert a[:6] == also_a[:6] != b[:6]
    assert a[6:] != also_a[6:]


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
    made = workload.sharegpt(text, conversations, TEMPLATE, osl=16, context=40)
    asked = {str(prompt) for prompt in prompts(made, made.facts["conversations"])}
    assert asked == {f"what is {n}" for n in range(20)}
    assert {call.max_tokens for call in made.calls(0, 20)} == {16}


def test_sharegpt_asks_for_as_many_tokens_as_the_answer_has(
    text: Prompts, conversations: Path
) -> None:
    made = workload.sharegpt(text, conversations, TEMPLATE)
    assert {call.max_tokens for call in made.calls(0, 20)} == {text.count("a number")}


def test_sharegpt_is_shuffled_by_the_seed(text: Prompts, conversations: Path) -> None:
    orders = [
        prompts(workload.sharegpt(text, conversations, TEMPLATE, seed), 10) for seed in (0, 0, 1)
    ]
    assert orders[0] == orders[1] != orders[2]


def test_sharegpt_needs_a_tokenizer(conversations: Path) -> None:
    with pytest.raises(BadInput, match="token counts"):
        workload.sharegpt(workload.from_word_list(), conversations, TEMPLATE)


def test_sharegpt_says_that_nothing_fits(text: Prompts, conversations: Path) -> None:
    with pytest.raises(BadInput, match="no conversation that the rule keeps, of 22"):
        workload.sharegpt(text, conversations, TEMPLATE, osl=16, context=17)


@pytest.mark.parametrize(
    "odd",
    [
        {"conversations": 5},
        {"conversations": {"a": 1}},
        {"conversations": ["what is it", "a number"]},
        {"conversations": [{"value": 5}, {"value": ["x"]}]},
        {"conversation": "text"},
        {},
    ],
)
def test_sharegpt_leaves_out_what_is_no_conversation(
    text: Prompts, tmp_path: Path, odd: dict[str, object]
) -> None:
    file = tmp_path / "share.json"
    file.write_text(json.dumps([odd, conversation("what is it", "a number")]))
    assert workload.sharegpt(text, file, TEMPLATE).facts["conversations"] == 1


def rows(file: Path, *found: dict[str, object] | str) -> Path:
    lines = (one if isinstance(one, str) else json.dumps(one) for one in found)
    file.write_text("\n".join(lines))
    return file


def row(at_ms: int, isl: int, *hash_ids: int) -> dict[str, object]:
    return {"timestamp": at_ms, "input_length": isl, "output_length": 9, "hash_ids": hash_ids}


def test_a_trace_shares_the_blocks_of_the_same_hash(text: Prompts, tmp_path: Path) -> None:
    file = rows(tmp_path / "t.jsonl", row(5000, 600, 1, 2), row(6500, 1030, 1, 2, 3))
    made = workload.trace(text, file, TEMPLATE)
    first, second = (str(prompt) for prompt in prompts(made, 2))
    assert [text.count(one) for one in (first, second)] == [600, 1030]
    assert second.startswith(first)  # the short block is the begin of the whole one


def test_a_trace_starts_at_once_and_keeps_its_gaps(text: Prompts, tmp_path: Path) -> None:
    file = rows(tmp_path / "t.jsonl", row(6500, 10), row(5000, 20), row(9000, 30))
    made = workload.trace(text, file, TEMPLATE)
    assert [call.at_s for call in made.timed(None, 1.0)] == [0, 1.5, 4]
    assert [call.at_s for call in made.timed(2, 2.0)] == [0, 0.75]
    assert text.count(str(made.timed(1, 1.0)[0].prompt)) == 20


@pytest.mark.parametrize(
    "wrong",
    [
        {"timestamp": "nan"},
        {"timestamp": "inf"},
        {"input_length": 10**12},
        {"output_length": 1e300},
        {"input_length": 10**400},
        {"hash_ids": 5},
        {"hash_ids": [[1]]},
    ],
)
def test_a_row_of_a_trace_is_one_that_can_be_asked(
    text: Prompts, tmp_path: Path, wrong: dict[str, object]
) -> None:
    file = rows(tmp_path / "t.jsonl", {**row(0, 10), **wrong})
    with pytest.raises(BadInput, match="is not a row of a trace"):
        workload.trace(text, file, TEMPLATE)


@pytest.mark.parametrize("ids", [{"hash_ids": None}, {"hash_ids": []}, {}])
def test_a_row_of_a_trace_may_share_no_blocks(
    text: Prompts, tmp_path: Path, ids: dict[str, object]
) -> None:
    asked = {"timestamp": 0, "input_length": 600, "output_length": 9, **ids}
    made = workload.trace(text, rows(tmp_path / "t.jsonl", asked), TEMPLATE)
    assert text.count(str(prompts(made, 1)[0])) == 600


def test_every_wrong_line_of_a_trace_is_named(text: Prompts, tmp_path: Path) -> None:
    file = rows(tmp_path / "t.jsonl", row(0, 10), "{", {"timestamp": 1}, row(0, 0))
    with pytest.raises(BadInput) as fault:
        workload.trace(text, file, TEMPLATE)
    assert [problem.where for problem in fault.value.diagnostics] == [
        f"{file}:{n}" for n in (2, 3, 4)
    ]
