"""Reads the servers that a script starts, with their GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType

from ...diagnostics import Location
from ...documents import START, Yaml
from ...facts import hardware
from ..engine import Formats, formats, image_pattern, recorded
from ..model import ROLES, Gpus, HereDocument, Server, Statement, Word
from .python import command_lines
from .shell import Script, is_script, read_script, starting
from .shell_values import NOTHING_SET, Values, parts
from .slurm import Job, read_job
from .yaml_text import inside, template_as_shell

_GRES = re.compile(r"gpu:(?:([a-z]\w*):)?([0-9]+)")


def of_job(job: Job) -> tuple[Gpus | None, str | None]:
    """Returns the GPU count and GPU type of a job if its directives set them."""
    given = {row.name: row for row in job.parts[0]} if len(job.parts) == 1 else {}
    nodes = job.number("nodes")
    for name in ("gpus", "gpus-per-node", "gres"):
        if (row := given.get(name)) is None or not row.value:
            continue
        value = row.value if name == "gres" else f"gpu:{row.value}"
        found = _GRES.fullmatch(value.split(",")[0])
        if not found:
            continue
        kind = found[1] if found[1] in hardware.known() else None
        count = int(found[2])
        whole = count if name == "gpus" else count * nodes if nodes else None
        place = Gpus(whole, row.location, f"--{name}", on_all_nodes=True) if whole else None
        return place, kind
    return None, None


MAX_DEPTH = 3  # nesting of command lines
_BASE = re.compile(r"^FROM[ \t]+(?:--\S+[ \t]+)?(?P<image>\S+)", re.M | re.IGNORECASE)
_VISIBLE_GPUS = re.compile(r"(CUDA_VISIBLE_DEVICES)=(\d+(?:,\d+)*)")
_HANDLES = frozenset(
    ("build", "buildx", "tag", "push", "pull", "save", "load", "inspect", "rmi", "copy", "set")
)
_RUNS = frozenset(("run", "create", "exec"))
_ELSEWHERE = frozenset(("docker", "podman", "ssh", "kubectl"))  # shell variables do not reach these
_DEVICES = re.compile(r"device=(\d+(?:,\d+)*)|(\d+)")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.S)
_FENCE = re.compile(
    r"^([ \t]*)```[ \t]*(?:bash|sh|shell|console|zsh)?[ \t]*\n(.*?)^\1```", re.M | re.S
)


def mentions(text: str, engine: str) -> bool:
    """Returns whether a text can contain a server command of an engine."""
    known = formats(engine)
    names = (*known.modules, *known.workers, *known.tools, *known.images, *known.extended_images)
    if any(name in text for name in names):
        return True
    if not known.subcommand:
        return known.program in text
    return re.search(rf"\b{known.program}[\"', \t]+{known.subcommand}\b", text) is not None


def in_script(script: Script, engine: str, depth: int = 0) -> list[Server]:
    """Returns the server commands of an engine in a script, with nested scripts and here
    documents."""
    if not mentions(script.text, engine):
        return []
    rows, values = script.statements, script.values
    found: list[Server] = []
    visible = _visible_gpus(rows)
    for statement in starting(rows):
        in_container = not _ELSEWHERE.isdisjoint(word.text for word in statement.words)
        words = values.words(statement.words)
        if words[0].text == "eval":
            words = list(_evaluated(words, engine))
        for line in of_statement(words, depth, engine, values):
            gpus = line.gpus or (None if in_container else visible)
            found.append(replace(line, gpus=gpus, statements=(statement, *line.statements)))
    for document in script.here:
        if depth < MAX_DEPTH and _runs(document):
            at = Location(document.start.line + script.start.line - 1, document.start.column)
            for line in in_script(read_script(document.text, at), engine, depth + 1):
                found.append(replace(line, statements=()) if document.name else line)
    if depth:
        return found
    return _in_job(found or list(_of_base_image(script, engine)), script)


def _of_base_image(script: Script, engine: str) -> Iterator[Server]:
    """Yields the commands of a Dockerfile whose base image starts the server: flags only."""
    based = _BASE.search(script.text)
    if image := image_pattern(engine).search(based["image"]) if based else None:
        for row in script.statements:
            if are_flags(row.words[:1], engine):
                yield Server(row.words, engine=engine, is_open=image["own"] is None)


def _in_job(rows: Sequence[Server], script: Script) -> list[Server]:
    """Adds the role that a flag sets, and the GPUs of a job if only one server uses them."""
    if not rows:
        return []
    gpus, gpu = of_job(read_job(script))
    if len(rows) > 1:
        gpus = None
    found = []
    for row in rows:
        mode = row.flag((row.formats.mode_flag,))
        role = ROLES.get(mode[0]) if mode else None
        found.append(replace(row, gpus=row.gpus or gpus, gpu=gpu, role=role))
    return found


def _evaluated(words: Sequence[Word], engine: str) -> Iterator[Word]:
    """Yields the words of `eval`, whose texts are split, except for whole commands."""
    for word in words:
        yield from [word] if mentions(word.text, engine) else parts(word)


def _runs(document: HereDocument) -> bool:
    """Returns whether a here document is a script, by its target file or the command that reads
    it."""
    if document.name:
        return is_script(document)
    return (
        re.search(r"\b(?:ba|z|da|k)?sh\b|\bssh\b|\bsrun\b|\bsbatch\b", document.command) is not None
    )


def of_statement(
    words: Sequence[Word], depth: int, engine: str, values: Values = NOTHING_SET
) -> Iterator[Server]:
    """Yields the server commands in the words of a statement; `values` are those of its script,
    which also fill in the words of a nested command line."""
    known = formats(engine)
    for index, word in enumerate(words):
        rest, before = tuple(words[index + 1 :]), tuple(words[:index])
        if program := _program(word, rest, known):
            rest = rest[1:] if known.subcommand and program == known.program else rest
            is_open = program in known.workers
            gpus = _gpus_before(before)
            yield Server(
                rest, program, word.location, before, (), gpus, engine=engine, is_open=is_open
            )
            return
        if (image := image_pattern(engine).search(word.text)) and index:
            if _is_handled(before):
                return
            own = _entry_point(before)
            inner = list(of_statement((*own, *rest), depth, engine, values))
            gpus = _gpus_before(before)
            again = rest[0] if rest and not own and image_starts_server(image, engine) else None
            if inner:
                for row in inner:
                    yield replace(row, gpus=row.gpus or gpus, before=before, again=again)
            elif rest and are_flags(rest, engine) and not own:
                is_open = image["own"] is None
                yield Server(rest, before=before, gpus=gpus, engine=engine, is_open=is_open)
            return
        if depth < MAX_DEPTH and re.search(r"\s", word.text) and mentions(word.text, engine):
            place = Location(word.location.line, word.location.column + 1)
            for line in in_script(read_script(word.text, place), engine, depth + 1):
                filled = tuple(values.words(line.words))
                gpus = line.gpus or _gpus_before(before)
                yield replace(line, words=filled, gpus=gpus, before=(*before, *line.before))


def starts_server(row: Statement) -> bool:
    """Returns whether a statement itself starts a server of any engine."""
    return any(any(of_statement(row.words, MAX_DEPTH, name)) for name in recorded())


def _program(word: Word, rest: Sequence[Word], known: Formats) -> str:
    """Returns the program of an engine that a word names; empty for any other word."""
    name = word.text.rpartition("/")[2]
    if name == known.program:
        is_server = not known.subcommand or (rest and rest[0].text == known.subcommand)
        return name if is_server else ""
    if name in known.modules or name in known.tools:
        return name
    return next((worker for worker in known.workers if word.text.endswith(worker)), "")


def _is_handled(words: Sequence[Word]) -> bool:
    """Returns whether the words before an image only build, copy or name it."""
    texts = {word.text for word in words}
    return not _HANDLES.isdisjoint(texts) and _RUNS.isdisjoint(texts)


def _visible_gpus(rows: Sequence[Statement]) -> Gpus | None:
    """Returns the GPUs that a script sets for all its commands, if its lines agree on the count."""
    found: list[Gpus] = []
    for row in rows:
        words = row.words[row.words[0].text == "export" :]
        if not all(_ASSIGNMENT.fullmatch(word.text) for word in words):
            continue
        for word in words:
            if word.text.startswith("CUDA_VISIBLE_DEVICES"):
                given = _VISIBLE_GPUS.fullmatch(word.text)
                if given is None:
                    return None
                found.append(Gpus(len(given[2].split(",")), word.location, given[1]))
    return found[0] if len({place.count for place in found}) == 1 else None


def _gpus_before(words: Sequence[Word]) -> Gpus | None:
    """Returns the GPUs that the words before a server set: `CUDA_VISIBLE_DEVICES` or `--gpus`."""
    for index, word in enumerate(words):
        found = _VISIBLE_GPUS.fullmatch(word.text)
        if found:
            return Gpus(len(found[2].split(",")), word.location, found[1])
        text = word.text.partition("=")[2]
        if word.text == "--gpus" and index + 1 < len(words):
            text = words[index + 1].text
        if word.text.startswith("--gpus") and (given := _DEVICES.fullmatch(text.strip("\"'"))):
            count = len(given[1].split(",")) if given[1] else int(given[2])
            return Gpus(count, word.location, "--gpus")
    return None


def are_flags(words: Sequence[Word], engine: str) -> bool:
    """Returns whether words are a model and flags, or only flags.

    The server's subcommand may come first. If the entry point of the image already includes it,
    another check reports the duplicate.
    """
    after = bool(words) and words[0].text == formats(engine).subcommand
    return any(re.match(r"--?[A-Za-z]", word.text) for word in words[after : after + 2])


def image_starts_server(image: re.Match[str], engine: str) -> bool:
    """Returns whether the entry point of an image is the server."""
    return image["own"] is not None and image["own"] not in formats(engine).bare_images


def _entry_point(words: Sequence[Word]) -> Sequence[Word]:
    """Returns the program in `--entrypoint`, which replaces the entry point of the image."""
    for word, following in pairwise(words):
        if word.text == "--entrypoint":
            return [following]
    given = (word for word in words if word.text.startswith("--entrypoint="))
    return [replace(word, text=word.text.partition("=")[2]) for word in given]


def in_program(text: str, engine: str) -> Iterator[Server]:
    """Yields the server commands that a Python program starts; the program may add flags to
    each."""
    for words in command_lines(text):
        known = [word for word in words if word.text.strip()]
        for line in of_statement(known, MAX_DEPTH, engine):
            if line.words:
                yield replace(line, is_part=True)


def in_block(
    text: str,
    path: str,
    document: Yaml,
    whole: str,
    engine: str,
    start: Location = START,
    given: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Server]:
    """Yields the commands of a text inside a document, with locations in the document. The text
    begins at `start` of the `whole` text at the path, and with the variables `given`."""

    def moved(place: Location) -> Location:
        return inside(document, path, whole, place)

    for line in in_script(replace(read_script(text, start), environment=given), engine):
        words = [replace(word, location=moved(word.location)) for word in line.words]
        gpus = line.gpus and replace(line.gpus, location=moved(line.gpus.location))
        begin = line.start and moved(line.start)
        yield replace(line, words=tuple(words), within=path, gpus=gpus, start=begin, statements=())


def in_prose(text: str, path: str, document: Yaml, engine: str) -> Iterator[Server]:
    """Yields the commands in the fenced code blocks of a Markdown text."""
    for fence in _FENCE.finditer(text):
        start = Location(text.count("\n", 0, fence.start(2)) + 1, 1)
        inner = template_as_shell(re.sub(r"(?m)^[ \t]*\$ ", "  ", fence[2]))
        yield from in_block(inner, path, document, text, engine, start)
