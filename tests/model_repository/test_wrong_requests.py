"""Nothing that a client sends is ignored: a wrong request is refused by name, over both protocols.

What other backends' clients send with the same meaning is honoured instead.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from tests.model_repository.conftest import Served
from tests.model_repository.triton_client import PARAMETER_FIELDS, Response

PROMPT = "tokens=20"
MAX_TOKENS = "sampling_param_max_tokens"
# Field -> its value, and words of the error.
REFUSED: dict[str, tuple[Any, str]] = {
    # Misspelt.
    "max_token": (3, f"max_token: is not an input of this model; write {MAX_TOKENS}"),
    "maxtokens": (3, f"write {MAX_TOKENS}"),
    "Max_Tokens": (3, f"write {MAX_TOKENS}"),
    "sampling_params_max_tokens": (3, f"write {MAX_TOKENS}"),
    "sampling_param_temprature": (1, "write sampling_param_temperature"),
    "temprature": (1, "write sampling_param_temperature"),
    "top-p": (1, "write sampling_param_top_p"),
    "streaming_": (True, "write streaming"),
    "stop_word": ("a", "write sampling_param_stop"),
    "retrun_finish_reason": (True, "write return_finish_reason"),
    "cumulative_texts": (True, "write cumulative_text"),
    "textinput": ("a", "write text_input"),
    "no_such_field": (1, "no_such_field: is not an input of this model"),
    "Cumulative_Text": (True, "write cumulative_text"),
    # Other backends' and servers' names without the same meaning here.
    "max_new_tokens": (3, f"write {MAX_TOKENS}"),
    "max_length": (3, f"write {MAX_TOKENS}, which counts the answer alone"),
    "max_completion_tokens": (3, f"write {MAX_TOKENS}"),
    "request_output_len": (3, f"write {MAX_TOKENS}"),
    "beam_width": (2, "write sampling_param_best_of"),
    "return_log_probs": (True, "write sampling_param_logprobs"),
    "return_context_logits": (True, "return_context_logits: is not an input of this model"),
    "end_id": (2, "the tokenizer's own is used"),
    "do_sample": (True, "sampling_param_temperature 0 is greedy"),
    "prompt": ("a", "write text_input"),
    "model": ("llama", "the model is named by the address"),
    "sampling_parameters": ('{"max_tokens": 3}', "write its fields one by one"),
    "lora_name": ("a", "this model has no adapters"),
    "image_bytes": ("a", "this model reads text alone"),
    "return_full_text": (True, "write sampling_param_exclude_input_from_output"),
    "truncate": (5, "write sampling_param_truncate_prompt_tokens"),
    "num_draft_tokens": (3, "the server's options say of drafts"),
    "logit_bias": ("a", "logit_bias: is not an input of this model"),
    # Wrong types and values.
    "max_tokens": ("3", "max_tokens: is '3'; it must be a whole number"),
    "top_k": (True, "top_k: is true; it must be a whole number"),
    "seed": (-1, "seed: is -1; it must be a whole number from 0"),
    "n": (0, "sampling_param_n: is 0; it must be between 1 and 128"),
    "temperature": ("hot", "temperature: is 'hot'; it must be a number"),
    "top_p": (7, "sampling_param_top_p: is 7; it must be above 0 and at most 1"),
    "stream": (1, "stream: is 1; it must be true or false"),
    "stop_words": (5, "stop_words: is 5; it must be a string"),
    "cumulative_text": (1, "cumulative_text: is 1; it must be true or false"),
    "ignore_eos": ("no", "ignore_eos: is 'no'; it must be true or false"),
    # In two places that do not agree.
    "min_length": (25, "sampling_param_min_tokens: is 25; it must be at most max_tokens"),
}
# In `/generate` alone; over gRPC they are Triton's own parameters.
REFUSED_OVER_HTTP: dict[str, tuple[Any, str]] = {
    **REFUSED,
    "timeout": (-5, "timeout: is -5"),
    "TIMEOUT": (5, "TIMEOUT: is not an input of this model; write timeout"),
    "sequence_id": (5, "sequence_id: is not an input of this model; leave it out"),
    "triton_enable_empty_final_response": (True, "triton_enable_empty_final_response: is not an"),
    # Refused by Triton itself.
    "stop_sequences": (["a"], "'stop_sequences' has invalid type"),
    "bad_words": (["a"], "'bad_words' has invalid type"),
    "messages_": ([{"role": "user"}], "'messages_' has invalid type"),
    "tokens": (None, "'tokens' has invalid type"),
    MAX_TOKENS: ([1, 2], "sampling_param_max_tokens"),
}
HONOURED: dict[str, Any] = {
    "max_tokens": 3,
    MAX_TOKENS: 3,
    "stop_words": "0:3",
}


def over_grpc(served: Served, **parameters: Any) -> str:
    given = {**({} if "min_length" not in parameters else {"max_tokens": 20}), **parameters}
    return served.client.refusal(PROMPT, parameters=given)


def submitted(served: Served, words: str) -> dict[str, Any]:
    sampling: dict[str, Any] = served.wait_for("submit", f"{PROMPT} {words}")["sampling"]
    return sampling


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_parameter_of_grpc_is_refused_by_name(served: Served, name: str) -> None:
    value, words = REFUSED[name]
    error = over_grpc(served, **{name: value})
    assert name in error or words.startswith("sampling_param_")
    assert words in error


@pytest.mark.parametrize("place", ["beside", "parameters"])
@pytest.mark.parametrize("name", REFUSED_OVER_HTTP)
def test_a_wrong_field_of_generate_is_refused_by_name(
    served: Served, name: str, place: str
) -> None:
    value, words = REFUSED_OVER_HTTP[name]
    fields = {**({"max_tokens": 20} if name == "min_length" else {}), name: value}
    body = fields if place == "beside" else {"parameters": fields}
    for verb in ("generate", "generate_stream"):
        response = served.client.post(verb, {"text_input": PROMPT, **body})
        assert response.status_code >= 400
        assert words in response.text


@pytest.mark.parametrize(
    ("name", "datatype", "data"),
    [
        ("max_tokens", "INT32", struct.pack("<i", 3)),
        ("sampling_parameters", "BYTES", struct.pack("<I", 2) + b"{}"),
        ("stream", "BOOL", b"\x01"),
        ("request_output_len", "INT32", struct.pack("<i", 3)),
        (MAX_TOKENS, "INT64", struct.pack("<q", 3)),
        ("streaming", "INT32", struct.pack("<i", 1)),
    ],
)
def test_a_wrong_input_of_grpc_is_refused_by_name(
    served: Served, name: str, datatype: str, data: bytes
) -> None:
    request = served.client.request(PROMPT)
    request.inputs.add(name=name, datatype=datatype, shape=[1])
    request.raw_input_contents.append(data)
    [answer] = served.client.responses(request)
    assert f"'{name}'" in answer.error


def test_an_output_that_the_model_does_not_have_is_refused_by_name(served: Served) -> None:
    request = served.client.request(PROMPT)
    request.outputs.add(name="text")
    [answer] = served.client.responses(request)
    assert "'text'" in answer.error


def naming(served: Served, *outputs: str, **inputs: Any) -> Response:
    """The last response to a request that names the outputs it wants to Triton."""
    request = served.client.request("tokens=2", **inputs)
    for name in outputs:
        request.outputs.add(name=name)
    *_, last = served.client.responses(request)
    return last


def test_an_output_that_is_named_to_triton_comes(served: Served) -> None:
    found = naming(served, "text_output", "finish_reason", "output_lengths").outputs
    assert found == {"text_output": ["0:0 0:1"], "finish_reason": ["stop"], "output_lengths": [2]}
    assert naming(served, "text_output", return_finish_reason=True).outputs.keys() == {
        "text_output"
    }


def test_an_output_that_needs_an_input_is_refused_without_it(served: Served) -> None:
    assert naming(served, "logprobs").error == (
        "logprobs: is an output only with sampling_param_logprobs above 0; send that too"
    )
    assert naming(served, "logprobs", logprobs=1).outputs.keys() == {"logprobs"}


def test_a_sequence_of_grpc_is_refused(served: Served) -> None:
    assert over_grpc(served, sequence_id=5).startswith("sequence_id: leave it out")
    assert over_grpc(served, sequence_start=True).startswith("sequence_start and sequence_end: ")


def test_one_name_in_two_places_of_a_body_is_refused(served: Served) -> None:
    body = {"text_input": PROMPT, "max_tokens": 3, "parameters": {"max_tokens": 4}}
    answer = served.client.post("generate", body)
    assert answer.json()["error"] == "max_tokens: is sent twice; send it once"


def test_what_clients_of_engines_built_ahead_of_time_send_is_honoured(served: Served) -> None:
    sent = {"text_input": PROMPT, "max_tokens": 3, "bad_words": "", "stop_words": ""}
    assert served.client.generate(**sent).json()["text_output"].strip() == "0:0 0:1 0:2"


@pytest.mark.parametrize("name", HONOURED)
def test_a_short_name_is_honoured_over_both_protocols(served: Served, name: str) -> None:
    sent = {name: HONOURED[name]}
    [response] = served.client.ask(PROMPT, parameters=sent)
    assert response.text[0].strip() == "0:0 0:1 0:2"
    for body in (sent, {"parameters": sent}):
        answer = served.client.generate(text_input=PROMPT, **body)
        assert answer.json()["text_output"].strip() == "0:0 0:1 0:2"


def test_what_clients_of_the_vllm_backend_send_is_honoured(served: Served) -> None:
    prompt = f"{PROMPT} step_ms=20 name=vllm"
    sent = {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "seed": 7, "max_tokens": 4}
    body = {"text_input": prompt, "stream": True, "exclude_input_in_output": True}
    answer = served.client.post("generate_stream", {**body, "parameters": sent})
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line]
    assert "".join(event["text_output"] for event in events) == "0:0 0:1 0:2 0:3"
    assert len(events) > 1
    sampling = submitted(served, "step_ms=20 name=vllm")
    assert {name: sampling[name] for name in ("top_k", "seed", "max_tokens")} == {
        "top_k": 5,
        "seed": 7,
        "max_tokens": 4,
    }
    assert sampling["temperature"] == pytest.approx(0.5)
    assert sampling["exclude_input_from_output"] is True


def test_stop_over_grpc_is_a_word_or_the_end_of_a_request(served: Served) -> None:
    [response] = served.client.ask(PROMPT, parameters={"stop": "0:2"})
    assert response.text[0].strip() == "0:0 0:1"
    assert served.client.refusal("", id="nobody", parameters={"stop": True}) == (
        "no request nobody is running"
    )


@pytest.mark.parametrize("sent", [0.25, "0.25"])
def test_a_fraction_comes_as_a_number_or_a_string_over_grpc(served: Served, sent: Any) -> None:
    words = f"name=fraction-{type(sent).__name__}"
    served.client.ask(f"{PROMPT} {words}", parameters={"temperature": sent})
    assert submitted(served, words)["temperature"] == 0.25


def test_the_same_in_two_places_must_agree(served: Served) -> None:
    served.client.ask(PROMPT, parameters={"max_tokens": 3}, max_tokens=3)
    for refusal in (
        served.client.refusal(PROMPT, parameters={"max_tokens": 3}, max_tokens=4),
        served.client.generate(text_input=PROMPT, max_tokens=3, **{MAX_TOKENS: 4}).json()["error"],
    ):
        assert refusal == f"max_tokens: is 3, and {MAX_TOKENS} says otherwise; send one of them"


def test_the_id_of_generate_is_no_parameter(served: Served) -> None:
    assert served.client.generate(text_input="tokens=1", id="seven").json()["id"] == "seven"


def test_every_type_of_parameter_that_grpc_has_is_sent_here() -> None:
    fields = service_pb2.InferParameter.DESCRIPTOR.oneofs_by_name["parameter_choice"].fields
    assert set(PARAMETER_FIELDS.values()) <= {field.name for field in fields}
