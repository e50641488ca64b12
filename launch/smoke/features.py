"""Checks of what a deployment asks for: long prompts, cached prefixes, drafts, guided output."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..endpoint import Endpoint
from . import metrics
from .client import (
    PROMPT,
    CheckFailure,
    Inconclusive,
    NotSupported,
    RequestRejected,
    SmokeClient,
    SmokeRequest,
)

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

    Random weights may write blanks forever if the schema allows it.
    """
    request = SmokeRequest("A person as JSON:", max_tokens=128, json_schema=SCHEMA)
    try:
        response = await client.generate(request)
    except RequestRejected as rejection:
        if endpoint.options.get("guided_decoding_backend") and not endpoint.on_reference:
            raise
        raise NotSupported(f"no backend for guided decoding; refused: {rejection}") from None
    try:
        document = json.loads(response.text)
    except json.JSONDecodeError as error:
        if response.finish_reason == "length" and _is_cut_off(error):
            what = f"cut off at max_tokens, as JSON so far: {response.text[:30]!r}"
            raise Inconclusive(what) from None
        what = f"the schema was not enforced, finish_reason {response.finish_reason}"
        raise CheckFailure(f"{what}: {response.text[:80]!r}") from None
    if not _fits(document):
        raise CheckFailure(f"the schema was not enforced: {response.text[:80]!r}")
    return f"{response.text[:60]!r} fits the schema"


async def tools(client: SmokeClient, endpoint: Endpoint) -> str:
    """A tool call has JSON arguments and is not text with the model's own marks."""
    if endpoint.rehearsal:
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
