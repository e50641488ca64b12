"""What stands around engine options: sections of launchers' files and variables of the engine whose
names are misspelt, and the GPUs that a file asks for against the ranks of its servers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from math import ceil
from typing import Any

from ..diagnostics import Diagnostic, Location, closest, located
from ..documents import DATA, Yaml, value_at
from ..facts import data_file, hardware, plain_data
from .section import Section, below, int_at
from .serving import named_gpu

FORMAT = DATA / "formats" / "surroundings.yaml"

_VARIABLE = re.compile(r"(?<![\w$.{/-])T[A-Z]*L[A-Z]*(?:_[A-Z0-9]+)+(?![\w/-])")
_SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size")


@cache
def table() -> Mapping[str, Any]:
    found: Mapping[str, Any] = data_file.load(FORMAT, plain_data.SURROUNDINGS_FILE)
    return found


def layout(document: Yaml) -> str:
    """The launcher's file that a document is by its sections, one of which may be misspelt."""
    data = document.data
    if not isinstance(data, Mapping):
        return ""
    for name, row in table()["layouts"].items():
        if sum(key in data for key in row["marks"]) >= len(row["marks"]) - 1:
            return str(name)
    return ""


def misspelt_keys(document: Yaml) -> Iterator[Diagnostic]:
    """Keys of a launcher's file that are one of its own, misspelt: it does not read them."""
    name = layout(document)
    for path, known in table()["layouts"][name]["keys"].items() if name else ():
        inside = value_at(document.data, path) if path else document.data
        for key in inside if isinstance(inside, Mapping) else ():
            left = [other for other in known if other not in inside]
            if key in known or not (near := closest(str(key), left)):
                continue
            where = below(path, str(key))
            what = "is no section of such a file: nothing below it is read"
            if not isinstance(inside[key], Mapping):
                what = "is no key of such a file, and is not read"
            fix = f"did you mean {near}?"
            yield located(document.locate(where), where, what, fix, "misspelt-name")


def misspelt_variables(text: str) -> Iterator[Diagnostic]:
    """Variables that are one of the engine's, misspelt: it does not read them."""
    known = table()["variables"]
    for number, line in enumerate(text.splitlines(), 1):
        if "_" not in line or line.lstrip().startswith("#"):
            continue
        for found in _VARIABLE.finditer(line):
            name = found.group()
            if name in known or not (near := closest(name, known)):
                continue
            place = Location(number, found.start() + 1)
            what = f"the engine reads no variable {name}"
            fix = f"did you mean {near}?"
            yield located(place, name, what, fix, "misspelt-variable", "warning")


def world_size(options: Mapping[str, Any]) -> int | None:
    """The ranks of a server with these options; `None` where a size is no number."""
    size = 1
    for name in _SIZES:
        value = options.get(name, 1)
        is_text = isinstance(value, str) and value.isdecimal() and len(value) < 10
        number = int(value) if is_text else value
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            return None
        size *= number
    return size


def gpu_diagnostic(
    world: int, gpus: int, place: Location, path: str, within: str = ""
) -> Diagnostic | None:
    """What is wrong where a server of so many ranks has so many GPUs."""
    if world > gpus:
        what = f"{gpus} GPU{'s' * (gpus != 1)} for a server of {world} ranks: it does not start"
        fix = f"ask for {world} GPUs, or make the parallel sizes multiply to {gpus}"
        return located(place, path, what, fix, "gpus-below-ranks", within=within)
    if world < gpus:
        what = f"{gpus} GPUs for a server of {world} ranks: {gpus - world} of them stay idle"
        fix = f"ask for {world} GPUs, or make the parallel sizes multiply to {gpus}"
        return located(place, path, what, fix, "gpus-idle", "warning", within)
    return None


def recipe_diagnostics(document: Yaml, sections: Sequence[Section]) -> Iterator[Diagnostic]:
    """What is wrong with the workers, nodes and GPUs of a recipe whose options are these."""
    ranks = ((row.role or "agg", world_size(row.options)) for row in sections)
    return rank_diagnostics(document, ranks)


def rank_diagnostics(
    document: Yaml, ranks: Iterable[tuple[str, int | None]]
) -> Iterator[Diagnostic]:
    """The workers, nodes and GPUs of a recipe, against each other and the `ranks` of a server of
    each role, as far as they are known. They stand with the resources, or with each role."""
    if not isinstance(value_at(document.data, "resources"), Mapping):
        return
    by_role = isinstance(value_at(document.data, "roles"), Mapping)

    def number(path: str) -> int | None:
        return int_at(document.data, path)

    def place(path: str) -> tuple[Location, str]:
        return document.locate(path), path

    of_node, gpu = number("resources.gpus_per_node"), named_gpu(document)
    if gpu and of_node and gpu.name.lower() in hardware.known():
        most = hardware.load(gpu.name.lower()).gpus_per_node.value
        if of_node > most:
            what = f"{of_node} GPUs in a node, and one of {gpu.name} has {most}"
            fix = f"give {most}, and as many nodes as that takes"
            yield located(*place("resources.gpus_per_node"), what, fix, "node-gpus", "warning")
    for role, world in ranks:
        asked = f"roles.{role}.gpus" if by_role else f"resources.gpus_per_{role}"
        on = f"roles.{role}.nodes" if by_role else f"resources.{role}_nodes"
        gpus, nodes = number(asked), number(on)
        if world and gpus and (found := gpu_diagnostic(world, gpus, *place(asked))):
            yield found
        workers = number(f"roles.{role}.workers" if by_role else f"resources.{role}_workers")
        each = gpus or world
        if not (workers and nodes and each and of_node):
            continue
        wanted, there = workers * each, nodes * of_node
        enough = workers * ceil(each / of_node)
        if wanted > there:
            what = f"{workers} workers of {each} GPUs want {wanted}, {nodes} nodes have {there}"
            fix = f"give {ceil(wanted / of_node)} nodes, or fewer workers"
            yield located(*place(on), what, fix, "gpus-below-ranks")
        elif nodes > enough:
            what = f"{workers} workers of {each} GPUs need {enough} nodes: the others stay idle"
            yield located(*place(on), what, f"give {enough}", "gpus-idle", "warning")
