"""A workload: the requests of a benchmark and their prompts, the same for the same seed."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from builder import files
from builder.diagnostics import Diagnostic
from builder.errors import BadFacts, BadInput

from .load import Task
from .request import LoadRequest

Prompt = str | tuple[int, ...]

TOKENIZER = "tokenizer.json"
# Words that are one token each for common tokenizers, with a leading blank.
WORDS = (
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand part place case week company system program question work government "
    "number night point home water room mother area money story fact month lot right study book "
    "eye job word business issue side kind head house service friend father power hour game line "
    "end member law car city community name president team minute idea body information back"
)
# Generated text has at most this many different words.
VOCABULARY = 4096


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts made of pieces of one token each.

    `source` describes the pieces and who counts their tokens; without a `tokenizer` only the server
    can count them.
    """

    source: str
    pieces: Sequence[str] | Sequence[int] = field(repr=False)
    tokenizer: Any = field(default=None, repr=False)

    def make(self, count: int, chance: random.Random) -> Prompt:
        chosen = chance.choices(self.pieces, k=count)
        if isinstance(self.pieces[0], int):
            return tuple(one for one in chosen if isinstance(one, int))
        return "".join(map(str, chosen))

    def count(self, text: str) -> int | None:
        if self.tokenizer is None:
            return None
        return len(self.tokenizer.encode(text, add_special_tokens=False))


def from_word_list() -> Prompts:
    """English words; only the server can count their tokens."""
    source = "one common word for each token; the server's own count holds"
    return Prompts(source, [f" {word}" for word in WORDS.split()])


def from_token_ids(vocabulary_size: int) -> Prompts:
    """Token ids. Special tokens are first or last in the vocabularies known, so none is among
    them; that is assumed."""
    source = f"token ids of a vocabulary of {vocabulary_size:,}; the server reads no text"
    return Prompts(source, range(vocabulary_size // 8, vocabulary_size // 2))


def from_tokenizer(folder: Path) -> Prompts:
    """Words that are one token each for the tokenizer in a folder, in any position.

    Raises `BadFacts` for a folder without a tokenizer."""
    file = folder / TOKENIZER
    if not file.is_file():
        remedy = f"give a folder with {TOKENIZER} by --tokenizer"
        raise BadFacts(Diagnostic(str(folder), f"has no {TOKENIZER}", remedy))
    from tokenizers import Tokenizer  # of an extra

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing more exact
        raise BadFacts(Diagnostic(str(file), f"is not a tokenizer: {error}")) from None
    source = f"text of an exact token count by the tokenizer {folder}"
    texts = tokenizer.decode_batch([[token] for token in range(tokenizer.get_vocab_size())])
    likely = sorted(filter(re.compile("[ ][A-Za-z]+").fullmatch, set(texts)))
    random.Random(len(likely)).shuffle(likely)
    words = _alone(tokenizer, likely[: 4 * VOCABULARY])[:VOCABULARY]
    if not words:
        raise BadFacts(
            Diagnostic(str(file), "has no token that is a plain word with a blank before")
        )
    return Prompts(source, words, tokenizer)


def _alone(tokenizer: Any, words: Sequence[str]) -> tuple[str, ...]:
    """The words that are one token between two copies of themselves."""
    rows = tokenizer.encode_batch([word * 3 for word in words], add_special_tokens=False)
    return tuple(word for word, row in zip(words, rows, strict=True) if len(row) == 3)


Kind = Literal["fixed", "sharegpt", "trace", "shared_prefix", "agent"]
# The defaults of all requests of a run.
TEMPLATE = LoadRequest(ignore_eos=True, temperature=0.0)


@dataclass(frozen=True, slots=True)
class BenchWorkload:
    """`request` returns the request at an index, `task` the calls of a task. `facts` go to the
    document.

    A trace has `times_s` of its rows.
    """

    kind: Kind
    facts: Mapping[str, Any]
    request: Callable[[int], LoadRequest]
    task: Callable[[int], tuple[LoadRequest, ...]] | None = None
    times_s: Sequence[float] = field(default=())

    def calls(self, first: int, count: int) -> tuple[LoadRequest, ...]:
        """Requests from an index on; a file starts again after its last one."""
        return tuple(replace(self.request(first + i), index=i) for i in range(count))

    def timed(self, count: int | None, speed: float) -> tuple[LoadRequest, ...]:
        """The rows of a trace at their times, sped up."""
        times = self.times_s[:count]
        calls = self.calls(0, len(times))
        return tuple(
            replace(one, at_s=at_s / speed) for one, at_s in zip(calls, times, strict=True)
        )

    def tasks(self, first: int, count: int) -> tuple[Task, ...]:
        assert self.task is not None
        return tuple(
            tuple(replace(call, task=i) for call in self.task(first + i)) for i in range(count)
        )


def filled(template: LoadRequest, prompt: Prompt, max_tokens: int) -> LoadRequest:
    return replace(template, prompt=prompt, max_tokens=max_tokens)


def seeded_random(seed: int, *names: object) -> random.Random:
    """A separate random generator for each name."""
    return random.Random("-".join(map(str, (seed, *names))))


def fixed(
    tokens: Prompts,
    isl: int,
    osl: int,
    template: LoadRequest,
    seed: int = 0,
    range_ratio: float = 1.0,
) -> BenchWorkload:
    """Lengths are drawn evenly between `range_ratio` of the full length and the full length."""

    def request(place: int) -> LoadRequest:
        chance = seeded_random(seed, place)
        count, out = (chance.randint(max(1, int(full * range_ratio)), full) for full in (isl, osl))
        return filled(template, tokens.make(count, chance), out)

    words = f"{_range(isl, range_ratio)} prompt tokens, {_range(osl, range_ratio)} output tokens"
    facts = {"isl": isl, "osl": osl, "range_ratio": range_ratio, "words": words}
    return BenchWorkload("fixed", {**facts, "prompts": tokens.source}, request)


def _range(full: int, range_ratio: float) -> str:
    least = max(1, int(full * range_ratio))
    return f"{full}" if least == full else f"{least} to {full}"


def shared_prefix(
    tokens: Prompts,
    prefix: int,
    isl: int,
    osl: int,
    template: LoadRequest,
    seed: int = 0,
    groups: int = 1,
) -> BenchWorkload:
    """Prompts of `isl` tokens whose first `prefix` ones are the same within a group."""
    prefixes = [
        tokens.make(prefix, seeded_random(seed, "prefix", group)) for group in range(groups)
    ]

    def request(place: int) -> LoadRequest:
        own = tokens.make(isl - prefix, seeded_random(seed, place))
        return filled(template, joined(prefixes[place % groups], own), osl)

    words = (
        f"{isl} prompt tokens, of which {prefix} are shared within {groups} groups, {osl} output"
    )
    facts = {"isl": isl, "osl": osl, "prefix": prefix, "groups": groups, "words": f"{words} tokens"}
    return BenchWorkload("shared_prefix", {**facts, "prompts": tokens.source}, request)


def agent(
    tokens: Prompts,
    isl: int,
    osl: int,
    template: LoadRequest,
    seed: int = 0,
    calls: int = 5,
    turn: int = 200,
    chat: bool = False,
) -> BenchWorkload:
    """Tasks of dependent calls: the first prompt has `isl` tokens; each later one has the
    conversation so far and `turn` new tokens, like the result of a tool. Needs text prompts."""

    def task(place: int) -> tuple[LoadRequest, ...]:
        chance = seeded_random(seed, place)
        prompts = [str(tokens.make(turn if call else isl, chance)) for call in range(calls)]
        if not chat:
            return tuple(filled(template, prompt, osl) for prompt in prompts)
        said = ({"role": "user", "content": prompt} for prompt in prompts)
        return tuple(replace(template, messages=(row,), max_tokens=osl) for row in said)

    words = (
        f"tasks of {calls} calls: {isl} prompt tokens, then {turn} new ones, {osl} output tokens"
    )
    facts = {"isl": isl, "osl": osl, "calls": calls, "turn": turn, "words": f"{words} each"}
    facts["prompts"] = tokens.source
    return BenchWorkload("agent", facts, lambda place: task(place)[0], task)


def joined(*parts: Prompt) -> Prompt:
    if all(isinstance(part, str) for part in parts):
        return "".join(str(part) for part in parts)
    tokens: list[int] = []
    for part in parts:
        tokens += [token for token in part if isinstance(token, int)]
    return tuple(tokens)


# Shorter prompts or answers are dropped.
LEAST_TOKENS = 2
# Tokens per hash id.
BLOCK_TOKENS = 512
MS_PER_S = 1000.0
MOST_TOKENS = 10_000_000  # of a prompt or an answer of a trace
NUMBERS = ("timestamp", "input_length", "output_length")
MAX_DIAGNOSTICS = 10
MAX_BYTES = 1_000_000_000  # ShareGPT has 0.7 GB
LETTERS_PER_VALUE = 12  # conversations are text: a file of far shorter values holds none


def sharegpt(
    tokens: Prompts,
    file: Path,
    template: LoadRequest,
    seed: int = 0,
    osl: int | None = None,
    context: int | None = None,
) -> BenchWorkload:
    """Shuffled conversations: the first turn is the prompt; the length of the second is requested,
    unless `osl` is set. Turns of fewer than two tokens, and pairs of more than `context` tokens,
    are dropped. Raises `BadInput`."""
    rows = [pair for row in _conversations(file) if (pair := _first_two(row))]
    random.Random(seed).shuffle(rows)
    kept = list(_kept(rows, tokens, osl, context))
    if not kept:
        what = f"has no conversation that the rule keeps, of {len(rows)} with two turns"
        raise BadInput(Diagnostic(str(file), what, "give a longer --context-length"))
    words = f"ShareGPT conversations of {file.name}, "
    words += f"{osl} output tokens" if osl else "output as long as their second turn"
    words += f", prompt and output at most {context} tokens" if context else ""
    facts = {"isl": None, "osl": osl, "context_length": context, "file": str(file), "words": words}
    facts |= {"conversations": len(kept), "prompts": tokens.source}
    return BenchWorkload(
        "sharegpt", facts, lambda place: filled(template, *kept[place % len(kept)])
    )


def _conversations(file: Path) -> Sequence[Any]:
    try:
        text = files.read_text(file, BadInput, MAX_BYTES)
        values = max(files.MAX_JSON_VALUES, len(text) // LETTERS_PER_VALUE)
        document = files.parse_json(text, max_values=values)
    except ValueError as error:
        raise BadInput(Diagnostic(str(file), f"is not JSON: {error}")) from None
    if not isinstance(document, list) or not all(isinstance(row, dict) for row in document):
        remedy = 'write [{"conversations": [{"value": "..."}, {"value": "..."}]}]'
        raise BadInput(Diagnostic(str(file), "must be a list of conversations", remedy))
    return document


def _first_two(row: Any) -> tuple[str, str] | None:
    turns = row.get("conversations") or row.get("conversation")
    first = [one for one in turns[:2] if isinstance(one, dict)] if isinstance(turns, list) else []
    match [turn.get("value", turn.get("content", "")) for turn in first]:
        case [str(prompt), str(answer)]:
            return prompt, answer
    return None


def _kept(
    rows: Sequence[tuple[str, str]], tokens: Prompts, osl: int | None, context: int | None
) -> Iterator[tuple[str, int]]:
    for prompt, answer in rows:
        count, out = tokens.count(prompt), osl or tokens.count(answer)
        if count is None or out is None:
            where, what = "ShareGPT conversations", "are chosen by their token counts"
            raise BadInput(
                Diagnostic(where, what, "give a folder with tokenizer.json by --tokenizer")
            )
        if min(count, out) >= LEAST_TOKENS and (not context or count + out <= context):
            yield prompt, out


def trace(tokens: Prompts, file: Path, template: LoadRequest, seed: int = 0) -> BenchWorkload:
    """Rows have a `timestamp` in ms, `input_length`, `output_length` and `hash_ids`; equal ids mean
    equal blocks of prompt tokens. Raises `BadInput`."""
    rows = sorted(_trace_rows(file), key=lambda row: float(row["timestamp"]))
    blocks: dict[object, Prompt] = {}

    def request(place: int) -> LoadRequest:
        row = rows[place % len(rows)]
        length = int(row["input_length"])
        ids = (row.get("hash_ids") or ())[: -(-length // BLOCK_TOKENS)]
        for block in ids:
            if block not in blocks:
                blocks[block] = tokens.make(BLOCK_TOKENS, seeded_random(seed, "block", block))
        whole = length // BLOCK_TOKENS
        parts = [blocks[block] for block in ids[:whole]]
        if left := length - BLOCK_TOKENS * len(parts):
            # The beginning of a block: the same source of chance gives the same tokens.
            own = ("block", ids[-1]) if len(ids) > len(parts) else ("row", place)
            parts.append(tokens.make(left, seeded_random(seed, *own)))
        return filled(template, joined(*parts), int(row["output_length"]))

    start_ms = rows[0]["timestamp"]
    times_s = [(row["timestamp"] - start_ms) / MS_PER_S for row in rows]
    return BenchWorkload("trace", _trace_facts(file, rows, tokens), request, times_s=times_s)


def _trace_facts(file: Path, rows: list[dict[str, Any]], tokens: Prompts) -> Mapping[str, Any]:
    isl, osl = (
        round(sum(row[name] for row in rows) / len(rows))
        for name in ("input_length", "output_length")
    )
    span_s = (rows[-1]["timestamp"] - rows[0]["timestamp"]) / MS_PER_S
    words = f"{len(rows)} requests of the trace {file.name} over {span_s:.0f} s, "
    words += f"on average {isl} prompt tokens and {osl} output tokens"
    facts = {"isl": isl, "osl": osl, "file": str(file), "rows": len(rows), "words": words}
    return {**facts, "prompts": tokens.source}


def _trace_rows(file: Path) -> list[dict[str, Any]]:
    rows, diagnostics = [], []
    text = files.read_text(file, BadInput, MAX_BYTES)
    for number, line in enumerate(text.splitlines(), 1):
        try:
            if line.strip():
                rows.append(_trace_row(files.parse_json(line)))
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            what = f"is not a row of a trace: {type(error).__name__}: {error}"
            diagnostics.append(Diagnostic(f"{file}:{number}", what))
    if not rows and not diagnostics:
        diagnostics.append(Diagnostic(str(file), "is empty"))
    if diagnostics:
        raise BadInput(diagnostics[:MAX_DIAGNOSTICS])
    return rows


def _trace_row(found: Mapping[str, Any]) -> dict[str, Any]:
    row = {**found, **{name: float(found[name]) for name in NUMBERS}}
    if not all(math.isfinite(row[name]) for name in NUMBERS):
        raise ValueError("a number is not finite")
    lengths = row["input_length"], row["output_length"]
    if not 1 <= min(lengths) <= max(lengths) <= MOST_TOKENS:
        raise ValueError(f"a length is not from 1 to {MOST_TOKENS}")
    ids = [] if row.get("hash_ids") is None else row["hash_ids"]
    if not isinstance(ids, list) or not all(isinstance(one, int | str) for one in ids):
        raise ValueError("hash_ids is no list of numbers")
    return row
