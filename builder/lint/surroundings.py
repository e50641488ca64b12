"""What stands around engine options: sections of launchers' files and variables of the engine whose
names are misspelt, and the GPUs that a file asks for against the ranks of its servers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import Any

from ..diagnostics import Diagnostic, Location, closest, is_misspelling, located
from ..documents import Variable, Yaml, value_at
from ..facts import hardware
from ..general_rules import UNKNOWN_VALUE, VALUE_TYPE
from ..rules.options import TRUE
from . import rules
from .content import role_of
from .embedded_formats import surroundings as table
from .inner_places import places
from .section import Section, below, int_at
from .serving import beside_options, named_gpu
from .workers import Place

_VARIABLE = re.compile(
    r"(?<![\w$.{/-])(?:T[A-Z]*L[A-Z]*|TRT_LLM|TENSORRT_?LLM)(?:_[A-Z0-9]+)+(?![\w/-])"
)
_ENGINE = re.compile(r"^(?:TLLM|TRT_?LLM|TENSORRT_?LLM)_")
# A variable with its value: in a shell, in a mapping, or with the value below the name.
_SETTING = re.compile(
    r"(?<![\w$.{/-])(?P<name>(?:T[A-Z]*LLM|NCCL|UCX|PYTORCH)_[A-Z0-9_]+)"
    r"[\"']?(?:=|[ \t]*:[ \t]+|,?\s*[\"']?value[\"']?[ \t]*:[ \t]*)"
    r"[\"']?\^?(?P<value>\w+(?::\w+)?(?:,\w+(?::\w+)?)*)[\"']?(?=[\s,;}\])]|$)"
)
_OF_LIBRARY = re.compile(
    r"(?<![\w$.{/-])(NCCL|UCX|HF_HUB)_[A-Z0-9_]+(?=[\"']?(?:[=:,\]]|\s+[\w\"']|\s*$))"
)
# A variable that a script sets for itself, reads, or gives to programs.
_SET = re.compile(r"""^[ \t]*([A-Z]\w*)=(?:"[^"\n]*"|'[^'\n]*'|[^\s"';&|])*[ \t]*(?:;|#|$)""", re.M)
_READ = re.compile(r"\$\{?([A-Z]\w*)")
_GIVING = re.compile(r"(?:\bexport|\s-x|\s-e|--env|--export)[\s=].*")
_ALL_GIVEN = re.compile(r"set -\w*a|allexport")
_NAMES = re.compile(r"[A-Z]\w*")
_OF_NODE = ("resources.gpus_per_node", "hardware.gpus_per_node")
_NODE_GPUS, _NODES = ("gpus_per_node", "num_gpus_per_node"), ("num_nodes", "nnodes", "nodes")
_ALL_GPUS = ("num_gpus", "gpus", "gpu_count", "n_gpus")
_PLACEHOLDER = re.compile(r"[$<>{}`]")
_SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size")


def layout(document: Yaml) -> str:
    """The launcher's file that a document is by its sections, one of which may be misspelt."""
    data = document.data
    if not isinstance(data, Mapping):
        return ""
    for name, row in table()["layouts"].items():
        if sum(key in data for key in row["marks"]) >= len(row["marks"]) - 1:
            return str(name)
    return ""


def misspelt_keys(document: Yaml, name: str = "") -> Iterator[Diagnostic]:
    """Keys of a launcher's file that are one of its own, misspelt: it does not read them. Of a
    part of such a file the `name` of its layout is given."""
    name = name or layout(document)
    for path, known in table()["layouts"][name]["keys"].items() if name else ():
        inside = value_at(document.data, path) if path else document.data
        for key in inside if isinstance(inside, Mapping) else ():
            left = [other for other in known if other not in inside]
            if key in known or not (near := closest(str(key), left) or _of_role(key, left)):
                continue
            where = below(path, str(key))
            what = "is no section of such a file: nothing below it is read"
            if not isinstance(inside[key], Mapping):
                what = "is no key of such a file, and is not read"
            fix = f"did you mean {near}?"
            yield located(document.locate(where), where, what, fix, rules.MISSPELT_NAME)


def _of_role(key: Any, known: Iterable[str]) -> str | None:
    """The name of a role here that is called otherwise elsewhere: `generation` is `gen`."""
    role = role_of(str(key))
    return next((name for name in known if role and role == role_of(name)), None)


def wrong_values(document: Yaml) -> Iterator[Diagnostic]:
    """Values of a launcher's file that its keys do not take."""
    row = table()["layouts"].get(layout(document), {})
    for path, allowed in row.get("values", {}).items():
        value = value_at(document.data, path)
        if not isinstance(value, str) or isinstance(value, Variable) or value in allowed:
            continue
        if near := closest(value, allowed):
            what, place = f"{value[:60]} is none of what it takes", document.locate(path)
            yield located(place, path, what, f"did you mean {near}?", UNKNOWN_VALUE)
    for path in row.get("counts", ()):
        value = value_at(document.data, path)
        if isinstance(value, Variable | Mapping | list) or _is_count(value):
            continue
        if value is not None and not _PLACEHOLDER.search(str(value)):
            what, place = f"is {str(value)[:60]}", document.locate(path)
            yield located(place, path, what, "give a whole number above zero", VALUE_TYPE)


def _is_count(value: Any) -> bool:
    text = str(value).strip()
    return text.isascii() and text.isdigit() and text.strip("0") != ""


def variable_diagnostics(text: str) -> Iterator[Diagnostic]:
    """Variables of the engine that are misspelt, or have a value that it does not know."""
    misspelt = list(_misspelt_variables(text))
    own = _own_variables(text) if misspelt else set()
    yield from (row for row in misspelt if row.path not in own)
    switches, choices = table()["switches"]["names"], table()["choices"]["names"]
    place = places(text)
    for found in _SETTING.finditer(text):
        name, value = found["name"], found["value"]
        line_start = text.rfind("\n", 0, found.start()) + 1
        if text[line_start : found.start()].lstrip().startswith("#"):
            continue
        if name in switches and value.lower() in TRUE - {"1"}:
            what, fix = f"{value} is not 1: the engine takes {name} for off", "give 1"
        elif name in choices and (slip := _unknown_word(value, choices[name])):
            what = f"{slip[0]} is none of what {name} takes"
            fix = f"did you mean {slip[1]}?"
        else:
            continue
        yield located(place(found.start("value")), name, what, fix, rules.VARIABLE_VALUE, "warning")


def _unknown_word(value: str, known: Sequence[str]) -> tuple[str, str] | None:
    """The first word of a list that is a known one with a slip, and the known one."""
    lower = [row.lower() for row in known]
    for word in (part.partition(":")[0] for part in value.split(",")):
        if word.lower() in lower:
            continue
        begun = (row for row in known if len(row) > 3 and word.lower().startswith(row.lower()))
        if near := closest(word, known) or next(begun, None):
            return word, near
    return None


def _misspelt_variables(text: str) -> Iterator[Diagnostic]:
    """Variables that are one of the engine's, misspelt: it does not read them."""
    known = table()["variables"]
    for number, line in enumerate(text.splitlines(), 1):
        if "_" not in line or line.lstrip().startswith("#"):
            continue
        for found in _VARIABLE.finditer(line):
            name = found.group()
            if name in known or not (
                near := _of_prefix(name, known) or closest(name, known) or _but_one(name, known)
            ):
                continue
            place = Location(number, found.start() + 1)
            what = f"the engine reads no variable {name}"
            fix = f"did you mean {near}?"
            yield located(place, name, what, fix, rules.MISSPELT_VARIABLE, "warning")
        for found in _OF_LIBRARY.finditer(line):
            name, library = found.group(), found[1]
            rows = table()["libraries"][library]
            names = (*rows["names"], *rows["others"]["names"])
            near = None if name in names else _slip(name, names)
            if near:
                place = Location(number, found.start() + 1)
                what = f"{library} reads no variable {name}"
                fix = f"did you mean {near}?"
                yield located(place, name, what, fix, rules.MISSPELT_VARIABLE, "warning")


def _own_variables(text: str) -> set[str]:
    """Variables that a script sets and reads itself, and that no program gets."""
    if _ALL_GIVEN.search(text):
        return set()
    given = {name for line in _GIVING.findall(text) for name in _NAMES.findall(line)}
    return set(_SET.findall(text)) & set(_READ.findall(text)) - given


def _of_prefix(name: str, known: Iterable[str]) -> str | None:
    """The only name that is this one with another spelling of the engine's name before it, or
    with its words in another order."""
    rest = sorted(_ENGINE.sub("", name).split("_"))
    is_own = _ENGINE.match(name) is not None
    rows = [row for row in known if is_own and sorted(_ENGINE.sub("", row).split("_")) == rest]
    return rows[0] if len(rows) == 1 else None


def _slip(name: str, known: Iterable[str]) -> str | None:
    """The name that this one is with slips of the fingers, and no other name's beginning."""
    near = closest(name, known)
    return near if near and is_misspelling(name, near) else None


def _but_one(name: str, known: Iterable[str]) -> str | None:
    """The only name that this one is with a letter or digit too many or too few at its end."""
    rows = [row for row in known if row == name[:-1] or row[:-1] == name]
    return rows[0] if len(rows) == 1 else None


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


def _node_gpus(document: Yaml) -> Iterator[Diagnostic]:
    """More GPUs in a node than one of the kind that the file names has."""
    gpu = named_gpu(document)
    if gpu is None or gpu.name.lower() not in hardware.known():
        return
    most = hardware.load(gpu.name.lower()).gpus_per_node.value
    for path in _OF_NODE:
        if (given := int_at(document.data, path)) and given > most:
            what = f"{given} GPUs in a node, and one of {gpu.name} has {most}"
            fix = f"give {most}, and as many nodes as that takes"
            yield located(document.locate(path), path, what, fix, rules.NODE_GPUS, "warning")


def gpus_beside(document: Yaml, path: str) -> Place | None:
    """The GPUs that a launcher has beside its options, of all of its nodes."""
    above = path.rpartition(".")[0]
    beside = beside_options(document, path)

    def found(names: Iterable[str]) -> tuple[int, str] | None:
        rows = ((int_at(beside, name), name) for name in names)
        return next(((count, name) for count, name in rows if count), None)

    if not path:
        return None
    (each, name), nodes = found(_NODE_GPUS) or (None, ""), found(_NODES)
    if each and nodes:
        where = below(above, nodes[1] if nodes[0] > 1 else name)
        return Place(each * nodes[0], document.locate(where), where)
    if (whole := found(_ALL_GPUS)) and (nodes is None or nodes[0] == 1):
        where = below(above, whole[1])
        return Place(whole[0], document.locate(where), where)
    return None


def gpu_diagnostic(
    world: int, gpus: int, place: Location, path: str, within: str = ""
) -> Diagnostic | None:
    """What is wrong where a server of so many ranks has so many GPUs."""
    if world > gpus:
        what = f"{gpus} GPU{'s' * (gpus != 1)} for a server of {world} ranks: it does not start"
        fix = f"ask for {world} GPUs, or make the parallel sizes multiply to {gpus}"
        return located(place, path, what, fix, rules.GPUS_BELOW_RANKS, within=within)
    if world < gpus:
        what = f"{gpus} GPUs for a server of {world} ranks: {gpus - world} of them stay idle"
        fix = f"ask for {world} GPUs, or make the parallel sizes multiply to {gpus}"
        return located(place, path, what, fix, rules.GPUS_IDLE, "warning", within)
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
    yield from _node_gpus(document)
    if not isinstance(value_at(document.data, "resources"), Mapping):
        return
    by_role = isinstance(value_at(document.data, "roles"), Mapping)

    def number(path: str) -> int | None:
        return int_at(document.data, path)

    def place(path: str) -> tuple[Location, str]:
        return document.locate(path), path

    of_node = number("resources.gpus_per_node")
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
            yield located(*place(on), what, fix, rules.GPUS_BELOW_RANKS)
        elif nodes > enough:
            what = f"{workers} workers of {each} GPUs need {enough} nodes: the others stay idle"
            yield located(*place(on), what, f"give {enough}", rules.GPUS_IDLE, "warning")
