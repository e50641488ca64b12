"""Checks of one request at a time: what is generated, streamed, stopped, counted and repeated.

Nothing here knows the model: a check compares the server with itself or with the rules of its
protocol. Texts are compared greedily and one request at a time where they must be equal.
"""

from __future__ import annotations

import math
from dataclasses import replace

from . import streamed
from .check import PROMPT, REASONS, SHORT, expect_text, expect_tokens
from .client import Ask, Client, Fault, NotOffered, Part, Refused, Unjudged, collect
from .endpoint import Endpoint

TOKENS = 8
MEDIUM = Ask(PROMPT, max_tokens=32)
LETTERS = (
    "Repeat: 🙂🚀🎉 你好世界",
    "日本語で書いてください",
    "Ünïcödé, ελληνικά, русский:",
)
SAMPLED = Ask(PROMPT, max_tokens=16, temperature=1.0, top_k=None, seed=20260101)
CHAT = ({"role": "user", "content": "Say a word about rivers."},)
BROKEN = "�"


async def generate(client: Client, _: Endpoint) -> str:
    """As many tokens as asked for, where the server can be told to pass over the end."""
    part = await _exactly(client, TOKENS)
    expect_text(part)
    counted = expect_tokens(part, TOKENS) if part.finish_reason == "length" else "ended by itself"
    return f"{counted}, {len(part.text)} characters, finish_reason {part.finish_reason}"


async def chat(client: Client, _: Endpoint) -> str:
    try:
        part = await client.generate(Ask(None, max_tokens=TOKENS, messages=CHAT))
    except Refused as refusal:
        if "template" in str(refusal):
            raise NotOffered("the model's tokenizer has no chat template") from None
        raise
    expect_text(part)
    return f"{len(part.text)} characters, finish_reason {part.finish_reason}"


async def repeat(client: Client, _: Endpoint) -> str:
    one, two = [(await client.generate(MEDIUM)).text for _ in range(2)]
    if one != two:
        raise Fault(f"the same greedy request twice {streamed.difference(one, two)}")
    return f"twice the same {len(one)} characters"


async def stream_text(client: Client, _: Endpoint) -> str:
    expected = (await client.generate(MEDIUM)).text
    texts = [part.text for part in await collect(client, MEDIUM) if part.text]
    if not texts:
        raise Fault("no text")
    if (found := streamed.whole(texts)) != expected:
        raise Fault(f"streamed text {streamed.difference(found, expected)} as without streaming")
    return f"{len(texts)} parts give the same {len(expected)} characters"


async def stream_mode(client: Client, _: Endpoint) -> str:
    """What kind of text a server streams that nobody described; it must not mix both kinds."""
    texts = [part.text for part in await collect(client, MEDIUM) if part.text]
    if not texts:
        raise Fault("no text")
    words = {"delta": "new text each", "cumulative": "all text so far each"}
    return f"{len(texts)} parts with {words[streamed.mode(texts)]}"


async def cumulative(client: Client, endpoint: Endpoint) -> str:
    """The toolkit's own model takes a parameter for it; other servers pass over it."""
    texts = [
        part.text
        for part in await collect(client, replace(MEDIUM, parameters={"cumulative_text": True}))
        if part.text
    ]
    if streamed.mode(texts) == "cumulative":
        return f"{len(texts)} parts, the last one with all {len(texts[-1])} characters"
    if endpoint.is_rendered and len(texts) > 1:
        raise Fault(f"{len(texts)} parts with new text each in spite of cumulative_text")
    raise NotOffered("the server passes over cumulative_text")


async def one_final(client: Client, _: Endpoint) -> str:
    parts = await collect(client, Ask(PROMPT, max_tokens=16))
    finals = [index for index, part in enumerate(parts) if part.final]
    if finals != [len(parts) - 1]:
        raise Fault(f"final responses at {finals} of {len(parts)}, only the last one expected")
    reason = next((part.finish_reason for part in reversed(parts) if part.finish_reason), None)
    if reason not in REASONS:
        raise Fault(f"finish_reason is {reason}, one of {', '.join(REASONS)} expected")
    return f"the last of {len(parts)} responses is final, finish_reason {reason}"


async def stop_word(client: Client, _: Endpoint) -> str:
    """Asks for a text, and then for it up to one of its own words."""
    whole = (await client.generate(MEDIUM)).text
    words = [word for word in whole.split(" ")[2:-1] if word.isalpha() and len(word) > 1]
    if not words:
        raise Unjudged(f"the model's text {whole[:40]!r} has no word to stop at")
    word = words[len(words) // 2]
    # Engines compare tokens, and the token of a word within a text begins with the space.
    part = await client.generate(replace(MEDIUM, stop=(word, f" {word}")))
    if word in part.text or not whole.startswith(part.text.rstrip()):
        raise Fault(f"stop word {word!r}: text {part.text!r}, expected it to end before the word")
    if part.finish_reason != "stop":
        raise Fault(f"stop word {word!r}: finish_reason is {part.finish_reason}, stop expected")
    return f"ends before {word!r}"


async def max_tokens(client: Client, _: Endpoint) -> str:
    one = await client.generate(Ask(PROMPT, max_tokens=1))
    many = await client.generate(Ask(PROMPT, max_tokens=24))
    for part in (one, many):
        expect_text(part)
    if not many.text.startswith(one.text):
        raise Fault(f"the text of 1 token {one.text!r} does not begin that of 24 {many.text!r}")
    if many.finish_reason == "length" and len(many.text) <= len(one.text):
        raise Fault(f"24 tokens give {len(many.text)} characters, 1 token {len(one.text)}")
    counted = expect_tokens(one, 1)
    return f"1 gives {len(one.text)} characters ({counted}), 24 give {len(many.text)}"


async def characters(client: Client, _: Endpoint) -> str:
    """Characters of several bytes come whole, even where their tokens come one by one."""
    seen = 0
    for prompt in LETTERS:
        ask = Ask(prompt, max_tokens=48)
        expected = (await client.generate(ask)).text
        texts = [part.text for part in await collect(client, ask) if part.text]
        found = streamed.whole(texts)
        if found.count(BROKEN) > expected.count(BROKEN):
            at = next(index for index, text in enumerate(texts) if BROKEN in text)
            raise Fault(f"part {at + 1} of {len(texts)} holds half a character: {texts[at]!r}")
        if found != expected:
            raise Fault(f"streamed text {streamed.difference(found, expected)}")
        seen += sum(ord(letter) > 127 for letter in expected)
    if not seen:
        raise NotOffered("the model writes no character of several bytes")
    return f"{seen} characters of several bytes, none split"


async def usage(client: Client, _: Endpoint) -> str:
    part = await client.generate(SHORT)
    counts = (part.prompt_tokens, part.completion_tokens, part.total_tokens)
    if None in counts:
        raise NotOffered("the server counts no tokens")
    prompt, completion, total = map(int, filter(None, counts)) if all(counts) else (0, 0, 0)
    if not 0 < completion <= TOKENS or prompt <= 0 or prompt + completion != total:
        raise Fault(
            f"prompt, completion and total tokens are {counts}, and {TOKENS} were asked for"
        )
    return f"{prompt} + {completion} = {total} tokens"


async def logprobs(client: Client, _: Endpoint) -> str:
    part = await client.generate(replace(SHORT, logprobs=True))
    if not part.logprobs:
        raise Fault("none came, though they were asked for")
    wrong = [value for value in part.logprobs if not math.isfinite(value) or value > 0]
    if wrong:
        raise Fault(f"{wrong[0]} is no log probability")
    return f"{len(part.logprobs)} value(s), the first {part.logprobs[0]:.3f}"


async def seed(client: Client, _: Endpoint) -> str:
    one, two = [(await client.generate(SAMPLED)).text for _ in range(2)]
    if one != two:
        raise Fault(f"seed {SAMPLED.seed} twice {streamed.difference(one, two)}")
    return f"seed {SAMPLED.seed} twice gives the same {len(one)} characters"


async def _exactly(client: Client, count: int) -> Part:
    try:
        return await client.generate(Ask(PROMPT, max_tokens=count, ignore_eos=True))
    except NotOffered:
        return await client.generate(Ask(PROMPT, max_tokens=count))
