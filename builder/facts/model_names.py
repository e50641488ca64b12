"""Finds models by name, in the spellings that people use, and says what to do about unknown names
and folders."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path, PurePath, PurePosixPath

from ..diagnostics import Diagnostic, closest
from ..documents import DATA
from ..errors import BadInput
from ..files import is_folder, is_there, read_bytes

MODELS = DATA / "models"

# What may surround a name: addresses of the hub, a revision, the folder of the hub's cache.
_PREFIX = re.compile(r"(?:hf:(?://)?|(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/)", re.I)
_SUFFIX = re.compile(r"(?:/(?:tree|blob|resolve)/.*|@[\w.-]+)$")
CACHED, _REVISIONS = "models--", "snapshots"
_NAME_BYTES = 4096


def known_names() -> dict[str, Path]:
    """Hub names whose facts ship with the toolkit, and their files."""
    return {names[0]: path for path, names in _shipped_names(MODELS)}


def known_aliases() -> dict[str, Path]:
    """Other names that the hub has or had for them, and their files."""
    found: dict[str, Path] = {}
    for path, names in _shipped_names(MODELS):
        found |= dict.fromkeys(names[1:], path)
    return found


@lru_cache(maxsize=4)
def _shipped_names(folder: Path) -> tuple[tuple[Path, list[str]], ...]:
    """The name and aliases of each file, which are its first two lines."""
    found = []
    for path in sorted(folder.glob("*.yaml")):
        with path.open(encoding="utf-8") as file:
            name = file.readline().removeprefix("name:").strip()
            label, _, listed = file.readline().partition(":")
        found.append((path, [name, *(json.loads(listed) if label == "aliases" else [])]))
    return tuple(found)


def shipped_file(reference: str, exact: bool = False) -> Path | None:
    """The file of the model that a reference means: by its name on the hub, one that it had there,
    or, unless it must be `exact`, either as an address, in other letters, without the organisation,
    or with FP4, as NVIDIA called its NVFP4 checkpoints first."""
    names = known_aliases() | known_names()
    if reference in names or exact:
        return names.get(reference)
    given = hub_name(reference)
    spelled = {_spelling(name, given): path for name, path in names.items()}
    return spelled.get(_spelling(given, given))


def hub_name(reference: str) -> str:
    """A name on the hub, extracted from a URL or a cache folder.

    >>> hub_name("https://huggingface.co/openai/gpt-oss-120b/tree/main")
    'openai/gpt-oss-120b'
    >>> hub_name("models--openai--gpt-oss-120b")
    'openai/gpt-oss-120b'
    """
    name = _SUFFIX.sub("", _PREFIX.sub("", reference.strip(), count=1)).strip("/")
    return name.removeprefix(CACHED).replace("--", "/", 1) if name.startswith(CACHED) else name


def _spelling(name: str, reference: str) -> str:
    whole = name if "/" in reference else name.rpartition("/")[2]
    return re.sub(r"-fp4\b", "-nvfp4", whole.casefold())


def is_path(reference: str) -> bool:
    """Whether a reference is a path by its form: a name on the hub has one slash at most, inside.

    >>> is_path("~/llama"), is_path("models/llama/8b"), is_path("llama/")
    (True, True, True)
    >>> is_path("openai/gpt-oss-120b"), is_path("https://huggingface.co/openai/gpt-oss-120b")
    (False, False)
    """
    if reference.startswith((".", "/", "~")):
        return True
    if _PREFIX.match(reference.strip()):
        return False
    return hub_name(reference).count("/") > 1 or reference.endswith("/")


def no_folder(path: str, base: Path = Path()) -> Diagnostic:
    """The diagnostic of a path that is no folder, with the nearest parent that exists."""
    whole = (base / os.path.expanduser(path)).absolute()  # noqa: PTH111, which knows no unknown user
    if is_there(whole):
        return Diagnostic(path, "is a file", f"give its folder: {whole.parent}")
    missing, nearest = whole, whole.parent
    while not is_folder(nearest) and nearest != nearest.parent:
        missing, nearest = nearest, nearest.parent
    found = f"the nearest parent that exists is {nearest}"
    with suppress(OSError):  # a folder that others may not list
        inside = [entry.name for entry in os.scandir(nearest) if entry.is_dir()]
        if near := closest(missing.name, inside):
            meant = nearest / near / whole.relative_to(missing)
            found += f"; did you mean {meant if is_folder(meant) else nearest / near}?"
    return Diagnostic(path, "there is no such folder", found)


def unknown(reference: str) -> Diagnostic:
    what = "is neither a name whose facts ship with the toolkit nor a folder"
    names, given = known_names(), hub_name(reference)
    close = _other_signs(given, names) or closest(given, (*names, *known_aliases()))
    alike = sorted(name for name in names if _series(name) == _series(given) != "")
    if close:
        nearby = f"did you mean {close}? Else "
    else:
        nearby = f"of the same series {', '.join(alike)} are known; else " if alike else ""
    return Diagnostic(reference, what, f"{nearby}{_UNKNOWN} Known: {', '.join(sorted(names))}")


def _other_signs(given: str, names: Iterable[str]) -> str | None:
    """The name that differs only in its separators: gpt-oss:120b, deepseek_r1."""
    words, parts = _words(given), ((name, name.rpartition("/")[2]) for name in names)
    return next((name for name, own in parts if words in (_words(name), _words(own))), None)


def _words(name: str) -> list[str]:
    return re.split(r"[^a-z0-9.]+", name.casefold())


def _series(name: str) -> str:
    """The first two parts of a model's name: qwen3-235b, llama-3.3, deepseek-v3.2."""
    whole = name.rpartition("/")[2].casefold()
    parts = whole.removeprefix("nvidia-").removeprefix("meta-").split("-")
    return "-".join(parts[:2]) if len(parts) > 1 else ""


# What to do about a model that is not known: `config.json` is enough to plan.
_UNKNOWN = (
    "download config.json of the model, and hf_quant_config.json where it has one, into a "
    "folder and give the folder: the sizes of its weights are then computed."
)


def checkpoint_folder(folder: Path) -> Path:
    """The folder with `config.json` that a folder or that file itself means: of the hub's cache
    the snapshot that `refs/main` names."""
    if folder.name == "config.json" and is_there(folder) and not is_folder(folder):
        return folder.parent
    if is_there(folder / "config.json"):
        return folder
    try:
        revision = read_bytes(folder / "refs" / "main", max_bytes=_NAME_BYTES)
    except BadInput:  # there is none, or it is no file that can be read
        return folder
    return folder / _REVISIONS / revision.decode(errors="replace").strip()


def folder_name(folder: Path) -> str:
    """What the model in a folder is called: in the hub's cache the folders are of revisions."""
    whole = folder.resolve()
    cached = _cached(whole)
    return hub_name(cached.name) if cached.name.startswith(CACHED) else whole.name


def served_name(reference: str) -> str:
    """What clients call the model of a reference: the last part of its name.

    >>> served_name("/cache/models--openai--gpt-oss-120b/snapshots/0123abcd")
    'gpt-oss-120b'
    >>> served_name("/models/Llama 3")
    'Llama 3'
    """
    if _PREFIX.match(reference.strip()):
        return PurePosixPath(hub_name(reference)).name
    path: PurePath = PurePosixPath(reference)
    path = _cached(path.parent if path.name == "config.json" else path)
    return hub_name(path.name).rpartition("/")[2] if path.name.startswith(CACHED) else path.name


def _cached(path: PurePath) -> PurePath:
    """The folder of the hub's cache that a folder of one of its revisions is in, or that itself."""
    above = path.parent.parent
    return above if path.parent.name == _REVISIONS and above.name.startswith(CACHED) else path


def without_config(folder: Path) -> Diagnostic:
    """The diagnostic of a folder without `config.json`: what it is instead, and what to do."""
    where = str(folder)
    for pattern, what, fix in _OTHERS:
        if any(folder.glob(pattern)):
            return Diagnostic(where, f"holds {what}, and no config.json", fix)
    below = next(iter(sorted(folder.glob("*/config.json"))), None)
    fix = f"give one of its folders, such as {below.parent}" if below else _UNKNOWN
    return Diagnostic(where, "has no config.json", fix)


# Files of other formats, what they are, and what to do.
_OTHERS = (
    (
        "adapter_config.json",
        "a LoRA adapter",
        "give the folder of its base model, and the adapter under lora_config",
    ),
    (
        "*.gguf",
        "GGUF weights, which TensorRT-LLM does not read",
        "give the checkpoint that they were made from",
    ),
    (
        "params.json",
        "a checkpoint in Mistral's own format",
        "give the checkpoint of the same model with config.json, which Mistral publishes too",
    ),
    ("model_index.json", "a diffusion pipeline", "this toolkit plans language models"),
    ("*.nemo", "a NeMo archive", "export it to the format of the hub with NeMo"),
    ("*.onnx", "an ONNX model", "give the checkpoint that it was made from"),
    ("*.engine", "a compiled engine", "give the checkpoint that it was built from"),
)
