"""Conversations: written as a prompt by the chat template of the engine's tokenizer."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models
from trtllm_model.chat import RESERVED, Chat, read
from trtllm_model.inputs import RequestError

from tests.model_repository.conftest import Served

HELLO = [{"role": "system", "content": "be short"}, {"role": "user", "content": "tokens=2"}]
RENDERED = "<system> be short\n<user> tokens=2"


def submitted(served: Served, prompt: str) -> dict[str, Any]:
    return [event for event in served.events("submit") if event["prompt"] == prompt][-1]


def test_messages_are_rendered_by_the_engines_tokenizer(served: Served) -> None:
    [response] = served.client.ask(None, messages=json.dumps(HELLO))
    assert response.text == ["0:0 0:1"]
    sampling = submitted(served, RENDERED)["sampling"]
    assert not sampling["add_special_tokens"], "the template has written them"
    assert sampling["exclude_input_from_output"]


def test_http_takes_messages_as_json_text(served: Served) -> None:
    response = served.client.generate(messages=json.dumps(HELLO))
    assert response.json()["text_output"] == "0:0 0:1"


def test_text_parts_become_one_content(served: Served) -> None:
    parts = [{"type": "text", "text": "tokens=1"}, {"type": "text", "text": "name=parts"}]
    served.client.ask(None, messages=json.dumps([{"role": "user", "content": parts}]))
    assert submitted(served, "<user> tokens=1\nname=parts")


def message(**fields: Any) -> str:
    return json.dumps([{"role": "user", "content": "tokens=1", **fields}])


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no JSON": ({"messages": "[{"}, "messages: is no JSON: "),
    "too deep": ({"messages": "[" * 100_000}, "messages: is nested too deeply"),
    "empty": ({"messages": ""}, "messages: is empty"),
    "no list": ({"messages": '{"role": "user"}'}, 'messages: is {"role": "user"}; a list in JSON'),
    "no message": ({"messages": "[]"}, "messages: is an empty list; send at least one"),
    "a string": ({"messages": '["hi"]'}, "messages[0]: is 'hi'; an object with role and content"),
    "no role": ({"messages": '[{"content": "hi"}]'}, "messages[0].role: is missing; a role"),
    "a number as role": ({"messages": message(role=7)}, "messages[0].role: is 7; a role such as"),
    "no content": ({"messages": message(content=None)}, "messages[0].content: is missing"),
    "a number as content": (
        {"messages": message(content=7)},
        "messages[0].content: is 7; a string",
    ),
    "an image": (
        {"messages": message(content=[{"type": "image_url"}])},
        'messages[0].content[0]: is {"type": "image_url"}; {"type": "text", "text": ...}',
    ),
    "calls": ({"messages": message(tool_calls="x")}, "messages[0].tool_calls: is 'x'; a list of"),
    "arguments": (
        {"messages": message(tool_calls=[{"function": {"arguments": "{"}}])},
        "messages[0].tool_calls[0].function.arguments: is no JSON",
    ),
    "half a character": ({"messages": message(content="\ud800")}, "chat template does not take"),
    "the template": ({"messages": message(role="nobody")}, "ValueError: nobody has no part in"),
    "tools": ({"messages": message(), "tools": "[1]"}, "tools[0]: is 1; an object is expected"),
    "kwargs": ({"messages": message(), "chat_template_kwargs": "[]"}, "an object in JSON is exp"),
    "a template of the client": (
        {"messages": message(), "chat_template_kwargs": '{"chat_template": "{{ 1 }}"}'},
        "chat_template_kwargs.chat_template: is not for the template; leave it out",
    ),
    "tools alone": ({"text_input": "tokens=1", "tools": "[]"}, "tools: has a meaning beside mess"),
    "two prompts": (
        {"text_input": "tokens=1", "messages": message()},
        "messages: cannot be sent with text_input; a request has one prompt",
    ),
}


@pytest.mark.parametrize(("inputs", "error"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_with_a_conversation_is_named(
    served: Served, inputs: dict[str, Any], error: str
) -> None:
    assert error in served.client.refusal(None, **inputs)
    response = served.client.generate(**inputs)
    assert response.status_code == 400
    assert error in response.json()["error"]


def test_tools_and_template_words_reach_the_template() -> None:
    template = "{{ tools | tojson }} {{ enable_thinking }} {{ messages[0].tool_calls | tojson }}"
    call = {"function": {"name": "weather", "arguments": {"place": "Oslo"}}}
    chat = Chat(
        [{"role": "assistant", "content": "", "tool_calls": [call]}],
        [{"type": "function", "function": {"name": "weather"}}],
        {"enable_thinking": False},
    )
    written = chat.render(tokenizer(template))
    assert '"name": "weather"' in written
    assert "False" in written
    assert '"place": "Oslo"' in written


def conversation(*messages: dict[str, Any], **documents: Any) -> Chat | None:
    """As a request holds it."""
    sent = {"messages": list(messages), **documents}
    return read(
        {
            name: np.array([json.dumps(value).encode()], dtype=np.object_)
            for name, value in sent.items()
        }
    )


def test_a_message_keeps_all_that_it_holds_and_its_calls_have_objects_as_arguments() -> None:
    calls = [
        {
            "id": "1",
            "type": "function",
            "function": {"name": "a", "arguments": '{"place": "Oslo"}'},
        },
        {"id": "2", "function": {"name": "b", "arguments": ""}},
        {"id": "3", "function": {"name": "c", "arguments": {"n": 1}}},
        {"id": "4", "function": {"name": "d"}},
    ]
    chat = conversation(
        {"role": "assistant", "content": None, "tool_calls": calls, "name": "me"},
        {"role": "tool", "content": [{"type": "text", "text": "x"}], "tool_call_id": "1"},
    )
    assert chat is not None
    functions = [
        {"name": "a", "arguments": {"place": "Oslo"}},
        {"name": "b", "arguments": {}},
        {"name": "c", "arguments": {"n": 1}},
        {"name": "d"},
    ]
    read_calls = [{**call, "function": one} for call, one in zip(calls, functions, strict=True)]
    assert chat.messages == [
        {"role": "assistant", "content": "", "tool_calls": read_calls, "name": "me"},
        {"role": "tool", "content": "x", "tool_call_id": "1"},
    ]
    assert (chat.tools, chat.template_kwargs) == (None, {})


def test_tools_and_words_for_the_template_are_those_that_were_sent() -> None:
    tool = {"type": "function", "function": {"name": "weather"}}
    chat = conversation(
        {"role": "user", "content": "hi"}, tools=[tool], chat_template_kwargs={"deep": True}
    )
    assert chat is not None
    assert (chat.tools, chat.template_kwargs) == ([tool], {"deep": True})


def test_a_request_without_a_conversation_has_none() -> None:
    assert read({}) is None
    for name, value in {"tools": b"[]", "chat_template_kwargs": b"{}"}.items():
        with pytest.raises(RequestError, match=f"{name}: has a meaning beside messages only"):
            read({name: np.array([value], dtype=np.object_)})


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_no_word_for_the_template_changes_what_the_tokenizer_does(name: str) -> None:
    with pytest.raises(RequestError, match=f"chat_template_kwargs.{name}: is not for the templ"):
        conversation({"role": "user", "content": "hi"}, chat_template_kwargs={name: 1})


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"role": "", "content": "x"}, "messages[1].role: is ''; a role such as user, system or"),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text"}]},
            'messages[1].content[1]: is {"type": "text"}; {"type": "text", "text": ...} is expect',
        ),
        (
            {"role": "user", "content": ["a"]},
            'messages[1].content[0]: is \'a\'; {"type": "text", "text": ...} is expected',
        ),
        (
            {"role": "user", "content": {"a": 1}},
            'messages[1].content: is {"a": 1}; a string or a list of parts is expected',
        ),
        (
            {"role": "assistant", "tool_calls": {"function": {}}},
            'messages[1].tool_calls: is {"function": {}}; a list of objects with a function is',
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {}}, {"function": "x"}]},
            "messages[1].tool_calls: is [",
        ),
        (
            {
                "role": "assistant",
                "tool_calls": [{"function": {}}, {"function": {"arguments": "{"}}],
            },
            "messages[1].tool_calls[1].function.arguments: is no JSON: Expecting",
        ),
    ],
)
def test_the_place_of_what_is_wrong_is_the_messages_own(
    message: dict[str, Any], error: str
) -> None:
    with pytest.raises(RequestError) as refused:
        conversation({"role": "user", "content": "hi"}, message)
    assert str(refused.value).startswith(error)


class Recording:
    """A tokenizer that writes down what its template is given."""

    def __init__(self, answer: Any = "text") -> None:
        self.answer, self.given = answer, dict[str, Any]()

    def apply_chat_template(self, messages: Any, **given: Any) -> Any:
        self.given = {"messages": messages, **given}
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_a_template_writes_text_up_to_the_answers_beginning_unless_told_otherwise() -> None:
    messages, tools = [{"role": "user", "content": "hi"}], [{"type": "function"}]
    tokenizer = Recording()
    assert Chat(messages, tools, {"deep": True}).render(tokenizer) == "text"
    given = {"messages": messages, "tools": tools, "tokenize": False, "deep": True}
    assert tokenizer.given == {**given, "add_generation_prompt": True}
    Chat(messages, None, {"add_generation_prompt": False}).render(tokenizer)
    assert tokenizer.given["add_generation_prompt"] is False
    assert tokenizer.given["tools"] is None


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ("", "messages: the tokenizer's chat template makes no text of them"),
        (
            KeyError("name"),
            "messages: the tokenizer's chat template does not take them: KeyError: 'name'",
        ),
    ],
)
def test_a_template_that_makes_nothing_of_a_conversation_is_named(answer: Any, error: str) -> None:
    with pytest.raises(RequestError) as refused:
        Chat([{"role": "user", "content": "hi"}], None, {}).render(Recording(answer))
    assert str(refused.value) == error


def test_a_tokenizer_without_a_template_says_so() -> None:
    with pytest.raises(
        RequestError, match=r"messages: .* because tokenizer\.chat_template is not set"
    ):
        Chat([{"role": "user", "content": "hi"}], None, {}).render(tokenizer(None))
    with pytest.raises(RequestError) as refused:
        Chat([{"role": "user", "content": "hi"}], None, {}).render(None)
    assert str(refused.value) == (
        "messages: this model's tokenizer has no chat template; send text_input"
    )


def tokenizer(template: str | None) -> Any:
    made: Any = import_module("transformers").PreTrainedTokenizerFast(  # heavy, and only here
        tokenizer_object=Tokenizer(models.BPE())
    )
    made.chat_template = template
    return made
