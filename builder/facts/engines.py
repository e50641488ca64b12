"""The engines that can be deployed: one record for each, from `builder/data/engines/`.

A record names the files with everything else about an engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, Literal

from ..documents import DATA
from ..schema import Positive, Reference, Text
from .data_file import load as load_file

ENGINES = DATA / "engines"


@cache
def names() -> tuple[str, ...]:
    """Every engine, sorted."""
    return tuple(sorted(path.stem for path in ENGINES.glob("*.yaml")))


EngineName = Annotated[str, Reference(names)]


@dataclass(frozen=True, slots=True)
class CpuBuild:
    """A build of the engine that needs no GPU, in a separate environment.

    `package` of `release` is installed without some of its requirements: its PyTorch cannot load
    `unfit`, and only GPUs need `unneeded`. The environment takes `disk_gb`. The Python module
    `runs_as`, with the model after `model_flag`, replaces `program` and its subcommand. `options`
    override the deployment, `environment` lists variables as `NAME=value`. `architectures` are
    known to run as miniatures, with the `head_sizes` that its kernels support. `unjudged` are words
    in error messages of a check that lacks a package, which says nothing about the architecture.
    """

    package: Text
    release: Text
    unfit: tuple[Text, ...]
    unneeded: tuple[Text, ...]
    disk_gb: float
    program: tuple[Text, Text]
    runs_as: Text
    model_flag: Text
    options: tuple[Text, ...]
    environment: tuple[Text, ...]
    architectures: tuple[Text, ...]
    head_sizes: tuple[Positive, ...]
    unjudged: tuple[Text, ...]
    source: Text

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.release}"

    @property
    def variables(self) -> dict[str, str]:
        return dict(one.split("=", 1) for one in self.environment)


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine.

    `package` is its name on a package index, `module` what Python imports, and `product` its name
    in advisories. `releases` is the folder of its option tables, `published_releases` the file of
    the days on which its releases were published, `heuristics` the folder of its heuristics,
    `rules` the file of its cross-field rules and `weight_formats` that of the quantized weights
    that it reads, all relative to `builder/data`.
    `option_file_flag` is the server flag of the option file, `needed_options` and `needed_numbers`
    are options without which, or without a number as whose default, nothing can be planned.

    `parser_flags` select the parsers of answers, each named like the fact of a model that it takes.
    `draft_method` is the value for drafting with the model's own layers. By default the engine
    splits long prompts if it `chunks_prompts`, and captures CUDA graphs for batches of up to
    `largest_graph` requests. `memory_share` says whether its memory fraction counts from the memory
    left after loading or from all of a GPU, with `memory_source` and, where logs disagree,
    `memory_doubt`. `sides_remedy` tells what to do if none of its servers can run prefill or
    decode alone.

    `cpu_build` runs without a GPU. `other_meanings` explains words of the planner that mean
    something else in this engine. `rank_launcher` starts a command on every rank, with
    `rank_variable` set to 1. Any of `telemetry_variables`, set to 1, disables usage reports.
    """

    name: Text
    title: Text
    package: Text
    module: Text
    license: Text
    product: Text
    releases: Text
    published_releases: Text
    rules: Text
    weight_formats: Text
    heuristics: Text
    option_file_flag: Text
    needed_options: tuple[Text, ...]
    needed_numbers: tuple[Text, ...]
    parser_flags: tuple[Text, ...]
    draft_method: Text
    memory_share: Literal["left", "total"]
    chunks_prompts: bool
    largest_graph: Positive
    memory_source: Text
    memory_doubt: Text | None
    rank_launcher: Text | None
    rank_variable: Text | None
    telemetry_variables: tuple[Text, ...]
    default: bool = False
    sides_remedy: Text | None = None
    cpu_build: CpuBuild | None = None
    other_meanings: Mapping[str, Text] = field(default_factory=dict, hash=False)


def load(name: str) -> Engine:
    """The record of one of `names()`. Raises `BadFacts` with the errors of its file."""
    return load_file(ENGINES / f"{name}.yaml", Engine)


def are_mentioned(text: str) -> bool:
    """Whether a text contains the name of an engine's Python module."""
    return any(load(name).module in text for name in names())


@cache
def default() -> Engine:
    """The engine of a deployment that does not set one."""
    (found,) = (engine for engine in map(load, names()) if engine.default)
    return found


COUNTERPARTS_FILE = DATA / "formats" / "counterparts.yaml"
# The options of one decision by engine; `note` says what differs between them.
COUNTERPARTS: Any = {
    "sources": {"*": Text},
    "rows": [{"names": {"*": Text}, "note?": str}],
}


@dataclass(frozen=True, slots=True)
class Counterpart:
    """An option of `engine` by its path there, and the `own` path of the same decision here."""

    engine: str
    path: str
    own: str
    note: str = ""


def counterparts(path: str, engine: str) -> tuple[Counterpart, ...]:
    """What `engine` calls an option that only other engines know by this path.

    A group of options has those of the options in it, and a name alone that of the one option which
    ends in it.

    >>> [row.own for row in counterparts("max_batch_size", "vllm")]
    ['max_num_seqs']
    """
    rows = []
    for row in load_file(COUNTERPARTS_FILE, COUNTERPARTS)["rows"]:
        own = row["names"].get(engine)
        for other, theirs in row["names"].items():
            if own and other != engine and theirs != own:
                rows.append(Counterpart(other, theirs, own, row.get("note", "")))
    exact = [row for row in rows if row.path == path]
    inside = [row for row in rows if row.path.startswith(f"{path}.")]
    return tuple([*exact, *inside] or [row for row in rows if row.path.endswith(f".{path}")])
