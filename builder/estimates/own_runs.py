"""The user's own measurements: `bench.json` files of `launch bench`, as measured rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..diagnostics import Diagnostic
from ..errors import BadInput
from ..files import MAX_JSON_BYTES, parse_json, read_text
from . import models
from .measurements import ENGINES, OWN, PRECISIONS, Row
from .options import layout_of

KIND = "bench"
NAME = "bench.json"
DRAFTS_FROM = 1.05  # tokens a step: more are not the rounding of one


def read(folder: Path) -> list[Row]:
    """The rows of every run below a folder. Raises `BadInput` with all that cannot be used."""
    if not folder.is_dir():
        raise BadInput(Diagnostic(str(folder), "is not a folder", "give one with bench.json files"))
    rows: list[Row] = []
    found: list[Diagnostic] = []
    for path in sorted(folder.rglob("*.json")):
        try:
            rows += _rows(path)
        except BadInput as error:
            found += error.diagnostics
    if found:
        raise BadInput(found)
    if not rows:
        what = "holds no bench.json of a run"
        raise BadInput(Diagnostic(str(folder), what, "give a folder of runs of launch bench"))
    return rows


def _rows(path: Path) -> Iterator[Row]:
    try:
        document = parse_json(read_text(path, BadInput, MAX_JSON_BYTES))
    except ValueError as error:
        if path.name != NAME:
            return
        raise BadInput(Diagnostic(str(path), f"is not JSON: {error}", "remove it")) from None
    if not isinstance(document, dict) or document.get("kind") != KIND:
        if path.name == NAME:
            what = "is not a bench.json of this toolkit"
            raise BadInput(Diagnostic(str(path), what, "give files of launch bench"))
        return
    yield from _points(path, document)


def _points(path: Path, document: Mapping[str, Any]) -> Iterator[Row]:
    common = _common(path, document)
    workload = document.get("workload") or {}
    for number, point in enumerate(document.get("points") or ()):
        load, requests = point.get("load") or {}, point.get("requests") or {}
        tpot_ms = _middle(point.get("tpot_ms"))
        if load.get("kind") != "concurrency" or requests.get("failed") or not tpot_ms:
            continue  # no closed loop, or not all of it was answered
        isl, osl = _length(workload, point, "isl"), _length(workload, point, "osl")
        if not isl or not osl or osl < 2:
            continue
        drafted = (point.get("speculative") or {}).get("tokens_per_step")
        drafts = bool(common["mtp"]) or (drafted is not None and drafted > DRAFTS_FROM)
        known = drafts or common["mtp"] is not None
        yield Row(
            id=f"{path}#{number}",
            source=OWN,
            date=str(document.get("started") or "")[:10],
            **common,
            drafting="on" if drafts else "off" if known else "",
            acceptance=drafted if drafts else None,
            isl=isl,
            osl=osl,
            concurrency=int(load["concurrency"]),
            ttft_ms=_middle(point.get("ttft_ms")),
            tpot_ms=tpot_ms,
        )


def _common(path: Path, document: Mapping[str, Any]) -> dict[str, Any]:
    """What all points of a run share. Raises `BadInput` with everything that it does not say."""
    subject = document.get("subject") or {}
    engine = subject.get("engine") or {}
    if engine.get("rehearsal"):
        what = "was measured on the stand-in engine, which says nothing of a GPU"
        raise BadInput(Diagnostic(str(path), what, "remove it from the folder"))
    name = models.engine_name(str(engine.get("used") or engine.get("name") or ""))
    precision = models.weight_precision(str(subject.get("precision") or ""))
    said = {
        "subject.model": bool(subject.get("model")),
        "subject.gpu": bool(subject.get("gpu")),
        "subject.num_gpus": isinstance(subject.get("num_gpus"), int),
        "subject.precision": precision in PRECISIONS,
        "subject.engine.used": name in ENGINES,
    }
    if missing := [field for field, known in said.items() if not known]:
        what = f"does not say {', '.join(missing)}"
        raise BadInput(
            [Diagnostic(str(path), what, "measure with the bundle: launch bench BUNDLE")]
        )
    # A run without its bundle's options has been spread over all GPUs, as far as anyone knows.
    options = {"tensor_parallel_size": subject["num_gpus"], **(subject.get("options") or {})}
    tp, attention_dp, ep, drafts = layout_of(options)
    return {
        "engine": name,
        "release": str(engine.get("release") or ""),
        "model": models.model_name(subject["model"]),
        "gpu": models.gpu_name(subject["gpu"]),
        "precision": precision,
        "tp": tp,
        "attention_dp": attention_dp,
        "ep": ep,
        "mtp": drafts if subject.get("options") else None,
    }


def _middle(values: Mapping[str, Any] | None) -> float | None:
    """The median of a measure, or its mean."""
    found = (values or {}).get("p50") or (values or {}).get("mean")
    return float(found) if found else None


def _length(workload: Mapping[str, Any], point: Mapping[str, Any], name: str) -> int | None:
    """As it was asked for, or as it was counted."""
    if found := workload.get(name):
        return int(found)
    counted = (point.get("prompt_tokens" if name == "isl" else "output_tokens") or {}).get("mean")
    return round(counted) if counted else None
