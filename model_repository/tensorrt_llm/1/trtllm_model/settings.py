"""The settings of this model: `model.yaml` beside `model.py`, and variables that replace parts.

`LLM_CONFIG_PATH` names another file, absolute or relative to that folder. `CHECKPOINT` replaces
`model`, for a checkpoint that is mounted elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

VERSION_FOLDER = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Settings:
    """`triton_config` of the file, with every key that it may have, and the engine's options.

    A limit of `None` is not a limit.
    """

    max_batch_size: int
    decoupled: bool
    engine_options: Mapping[str, Any]
    # How often a client is asked whether it gave up; every question costs about 0.1 ms. Of more
    # clients than the watchdog can ask so often, each is asked less often.
    cancellation_check_period_ms: float = 150
    # Each sleeps while its response is on the way; the more are on their way at once, the fewer
    # threads of the server process fall asleep between two of them.
    sender_threads: int = 4
    # Running and waiting requests: Triton's own queue does not bound streams.
    max_requests: int | None = None
    # Of them, those over HTTP that are not streamed: Triton does not say when their clients leave.
    # So they may take neither all requests nor, running in the engine, all of its batch.
    max_unary_http_requests: int | None = None
    max_unary_http_running: int | None = None
    # All that a request holds: a longer one is refused before anything is done for it.
    max_prompt_bytes: int | None = None
    max_tokens_per_request: int | None = None
    max_seconds_per_request: float | None = None
    # How long the unload waits for running requests; below Triton's --exit-timeout-secs.
    drain_timeout_s: float = 240
    # An engine without any output for so long, while requests run, counts as dead.
    engine_stall_timeout_s: float | None = 300


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# Whether a key may have a value, and the same in words.
Rule = tuple[Callable[[Any], bool], str]


def _or_null(allows: Callable[[Any], bool], words: str) -> Rule:
    return lambda value: value is None or allows(value), f"{words}, or null"


ABOVE_0: Rule = (lambda value: _is_number(value) and value > 0, "a number above 0")
LIMIT = _or_null(lambda value: _is_whole(value) and value >= 1, "a whole number from 1")
RULES: Mapping[str, Rule] = {
    "max_batch_size": (lambda value: _is_whole(value) and value >= 0, "a whole number from 0"),
    "decoupled": (lambda value: isinstance(value, bool), "true or false"),
    "cancellation_check_period_ms": (
        lambda value: _is_number(value) and 0 < value <= 10_000,
        "a number up to 10000",
    ),
    "sender_threads": (lambda value: _is_whole(value) and 1 <= value <= 8, "from 1 to 8"),
    **dict.fromkeys(("max_requests", "max_unary_http_requests", "max_unary_http_running"), LIMIT),
    **dict.fromkeys(("max_prompt_bytes", "max_tokens_per_request"), LIMIT),
    "max_seconds_per_request": _or_null(*ABOVE_0),
    "drain_timeout_s": ABOVE_0,
    "engine_stall_timeout_s": _or_null(*ABOVE_0),
}
REQUIRED = tuple(field.name for field in fields(Settings)[:2])


def read() -> Settings:
    """Raises `ValueError` naming the file and what is wrong with it."""
    path = VERSION_FOLDER / os.environ.get("LLM_CONFIG_PATH", "model.yaml")
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as fault:
        raise ValueError(f"{path}: cannot be read: {fault}") from fault
    if not isinstance(document, dict) or not isinstance(document.get("triton_config"), dict):
        raise ValueError(f"{path}: must be a mapping with a mapping triton_config in it")
    triton = document.pop("triton_config")
    _check(path, triton)
    if os.environ.get("CHECKPOINT"):
        document["model"] = os.environ["CHECKPOINT"]
    if not document.get("model"):
        raise ValueError(f"{path}: has no model; set model there, or CHECKPOINT")
    return Settings(**triton, engine_options=document)


def _check(path: Path, triton: Mapping[str, Any]) -> None:
    missing = [key for key in REQUIRED if key not in triton]
    if missing:
        raise ValueError(f"{path}: triton_config lacks {' and '.join(missing)}")
    for key, value in triton.items():
        if key not in RULES:
            known = ", ".join(RULES)
            raise ValueError(f"{path}: triton_config.{key}: is unknown; the keys are {known}")
        allows, rule = RULES[key]
        if not allows(value):
            raise ValueError(f"{path}: triton_config.{key}: is {value!r}; it must be {rule}")
