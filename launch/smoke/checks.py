"""The checks: one function each, and the table that says what each is and where it applies.

A check returns what it saw and raises `Fault` if that is not what is expected. Nothing here knows
the model: a check compares the server with itself, with its own configuration, or with the rules
of its protocol. Texts are compared greedily and one request at a time where they must be equal,
since quantized and sparse models may give other tokens in another batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Literal

from . import rendered
from .client import Ask, Client, Fault, Part, Refused, Unjudged, collect
from .endpoint import Endpoint

PROMPT = "Once upon a time there was a small village at the edge of a large forest, and"
LONG = Ask(PROMPT, max_tokens=128)
SHORT = Ask(PROMPT, max_tokens=8)
TOPICS = ("rivers", "bread", "winter", "music", "horses", "ships", "stars", "letters")
REASONS = ("stop", "length")

Function = Callable[[Client, Endpoint], Awaitable[str]]
Level = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Check:
    """`kinds` are the servers it applies to; `streams` if it needs a server that can stream."""

    id: str
    title: str
    expectation: str
    function: Function
    kinds: tuple[str, ...] = ("triton", "trtllm_serve")
    streams: bool = False
    rendered: bool = False
    level: Level = "error"


async def ready(client: Client, _: Endpoint) -> str:
    await client.ready()
    return "every health endpoint answers"


async def metadata(client: Client, endpoint: Endpoint) -> str:
    return rendered.compare_metadata(await client.metadata(), endpoint)


async def config(client: Client, endpoint: Endpoint) -> str:
    return rendered.compare_config(await client.config(), endpoint)


async def generate(client: Client, _: Endpoint) -> str:
    part = await client.generate(SHORT)
    _expect_text(part)
    return f"{len(part.text)} characters, finish_reason {part.finish_reason}"


async def stream_text(client: Client, _: Endpoint) -> str:
    whole = (await client.generate(Ask(PROMPT, max_tokens=32))).text
    parts = [part.text for part in await collect(client, Ask(PROMPT, max_tokens=32)) if part.text]
    if not parts:
        raise Fault("no text")
    if "".join(parts) == whole:
        return f"{len(parts)} parts with new text each"
    if parts and parts[-1] == whole:
        return f"{len(parts)} parts with all text so far each"
    streamed = "".join(parts)
    same = next((i for i, (a, b) in enumerate(zip(streamed, whole, strict=False)) if a != b), None)
    at = min(len(streamed), len(whole)) if same is None else same
    raise Fault(
        f"differs at character {at}: streamed {streamed[at : at + 30]!r}, "
        f"whole {whole[at : at + 30]!r}"
    )


async def one_final(client: Client, _: Endpoint) -> str:
    parts = await collect(client, Ask(PROMPT, max_tokens=16))
    finals = [index for index, part in enumerate(parts) if part.final]
    if finals != [len(parts) - 1]:
        raise Fault(f"final responses at {finals} of {len(parts)}, only the last one expected")
    reason = next((part.finish_reason for part in reversed(parts) if part.finish_reason), None)
    if reason not in REASONS:
        raise Fault(f"finish_reason is {reason}, one of {', '.join(REASONS)} expected")
    return f"{len(parts)} responses, the last one is final, finish_reason {reason}"


async def max_tokens(client: Client, _: Endpoint) -> str:
    one = await client.generate(Ask(PROMPT, max_tokens=1))
    many = await client.generate(Ask(PROMPT, max_tokens=24))
    for part in (one, many):
        _expect_text(part)
    if not many.text.startswith(one.text):
        raise Fault(f"the text of 1 token {one.text!r} does not begin that of 24 {many.text!r}")
    if many.finish_reason == "length" and len(many.text) <= len(one.text):
        raise Fault(f"24 tokens give {len(many.text)} characters, 1 token {len(one.text)}")
    return f"1 token gives {len(one.text)} characters, 24 give {len(many.text)}"


async def stop_word(client: Client, _: Endpoint) -> str:
    """Asks for a text, and then for it up to one of its own words."""
    whole = (await client.generate(Ask(PROMPT, max_tokens=32))).text
    words = [word for word in whole.split(" ")[2:-1] if word.isalpha() and len(word) > 1]
    if not words:
        raise Unjudged(f"the model's text {whole[:40]!r} has no word to stop at")
    word = words[len(words) // 2]
    # Engines compare tokens, and the token of a word within a text begins with the space.
    part = await client.generate(Ask(PROMPT, max_tokens=32, stop=(word, f" {word}")))
    if word in part.text or not whole.startswith(part.text.rstrip()):
        raise Fault(f"stop word {word!r}: text {part.text!r}, expected it to end before the word")
    if part.finish_reason != "stop":
        raise Fault(f"stop word {word!r}: finish_reason is {part.finish_reason}, stop expected")
    return f"ends before {word!r}"


async def cancel(client: Client, _: Endpoint) -> str:
    async with aclosing(client.stream(LONG)) as parts:
        async for part in parts:
            if part.text:
                break
    await healthy(client)
    return "left after the first text; the server goes on serving"


async def concurrent(client: Client, _: Endpoint) -> str:
    asks, alone = await _alone(client)
    together = await asyncio.gather(*(client.generate(ask) for ask in asks))
    for ask, part in zip(asks, together, strict=True):
        _expect_text(part)
        if part.request_id and part.request_id != ask.request_id:
            raise Fault(f"request {ask.request_id} got the answer of {part.request_id}")
    for index, part in enumerate(together):
        owners = [other for other, text in enumerate(alone) if text == part.text]
        if owners and index not in owners:
            raise Fault(f"request {index} got the text that request {owners[0]} gets when alone")
    return f"{len(asks)} at once, each with an answer of its own"


async def concurrent_text(client: Client, _: Endpoint) -> str:
    asks, alone = await _alone(client)
    together = await asyncio.gather(*(client.generate(ask) for ask in asks))
    different = [i for i, part in enumerate(together) if part.text != alone[i]]
    if different:
        raise Fault(f"{len(different)} of {len(asks)} texts differ from the same request alone")
    return f"{len(asks)} texts are the same as alone"


def refused(ask: Ask, may_serve: tuple[str, ...] = ()) -> Function:
    """A check that a wrong request is refused, by all kinds of server but `may_serve`."""

    async def check(client: Client, endpoint: Endpoint) -> str:
        try:
            part = await client.generate(ask)
        except Refused as refusal:
            return f"refused: {refusal}"
        if endpoint.kind in may_serve:
            return "served, which this kind of server may do"
        raise Fault(f"served with text {part.text[:40]!r}, an error is expected")

    return check


async def healthy(client: Client) -> None:
    """After whatever happened: the server is ready and generates."""
    await client.ready()
    _expect_text(await client.generate(SHORT))


async def _alone(client: Client) -> tuple[list[Ask], list[str]]:
    """Different requests, and what each gets with the server to itself."""
    asks = [Ask(f"A short text about {topic}:", 8, request_id=topic) for topic in TOPICS]
    return asks, [(await client.generate(ask)).text for ask in asks]


def _expect_text(part: Part) -> None:
    if not part.text:
        raise Fault(f"no text, finish_reason {part.finish_reason}")
    if part.finish_reason not in REASONS:
        raise Fault(f"finish_reason is {part.finish_reason}, one of {', '.join(REASONS)} expected")


TRITON = ("triton",)
OPENAI = ("trtllm_serve",)
POSITIVE = (
    Check("ready", "Live and ready", "every health endpoint says so", ready),
    Check(
        "metadata",
        "Metadata",
        "inputs and outputs equal config.pbtxt: names, data types, shapes",
        metadata,
        kinds=TRITON,
        rendered=True,
    ),
    Check(
        "config",
        "Model configuration",
        "decoupled and max_batch_size equal model.yaml",
        config,
        kinds=TRITON,
        rendered=True,
    ),
    Check("generate", "Generation", "text and a finish_reason", generate),
    Check(
        "stream_text",
        "Streamed text",
        "the same text as without streaming, greedy",
        stream_text,
        streams=True,
    ),
    Check(
        "one_final",
        "One final response",
        "exactly one, with a finish_reason, and nothing after it",
        one_final,
        streams=True,
    ),
    Check(
        "max_tokens", "max_tokens", "a shorter limit gives the beginning of the text", max_tokens
    ),
    Check("stop_word", "Stop word", "the text ends before it, finish_reason stop", stop_word),
    Check("cancel", "Cancel", "after a cancelled stream the server serves", cancel, streams=True),
    Check("concurrent", "Eight at once", "each gets its own answer", concurrent),
    Check(
        "concurrent_text",
        "Eight at once, text",
        "the same text as alone, where batching does not change it",
        concurrent_text,
        level="warning",
    ),
)
# After each of these the server must be healthy.
NEGATIVE = tuple(
    Check(id, title, "refused, and the server stays healthy", refused(ask, may_serve))
    for id, title, ask, may_serve in (
        # trtllm-serve 1.x serves its model under any name.
        ("unknown_model", "Unknown model", replace(SHORT, model="no_such_model"), OPENAI),
        ("missing_input", "Missing prompt", replace(SHORT, prompt=None), ()),
        ("empty_prompt", "Empty prompt", replace(SHORT, prompt=""), OPENAI),
        ("temperature", "temperature -1", replace(SHORT, temperature=-1.0), ()),
        # An engine's server may take 0 for a limit that was not given.
        ("max_tokens_0", "max_tokens 0", replace(SHORT, max_tokens=0), OPENAI),
        ("max_tokens_text", "max_tokens as text", replace(SHORT, max_tokens="many"), ()),
    )
)
