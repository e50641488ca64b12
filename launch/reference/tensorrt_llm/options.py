"""The engine options: checked against the release's table, and the few that have an effect here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any

from builder.diagnostics import Diagnostic
from builder.documents import value_at
from builder.errors import BadInput
from builder.facts import release as releases
from builder.facts.engines import Engine
from builder.facts.release import Release
from builder.rules import defects, heuristics
from builder.rules.validation import validate

from .logger import RELEASE, logger


class OptionError(BadInput, ValueError):
    """Options that the release rejects; the engine itself raises a `ValueError` for them."""


@cache
def release() -> Release:
    return releases.load(RELEASE)


def has_defect(name: str) -> bool:
    """Whether the release is known to have a defect of this id."""
    rows = defects.of_version(release().engine.name, release().name)
    return any(row.id == name for row in rows)


@dataclass(frozen=True, slots=True)
class Drafting:
    """How `tokens` are drafted per step: by the MTP layer, a head or model in a folder, or NGram.

    `ngram_size` is the longest match that NGram looks for; `layers` are those that an Eagle3 head
    reads, none for the release's own.
    """

    method: str
    tokens: int
    model: str | None = None
    ngram_size: int = 1
    layers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The options that change what the reference engine does.

    A default is the value in a release that does not know the option.
    """

    drafting: Drafting | None
    guided_decoding_backend: str | None
    max_batch_size: int = 2048
    max_num_tokens: int = 8192
    max_seq_len: int | None = None
    enable_chunked_prefill: bool = False
    stream_interval: int = 1
    return_perf_metrics: bool = False
    perf_metrics_max_requests: int = 0
    enable_iter_perf_stats: bool = False
    max_stats_len: int = 1000
    tokens_per_block: int = 32

    @property
    def draft_tokens(self) -> int:
        return self.drafting.tokens if self.drafting else 0


_NESTED = {"tokens_per_block": "kv_cache_config.tokens_per_block"}
# The path of each field that has a default, and that default.
_PATHS: dict[str, tuple[str, Any]] = {
    field.name: (_NESTED.get(field.name, field.name), field.default)
    for field in fields(EngineOptions)
    if field.default is not MISSING
}
_LENGTHS = ("max_draft_len", "num_nextn_predict_layers")
_DRAFT_MODELS = ("speculative_model", "speculative_model_dir")
_WITH_MODEL = ("eagle3", "draft_target")
_HONOURED = {path for path, _ in _PATHS.values()} | {
    "model",
    "tokenizer",
    "backend",
    "guided_decoding_backend",
    "reasoning_parser",
    *(f"speculative_config.{name}" for name in (*_LENGTHS, *_DRAFT_MODELS)),
    *(f"speculative_config.{name}" for name in ("decoding_type", "max_matching_ngram_size")),
    "speculative_config.eagle3_layers_to_capture",
}


def check(given: Mapping[str, Any]) -> list[Diagnostic]:
    """Warnings about the options. Raises `OptionError` with all that the release rejects."""
    problems = list(validate(release(), given))
    if errors := [problem for problem in problems if problem.severity == "error"]:
        raise OptionError(errors)
    backend = given.get("backend")
    if backend not in (None, "pytorch"):
        what = f"the reference engine cannot replace backend {backend}"
        raise OptionError(Diagnostic("backend", what, "use pytorch"))
    return problems


def read(given: Mapping[str, Any]) -> EngineOptions:
    """The effective options; those without effect here are named in the log. Raises as `check`."""
    for warning in check(given):
        logger.warning("%s", warning)
    if idle := sorted(path for path, value in _leaves(given) if value != release().default(path)):
        logger.info("accepted, but not applicable on this machine: %s", ", ".join(idle))
    values = {name: _value(given, *row) for name, row in _PATHS.items()}
    return EngineOptions(
        **values,
        drafting=_drafting(given.get("speculative_config")),
        guided_decoding_backend=given.get("guided_decoding_backend"),
    )


def update_llm_args_with_extra_dict(
    llm_args: Mapping[str, Any],
    llm_args_dict: Mapping[str, Any],
    extra_llm_api_options: str | None = None,
) -> dict[str, Any]:
    """`llm_args` with the options of `llm_args_dict` merged over them.

    A key of the option file replaces the whole value, except for the keys that the release merges
    one level deeper. `extra_llm_api_options` is the file's name, for the log only.
    """
    deep = release().deep_merged_keys
    merged = {**llm_args, **llm_args_dict}
    for key in deep:
        below, above = llm_args.get(key), llm_args_dict.get(key)
        if isinstance(below, Mapping) and isinstance(above, Mapping):
            merged[key] = {**below, **above}
    return merged


def _leaves(options: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Paths and values of the options that the reference engine does not honour."""
    for key, value in options.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{path}.")
        elif path not in _HONOURED:
            yield path, value


def _value(given: Mapping[str, Any], path: str, absent: Any) -> Any:
    """The value at a path: as given, else the release's default. The engine reads `"3"` as 3."""
    value = value_at(given, path)
    if value is None:
        value = release().default(path)
    if value is None:
        value = absent
    if isinstance(absent, bool):
        return str(value).strip().lower() in ("true", "1", "yes", "on", "y", "t")
    return None if value is None else int(value)


def _drafting(speculative: Mapping[str, Any] | None) -> Drafting | None:
    """How tokens are drafted; methods that do not draft here are named in the log."""
    if speculative is None:
        return None
    kind = str(speculative.get("decoding_type"))
    method = methods(release().engine).get(kind)
    if method is None:
        logger.info(
            "%s does not draft here; decoding goes without, which gives the same text", kind
        )
        return None
    word = release().option_path("draft_model").rpartition(".")[2]
    model = next((speculative[name] for name in _DRAFT_MODELS if speculative.get(name)), None)
    if method in _WITH_MODEL and model is None:
        where = f"speculative_config.{word}"
        raise OptionError(Diagnostic(where, f"{kind} needs it", "name the draft model's folder"))
    return Drafting(
        method,
        _draft_tokens(speculative, method),
        model,
        int(speculative.get("max_matching_ngram_size") or 1),
        tuple(sorted(speculative.get("eagle3_layers_to_capture") or ())),
    )


def methods(engine: Engine) -> dict[str, str]:
    """The methods that draft here, by the names that an engine's releases have for them."""
    rows = heuristics.method_names(engine).items()
    names = {name: method for method, spellings in rows for name in spellings}
    return {**names, str(engine.draft_method): "mtp"}


def _draft_tokens(speculative: Mapping[str, Any], method: str) -> int:
    """The draft length, by the release's own option name, else by the name in other releases.

    Up to release 1.2.1 `num_nextn_predict_layers` has a default, so that `max_draft_len` alone has
    no effect there on MTP.
    """
    word = release().option_path("mtp_draft_tokens").rpartition(".")[2]
    for name in (word, *_LENGTHS) if method == "mtp" else _LENGTHS[:1]:
        default = release().default(f"speculative_config.{name}")
        if (value := speculative.get(name, default)) is not None:
            return int(value)
    return 1
