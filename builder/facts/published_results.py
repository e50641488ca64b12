"""Published measurements on real hardware: deployments with their options, acceptance lengths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import log
from pathlib import Path
from typing import Any

from ..documents import DATA
from ..schema import Positive, Text
from . import data_file
from .checkpoint import Checkpoint, gather, same_model
from .model_names import known_names
from .release import ServerRole

RESULTS = DATA / "results"
ACCEPTANCE = DATA / "acceptance.yaml"

# Metrics of published figures, and their units in words.
UNITS = {
    "output_tokens_per_s": "output tok/s",
    "output_tokens_per_s_per_user": "output tok/s per user",
    "output_tokens_per_s_per_gpu": "output tok/s per GPU",
    "prefill_tokens_per_s_per_gpu": "prompt tok/s per GPU",
    "ttft_ms": "ms to the first token",
    "mean_ttft_ms": "ms mean to the first token",
    "mean_tpot_ms": "ms mean per output token",
    "median_e2e_latency_ms": "ms median latency",
    "tpot_gain_percent": "% better time per output token",
    "usd_per_million_tokens": "USD per million tokens",
}

_CONDITIONS: Any = {
    "load?": str,
    "concurrency?": Positive,
    "note?": str,
    "at_tokens_per_s_per_user?": float,
    "mtp_draft_tokens?": int,
    "accepted_length?": float,
}
# What was measured under one load: metrics, and conditions.
_FIGURE: Any = {**_CONDITIONS, **{f"{metric}?": float for metric in UNITS}}
# One row of a publication; `num_gpus` is `None` where it is not said.
_DEPLOYMENT: Any = {
    "checkpoint": Text,
    "gpu": Text,
    "num_gpus": (Positive, [Positive], None),
    "figures": [_FIGURE],
    **dict.fromkeys(("engine?", "workload?", "parallel?"), str),
    **dict.fromkeys(("isl?", "osl?"), Positive),
    "role?": ServerRole,
    "options?": {"*": Any},
    "incomplete?": [Text],
}
# One source: what it says of all of its deployments, and the deployments. `conditions` are those of
# a load as a client names it; `context_length` bounds prompt and answer together.
PUBLICATION: Any = {
    "source": Text,
    "engine": Text,
    "deployments": [_DEPLOYMENT],
    "workload?": str,
    "conditions?": {
        "dataset?": Text,
        "context_length?": Positive,
        "osl?": Positive,
        "ignore_eos?": bool,
        "release?": Text,
    },
    "max_concurrency?": int,
}
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Published:
    """One published deployment.

    `options` maps option paths to values; the number of MTP draft tokens, whose option changed its
    name, stands under `mtp_draft_tokens`. Each figure maps metrics to what was measured, mostly
    with the `concurrency` of the load; `max_concurrency` is the largest of the published sweep.
    `conditions` are those of the whole publication; `incomplete` names what it does not say.
    """

    source: str
    engine: str
    workload: str
    checkpoint: str
    gpu: str
    num_gpus: int
    isl: int | None
    osl: int | None
    conditions: Row
    max_concurrency: int
    options: Mapping[str, Any]
    figures: tuple[Row, ...]
    incomplete: tuple[str, ...]
    file: Path


def published(
    facts: Checkpoint, gpu: str, num_gpus: int, role: ServerRole = "agg"
) -> tuple[Published, ...]:
    """What was published for the same model on the same GPUs, whatever its folder is called.

    Of a server that does the same: a whole one, or one side of disaggregated serving.
    """
    return tuple(row for row in _rows(gpu, num_gpus, role) if _is_same(row.checkpoint, facts))


def nearest(
    facts: Checkpoint, gpu: str, num_gpus: int, role: ServerRole, engine: str
) -> Published | None:
    """The deployment of the same kind of server that is the most alike: of the same model if there
    is one, else of its architecture, with the engine, on this GPU, in this precision and on as many
    GPUs."""
    ours = engine.replace("_", "-")

    def distance(row: Published) -> tuple[float, ...]:
        other = _shipped(row.checkpoint)
        return (
            other.parameters != facts.parameters,
            not row.engine.startswith(ours),
            row.gpu != gpu,
            other.precision != facts.precision,
            abs(log(row.num_gpus / num_gpus)),
        )

    alike = [
        row
        for row in _rows(None, None, role)
        if row.checkpoint in _names()
        and _shipped(row.checkpoint).architecture.name == facts.architecture.name
    ]
    return min(alike, key=distance, default=None)


def _is_same(name: str, facts: Checkpoint) -> bool:
    return name == facts.name or (name in _names() and same_model(_shipped(name), facts))


@cache
def _names() -> frozenset[str]:
    return frozenset(known_names())


@cache
def _shipped(name: str) -> Checkpoint:
    return gather(name)


def describe(figure: Mapping[str, Any]) -> str:
    """A figure as a person reads it: its load, then what was measured."""
    values = ", ".join(
        f"{figure[metric]:,.10g} {unit}" for metric, unit in UNITS.items() if metric in figure
    )
    load = f"concurrency {figure['concurrency']}" if "concurrency" in figure else figure.get("load")
    note = f" ({figure['note']})" if "note" in figure else ""
    return f"{load}: {values}{note}" if load else f"{values}{note}"


def flatten(options: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested options as dotted paths.

    Lists, scalars and empty mappings end a path, and so does a mapping whose keys are free text.
    """
    flat: dict[str, Any] = {}
    for key, value in options.items():
        path = f"{prefix}.{key}" if prefix else key
        if isinstance(value, Mapping) and value and all(map(_is_option_name, value)):
            flat |= flatten(value, path)
        else:
            flat[path] = value
    return flat


def _is_option_name(key: object) -> bool:
    return isinstance(key, str) and key.isidentifier()


def _rows(gpu: str | None, num_gpus: int | None, role: ServerRole) -> Iterator[Published]:
    """The rows of all sources for these GPUs, or for any."""
    for path in sorted(RESULTS.glob("*.yaml")):
        publication = data_file.load(path, PUBLICATION)
        for row in publication["deployments"]:
            counts = row["num_gpus"] if isinstance(row["num_gpus"], list) else [row["num_gpus"]]
            if row.get("role", "agg") == role and gpu in (None, row["gpu"]):
                for count in filter(None, counts):
                    if num_gpus in (None, count):
                        yield _published(publication, row, count, path)


def _published(publication: Row, row: Row, num_gpus: int, path: Path) -> Published:
    return Published(
        source=publication["source"],
        engine=row.get("engine") or publication["engine"],
        workload=_workload(publication, row),
        checkpoint=row["checkpoint"],
        gpu=row["gpu"],
        num_gpus=num_gpus,
        isl=row.get("isl"),
        osl=row.get("osl"),
        conditions=publication.get("conditions", {}),
        max_concurrency=publication.get("max_concurrency", 0),
        options=flatten(row.get("options", {})),
        figures=tuple(row["figures"]),
        incomplete=tuple(row.get("incomplete", ())),
        file=path,
    )


def _workload(publication: Row, row: Row) -> str:
    """The load in words: what the source says of it, its lengths, how the model was spread."""
    parts = [row.get("workload") or publication.get("workload")]
    if "isl" in row:
        parts.append(f"input {row['isl']} tokens")
    if "osl" in row:
        parts.append(f"output {row['osl']} tokens")
    return ", ".join(filter(None, (*parts, row.get("parallel")))) or "not said"


# Tokens a step by the number of draft tokens: `lengths` are those of 1, 2, 3 ... of them. All
# curves are of the same workload; `file` is the source's own.
ACCEPTANCE_FILE: Any = {
    "source": Text,
    "workload": Text,
    "curves": [
        {
            **dict.fromkeys(("model", "drafting", "file", "sampling"), Text),
            "thinking": bool,
            "lengths": [float],
        }
    ],
}


def acceptance_curves() -> list[dict[str, Any]]:
    curves: list[dict[str, Any]] = data_file.load(ACCEPTANCE, ACCEPTANCE_FILE)["curves"]
    return curves


def acceptance_lengths(model: str, drafting: str, draft_tokens: int) -> list[float]:
    """What curves of a model have for a kind and a number of draft tokens, the least first.

    A model is known by its name without the vendor, in whatever precision.
    """
    name, found = _without_precision(model.rpartition("/")[2].lower()), list[float]()
    for one in acceptance_curves():
        same = one["drafting"].lower().startswith(drafting.lower())
        if same and _without_precision(one["model"]) == name:
            found += one["lengths"][draft_tokens - 1 : draft_tokens] if draft_tokens else []
    return sorted(found)


def _without_precision(name: str) -> str:
    return name.removesuffix("-nvfp4").removesuffix("-fp8").removesuffix("-fp4")


LATENCIES: Mapping[str, tuple[str, str]] = {
    "ttft_ms": ("time to first token", "ms"),
    "tpot_ms": ("time per output token", "ms"),
    "e2e_ms": ("time to last token", "ms"),
}
# Those without "of" are of all servers.
RATES: Mapping[str, tuple[str, str]] = {
    "output_tokens_per_s": ("output of all servers", "tokens/s"),
    "output_tokens_per_s_per_user": ("output of a user", "tokens/s"),
    "output_tokens_per_s_per_gpu": ("output of a GPU", "tokens/s"),
}
MEASURES = {**LATENCIES, **RATES}
# The latencies that targets limit.
SHORT_NAMES = {"ttft_ms": "TTFT", "itl_ms": "ITL", "e2e_ms": "E2E"}
