"""Checks options blocks of a file against one release, in their context."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import islice, zip_longest
from typing import Any

from ...diagnostics import NOWHERE, Diagnostic, closest, located, nearest, of_same_words
from ...documents import Variable, Yaml, value_at
from ...facts import hardware
from ...facts import release as releases
from ...facts.release import Release, ServerRole
from ...facts.release.version import order
from ...general_rules import UNKNOWN_KEY, Rule
from ...rules import constraints
from ...rules import flags as server_flags
from ...rules.context import RuleContext
from ...rules.options import SHAPES, WRONG_VALUES, wrong_type
from ...rules.remedies import age, elsewhere, of_other_engine, without_counterpart
from ...rules.validation import validate
from ..arguments.argparse import known_flags
from ..arguments.click import FlagOptions, at_location
from ..engine import Formats, formats
from ..model import CommandFlag, Named, OptionsBlock, Server, StatedWorkload, below
from ..read.file import Text
from . import UNKNOWN_FLAG
from .gpus import server_ranks_diagnostic
from .model import (
    MODEL_ON_GPU,
    at_model,
    context,
    for_model,
    named_gpu,
    named_model,
    parser_diagnostics,
)

TOO_MANY_FAULTS = Rule("too-many-faults", "There are more faults than are worth listing.")


def empty_document_diagnostics(source: Text) -> list[Diagnostic]:
    """Reports empty documents in an option file."""
    if source.second is None:
        return []
    what = "begins a second document, and one of them is empty"
    return [located(source.second, "", what, "remove ---: an engine reads one document")]


_NO_WORKLOAD = StatedWorkload()
# At most this many errors are listed for one options block.
MAX_DIAGNOSTICS = 200


def section_diagnostics(section: OptionsBlock, rule_context: RuleContext) -> Iterator[Diagnostic]:
    """Reports options that the release rejects, then rules that the other options violate.
    `rule_context` is the context of the file; settings of the options block override it."""
    found = validate(rule_context.release, section.options)
    rejected = list(islice(found, MAX_DIAGNOSTICS))
    for diagnostic in rejected:
        yield section.locate(_suggest(diagnostic, section, rule_context.release))
    if next(found, None):
        what = f"has more than {MAX_DIAGNOSTICS} faults"
        yield section.locate(Diagnostic("", what, "correct these first", TOO_MANY_FAULTS))
        return
    if section.is_open:
        return
    values = {row.where for row in rejected if row.rule in WRONG_VALUES}
    for diagnostic in constraints.violations(
        section.options, section_context(section, rule_context)
    ):
        if diagnostic.where not in values:  # report a wrong value once
            yield from _model_diagnostics(section.locate(diagnostic), section)


def _model_diagnostics(diagnostic: Diagnostic, section: OptionsBlock) -> Iterator[Diagnostic]:
    """Locates an error at the model, which may be outside the options, and also at the GPU."""
    model = named_model(section.options, section.document, section.path)
    yield (found := at_model(diagnostic, model))
    gpu = named_gpu(section.document)
    if model and gpu and diagnostic.rule == MODEL_ON_GPU:
        yield replace(found, location=gpu.location, path=gpu.path)


def section_context(section: OptionsBlock, rule_context: RuleContext) -> RuleContext:
    """The rule context of one options block of a file."""
    context = context_with(rule_context, section.role, section.workload)
    model = named_model(section.options, section.document, section.path)
    return for_model(context, model)


def context_with(
    rule_context: RuleContext, role: ServerRole | None, load: StatedWorkload
) -> RuleContext:
    """Adds the role and workload that a file or bundle sets to a rule context."""
    if load == _NO_WORKLOAD and role in (None, rule_context.role):
        return rule_context
    gpu = hardware.load(load.gpu) if load.gpu and load.gpu in hardware.known() else None
    return replace(
        rule_context,
        role=role or rule_context.role,
        gpu=gpu or rule_context.gpu,
        isl=load.isl or rule_context.isl,
        osl=load.osl or rule_context.osl,
        concurrency=load.concurrency or rule_context.concurrency,
    )


def _suggest(diagnostic: Diagnostic, section: OptionsBlock, release: Release) -> Diagnostic:
    """For an unknown top-level key, also suggests keys of the surrounding format."""
    if diagnostic.rule != UNKNOWN_KEY or "." in diagnostic.where:
        return diagnostic
    if closest(diagnostic.where, [*section.beside, *release.top_level]) in section.beside:
        return replace(diagnostic, fix=nearest(diagnostic.where, section.beside))
    if closest(diagnostic.where, release.top_level):
        return diagnostic
    near = of_same_words(diagnostic.where, section.beside)
    return replace(diagnostic, fix=f"did you mean {near}?") if near else diagnostic


_SIZE = "tensor_parallel_size"


def flag_and_file_diagnostics(
    command: OptionsBlock,
    options: Mapping[str, Any],
    rule_context: RuleContext,
    section: OptionsBlock | None = None,
) -> Iterator[Diagnostic]:
    """Checks flags and option file together: conflicts, and rules that only both together violate.
    Errors are located at the flag, or at the option in the file if its `section` is known."""
    wrong = {row.path for row in command.diagnostics}
    typed = {row.spelling: row for row in command.flags}
    flags: dict[str, Any] = {}
    for name, row in typed.items():
        is_certain = row.value is None or row.value.certain
        if name not in wrong and is_certain and not row.word.optional:
            flags[name] = row.value.text if row.value else True
    plain = {key: value for key, value in options.items() if not isinstance(value, Variable)}
    for diagnostic in server_flags.flag_traps(flags, plain, rule_context.release):
        yield _at(typed, diagnostic)
    together = server_flags.with_flags(flags, options, rule_context.release)
    if _is_whole(command, options):
        together = {_SIZE: 1, **together}  # the engine's default
    broken = list(constraints.violations(together, rule_context))
    if not broken:
        return
    # If the section is known, its own check reports errors of the model.
    of_file = {row.where for row in constraints.violations(options, rule_context)}
    alone = of_file if section else of_file - {"model"}
    setters = {
        server_flags.option_path(typed[name].flag, rule_context.release): name for name in flags
    }
    for diagnostic in broken:
        if diagnostic.where in alone:
            continue
        if diagnostic.where == "model" and command.arguments:
            yield at_location(diagnostic, command.arguments[0].location)
        elif diagnostic.where in setters:
            yield _at(typed, replace(diagnostic, where=setters[diagnostic.where]))
        elif section and value_at(section.options, diagnostic.where) is not None:
            yield section.locate(diagnostic)
        elif diagnostic.where in ("model", _SIZE) and command.arguments:
            yield at_location(diagnostic, command.arguments[0].location)


def _is_whole(command: OptionsBlock, options: Mapping[str, Any]) -> bool:
    """Whether a command and its file fully define how many GPUs share the model. A missing size
    counts as defined: the engine then uses its default."""
    words = (*command.arguments, *(row.word for row in command.flags))
    has_options = bool(options) or command.option_file is None
    flags = {row.flag.name for row in command.flags}
    return has_options and all(row.certain for row in words) and not flags & {"tp_size", _SIZE}


def _at(typed: Mapping[str, CommandFlag], diagnostic: Diagnostic) -> Diagnostic:
    is_typed = diagnostic.where in typed
    return at_location(diagnostic, typed[diagnostic.where].word.location if is_typed else NOWHERE)


_NAME = re.compile(r"(?<![\w.<-])[a-z][a-z0-9]*(?:_[a-z0-9]+)+(?:\.\w+)*")


def block_diagnostics(block: OptionsBlock, rule_context: RuleContext) -> Iterator[Diagnostic]:
    """Reports wrong options and option names that the release does not have."""
    model, release = model_of(block), rule_context.release
    of_model = for_model(rule_context, model)
    values = _value_diagnostics(block, of_model)
    found = [
        *block.diagnostics,
        *_unknown_name_diagnostics(block, release),
        *(_as_written(row, block, release) for row in values),
        *parser_diagnostics(of_model, block.values, model),
    ]
    for row in found:
        if isinstance(row, Diagnostic):  # a parser that cannot be checked is not a fault
            path = row.path if block.as_flags else below(block.shown, row.path)
            yield replace(row, path=path, within=block.within)
    record = _record(release)
    is_worker = block.command is not None and block.command.name in record.workers
    may_differ = block.is_open or (block.is_extended and block.as_flags and not is_worker)
    may_differ |= any(_meant(name, release) in record.ranks for name in block.unknown)
    if of_gpus := server_ranks_diagnostic(block.options, block.gpus, release, may_differ):
        yield of_gpus


@lru_cache(maxsize=64)
def _option_names(release: Release) -> frozenset[str]:
    """The options that the flags of a release set."""
    return frozenset(row.name for row in known_flags(release).values())


def _record(release: Release) -> Formats:
    return formats(release.engine.name)


def model_of(block: OptionsBlock) -> Named | None:
    """The model that a command or a file names, or `None`."""
    word = block.model
    if word is not None and word.certain:
        return Named(word.text, word.location)
    name = block.options.get("model")
    is_plain = isinstance(name, str) and not isinstance(name, Variable)
    return Named(str(name), block.places["model"]) if is_plain else None


def _value_diagnostics(block: OptionsBlock, rule_context: RuleContext) -> Iterator[Diagnostic]:
    """Reports wrong values, located at the values."""
    release, options = rule_context.release, block.options
    record = _record(release)
    checked = {key: value for key, value in options.items() if key not in record.converted}
    of_engine = {key: value for key, value in checked.items() if key in release.top_level}
    of_server = {key: value for key, value in checked.items() if key in release.server_options}
    start = next(iter(block.places.values()), NOWHERE)
    section = OptionsBlock(of_engine, Yaml(of_engine, {"": start, **block.places}))
    found = []
    for row in (
        *validate(release, of_engine),
        *validate(_server(release), of_server),
        *_flag_type_diagnostics(checked, release),
    ):
        if value_at(options, record.brought_by.get(row.where, "-")) is None:
            found.append(row)
    yield from map(section.locate, found)
    if block.is_open:
        return
    wrong = {row.where for row in found if row.rule in WRONG_VALUES}
    unknown = [row.where for row in found if row.rule == UNKNOWN_KEY]
    meant_by_others = _meant_options(block, release)
    has_file = release.engine.option_file_flag in options
    is_whole = block.is_whole or (block.as_flags and not has_file)
    for row in constraints.violations(options, rule_context):
        meant = any(where.startswith(f"{row.where}.") for where in unknown)
        if row.where in wrong or meant:  # report each mistake once
            continue
        if meant_by_others & _options_of(row, release):
            continue
        # Of the model itself, rules only fail if it is known.
        if not is_whole and _options_of(row, release) - {"model"} - options.keys():
            message = f"{row.message}; other parts of the options may change this"
            row = replace(row, message=message, severity="warning")
        yield section.locate(row)


def _options_of(row: Diagnostic, release: Release) -> set[str]:
    """The options that a violated rule depends on."""
    found: set[str] = set()
    for rule in constraints.of_release(release):
        if (rule.id, rule.severity) == (row.rule, row.severity):
            found.update(path.partition(".")[0] for path in rule.options())
    return found


def _meant_options(block: OptionsBlock, release: Release) -> set[str]:
    """The options that unknown names misspell, or that replaced them."""
    found: set[str] = set()
    for name in block.unknown:
        remedy = _record(release).former.get(_option(name), "")
        found |= set(re.findall(r"\w+", remedy)) & release.top_level.keys()
        found |= {_meant(name, release) or ""} - {""}
    return found


def _flag_type_diagnostics(options: Mapping[str, Any], release: Release) -> Iterator[Diagnostic]:
    """Reports wrong types in flags of the command that neither engine nor server defines."""
    others = {row.name: row.option for row in known_flags(release).values()}
    for name, value in options.items():
        if name in release.top_level or name in release.server_options:
            continue
        row = others[name]
        is_known = "type" in row and value is not None and not isinstance(value, Variable)
        if is_known and not SHAPES[row["type"]](value):
            yield wrong_type(name, value, row)


@lru_cache(maxsize=16)
def _server(release: Release) -> Release:
    """A release table whose root is the options of the server instead of the engine."""
    return replace(release, table={**release.table, "root": release.table["server_root"]})


def _unknown_name_diagnostics(block: OptionsBlock, release: Release) -> Iterator[Diagnostic]:
    for name, (_, place) in block.unknown.items():
        near = _meant(name, release)
        if block.is_extended and not (near or _having(_option(name), release)):
            continue
        remedy = _remedy(name, release, near)
        what = f"is not {'a flag' if block.as_flags else 'an option'} of {release.engine.title} "
        what += release.name
        unsure = block.is_extended or (_is_newer(release) and not remedy)
        if unsure and not block.is_extended:
            what += "; newer releases are unknown"
        rule = UNKNOWN_FLAG if block.as_flags else UNKNOWN_KEY
        listing = remedy or nearest(_option(name), _option_names(release))
        fix = _flags_of(listing, release) if block.as_flags else _keys_of(listing, name)
        yield located(place, name, what, fix, rule, "warning" if unsure else "error")


def is_meant(flag: str, release: Release) -> bool:
    """Whether a flag belongs to the engine in any release, or misspells one of its flags."""
    option = _option(flag)
    if flag in known_flags(release) or option in _record(release).former:
        return True
    is_option = option.removeprefix("no_") in _option_names(release)
    return bool(is_option or _having(option, release) or _meant(flag, release))


def is_of_another(flag: str, release: Release) -> bool:
    """Whether only another engine has this flag or key."""
    option = _option(flag.partition("=")[0])
    if option in _option_names(release):
        return False
    return bool(of_other_engine(release, option) or _record(release).foreign.get(option))


def _keys_of(text: str, name: str) -> str:
    """Spells the suggested key with dashes if the file's key has dashes."""
    if "-" not in name:
        return text
    return re.sub(r"(?<=did you mean )\w+", lambda found: found[0].replace("_", "-"), text)


def _option(name: str) -> str:
    """The option name for a flag or key."""
    return name.lstrip("-").partition(".")[0].replace("-", "_")


def _meant(name: str, release: Release) -> str | None:
    """The option that an unknown name misspells."""
    names = _option_names(release)
    option = _option(name)
    if turned := _turned(option, names):
        return turned
    if found := closest(option, names):
        return found
    off = option.removeprefix("no_")
    if off != option:
        found = closest(off, names) or _alike(off, names)
        return found and f"no_{found}"
    return _alike(option, names)


def _turned(option: str, names: Collection[str]) -> str | None:
    """The opposite of an existing option: `no_enable_x` for `disable_x`. `None` if the name does
    not turn an existing option on or off."""
    word, _, rest = option.partition("_")
    other = {"disable": "enable", "enable": "disable", "no": "enable"}.get(word)
    return f"no_{other}_{rest}" if other and f"{other}_{rest}" in names else None


def _alike(option: str, names: Collection[str]) -> str | None:
    """The only option with the same words, written out or abbreviated."""
    words, found = option.split("_"), []
    for name in names:
        pairs = list(zip_longest(words, name.split("_"), fillvalue=""))
        if all(one == two or (len(two) > 2 and one[:3] == two[:3]) for one, two in pairs):
            found.append(name)
    return found[0] if len(found) == 1 else None


def _having(option: str, release: Release) -> list[Release]:
    """The other releases that have an option."""
    flag = f"--{option.replace('_', '-')}"
    others = releases.of_engine(release.engine)
    return [other for other in others if other.name != release.name and flag in known_flags(other)]


def _remedy(name: str, release: Release, near: str | None) -> str:
    option = _option(name)
    if option in release.top_level:
        return f"write {option}"
    if option in _option_names(release):
        return "this is an option of the server, not of the engine"
    others = _having(option, release)
    record = _record(release)
    former = record.former.get(option, "")
    history = "; ".join(filter(None, (age(release, others) if others else "", former)))
    short = next((text for text in known_flags(release) if text == f"-{option}"), "")
    gone = None if near else closest(option, _gone(release))
    return (
        history
        or record.foreign.get(option, "")
        or of_other_engine(release, name.lstrip("-").replace("-", "_"))
        or elsewhere(release, option)
        or (f"did you mean {short}?" if short else "")
        or (f"did you mean {near}?" if near else "")
        or without_counterpart(release, option)
        or (f"this looks like {gone}: {_remedy(gone, release, None)}" if gone else "")
    )


@lru_cache(maxsize=16)
def _gone(release: Release) -> frozenset[str]:
    """Options that other releases have, or that releases before the first table had."""
    names = {name for name in _record(release).former if "." not in name}
    for other in releases.of_engine(release.engine):
        names |= _option_names(other)
    return frozenset(names - _option_names(release))


def _is_newer(release: Release) -> bool:
    """Whether a table is used in place of a release that is newer than all tables."""
    newest = releases.known(release.engine)[-1]
    here = order(release.stands_for) if release.stands_for else None
    return release.name == newest and here is not None and here > (order(newest) or ())


def _as_written(row: Diagnostic, block: OptionsBlock, release: Release) -> Diagnostic:
    """Changes a diagnostic to use the names from the file: flags for a command line."""
    top, dot, rest = row.path.partition(".")
    written = block.written.get(top, top)
    fix = row.fix
    if row.rule == UNKNOWN_KEY and dot:  # a key inside an option; its fix names keys too
        fix = _record(release).former.get(row.path, fix)
    elif block.as_flags:
        fix = _flags_of(fix, release)
    return replace(row, path=f"{written}{dot}{rest}", fix=fix)


def _flags_of(text: str, release: Release) -> str:
    """Spells the options in a sentence as flags."""
    flags = {row.name: row.spelling for row in known_flags(release).values()}
    flags |= {f"no_{name}": f"--no-{text.lstrip('-')}" for name, text in flags.items()}

    def flag(match: re.Match[str]) -> str:
        top, dot, rest = match[0].partition(".")
        return f"{flags[top]}{dot}{rest}" if top in flags else match[0]

    meant = re.sub(
        r"(did you mean |; \w+ has )([a-z]+)\b",
        lambda found: found[1] + flags.get(found[2], found[2]),
        text,
    )
    return _NAME.sub(flag, meant)


def flag_option_diagnostics(
    own: FlagOptions,
    section: OptionsBlock,
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


def _opened(section: OptionsBlock) -> OptionsBlock:
    """A copy of an options block that is marked as incomplete: only single values are checked."""
    return OptionsBlock(section.options, section.document, within=section.within, is_open=True)
