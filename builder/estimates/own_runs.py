"""Own runs: reads `bench.json` files of `launch bench` as rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from .. import schema
from ..diagnostics import Diagnostic
from ..errors import BadInput
from ..facts import hardware
from ..files import MAX_JSON_BYTES, parse_json, read_text
from ..schema import Check
from . import names, roofline
from .measurements import ENGINES, LARGEST, OWN, PRECISIONS, Row
from .names import DRAFTS, LAYOUT_SIZES, LAYOUT_SWITCHES, STAGES, layout_of
from .roofline import shape_of, speeds

KIND = "bench"

# What is read of a run. Sizes and times are bounded far beyond every server.
_Count = Annotated[int, Check(lambda count: 1 <= count <= LARGEST, f"must be 1 to {LARGEST}")]
_Drafts = Annotated[int, Check(lambda count: 0 <= count <= 16, "must be 0 to 16")]
_Mean = Annotated[float, Check(lambda value: 0 <= value <= 1e9, "must be 0 to 1e9")]
_Name = Annotated[
    str, Check(lambda text: text.isprintable() and len(text) <= 200, "must be one short line")
]
_MIDDLE: Any = {"p50?": _Mean, "mean?": _Mean}
_RUN: Any = {
    "kind": str,
    "started?": _Name,
    "subject": {
        **dict.fromkeys(("model?", "gpu?", "precision?"), _Name),
        "num_gpus?": _Count,
        "engine?": {
            **dict.fromkeys(("name?", "used?", "release?"), _Name),
            "rehearsal?": bool,
        },
        "options?": {
            **dict.fromkeys((f"{name}?" for name in (*LAYOUT_SIZES, STAGES)), _Count),
            **dict.fromkeys((f"{name}?" for name in LAYOUT_SWITCHES), bool),
            **dict.fromkeys((f"{name}?" for name in DRAFTS), _Drafts),
        },
    },
    "workload?": {"isl?": _Mean, "osl?": _Mean},
    "points?": [
        {
            "load?": {"kind?": str, "concurrency?": _Count},
            "requests?": {"ok?": int, "failed?": int},
            "tpot_ms?": _MIDDLE,
            "ttft_ms?": _MIDDLE,
            "prompt_tokens?": _MIDDLE,
            "output_tokens?": _MIDDLE,
            "speculative?": {"tokens_per_step?": _Mean},
        }
    ],
}
NAME = "bench.json"
MOST_TOKENS = 8  # of a step, where nobody says how many tokens are drafted
DRAFTS_FROM = 1.05  # tokens a step: more are not the rounding of one


def read(folder: Path) -> list[Row]:
    """The rows of all runs in a folder. Raises `BadInput` with every file that cannot be used."""
    if not folder.is_dir():
        raise BadInput(Diagnostic(str(folder), "is not a folder", "give one with bench.json files"))
    rows: list[Row] = []
    found: list[Diagnostic] = []
    for path in sorted(folder.rglob("*.json")):
        try:
            rows += rows_of(path)
        except BadInput as error:
            found += error.diagnostics
    if found:
        raise BadInput(found)
    if not rows:
        what = "holds no bench.json with requests at a time that were all answered"
        raise BadInput(Diagnostic(str(folder), what, "give a folder of runs of launch bench"))
    # Copies of a run count once.
    return list({row._replace(id=""): row for row in rows}.values())


def rows_of(path: Path) -> Iterator[Row]:
    """The rows of a run; files with another name are skipped unless they are one."""
    is_named = path.name == NAME
    try:
        document = parse_json(read_text(path, BadInput, MAX_JSON_BYTES), unique_keys=True)
        if not isinstance(document, dict) or document.get("kind") != KIND:
            what = "is not a bench.json of this toolkit"
            raise BadInput(Diagnostic(str(path), what, "give files of launch bench"))
    except (ValueError, BadInput) as error:
        if not is_named:
            return
        if isinstance(error, BadInput):
            raise
        raise BadInput(Diagnostic(str(path), f"is not JSON: {error}", "remove it")) from None
    run, wrong = schema.build(_RUN, schema.known(_RUN, document))
    if wrong:
        raise BadInput(Diagnostic(f"{path}: {row.path}", row.message, row.fix) for row in wrong)
    yield from _points(path, run)


def _points(path: Path, document: Mapping[str, Any]) -> Iterator[Row]:
    common = _common(path, document)
    workload = document.get("workload") or {}
    for number, point in enumerate(document.get("points") or ()):
        load, requests = point.get("load") or {}, point.get("requests") or {}
        tpot_ms = _middle(point.get("tpot_ms"))
        if load.get("kind") != "concurrency" or "concurrency" not in load:
            continue
        if requests.get("failed") or requests.get("ok") == 0 or not tpot_ms:
            continue  # no closed loop, or not all of it was answered
        isl, osl = _length(workload, point, "isl"), _length(workload, point, "osl")
        if not isl or not osl or osl < 2:
            continue
        drafted = (point.get("speculative") or {}).get("tokens_per_step")
        drafts = bool(common["mtp"]) or (drafted is not None and drafted > DRAFTS_FROM)
        drafting = "on" if drafts else ""
        if not drafts and common["mtp"] is not None:
            drafting = "off"
        row = Row(
            id=f"{path}#{number}",
            source=OWN,
            date=str(document.get("started") or "")[:10],
            **common,
            drafting=drafting,
            acceptance=drafted if drafts else None,
            isl=isl,
            osl=osl,
            concurrency=int(load["concurrency"]),
            ttft_ms=_middle(point.get("ttft_ms")),
            tpot_ms=tpot_ms,
        )
        refuse_impossible(path, row)
        yield row


def _common(path: Path, document: Mapping[str, Any]) -> dict[str, Any]:
    """The values that all points of a run share. Raises `BadInput` with every missing one."""
    subject = document.get("subject") or {}
    engine = subject.get("engine") or {}
    if engine.get("rehearsal"):
        what = "was measured on the stand-in engine, which says nothing of a GPU"
        raise BadInput(Diagnostic(str(path), what, "remove it from the folder"))
    name = names.engine_name(str(engine.get("used") or engine.get("name") or ""))
    precision = names.weight_precision(str(subject.get("precision") or ""))
    said = {f"subject.{key}": bool(subject.get(key)) for key in ("model", "gpu", "num_gpus")}
    said |= {"subject.precision": bool(precision), "subject.engine.used": bool(name)}
    if missing := [field for field, known in said.items() if not known]:
        what = f"does not say {', '.join(missing)}"
        remedy = "measure with the bundle: launch bench BUNDLE"
        raise BadInput(Diagnostic(str(path), what, remedy))
    model = names.model_name(subject["model"])
    # A run without its bundle's options is assumed to be spread over all GPUs.
    options = {"tensor_parallel_size": subject["num_gpus"], **(subject.get("options") or {})}
    tp, attention_dp, ep, drafts = layout_of(options)
    gpu = names.gpu_name(subject["gpu"])
    if unusable := list(_unusable(path, model, gpu, name, precision)):
        raise BadInput(unusable)
    if (stages := options.get(STAGES, 1)) > 1:
        what = f"splits the layers into {stages} stages, which no estimate is of"
        raise BadInput(Diagnostic(str(path), what, "remove it from the folder"))
    if (num_gpus := subject["num_gpus"]) % (tp * attention_dp):  # several servers may share them
        what = f"says {num_gpus} GPUs, and its options spread a server over {tp * attention_dp}"
        remedy = "measure with the bundle: launch bench BUNDLE, or remove it from the folder"
        raise BadInput(Diagnostic(str(path), what, remedy))
    return {
        "engine": name,
        "release": names.release_name(engine.get("release")) or "",
        "model": model,
        "gpu": gpu,
        "precision": names.precision_of(model, precision),
        "tp": tp,
        "attention_dp": attention_dp,
        "ep": ep,
        "mtp": drafts if subject.get("options") else None,
    }


def _unusable(
    path: Path, model: str, gpu: str, engine: str, precision: str
) -> Iterator[Diagnostic]:
    """Why a run cannot be used: no facts of its model or GPU, an unknown engine or precision."""
    for what, kind, folder, is_known in (
        (f"is of {model}", "model", "models", names.facts_of(model) is not None),
        (f"was measured on {gpu}", "GPU", "hardware", gpu in hardware.known()),
    ):
        if not is_known:
            remedy = f"add it to builder/data/{folder}, or remove the run from the folder"
            yield Diagnostic(str(path), f"{what}, a {kind} without facts", remedy)
    for name, known in ((engine, ENGINES), (precision, PRECISIONS)):
        if name not in known:
            what = f"was measured with {name}, which estimates do not know: {', '.join(known)}"
            yield Diagnostic(str(path), what, "remove the run from the folder")


def refuse_impossible(path: Path, row: Row) -> None:
    """Raises `BadInput` for a time in which the GPUs cannot even read the weights of a token.

    All public rows, drafted ones too, take at least 1.29 times as long as that.
    """
    facts = names.facts_of(row.model)
    assert facts is not None  # a run without them is refused before
    alone = row._replace(concurrency=1)
    terms = roofline.decode_terms(alone, shape_of(facts), speeds(row.gpu, row.precision))
    read_ms = terms[roofline.DECODE_TERMS.index("weights")]
    tokens = row.acceptance or max(MOST_TOKENS, 1 + (row.mtp or 0))
    if row.tpot_ms < read_ms / tokens:
        what = (
            f"says {row.tpot_ms:g} ms per token, and {row.num_gpus} {row.gpu} need {read_ms:.2g} "
            "to read the weights of a step"
        )
        remedy = "give times in milliseconds, or remove the run from the folder"
        raise BadInput(Diagnostic(str(path), what, remedy))


def _middle(values: Mapping[str, Any] | None) -> float | None:
    found = (values or {}).get("p50") or (values or {}).get("mean")
    return float(found) if found else None


def _length(workload: Mapping[str, Any], point: Mapping[str, Any], name: str) -> int | None:
    """The requested length, or else the mean of the counted ones."""
    if found := workload.get(name):
        return int(found)
    counted = (point.get("prompt_tokens" if name == "isl" else "output_tokens") or {}).get("mean")
    return round(counted) if counted else None
