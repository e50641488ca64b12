"""Turns the inputs `sampling_param_*` into keyword arguments of the engine's SamplingParams.

Names and ranges are the engine's; its runtime enforces the ranges (releases 1.0.0 to 1.2.1,
`tensorrt_llm/sampling_params.py` and `cpp/tensorrt_llm/executor/samplingConfig.cpp`): there a value
out of range fails without naming the parameter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from .inputs import Inputs, RequestError, document, scalar, shown, text, texts, token_ids

PREFIX = "sampling_param_"
# Every choice is one more sequence in the engine, and every log probability an object.
MAX_CHOICES = 128
MAX_LOGPROBS = 100
MAX_WORDS = 256


# Whether a value is allowed, and the same in words.
Rule = tuple[Callable[[Any], bool], str]


def _least(least: int) -> Rule:
    return lambda value: value >= least, f"at least {least}"


def _between(least: int, most: int) -> Rule:
    return lambda value: least <= value <= most, f"between {least} and {most}"


ANY: Rule = (lambda value: True, "true or false")
FINITE: Rule = (math.isfinite, "a finite number")
FROM_0: Rule = (lambda value: 0 <= value < math.inf, "a finite number from 0 on")
ABOVE_0: Rule = (lambda value: 0 < value < math.inf, "a finite number above 0")
SHARE: Rule = (lambda value: 0 < value <= 1, "above 0 and at most 1")
TOP_K: Rule = (lambda value: value >= 0, "at least 0, where 0 means all tokens")
# The scalar inputs `sampling_param_<name>`.
PARAMETERS: Mapping[str, Rule] = {
    **dict.fromkeys(("n", "best_of"), _between(1, MAX_CHOICES)),
    "use_beam_search": ANY,
    "temperature": FROM_0,
    "top_k": TOP_K,
    **dict.fromkeys(("top_p", "top_p_min", "top_p_decay"), SHARE),
    "min_p": _between(0, 1),
    "repetition_penalty": ABOVE_0,
    **dict.fromkeys(("frequency_penalty", "presence_penalty"), FINITE),
    **dict.fromkeys(("length_penalty", "beam_search_diversity_rate"), FROM_0),
    **dict.fromkeys(("top_p_reset_ids", "early_stopping", "prompt_ignore_length"), _least(0)),
    **dict.fromkeys(("no_repeat_ngram_size", "max_tokens", "truncate_prompt_tokens"), _least(1)),
    **dict.fromkeys(("min_tokens", "seed"), _least(0)),
    **dict.fromkeys(("logprobs", "prompt_logprobs"), _between(0, MAX_LOGPROBS)),
    **dict.fromkeys(("ignore_eos", "include_stop_str_in_output", "add_special_tokens"), ANY),
    **dict.fromkeys(("detokenize", "skip_special_tokens", "spaces_between_special_tokens"), ANY),
    **dict.fromkeys(("exclude_input_from_output", "return_perf_metrics"), ANY),
}
# What the published model asks for where its client says nothing.
DEFAULTS: Mapping[str, Any] = {
    "best_of": 1,
    "exclude_input_from_output": False,
    "return_perf_metrics": False,
}


def read(inputs: Inputs, streaming: bool, wanted: Collection[str]) -> dict[str, Any]:
    """Raises `RequestError` naming the input, its value and what is allowed."""
    sampling = dict(DEFAULTS)
    for name, (allows, rule) in PARAMETERS.items():
        if PREFIX + name not in inputs:
            continue
        value = scalar(inputs, PREFIX + name)
        if not allows(value):
            raise RequestError(f"{PREFIX}{name}: is {shown(value)}; it must be {rule}")
        sampling[name] = value
    lists: Mapping[str, Callable[..., list[Any] | None]] = {
        "stop": texts,
        "bad": texts,
        "stop_token_ids": token_ids,
        "bad_token_ids": token_ids,
    }
    for name, reader in lists.items():
        if values := reader(inputs, PREFIX + name, MAX_WORDS):
            sampling[name] = values
    if guide := _guide(inputs):
        sampling["guided_decoding"] = guide
    _agree(sampling, inputs, streaming)
    if "cumulative_logprob" in wanted:
        # The PyTorch backend sums log probabilities only when asked for one at least.
        sampling["logprobs"] = max(1, sampling.get("logprobs", 1))
    return sampling


def _agree(sampling: dict[str, Any], inputs: Inputs, streaming: bool) -> None:
    """Number of choices, of sequences and of tokens: each fits the others, or the request ends."""
    asked_n, asked_best_of = "n" in sampling, f"{PREFIX}best_of" in inputs
    if asked_n and not asked_best_of:
        sampling["best_of"] = sampling["n"]
    elif streaming and not asked_n:
        # The engine ranks the sequences of best_of anew at every step, so that a stream of the best
        # one alone would have to take text back. All of them are streamed instead, in fixed order.
        sampling["n"] = sampling["best_of"]
    best_of, n = sampling["best_of"], sampling.get("n", 1)
    if best_of < n:
        raise RequestError(
            f"{PREFIX}best_of: is {best_of}; it must be at least {PREFIX}n, which is {n}"
        )
    if streaming and best_of > n:
        what = f"{PREFIX}best_of: is {best_of}, above {PREFIX}n, which is {n}"
        raise RequestError(f"{what}; a stream cannot know the best sequences, so send them equal")
    if (least := sampling.get("min_tokens", 0)) > sampling.get("max_tokens", math.inf):
        what = f"{PREFIX}min_tokens: is {least}"
        raise RequestError(
            f"{what}; it must be at most max_tokens, which is {sampling['max_tokens']}"
        )


def _guide(inputs: Inputs) -> dict[str, Any] | None:
    """The one guide of a request, as a keyword argument of the engine's GuidedDecodingParams."""
    prefix = f"{PREFIX}guided_decoding_"
    for name in ("json", "structural_tag"):
        document(inputs, prefix + name, dict)  # checked here; the engine takes the text
    guides: dict[str, Any] = {
        name: text(inputs, prefix + name) for name in ("json", "regex", "grammar", "structural_tag")
    }
    guides["json_object"] = scalar(inputs, f"{prefix}json_object") or None
    given = {name: guide for name, guide in guides.items() if guide is not None}
    if len(given) > 1:
        names = " and ".join(prefix + name for name in given)
        raise RequestError(f"{names}: cannot stand together; a request has one guide")
    return given or None
