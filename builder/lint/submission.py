"""What sbatch refuses of a job script or does not see: its form, its options and their values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from ..diagnostics import Diagnostic, Location, closest, nearest
from .sbatch import Job, Option, fault, option_names, table, whole

_PLUGIN = "container-"  # options of pyxis


def faults(job: Job, block: int | None) -> Iterator[Diagnostic]:
    """Everything against the submission. `block` is the nodes of a block, if that is known."""
    if not job.text.startswith("#!"):
        yield fault(
            "job-shebang", Location(1, 1), "the first line is no #! line: sbatch refuses it"
        )
    for option in job.late:
        what = "stands below a command, where sbatch does not look"
        yield fault("job-late-directive", option.location, what, f"--{option.name}")
    for word in job.stray:
        what = f"{word.text[:40]!r} is no option: sbatch refuses the script"
        yield fault("job-stray-word", word.location, what)
    for part in job.parts:
        for option in part:
            yield from _option(option)
        yield from _together({row.name: row for row in part}, block)
    for step in job.steps:
        yield from (row for given in step.given for row in _unknown(given, "srun"))


def _option(option: Option) -> Iterator[Diagnostic]:
    """One option for sbatch, and whether its value can be one."""
    path, form = f"--{option.name}", _forms().get(option.name)
    if not option.known:
        yield from _unknown(option, "sbatch")
    elif option.value is None and option.name in table()["sbatch"]["values"]:
        yield fault("job-value", option.location, "has no value", path, "give it one")
    elif option.value is not None and option.name in table()["sbatch"]["flags"]:
        yield fault("job-value", option.location, "takes no value", path, "drop the value")
    elif form and not re.fullmatch(form["pattern"], option.value or "", re.IGNORECASE):
        yield fault(form["rule"], option.location, f"cannot be {option.value}", path, form["fix"])
    elif option.name == "nodes" and (ends := _range(option)) and ends[0] > ends[1]:
        what = f"at least {ends[0]} nodes are more than at most {ends[1]}"
        yield fault("job-value", option.location, what, path)


@cache
def _forms() -> Mapping[str, Mapping[str, Any]]:
    return {name: form for form in table()["forms"] for name in form["options"]}


def _unknown(option: Option, program: str) -> Iterator[Diagnostic]:
    """An option of no Slurm. One that resembles none of its options may be a plug-in's."""
    if option.known:
        return
    known, path = option_names(program), f"--{option.name}"
    if option.letter:
        yield fault("job-unknown-option", option.location, "is unknown", f"-{option.name}")
    elif not option.name.startswith(_PLUGIN) and closest(option.name, known):
        remedy = nearest(option.name, known)
        yield fault("job-unknown-option", option.location, "is unknown", path, remedy)
    elif program == "sbatch":
        what = "is no option of sbatch, which refuses it where no plug-in has it"
        yield fault("job-plugin-option", option.location, what, path)


def _together(given: Mapping[str, Option], block: int | None) -> Iterator[Diagnostic]:
    """Options of one part of a job that do not go together."""
    for names in table()["alternatives"]:
        both = [given[name] for name in names if name in given]
        if len(both) > 1:
            what = f"stands beside --{both[0].name}: only one can be given"
            yield fault("job-contradiction", both[1].location, what, f"--{both[1].name}")
    _, most = _range(given.get("nodes")) or (0, 0)
    tasks, each = (_number(given, name) for name in ("ntasks", "ntasks-per-node"))
    if most and tasks and each and tasks > most * each:
        what = f"{tasks} tasks do not stand on {most} nodes with {each} each"
        yield fault("job-contradiction", given["ntasks"].location, what, "--ntasks")
    yield from _segment(given, most, block)


def _segment(given: Mapping[str, Option], count: int, block: int | None) -> Iterator[Diagnostic]:
    """Segments share the nodes evenly, and each fits into a block."""
    if not (size := _number(given, "segment")):
        return
    place = given["segment"].location
    if count % size:
        what = f"segments of {size} do not share {count} nodes evenly"
        yield fault("job-segment", place, what, "--segment")
    elif size > (limit := block or table()["largest_block"]):
        what = f"{size} nodes do not stand in one block of {limit}"
        yield fault("job-segment" if block else "job-wide-segment", place, what, "--segment")


def _range(nodes: Option | None) -> tuple[int, int] | None:
    """The least and the most nodes that are asked for, if they are plain numbers."""
    ends = [whole(end) for end in ((nodes and nodes.value) or "").split("-")]
    least, most = ends[0], ends[-1]
    return None if least is None or most is None else (least, most)


def _number(given: Mapping[str, Option], name: str) -> int | None:
    return whole(given[name].value) if name in given else None
