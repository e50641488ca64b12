"""Checks what a Triton model configuration means: backend, shapes, versions and files."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...diagnostics import Diagnostic, closest, either, located
from ...errors import BadInput
from ...files import load_json_mapping, read_text
from ...general_rules import Rule
from ..engine import ENGINE_FILE
from ..read.triton_config import Message
from .triton_fields import (
    TRITON_MODEL_FILE,
    TRITON_SHAPE,
    TRITON_VERSIONS,
    backend_of,
    backends,
    field_diagnostics,
)

TRITON_BACKEND = Rule("triton-backend", "The backend or platform of a model does not exist.")
_ODD_VERSION = re.compile(r"(?:v|version[-_]?|0)\d+")


def completes(config: Message, path: Path) -> bool:
    """Whether the backend may add inputs and outputs to a configuration when it loads the model."""
    backend = backend_of(config)
    if backend != "python":
        return backend in backends()["completes"]
    texts = (read(file) for file in path.parent.glob("*/model.py"))
    return any("auto_complete_config" in text for text in texts)


def read(path: Path) -> str:
    """The text of a file next to a configuration; empty if it cannot be read."""
    try:
        return read_text(path)
    except BadInput:
        return ""


def meaning_diagnostics(config: Message, path: Path) -> Iterator[Diagnostic]:
    """Reports values that Triton or the backend refuses, or reads in another way than written."""
    yield from _backend_diagnostics(config)
    files = {"$versions": versions(path.parent), "$ranks": _ranks(config, path.parent)}
    for group in ("every", backend_of(config)):
        yield from field_diagnostics(config, group, files)
    for group in ("input", "output"):
        for index, tensor in enumerate(config.messages(group)):
            yield from _reshape_diagnostics(tensor, f"{group}.{index}.reshape", config)
    yield from _folder_diagnostics(config, path.parent, files["$versions"])


def _backend_diagnostics(config: Message) -> Iterator[Diagnostic]:
    known = {"backend": backends()["backends"], "platform": backends()["platforms"]}
    for field, names in known.items():
        value = config.scalar(field)
        if not value or not value.text or value.is_open or value.text in names:
            continue
        near = closest(value.text, names)
        is_named = config.named("backend") or config.named("default_model_filename")
        if field == "platform" and value.text in known["backend"] and not is_named:
            what, fix = f"{value.text} is a backend", f'write backend: "{value.text}"'
            yield located(value.location, field, what, fix, TRITON_BACKEND)
        elif near:
            what, fix = f"no {field} is called {value.text}", f"did you mean {near}?"
            yield located(value.location, field, what, fix, TRITON_BACKEND)
    platform, backend = config.text("platform"), config.text("backend")
    wanted = backends()["platforms"].get(platform)
    if backend and wanted and backend != wanted:
        what = f"{platform} is a platform of {wanted}, not of {backend}"
        if wanted == "ensemble":
            what = f"an ensemble has no backend, but {backend} is set"
        yield located(config.place("platform"), "platform", what, "keep one", TRITON_BACKEND)
    if platform == "ensemble" or not config.named("ensemble_scheduling"):
        return
    if not closest(platform, known["platform"]):
        what = f"needs the platform ensemble, but the model has {platform or backend or 'none'}"
        place, fix = config.place("ensemble_scheduling"), 'set platform: "ensemble"'
        yield located(place, "ensemble_scheduling", what, fix, TRITON_BACKEND)


def sizes(message: Message, field: str) -> list[int] | None:
    """The dimensions in a field; `None` if a template leaves one open."""
    found = [value.number for value in message.scalars(field)]
    return None if None in found else [size for size in found if size is not None]


def _reshape_diagnostics(tensor: Message, path: str, config: Message) -> Iterator[Diagnostic]:
    """Compares the elements of a tensor with those of the shape that the model takes."""
    dims, reshape = sizes(tensor, "dims"), tensor.first("reshape")
    shape = sizes(reshape, "shape") if reshape else None
    if shape is None or not dims or any(size < 1 and size != -1 for size in (*dims, *shape)):
        return
    place = tensor.place("reshape")
    if not shape and config.number("max_batch_size") == 0:
        what, fix = "is empty, and the model has no batches", "give a shape, or max_batch_size"
        yield located(place, path, what, fix, TRITON_SHAPE)
    elif _blocks(dims) != _blocks(shape):
        what = f"{shape} has not as many elements as dims, {dims}"
        yield located(place, path, what, "let both multiply to the same", TRITON_SHAPE)


def _blocks(shape: list[int]) -> list[int]:
    """The elements of a shape between its variable sizes."""
    text = " ".join(map(str, shape))
    return [math.prod(map(int, part.split())) for part in re.split(r"(?:^|(?<= ))-1(?= |$)", text)]


def versions(folder: Path) -> list[str]:
    """The folders of versions; none says nothing, since versions may be made later."""
    names = [row.name for row in folder.glob("[1-9]*") if row.name.isdigit() and row.is_dir()]
    return sorted(names, key=int)


def _ranks(config: Message, folder: Path) -> list[str]:
    """The ranks of the first option file that asks for several; empty if none does."""
    names = backends()["parameters"].get(backend_of(config), {}).get("ranks", ())
    for file in sorted(folder.glob(f"[1-9]*/{ENGINE_FILE}")) if names else ():
        try:
            options = load_json_mapping(file)
        except BadInput:
            continue  # reported with the file itself
        sizes = [size for name in names if isinstance(size := options.get(name), int)]
        if math.prod(sizes) > 1:
            return [str(math.prod(sizes))]
    return []


def _folder_diagnostics(
    config: Message, folder: Path, there: Sequence[str]
) -> Iterator[Diagnostic]:
    """Reports a folder whose name is misspelt for a version, and a model file with a name that the
    backend does not load. A version without any such file may be completed later."""
    odd = [row.name for row in folder.glob("[v0]*") if _ODD_VERSION.fullmatch(row.name)]
    if odd and not there and config.fields:
        what = f"{odd[0]} is no version: the name of its folder must be a number without zeros"
        fix = f"rename it to {int(re.sub('[^0-9]', '', odd[0])) or 1}"
        yield located(config.fields[0].location, "", what, fix, TRITON_VERSIONS)
    known = backends()["files"]
    names = known.get(config.text("platform"), known.get(backend_of(config), ()))
    if not (names and there) or config.named("cc_model_filenames"):
        return
    files = sorted(row.name for row in (folder / there[-1]).iterdir())
    alike = [name for name in files if Path(name).suffix == Path(names[0]).suffix]
    field = "default_model_filename" if config.text("default_model_filename") else "backend"
    wanted = [config.text(field)] if field != "backend" else names
    if alike and set(wanted).isdisjoint(files):
        what = f"folder {there[-1]} has {alike[0]}, and the backend loads {either(wanted)}"
        fix = f'rename the file, or set default_model_filename: "{alike[0]}"'
        place = config.place(field if config.named(field) else "platform")
        yield located(place, field, what, fix, TRITON_MODEL_FILE)
