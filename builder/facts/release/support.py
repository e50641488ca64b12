"""Whether a release supports a model, a feature of it, or a MoE backend, and who says so.

What no source says is unknown, and never treated as supported.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, Literal

from ..engines import Engine
from . import Release, of_all_engines

Row = Mapping[str, Any]
SupportState = Literal["supported", "unsupported", "unknown"]

# MXFP4 weights are multiplied in one of these formats, which the engine chooses by backend and GPU.
_MXFP4 = ("W4A16_MXFP4", "W4A8_MXFP4_FP8", "W4A8_MXFP4_MXFP8")

# What a cell of the support matrix says before its condition in brackets.
_CELLS: Mapping[str, SupportState] = {"yes": "supported", "no": "unsupported", "n/a": "unsupported"}
_MOST_NAMED = 20  # of the architectures that sources name
_SM_ONLY = re.compile(r"\bSM(\d+(?:/\d+)*)")


@dataclass(frozen=True, slots=True)
class Support:
    """A state, and what is known about it in words; `weights` names the weights concerned."""

    state: SupportState
    evidence: str
    weights: str = ""


def compute_capability(sm: int) -> str:
    """A compute capability as CUDA writes it.

    >>> compute_capability(120)
    '12.0'
    """
    return f"{sm // 10}.{sm % 10}"


def architectures(release: Release) -> dict[str, str]:
    """The architectures that a source names as supported by a release, each with that source."""
    matrix = _matrix(release)
    names = [*matrix.get("listed_architectures_include", ()), *_rows(matrix)]
    listed = dict.fromkeys(names, str(matrix.get("source", "")))
    return listed | dict(release.table.get("supported_architectures", {}))


def architecture(release: Release, name: str) -> Support:
    refused = release.table["unsupported_architectures"]
    if name in refused:
        return Support("unsupported", refused[name] or "the release does not have it")
    known = architectures(release)
    if name in known:
        return Support("supported", known[name])
    names = ", ".join(sorted(known)) if len(known) <= _MOST_NAMED else f"{len(known)} others"
    return Support("unknown", f"its sources name {names or 'no architecture'}")


def named_by(name: str) -> dict[Engine, list[str]]:
    """The releases of each engine for which a source lists an architecture as supported."""
    found: dict[Engine, list[str]] = {}
    for release in of_all_engines():
        if name in architectures(release):
            found.setdefault(release.engine, []).append(release.name)
    return found


def features(release: Release) -> tuple[str, ...]:
    """The columns of the release's support matrix, none where it has no such matrix."""
    return tuple(_matrix(release).get("columns", ()))


def feature(release: Release, name: str, column: str, sm: int | None) -> Support | None:
    """What the support matrix says of a feature of an architecture; `None` without such a cell."""
    matrix = _matrix(release)
    if name not in _rows(matrix) or column not in matrix["columns"]:
        return None
    cell = str(matrix[name][matrix["columns"].index(column)])
    state: SupportState = _CELLS.get(cell.partition(" ")[0], "unknown")
    only = _SM_ONLY.search(cell)
    if state == "supported" and only and sm is not None:
        state = "supported" if str(sm) in only[1].split("/") else "unsupported"
    return Support(state, cell)


def moe_backends(release: Release, quant_algo: str | None, sm: int) -> list[Row]:
    """MoE rows for a quantization on a GPU of compute capability `sm`, best backend first."""
    formats = _MXFP4 if quant_algo == "MXFP4" else (quant_algo,)
    found: dict[str, Row] = {}
    for row in release.table["moe"]["rows"]:
        if row["quant_algo"] in formats and sm in row["sm"]:
            found.setdefault(row["backend"], row)
    return list(found.values())


def moe_backend(release: Release, name: str, quant_algo: str | None, sm: int) -> Support:
    """Whether a MoE backend has kernels for a quantization on a GPU."""
    sources = {row["backend"]: row["source"] for row in moe_backends(release, quant_algo, sm)}
    if name in sources:
        return Support("supported", sources[name])
    options = release.paths.get("moe_config.backend", ())
    allowed = list(chain.from_iterable(row.get("values", ()) for row in options))
    if allowed and name not in allowed:
        return Support("unsupported", f"release {release.name} has no such backend")
    return moe_backend_on_gpu(release, name, sm) or Support("unknown", "no source names it")


@lru_cache(maxsize=64)
def moe_backends_by_precision(release: Release) -> dict[str, list[str]]:
    """The MoE backends that the rows name for each precision, whatever the GPU; MXFP4 checkpoints
    leave the type of activations to the engine."""
    found: dict[str, list[str]] = {}
    for row in release.table["moe"]["rows"]:
        algo = row["quant_algo"]
        for precision in (algo or "BF16", "MXFP4"):
            if precision != "MXFP4" or algo in (*_MXFP4, "MXFP4"):
                names = found.setdefault(precision, [])
                if row["backend"] not in names:
                    names.append(row["backend"])
    return found


def moe_backend_on_gpu(release: Release, name: str, sm: int) -> Support | None:
    """That a MoE backend has no kernels for a GPU at all; `None` if it has some, or if unknown."""
    only = release.table["moe"].get("only_on", {}).get(name)
    if not only or sm in only["sm"]:
        return None
    sms = " and ".join(map(compute_capability, only["sm"]))
    return Support("unsupported", f"it is for compute capability {sms} only")


def _matrix(release: Release) -> Row:
    return release.table.get("support_matrix") or {}


def _rows(matrix: Row) -> list[str]:
    """The architectures that have a row of features."""
    notes = ("columns", "listed_architectures_include", "not_listed")
    return [key for key, row in matrix.items() if isinstance(row, list) and key not in notes]
