"""Guided answers follow their guide: alone, in batches, with drafts, streams, stops and limits."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from tensorrt_llm import GuidedDecodingParams, SamplingParams, options
from tests.reference.conftest import DEEPSEEK, LLAMA, EngineOf, generate, mtp

PROMPT = "A person as JSON:"
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}},
    },
    "required": ["name", "age", "tags"],
    "$defs": {"tag": {"enum": ["a", "b"]}},
}
GRAMMAR = 'root ::= "yes" | "no" tail\ntail ::= [0-9]+ " end"'
THINKS = {
    "type": "sequence",
    "elements": [
        {"type": "tag", "begin": "<think>", "content": {"type": "any_text"}, "end": "</think>"},
        {"type": "or", "elements": [{"type": "const_string", "value": "done/"}]},
        {"type": "regex", "pattern": "a/b"},
        {"type": "grammar", "grammar": GRAMMAR},
    ],
}
CALLS = {"begin": "<f=x>", "content": {"type": "json_schema", "json_schema": PERSON}, "end": "</f>"}
NEEDED = {"triggers": ["<f="], "at_least_one": True, "tags": [CALLS]}
OLDER = {"structures": [{"begin": "<f=x>", "schema": PERSON, "end": "</f>"}], "triggers": ["<f="]}


def is_person(text: str) -> bool:
    jsonschema.validate(json.loads(text), PERSON)
    return True


def matches(pattern: str) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(pattern, text, re.DOTALL) is not None


def tag(form: dict[str, Any]) -> GuidedDecodingParams:
    return GuidedDecodingParams(structural_tag=json.dumps({"format": form}))


GUIDES = [
    pytest.param(GuidedDecodingParams(json=PERSON), is_person, id="schema"),
    pytest.param(GuidedDecodingParams(json=json.dumps(PERSON)), is_person, id="schema as text"),
    pytest.param(GuidedDecodingParams(json_object=True), json.loads, id="object"),
    pytest.param(GuidedDecodingParams(regex="[a-z]+@[a-z]+"), matches("[a-z]+@[a-z]+"), id="regex"),
    pytest.param(GuidedDecodingParams(grammar=GRAMMAR), matches("yes|no[0-9]+ end"), id="grammar"),
    pytest.param(
        tag(THINKS), matches("<think>[A-Za-z ]+</think>done/a/b(yes|no[0-9]+ end)"), id="sequence"
    ),
    pytest.param(
        tag({"type": "triggered_tags", **NEEDED}), matches('.*<f=x>{"name.*}</f>.*'), id="tags"
    ),
    pytest.param(
        tag(
            {"type": "tags_with_separator", "separator": ";", "at_least_one": True, "tags": [CALLS]}
        ),
        matches('<f=x>{"name.*}</f>(;<f=x>.*)*'),
        id="separated tags",
    ),
    pytest.param(
        GuidedDecodingParams(structural_tag=json.dumps(OLDER)),
        matches('[A-Za-z ]*(<f=x>{"name.*}</f>[A-Za-z ]*)*'),
        id="older tags",
    ),
]


@pytest.mark.parametrize(("guide", "holds"), GUIDES)
@pytest.mark.parametrize("own", [{}, {"temperature": 1.0, "seed": 3}], ids=["greedy", "sampled"])
def test_an_answer_follows_its_guide_to_the_end(
    engine: EngineOf,
    guide: GuidedDecodingParams,
    holds: Callable[[str], Any],
    own: dict[str, Any],
) -> None:
    llm = engine(LLAMA, guided_decoding_backend="xgrammar")
    params = SamplingParams(max_tokens=400, guided_decoding=guide, **own)
    [output] = llm.generate_async(PROMPT, params).result(60).outputs
    assert (output.finish_reason, bool(holds(output.text))) == ("stop", True), output.text


def test_each_sequence_of_a_batch_has_its_own_place_in_its_own_guide(engine: EngineOf) -> None:
    llm = engine(LLAMA, guided_decoding_backend="xgrammar")
    free = SamplingParams(max_tokens=30, ignore_eos=True)
    alone = generate(llm, [PROMPT], free)[0].outputs[0].text
    person, word = GuidedDecodingParams(json=PERSON), GuidedDecodingParams(regex="[a-z]{3,9}")
    requests = [
        llm.generate_async(PROMPT, free),
        llm.generate_async(
            PROMPT,
            SamplingParams(n=2, temperature=1.0, seed=1, max_tokens=200, guided_decoding=person),
        ),
        llm.generate_async(PROMPT, SamplingParams(guided_decoding=word)),
    ]
    first, both, last = [request.result(60).outputs for request in requests]
    assert first[0].text == alone
    assert all(is_person(output.text) for output in both) and both[0].text != both[1].text
    assert re.fullmatch("[a-z]{3,9}", last[0].text)


def test_drafts_do_not_change_a_guided_answer(engine: EngineOf) -> None:
    params = SamplingParams(max_tokens=120, guided_decoding=GuidedDecodingParams(json=PERSON))
    plain = engine(DEEPSEEK, guided_decoding_backend="xgrammar")
    drafting = engine(DEEPSEEK, guided_decoding_backend="xgrammar", speculative_config=mtp(2))
    [one], [two] = (generate(llm, [PROMPT], params)[0].outputs for llm in (plain, drafting))
    assert is_person(one.text) and one.text == two.text


def test_a_limit_or_a_stop_string_ends_a_guided_answer_early(engine: EngineOf) -> None:
    llm, guide = (
        engine(LLAMA, guided_decoding_backend="xgrammar"),
        GuidedDecodingParams(json=PERSON),
    )
    whole = generate(llm, [PROMPT], SamplingParams(max_tokens=200, guided_decoding=guide))[
        0
    ].outputs[0]
    for own, reason in ({"max_tokens": 9}, "length"), ({"stop": '"age'}, "stop"):
        values: dict[str, Any] = {"max_tokens": 200, **own}
        params = SamplingParams(**values, guided_decoding=guide)
        [output] = generate(llm, [PROMPT], params)[0].outputs
        assert output.finish_reason == reason
        assert whole.text.startswith(output.text) and len(output.text) < len(whole.text)


def test_without_an_end_the_answer_is_free_after_its_guide(engine: EngineOf) -> None:
    llm = engine(LLAMA, guided_decoding_backend="xgrammar")
    guide = GuidedDecodingParams(regex="yes")
    params = SamplingParams(max_tokens=8, ignore_eos=True, guided_decoding=guide)
    [output] = generate(llm, [PROMPT], params)[0].outputs
    assert output.text.startswith("yes") and output.length == 8 and len(output.text) > 3


@pytest.mark.parametrize(
    ("backend", "guide", "message"),
    [
        ("xgrammar", GuidedDecodingParams(), "takes one guide, got none"),
        ("xgrammar", GuidedDecodingParams(regex="a", json_object=True), "one guide, got regex"),
        ("xgrammar", GuidedDecodingParams(regex="[a"), "invalid regex"),
        ("xgrammar", GuidedDecodingParams(json="{"), "json: is not JSON"),
        ("xgrammar", GuidedDecodingParams(json={"type": "objekt"}), "Invalid type: objekt"),
        ("xgrammar", GuidedDecodingParams(json="[]"), "json: is not a JSON object"),
        ("xgrammar", GuidedDecodingParams(grammar="root = x"), "convert the grammar"),
        ("xgrammar", GuidedDecodingParams(structural_tag="{}"), "needs format, or structures"),
        ("xgrammar", tag({"type": "tag"}), "a part is incomplete: KeyError"),
        ("xgrammar", tag({"type": "qwen_xml"}), "qwen_xml: not supported by the reference engine"),
        ("llguidance", tag(THINKS), "llguidance has no such guide"),
        ("llguidance", GuidedDecodingParams(grammar=GRAMMAR), "guided decoding: "),
    ],
)
def test_a_faulty_guide_is_refused(
    engine: EngineOf, backend: str, guide: GuidedDecodingParams, message: str
) -> None:
    llm = engine(LLAMA, guided_decoding_backend=backend)
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        llm.generate_async(PROMPT, SamplingParams(guided_decoding=guide))
    assert "start:" not in str(refused.value), "the grammar is the rehearsal's own"


def test_llguidance_takes_its_own_grammars(engine: EngineOf) -> None:
    guide = GuidedDecodingParams(grammar='start: "yes" | "no"')
    llm = engine(LLAMA, guided_decoding_backend="llguidance")
    [output] = generate(llm, [PROMPT], SamplingParams(guided_decoding=guide))[0].outputs
    assert output.text in ("yes", "no")


def test_without_a_backend_a_guide_is_dropped_or_refused_as_the_release_does(
    engine: EngineOf, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm, guide = engine(LLAMA), GuidedDecodingParams(json=PERSON)
    monkeypatch.setattr(logging.getLogger("tensorrt_llm"), "propagate", True)
    free, guided = (
        generate(llm, [PROMPT], SamplingParams(guided_decoding=one))[0].outputs[0].text
        for one in (None, guide)
    )
    assert guided == free
    assert "release 1.2.1 answers as if the request had asked for none" in caplog.text
    monkeypatch.setattr(options, "has_defect", lambda name: False)
    with pytest.raises(ValueError, match="has no guided_decoding_backend; set it to xgrammar"):
        llm.generate_async(PROMPT, SamplingParams(guided_decoding=guide))
