"""Checks of single requests: generation, streams, stop words, token counts, and what a deployment
asks for: long prompts, cached prefixes, drafts, guided output.

No check depends on the model: it compares the server with itself or with the rules of its
protocol. Texts that must be equal come from greedy requests, sent one after the other.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal

from ..endpoint import Endpoint
from . import metrics
from .client import (
    PROMPT,
    REASONS,
    SHORT,
    CheckFailure,
    Inconclusive,
    NotSupported,
    RequestRejected,
    SmokeClient,
    SmokeRequest,
    collect,
    expect_text,
    expect_tokens,
)

StreamMode = Literal["delta", "cumulative"]

TOKENS = 8
MEDIUM = SmokeRequest(PROMPT, max_tokens=32)
LETTERS = (
    "Repeat: 🙂🚀🎉 你好世界",
    "日本語で書いてください",
    "Ünïcödé, ελληνικά, русский:",
)
SAMPLED = SmokeRequest(PROMPT, max_tokens=16, temperature=1.0, top_k=None, seed=20260101)
CHAT = ({"role": "user", "content": "Say a word about rivers."},)
BROKEN = "�"


async def generate(client: SmokeClient, _: Endpoint) -> str:
    """As many tokens as requested, where the server can ignore the end of the text."""
    try:
        response = await client.generate(SmokeRequest(PROMPT, max_tokens=TOKENS, ignore_eos=True))
    except NotSupported:
        response = await client.generate(SmokeRequest(PROMPT, max_tokens=TOKENS))
    expect_text(response)
    reason = response.finish_reason
    counted = expect_tokens(response, TOKENS) if reason == "length" else "ended by itself"
    return f"{counted}, {len(response.text)} characters, finish_reason {reason}"


async def unary(client: SmokeClient, endpoint: Endpoint) -> str:
    """The second model over the same engine, which answers unary calls as the first streams."""
    if endpoint.unary_model is None:
        raise NotSupported("the bundle has no second model for unary calls")
    request = replace(SHORT, model=endpoint.unary_model)
    await client.misuse("unary", request)
    await _expect_same_text(client, request, "unary text")
    return f"{endpoint.unary_model} answers unary calls with the same text"


async def chat(client: SmokeClient, _: Endpoint) -> str:
    try:
        response = await client.generate(SmokeRequest(None, max_tokens=TOKENS, messages=CHAT))
    except RequestRejected as rejection:
        if "template" in str(rejection):
            raise NotSupported("the model's tokenizer has no chat template") from None
        raise
    expect_text(response)
    return f"{len(response.text)} characters, finish_reason {response.finish_reason}"


async def repeat(client: SmokeClient, _: Endpoint) -> str:
    return f"twice the same {await _repeated(client, MEDIUM, 'the same greedy request')} characters"


async def stream_text(client: SmokeClient, _: Endpoint) -> str:
    expected = (await client.generate(MEDIUM)).text
    texts = await _streamed_texts(client, MEDIUM)
    if (found := whole_text(texts, expected)) != expected:
        raise CheckFailure(f"streamed text {difference(found, expected)} as without streaming")
    return f"{len(texts)} parts give the same {len(expected)} characters"


async def stream_mode(client: SmokeClient, _: Endpoint) -> str:
    """Whether the text is new or cumulative; a stream must not mix both."""
    expected = (await client.generate(MEDIUM)).text
    texts = await _streamed_texts(client, MEDIUM)
    content = {"delta": "new text each", "cumulative": "all text so far each"}
    return f"{len(texts)} parts with {content[stream_mode_of(texts, expected)]}"


async def cumulative(client: SmokeClient, endpoint: Endpoint) -> str:
    """A parameter of the toolkit's own model; other servers ignore it."""
    texts = await _streamed_texts(client, replace(MEDIUM, parameters={"cumulative_text": True}))
    if detect_stream_mode(texts) == "cumulative":
        return f"{len(texts)} responses, the last one with all {len(texts[-1])} characters"
    if endpoint.is_rendered and len(texts) > 1:
        raise CheckFailure(f"{len(texts)} parts with new text each in spite of cumulative_text")
    raise NotSupported("the server passes over cumulative_text")


async def one_final(client: SmokeClient, _: Endpoint) -> str:
    responses = await collect(client, SmokeRequest(PROMPT, max_tokens=16))
    finals = [index for index, response in enumerate(responses) if response.final]
    count = len(responses)
    if finals != [count - 1]:
        raise CheckFailure(f"final responses at {finals} of {count}, only the last one expected")
    reasons = [response.finish_reason for response in responses if response.finish_reason]
    reason = reasons[-1] if reasons else None
    if reason not in REASONS:
        raise CheckFailure(f"finish_reason is {reason}, one of {', '.join(REASONS)} expected")
    return f"the last of {count} responses is final, finish_reason {reason}"


async def stop_word(client: SmokeClient, _: Endpoint) -> str:
    """Generates a text, and then the same text up to one of its words."""
    whole = (await client.generate(MEDIUM)).text
    words = [word for word in whole.split(" ")[2:-1] if word.isalpha() and len(word) > 1]
    if not words:
        raise Inconclusive(f"the model's text {whole[:40]!r} has no word to stop at")
    word = words[len(words) // 2]
    # Engines compare tokens, and the token of a word within a text begins with the space.
    response = await client.generate(replace(MEDIUM, stop=(word, f" {word}")))
    if word in response.text or not whole.startswith(response.text.rstrip()):
        raise CheckFailure(
            f"stop word {word!r}: text {response.text!r}, expected it to end before the word"
        )
    if response.finish_reason != "stop":
        raise CheckFailure(
            f"stop word {word!r}: finish_reason is {response.finish_reason}, stop expected"
        )
    return f"ends before {word!r}"


async def max_tokens(client: SmokeClient, _: Endpoint) -> str:
    one = await client.generate(SmokeRequest(PROMPT, max_tokens=1))
    many = await client.generate(SmokeRequest(PROMPT, max_tokens=24))
    for response in (one, many):
        expect_text(response)
    if not many.text.startswith(one.text):
        raise CheckFailure(
            f"the text of 1 token {one.text!r} does not begin that of 24 {many.text!r}"
        )
    if many.finish_reason == "length" and len(many.text) <= len(one.text):
        raise CheckFailure(f"24 tokens give {len(many.text)} characters, 1 token {len(one.text)}")
    counted = expect_tokens(one, 1)
    return f"1 gives {len(one.text)} characters ({counted}), 24 give {len(many.text)}"


async def short_names(client: SmokeClient, _: Endpoint) -> str:
    """`max_tokens` as other backends' clients send it: a parameter without the input's prefix."""
    asked = replace(SHORT, max_tokens=None, parameters={"max_tokens": SHORT.max_tokens})
    await _expect_same_text(client, asked, "text by max_tokens as a parameter")
    return "max_tokens means the same as sampling_param_max_tokens"


async def characters(client: SmokeClient, _: Endpoint) -> str:
    """Characters of several bytes arrive whole, even if their tokens arrive one by one."""
    count = 0
    for prompt in LETTERS:
        request = SmokeRequest(prompt, max_tokens=48)
        expected = (await client.generate(request)).text
        texts = [response.text for response in await collect(client, request) if response.text]
        found = whole_text(texts, expected)
        if found.count(BROKEN) > expected.count(BROKEN):
            at = next(index for index, text in enumerate(texts) if BROKEN in text)
            raise CheckFailure(
                f"part {at + 1} of {len(texts)} holds half a character: {texts[at]!r}"
            )
        if found != expected:
            raise CheckFailure(f"streamed text {difference(found, expected)}")
        count += sum(ord(letter) > 127 for letter in expected)
    if not count:
        raise NotSupported("the model writes no character of several bytes")
    return f"{count} characters of several bytes, none split"


async def usage(client: SmokeClient, _: Endpoint) -> str:
    response = await client.generate(SHORT)
    counts = (response.prompt_tokens, response.completion_tokens, response.total_tokens)
    if None in counts:
        raise NotSupported("the server counts no tokens")
    prompt, completion, total = map(int, filter(None, counts)) if all(counts) else (0, 0, 0)
    if not 0 < completion <= TOKENS or prompt <= 0 or prompt + completion != total:
        raise CheckFailure(
            f"prompt, completion and total tokens are {counts}, {TOKENS} were requested"
        )
    return f"{prompt} + {completion} = {total} tokens"


async def logprobs(client: SmokeClient, _: Endpoint) -> str:
    response = await client.generate(replace(SHORT, logprobs=True))
    if not response.logprobs:
        raise CheckFailure("none came, though they were requested")
    wrong = [value for value in response.logprobs if not math.isfinite(value) or value > 0]
    if wrong:
        raise CheckFailure(f"{wrong[0]} is not a log probability")
    return f"{len(response.logprobs)} value(s), the first {response.logprobs[0]:.3f}"


async def seed(client: SmokeClient, _: Endpoint) -> str:
    count = await _repeated(client, SAMPLED, f"seed {SAMPLED.seed}")
    return f"seed {SAMPLED.seed} twice gives the same {count} characters"


async def _repeated(client: SmokeClient, request: SmokeRequest, what: str) -> int:
    one, two = [(await client.generate(request)).text for _ in range(2)]
    if one != two:
        raise CheckFailure(f"{what} twice {difference(one, two)}")
    return len(one)


async def _expect_same_text(client: SmokeClient, request: SmokeRequest, what: str) -> None:
    expected, response = await client.generate(SHORT), await client.generate(request)
    expect_text(response)
    if response.text != expected.text:
        raise CheckFailure(f"{what} {difference(response.text, expected.text)}")


async def _streamed_texts(client: SmokeClient, request: SmokeRequest) -> list[str]:
    texts = [response.text for response in await collect(client, request) if response.text]
    if not texts:
        raise CheckFailure("no text")
    return texts


def detect_stream_mode(texts: Sequence[str]) -> StreamMode:
    """How the texts of a stream, none of them empty, belong together.

    Cumulative texts each begin with the one before and grow; new texts do so only by accident, and
    not all along a stream. A repeated word does not grow. Raises `CheckFailure` for texts that
    mostly grow, but not always.
    """
    pairs = [(before, after) for before, after in pairwise(texts) if before != after]
    growing = sum(after.startswith(before) for before, after in pairs)
    if not pairs or growing * 2 < len(pairs):
        return "delta"
    _expect_growth(texts)
    return "cumulative"


def _expect_growth(texts: Sequence[str]) -> None:
    for number, (before, after) in enumerate(pairwise(texts), 2):
        if not after.startswith(before):
            raise CheckFailure(
                f"texts of all so far must grow, but part {number} is "
                f"{after[:30]!r} after {before[:30]!r}"
            )


def stream_mode_of(texts: Sequence[str], expected: str) -> StreamMode:
    """The mode in which the texts give the expected one, else the mode that they look like: a
    repeated word looks like both.

    Raises `CheckFailure` for texts of neither kind.
    """
    if "".join(texts) == expected:
        return "delta"
    if not texts or texts[-1] != expected:
        return detect_stream_mode(texts)
    _expect_growth(texts)
    return "cumulative"


def whole_text(texts: Sequence[str], expected: str) -> str:
    """All of a stream's text. Raises `CheckFailure` for texts of neither kind."""
    is_cumulative = stream_mode_of(texts, expected) == "cumulative"
    return texts[-1] if is_cumulative else "".join(texts)


def difference(one: str, other: str) -> str:
    pairs = enumerate(zip(one, other, strict=False))
    at = next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
    return f"differs at character {at}: {one[at : at + 30]!r}, not {other[at : at + 30]!r}"


# A miniature on a CPU takes seconds for more.
LONGEST_REHEARSED_TOKENS = 4096
# A token that every vocabulary has.
ANY_TOKEN = 17
NEEDLE = "The magic number is 7402."
HAY = "The grass is green and the sky is blue. "
# Tokens of a sentence of hay, in any tokenizer about.
HAY_TOKENS = 10
NEEDLE_TOKENS = (4_000, 32_000)
# A few whole blocks of the KV cache.
PREFIX_SENTENCES = 16
TOOL = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
# How models begin a call, which a parser of the server takes out of the text.
CALL_MARKS = ("<tool_call", "<|tool_call", "<function=", "<\uff5ctool", "[TOOL_CALLS]")
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


def limit_tokens(endpoint: Endpoint) -> int:
    """The limit of prompt and answer together. Raises `NotSupported` if it is unknown."""
    limits = (endpoint.options.get("max_seq_len"), endpoint.positions)
    known = [int(limit) for limit in limits if limit]
    if not known:
        raise NotSupported("no bundle sets max_seq_len for this server")
    return min(known)


async def long_prompt(client: SmokeClient, endpoint: Endpoint) -> str:
    """A prompt that leaves room for one token."""
    limit = limit_tokens(endpoint)
    longest = endpoint.options.get("max_num_tokens")
    if longest and not endpoint.options.get("enable_chunked_prefill"):
        limit = min(limit, int(longest))
    if endpoint.rehearsal and limit > LONGEST_REHEARSED_TOKENS:
        raise NotSupported(f"a prompt of {limit - 1} tokens is too long for a rehearsal")
    response = await client.generate(SmokeRequest([ANY_TOKEN] * (limit - 1), max_tokens=1))
    if response.finish_reason is None:
        raise CheckFailure("no finish_reason")
    if response.prompt_tokens not in (None, limit - 1):
        raise CheckFailure(
            f"the server counts {response.prompt_tokens} prompt tokens, {limit - 1} were sent"
        )
    return f"{limit - 1} prompt tokens are served"


async def needle(client: SmokeClient, endpoint: Endpoint) -> str:
    if endpoint.rehearsal:
        raise NotSupported("random weights find nothing")
    limit = limit_tokens(endpoint)
    sizes = [size for size in NEEDLE_TOKENS if size * 1.2 < limit]
    if not sizes:
        raise NotSupported(f"max_seq_len {limit} is too short for it")
    for size in sizes:
        half = HAY * (size // HAY_TOKENS // 2)
        prompt = f"{half}{NEEDLE} {half}\nQuestion: What is the magic number? Answer:"
        response = await client.generate(SmokeRequest(prompt, max_tokens=32))
        if "7402" not in response.text:
            raise Inconclusive(f"not found in about {size} tokens: {response.text[:60]!r}")
    return f"found in about {' and '.join(map(str, sizes))} tokens"


async def prefix(client: SmokeClient, endpoint: Endpoint) -> str:
    if endpoint.on_reference:
        raise NotSupported("the reference engine keeps no blocks for reuse")
    if endpoint.options.get("kv_cache_config", {}).get("enable_block_reuse") is False:
        raise NotSupported("enable_block_reuse is false")
    request = SmokeRequest(HAY * PREFIX_SENTENCES, max_tokens=4, metrics=endpoint.api == "kserve")
    await client.generate(request)
    response = await client.generate(request)
    names = ("kv_cache_reused_block", "cached_tokens")
    found = {name: response.measured[name] for name in names if name in response.measured}
    if not found:
        found = await _reused_by_metrics(client, endpoint, request)
    if not any(found.values()):
        raise Inconclusive(f"nothing is reused of the same prompt again: {found}")
    return ", ".join(f"{name} {value:.0f}" for name, value in found.items())


async def _reused_by_metrics(
    client: SmokeClient, endpoint: Endpoint, request: SmokeRequest
) -> dict[str, float]:
    """Reused blocks in the metrics after one more request, if the answers do not report them."""
    before = await metrics.read_if_any(endpoint)
    name = metrics.by_word(before, endpoint, "reused")
    if name is None:
        raise NotSupported("the server does not report reused blocks")
    start = metrics.total(before, name) or 0
    await client.generate(request)
    after = await metrics.wait_until(endpoint, lambda now: (metrics.total(now, name) or 0) > start)
    return {name: (metrics.total(after, name) or 0) - start}


async def drafts(client: SmokeClient, endpoint: Endpoint) -> str:
    if not endpoint.options.get("speculative_config"):
        raise NotSupported("the deployment drafts no tokens")
    request = SmokeRequest(PROMPT, max_tokens=48, metrics=endpoint.api == "kserve")
    measured = (await client.generate(request)).measured
    if endpoint.api == "openai":
        return _steps(measured, endpoint)
    drafted, accepted = (
        measured.get(f"total_{name}_tokens", 0) for name in ("draft", "accepted_draft")
    )
    if not drafted and endpoint.on_reference:
        raise NotSupported("the reference engine runs without this kind of draft")
    if not 0 <= accepted <= drafted or not drafted:
        raise CheckFailure(f"{accepted:.0f} of {drafted:.0f} drafted tokens accepted")
    if not accepted and not endpoint.rehearsal:
        raise Inconclusive(f"none of {drafted:.0f} drafted tokens accepted")
    return f"{accepted:.0f} of {drafted:.0f} drafted tokens accepted"


async def guided(client: SmokeClient, endpoint: Endpoint) -> str:
    """A schema is enforced, or the request is refused if the deployment has no backend for it.

    Some releases answer as if nothing was asked where no backend is set. Of a server without a
    known plan, that is a warning.

    Random weights may write blanks forever if the schema allows it.
    """
    request = SmokeRequest("A person as JSON:", max_tokens=128, json_schema=SCHEMA)
    has_backend = endpoint.options.get("guided_decoding_backend")
    try:
        response = await client.generate(request)
    except RequestRejected as rejection:
        if has_backend:
            raise
        raise NotSupported(f"no backend for guided decoding; refused: {rejection}") from None
    try:
        document = json.loads(response.text)
    except json.JSONDecodeError as error:
        if endpoint.options and not has_backend:  # the plan warns of it
            what = "no backend for guided decoding; the server drops response_format"
            raise NotSupported(what) from None
        if response.finish_reason == "length" and _is_cut_off(error):
            what = f"cut off at max_tokens, as JSON so far: {response.text[:30]!r}"
            raise Inconclusive(what) from None
        what = f"the schema was not enforced, finish_reason {response.finish_reason}"
        if not has_backend:
            what = f"{what}; the server may have no guided_decoding_backend"
        fault = CheckFailure if has_backend else Inconclusive
        raise fault(f"{what}: {response.text[:80]!r}") from None
    if not _fits(document):
        raise CheckFailure(f"the schema was not enforced: {response.text[:80]!r}")
    return f"{response.text[:60]!r} fits the schema"


async def tools(client: SmokeClient, endpoint: Endpoint) -> str:
    """A tool call has JSON arguments and is not text with the model's own marks.

    The reference engine forces the call of a miniature, in the model's own format.
    """
    if endpoint.rehearsal and not endpoint.on_reference:
        raise NotSupported("random weights call no tool")
    ask = ({"role": "user", "content": "What is the weather in Paris? Use the tool."},)
    offered = {"tools": [{"type": "function", "function": TOOL}]}
    try:
        response = await client.generate(
            SmokeRequest(None, max_tokens=512, messages=ask, parameters=offered)
        )
    except RequestRejected as rejection:
        raise NotSupported(f"tools are refused: {rejection}") from None
    if marks := [mark for mark in CALL_MARKS if mark in response.text]:
        raise CheckFailure(f"the text contains a call ({marks[0]}): {response.text[:80]!r}")
    if not response.tool_calls:
        raise NotSupported("the model called no tool")
    name, arguments = response.tool_calls[0]
    try:
        is_right = name == TOOL["name"] and isinstance(json.loads(arguments)["city"], str)
    except (ValueError, TypeError, KeyError):
        is_right = False
    if not is_right:
        raise CheckFailure(f"the call is {name}({arguments[:80]}), {TOOL['name']} is expected")
    return f"calls {name} with {arguments[:60]}"


async def accuracy(_: SmokeClient, endpoint: Endpoint) -> str:
    raise NotSupported("a set of questions is needed; this suite brings none")


def _steps(measured: Mapping[str, float], endpoint: Endpoint) -> str:
    steps = measured.get("tokens_per_step")
    if steps is None:
        raise NotSupported("the server does not report tokens per step")
    if steps < 1:
        raise CheckFailure(f"{steps:.2f} tokens per step, at least 1 expected")
    if steps == 1 and not endpoint.rehearsal:
        raise Inconclusive("1 token per step: no drafted token was accepted")
    return f"{steps:.2f} tokens per step"


def _is_cut_off(error: json.JSONDecodeError) -> bool:
    rest = error.doc[error.pos :]
    begins_a_word = any(word.startswith(rest) for word in ("true", "false", "null", "-"))
    return begins_a_word or (rest.startswith('"') and "string" in error.msg)


def _fits(document: Any) -> bool:
    return (
        isinstance(document, dict)
        and isinstance(document.get("name"), str)
        and isinstance(document.get("age"), int)
    )
