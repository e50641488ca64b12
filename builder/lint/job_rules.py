"""The rules of job scripts: how its steps run together, and how the job ends."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..diagnostics import Diagnostic, Location
from ..files import read_bytes
from . import job_script, script, written
from .job_script import Job, Step, job_diagnostic, whole
from .script import Statement, Word
from .server_commands import read_option_file

_SIZES = (("tensor_parallel_size", "tp_size"), ("pipeline_parallel_size", "pp_size"))
_OPTION_FILES = ("config", "extra_llm_api_options")
_SPAWNERS = ("mpirun", "mpiexec", "orterun", "prterun")
_CLEARED = re.compile(r"(\bunset\b|\s-u).*\b(SLURM_|PMIX?_)|\benv -i\b", re.DOTALL)
_RANK_COMMAND = "disaggregated_mpi_worker"
# Commands that neither work nor wait: behind steps in the background, the script is over with them.
_IDLE = frozenset(("echo", "printf", "date", "fi", "done", "}", "true", "set", "export", ":"))
_PASSING = re.compile(r"[A-Za-z_]\w*=\S*|sleep \d{1,3}")
_LEAKED = "UCX_TLS"


def diagnostics(job: Job, folder: Path, block: int | None) -> Iterator[Diagnostic]:
    """Everything against a job script. `block` is the nodes of a block, if that is known."""
    yield from job_script.diagnostics(job, block)
    for step in job.steps:
        yield from _step(step, job, folder)
    yield from _together(job)
    yield from _variables(job)
    yield from _end(job)


def ranks(job: Job, folder: Path) -> Iterator[Diagnostic]:
    """What is against the tasks of each step of a script, which may be no job's."""
    for step in job.steps:
        if step.serves:
            yield from _tasks(step, job, folder)


def _tasks(step: Step, job: Job, folder: Path) -> Iterator[Diagnostic]:
    """The tasks that a step starts against the ranks of its server."""
    tasks, launched = _ranks(step, job), step.ranks_command
    world = _world_size(launched, job, folder)
    if tasks is not None and world is not None and tasks != world:
        what = f"{tasks} tasks for a server of {world} ranks"
        inherited = None if "ntasks" in step.options else job.option("ntasks")
        place = inherited.location if inherited else step.location
        yield job_diagnostic("job-ranks", place, what, "srun --ntasks")
    words = [word for words in (step.command, *step.inner) for word in words]
    spawned = any(word.text.rpartition("/")[2] in _SPAWNERS for word in words)
    started, own = _server(step)
    if not started or launched or spawned or (tasks or 1) < 2:
        return
    if _world_size(own, job, folder) == tasks:  # others are copies, each with GPUs of its own
        what = f"each of {tasks} tasks starts a server of its own"
        yield job_diagnostic("job-launcher", started.location, what)


def _server(step: Step) -> tuple[Word | None, Sequence[Word]]:
    """The program of a step's server, and its words; not of one that is a rank itself."""
    for words in (step.command, *step.inner):
        for index, word in enumerate(words):
            if script.is_server(word.text):
                own = words[index + 1 :]
                is_rank = any(each.text == _RANK_COMMAND for each in own[:1])
                return None if is_rank else word, own
    return None, ()


def _step(step: Step, job: Job, folder: Path) -> Iterator[Diagnostic]:
    """What one step lacks by itself."""
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
    exported = "SLURM_KILL_BAD_EXIT=1" in job.text
    if (launched or (tasks or 1) > 1) and kills == "0" and not exported and "wait" not in options:
        what = "srun goes on when one of its ranks dies"
        yield job_diagnostic("job-kill-on-bad-exit", step.location, what, "srun")
    for word in launched:
        if word in step.command and word.certain and re.search(r"[\s*?\[\]{}\"']", word.text):
            what = f"{word.text[:40]!r} does not survive {script.LAUNCHER}"
            yield job_diagnostic("job-launcher-quoting", word.location, what)
    yield from _spawner(step)


def _spawner(step: Step) -> Iterator[Diagnostic]:
    """An mpirun inside of a step, where the variables of Slurm tell it to ask Slurm for nodes."""
    words = [word for words in (step.command, *step.inner) for word in words]
    spawners = [word for word in words if word.text.rpartition("/")[2] in _SPAWNERS]
    if spawners and not _CLEARED.search(" ".join(word.text for word in step.command)):
        what = f"{spawners[0].text} inside of srun finds the variables of Slurm"
        yield job_diagnostic("job-mpirun-in-srun", spawners[0].location, what)


def _ranks(step: Step, job: Job) -> int | None:
    """The tasks of a step, from its own options and what it inherits."""
    if "ntasks" in step.options:
        return whole(step.options["ntasks"])

    def number(name: str) -> int | None:
        return whole(step.options[name]) if name in step.options else job.number(name)

    nodes, each = number("nodes"), number("ntasks-per-node")
    if job.number("ntasks") and not {"nodes", "ntasks-per-node"} & step.options.keys():
        return job.number("ntasks")
    return nodes * each if nodes and each else None


def _world_size(words: Sequence[Word], job: Job, folder: Path) -> int | None:
    """The ranks that a server wants: from its flags, or from its option file, which the job writes
    or which lies beside it."""
    words, given = job.values.words(words), {}
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


@lru_cache(maxsize=4)
def _files(text: str) -> tuple[written.WrittenFile, ...]:
    read = script.read(text)
    return tuple(written.files(read.here, read.statements, text))


def _written(job: Job, name: str) -> Mapping[str, Any]:
    """The options of a file that a job writes, if it does so in one way."""
    rows = [row for row in _files(job.text) if row.name == name]
    data = rows[0].documents[0].data if len(rows) == 1 and not rows[0].is_open else None
    return data if isinstance(data, Mapping) else {}


def _together(job: Job) -> Iterator[Diagnostic]:
    """Steps that run at the same time: they share nodes only if told so, and never a port."""
    steps = _concurrent(job)
    apart = [row for row in steps if not {"overlap", "exact", "exclusive"} & row.options.keys()]
    total = job.number("nodes")
    wanted = [whole(row.options.get("nodes")) or total for row in apart]
    if total and len(apart) > 1 and (sought := sum(filter(None, wanted))) > total:
        what = f"{len(apart)} steps at a time want {sought} nodes, and the job has {total}"
        what = f"{what}: the last one waits for ever"
        yield job_diagnostic("job-overlap", apart[-1].location, what, "srun")
    elif not total and len(apart) > 1:
        what = (
            f"{len(apart)} steps run at a time: one that finds no nodes of its own waits for ever"
        )
        yield job_diagnostic("job-may-wait", apart[-1].location, what, "srun")
    owners: dict[tuple[str, str], Step] = {}
    for step in steps:
        port = _port(step)
        where = step.options.get("nodelist") or ("the node" if total == 1 else "")
        if port and where and owners.setdefault((where, port), step) is not step:
            what = f"port {port} is taken by another server of {where}"
            yield job_diagnostic("job-ports", step.location, what, "--port")


def _concurrent(job: Job) -> list[Step]:
    """Steps in the background up to the first wait, and the step in front of which they run."""
    found: list[Step] = []
    waits = (i for i, row in enumerate(job.commands) if row.words[0].text == "wait")
    wait = next(waits, len(job.commands))
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
    """Variables of the fabric that break the transfer between servers."""
    assigned = {}
    for row in job.commands:
        for word in row.words:
            name, equals, value = word.text.partition("=")
            if equals and name.startswith("UCX_"):
                assigned[name] = (value, word.location)
    tls, place = assigned.get(_LEAKED, ("", Location(1, 1)))
    nvlink = assigned.get("UCX_CUDA_IPC_ENABLE_MNNVL", ("", place))[0]
    if nvlink.lower() in ("y", "yes", "1", "on") and tls.startswith("^") and "cuda_ipc" in tls:
        what = f"{_LEAKED}={tls} takes away what UCX_CUDA_IPC_ENABLE_MNNVL={nvlink} needs"
        yield job_diagnostic("job-ucx-contradiction", place, what, _LEAKED)
    routers = [step for step in job.steps if _is_router(step)]
    if routers and _LEAKED not in job.text:
        what = f"servers hand KV caches over, and {_LEAKED} of the cluster may reach them"
        yield job_diagnostic("job-leaked-ucx", routers[0].location, what, _LEAKED)


def _is_router(step: Step) -> bool:
    words = (word for words in (step.command, *step.inner) for word in words)
    return step.serves and any(word.text == "disaggregated" for word in words)


def _end(job: Job) -> Iterator[Diagnostic]:
    """How the script ends, and whether its exit code is that of its servers."""
    steps = [step for step in job.steps if step.serves]
    if not steps:
        return
    last = job.commands[-1]
    if last.words[0].text == "scancel" and "SLURM_JOB" in " ".join(w.text for w in last.words):
        what = "the script cancels its own job"
        yield job_diagnostic("job-cancels-itself", last.words[0].location, what)
    background = [step for step in steps if step.in_background]
    if background:
        if background[-1].index >= _last_work(job):
            what = "the script is over while its servers run"
            yield job_diagnostic("job-wait", background[-1].location, what, "srun")
        elif [word.text for word in last.words] == ["wait"]:
            what = "wait without a process gives 0, whatever the servers gave"
            yield job_diagnostic("job-exit-code", last.words[0].location, what, "wait")
    yield from _swallowed(job, [step for step in steps if not step.in_background])


def _swallowed(job: Job, steps: Sequence[Step]) -> Iterator[Diagnostic]:
    """A server in the foreground whose exit code nothing hands on."""
    sets = " ".join(" ".join(w.text for w in row.words) for row in job.commands)
    errexit = re.search(r"\bset -\w*e", sets) or re.match(r"#!.*\s-\w*e", job.text)
    over = _last_work(job)
    for step in steps:
        following = job.commands[step.index + 1 : step.index + 2]
        then = following[0].words[0].text if following else ""
        if step.statement.end == "||" and then in ("true", ":", "echo"):
            yield job_diagnostic(
                "job-exit-code", step.location, f"|| {then} hides that a server failed", "srun"
            )
        elif step.statement.end in ("|", "|&") and "pipefail" not in sets:
            what = f"of a pipe the exit code is that of {then}"
            yield job_diagnostic("job-exit-code", step.location, what, "srun")
        elif following and not errexit and step.index >= over:
            what = f"the exit code of the script is that of {job.commands[-1].words[0].text}"
            yield job_diagnostic("job-exit-code", step.location, what, "srun")


def _last_work(job: Job) -> int:
    """Where the last command stands that works or waits."""
    busy = (index for index, row in reversed([*enumerate(job.commands)]) if not _is_idle(row))
    return next(busy, -1)


def _is_idle(row: Statement) -> bool:
    text = " ".join(word.text for word in row.words)
    return row.words[0].text in _IDLE or _PASSING.fullmatch(text) is not None


def line_ends(path: Path) -> Iterator[Diagnostic]:
    """Line ends that the text no longer shows."""
    if b"\r\n" in read_bytes(path):
        what = "has the line ends of DOS: sbatch refuses it"
        yield job_diagnostic("job-line-ends", Location(1, 1), what)
