"""Checks prefill against decode workers of a service, and clients against its servers."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from ...diagnostics import Diagnostic, Location, located, nearest
from ...documents import value_at
from ...errors import BadInput
from ...facts.release import Release
from ...files import read_text
from ...general_rules import Rule
from ...rules import constraints
from ...rules.context import RuleContext
from ...rules.validation import agreed
from ..arguments.click import FlagOptions
from ..engine import worker_flags
from ..model import SIDE, Checked, OptionsBlock, Server, is_open, side_of
from ..read.file import YAML_SUFFIXES, SourceFile, Text
from ..read.option_file import ENGINE, read_options
from ..read.requests import FIELD, structured_output
from .options import section_context

GUIDE_IGNORED = Rule(
    "guide-ignored",
    "Requests ask for structured output, which the server does not provide as configured.",
    "warning",
)
DISAGG_MODE = Rule("disagg-mode", "A prefill or decode worker has the settings of the other side.")
DISAGG_MODEL = Rule(
    "disagg-model", "The two sides of a disaggregated service have different models."
)
ROUTER_BLOCKS = Rule(
    "router-blocks",
    "The router looks for KV cache blocks of another size than the engine has.",
    "warning",
)


def disagreement_diagnostics(
    sections: Sequence[OptionsBlock], rule_context: RuleContext, at_both: bool = True
) -> Iterator[Diagnostic]:
    """Reports options that must be equal on the prefill and decode workers of one file. Located at
    the decode worker, or with `at_both` at both workers, as either may be wrong."""
    workers = {role: [s for s in sections if s.role == role] for role in ("prefill", "decode")}
    for prefill, decode in product(workers["prefill"][:1], workers["decode"]):
        here = section_context(decode, rule_context)
        for diagnostic in constraints.disagreements(prefill.options, decode.options, here):
            found = decode.locate(diagnostic)
            yield found
            if not at_both:
                continue
            what = f"differs from the decode worker in line {found.location.line}"
            yield prefill.locate(replace(diagnostic, message=f"{what}: {found.message}"))


_SIDES = ("prefill", "decode")
_TRANSCEIVER = "cache_transceiver_config"


@dataclass(frozen=True, slots=True)
class Side:
    """The options of one worker, with its rule context and the service that it belongs to. `others`
    are more release tables to check, if the release itself has no table."""

    path: Path
    section: OptionsBlock
    rule_context: RuleContext
    service: object
    is_certain: bool
    others: tuple[Release, ...] = ()


def may_be_side(target: SourceFile) -> bool:
    """Whether a file belongs to one side, by its bundle or by its name."""
    if target.diagnostic or target.path.suffix not in YAML_SUFFIXES:
        return False
    if target.context:
        return target.context.role in _SIDES and target.context.checkpoint is not None
    return side_of(target.path.stem) is not None


def side(target: SourceFile, source: Text, rule_context: RuleContext) -> Side | None:
    """The worker that an option file configures; `None` for other files."""
    content = read_options(source.documents, rule_context.release)
    if content is None or content.kind != ENGINE or content.sections[0].is_open:
        return None
    context, stem = target.context, target.path.stem.lower()
    role = side_of(stem) or "decode"
    service: object = (target.path.parent, SIDE.sub("", stem))
    is_certain = bool(context and context.checkpoint)
    if context and context.checkpoint and context.role:
        role, service = context.role, context.checkpoint.name
    section = replace(content.sections[0], role=role)
    return Side(target.path, section, replace(rule_context, role=role), service, is_certain)


def pair_diagnostics(sides: Sequence[Side]) -> Iterator[Diagnostic]:
    """Reports options that must be equal on each pair of workers of one service. Located in the
    decode worker's file."""
    silent: list[Side] = []
    prefill, decode = ([row for row in sides if row.section.role == each] for each in _SIDES)
    for one, two in product(prefill, decode):
        if one.service != two.service or not (one.section.options and two.section.options):
            continue
        for here, there in ((one, two), (two, one)):
            if here not in silent and _TRANSCEIVER in there.section.options:
                silent.append(here)
                yield from _transceiver_diagnostics(here)
        contexts = [replace(two.rule_context, release=table) for table in two.others]
        found = {
            context.release.name: list(
                disagreement_diagnostics([one.section, two.section], context, at_both=False)
            )
            for context in (two.rule_context, *contexts)
        }
        for diagnostic in agreed(found):
            what = f"{diagnostic.message} (in {one.path})"
            severity = diagnostic.severity if two.is_certain else "warning"
            found_there = replace(diagnostic, message=what, severity=severity)
            yield found_there.in_file(str(two.path))


def _transceiver_diagnostics(side: Side) -> Iterator[Diagnostic]:
    """Reports a worker without a KV cache transceiver if its partner has one."""
    if _TRANSCEIVER in side.section.options:
        return
    context = section_context(side.section, side.rule_context)
    for row in constraints.violations(side.section.options, context):
        if row.where.startswith(_TRANSCEIVER):
            yield side.section.locate(row).in_file(str(side.path))


def model_difference_diagnostics(servers: Sequence[Server]) -> Iterator[Diagnostic]:
    """Reports models that differ between the two sides of one service."""
    prefill = [row.model for row in servers if row.role == "prefill" and row.model]
    for worker in servers:
        model = worker.model if worker.role == "decode" else None
        if model and prefill and model.name not in {row.name for row in prefill}:
            what = f"{model.name}, but the prefill worker has {prefill[0].name}"
            fix = "serve the same checkpoint on both"
            yield located(model.location, model.path, what, fix, DISAGG_MODEL)


def mode_diagnostics(worker: Server) -> Iterator[Diagnostic]:
    """Reports an unknown mode, or one that contradicts the role of the service."""
    flag = worker.formats.mode_flag
    mode = worker.flag((flag,))
    side = mode[0].strip("\"'") if mode else ""
    modes = worker_flags(worker.program).modes
    if mode and side not in modes and not is_open(side):
        what, fix = f"{flag} {side} is not a role of a worker", nearest(side, modes)
        yield located(mode[1], worker.path, what, fix, DISAGG_MODE)
    if mode and {side, worker.role} == {"prefill", "decode"}:
        what = f"{flag} {side}, but the service is one of {worker.role} workers"
        fix = f"give {worker.role}, or correct the service"
        yield located(mode[1], worker.path, what, fix, DISAGG_MODE)


_SIDE_ALONE = re.compile(r"(?<![a-z])(?:prefill|decode|ctx|gen)(?![a-z])", re.IGNORECASE)


def file_side_diagnostics(worker: Server) -> Iterator[Diagnostic]:
    """Reports an option file whose name belongs to the other side. Ambiguous words, as in
    `context_2k` and `text-generation`, are ignored."""
    side = side_of(worker.file) if _SIDE_ALONE.search(worker.file) else None
    if (file := worker.file_flag) and {side, worker.role} == {"prefill", "decode"}:
        what = f"{file[0]} is for {side} workers by its name, but this is a {worker.role} worker"
        fix = f"name the file of the {worker.role} workers"
        yield located(file[1], worker.path, what, fix, DISAGG_MODE, "warning")


OPTION = "guided_decoding_backend"


def guide_diagnostic(request: Location | None, server: str) -> Diagnostic | None:
    """Reports a request for structured output that a server does not provide. `server` describes
    the server in the message."""
    if request is None:
        return None
    what = f"asks for structured output, and {server} no {OPTION}: the answer may not follow it"
    fix = f"add {OPTION}: xgrammar to the server's options"
    return located(request, FIELD, what, fix, GUIDE_IGNORED)


def client_diagnostics(
    targets: Sequence[SourceFile], files: Collection[Checked]
) -> Iterator[Diagnostic]:
    """Reports clients that request structured output if no server in their folder has a backend.
    When a whole folder is checked, its Python programs count as clients too."""
    of_servers = {row.file for row in files if row.judged.sections or row.judged.commands}
    servers: dict[Path, list[Path]] = {}
    clients: dict[Path, set[Path]] = {}
    for target in targets:
        if target.context or target.diagnostic:
            continue
        folder, found = target.path.parent, clients.setdefault(target.path.parent, set())
        if str(target.path) not in of_servers:
            found.add(target.path)
            continue
        servers.setdefault(folder, []).append(target.path)
        if not target.given:
            found.update(folder.glob("*.py"))
    for folder, paths in servers.items():
        if any(OPTION in (_text(path) or OPTION) for path in paths):
            continue
        for path in sorted(clients[folder]):
            request = structured_output(_text(path))
            if found_here := guide_diagnostic(request, "the servers next to it have"):
                yield found_here.in_file(str(path))


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except BadInput:
        return ""  # reported when the file itself is checked


_BLOCKS = "--kv-block-size"


def block_size_diagnostics(
    worker: Server, own: FlagOptions, files: Mapping[str, Mapping[str, Any]]
) -> Iterator[Diagnostic]:
    """Reports a router block size that differs from the engine's. The router then finds no matching
    prefixes."""
    flag = worker.flag((_BLOCKS,))
    size = value_at(own.over(worker.given(files) or {}), "kv_cache_config.tokens_per_block")
    text = flag[0].strip("\"'") if flag else ""
    if flag and text.isdecimal() and isinstance(size, int) and int(text) != size:
        what = f"{_BLOCKS} {text}, but the engine's tokens_per_block is {size}"
        fix = f"give {_BLOCKS} {size}: the router looks for blocks of the engine's size"
        yield located(flag[1], worker.path, what, fix, ROUTER_BLOCKS)
