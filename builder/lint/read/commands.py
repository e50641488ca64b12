"""Reads the servers that a script starts, with their GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ...diagnostics import Location
from ...documents import START
from ...facts import hardware
from ..model import MODE_FLAG, ROLES, SPAWNERS, TOOLS, WORKER, Gpus, Server, holder
from . import slurm
from .shell import COMMAND, Word, before, read_script, starting
from .shell_values import Values
from .slurm import read_job

Words = list[tuple[str, Location]]
_VISIBLE = re.compile(r"\bCUDA_VISIBLE_DEVICES=[\"']?([0-9]+(?:,[0-9]+)*)\b[\"']?")
_SET = re.compile(rf"^\s*(?:export\s+)?{_VISIBLE.pattern}\s*(?:#.*)?$", re.M)
_DOCKER = re.compile(r"--gpus[= ]+[\"']*(?:device=([0-9]+(?:,[0-9]+)*)|([0-9]+))")
_GRES = re.compile(r"gpu:(?:([a-z]\w*):)?([0-9]+)")


def in_script(text: str) -> list[Server]:
    """The servers that a script starts, with the variables put in whose values it sets."""
    gpus, gpu = _visible(text), None
    is_job = slurm.is_job(text)
    if is_job:
        gpus, gpu = of_job(text)
    found = []
    for words, earlier in _started(text, START, {}):
        own = None if is_job else _given(earlier)
        mode = Server(words).flag((MODE_FLAG,))
        found.append(Server(words, own or gpus, gpu, ROLES.get(mode[0]) if mode else None))
    return found


def started(
    text: str, start: Location, environment: Mapping[str, str]
) -> Iterator[list[tuple[str, Location]]]:
    """The words of each server in a script that begins at `start`, from its program on."""
    yield from (words for words, _ in _started(text, start, environment))


def _started(
    text: str, start: Location, environment: Mapping[str, str], depth: int = 0
) -> Iterator[tuple[Words, Words]]:
    """The words of each server of a script, and those that stand before it."""
    read = read_script(text, start)
    values = Values(read.statements, environment)
    for command, place, rows in zip(read.commands, read.starts, read.runs, strict=True):
        words = [Word(COMMAND, place, True), *values.words(command)]
        yield _texts(words), _texts(values.words(before(rows)))
    names = (WORKER, *TOOLS)
    for row in starting(read.statements) if any(name in text for name in names) else ():
        for index, word in enumerate(row.words):
            if holder(word.text):
                yield _texts(values.words(row.words[index:])), _texts(row.words[:index])
                break
            is_line = any(name in word.text for name in names) and re.search(r"\s", word.text)
            if depth < 2 and is_line:  # bash -c "..."
                yield from _started(word.text, word.location, environment, depth + 1)


def _texts(words: Iterable[Word]) -> Words:
    return [(word.text, word.location) for word in words]


def _given(words: Words) -> Gpus | None:
    """The GPUs that stand before a server: a variable, or docker's."""
    for text, where in words:
        if found := _VISIBLE.fullmatch(text):
            return Gpus(len(found[1].split(",")), where, "CUDA_VISIBLE_DEVICES")
    return docker_gpus(words)


def spreads(text: str) -> bool:
    """Whether a script starts servers on other nodes as well."""
    names = "|".join(map(re.escape, SPAWNERS))
    return re.search(rf"(?<![\w-])(?:{names})\s", text) is not None


def _visible(text: str) -> Gpus | None:
    """The GPUs that a line of its own leaves visible, if there is one such line."""
    found = list(_SET.finditer(text))
    if len(found) != 1:
        return None
    place = Location(text.count("\n", 0, found[0].start(1)) + 1, 1)
    return Gpus(len(found[0][1].split(",")), place, "CUDA_VISIBLE_DEVICES")


def docker_gpus(words: Sequence[tuple[str, Location]]) -> Gpus | None:
    """The GPUs that a command gives a container."""
    found = _DOCKER.search(" ".join(text for text, _ in words))
    if not found:
        return None
    place = next((where for text, where in words if "--gpus" in text), words[0][1])
    return Gpus(len(found[1].split(",")) if found[1] else int(found[2]), place, "--gpus")


def of_job(text: str) -> tuple[Gpus | None, str | None]:
    """The GPUs of a whole job and their kind, as far as its directives say it."""
    job = read_job(text)
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
