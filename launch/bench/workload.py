"""A workload: what is asked, the same for the same seed, made here or read from a user's file."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from builder.diagnostics import Diagnostic
from builder.errors import BadInput

from .load import Call, Task
from .request import Ask
from .tokens import Prompt, Tokens

Kind = Literal["fixed", "sharegpt", "trace", "shared_prefix", "agent"]


@dataclass(frozen=True, slots=True)
class Style:
    """What all asks of a run share. Text is kept where the server may not count its tokens."""

    ignore_eos: bool = True
    temperature: float | None = 0.0
    timeout_s: float = 600.0
    chat: bool = False
    keep_text: bool = False

    def ask(self, prompt: Prompt, max_tokens: int) -> Ask:
        return Ask(
            prompt=prompt,
            max_tokens=max_tokens,
            ignore_eos=self.ignore_eos,
            temperature=self.temperature,
            timeout_s=self.timeout_s,
            keep_text=self.keep_text,
        )


@dataclass(frozen=True, slots=True)
class Workload:
    """`ask` gives the request of a place, `task` the calls of one. `facts` go to the document.

    A trace has `times_s` of its rows; `size` is how many different ones a file has.
    """

    kind: Kind
    facts: Mapping[str, Any]
    ask: Callable[[int], Ask]
    task: Callable[[int], tuple[Ask, ...]] | None = None
    times_s: Sequence[float] = field(default=())
    size: int | None = None

    def calls(self, first: int, count: int) -> tuple[Call, ...]:
        """From one place of the workload on; a file starts again after its last one."""
        return tuple(Call(i, self.ask(first + i)) for i in range(count))

    def timed(self, count: int | None, speed: float) -> tuple[Call, ...]:
        """The rows of a trace at their times, so many times as fast."""
        times = self.times_s[:count]
        return tuple(Call(i, self.ask(i), at_s / speed) for i, at_s in enumerate(times))

    def tasks(self, first: int, count: int) -> tuple[Task, ...]:
        assert self.task is not None
        return tuple(Task(i, self.task(first + i)) for i in range(count))


def chance_of(seed: int, *names: object) -> random.Random:
    """A source of chance of its own for each thing of these names."""
    return random.Random("-".join(map(str, (seed, *names))))


def fixed(
    tokens: Tokens, isl: int, osl: int, style: Style, seed: int = 0, range_ratio: float = 1.0
) -> Workload:
    """Lengths are drawn evenly from `range_ratio` of the full ones up to these."""

    def ask(place: int) -> Ask:
        chance = chance_of(seed, place)
        count, out = (_drawn(full, range_ratio, chance) for full in (isl, osl))
        return style.ask(tokens.make(count, chance), out)

    words = f"{_range(isl, range_ratio)} prompt tokens, {_range(osl, range_ratio)} output tokens"
    facts = {"isl": isl, "osl": osl, "range_ratio": range_ratio, "words": words}
    return Workload("fixed", {**facts, "prompts": tokens.source}, ask)


def _drawn(full: int, range_ratio: float, chance: random.Random) -> int:
    return chance.randint(max(1, int(full * range_ratio)), full)


def _range(full: int, range_ratio: float) -> str:
    least = max(1, int(full * range_ratio))
    return f"{full}" if least == full else f"{least} to {full}"


def shared_prefix(
    tokens: Tokens, prefix: int, isl: int, osl: int, style: Style, seed: int = 0, groups: int = 1
) -> Workload:
    """Prompts of `isl` tokens whose first `prefix` ones are the same within a group."""
    prefixes = [tokens.make(prefix, chance_of(seed, "prefix", group)) for group in range(groups)]

    def ask(place: int) -> Ask:
        own = tokens.make(isl - prefix, chance_of(seed, place))
        return style.ask(joined(prefixes[place % groups], own), osl)

    words = (
        f"{isl} prompt tokens, of which {prefix} are shared within {groups} groups, {osl} output"
    )
    facts = {"isl": isl, "osl": osl, "prefix": prefix, "groups": groups, "words": f"{words} tokens"}
    return Workload("shared_prefix", {**facts, "prompts": tokens.source}, ask)


def agent(
    tokens: Tokens, isl: int, osl: int, style: Style, seed: int = 0, calls: int = 5, turn: int = 200
) -> Workload:
    """Tasks of dependent calls: the first prompt has `isl` tokens, and each later one is all that
    was said before it and `turn` new tokens, as a tool's result is. Needs prompts that are text."""

    def task(place: int) -> tuple[Ask, ...]:
        chance = chance_of(seed, place)
        prompts = [str(tokens.make(turn if call else isl, chance)) for call in range(calls)]
        return tuple(_said(style, prompt, osl) for prompt in prompts)

    words = (
        f"tasks of {calls} calls: {isl} prompt tokens, then {turn} new ones, {osl} output tokens"
    )
    facts = {"isl": isl, "osl": osl, "calls": calls, "turn": turn, "words": f"{words} each"}
    facts["prompts"] = tokens.source
    return Workload("agent", facts, lambda place: task(place)[0], task)


def _said(style: Style, prompt: str, osl: int) -> Ask:
    ask = style.ask(prompt, osl)
    if not style.chat:
        return ask
    return replace(ask, prompt=None, messages=({"role": "user", "content": prompt},))


def joined(*parts: Prompt) -> Prompt:
    """One prompt of several, all of them text or all of them token ids."""
    if all(isinstance(part, str) for part in parts):
        return "".join(str(part) for part in parts)
    return tuple(token for part in parts for token in part if isinstance(token, int))


def text_of(file: Path) -> str:
    """A file of the user's. Raises `BadInput`."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        reason = getattr(fault, "strerror", None) or str(fault)
        raise BadInput(Diagnostic(str(file), f"cannot be read: {reason.lower()}")) from None
