"""Checks job scripts: the submission, steps that run at the same time, and the exit code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ...diagnostics import Diagnostic, Location, closest, located, nearest
from ...files import read_bytes
from ...general_rules import Rule
from ..engine import LAUNCHER, MPI_STARTERS, is_server
from ..model import Statement, Word
from ..read.option_file import read_option_file
from ..read.slurm import Job, Option, Step, option_names, table, whole

_SIZES = (("tensor_parallel_size", "tp_size"), ("pipeline_parallel_size", "pp_size"))
_OPTION_FILES = ("config", "extra_llm_api_options")
_CLEARED = re.compile(r"(\bunset\b|\s-u).*\b(SLURM_|PMIX?_)|\benv -i\b", re.DOTALL)
_RANK_COMMAND = "disaggregated_mpi_worker"
# Commands that neither work nor wait. If only these follow the background steps, the script ends
# while the steps still run.
_IDLE = frozenset(("echo", "printf", "date", "fi", "done", "}", "true", "set", "export", ":"))
_PASSING = re.compile(r"[A-Za-z_]\w*=\S*|sleep \d{1,3}")
_LEAKED = "UCX_TLS"


def job_diagnostics(job: Job, folder: Path, block: int | None) -> Iterator[Diagnostic]:
    """Runs all checks on a job script. `block` is the nodes per block, if known."""
    yield from submission_diagnostics(job, block)
    for step in job.steps:
        yield from _step(step, job, folder)
    yield from _together(job)
    yield from _variables(job)
    yield from _end(job)


def ranks(job: Job, folder: Path) -> Iterator[Diagnostic]:
    """Checks the tasks of each step of a script, which may not be a job script."""
    for step in job.steps:
        if step.serves:
            yield from _tasks(step, job, folder)


def _tasks(step: Step, job: Job, folder: Path) -> Iterator[Diagnostic]:
    """Checks the number of tasks of a step against the ranks of its server."""
    tasks, launched = _ranks(step, job), step.ranks_command
    world = _world_size(launched, job, folder)
    if tasks is not None and world is not None and tasks != world:
        what = f"{tasks} tasks for a server of {world} ranks"
        inherited = None if "ntasks" in step.options else job.option("ntasks")
        place = inherited.location if inherited else step.location
        yield job_diagnostic("job-ranks", place, what, "srun --ntasks")
    words = [word for words in (step.command, *step.inner) for word in words]
    spawned = any(word.text.rpartition("/")[2] in MPI_STARTERS for word in words)
    started, own = _server(step)
    if not started or launched or spawned or (tasks or 1) < 2:
        return
    if _world_size(own, job, folder) == tasks:  # otherwise they may be intended as separate servers
        what = f"each of {tasks} tasks starts its own server"
        yield job_diagnostic("job-launcher", started.location, what)


def _server(step: Step) -> tuple[Word | None, Sequence[Word]]:
    """The program of a step's server and its words; `None` if the program is itself a rank."""
    for words in (step.command, *step.inner):
        for index, word in enumerate(words):
            if is_server(word.text):
                own = words[index + 1 :]
                is_rank = any(each.text == _RANK_COMMAND for each in own[:1])
                return None if is_rank else word, own
    return None, ()


def _step(step: Step, job: Job, folder: Path) -> Iterator[Diagnostic]:
    """Checks a single step."""
    if not step.serves:
        return
    options, tasks = step.options, _ranks(step, job)
    if "ntasks" not in options:
        yield job_diagnostic(
            "job-ntasks", step.location, "srun has no -n: Slurm guesses the tasks", "srun"
        )
    launched = step.ranks_command
    yield from _tasks(step, job, folder)
    kills = options.get("kill-on-bad-exit", "0" if "kill-on-bad-exit" not in options else "1")
    exported = "SLURM_KILL_BAD_EXIT=1" in job.script.text
    if (launched or (tasks or 1) > 1) and kills == "0" and not exported and "wait" not in options:
        what = "srun keeps running when one of its ranks dies"
        yield job_diagnostic("job-kill-on-bad-exit", step.location, what, "srun")
    for word in launched:
        if word in step.command and word.certain and re.search(r"[\s*?\[\]{}\"']", word.text):
            what = f"{word.text[:40]!r} does not survive {LAUNCHER}"
            yield job_diagnostic("job-launcher-quoting", word.location, what)
    yield from _spawner(step)


def _spawner(step: Step) -> Iterator[Diagnostic]:
    """Reports an mpirun inside srun: because of Slurm's variables, it asks Slurm for nodes."""
    words = [word for words in (step.command, *step.inner) for word in words]
    spawners = [word for word in words if word.text.rpartition("/")[2] in MPI_STARTERS]
    if spawners and not _CLEARED.search(" ".join(word.text for word in step.command)):
        what = f"{spawners[0].text} inside of srun finds the variables of Slurm"
        yield job_diagnostic("job-mpirun-in-srun", spawners[0].location, what)


def _ranks(step: Step, job: Job) -> int | None:
    """The number of tasks of a step, from its own options and those it inherits from the job."""
    if "ntasks" in step.options:
        return whole(step.options["ntasks"])

    def number(name: str) -> int | None:
        return whole(step.options[name]) if name in step.options else job.number(name)

    nodes, each = number("nodes"), number("ntasks-per-node")
    if job.number("ntasks") and not {"nodes", "ntasks-per-node"} & step.options.keys():
        return job.number("ntasks")
    return nodes * each if nodes and each else None


def _world_size(words: Sequence[Word], job: Job, folder: Path) -> int | None:
    """The number of ranks of a server, from its flags or its option file. The job writes the option
    file, or the file is in the same folder."""
    words, given = job.script.values.words(words), {}
    for index, word in enumerate(words):
        name, equals, value = word.text.partition("=")
        if name.startswith("--"):
            following = words[index + 1].text if index + 1 < len(words) else ""
            given[name[2:].replace("-", "_")] = value if equals else following
    file = next((given[name] for name in _OPTION_FILES if name in given), "")
    options = (_written(job, file) or read_option_file(file, folder)) if file else {}
    size = None
    for names in _SIZES:
        found = next((given[name] for name in names if name in given), options.get(names[0]))
        if found is None:
            continue
        number = whole(str(found))
        if number is None:
            return None
        size = (size or 1) * number
    return size


def _written(job: Job, name: str) -> Mapping[str, Any]:
    """The options of a file that a job writes, if the job writes it exactly once."""
    rows = [row for row in job.written if row.name == name]
    data = rows[0].documents[0].data if len(rows) == 1 and not rows[0].is_open else None
    return data if isinstance(data, Mapping) else {}


def _together(job: Job) -> Iterator[Diagnostic]:
    """Checks steps that run at the same time. They share nodes only if their options allow it, and
    they never share a port."""
    steps = _concurrent(job)
    apart = [row for row in steps if not {"overlap", "exact", "exclusive"} & row.options.keys()]
    total = job.number("nodes")
    wanted = [whole(row.options.get("nodes")) or total for row in apart]
    if total and len(apart) > 1 and (sought := sum(filter(None, wanted))) > total:
        what = f"{len(apart)} concurrent steps want {sought} nodes, and the job has {total}"
        what = f"{what}: the last one waits forever"
        yield job_diagnostic("job-overlap", apart[-1].location, what, "srun")
    elif not total and len(apart) > 1:
        what = f"{len(apart)} steps run at the same time: one without free nodes waits forever"
        yield job_diagnostic("job-may-wait", apart[-1].location, what, "srun")
    owners: dict[tuple[str, str], Step] = {}
    for step in steps:
        port = _port(step)
        where = step.options.get("nodelist") or ("the node" if total == 1 else "")
        if port and where and owners.setdefault((where, port), step) is not step:
            what = f"port {port} is taken by another server of {where}"
            yield job_diagnostic("job-ports", step.location, what, "--port")


def _concurrent(job: Job) -> list[Step]:
    """Background steps before the first `wait`, and the foreground steps that run with them."""
    found: list[Step] = []
    waits = (i for i, row in enumerate(job.script.statements) if row.words[0].text == "wait")
    wait = next(waits, len(job.script.statements))
    for step in job.steps:
        if wait < step.index and found:
            break
        if step.in_background or found:
            found.append(step)
    return found


def _port(step: Step) -> str:
    for words in (step.command, *step.inner):
        texts = [word.text for word in words]
        for flag in ("--port", "--http-port"):
            if flag in texts[:-1] and texts[texts.index(flag) + 1].isdigit():
                return texts[texts.index(flag) + 1]
    return ""


def _variables(job: Job) -> Iterator[Diagnostic]:
    """Reports UCX variables that break the KV cache transfer between servers."""
    assigned = {}
    for row in job.script.statements:
        for word in row.words:
            name, equals, value = word.text.partition("=")
            if equals and name.startswith("UCX_"):
                assigned[name] = (value, word.location)
    tls, place = assigned.get(_LEAKED, ("", Location(1, 1)))
    nvlink = assigned.get("UCX_CUDA_IPC_ENABLE_MNNVL", ("", place))[0]
    if nvlink.lower() in ("y", "yes", "1", "on") and tls.startswith("^") and "cuda_ipc" in tls:
        what = f"{_LEAKED}={tls} removes what UCX_CUDA_IPC_ENABLE_MNNVL={nvlink} needs"
        yield job_diagnostic("job-ucx-contradiction", place, what, _LEAKED)
    routers = [step for step in job.steps if _is_router(step)]
    if routers and _LEAKED not in job.script.text:
        what = f"servers transfer KV caches, and the cluster may set {_LEAKED} for them"
        yield job_diagnostic("job-leaked-ucx", routers[0].location, what, _LEAKED)


def _is_router(step: Step) -> bool:
    words = (word for words in (step.command, *step.inner) for word in words)
    return step.serves and any(word.text == "disaggregated" for word in words)


def _end(job: Job) -> Iterator[Diagnostic]:
    """Checks how the script ends and whether it returns the exit code of its servers."""
    steps = [step for step in job.steps if step.serves]
    if not steps:
        return
    last = job.script.statements[-1]
    if last.words[0].text == "scancel" and "SLURM_JOB" in " ".join(w.text for w in last.words):
        what = "the script cancels its own job"
        yield job_diagnostic("job-cancels-itself", last.words[0].location, what)
    background = [step for step in steps if step.in_background]
    if background:
        if background[-1].index >= _last_work(job):
            what = "the script ends while its servers run"
            yield job_diagnostic("job-wait", background[-1].location, what, "srun")
        elif [word.text for word in last.words] == ["wait"]:
            what = "wait without a process returns 0, whatever the servers returned"
            yield job_diagnostic("job-exit-code", last.words[0].location, what, "wait")
    yield from _swallowed(job, [step for step in steps if not step.in_background])


def _swallowed(job: Job, steps: Sequence[Step]) -> Iterator[Diagnostic]:
    """Reports servers in the foreground whose exit code is lost."""
    sets = " ".join(" ".join(w.text for w in row.words) for row in job.script.statements)
    errexit = re.search(r"\bset -\w*e", sets) or re.match(r"#!.*\s-\w*e", job.script.text)
    over = _last_work(job)
    for step in steps:
        following = job.script.statements[step.index + 1 : step.index + 2]
        then = following[0].words[0].text if following else ""
        if step.statement.end == "||" and then in ("true", ":", "echo"):
            yield job_diagnostic(
                "job-exit-code", step.location, f"|| {then} hides that a server failed", "srun"
            )
        elif step.statement.end in ("|", "|&") and "pipefail" not in sets:
            what = f"the exit code of a pipe is that of {then}"
            yield job_diagnostic("job-exit-code", step.location, what, "srun")
        elif following and not errexit and step.index >= over:
            ending = job.script.statements[-1].words[0].text
            what = f"the exit code of the script is that of {ending}"
            yield job_diagnostic("job-exit-code", step.location, what, "srun")


def _last_work(job: Job) -> int:
    """The index of the last command that works or waits."""
    busy = (
        index for index, row in reversed([*enumerate(job.script.statements)]) if not _is_idle(row)
    )
    return next(busy, -1)


def _is_idle(row: Statement) -> bool:
    text = " ".join(word.text for word in row.words)
    return row.words[0].text in _IDLE or _PASSING.fullmatch(text) is not None


def line_ends(path: Path) -> Iterator[Diagnostic]:
    """Reports DOS line ends, which the decoded text no longer shows."""
    if b"\r\n" in read_bytes(path):
        what = "has DOS line endings: sbatch refuses it"
        yield job_diagnostic("job-line-ends", Location(1, 1), what)


def job_diagnostic(
    rule: str, place: Location, what: str, path: str = "", remedy: str = ""
) -> Diagnostic:
    """A diagnostic of a job script rule at a place in the script."""
    known, row = job_rules()[rule], table()["rules"][rule]
    return located(place, path, what, remedy or row["fix"], known, known.severity)


@cache
def job_rules() -> Mapping[str, Rule]:
    """The rules of job scripts by id."""
    return {
        id: Rule(
            id,
            f"A job script of Slurm: {row['fix']}.",
            row["severity"],
            "\n\nSource: ".join(filter(None, (row["fix"], row.get("source")))),
        )
        for id, row in table()["rules"].items()
    }


_PLUGIN = "container-"  # options of pyxis


def submission_diagnostics(job: Job, block: int | None) -> Iterator[Diagnostic]:
    """Runs all checks on the submission. `block` is the nodes per block, if known."""
    if not job.script.text.startswith("#!"):
        yield job_diagnostic(
            "job-shebang", Location(1, 1), "the first line is not a #! line: sbatch refuses it"
        )
    for option in job.late:
        what = "is below a command, where sbatch does not read it"
        yield job_diagnostic("job-late-directive", option.location, what, f"--{option.name}")
    for word in job.stray:
        what = f"{word.text[:40]!r} is not an option: sbatch refuses the script"
        yield job_diagnostic("job-stray-word", word.location, what)
    for part in job.parts:
        for option in part:
            yield from _option(option)
        yield from _options_together({row.name: row for row in part}, block)
    for step in job.steps:
        yield from (row for given in step.given for row in _unknown(given, "srun"))


def _option(option: Option) -> Iterator[Diagnostic]:
    """Checks one sbatch option and its value."""
    path, form = f"--{option.name}", _forms().get(option.name)
    if not option.known:
        yield from _unknown(option, "sbatch")
    elif option.value is None and option.name in table()["sbatch"]["values"]:
        yield job_diagnostic("job-value", option.location, "has no value", path, "give it one")
    elif option.value is not None and option.name in table()["sbatch"]["flags"]:
        yield job_diagnostic("job-value", option.location, "takes no value", path, "drop the value")
    elif form and not re.fullmatch(form["pattern"], option.value or "", re.IGNORECASE):
        yield job_diagnostic(
            form["rule"], option.location, f"cannot be {option.value}", path, form["fix"]
        )
    elif option.name == "nodes" and (ends := _range(option)) and ends[0] > ends[1]:
        what = f"at least {ends[0]} nodes are more than at most {ends[1]}"
        yield job_diagnostic("job-value", option.location, what, path)


@cache
def _forms() -> Mapping[str, Mapping[str, Any]]:
    return {name: form for form in table()["forms"] for name in form["options"]}


def _unknown(option: Option, program: str) -> Iterator[Diagnostic]:
    """Reports an option that Slurm does not have. If it resembles none of Slurm's options, it may
    belong to a plug-in."""
    if option.known:
        return
    known, path = option_names(program), f"--{option.name}"
    if option.letter:
        yield job_diagnostic("job-unknown-option", option.location, "is unknown", f"-{option.name}")
    elif not option.name.startswith(_PLUGIN) and closest(option.name, known):
        remedy = nearest(option.name, known)
        yield job_diagnostic("job-unknown-option", option.location, "is unknown", path, remedy)
    elif program == "sbatch":
        what = "is not an option of sbatch, which refuses it where no plug-in has it"
        yield job_diagnostic("job-plugin-option", option.location, what, path)


def _options_together(given: Mapping[str, Option], block: int | None) -> Iterator[Diagnostic]:
    """Reports options in one part of a job that contradict each other."""
    for names in table()["alternatives"]:
        both = [given[name] for name in names if name in given]
        if len(both) > 1:
            what = f"conflicts with --{both[0].name}: only one can be set"
            yield job_diagnostic("job-contradiction", both[1].location, what, f"--{both[1].name}")
    _, most = _range(given.get("nodes")) or (0, 0)
    tasks, each = (_number(given, name) for name in ("ntasks", "ntasks-per-node"))
    if most and tasks and each and tasks > most * each:
        what = f"{tasks} tasks do not fit on {most} nodes with {each} each"
        yield job_diagnostic("job-contradiction", given["ntasks"].location, what, "--ntasks")
    yield from _segment(given, most, block)


def _segment(given: Mapping[str, Option], count: int, block: int | None) -> Iterator[Diagnostic]:
    """Checks that segments divide the nodes evenly and that each fits into a block."""
    if not (size := _number(given, "segment")):
        return
    place = given["segment"].location
    if count % size:
        what = f"segments of {size} do not divide {count} nodes evenly"
        yield job_diagnostic("job-segment", place, what, "--segment")
    elif size > (limit := block or table()["largest_block"]):
        what = f"{size} nodes do not fit into one block of {limit}"
        yield job_diagnostic(
            "job-segment" if block else "job-wide-segment", place, what, "--segment"
        )


def _range(nodes: Option | None) -> tuple[int, int] | None:
    """The minimum and maximum number of nodes, if they are plain numbers."""
    ends = [whole(end) for end in ((nodes and nodes.value) or "").split("-")]
    least, most = ends[0], ends[-1]
    return None if least is None or most is None else (least, most)


def _number(given: Mapping[str, Option], name: str) -> int | None:
    return whole(given[name].value) if name in given else None
