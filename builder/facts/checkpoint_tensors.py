"""The tensors of a checkpoint folder, compared with what its configuration asks for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from ..diagnostics import Diagnostic
from ..errors import BadFacts
from ..files import is_there, load_json_mapping
from . import checkpoint_files
from .architecture import Architecture, Config
from .checkpoint_files import Stored
from .quantization import PLAIN_DTYPES, Quantization

INDEX = "model.safetensors.index.json"
MOST_NAMED = 20  # of the files that are missing


def read_headers(folder: Path) -> tuple[dict[str, Stored], list[Diagnostic]]:
    """Every tensor of the folder's safetensors files, and what is wrong with the files."""
    files = sorted(folder.glob("*.safetensors"))
    missing = sorted(_indexed_files(folder) - {file.name for file in files})
    wrong = [
        Diagnostic(str(folder / name), "is named in the index, but missing", "copy it as well")
        for name in missing[:MOST_NAMED]
    ]
    if more := len(missing) - len(wrong):
        what = f"lacks {more} more files that its index names"
        wrong.append(Diagnostic(str(folder), what, "copy them as well"))
    stored: dict[str, Stored] = {}
    for file in files:
        try:
            stored |= {tensor.name: tensor for tensor in checkpoint_files.read_header(file)}
        except BadFacts as error:
            wrong += error.diagnostics
    return stored, wrong


def _indexed_files(folder: Path) -> set[str]:
    index = folder / INDEX
    if not is_there(index):
        return set()
    weight_map = load_json_mapping(index).get("weight_map")
    return set(map(str, weight_map.values())) if isinstance(weight_map, dict) else set()


def has_mtp(architecture: Architecture, config: Config, stored: Mapping[str, Stored]) -> bool:
    """Whether the folder has the MTP layers that the config counts: their projection, anywhere."""
    rows = [row for row in architecture.tensors(architecture.text(config)) if row.mtp]
    modules = {
        row.pattern.removesuffix(".weight").rpartition("}")[2]
        for row in rows
        if row.role == "mtp_projection"
    }
    return not rows or any(module in name for name in stored for module in modules)


def diagnostics(
    folder: Path,
    architecture: Architecture,
    config: Config,
    found: Quantization,
    stored: Mapping[str, Stored],
) -> list[Diagnostic]:
    """Tensors that the architecture needs and that are missing or of another shape, by pattern."""
    missing: dict[str, list[str]] = {}
    different: dict[str, list[str]] = {}
    for tensors in architecture.tensors(architecture.text(config)):
        for name in tensors.names():
            for expected in found.stored(tensors, name):
                actual = stored.get(expected.name)
                if actual is None:
                    missing.setdefault(_pattern(expected.name), []).append(expected.name)
                elif _differs(actual, expected):
                    text = (
                        f"{expected.name} is {actual.dtype} {list(actual.shape)}, "
                        f"expected {expected.dtype} {list(expected.shape)}"
                    )
                    different.setdefault(_pattern(expected.name), []).append(text)
    remedy = f"compare {found.source} and config.json with the exporter's log"
    return [
        Diagnostic(
            str(folder), f"{len(names)} tensors missing, first {names[0]}", "copy them as well"
        )
        for names in missing.values()
    ] + [
        Diagnostic(
            str(folder), f"{len(texts)} tensors contradict the configuration: {texts[0]}", remedy
        )
        for texts in different.values()
    ]


def _differs(actual: Stored, expected: Stored) -> bool:
    """Whether a tensor is stored otherwise than it should be.

    A scalar may have the shape `[]` or `[1]`, and what is not quantized any plain dtype.
    """
    same_shape = actual.shape == expected.shape or (expected.shape, actual.shape) == ((), (1,))
    plain = {actual.dtype, expected.dtype} <= PLAIN_DTYPES
    return not same_shape or not (plain or actual.dtype == expected.dtype)


def _pattern(name: str) -> str:
    return re.sub(r"\.\d+\.", ".*.", name)


def indexed_bytes(folder: Path) -> int | None:
    """The size of all weights that the index of a folder without them tells."""
    index = folder / INDEX
    metadata = load_json_mapping(index).get("metadata") if is_there(index) else None
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    return total if isinstance(total, int) and total > 0 else None
