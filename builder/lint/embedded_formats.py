"""Names by which options of the engine are recognised in files of other formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..documents import DATA
from ..facts import data_file, plain_data
from ..schema import Text

FORMAT = DATA / "formats" / "embedded.yaml"
SURROUNDINGS = DATA / "formats" / "surroundings.yaml"
WORKERS = {
    "dynamo.trtllm": DATA / "formats" / "dynamo_worker.yaml",
    "trtllm-bench": DATA / "formats" / "bench_worker.yaml",
    "trtllm-eval": DATA / "formats" / "eval_worker.yaml",
}


@dataclass(frozen=True, slots=True)
class EmbeddedFormats:
    """Names by which other formats are recognised: keys that are `holders` of options, `signature`
    options that no other engine has, and those of `others`."""

    source: Text
    holders: tuple[Text, ...]
    signature: tuple[Text, ...]
    others: tuple[Text, ...]


@dataclass(frozen=True, slots=True)
class WorkerFlags:
    """The flags of a program with the engine in it: the `options` that they set, the `switches`
    among them, those that take `json`, the `prefix` of those that name an option by its path, the
    `modes` or tasks that it has, and `others`. Where it `holds` some modes, those of the rest have
    flags of their own."""

    source: Text
    options: Mapping[Text, Text]
    switches: tuple[Text, ...]
    json: tuple[Text, ...]
    modes: tuple[Text, ...]
    others: tuple[Text, ...]
    prefix: Text | None = None
    holds: tuple[Text, ...] = ()


@cache
def names(kind: str) -> frozenset[str]:
    return frozenset(getattr(_document(), kind))


@cache
def _document() -> EmbeddedFormats:
    document: EmbeddedFormats = data_file.load(FORMAT, EmbeddedFormats)
    return document


@cache
def worker_flags(program: str) -> WorkerFlags:
    document: WorkerFlags = data_file.load(WORKERS[program], WorkerFlags)
    return document


@cache
def surroundings() -> Mapping[str, Any]:
    """What stands around engine options in files of others."""
    found: Mapping[str, Any] = data_file.load(SURROUNDINGS, plain_data.SURROUNDINGS_FILE)
    return found
