"""What is new of a request's cumulative output: text that is sure to stay, tokens, scores."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from typing import Any

from .request import Request

# What a tokenizer writes for bytes that are no character, or not yet.
INCOMPLETE = "\ufffd"
# Outputs that are made here of tokens, and are no fields of the engine's sequences.
OUTPUTS = (
    "output_ids",
    "output_lengths",
    "num_input_tokens",
    "num_output_tokens",
    "logprobs",
    "prompt_logprobs",
)


class TextDeltas:
    """The text that is new since it was last taken, per output sequence of one request.

    Computed from the cumulative texts, so that nothing is lost where the engine advanced by
    several steps at once. What the engine may still take back is kept until a sequence has ended:
    the beginning of a character, and of one of the `stops`.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._stops = tuple(stops)
        self._longest_stop = max(map(len, self._stops), default=0)
        self._sent: dict[int, int] = {}

    def take(self, outputs: Sequence[Any]) -> list[str]:
        new = []
        for index, output in enumerate(outputs):
            text, sent = output.text, self._sent.get(index, 0)
            end = len(text) if output.finish_reason is not None else self._settled(text, sent)
            new.append(text[sent:end])
            self._sent[index] = max(sent, end)
        return new

    def _settled(self, text: str, sent: int) -> int:
        """Up to where the text stays as it is; `sent` at least."""
        end = len(text)
        while end > sent and text[end - 1] == INCOMPLETE:
            end -= 1
        for start in range(max(sent, end - self._longest_stop + 1), end):
            tail = text[start:end]
            if any(stop.startswith(tail) for stop in self._stops):
                return start
        return end


class TokenDeltas:
    """The generated tokens that are new since they were last taken, per sequence of one request.

    Lists that the engine goes on writing to may be given: `length` says how much of them counts.
    """

    def __init__(self, request: Request) -> None:
        self._most_logprobs: int = request.sampling.get("logprobs", 0)
        excludes_prompt = request.sampling.get("exclude_input_from_output", True)
        self._repeats_prompt = not (request.streaming or excludes_prompt)
        self._are_wanted = bool({"output_ids", "logprobs"} & set(request.outputs))
        self._first: int | None = None  # where the generated ones begin
        self._taken: dict[int, int] = {}
        self._prompt_is_scored = False

    def wait(self, outputs: Sequence[Any]) -> bool:
        """Whether there are new ones for a client that wants them, with or without text."""
        return self._are_wanted and any(
            output.length > self._taken.get(index, 0) for index, output in enumerate(outputs)
        )

    def take(
        self, outputs: Sequence[Any], prompt: Sequence[int], wanted: Collection[str]
    ) -> dict[str, Sequence[Any]]:
        """The wanted ones of `OUTPUTS`, with one element per sequence.

        `output_ids` of all sequences follow each other, as many of each as `output_lengths` says.
        """
        wanted = [name for name in OUTPUTS if name in wanted]
        if not wanted:
            return {}
        first = self._begin(outputs[0], prompt)
        new = []
        for index, output in enumerate(outputs):
            start = self._taken.get(index, first)
            self._taken[index] = max(start, output.length)
            new.append(range(start, self._taken[index]))
        rows = list(zip(outputs, new, strict=True))
        columns: Mapping[str, Callable[[], Sequence[Any]]] = {
            "output_ids": lambda: list(chain(*(o.token_ids[s.start : s.stop] for o, s in rows))),
            "output_lengths": lambda: [len(span) for span in new],
            "num_input_tokens": lambda: [len(prompt)],
            "num_output_tokens": lambda: [span.stop - first for span in new],
            "logprobs": lambda: [self._scores(output, span, first) for output, span in rows],
            "prompt_logprobs": lambda: self._prompt_scores(outputs[0]),
        }
        return {name: column for name in wanted if (column := columns[name]())}

    def _begin(self, output: Any, prompt: Sequence[int]) -> int:
        """Where asked to, the engine repeats the prompt before the tokens, but not in a stream."""
        if self._first is None:
            repeated = self._repeats_prompt and list(output.token_ids[: len(prompt)]) == [*prompt]
            self._first = len(prompt) if repeated else 0
        return self._first

    def _scores(self, output: Any, span: range, first: int) -> str:
        """JSON: for each token its id, log probability and rank, and the likeliest ones instead."""
        scores = (output.logprobs or [])[span.start - first : span.stop - first]
        ids = output.token_ids[span.start : span.stop]
        return json.dumps(
            [_score(*pair, self._most_logprobs) for pair in zip(ids, scores, strict=False)]
        )

    def _prompt_scores(self, output: Any) -> list[str]:
        """JSON, once: for each token of the prompt the likeliest ones, as the engine ranks them."""
        given = output.prompt_logprobs
        if self._prompt_is_scored or not given:
            return []
        self._prompt_is_scored = True
        return [json.dumps([_ranked(scores) for scores in given])]


def _score(token: int, score: Any, most: int) -> dict[str, Any]:
    """Releases give every token a mapping of ids, or in their simple format one number."""
    if not isinstance(score, Mapping):
        return _entry(token, score)
    own = _entry(token, score[token]) if token in score else {"token_id": token}
    return {**own, "top": _ranked(score)[:most]}


def _ranked(score: Any) -> list[dict[str, Any]]:
    if not isinstance(score, Mapping):
        return [{"logprob": _finite(score)}]
    entries = [_entry(token, value) for token, value in score.items()]
    return sorted(entries, key=_likelihood, reverse=True)


def _likelihood(entry: Mapping[str, Any]) -> float:
    value = entry["logprob"]
    return -math.inf if value is None else float(value)


def _entry(token: int, value: Any) -> dict[str, Any]:
    rank = getattr(value, "rank", None)
    entry = {"token_id": token, "logprob": _finite(getattr(value, "logprob", value))}
    return entry if rank is None else {**entry, "rank": rank}


def _finite(value: float | None) -> float | None:
    """JSON has no infinity, which is the log of a probability that the engine rounds to 0."""
    return None if value is None or not math.isfinite(value) else float(value)
