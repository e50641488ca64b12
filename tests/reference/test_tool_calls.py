"""Tool calls, reasoning and structured output of chats and responses, over the clients in use."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jsonschema
import pytest
from fastapi.testclient import TestClient

from builder import pipeline
from builder.documents import DATA
from builder.facts import data_file
from builder.facts import release as releases
from builder.facts.chat_turns import Parsers
from tensorrt_llm import options
from tensorrt_llm.answer import AnswerReader
from tensorrt_llm.server import OpenAIServer, own_surface
from tests.reference.conftest import LLAMA, EngineOf

ROWS = data_file.load(DATA / "parsers" / "tensorrt_llm.yaml", Parsers)
WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "unit": {"type": "string", "enum": ["c", "f"]},
            "place": {"$ref": "#/$defs/place"},
        },
        "required": ["city", "days", "unit", "place"],
        "$defs": {"place": {"type": "object", "properties": {"x": {"type": "number"}}}},
    },
}
TOOLS = [{"type": "function", "function": one} for one in (WEATHER, {"name": "now"})]
CALL = {"type": "function", "function": {"name": "get_weather"}}
CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
    "max_tokens": 900,
}
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
ANY_OBJECT: dict[str, Any] = {"type": "object"}
Serve = Callable[..., TestClient]

# The parsers of presets, of tool calls and reasoning, or why a rehearsal has no call.
OF_PRESETS: dict[str, tuple[str | None, str | None] | str] = {
    "deepseek-r1-0528-nvfp4-b200": ("deepseek_v3", "deepseek-r1"),
    "deepseek-r1-0528-nvfp4-gb200": ("deepseek_v3", "deepseek-r1"),
    "deepseek-r1-0528-nvfp4-gb200x16": ("deepseek_v3", "deepseek-r1"),
    "deepseek-v3.2-fp8-gb200": ("deepseek_v32", None),
    "deepseek-v3.2-fp8-h200": ("deepseek_v32", None),
    "deepseek-v3.2-gb200x32-prefill": "a prefill server answers no client",
    "deepseek-v3.2-nvfp4-b300": ("deepseek_v32", None),
    "deepseek-v3.2-nvfp4-b300-vllm": "the stand-in for vLLM has no tools",
    "deepseek-v3.2-nvfp4-gb200": ("deepseek_v32", None),
    "deepseek-v3.2-nvfp4-gb200x32": ("deepseek_v32", None),
    "deepseek-v3.2-nvfp4-gb300": ("deepseek_v32", None),
    "deepseek-v3.2-nvfp4-gb300-decode": ("deepseek_v32", None),
    "deepseek-v3.2-nvfp4-gb300-prefill": "a prefill server answers no client",
    "deepseek-v3.2-nvfp4-gb300-vllm": "the stand-in for vLLM has no tools",
    "deepseek-v4-pro-b200": ("deepseek_v4", "deepseek_v4"),
    "glm-5-nvfp4-gb200": ("glm47", None),
    "gpt-oss-120b-b200": "the server reads harmony without a parser; the stand-in does not",
    "gpt-oss-120b-h200": "the server reads harmony without a parser; the stand-in does not",
    "kimi-k2.5-nvfp4-gb200": ("kimi_k2", "kimi_k25"),
    "llama-3.3-70b-fp8-h100": "no parser of the release reads the model",
    "llama-3.3-70b-fp8-h100-vllm": "the stand-in for vLLM has no tools",
    "llama-tiny": "no parser of the release reads the model",
    "minimax-m2.5-nvfp4-b300": ("minimax_m2", "minimax_m2"),
    "minimax-m2.5-nvfp4-b300-vllm": "the stand-in for vLLM has no tools",
    "nemotron-3-super-nvfp4-b200": ("qwen3_coder", "nano-v3"),
    "nemotron-3-ultra-nvfp4-gb300": ("qwen3_coder", "nemotron-v3"),
    "qwen3-235b-nvfp4-gb200": ("qwen3", "qwen3"),
    "qwen3.5-397b-nvfp4-b300": ("qwen3_coder", "qwen3_5"),
    "qwen3.5-397b-nvfp4-b300-vllm": "the stand-in for vLLM has no tools",
}
# Each pair once, and the parsers of calls that no preset sets.
PAIRS = list(dict.fromkeys(pair for pair in OF_PRESETS.values() if isinstance(pair, tuple)))
PAIRS += [(row.names[0], None) for row in ROWS.tools if row.names[0] in ("deepseek_v31", "glm4")]


@pytest.fixture
def serve(engine: EngineOf) -> Serve:
    """A server in this process, with parsers and a backend for guided decoding."""

    def start(tools: str | None = "qwen3", reasoning: str | None = "qwen3") -> TestClient:
        llm = engine(LLAMA, guided_decoding_backend="xgrammar")
        surface = own_surface(tools, reasoning)
        return TestClient(OpenAIServer(llm, "m", surface=surface).app, base_url="http://t")

    return start


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release whose server takes all that clients send."""
    monkeypatch.setattr(type(options.release()), "requests_lack", ())


@pytest.fixture
def calling_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release whose server has the model call the function that a request names."""
    table = releases.load("1.3.0rc29")
    monkeypatch.setattr(type(table), "requests_lack", table.requests_lack)


def ask(client: TestClient, **body: Any) -> dict[str, Any]:
    answer = client.post("/v1/chat/completions", json={**CHAT, **body})
    assert answer.status_code == 200, answer.text
    [choice] = answer.json()["choices"]
    return choice  # type: ignore[no-any-return]


def deltas(client: TestClient, **body: Any) -> Iterator[dict[str, Any]]:
    """The choices of a stream."""
    answer = client.post("/v1/chat/completions", json={**CHAT, **body, "stream": True})
    for line in answer.text.splitlines():
        if line.startswith("data: {"):
            yield from json.loads(line.removeprefix("data: "))["choices"]


def is_right(call: Mapping[str, Any]) -> bool:
    schemas: dict[str, Any] = {"get_weather": WEATHER["parameters"], "now": {"type": "object"}}
    jsonschema.validate(json.loads(call["arguments"]), schemas[call["name"]])
    return True


@pytest.mark.parametrize("preset", sorted(path.stem for path in (DATA / "presets").glob("*.yaml")))
def test_every_preset_with_parsers_has_a_call_below_or_a_reason(preset: str) -> None:
    found = {flag.path: flag.value for flag in pipeline.plan(preset, []).plan.flags}
    pair = (found.get("--tool_parser"), found.get("--reasoning_parser"))
    expected = OF_PRESETS[preset]
    assert pair == ((None, None) if isinstance(expected, str) else expected)


@pytest.mark.parametrize(("parser", "reasoning"), PAIRS)
def test_a_call_comes_in_the_format_of_the_model_and_is_read_back(
    serve: Serve, parser: str, reasoning: str | None
) -> None:
    client = serve(parser, reasoning)
    thinks = {"chat_template_kwargs": {"thinking": True}}
    choice = ask(client, tools=TOOLS[:1], temperature=0, **thinks)
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls"
    assert (message["content"], bool(message["reasoning_content"])) == ("", reasoning is not None)
    [call] = message["tool_calls"]
    assert call["id"].startswith("chatcmpl-tool-") and is_right(call["function"])


def test_a_stream_has_the_reasoning_and_then_the_call(serve: Serve) -> None:
    client = serve("qwen3_coder", "qwen3")
    message = ask(client, tools=TOOLS[:1], temperature=0)["message"]
    parts = list(deltas(client, tools=TOOLS[:1], temperature=0))
    assert parts[-1]["finish_reason"] == "tool_calls"
    thought = "".join(part["delta"].get("reasoning_content", "") for part in parts)
    assert thought == message["reasoning_content"] != ""
    head, rest = [part for row in parts for part in row["delta"].get("tool_calls", ())]
    assert (head["index"], head["function"]) == (0, {"name": "get_weather", "arguments": ""})
    assert rest["function"] == {"arguments": message["tool_calls"][0]["function"]["arguments"]}


@pytest.mark.usefixtures("newer")
def test_the_choice_of_a_tool_is_open_required_named_or_none(serve: Serve) -> None:
    client = serve()
    assert ask(client, tools=TOOLS)["finish_reason"] == "tool_calls"
    result = [*CHAT["messages"], {"role": "tool", "content": "sunny", "tool_call_id": "x"}]
    required = ask(client, tools=TOOLS, tool_choice="required", messages=result)
    assert required["finish_reason"] == "tool_calls"
    named = ask(client, tools=TOOLS, tool_choice=CALL)
    [call] = named["message"]["tool_calls"]
    assert named["finish_reason"] == "stop" and is_right(call["function"])
    assert call["function"]["name"] == "get_weather"
    streamed = [
        part["function"]
        for row in deltas(client, tools=TOOLS, tool_choice=CALL, temperature=0)
        for part in row["delta"].get("tool_calls", ())
    ]
    assert {part["name"] for part in streamed} == {"get_weather"}
    assert is_right({**call["function"], "arguments": "".join(p["arguments"] for p in streamed)})
    for body in ({"tools": TOOLS, "tool_choice": "none"}, {"tools": TOOLS, "messages": result}):
        words = ask(client, **body, max_tokens=5)["message"]
        assert words["tool_calls"] == [] and words["content"] and "<" not in words["content"]


def test_what_a_release_refuses_in_a_chat_is_named_with_what_works(serve: Serve) -> None:
    strict = [{"function": {**WEATHER, "strict": True}}]
    body = {**CHAT, "tools": strict, "tool_choice": "required", "parallel_tool_calls": False}
    error = serve().post("/v1/chat/completions", json=body).json()
    assert error["message"] == (
        'tool_choice.required: release 1.2.1 refuses it; send "auto", or the schema as '
        'response_format of type "json"; tools.function.strict: release 1.2.1 refuses it; leave it '
        "out and check the arguments; parallel_tool_calls: release 1.2.1 refuses it; leave it out: "
        "the model decides how many functions it calls"
    )


def test_release_1_2_1_takes_a_name_that_is_not_in_tools(serve: Serve) -> None:
    choice = {"type": "function", "function": {"name": "misspelt"}}
    [call] = ask(serve(), tools=TOOLS, tool_choice=choice)["message"]["tool_calls"]
    assert call["function"]["name"] == "misspelt"


@pytest.mark.usefixtures("calling_named")
def test_a_later_release_has_the_named_function_called_and_refuses_others(serve: Serve) -> None:
    client = serve()
    found = ask(client, tools=TOOLS, tool_choice=CALL)
    [call] = found["message"]["tool_calls"]
    assert found["finish_reason"] == "tool_calls" and is_right(call["function"])
    assert call["function"]["name"] == "get_weather"
    choice = {"type": "function", "function": {"name": "misspelt"}}
    body = {**CHAT, "tools": TOOLS, "tool_choice": choice}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert "tool_choice.function.name: release" in answer.json()["message"]


def test_reasoning_is_read_only_if_the_request_asks_for_it(serve: Serve) -> None:
    form = {"type": "regex", "regex": "[1-9]"}
    message = ask(serve(None, "deepseek_v4"), response_format=form)["message"]
    assert (message["reasoning_content"], len(message["content"])) == ("", 1)


def test_without_a_parser_an_answer_is_text(serve: Serve) -> None:
    choice = ask(serve("no such parser", None), tools=TOOLS, max_tokens=5)
    assert (choice["finish_reason"], choice["message"]["tool_calls"]) == ("length", [])


@pytest.mark.parametrize(
    ("form", "schema"),
    [
        # Release 1.2.1 follows no schema inside.
        ({"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}, ANY_OBJECT),
        ({"type": "json_schema", "json_schema": PERSON}, PERSON),
        ({"type": "json", "schema": PERSON}, PERSON),
        ({"type": "json_object"}, ANY_OBJECT),
        ({"type": "regex", "regex": "[1-9][0-9]"}, {"type": "integer"}),
        ({"type": "ebnf", "ebnf": 'root ::= "7"'}, {"type": "integer"}),
        (
            {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": PERSON}},
            PERSON,
        ),
    ],
)
def test_a_response_format_is_followed_after_the_reasoning(
    serve: Serve, form: dict[str, Any], schema: dict[str, Any]
) -> None:
    reasoning = None if form["type"] == "structural_tag" else "deepseek-r1"
    message = ask(serve(None, reasoning), response_format=form)["message"]
    jsonschema.validate(json.loads(message["content"]), schema)
    assert bool(message["reasoning_content"]) == (reasoning is not None)


TEXTS = [
    "<think>so</think>\n\n<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n"
    "</tool_call>\n<tool_call>\n<function=f>\n<parameter=a>\nx<y\n</parameter>\n</function>\n</tool_call>",
    "no <thinking> at all",
    "no thoughts <tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>",
    "<think>never done <",
    "<think></think>a < b <tool",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_stream_is_read_like_the_whole_text(text: str) -> None:
    """However the text is cut, and with every letter of it."""
    tools = next(row for row in ROWS.tools if "qwen3_coder" in row.names)
    function = {"name": "f", "parameters": {"properties": {"a": {"type": ["integer", "string"]}}}}
    found = []
    for size in (len(text), 1, 3):
        reader = AnswerReader(ROWS.reasoning[0], tools, [function])
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        rows = [reader.push(piece, at == len(pieces) - 1) for at, piece in enumerate(pieces)]
        words = {key: "".join(row[key] for row in rows) for key in ("content", "reasoning_content")}
        calls = [part["function"] for row in rows for part in row.get("tool_calls", ())]
        found.append((words, calls))
    assert found[0] == found[1] == found[2]
    words, calls = found[0]
    if calls:
        expected = ["", '{"a": 1}', "", '{"a": "x<y"}']
        assert [part["arguments"] for part in calls] == expected[: len(calls)]
        thought = ("so", "") if len(calls) == 4 else ("", "no thoughts")
        assert (words["reasoning_content"], words["content"].strip()) == thought
    else:
        marks = text.replace("<think>", "").replace("</think>", "")
        assert words["reasoning_content"] + words["content"] == marks


def test_the_responses_api_answers_like_a_chat_over_the_openai_sdk(serve: Serve) -> None:
    import openai

    client = openai.OpenAI(api_key="none", base_url="http://t/v1", http_client=serve())
    tool: Any = {"type": "function", **WEATHER, "strict": True}
    response = client.responses.create(
        model="m", input="Hello", tools=[tool], instructions="Be kind."
    )
    assert [item.type for item in response.output] == ["reasoning", "function_call"]
    call: Any = response.output[1]
    assert is_right({"name": call.name, "arguments": call.arguments})
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    sent: Any = [
        {"role": "user", "content": "Hello"},
        *response.output[:0],
        call.model_dump(),
        result,
    ]
    words = client.responses.create(model="m", input=sent, tools=[tool], max_output_tokens=5)
    assert (words.status, bool(words.output_text)) == ("incomplete", True)
    form: Any = {"format": {"type": "json_schema", "name": "p", "schema": PERSON}}
    person = client.responses.create(model="m", input="Hello", text=form)
    jsonschema.validate(json.loads(person.output_text), PERSON)
    assert person.usage and person.usage.total_tokens > person.usage.output_tokens


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"stream": True}, "stream: not supported by the reference engine"),
        ({"tools": [{"type": "web_search"}]}, "tools.web_search: not supported"),
        ({"input": [{"type": "input_file"}]}, "input: an item of type input_file is not"),
        ({"input": [{"type": "function_call"}]}, "input: an item lacks 'name'"),
        ({"temperature": -1}, "temperature must be at least 0"),
        ({"tools": [{"type": "function"}]}, "function.name: Field required"),
    ],
)
def test_what_the_responses_api_lacks_here_is_refused(
    serve: Serve, body: dict[str, Any], message: str
) -> None:
    answer = serve().post("/v1/responses", json={"model": "m", "input": "Hello", **body})
    assert answer.status_code == 400
    assert message in answer.json()["message"]


def langchain(client: TestClient) -> Any:
    from langchain_openai import ChatOpenAI

    place: dict[str, Any] = {"base_url": "http://t/v1", "api_key": "none", "http_client": client}
    return ChatOpenAI(model="m", **place)


@pytest.mark.filterwarnings("ignore")
def test_langchain_gets_structured_output(serve: Serve) -> None:
    from pydantic import BaseModel

    class Person(BaseModel):
        name: str
        age: int

    model = langchain(serve())
    model.disabled_params = {"parallel_tool_calls": None}  # release 1.2.1 refuses it
    person = model.with_structured_output(Person, method="function_calling").invoke("A person")
    assert isinstance(person, Person)


@pytest.mark.usefixtures("newer")
@pytest.mark.filterwarnings("ignore")
def test_langchain_calls_tools(serve: Serve) -> None:
    model = langchain(serve())
    forced: Any = model.with_structured_output(
        PERSON | {"title": "Person"}, method="function_calling"
    )
    jsonschema.validate(forced.invoke("A person"), PERSON)
    [call] = model.bind_tools(TOOLS[:1]).invoke("Hello").tool_calls
    assert call["name"] == "get_weather" and call["args"].keys() >= {"city", "days"}


@pytest.fixture
def of_litellm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An event loop for LiteLLM, which opens one otherwise and never closes it; its own prices."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()


@pytest.mark.usefixtures("of_litellm")
@pytest.mark.filterwarnings("ignore")
def test_litellm_calls_tools(serve: Serve) -> None:
    import litellm
    import openai

    client = openai.OpenAI(api_key="none", base_url="http://t/v1", http_client=serve())
    messages = CHAT["messages"]
    answer: Any = litellm.completion("openai/m", messages, tools=TOOLS[:1], client=client)
    [call] = answer.choices[0].message.tool_calls
    assert is_right({"name": call.function.name, "arguments": call.function.arguments})
    assert answer.choices[0].finish_reason == "tool_calls"
