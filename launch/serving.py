"""Serves a target: starts its script with an engine, waits until it is ready, and stops it."""

from __future__ import annotations

import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TextIO

from builder import miniature
from builder.diagnostics import Diagnostic
from builder.documents import dump_yaml, load_yaml_mapping
from builder.errors import BadFacts, BadInput, NotReady
from builder.facts import checkpoint as checkpoints
from builder.facts import engines as known_engines
from builder.facts.checkpoint import Checkpoint
from builder.files import parse_json
from supervisor.checks import http_request

from . import cpu_build, diagnose, diagnosis_text, triton
from . import engine as engines
from .engine import AsciiName
from .process import Interrupted, Interrupts, ServerProcess
from .run import Run, now
from .start import CHECKPOINT_BYTES, Start
from .target import CHECKPOINTS, Target

# To end when asked before it was ready: there is nothing yet that it could answer, and vLLM may not
# end at all when it is asked while its engine starts.
UNREADY_GRACE_S = 10.0
# Of a log line in an error: Triton writes a whole traceback as one.
LINE_LENGTH = 300
POLL_S = 0.2
PROBE_TIMEOUT_S = 2.0
PLAIN_PERIOD_S = 10.0
WEIGHTS = "*.safetensors"
FACTS = "memory.facts.yaml"  # in a run folder
DRAFT = CHECKPOINTS[1]

State = Literal["ready", "died", "timed_out"]


@contextmanager
def serve(
    target: Target,
    engine: str,
    run: Run,
    interrupts: Interrupts,
    *,
    start_timeout_s: float,
    stop_grace_s: float,
) -> Iterator[tuple[Target, ServerProcess]]:
    """The target as it was started and its ready server, for as long as the block runs.

    Its evidence goes to `run`. It may take `start_timeout_s` to become ready, and `stop_grace_s` to
    end when asked.

    Raises `NotReady` if the server died or ran out of time, `BadInput` if it needs several nodes.
    """
    target.check_nodes()
    target = _with_unique_names(target)
    _record_target(target, run)
    with ExitStack() as stack:
        ascii_path = stack.enter_context(triton.ascii_paths())
        named = {
            name: str(ascii_path(Path(value)))
            for name, value in target.checkpoints.items()
            if Path(value).is_dir()
        }
        target = replace(target, folder=ascii_path(target.folder)).with_environment(**named)
        # Empty: Triton's Python imports from it first, and a bundle has a folder named `triton`.
        folder = run.folder / "work"
        folder.mkdir()
        server = ServerProcess(
            target.command,
            cwd=folder,
            environment=_environment(target, engine, ascii_path(run.folder), ascii_path),
            log=run.log,
            grace_s=stop_grace_s,
            interrupts=interrupts,
        )
        stack.callback(_ended, target, run, server)
        with interrupts.held():
            stack.enter_context(server)
        server.grace_s = min(stop_grace_s, UNREADY_GRACE_S)
        stack.push(partial(_stopping, target, server))
        start = Start.of_run(run, _planned(target, run))
        progress = Progress(target.name, start=start)
        state, elapsed_s = wait_until_ready(
            server,
            lambda: is_ready(target) and server.owns(target.host, target.ports.values()),
            start_timeout_s,
            progress,
        )
        if state != "ready":
            status = server.exit_status(0) if state == "died" else None
            run.record(outcome=state, exit_status=status, **start.facts())
            what = "was not ready" if status is None else f"died with exit status {status}"
            raise not_ready(target, f"{what} after {elapsed_s:.1f} s", run, server)
        server.grace_s = stop_grace_s
        run.record(outcome="ready", ready=now(), ready_after_s=round(elapsed_s, 2), **start.facts())
        compare_options(target, run, start)
        yield target, server


def _record_target(target: Target, run: Run) -> None:
    folder = target.environment["CHECKPOINT"]
    size = sum(file.stat().st_size for file in Path(folder).glob(WEIGHTS))
    facts = {"host": target.host, "ports": dict(target.ports), "checkpoint": folder}
    run.record(**facts, **{CHECKPOINT_BYTES: size})


def _stopping(target: Target, server: ServerProcess, _: object, cause: object, __: object) -> None:
    if isinstance(cause, Interrupted):
        say_stopping(target, server, cause)


def say_stopping(target: Target, server: ServerProcess, cause: Interrupted) -> None:
    """Say what stops the server, and how long it may take to answer what it has."""
    limit = f"within {server.grace_s:g} s; again to stop at once"
    print(f"{target.name}: stopping after {cause}, {limit}", file=sys.stderr, flush=True)


def _planned(target: Target, run: Run) -> dict[str, Any]:
    return diagnose.planned(target.folder, run.facts["engine"]["rehearsal"])


def compare_options(target: Target, run: Run, start: Start) -> None:
    rows = start.in_force()
    run.record(options=diagnosis_text.options(rows))
    for row in rows:
        if row.differs:
            what = f"planned {row.planned}, in force {row.in_force} {row.unit}".rstrip()
            place = f"{row.line.file}:{row.line.number}"
            print(f"warning: {target.name}: {row.name}: {what} ({place})", file=sys.stderr)
    if measured := start.measured(target.folder):
        file = run.folder / FACTS
        file.write_text(dump_yaml(measured), encoding="utf-8")
        print(
            f"{target.name}: measured memory in {file}, for builder plan --facts", file=sys.stderr
        )


def not_ready(target: Target, what: str, run: Run, server: ServerProcess) -> NotReady:
    """The error of a server that is not there: the diagnosis, or else the end of its log."""
    status = server.exit_status(0)
    state = diagnose.of_live(run.log) if status is None else {"exit_code": str(status)}
    found = Start.of_run(run, _planned(target, run)).diagnosis(state)
    shown = diagnosis_text.document(found)
    run.record(diagnosis=shown)
    lines = diagnosis_text.below_error(shown)
    if not found.causes:
        lines += tuple(line[:LINE_LENGTH] for line in server.last_lines())
    what = f"{what}; its log {run.log}{'' if lines else ' is empty'}"
    return NotReady(Diagnostic(f"target {target.name}", what, log=lines))


def with_checkpoint(target: Target, engine: str, run: Run) -> Target:
    """The target on its checkpoints.

    Engines without a GPU take a miniature where the model's checkpoint is not a folder of this
    machine, or has no weights, and say so. Raises `BadInput` for other engines where a path is not
    a folder.
    """
    if not (engine == engines.REFERENCE or engines.uses_cpu_build(engine)):
        return target.on_checkpoints_of(target.checkpoints)
    folders = {name: Path(value) for name, value in target.checkpoints.items()}
    folder = folders["CHECKPOINT"]
    is_bare = (folder / "config.json").is_file() and not any(folder.glob(WEIGHTS))
    if folder.is_dir() and not is_bare:
        here = {name: str(path.resolve()) for name, path in folders.items() if path.is_dir()}
        return target.with_environment(**here)
    why = "has no weights" if is_bare else "is not a folder of this machine"
    print(
        f"{target.name}: {folder} {why}; using a miniature with random weights",
        file=sys.stderr,
        flush=True,
    )
    return with_miniature(target, engine, run)


def with_miniature(target: Target, engine: str, run: Run) -> Target:
    """The target on a tiny checkpoint of the same architecture, made in the run folder."""
    folder = run.folder / "miniature"
    folder.mkdir()
    checkpoint = checkpoints.from_bundle(target.folder)
    build = known_engines.load(engine).cpu_build if engines.uses_cpu_build(engine) else None
    if not build and DRAFT not in target.checkpoints:
        miniature.write(checkpoint, folder)
        return target.with_environment(CHECKPOINT=str(folder))
    if not build:
        drafted = run.folder / "miniature-draft"
        drafted.mkdir()
        miniature.write_pair(checkpoint, _draft(target, checkpoint), folder, drafted)
        return target.with_environment(CHECKPOINT=str(folder), DRAFT_CHECKPOINT=str(drafted))
    cpu_build.write_miniature(build, checkpoint, folder)
    # A draft model has to know the model's words, as the miniature itself does.
    return target.with_environment(**dict.fromkeys(target.checkpoints, str(folder)))


def _draft(target: Target, model: Checkpoint) -> Checkpoint | None:
    """The facts of a target's draft model; where they are unknown, the model's own.

    `None` for an unknown head: its form is known.
    """
    try:
        given = checkpoints.in_bundle(target.folder).get("draft")
        return given or checkpoints.gather(target.checkpoints[DRAFT], target.folder)
    except (BadFacts, BadInput):
        request = load_yaml_mapping(target.folder / "deployment.yaml")
        return None if request["draft"]["method"] == "eagle3" else model


def _with_unique_names(target: Target) -> Target:
    """Names that no other server has: to know it by, and to sweep its shared memory by."""
    mark = uuid.uuid4().hex[:12]
    names = {
        variable: f"{target.environment[variable]}-{mark}"
        for variable in ("SERVE_ID", "SERVE_SHM_PREFIX")
        if variable in target.environment
    }
    return target.with_environment(**names)


def _environment(
    target: Target, engine: str, folder: Path, ascii_path: AsciiName
) -> dict[str, str]:
    entries = engines.path_entries(engine, folder / "python", ascii_path)
    if target.server.program == triton.PROGRAM:
        found = triton.prepare(folder / triton.PROGRAM)
        entries += [found] if found else []
    path = os.pathsep.join([*map(str, entries), os.environ.get("PATH", os.defpath)])
    added = engines.variables(engine)
    if engine == engines.REFERENCE:
        added = {f"{target.engine.upper()}_REFERENCE_RELEASE": target.release}
    return {**os.environ, **target.environment, **added, "PATH": path}


def _ended(target: Target, run: Run, server: ServerProcess) -> None:
    left = []
    if prefix := target.environment.get("SERVE_SHM_PREFIX"):
        left = triton.sweep_shared_memory(prefix)
    run.end(killed=server.killed, swept_shared_memory=left)
    if server.killed:
        print(f"{target.name}: did not end when asked and was killed", file=sys.stderr)


def wait_until_ready(
    server: ServerProcess, ready: Callable[[], bool], timeout_s: float, progress: Progress
) -> tuple[State, float]:
    """Ask `ready` until it is true, the server is dead, or `timeout_s` are over; the time taken."""
    start = time.monotonic()
    while True:
        status = server.exit_status(POLL_S)
        server.interrupts.check()
        elapsed_s = time.monotonic() - start
        if status is not None:
            state: State = "died"
        elif ready():
            state = "ready"
        elif elapsed_s >= timeout_s:
            state = "timed_out"
        else:
            progress.show(elapsed_s, server)
            continue
        progress.clear()
        return state, time.monotonic() - start


class Progress:
    """What a waiting user sees: one live line on a terminal, else a plain line now and then."""

    def __init__(self, label: str, stream: TextIO = sys.stderr, start: Start | None = None) -> None:
        self._label = label
        self._start = start
        self._stream = stream
        self._live = stream.isatty()
        self._next_s = 0.0 if self._live else PLAIN_PERIOD_S

    def show(self, elapsed_s: float, server: ServerProcess) -> None:
        if elapsed_s < self._next_s:
            return
        self._next_s = elapsed_s + (POLL_S if self._live else PLAIN_PERIOD_S)
        last = "".join(server.last_lines(1))
        told = [f"waiting {elapsed_s:.0f} s", f"log: {last}" if last else ""]
        if self._start:
            self._start.advance()
            told.insert(1, self._start.words)
        text = f"{self._label}: {', '.join(filter(None, told))}"
        if self._live:
            self._write(
                "\r\x1b[K"
                + "".join(filter(str.isprintable, text))[: shutil.get_terminal_size().columns - 1]
            )
        else:
            self._write(text + "\n")

    def clear(self) -> None:
        if self._live:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def is_ready(target: Target) -> bool:
    """Whether the target's server says that it is ready.

    Triton tells its id, so that another Triton on the same port cannot pass for it.
    """
    if target.ready_path is None:
        return _grpc_name(target) == target.environment["SERVE_ID"]
    if _get(target, target.ready_path) is None:
        return False
    if "SERVE_ID" not in target.environment:
        return True
    try:
        document = parse_json(_get(target, "/v2") or "null")
    except ValueError:
        return False
    return isinstance(document, dict) and document.get("name") == target.environment["SERVE_ID"]


def _grpc_name(target: Target) -> str | None:
    """The name of a Triton that is ready, asked over gRPC, where that is all that it listens on."""
    import grpc  # type: ignore[import-untyped]
    from tritonclient.grpc import service_pb2
    from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

    access = target.access()
    with access.channel(target.urls["grpc"], grpc) as channel:
        server = GRPCInferenceServiceStub(channel)
        options = {"timeout": PROBE_TIMEOUT_S, "metadata": access.grpc_metadata}
        try:
            if not server.ServerReady(service_pb2.ServerReadyRequest(), **options).ready:
                return None
            return str(server.ServerMetadata(service_pb2.ServerMetadataRequest(), **options).name)
        except grpc.RpcError:
            return None


def _get(target: Target, path: str) -> bytes | None:
    """The body of a 200 answer."""
    port, headers = target.ports[target.ready_port], target.access().http_headers
    try:
        status, body = http_request(target.host, port, path, PROBE_TIMEOUT_S, headers=headers)
    except OSError:
        return None
    return body if status == 200 else None
