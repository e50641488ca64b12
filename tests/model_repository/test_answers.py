"""What the Triton model answers: text, deltas, optional outputs, over gRPC and HTTP."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

from tests.model_repository.conftest import Served
from tests.model_repository.triton_client import Response


def joined(responses: list[Response]) -> list[str]:
    """The text of every choice."""
    return ["".join(parts) for parts in zip(*(r.text for r in responses), strict=True)]


def test_http_generate_answers_with_the_whole_text(served: Served) -> None:
    response = served.client.generate(text_input="tokens=3", return_finish_reason=True)
    assert response.status_code == 200
    assert response.json() == {
        "model_name": "tensorrt_llm",
        "model_version": "1",
        "text_output": "0:0 0:1 0:2",
        "finish_reason": "stop",
    }


def test_a_stream_carries_new_text_only_and_ends_with_a_final_response(served: Served) -> None:
    *parts, last = served.client.ask("tokens=3 step_ms=20", streaming=True)
    assert joined([*parts, last]) == ["0:0 0:1 0:2"]
    assert last.final
    assert parts
    assert not any(part.final for part in parts)


def test_http_generate_stream_carries_the_same_parts(served: Served) -> None:
    response = served.client.generate_stream(text_input="tokens=3 step_ms=20", streaming=True)
    events = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    texts = [json.loads(event)["text_output"] for event in events]
    assert len(texts) > 1
    assert "".join(texts) == "0:0 0:1 0:2"


def test_a_step_without_new_text_is_not_sent(served: Served) -> None:
    responses = served.client.ask("tokens=6 silent_at=2 step_ms=20", streaming=True)
    assert all(response.text[0] for response in responses)
    assert joined(responses) == ["0:0 0:1 0:2 0:3 0:4 0:5"]


def test_a_stream_with_best_of_carries_the_new_text_of_every_sequence(served: Served) -> None:
    responses = served.client.ask("tokens=2", streaming=True, best_of=3)
    assert joined(responses) == ["0:0 0:1", "1:0 1:1", "2:0 2:1"]


def test_without_streaming_best_of_gives_the_best_sequence(served: Served) -> None:
    [response] = served.client.ask("tokens=1 name=best", best_of=3)
    assert response.text == ["0:0"]
    [submitted] = [e for e in served.events("submit") if e["prompt"] == "tokens=1 name=best"]
    assert submitted["sampling"]["best_of"] == 3
    assert submitted["sampling"]["n"] == 1


def test_every_sampling_parameter_reaches_the_engine(served: Served) -> None:
    served.client.ask(
        "tokens=1 name=sampling",
        temperature=0.5,
        top_k=7,
        top_p=0.25,
        frequency_penalty=-1.5,
        max_tokens=9,
        seed=2**63 + 1,
        sampling_param_stop=["one", "zwölf"],
    )
    [submitted] = [e for e in served.events("submit") if e["prompt"] == "tokens=1 name=sampling"]
    expected = {
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.25,
        "frequency_penalty": -1.5,
        "presence_penalty": None,
        "max_tokens": 9,
        "seed": 2**63 + 1,
        "stop": ["one", "zwölf"],
    }
    assert submitted["sampling"].items() >= expected.items()


def test_optional_outputs_come_when_asked_for_and_have_their_declared_types(
    served: Served,
) -> None:
    [response] = served.client.ask(
        "tokens=2 name=outputs",
        return_finish_reason=True,
        return_stop_reason=True,
        return_cumulative_logprob=True,
    )
    assert response.outputs == {
        "text_output": ["0:0 0:1"],
        "finish_reason": ["stop"],
        "stop_reason": ["None"],
        "cumulative_logprob": [-1.0],
    }
    assert response.datatypes["cumulative_logprob"] == "FP32"
    assert response.datatypes["finish_reason"] == "BYTES"


def test_a_number_that_the_engine_does_not_know_is_left_out(served: Served) -> None:
    response = served.client.generate(text_input="tokens=1 blind=1", return_cumulative_logprob=True)
    assert response.json()["text_output"] == "0:0"
    assert "cumulative_logprob" not in response.json()


def test_performance_metrics_come_with_the_last_response(served: Served) -> None:
    prompt = "tokens=2 step_ms=20"
    *others, last = served.client.ask(prompt, streaming=True, return_perf_metrics=True)
    assert all(list(response.outputs) == ["text_output"] for response in others)
    metrics = {
        "kv_cache_reused_block": [3],
        "kv_cache_missed_block": [1],
        "kv_cache_alloc_new_blocks": [2],
        "kv_cache_alloc_total_blocks": [4],
        "kv_cache_hit_rate": [0.75],
        "arrival_time_ns": [10_000_000_000],
        "first_scheduled_time_ns": [10_000_005_000],
        "first_token_time_ns": [11_000_000_000],
        "last_token_time_ns": [86_400_000_000_000],
        "acceptance_rate": [0.5],
        "total_accepted_draft_tokens": [6],
        "total_draft_tokens": [12],
    }
    assert last.outputs.items() >= metrics.items()
    assert last.datatypes["arrival_time_ns"] == "INT64"


def test_concurrent_streams_do_not_mix(served: Served) -> None:
    def one(index: int) -> tuple[str, set[str]]:
        prompt = f"tokens=40 step_ms=2 text=w{index}"
        responses = served.client.ask(prompt, id=f"id-{index}", streaming=True, max_tokens=40)
        text = "".join(response.text[0] for response in responses)
        return text, {response.id for response in responses}

    with ThreadPoolExecutor(16) as pool:
        for index, (text, ids) in enumerate(pool.map(one, range(16))):
            assert text.split() == [f"w{index}"] * 40
            assert ids == {f"id-{index}"}
