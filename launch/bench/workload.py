"""A workload: which requests are sent, the same ones for the same seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from .load import Task
from .prompts import Prompt, Prompts
from .request import LoadRequest

Kind = Literal["fixed", "sharegpt", "trace", "shared_prefix", "agent"]
# What all requests of a run share, unless options say otherwise.
TEMPLATE = LoadRequest(ignore_eos=True, temperature=0.0)


@dataclass(frozen=True, slots=True)
class BenchWorkload:
    """`request` gives the one of a place, `task` the calls of one. `facts` go to the document.

    A trace has `times_s` of its rows; `size` is how many different ones a file has.
    """

    kind: Kind
    facts: Mapping[str, Any]
    request: Callable[[int], LoadRequest]
    task: Callable[[int], tuple[LoadRequest, ...]] | None = None
    times_s: Sequence[float] = field(default=())
    size: int | None = None

    def calls(self, first: int, count: int) -> tuple[LoadRequest, ...]:
        """From one place of the workload on; a file starts again after its last one."""
        return tuple(replace(self.request(first + i), index=i) for i in range(count))

    def timed(self, count: int | None, speed: float) -> tuple[LoadRequest, ...]:
        """The rows of a trace at their times, so many times as fast."""
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
    """A request with what all requests of a run share."""
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
    """Lengths are drawn evenly from `range_ratio` of the full ones up to these."""

    def request(place: int) -> LoadRequest:
        chance = seeded_random(seed, place)
        count, out = (_drawn(full, range_ratio, chance) for full in (isl, osl))
        return filled(template, tokens.make(count, chance), out)

    words = f"{_range(isl, range_ratio)} prompt tokens, {_range(osl, range_ratio)} output tokens"
    facts = {"isl": isl, "osl": osl, "range_ratio": range_ratio, "words": words}
    return BenchWorkload("fixed", {**facts, "prompts": tokens.source}, request)


def _drawn(full: int, range_ratio: float, chance: random.Random) -> int:
    return chance.randint(max(1, int(full * range_ratio)), full)


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
    """Tasks of dependent calls: the first prompt has `isl` tokens, and each later one is all that
    was said before it and `turn` new tokens, as a tool's result is. Needs prompts that are text."""

    def task(place: int) -> tuple[LoadRequest, ...]:
        chance = seeded_random(seed, place)
        prompts = [str(tokens.make(turn if call else isl, chance)) for call in range(calls)]
        return tuple(_turn(filled(template, prompt, osl), chat) for prompt in prompts)

    words = (
        f"tasks of {calls} calls: {isl} prompt tokens, then {turn} new ones, {osl} output tokens"
    )
    facts = {"isl": isl, "osl": osl, "calls": calls, "turn": turn, "words": f"{words} each"}
    facts["prompts"] = tokens.source
    return BenchWorkload("agent", facts, lambda place: task(place)[0], task)


def _turn(request: LoadRequest, chat: bool) -> LoadRequest:
    """A prompt of a chat is a message of the user."""
    if not chat:
        return request
    return replace(request, prompt=None, messages=({"role": "user", "content": request.prompt},))


def joined(*parts: Prompt) -> Prompt:
    """One prompt of several, all of them text or all of them token ids."""
    if all(isinstance(part, str) for part in parts):
        return "".join(str(part) for part in parts)
    return tuple(token for part in parts for token in part if isinstance(token, int))
