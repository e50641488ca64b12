"""What others published: the options and figures of deployments on real hardware."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .checkpoint import Checkpoint, gather, same_model
from .documents import load_yaml

RESULTS = Path(__file__).parent / "data" / "results"


@dataclass(frozen=True, slots=True)
class Published:
    """One published deployment.

    `options` maps option paths to values; the number of MTP draft tokens, whose option changed its
    name, stands under `mtp_draft_tokens`. Each figure holds a concurrency and what was measured;
    `max_concurrency` is the largest of the published sweep.
    """

    source: str
    engine: str
    workload: str
    checkpoint: str
    gpu: str
    num_gpus: int
    max_concurrency: int
    options: Mapping[str, Any]
    figures: tuple[Mapping[str, float], ...]
    file: Path


def published(facts: Checkpoint, gpu: str, num_gpus: int) -> tuple[Published, ...]:
    """What was published for the same model on the same GPUs, whatever its folder is called."""
    return tuple(
        row
        for row in _rows()
        if (row.gpu, row.num_gpus) == (gpu, num_gpus)
        and (row.checkpoint == facts.name or same_model(gather(row.checkpoint), facts))
    )


def leaves(options: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested options as dotted paths.

    Lists, scalars and empty mappings are leaves, and so is a mapping whose keys are free text.
    """
    flat: dict[str, Any] = {}
    for key, value in options.items():
        path = f"{prefix}.{key}" if prefix else key
        if isinstance(value, Mapping) and value and all(map(_is_option_name, value)):
            flat |= leaves(value, path)
        else:
            flat[path] = value
    return flat


def _is_option_name(key: object) -> bool:
    return isinstance(key, str) and key.isidentifier()


def _rows() -> Iterator[Published]:
    for path in sorted(RESULTS.glob("*.yaml")):
        document = load_yaml(path.read_text(encoding="utf-8"))
        for row in document["deployments"]:
            yield Published(
                source=document["source"],
                engine=document["engine"],
                workload=document["workload"],
                checkpoint=row["checkpoint"],
                gpu=row["gpu"],
                num_gpus=row["num_gpus"],
                max_concurrency=document["max_concurrency"],
                options=leaves(row.get("options", {})),
                figures=tuple(row["figures"]),
                file=path,
            )
