"""Checks the server commands of a script, and the option files it writes, against a release."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..diagnostics import Diagnostic, either, located
from ..documents import value_at
from ..rules.context import RuleContext
from .arguments.click import parse_command
from .engine import formats, holder, takes_clicks
from .links import of_file, on_disk
from .model import (
    ITSELF,
    Content,
    Judged,
    OptionsBlock,
    Server,
    Verdict,
    below,
    of_named_side,
    role_of,
)
from .read.commands import in_program, in_script
from .read.file import DOCKERFILE, IMAGES, SCRIPT, Text, is_job
from .read.launchers import AUTODEPLOY_NAME
from .read.option_file import AUTODEPLOY_RULE, DISAGGREGATED, ENGINE, read_option_file, read_options
from .read.requests import structured_output
from .read.shell import Script
from .read.shell_files import WrittenFile, unread_words, unread_writes, written_files
from .read.variables import read_variables
from .read.yaml_text import variable_paths
from .rules.files import files_of_scripts
from .rules.model import (
    at_model,
    context,
    find_model,
    named_model,
    parser_diagnostics,
    unknown_model_diagnostic,
    unknown_model_diagnostics,
)
from .rules.names import program_diagnostics, request_diagnostics, script_diagnostics
from .rules.options import block_diagnostics, flag_and_file_diagnostics, section_diagnostics
from .rules.ports import PORT_UNREACHED
from .rules.references import server_diagnostics
from .rules.sides import OPTION, disagreement_diagnostics, guide_diagnostic
from .rules.variables import unread_variable_diagnostics, variable_diagnostics

JOB = "Slurm job script"


def check_script_file(
    source: Text, rule_context: RuleContext, named: int, diagnostics: Sequence[Diagnostic]
) -> Verdict:
    """Checks a script or a Dockerfile with the commands of the release's engine."""
    engine, found = rule_context.release.engine, list[Diagnostic]()
    servers = in_script(source.script, engine.name)
    if engine.default:
        found += program_diagnostics(source.script.statements)
    ran, rows = check_script(source.script, servers, source.path, {}, rule_context)
    is_misspelt = bool(found)
    found += diagnostics
    if ran.judged or (named and source.form == DOCKERFILE):
        found += _around_script(source, servers, rule_context, written_options(rows))
    found += unlifted(ran.diagnostics, source.text, rule_context)
    judged = ran.judged + Judged(images=named)
    if engine.default and (is_job(source.text) or (servers and "srun" in source.text)):
        from .rules import jobs

        job, folder = source.job, source.path.parent
        if is_job(source.text):
            found += jobs.line_end_diagnostics(source.path)
            found += jobs.job_diagnostics(job, folder, rule_context.block)
            return Verdict(JOB, found, judged + ITSELF)
        found += jobs.step_rank_diagnostics(job, folder)
    kind = source.form if ran.judged or is_misspelt else IMAGES if named else None
    return Verdict(kind, found, judged)


def _around_script(
    source: Text,
    servers: Sequence[Server],
    rule_context: RuleContext,
    written: Mapping[str, Mapping[str, Any]],
) -> Iterator[Diagnostic]:
    """Checks what surrounds the commands of a script: names, models and GPU counts. `written` are
    the options of the files that it writes, by the last part of their names."""
    yield from variable_diagnostics(read_variables(source.text))
    yield from unread_variable_diagnostics(read_variables(source.text), rule_context.release)
    if not rule_context.checkpoint:
        yield from unknown_model_diagnostics(servers)
    options = {**on_disk(servers, source.path.parent), **written}
    in_job, handed = is_job(source.text), files_of_scripts([source.script])
    yield from server_diagnostics(servers, options, rule_context, in_job, handed)


MOST_COMMANDS = 500  # limit per script: each command is checked with every rule


def written_options(rows: Iterable[tuple[str, Content]]) -> dict[str, Mapping[str, Any]]:
    """Returns the options of each file that a script writes, by base name."""
    options: dict[str, Mapping[str, Any]] = {}
    for name, content in rows:
        base = name.rpartition("/")[2]
        options.setdefault(base, {})
        options[base] = content.sections[-1].options if content.sections else options[base]
    return options


def written_contents(
    found: Script, rule_context: RuleContext, commands: Sequence[OptionsBlock] = ()
) -> list[tuple[str, Content]]:
    """Reads the files that a script writes; the `commands` may name them as their option files."""
    rows = []
    for file in written_files(found):
        is_given = any(_names(row, file.name) for row in commands)
        rows.append((file.name, _written(file, rule_context, is_given, found.text)))
    return rows


def content_diagnostics(
    content: Content, rule_context: RuleContext, servers: Sequence[Server] = ()
) -> Iterator[Diagnostic]:
    """Yields the errors of a file's options, in the context of the servers that read them."""
    yield from content.diagnostics
    if not takes_clicks(rule_context):
        for section in content.sections:
            yield from block_diagnostics(section, rule_context)
        return
    for section in content.sections:
        server = of_file(servers, section)
        model = server.model if server else None
        for row in section_diagnostics(section, context(rule_context, server)):
            yield at_model(row, model)
    yield from disagreement_diagnostics(content.sections, rule_context)


def check_program(text: str, rule_context: RuleContext) -> Verdict:
    """Checks the options that a program passes to the API of an engine."""
    from .read import python  # not needed for most files

    if not takes_clicks(rule_context):
        return _of_other_engine(text, rule_context)
    sections = python.sections(text, rule_context.release)
    if not sections:
        return _of_writer(text, rule_context)
    found = list(variable_diagnostics(read_variables(text)))
    found += list(content_diagnostics(Content(python.KIND, sections), rule_context))
    if not any(OPTION in section.options or section.is_open for section in sections):
        asked = guide_diagnostic(structured_output(text), "the engine has")
        found += [asked] if asked else []
    if not rule_context.checkpoint:
        models = (named_model(row.options, row.document, "") for row in sections)
        found += [
            unknown_model_diagnostic(row) for row in models if row and not find_model(row.name)
        ]
    judged = Judged(len(sections), variables=tuple(variables(sections)))
    return Verdict(python.KIND, found, judged)


def _of_other_engine(text: str, rule_context: RuleContext) -> Verdict:
    from .read import engine_options, python

    release = rule_context.release
    blocks = list(engine_options.of_program(text, release))
    if not blocks:
        return Verdict(None, [])
    found = [*request_diagnostics(text, release), *variable_diagnostics(read_variables(text))]
    found += unread_variable_diagnostics(read_variables(text), release)
    for block in blocks:
        found += unlifted(block_diagnostics(block, rule_context), text, rule_context)
    return Verdict(python.KIND, found, judged_blocks(blocks))


def unlifted(
    found: Iterable[Diagnostic], text: str, rule_context: RuleContext
) -> Iterator[Diagnostic]:
    """Yields errors without those of rules that a variable in the text switches off."""
    lifted = formats(rule_context.release.engine.name).lifted
    return (row for row in found if lifted.get(row.rule, "\0") not in text)


def judged_blocks(blocks: Sequence[OptionsBlock]) -> Judged:
    commands = sum(block.as_flags for block in blocks)
    return Judged(len(blocks) - commands, commands, variables=tuple(variables(blocks)))


def _of_writer(text: str, rule_context: RuleContext) -> Verdict:
    """Checks the options that a program writes and the servers that it starts."""
    from .read import python

    if not python.may_write(text):
        return Verdict(None, [])
    servers = list(in_program(text, rule_context.release.engine.name))
    named = {Path(word.text).name for row in servers for word in row.words} - {""}
    rows = []
    for name, document, is_open, is_edit in python.dumped_documents(text):
        file = WrittenFile(name, [document], is_open)
        content = _written(file, rule_context, Path(name).name in named)
        if content.sections and not is_edit:
            rows.append((name, content))
    if not rows and not servers:
        return Verdict(None, [])
    ran, _ = check_script(Script(), servers, Path(), _known(rows), rule_context)
    diagnostics = [*ran.diagnostics, *variable_diagnostics(read_variables(text))]
    for _, content in rows:
        diagnostics += content_diagnostics(content, rule_context, servers)
    if not rule_context.checkpoint:
        diagnostics += unknown_model_diagnostics(servers)
    judged = ran.judged + Judged(sum(len(row.sections) for _, row in rows))
    return Verdict("Python program", diagnostics, judged)


def check_script(
    found: Script,
    servers: Sequence[Server],
    path: Path,
    given: Mapping[str, Content],
    rule_context: RuleContext,
) -> tuple[Verdict, list[tuple[str, Content]]]:
    """Checks the server commands of a script, the files that it writes and the `given` files.
    Returns the files that it writes too."""
    is_click = takes_clicks(rule_context)
    own = [row for row in servers if not holder(row.name)]
    commands: list[OptionsBlock] = []
    for row in own[:MOST_COMMANDS]:
        commands += _parsed(row, found, rule_context)
    rows = written_contents(found, rule_context, commands)
    sections = [section for _, content in rows for section in content.sections]
    if not (sections or servers):
        return Verdict(None, []), rows
    later = [text for row in own[:MOST_COMMANDS] for text in unread_words(row.words)]
    if len(own) > MOST_COMMANDS:
        later.append(f"{len(own) - MOST_COMMANDS} more server commands")
    judged = Judged(
        len(sections),
        max(len(own[:MOST_COMMANDS]), len(servers)),
        variables=tuple(variables(sections if is_click else [*commands, *sections])),
        unread=(*later, *unread_writes(found.statements, found.here)),
    )
    known, options_of = rule_context.release, _beside(commands, path) | _by_name(rows, given)
    whole = []
    for command in commands:
        if command.command and (command.command.name or not command.command.is_part):
            whole.append(command)
    result = list(script_diagnostics(found, whole, known, options_of))
    result += _urls(rows, commands, path)
    for name, content in rows:
        _settle_backend(content, [row for row in commands if _names(row, name)])
        result += content_diagnostics(content, rule_context, servers)
    files = {**given, **_known(rows)}
    result += _between(_known(rows), rule_context)
    for said in _of_commands(commands, files, path, rule_context):
        if isinstance(said, str):
            judged += Judged(unread=(said,))
        else:
            result.append(said)
    asked = None if later else guide_diagnostic(structured_output(found.text), "the server has")
    if asked and _lack_guide(commands, files, path):
        result.append(asked)
    return Verdict(SCRIPT, result, judged), rows


def _of_commands(
    commands: Sequence[OptionsBlock],
    files: Mapping[str, Content],
    path: Path,
    rule_context: RuleContext,
) -> Iterator[Diagnostic | str]:
    """Yields the errors of commands with the `files` that they read, and what is not checked."""
    for command in commands:
        if not takes_clicks(rule_context):
            yield from block_diagnostics(command, rule_context)
            continue
        yield from command.diagnostics
        if command.subcommand == "serve":
            server, section = command.command, _section(command, files)
            here, options = context(rule_context, server), _read_by(command, files, path)
            yield from flag_and_file_diagnostics(command, options, here, section)
            yield from parser_diagnostics(here, command.values, server.model if server else None)


def _lack_guide(commands: Sequence[OptionsBlock], files: Mapping[str, Content], path: Path) -> bool:
    """Returns whether all servers are known to have no backend for structured output."""
    serving = [row for row in commands if row.subcommand == "serve"]
    for command in serving:
        options = _read_by(command, files, path)
        if OPTION in options or (command.option_file and not options):
            return False
    return bool(serving)


def _parsed(server: Server, found: Script, rule_context: RuleContext) -> Iterator[OptionsBlock]:
    """Yields the options of a command, in the dialect of its engine."""
    if takes_clicks(rule_context):
        command = parse_command(server.words, rule_context.release)
        command.command, command.start = server, server.start
        yield command
        return
    from .read import engine_options  # not needed for the default engine

    yield from engine_options.of_server(server, found.text, rule_context.release)


def _known(rows: Sequence[tuple[str, Content]]) -> dict[str, Content]:
    """Returns files by name; a file that is written several times is left out."""
    times = Counter(name for name, _ in rows)
    return {name: content for name, content in rows if times[name] == 1}


def _by_name(
    rows: Sequence[tuple[str, Content]], given: Mapping[str, Content]
) -> dict[str, dict[str, Any]]:
    """Returns the options of each `given` file and of each file that a script writes, by base
    name."""
    found = {name: dict(row.sections[0].options) for name, row in given.items() if row.sections}
    for name, _ in rows:
        found[Path(name).name] = {}
    for name, content in rows:
        options = found.setdefault(Path(name).name, {})
        for section in content.sections:
            options.update(section.options)
    return found


def _urls(
    rows: Sequence[tuple[str, Content]], commands: Sequence[OptionsBlock], path: Path
) -> Iterator[Diagnostic]:
    """Yields addresses in files of a script where none of its servers listens. Only local addresses
    are checked, or all of them if there are as many as servers."""
    for _, content in rows:
        data = content.document.data if content.kind == DISAGGREGATED else None
        for where, port, ports in _unreached(data, commands):
            what, fix = f"no server of this script listens at {port}", f"give {either(ports)}"
            place = content.document.locate(where)
            yield located(place, where, what, fix, PORT_UNREACHED)
    yield from _urls_on_disk(rows, commands, path)


def _urls_on_disk(
    rows: Sequence[tuple[str, Content]], commands: Sequence[OptionsBlock], path: Path
) -> Iterator[Diagnostic]:
    """Checks the same addresses in a file that already exists next to the script."""
    written_here = {Path(name).name for name, _ in rows}
    for command in commands:
        given = next((row for row in command.flags if row.flag.name == "config_file"), None)
        file = given.value if given else None
        if file is None or not file.certain or Path(file.text).name in written_here:
            continue
        for where, port, ports in _unreached(read_option_file(file.text, path.parent), commands):
            what = f"{where} of {file.text} has port {port}, where no server of this script listens"
            fix = f"give {either(ports)} there"
            yield located(file.location, "", what, fix, PORT_UNREACHED)


def _unreached(data: Any, commands: Sequence[OptionsBlock]) -> Iterator[tuple[str, str, list[str]]]:
    """Yields unreachable addresses of a disaggregated server's file: path, port and known ports."""
    ports = [row.value("port") for row in commands if row.subcommand == "serve"]
    if not ports or not all(port.isdigit() for port in ports):
        return
    sides = {
        side: urls
        for side in ("context_servers", "generation_servers")
        if isinstance(data, Mapping) and isinstance(urls := value_at(data, f"{side}.urls"), list)
    }
    are_all = sum(map(len, sides.values())) == len(ports)
    for side, urls in sides.items():
        for index, url in enumerate(urls):
            host, _, port = str(url).rpartition(":")
            is_here = are_all or host in ("localhost", "127.0.0.1")
            if is_here and port.isdigit() and port not in ports:
                yield f"{side}.urls.{index}", port, ports


def _between(files: Mapping[str, Content], rule_context: RuleContext) -> Iterator[Diagnostic]:
    """Compares the files for the two sides of a service, if a script writes both."""
    sections = [
        replace(content.sections[0], role=role_of(name.rpartition("/")[2]))
        for name, content in files.items()
        if content.kind == ENGINE and len(content.sections) == 1
        if not content.sections[0].is_open
    ]
    return disagreement_diagnostics(sections, rule_context)


def _settle_backend(content: Content, commands: Sequence[OptionsBlock]) -> None:
    """Settles from the commands whether options of one backend go to that backend."""
    rest = [row for row in content.diagnostics if row.rule != AUTODEPLOY_RULE]
    hints = [row for row in content.diagnostics if row.rule == AUTODEPLOY_RULE]
    if commands and all(row.value("backend") == AUTODEPLOY_NAME for row in commands):
        hints = []
    elif commands:
        hints = [replace(hint, severity="error") for hint in hints]
    content.diagnostics = [*rest, *hints]


def _names(command: OptionsBlock, name: str) -> bool:
    """Returns whether a command reads its options from the file of this name."""
    word = command.option_file
    return bool(word and name and Path(name).name == Path(word.text).name)


def _written(
    file: WrittenFile, rule_context: RuleContext, is_given: bool = False, text: str = ""
) -> Content:
    """Reads a file that a script writes. If a server reads the file (`is_given`), it holds options
    regardless of its keys."""
    if not takes_clicks(rule_context):
        from .read import engine_options

        return Content("", list(engine_options.of_written(file, text, rule_context.release)))
    content = read_options(file.documents, rule_context.release)
    if content is None and is_given and isinstance(file.documents[0].data, Mapping):
        document = file.documents[0]
        content = Content(ENGINE, [OptionsBlock(document.data, document)])
    is_other = content is None and not file.name.endswith((".yaml", ".yml"))
    if is_other or file.name.endswith(".pbtxt"):
        return Content(ENGINE)
    content = content or Content(ENGINE)
    content.diagnostics += (row for each in file.documents for row in each.diagnostics)
    for each in file.alternatives if content.kind == ENGINE and content.sections else ():
        option = OptionsBlock(each.data, each, is_open=True)
        content.diagnostics += section_diagnostics(option, rule_context)
    content.sections = [
        replace(
            of_named_side(section, file.name),
            within=file.name,
            is_open=section.is_open or file.is_open,
        )
        for section in content.sections
    ]
    content.diagnostics = [replace(row, within=file.name) for row in content.diagnostics]
    return content


def variables(sections: Iterable[OptionsBlock]) -> Iterator[str]:
    """Yields the paths of options whose values are filled in later."""
    for section in sections:
        yield from (below(section.path, path) for path in variable_paths(section.options))


def _beside(commands: Sequence[OptionsBlock], path: Path) -> dict[str, dict[str, Any]]:
    """Returns the options of each file on disk that the servers of a script read, by base name."""
    files = {Path(row.option_file.text).name: row for row in commands if row.option_file}
    found = {name: dict(_on_disk(command, path)) for name, command in files.items()}
    return {name: options for name, options in found.items() if options}


def _section(command: OptionsBlock, files: Mapping[str, Content]) -> OptionsBlock | None:
    """Returns the options block that a command reads from a written or a given file."""
    for name, content in files.items():
        if _names(command, name) and content.sections:
            return content.sections[0]
    return None


def _read_by(command: OptionsBlock, files: Mapping[str, Content], path: Path) -> Mapping[str, Any]:
    """Returns the options that a command reads from one of the files or from the disk."""
    section = _section(command, files)
    return section.options if section else _on_disk(command, path)


def _on_disk(command: OptionsBlock, path: Path) -> Mapping[str, Any]:
    word = command.option_file
    return read_option_file(word.text, path.parent) if word else {}
