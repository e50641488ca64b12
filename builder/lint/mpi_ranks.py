"""The processes that MPI starts, against the ranks of the server that stands in its command."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from ..diagnostics import Diagnostic
from ..facts.release import Release
from ..rules import flags as server_flags
from .job_script import job_diagnostic, whole
from .script import LAUNCHER, Word
from .server_commands import Command
from .surroundings import world_size

STARTERS = ("mpirun", "mpiexec")
_HOSTS, _SLOTS = ("-H", "-host", "--host"), re.compile(r"[\w.-]+:(\d{1,4})")

_SPREADING = ("hostfile", "machinefile", "f", "ppn", "npernode", "N")  # over hosts


def diagnostics(
    words: Sequence[Word],
    command: Command,
    options: Mapping[str, Mapping[str, Any]],
    release: Release,
) -> Iterator[Diagnostic]:
    """The processes that MPI starts against the ranks of the server. `words` stand before it."""
    names = [word.text.rpartition("/")[2] for word in words]
    file = command.option_file
    given = options.get(file.text.rpartition("/")[2]) if file else {}
    if not set(STARTERS) & set(names):
        return
    # A file may give parallel sizes as well.
    flags = {row.spelling: row.value.text for row in command.given if row.value}
    is_known = given is not None
    world = world_size(server_flags.with_flags(flags, given or {}, release)) if is_known else None
    if LAUNCHER not in names:
        if "srun" not in names:  # or the rules of jobs say what is wrong
            yield from _servers(words, world)
        return
    if not is_known:
        return
    yield from _slots(words)
    for word, following in pairwise(words):
        count = whole(following.text) if word.text in ("-n", "-np") else None
        if count and world and world > 1 and count != world and following.certain:
            what = f"{count} processes for a server of {world} ranks"
            fix = f"give {world}, or parallel sizes that multiply to {count}"
            yield job_diagnostic("job-ranks", following.location, what, word.text, fix)


def _servers(words: Sequence[Word], world: int | None) -> Iterator[Diagnostic]:
    """Processes of MPI that are a server of their own each, as nothing makes them ranks of one: on
    hosts of their own they may be meant so, if they are not as many as the `world` of one."""
    spread = any(_is_spread(word.text, following.text) for word, following in pairwise(words))
    for word, following in pairwise(words):
        count = whole(following.text) if word.text in ("-n", "-np") else None
        if count and count > 1 and following.certain and not (spread and count != world):
            what = f"{count} processes of MPI start a server each, all at one port"
            fix = f"put {LAUNCHER} before the server, so that they are the ranks of one"
            yield job_diagnostic("job-launcher", following.location, what, word.text, fix)


def _is_spread(flag: str, value: str) -> bool:
    """Whether a flag may put processes on hosts of their own."""
    several = flag in _HOSTS and ("," in value or "$" in value)
    return (
        several
        or flag.lstrip("-").partition("=")[0] in _SPREADING
        or (flag == "--map-by" and "node" in value)
    )


def _slots(words: Sequence[Word]) -> Iterator[Diagnostic]:
    """Fewer slots of hosts than processes, which Open MPI refuses."""
    given = {word.text: following for word, following in pairwise(words) if following.certain}
    hosts = next((given[name] for name in _HOSTS if name in given), None)
    count = next((whole(given[name].text) for name in ("-n", "-np") if name in given), None)
    slots = [_SLOTS.fullmatch(row) for row in hosts.text.split(",")] if hosts else []
    if not hosts or not count or any("oversubscribe" in word.text.lower() for word in words):
        return
    there = sum(int(found[1]) for found in slots if found)
    if all(slots) and there < count:
        what = f"{there} slots for {count} processes: mpirun does not start them"
        fix = f"give slots for {count}, as in HOST:{-(-count // len(slots))}, or -n {there}"
        yield job_diagnostic("job-ranks", hosts.location, what, hosts.text, fix)
