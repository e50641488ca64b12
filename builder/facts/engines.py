"""The engines that can be deployed: one record for each, from `builder/data/engines/`.

A record says where everything else that is known of an engine lies. What needs code, the
translation of a plan into the engine's own options, is the module of the same name in
`builder/engines`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Literal

from ..documents import DATA
from .data_file import load as load_file
from .schema import Check, Positive, Text

ENGINES = DATA / "engines"


@cache
def names() -> tuple[str, ...]:
    """Every engine, sorted."""
    return tuple(sorted(path.stem for path in ENGINES.glob("*.yaml")))


EngineName = Annotated[
    str, Check(lambda text: text in names(), "must be the name of a file in builder/data/engines")
]


@dataclass(frozen=True, slots=True)
class CpuBuild:
    """A build of the engine that needs no GPU, in an environment of its own.

    `package` of `release` is installed without two kinds of packages that its requirements bring:
    those of `unfit`, which its PyTorch cannot load, and of `unneeded`, which serve GPUs alone; the
    environment takes `disk_gb`. `program` with its
    subcommand is what servers start, the Python module `runs_as` what does the same here, with the
    model after `model_flag`. `options` are set for it whatever a deployment says, `environment`
    are its variables, each as `NAME=value`. `architectures` are those whose miniatures were seen to
    be served, and `head_sizes` what its kernels take. `unjudged` are words by which its classes say
    that they lack what they judge an architecture by.
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
        """What is installed."""
        return f"{self.package}=={self.release}"

    @property
    def variables(self) -> dict[str, str]:
        """The variables of its environment by name."""
        return dict(one.split("=", 1) for one in self.environment)


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine.

    `package` is its name on a package index, `module` what Python imports, and `product` its name
    in advisories. `releases` is the folder of its option tables, `heuristics` that of its
    heuristics, `rules` the file of its cross-field rules and `weight_formats` that of the quantized
    weights that it reads, all relative to `builder/data`.
    `option_file_flag` is the server flag of the option file, `needed_options` and `needed_numbers`
    are options without which, or without a number as whose default, nothing can be planned.

    `parser_flags` are those of the parsers of answers, each called like the fact of a model that it
    takes. `draft_method` is its value for drafting with the model's own layers. Where no option
    says it, it reads long prompts in parts if it `chunks_prompts`, and batches of up to
    `largest_graph` requests run as CUDA graphs. Its `memory_share` is of what is left beside the
    model, or of all of a GPU; `memory_source` says who says so, `memory_doubt` how far logs do
    not confirm it. `sides_remedy` says what to do where none of its servers does one side of
    prefill and decode alone.

    `cpu_build` is one that runs without a GPU, where there is one. `other_meanings` tells what
    words of the planner mean here, where that is not quite what they mean elsewhere.

    `rank_launcher` starts the command that follows it on every rank, where there is one, and
    `rank_variable` is 1 in what it starts. Any of
    `telemetry_variables`, set to 1, keeps it from sending usage data.
    """

    name: Text
    title: Text
    package: Text
    module: Text
    license: Text
    product: Text
    releases: Text
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
    """Whether a text has the name of an engine's Python module."""
    return any(load(name).module in text for name in names())


@cache
def default() -> Engine:
    """The engine of a deployment that names none."""
    (found,) = (engine for engine in map(load, names()) if engine.default)
    return found
