"""Checks job scripts: the submission, steps that run at the same time, and the exit code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from ...diagnostics import Diagnostic, Location, closest, located, nearest
from ...documents import DATA
from ...facts import data_file, plain_data
from ...facts.release import Release
from ...files import read_bytes
from ...general_rules import Rule
from ...rules import flags as server_flags
from ..engine import MPI_STARTERS, default_formats, is_server, rank_launcher
from ..model import OptionsBlock, Server, Statement, Word, whole
from ..read.option_file import read_option_file
from ..read.slurm import Job, Option, Step, option_names, table
from .gpus import world_size

_SIZES = ("tensor_parallel_size", "pipeline_parallel_size")
_CLEARED = re.compile(r"(\bunset\b|\s-u).*\b(SLURM_|PMIX?_)|\benv -i\b", re.DOTALL)
# Commands that neither work nor wait. If only these follow the background steps, the script ends
# while the steps still run.
_IDLE = frozenset(("echo", "printf", "date", "fi", "done", "}", "true", "set", "export", ":"))
_PASSING = re.compile(r"[A-Za-z_]\w*=\S*|sleep \d{1,3}")
_LEAKED, _NVLINK = "UCX_TLS", "UCX_CUDA_IPC_ENABLE_MNNVL"
_PLUGIN = "container-"  # options of pyxis
_COUNTS, _HOSTS = ("-n", "-np"), ("-H", "-host", "--host")
_SPREADING = ("hostfile", "machinefile", "f", "ppn", "npernode", "N")  # over hosts


def job_diagnostic(
    rule: str, place: Location, what: str, path: str = "", remedy: str = ""
) -> Diagnostic:
    """A diagnostic of a job script rule at a place in the script."""
    known = job_rules()[rule]
    return located(place, path, what, remedy or known.docs.partition("\n")[0], known)


@cache
def job_rules() -> Mapping[str, Rule]:
    """The rules of job scripts by id."""
    table = data_file.load(DATA / "formats" / "job_scripts.yaml", plain_data.JOB_SCRIPTS_FILE)
    return {
        id: Rule(
            id,
            f"A job script of Slurm: {row['fix']}.",
            row["severity"],
            "\n\nSource: ".join(filter(None, (row["fix"], row.get("source")))),
        )
        for id, row in table["rules"].items()
    }


def job_diagnostics(job: Job, folder: Path, block: int | None) -> Iterator[Diagnostic]:
    """Runs all checks on a job script. `block` is the nodes per block, if known."""
    yield from _submission_diagnostics(job, block)
    for step in job.steps:
        if step.serves:
            yield from _step_diagnostics(step, job, folder)
    yield from _concurrency_diagnostics(job)
    yield from _ucx_diagnostics(job)
    yield from _end_diagnostics(job)


def step_rank_diagnostics(job: Job, folder: Path) -> Iterator[Diagnostic]:
    """Checks the tasks of each step of a script, which may not be a job script."""
    for step in job.steps:
        if step.serves:
            yield from _task_diagnostics(step, job, folder)


def _words(step: Step) -> Sequence[Word]:
    """The words of a step and of the scripts inside it."""
    return [*step.command, *chain.from_iterable(step.inner)]


def _spawner(step: Step) -> Word | None:
    """The word of a step that starts the processes of MPI."""
    for word in _words(step):
        if word.text.rpartition("/")[2] in MPI_STARTERS:
            return word
    return None


def _task_diagnostics(step: Step, job: Job, folder: Path) -> Iterator[Diagnostic]:
    """Checks the number of tasks of a step against the ranks of its server."""
    tasks, launched = _task_count(step, job), step.ranks_command
    world = _world_size(launched, job, folder)
    if tasks is not None and world is not None and tasks != world:
        what = f"{tasks} tasks for a server of {world} ranks"
        inherited = None if "ntasks" in step.options else job.option("ntasks")
        place = inherited.location if inherited else step.location
        yield job_diagnostic("job-ranks", place, what, "srun --ntasks")
    if launched or (tasks or 1) < 2 or _spawner(step):
        return
    started, own = _server(step)
    if started and _world_size(own, job, folder) == tasks:  # else separate servers may be intended
        what = f"each of {tasks} tasks starts its own server"
        yield job_diagnostic("job-launcher", started.location, what)


def _server(step: Step) -> tuple[Word | None, Sequence[Word]]:
    """The program of a step's server and its words; `None` if the program is itself a rank."""
    for words in (step.command, *step.inner):
        for index, word in enumerate(words):
            if is_server(word.text):
                own = words[index + 1 :]
                is_rank = bool(own) and own[0].text in default_formats().rank_commands
                return None if is_rank else word, own
    return None, ()


def _step_diagnostics(step: Step, job: Job, folder: Path) -> Iterator[Diagnostic]:
    options, launched = step.options, step.ranks_command
    if "ntasks" not in options:
        what = "srun has no -n: Slurm guesses the tasks"
        yield job_diagnostic("job-ntasks", step.location, what, "srun")
    yield from _task_diagnostics(step, job, folder)
    kills = options.get("kill-on-bad-exit", "1") != "0" and "kill-on-bad-exit" in options
    kills |= "SLURM_KILL_BAD_EXIT=1" in job.script.text or "wait" in options
    if not kills and (launched or (_task_count(step, job) or 1) > 1):
        what = "srun keeps running when one of its ranks dies"
        yield job_diagnostic("job-kill-on-bad-exit", step.location, what, "srun")
    for word in launched:
        if word in step.command and word.certain and re.search(r"[\s*?\[\]{}\"']", word.text):
            what = f"{word.text[:40]!r} does not survive {rank_launcher()}"
            yield job_diagnostic("job-launcher-quoting", word.location, what)
    if (spawner := _spawner(step)) and not _CLEARED.search(_text(step.command)):
        what = f"{spawner.text} inside of srun finds the variables of Slurm"
        yield job_diagnostic("job-mpirun-in-srun", spawner.location, what)


def _text(words: Sequence[Word]) -> str:
    return " ".join(word.text for word in words)


def _task_count(step: Step, job: Job) -> int | None:
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
    file, or the file is in the same folder. `None` if neither sets a parallel size."""
    server = _of_words(job.script.values.words(words))
    file = server.file_path
    options = (_written(job, file) or read_option_file(file, folder)) if file else {}
    sizes = {name: options[name] for name in _SIZES if name in options} | server.sizes
    return world_size(sizes) if sizes else None


def _of_words(words: Sequence[Word]) -> Server:
    return Server(tuple(words))


def _written(job: Job, name: str) -> Mapping[str, Any]:
    """The options of a file that a job writes, if the job writes it exactly once."""
    rows = [row for row in job.written if row.name == name]
    data = rows[0].documents[0].data if len(rows) == 1 and not rows[0].is_open else None
    return data if isinstance(data, Mapping) else {}


def _concurrency_diagnostics(job: Job) -> Iterator[Diagnostic]:
    """Checks steps that run at the same time. They share nodes only if their options allow it, and
    they never share a port."""
    steps = _concurrent(job)
    apart = [row for row in steps if not {"overlap", "exact", "exclusive"} & row.options.keys()]
    total = job.number("nodes")
    sought = sum(whole(row.options.get("nodes")) or total or 0 for row in apart)
    if total and len(apart) > 1 and sought > total:
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
    waits = (
        index for index, row in enumerate(job.script.statements) if row.words[0].text == "wait"
    )
    wait = next(waits, len(job.script.statements))
    for step in job.steps:
        if wait < step.index and found:
            break
        if step.in_background or found:
            found.append(step)
    return found


def _port(step: Step) -> str:
    for words in (step.command, *step.inner):
        server = _of_words(words)
        found = server.flag(("--port",)) or server.flag(("--http-port",))
        if found and found[0].isdigit():
            return found[0]
    return ""


def _ucx_diagnostics(job: Job) -> Iterator[Diagnostic]:
    """Reports UCX variables that break the KV cache transfer between servers."""
    assigned = {}
    for word in chain.from_iterable(row.words for row in job.script.statements):
        name, equals, value = word.text.partition("=")
        if equals and name in (_LEAKED, _NVLINK):
            assigned[name] = (value, word.location)
    tls, place = assigned.get(_LEAKED, ("", Location(1, 1)))
    nvlink = assigned.get(_NVLINK, ("", place))[0]
    if nvlink.lower() in ("y", "yes", "1", "on") and tls.startswith("^") and "cuda_ipc" in tls:
        what = f"{_LEAKED}={tls} removes what {_NVLINK}={nvlink} needs"
        yield job_diagnostic("job-ucx-contradiction", place, what, _LEAKED)
    for step in job.steps:
        is_router = step.serves and any(word.text == "disaggregated" for word in _words(step))
        if is_router and _LEAKED not in job.script.text:
            what = f"servers transfer KV caches, and the cluster may set {_LEAKED} for them"
            yield job_diagnostic("job-leaked-ucx", step.location, what, _LEAKED)
            break


def _end_diagnostics(job: Job) -> Iterator[Diagnostic]:
    """Checks how the script ends and whether it returns the exit code of its servers."""
    steps = [step for step in job.steps if step.serves]
    if not steps:
        return
    last = job.script.statements[-1]
    if last.words[0].text == "scancel" and "SLURM_JOB" in _text(last.words):
        what = "the script cancels its own job"
        yield job_diagnostic("job-cancels-itself", last.words[0].location, what)
    busy = [index for index, row in enumerate(job.script.statements) if not _is_idle(row)]
    last_work = busy[-1] if busy else -1
    background = [step for step in steps if step.in_background]
    if background and background[-1].index >= last_work:
        what = "the script ends while its servers run"
        yield job_diagnostic("job-wait", background[-1].location, what, "srun")
    elif background and _text(last.words) == "wait":
        what = "wait without a process returns 0, whatever the servers returned"
        yield job_diagnostic("job-exit-code", last.words[0].location, what, "wait")
    sets = " ".join(_text(row.words) for row in job.script.statements)
    errexit = re.search(r"\bset -\w*e", sets) or re.match(r"#!.*\s-\w*e", job.script.text)
    for step in steps:
        if step.in_background:
            continue
        following = job.script.statements[step.index + 1 : step.index + 2]
        then, what = following[0].words[0].text if following else "", ""
        if step.statement.end == "||" and then in ("true", ":", "echo"):
            what = f"|| {then} hides that a server failed"
        elif step.statement.end in ("|", "|&") and "pipefail" not in sets:
            what = f"the exit code of a pipe is that of {then}"
        elif following and not errexit and step.index >= last_work:
            what = f"the exit code of the script is that of {last.words[0].text}"
        if what:
            yield job_diagnostic("job-exit-code", step.location, what, "srun")


def _is_idle(row: Statement) -> bool:
    return row.words[0].text in _IDLE or _PASSING.fullmatch(_text(row.words)) is not None


def line_end_diagnostics(path: Path) -> Iterator[Diagnostic]:
    """Reports DOS line ends, which the decoded text no longer shows."""
    if b"\r\n" in read_bytes(path):
        what = "has DOS line endings: sbatch refuses it"
        yield job_diagnostic("job-line-ends", Location(1, 1), what)


def _submission_diagnostics(job: Job, block: int | None) -> Iterator[Diagnostic]:
    if not job.script.text.startswith("#!"):
        what = "the first line is not a #! line: sbatch refuses it"
        yield job_diagnostic("job-shebang", Location(1, 1), what)
    for option in job.late:
        what = "is below a command, where sbatch does not read it"
        yield job_diagnostic("job-late-directive", option.location, what, f"--{option.name}")
    for word in job.stray:
        what = f"{word.text[:40]!r} is not an option: sbatch refuses the script"
        yield job_diagnostic("job-stray-word", word.location, what)
    for part in job.parts:
        for option in part:
            yield from _option_diagnostics(option)
        yield from _contradiction_diagnostics({row.name: row for row in part}, block)
    for option in chain.from_iterable(step.given for step in job.steps):
        if not option.known:
            yield from _unknown_option_diagnostics(option, "srun")


def _option_diagnostics(option: Option) -> Iterator[Diagnostic]:
    """Checks one sbatch option and its value."""
    form, options = _forms().get(option.name), table()["sbatch"]
    rule, what, fix = "job-value", "", ""
    if not option.known:
        yield from _unknown_option_diagnostics(option, "sbatch")
    elif option.value is None and option.name in options["values"]:
        what, fix = "has no value", "give it one"
    elif option.value is not None and option.name in options["flags"]:
        what, fix = "takes no value", "drop the value"
    elif form and not re.fullmatch(form["pattern"], option.value or "", re.IGNORECASE):
        rule, what, fix = form["rule"], f"cannot be {option.value}", form["fix"]
    elif option.name == "nodes" and (ends := _range(option)) and ends[0] > ends[1]:
        what = f"at least {ends[0]} nodes are more than at most {ends[1]}"
    if what:
        yield job_diagnostic(rule, option.location, what, f"--{option.name}", fix)


@cache
def _forms() -> Mapping[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    for form in table()["forms"]:
        found |= dict.fromkeys(form["options"], form)
    return found


def _unknown_option_diagnostics(option: Option, program: str) -> Iterator[Diagnostic]:
    """Reports an option that Slurm does not have. If it resembles none of Slurm's options, it may
    belong to a plug-in."""
    names, rule, path = option_names(program), "job-unknown-option", f"--{option.name}"
    if option.letter:
        yield job_diagnostic(rule, option.location, "is unknown", f"-{option.name}")
    elif not option.name.startswith(_PLUGIN) and closest(option.name, names):
        remedy = nearest(option.name, names)
        yield job_diagnostic(rule, option.location, "is unknown", path, remedy)
    elif program == "sbatch":
        what = "is not an option of sbatch, which refuses it where no plug-in has it"
        yield job_diagnostic("job-plugin-option", option.location, what, path)


def _contradiction_diagnostics(
    options: Mapping[str, Option], block: int | None
) -> Iterator[Diagnostic]:
    """Reports options in one part of a job that contradict each other."""
    for names in table()["alternatives"]:
        both = [options[name] for name in names if name in options]
        if len(both) > 1:
            what = f"conflicts with --{both[0].name}: only one can be set"
            yield job_diagnostic("job-contradiction", both[1].location, what, f"--{both[1].name}")
    _, most = _range(options.get("nodes")) or (0, 0)
    tasks, each, size = (
        whole(options[name].value) if name in options else None
        for name in ("ntasks", "ntasks-per-node", "segment")
    )
    if most and tasks and each and tasks > most * each:
        what = f"{tasks} tasks do not fit on {most} nodes with {each} each"
        yield job_diagnostic("job-contradiction", options["ntasks"].location, what, "--ntasks")
    if size and most % size:
        what = f"segments of {size} do not divide {most} nodes evenly"
        yield job_diagnostic("job-segment", options["segment"].location, what, "--segment")
    elif size and size > (limit := block or table()["largest_block"]):
        what = f"{size} nodes do not fit into one block of {limit}"
        rule = "job-segment" if block else "job-wide-segment"
        yield job_diagnostic(rule, options["segment"].location, what, "--segment")


def _range(nodes: Option | None) -> tuple[int, int] | None:
    """The minimum and maximum number of nodes, if they are plain numbers."""
    ends = [whole(end) for end in ((nodes and nodes.value) or "").split("-")]
    least, most = ends[0], ends[-1]
    return None if least is None or most is None else (least, most)


def mpi_diagnostics(
    words: Sequence[Word],
    command: OptionsBlock,
    options: Mapping[str, Mapping[str, Any]],
    release: Release,
) -> Iterator[Diagnostic]:
    """Checks the processes that MPI starts against the ranks of the server: behind the launcher
    each is a rank, without it each is a server. Processes that are spread over several hosts may be
    meant as servers, unless their number is that of the ranks. `words` are the words before the
    server."""
    names = {word.text.rpartition("/")[2] for word in words}
    if names.isdisjoint(MPI_STARTERS) or not release.engine.rank_launcher:
        return
    world, file = None, command.option_file
    file_options = options.get(file.text.rpartition("/")[2]) if file else {}
    if file_options is not None:  # the option file may set parallel sizes too
        flags = {row.spelling: row.value.text for row in command.flags if row.value}
        world = world_size(server_flags.with_flags(flags, file_options, release))
    spread = any(_is_spread(word.text, following.text) for word, following in pairwise(words))
    launcher = rank_launcher()
    for word, following in pairwise(words):
        is_count = word.text in _COUNTS and following.certain
        count = whole(following.text) if is_count else None
        if not count:
            continue
        if launcher in names and world and world > 1 and count != world:
            what = f"{count} processes for a server of {world} ranks"
            fix = f"give {world}, or parallel sizes that multiply to {count}"
            yield job_diagnostic("job-ranks", following.location, what, word.text, fix)
        # The rules for job scripts report srun.
        is_alone = count > 1 and not names & {launcher, "srun"}
        if is_alone and not (spread and count != world):
            what = f"{count} processes of MPI start a server each, all at one port"
            fix = f"put {launcher} before the server, so that they are the ranks of one"
            yield job_diagnostic("job-launcher", following.location, what, word.text, fix)


def _is_spread(flag: str, value: str) -> bool:
    """Whether a flag may distribute processes over several hosts."""
    if flag in _HOSTS:
        return "," in value or "$" in value
    is_by_node = flag == "--map-by" and "node" in value
    return is_by_node or flag.lstrip("-").partition("=")[0] in _SPREADING
