"""The site profile: how jobs of one cluster request nodes, GPUs and containers.

There are no site-specific defaults: nothing is requested unless the profile names it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from .deployment import NUMBERS_AS_TEXT, Document, Strict, Variable, parse, refuse_code
from .errors import BadInput
from .files import read_text
from .schema import After, Bounds, default

TARGET = "slurm"
PATH = f"targets.{TARGET}.site"

# Words of a `#SBATCH` line: Slurm's own quotes and comments cannot begin in them.
Word = Annotated[str, Bounds(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.,:@+-]*$", max_length=255)]
# No part of a path is two dots, which would lead to another one than it says.
_PATH_PATTERN = r"(/(\.?[A-Za-z0-9_+=@-][A-Za-z0-9._+=@-]*)?)+"
Folder = Annotated[str, Bounds(pattern=f"^{_PATH_PATTERN}$")]
Mount = Annotated[str, Bounds(pattern=f"^{_PATH_PATTERN}(:{_PATH_PATTERN}(:r[ow])?)?$")]
Image = Annotated[str, Bounds(pattern=r"^[A-Za-z0-9/][A-Za-z0-9._/+=@:#-]*$")]
Program = Annotated[str, Bounds(pattern=r"^[A-Za-z0-9/][A-Za-z0-9._/+=@-]*$")]
Text = Annotated[str, Bounds(pattern=r"^[ -~]*$")]
Option = Annotated[str, Bounds(pattern=r"^--[a-z][a-z-]*(=[A-Za-z0-9_./,:@+=%*\[\]&|-]+)?$")]

# Options that the rendered scripts set themselves; `sbatch` and `srun` must not repeat them.
_RESERVED_OPTIONS = {
    "sbatch": frozenset(
        (
            *("job-name", "output", "error", "open-mode", "time", "signal", "array", "requeue"),
            *("partition", "account", "qos", "reservation", "constraint", "segment", "no-requeue"),
            *("nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "mem", "exclusive", "gres"),
            *("gpus", "gpus-per-node", "gpus-per-task", "export", "wrap", "test-only", "wait"),
        )
    ),
    "srun": frozenset(
        (
            *("mpi", "overlap", "kill-on-bad-exit", "cpu-bind", "gres", "job-name", "output"),
            *("nodes", "nodelist", "relative", "ntasks", "ntasks-per-node", "het-group", "export"),
            *("container-image", "container-mounts", "container-remap-root"),
            *("no-container-mount-home", "no-container-entrypoint"),
        )
    ),
}


class Container(Strict):
    """Where the servers' programs come from: `images` by server, or the nodes themselves.

    `mounts` are `SOURCE`, `SOURCE:TARGET` or `SOURCE:TARGET:ro`. The bundle and the state folder
    are always mounted.
    """

    runtime: Literal["pyxis", "apptainer", "none"]
    images: dict[str, Image] = default(dict)
    mounts: list[Mount] = default(list)
    remap_root: bool = False

    def check(self) -> None:
        given = [name for name in ("images", "mounts", "remap_root") if getattr(self, name)]
        if self.runtime == "none" and given:
            raise ValueError(f"runtime none uses no {given[0]}; remove it, or name a runtime")
        if self.remap_root and self.runtime != "pyxis":
            raise ValueError("remap_root is of pyxis only; remove it")


class Site(Strict):
    """One cluster, or one way to use it.

    `gpu_request` is how its Slurm takes requests for GPUs; `none` takes whole nodes as they are.
    `block_size` are the nodes of one block of its topology: with it jobs request a `--segment`.
    `memory_nodes` are the NUMA nodes of the processors' memory, where the GPUs' memory has some
    too; servers are bound to them by `numactl`. `checkpoints` are the folders of models on the
    cluster by the name that deployments use. `state_folder` is seen by all nodes. `toolkit` is a
    Python on the cluster in which this toolkit is installed with its `launch` extra.
    `sbatch` and `srun` are further options, as on a command line.
    """

    name: Word
    gpu_request: Literal["gpus_per_node", "gres", "none"]
    container: Container
    mpi: Annotated[str, Bounds(pattern=r"^(none|pmi2|pmix(_v[0-9]+)?)$")] = "none"
    exclusive: bool = False
    partition: Word | None = None
    client_partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    reservation: Word | None = None
    constraint: (
        Annotated[str, Bounds(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.,&|*()\[\]-]*$")] | None
    ) = None
    gpu_type: Word | None = None
    cpus_per_node: Annotated[int, Bounds(ge=1, le=4096)] | None = None
    memory_gib_per_node: Annotated[int, Bounds(ge=1, le=1_000_000)] | None = None
    block_size: Annotated[int, Bounds(ge=1, le=10_000)] | None = None
    memory_nodes: Annotated[str, Bounds(pattern=r"^[0-9]+([,-][0-9]+)*$")] | None = None
    environment: Annotated[dict[Variable, Annotated[Text, NUMBERS_AS_TEXT]], After(refuse_code)] = (
        default(dict)
    )
    checkpoints: dict[str, Folder] = default(dict)
    state_folder: Folder | None = None
    python: Program = "python3"
    toolkit: Program | None = None
    sbatch: list[Option] = default(list)
    srun: list[Option] = default(list)

    def check(self) -> None:
        if self.gpu_request == "none" and not self.exclusive:
            raise ValueError("gpu_request none takes whole nodes; set exclusive: true")
        if not self.exclusive and self.cpus_per_node is None:
            what = "exclusive is off, and a task would get one core"
            raise ValueError(f"{what}; set exclusive: true, or name cpus_per_node")
        if self.gpu_request == "none" and self.gpu_type:
            raise ValueError("gpu_type is not used with gpu_request none; remove it")
        for key, reserved in _RESERVED_OPTIONS.items():
            for option in getattr(self, key):
                name = option.removeprefix("--").partition("=")[0]
                if name in reserved:
                    raise ValueError(f"{key} has {option}, which the scripts set; remove it")


def read(path: Path) -> dict[str, Any]:
    """A profile as a deployment holds it. Raises `BadInput` with every error, each at its line."""
    document = parse(read_text(path), str(path))
    found, diagnostics = Site.read(document.data)
    if found is None:
        raise BadInput(document.locate_all(diagnostics))
    return found.data(exclude_none=True)


def with_profile(document: Document) -> Document:
    """The deployment file with the contents of its site profile instead of the file's name.

    The name is relative to the deployment file, or to the current folder if given as an override.
    """
    given = document.get(PATH)
    if not isinstance(given, str):
        return document
    try:
        profile = read(document.home(PATH) / given)
    except BadInput as error:
        rows = (replace(row, fix=row.fix or "give a site profile") for row in error.diagnostics)
        raise BadInput(rows) from None
    options: Mapping[str, Any] = document.data["targets"][TARGET]
    targets = document.data["targets"] | {TARGET: {**options, "site": profile}}
    return replace(document, data={**document.data, "targets": targets})


def options_of(lines: list[str]) -> dict[str, str]:
    """Options by name; an option without a value is empty."""
    pairs = (re.sub(r"^--", "", line).partition("=") for line in lines)
    return {name: value for name, _, value in pairs}
