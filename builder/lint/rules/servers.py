"""Checks each server that a file starts: its flags, GPUs, role and option file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from ...diagnostics import Diagnostic, closest, is_misspelling, located, of_same_words
from ...documents import value_at
from ...facts.release import Release
from ...general_rules import UNKNOWN_VALUE
from ...rules import constraints, flags
from ...rules.context import RuleContext
from ..engine import FILE_FLAGS, TOOLS, WORKER, WORKERS, WorkerFlags, worker_flags
from ..model import Section, Server
from ..read.yaml_text import SHELL, TEMPLATE, value_of
from . import ROUTER_BLOCKS, UNKNOWN_FLAG
from .files import NOTHING_HANDED, HandedFiles, missing_file
from .gpus import FlagOptions, gpus_against_ranks, merge_options
from .model import at_model, context
from .options import section_diagnostics
from .sides import different_models, disagreements, other_side, wrong_mode

_BLOCKS = "--kv-block-size"


def server_diagnostics(
    servers: Sequence[Server],
    files: Mapping[str, Mapping[str, Any]],
    rule_context: RuleContext,
    in_job: bool = False,
    handed: HandedFiles = NOTHING_HANDED,
) -> Iterator[Diagnostic]:
    """Runs all checks on the servers of a file. `files` holds the options of each given file, by
    the last part of its name. `handed` lists the files that scripts create or use. The servers of a
    job share its GPUs, so with several servers in a job the GPU counts are not checked."""
    known = {row.file for row in servers} | handed.used
    alone: list[Section] = []
    for worker in servers:
        own = _own_options(worker) if worker.program else None
        if own and worker.program == WORKER and not (own.is_open or worker.file):
            alone.append(own.section(worker))
        if own and worker.program in TOOLS:
            yield from _task(worker)
        if own:
            yield from _unknown_flags(worker, rule_context.release)
            yield from wrong_mode(worker)
            yield from _options(own, own.section(worker), worker, files, rule_context)
            yield from _block_size(worker, own, files)
        yield from other_side(worker)
        yield from missing_file(worker, files, known, handed)
        if not (in_job and len(servers) > 1):
            yield from gpus_against_ranks(worker, files, own)
    yield from disagreements(alone, rule_context)
    yield from different_models(servers)


def _own_options(worker: Server) -> FlagOptions:
    """The options that the flags of a Dynamo worker set, each located at its flag."""
    table, own = worker_flags(worker.program), FlagOptions(places={"": worker.words[0][1]})
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
            merge_options(
                own.last if is_last else own.first, _nested(path, value), place, own.places
            )
        elif isinstance(given := value_of(text.strip("\"'")), Mapping):
            merge_options(own.last, given, place, own.places)
    return own


def _nested(path: str, value: Any) -> Mapping[str, Any]:
    for key in reversed(path.split(".")):
        value = {key: value}
    nested: Mapping[str, Any] = value
    return nested


def _options(
    own: FlagOptions,
    section: Section,
    worker: Server,
    files: Mapping[str, Mapping[str, Any]],
    rule_context: RuleContext,
) -> Iterator[Diagnostic]:
    """Checks the options from flags, alone and combined with those from the option file."""
    here = context(rule_context, worker)
    if not worker.file:
        for row in section_diagnostics(section, here):
            yield at_model(row, worker.model)
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
    """A copy of an options block that is marked as incomplete: only single values are checked."""
    return Section(section.options, section.document, within=section.within, is_open=True)


def _block_size(
    worker: Server, own: FlagOptions, files: Mapping[str, Mapping[str, Any]]
) -> Iterator[Diagnostic]:
    """Reports a router block size that differs from the engine's. The router then finds no matching
    prefixes."""
    given = worker.flag((_BLOCKS,))
    size = value_at(own.over(worker.given(files) or {}), "kv_cache_config.tokens_per_block")
    text = given[0].strip("\"'") if given else ""
    if given and text.isdecimal() and isinstance(size, int) and int(text) != size:
        what = f"{_BLOCKS} {text}, but the engine's tokens_per_block is {size}"
        fix = f"give {_BLOCKS} {size}: the router looks for blocks of the engine's size"
        yield located(given[1], worker.path, what, fix, ROUTER_BLOCKS, "warning")


def _unknown_flags(worker: Server, release: Release) -> Iterator[Diagnostic]:
    """Reports misspelt flags of a program and flags that other programs use for its options."""
    table = worker_flags(worker.program)
    if table.holds and next((word for word, _ in worker.tasks), "") not in table.holds:
        return
    known = (*table.options, *table.json, *table.others)
    for word, place in worker.words:
        name = word.partition("=")[0].replace("--no-", "--", 1)
        by_path = table.prefix is not None and name.startswith(table.prefix)
        if not name.startswith("--") or name in known or by_path:
            continue
        what = f"{name} is not a flag of {worker.program}"
        near = next((flag for flag in known if is_misspelling(name, flag)), None)
        if own := [flag for flag in _of_other_programs(name, table, release) if flag in known]:
            yield located(place, worker.path, what, f"did you mean {own[0]}?", UNKNOWN_FLAG)
        elif near := near or of_same_words(name, known):
            yield located(place, worker.path, what, f"did you mean {near}?", UNKNOWN_FLAG)


def _of_other_programs(name: str, table: WorkerFlags, release: Release) -> list[str]:
    """The program's own flags for the option that another program's flag sets."""
    if name in FILE_FLAGS:
        return list(FILE_FLAGS)
    server = flags.spellings(release).get(name)
    set_here = {flags.option_path(server, release)} if server else set()
    set_here |= {worker_flags(other).options.get(name) for other in WORKERS}
    return [flag for flag, option in table.options.items() if option in set_here]


def _task(worker: Server) -> Iterator[Diagnostic]:
    """Reports a tool's task whose name is misspelt."""
    for word, place in islice(worker.tasks, 1):
        modes = worker_flags(worker.program).modes
        if word not in modes and (near := closest(word, modes)):
            what = f"{word} is not a task of {worker.program}"
            yield located(place, worker.path, what, f"did you mean {near}?", UNKNOWN_VALUE)
