"""What is wrong with the servers that a file starts: flags that are misspelt or give wrong options,
GPUs against ranks, a side that is not that of its service, an option file that nothing gives."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from ..diagnostics import (
    Diagnostic,
    Location,
    closest,
    is_misspelling,
    located,
    nearest,
    of_same_words,
)
from ..documents import Yaml, value_at
from ..facts.release import Release
from ..general_rules import UNKNOWN_VALUE
from ..rules import constraints, flags
from ..rules.context import RuleContext
from . import rules, serving, workers
from .content import side_of
from .embedded_formats import WORKERS, WorkerFlags, worker_flags
from .handed_files import HandedFiles
from .section import Section, disagreements, section_diagnostics
from .surroundings import gpu_diagnostic, world_size
from .variables import SHELL, TEMPLATE, value_of
from .workers import MODE_FLAG, Place, Worker

_BLOCKS = "--kv-block-size"
NOTHING_HANDED = HandedFiles()


@dataclass
class _Own:
    """The options that the flags of a worker of Dynamo set, which its option file may replace, and
    `last` those that replace the file's; `unknown` if sizes may be among those filled in later."""

    first: dict[str, Any] = field(default_factory=dict)
    last: dict[str, Any] = field(default_factory=dict)
    places: dict[str, Location] = field(default_factory=dict)
    is_open: bool = False
    unknown: bool = False

    def over(self, file: Mapping[str, Any]) -> dict[str, Any]:
        """Those that count beside the file's."""
        together: dict[str, Any] = {}
        for options in (self.first, file, self.last):
            _merge(together, options, Location(0, 0), {})
        return together

    def section(self, worker: Worker) -> Section:
        document = Yaml(self.over({}), self.places)
        options, role = document.data, worker.role
        within = f"the flags of {worker.program}"
        return Section(options, document, within=within, role=role, is_open=self.is_open)


def diagnostics(
    servers: Sequence[Worker],
    files: Mapping[str, Mapping[str, Any]],
    rule_context: RuleContext,
    in_job: bool = False,
    handed: HandedFiles = NOTHING_HANDED,
) -> Iterator[Diagnostic]:
    """All of that. `files` are the options of each file that is given beside the servers, by the
    last part of its name, `handed` what scripts around them do with files. A job may hold several
    servers: they share its GPUs."""
    known = {row.file for row in servers} | handed.used
    alone: list[Section] = []
    for worker in servers:
        own = _own_options(worker) if worker.program else None
        if own and worker.program == workers.WORKER and not (own.is_open or worker.file):
            alone.append(own.section(worker))
        if own and worker.program in workers.TOOLS:
            yield from _task(worker)
        if own:
            yield from _unknown_flags(worker, rule_context.release)
            yield from _other_side(worker)
            yield from _options(own, own.section(worker), worker, files, rule_context)
            yield from _block_size(worker, own, files)
        yield from other_side(worker)
        yield from _missing_file(worker, files, known, handed)
        if not (in_job and len(servers) > 1):
            yield from _gpus(worker, files, own)
    yield from disagreements(alone, rule_context)
    yield from models(servers)


def _own_options(worker: Worker) -> _Own:
    """The options that the flags of a worker of Dynamo set, each at its flag."""
    table, own = worker_flags(worker.program), _Own(places={"": worker.words[0][1]})
    for index, (word, place) in enumerate(worker.words):
        name, equals, text = word.partition("=")
        switch = name.replace("--no-", "--", 1) in table.switches
        path = table.options.get(name.replace("--no-", "--", 1) if switch else name, "")
        by_path = table.prefix is not None and name.startswith(table.prefix)
        path = path or (name.removeprefix(table.prefix or "") if by_path else "")
        if not (path or name in table.json):
            continue
        if not equals and not switch:
            text, at = next(iter(worker.words[index + 1 :]), ("", place))
            place = at if name in table.json else place
        is_last = name in table.json or by_path
        if SHELL.search(text) or TEMPLATE.search(text):
            own.is_open = True
            own.unknown |= name in table.json or (is_last and path.endswith("_parallel_size"))
        elif path:
            value = not name.startswith("--no-") if switch and not equals else value_of(text)
            _merge(own.last if is_last else own.first, _nested(path, value), place, own.places)
        elif isinstance(given := value_of(text.strip("\"'")), Mapping):
            _merge(own.last, given, place, own.places)
    return own


def _nested(path: str, value: Any) -> Mapping[str, Any]:
    for key in reversed(path.split(".")):
        value = {key: value}
    nested: Mapping[str, Any] = value
    return nested


def _merge(
    options: dict[str, Any],
    given: Mapping[str, Any],
    place: Location,
    places: dict[str, Location],
    path: str = "",
) -> None:
    """Options put over others, group by group."""
    for key, value in given.items():
        where = f"{path}{key}"
        places[where] = place
        if isinstance(value, Mapping):
            inside = options.get(key)
            options[key] = dict(inside) if isinstance(inside, Mapping) else {}
            _merge(options[key], value, place, places, f"{where}.")
        else:
            options[key] = value


def _options(
    own: _Own,
    section: Section,
    worker: Worker,
    files: Mapping[str, Mapping[str, Any]],
    rule_context: RuleContext,
) -> Iterator[Diagnostic]:
    """What is wrong with the options of the flags, and with them beside those of the file."""
    here = workers.context(rule_context, worker)
    if not worker.file:
        for row in section_diagnostics(section, here):
            yield serving.at_model(row, worker.model)
        return
    yield from section_diagnostics(_opened(section), here)
    base = worker.given(files)
    if base is None or own.is_open:
        return
    alone = {row.where for row in constraints.violations(base, here)}
    for row in constraints.violations(own.over(base), here):
        if row.where not in alone and value_at(section.options, row.where) is not None:
            yield section.locate(row)


def _opened(section: Section) -> Section:
    """A section whose options are only judged one by one."""
    return Section(section.options, section.document, within=section.within, is_open=True)


def _gpus(
    worker: Worker, files: Mapping[str, Mapping[str, Any]], own: _Own | None
) -> Iterator[Diagnostic]:
    given = {**worker.sizes, **(own.over({}) if own else {})}
    read = worker.given(files)
    file, known = read or {}, not worker.file or read is not None
    if worker.gpus is None or not (known or "tensor_parallel_size" in given):
        return
    # Of the engine's own server, flags count before the file.
    world = world_size({**worker.sizes, **own.over(file)} if own else {**file, **given})
    if world is None or (own and own.unknown):
        return
    gpus = worker.gpus
    found = gpu_diagnostic(world, gpus.count, gpus.location, gpus.path)
    if found and gpus.on_all_nodes:
        fix = f"ask for {world} GPUs over all nodes, or make the parallel sizes multiply to"
        found = replace(found, fix=f"{fix} {gpus.count}")
    if found and not known:  # what the file says may count before the flags
        found = replace(found, severity="warning")
    if found and (given or worker.file or found.severity == "error"):
        yield from _at_each(found, gpus, world)


def _at_each(found: Diagnostic, gpus: Place, world: int) -> Iterator[Diagnostic]:
    """What is wrong with the GPUs of a server: where nodes and GPUs of each are given, nothing says
    which of the two is meant."""
    each = gpus.each
    if each is None:
        yield found
        return
    nodes = gpus.count // each.count
    ways = [f"give {world // each.count} nodes of {each.count} GPUs"] * (world % each.count == 0)
    ways += [f"ask for {world // nodes} GPUs in each of {nodes} nodes"] * (world % nodes == 0)
    fix = f"{', or '.join([*ways, 'make the parallel sizes multiply to'])} {gpus.count}"
    found = replace(found, fix=fix)
    yield found
    yield replace(found, location=each.location, path=each.path)


def _block_size(
    worker: Worker, own: _Own, files: Mapping[str, Mapping[str, Any]]
) -> Iterator[Diagnostic]:
    """Blocks of the router that are not those of the engine: it then routes by prefixes of none."""
    given = worker.flag((_BLOCKS,))
    size = value_at(own.over(worker.given(files) or {}), "kv_cache_config.tokens_per_block")
    text = given[0].strip("\"'") if given else ""
    if given and text.isdecimal() and isinstance(size, int) and int(text) != size:
        what = f"{_BLOCKS} {text}, but the engine's tokens_per_block is {size}"
        fix = f"give {_BLOCKS} {size}: the router looks for blocks of the engine's size"
        yield located(given[1], worker.path, what, fix, rules.ROUTER_BLOCKS, "warning")


def models(servers: Sequence[Worker]) -> Iterator[Diagnostic]:
    """Models that differ between the two sides of one service."""
    prefill = [row.model for row in servers if row.role == "prefill" and row.model]
    for worker in servers:
        model = worker.model if worker.role == "decode" else None
        if model and prefill and model.name not in {row.name for row in prefill}:
            what = f"{model.name}, but the prefill worker has {prefill[0].name}"
            fix = "serve the same checkpoint on both"
            yield located(model.location, model.path, what, fix, rules.DISAGG_MODEL)


def _unknown_flags(worker: Worker, release: Release) -> Iterator[Diagnostic]:
    """Flags that are one of the program's, misspelt, or what its option is called elsewhere."""
    table = worker_flags(worker.program)
    if table.holds and next((word for word, _ in worker.tasks), "") not in table.holds:
        return
    known = (*table.options, *table.json, *table.others)
    for word, place in worker.words:
        name = word.partition("=")[0].replace("--no-", "--", 1)
        by_path = table.prefix is not None and name.startswith(table.prefix)
        if not name.startswith("--") or name in known or by_path:
            continue
        what = f"{name} is no flag of {worker.program}"
        near = next((flag for flag in known if is_misspelling(name, flag)), None)
        if own := [flag for flag in _of_other_programs(name, table, release) if flag in known]:
            yield located(place, worker.path, what, f"did you mean {own[0]}?", rules.UNKNOWN_FLAG)
        elif near := near or of_same_words(name, known):
            yield located(place, worker.path, what, f"did you mean {near}?", rules.UNKNOWN_FLAG)


def _of_other_programs(name: str, table: WorkerFlags, release: Release) -> list[str]:
    """The flags of a program for what a flag of another program of the engine sets."""
    if name in workers.FILE_FLAGS:
        return list(workers.FILE_FLAGS)
    server = flags.spellings(release).get(name)
    set_here = {flags.option_path(server, release)} if server else set()
    set_here |= {worker_flags(other).options.get(name) for other in WORKERS}
    return [flag for flag, option in table.options.items() if option in set_here]


def _task(worker: Worker) -> Iterator[Diagnostic]:
    """A task of a tool whose name is misspelt."""
    for word, place in islice(worker.tasks, 1):
        modes = worker_flags(worker.program).modes
        if word not in modes and (near := closest(word, modes)):
            what = f"{word} is no task of {worker.program}"
            yield located(place, worker.path, what, f"did you mean {near}?", UNKNOWN_VALUE)


def _other_side(worker: Worker) -> Iterator[Diagnostic]:
    """A side that is given twice, and differently."""
    given = worker.flag((MODE_FLAG,))
    side = given[0].strip("\"'") if given else ""
    modes = worker_flags(worker.program).modes
    if given and side not in modes and not serving.is_open(side):
        what, fix = f"{MODE_FLAG} {side} is no side of a worker", nearest(side, modes)
        yield located(given[1], worker.path, what, fix, rules.DISAGG_MODE)
    if given and {side, worker.role} == {"prefill", "decode"}:
        what = f"{MODE_FLAG} {side}, but the service is one of {worker.role} workers"
        fix = f"give {worker.role}, or correct the service"
        yield located(given[1], worker.path, what, fix, rules.DISAGG_MODE)


_SIDE_ALONE = re.compile(r"(?<![a-z])(?:prefill|decode|ctx|gen)(?![a-z])", re.IGNORECASE)


def other_side(worker: Worker) -> Iterator[Diagnostic]:
    """An option file that is by its name one of the other side; words that other things have too,
    as in `context_2k` and `text-generation`, tell none."""
    side = side_of(worker.file) if _SIDE_ALONE.search(worker.file) else None
    if (given := worker.file_flag) and {side, worker.role} == {"prefill", "decode"}:
        what = f"{given[0]} is that of {side} workers by its name, and this is a {worker.role} one"
        fix = f"name the file of the {worker.role} workers"
        yield located(given[1], worker.path, what, fix, rules.DISAGG_MODE, "warning")


def _missing_file(
    worker: Worker,
    files: Mapping[str, Mapping[str, Any]],
    read_files: Collection[str],
    handed: HandedFiles,
) -> Iterator[Diagnostic]:
    """A file that nothing gives, where one of almost the same name is given, or in its folder one
    of options that nothing reads. In a folder that is told later, no file that is read is meant."""
    given = worker.file_flag
    is_known = worker.given(files) is not None or any(map(serving.is_open, (worker.file, *files)))
    if not given or not worker.file or is_known or worker.file in handed.made:
        return
    folder = worker.file_path.rpartition("/")[0]
    left = [name for name in files if name not in read_files and "." in name]
    beside = [
        name
        for name in left
        if files[name] and (worker.config_map or handed.folders.get(name) == folder)
    ]
    is_later = serving.is_open(worker.file_path)
    near = closest(worker.file, left if is_later else files)
    near = near or (beside[0] if len(beside) == 1 else None)
    if near:
        what = f"{given[0]} is not among the files that are given here"
        fix = f"did you mean {near}?"
        yield located(given[1], worker.path, what, fix, rules.MISSING_OPTION_FILE)
