"""Checks the server commands of a script, and the option files it writes, against a release."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..diagnostics import Diagnostic, either, is_misspelling, located
from ..documents import Yaml, value_at
from ..facts.release import Release
from ..facts.release.record import by_name
from ..rules.context import RuleContext
from .arguments.click import parse_command
from .engine import holder
from .links import of_file, on_disk
from .model import (
    ITSELF,
    CommandLine,
    Content,
    Judged,
    OptionsBlock,
    Server,
    Verdict,
    below,
    of_named_side,
    role_of,
)
from .read.commands import in_program, in_script, servers_of
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
from .rules.names import program_diagnostics, script_diagnostics
from .rules.options import flag_and_file_diagnostics, section_diagnostics
from .rules.ports import PORT_UNREACHED
from .rules.references import server_diagnostics
from .rules.sides import OPTION, disagreement_diagnostics, guide_diagnostic
from .rules.variables import variable_diagnostics

JOB = "Slurm job script"


def check_script_file(
    source: Text, rule_context: RuleContext, named: int, diagnostics: Sequence[Diagnostic]
) -> Verdict:
    engine = rule_context.release.engine.name
    lines = in_script(source.script, engine)
    lines = [line for line in lines if not line.is_part]
    servers = servers_of(source.script, lines, engine)
    misspelt = list(program_diagnostics(source.script.statements))
    ran = check_script(source.script, lines, source.path, {}, rule_context, servers)
    if ran.judged or (named and source.form == DOCKERFILE):
        written = written_options(source.script, rule_context)
        diagnostics = [*diagnostics, *_around_script(source, servers, rule_context, written)]
    judged = ran.judged + Judged(images=named)
    found = [*misspelt, *diagnostics, *ran.diagnostics]
    if is_job(source.text) or (servers and "srun" in source.text):
        from .rules import jobs

        job, folder = source.job, source.path.parent
        if is_job(source.text):
            found += jobs.line_end_diagnostics(source.path)
            found += jobs.job_diagnostics(job, folder, rule_context.block)
            return Verdict(JOB, found, judged + ITSELF)
        found += jobs.step_rank_diagnostics(job, folder)
    kind = source.form if ran.judged or misspelt else IMAGES if named else None
    return Verdict(kind, found, judged)


def script_blocks(
    source: Text, blocks: Sequence[OptionsBlock], rule_context: RuleContext
) -> Iterator[Diagnostic]:
    """Checks the commands of a script whose options are `blocks`, and what surrounds them."""
    commands, lines, written = [], [], dict[str, Mapping[str, Any]]()
    for block in blocks:
        if block.command and not block.command.is_part:
            commands.append(block)
            lines.append(block.command)
        elif block.within and not block.as_flags:
            written[block.within.rpartition("/")[2]] = block.options
    yield from script_diagnostics(source.script, commands, rule_context.release, written)
    servers = servers_of(source.script, lines, rule_context.release.engine.name)
    yield from _around_script(source, servers, rule_context, written)


def _around_script(
    source: Text,
    servers: Sequence[Server],
    rule_context: RuleContext,
    written: Mapping[str, Mapping[str, Any]],
) -> Iterator[Diagnostic]:
    """Checks what surrounds the commands of a script: names, models and GPU counts. `written` are
    the options of the files that it writes, by the last part of their names."""
    yield from variable_diagnostics(read_variables(source.text))
    if not rule_context.checkpoint:
        yield from unknown_model_diagnostics(servers)
    options = {**on_disk(servers, source.path.parent), **written}
    in_job, handed = is_job(source.text), files_of_scripts([source.script])
    yield from server_diagnostics(servers, options, rule_context, in_job, handed)


MOST_COMMANDS = 500  # limit per script: each command is checked with every rule


def written_options(found: Script, rule_context: RuleContext) -> dict[str, Mapping[str, Any]]:
    """Returns the options of each file that a script writes, by base name."""
    options: dict[str, Mapping[str, Any]] = {}
    for file in written_files(found):
        sections = _written(file, rule_context).sections
        name = file.name.rpartition("/")[2]
        options.setdefault(name, {})
        options[name] = sections[-1].options if sections else options[name]
    return options


def content_diagnostics(
    content: Content, rule_context: RuleContext, servers: Sequence[Server] = ()
) -> Iterator[Diagnostic]:
    """Yields the errors of a file's options, in the context of the servers that read them."""
    yield from content.diagnostics
    for section in content.sections:
        server = of_file(servers, section)
        model = server.model if server else None
        for row in section_diagnostics(section, context(rule_context, server)):
            yield at_model(row, model)
    yield from disagreement_diagnostics(content.sections, rule_context)


def check_program(text: str, rule_context: RuleContext) -> Verdict:
    """Checks the options that a program passes to the LLM API."""
    from .read import python_api  # not needed for most files

    sections = python_api.sections(text, rule_context.release)
    if not sections:
        return _of_writer(text, rule_context)
    found = list(variable_diagnostics(read_variables(text)))
    found += list(content_diagnostics(Content(python_api.KIND, sections), rule_context))
    if not any(OPTION in section.options for section in sections):
        asked = guide_diagnostic(structured_output(text), "the engine has")
        found += [asked] if asked and not any(row.is_open for row in sections) else []
    if not rule_context.checkpoint:
        models = (named_model(row.options, row.document, "") for row in sections)
        found += [
            unknown_model_diagnostic(row) for row in models if row and not find_model(row.name)
        ]
    return Verdict(
        python_api.KIND, found, Judged(len(sections), variables=tuple(variables(sections)))
    )


def _of_writer(text: str, rule_context: RuleContext) -> Verdict:
    """Checks the options that a program writes and the servers that it starts."""
    from .read import python_files

    if not python_files.may_write(text):
        return Verdict(None, [])
    engine = rule_context.release.engine.name
    lines = list(in_program(text, engine))
    named = {Path(word.text).name for line in lines for word in line.words} - {""}
    files = [
        (row.name, _written(file, rule_context, Path(row.name).name in named))
        for row in python_files.dumped_documents(text)
        if not row.is_edit or _holds_options(row.data, rule_context)
        for file in (WrittenFile(row.name, [row.data], row.is_open, is_edit=row.is_edit),)
    ]
    rows = [(name, content) for name, content in files if content.sections]
    if not rows and not lines:
        return Verdict(None, [])
    servers = [Server(line.texts) for line in lines]
    ran = check_script(Script(), lines, Path(), _known(rows), rule_context, servers)
    diagnostics = [*ran.diagnostics, *variable_diagnostics(read_variables(text))]
    for _, content in rows:
        diagnostics += content_diagnostics(content, rule_context, servers)
    if not rule_context.checkpoint:
        diagnostics += unknown_model_diagnostics(servers)
    judged = ran.judged + Judged(sum(len(row.sections) for _, row in rows))
    return Verdict("Python program", diagnostics, judged)


def _holds_options(document: Yaml, rule_context: RuleContext) -> bool:
    """Returns whether a text without a known target file looks like options of the release."""
    keys = document.data if isinstance(document.data, Mapping) else ()
    return sum(key in rule_context.release.top_level for key in keys) > 1


def check_script(
    found: Script,
    lines: Sequence[CommandLine],
    path: Path,
    given: Mapping[str, Content],
    rule_context: RuleContext,
    servers: Sequence[Server],
) -> Verdict:
    """Checks the server commands of a script, the files that it writes and the `given` files."""
    lines = [line for line in lines if not holder(line.program)]
    beyond = len(lines) - MOST_COMMANDS
    commands: list[OptionsBlock] = []
    for line in lines[:MOST_COMMANDS]:
        command = parse_command(line.words, rule_context.release)
        command.command, command.start = line, line.start
        commands.append(command)
    files = written_files(found)
    rows = [
        (each.name, _written(each, rule_context, any(_names(row, each.name) for row in commands)))
        for each in files
    ]
    sections = [section for _, content in rows for section in content.sections]
    if not (sections or lines or servers):
        return Verdict(None, [])
    later = [row for line in lines[:MOST_COMMANDS] for row in unread_words(line.words)]
    later += [f"{beyond} more server commands"] if beyond > 0 else []
    judged = Judged(
        len(sections),
        max(len(commands), len(servers)),
        variables=tuple(variables(sections)),
        unread=(*later, *unread_writes(found.statements, found.here)),
    )
    known, options_of = rule_context.release, _beside(commands, path) | _by_name(rows, given)
    result = list(script_diagnostics(found, commands, known, options_of))
    result += _urls(rows, commands, path)
    for name, content in rows:
        _settle_backend(content, [row for row in commands if _names(row, name)])
        result += content_diagnostics(content, rule_context, servers)
    once = _known(rows)
    result += _between(once, rule_context)
    unguided = not later and any(row.subcommand == "serve" for row in commands)
    for index, command in enumerate(commands):
        result += command.diagnostics
        if command.subcommand == "serve":
            section = _section(command, {**given, **once})
            options = section.options if section else _on_disk(command, path)
            is_known = bool(options or not command.option_file)
            unguided = unguided and is_known and OPTION not in options
            server = servers[min(index, len(servers) - 1)] if servers else None
            here = context(rule_context, server)
            result += flag_and_file_diagnostics(command, options, here, section)
            for row in parser_diagnostics(here, command.values, server.model if server else None):
                if isinstance(row, str):
                    judged += Judged(unread=(row,))
                else:
                    result.append(row)
    if unguided and (asked := guide_diagnostic(structured_output(found.text), "the server has")):
        result.append(asked)
    return Verdict(SCRIPT, result, judged)


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


def _likely_options(data: Any, release: Release) -> Any:
    """Returns the keys of a mapping that are options of a release, possibly misspelled."""
    if not isinstance(data, Mapping):
        return data
    known = by_name(release.top_level)
    return {
        key: value
        for key, value in data.items()
        if key in known or any(is_misspelling(str(key), name) for name in known)
    }


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


def _written(file: WrittenFile, rule_context: RuleContext, is_given: bool = False) -> Content:
    """Reads a file that a script writes.

    If a server reads the file (`is_given`), it holds options regardless of its keys. Otherwise, of
    an edit to an existing file, only the keys that look like options are checked.
    """
    if file.is_edit and not is_given:
        for document in file.documents:
            document.data = _likely_options(document.data, rule_context.release)
    content = read_options(file.documents, rule_context.release)
    if content is None and is_given and isinstance(file.documents[0].data, Mapping):
        document = file.documents[0]
        content = Content(ENGINE, [OptionsBlock(document.data, document)])
    if content is None and not file.name.endswith((".yaml", ".yml")):
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


def _on_disk(command: OptionsBlock, path: Path) -> Mapping[str, Any]:
    word = command.option_file
    return read_option_file(word.text, path.parent) if word else {}
