"""Submits a bundle: checks it, tries it on a node if requested, and hands it to Slurm."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from builder import bundle as bundles
from builder.bundle import Bundle
from builder.diagnostics import Diagnostic
from builder.errors import BadInput, ChecksFailed, NotReady
from builder.files import reported
from supervisor import state
from supervisor.state import JobFolder, ServiceFolder

from .. import engine as engines
from .. import trust
from ..target import named_checkpoints
from . import description, jobs, scheduler, services
from .jobs import LAST_LINES, Say

SERVE, PREFLIGHT, BENCH = "serve.sbatch", "preflight.sbatch", "bench.sbatch"
# What a job tells its successors; one that an operator submits inherits none of it.
OF_ANOTHER_JOB = (state.PREDECESSOR, state.CANARY, state.SUBMIT_OPTIONS)
# Options of sbatch with which it starts no job, waits for its end, or starts several where one is
# meant.
UNFIT = ("array", "wait", "wrap", "test-only", "help", "usage", "version")
UNFIT_LETTERS = {"a": "array", "W": "wait", "h": "help", "u": "usage", "V": "version"}
PLAIN_LETTERS = "HIkOQsv"  # that take no value: others may follow in the same word
COPIES = "bundles"  # of a service, each verified
COMPLETE = "whole"  # marks the folder of a reference engine that was prepared to its end


@dataclass(frozen=True, slots=True)
class Submission:
    """A bundle with the service that its jobs belong to.

    `source` is the folder that the operator named. `document` is the bundle's service.json,
    `options` are for sbatch, `variables` for the jobs' environment.
    """

    source: Path
    bundle: Bundle
    document: Mapping[str, Any]
    service: ServiceFolder
    options: tuple[str, ...]
    variables: Mapping[str, str]

    def script(self, name: str) -> Path:
        return self.bundle.folder / "slurm" / name

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a job, which its successors inherit with its options."""
        kept = {k: v for k, v in scheduler.job_environment().items() if k not in OF_ANOTHER_JOB}
        return {
            **kept,
            "BUNDLE": str(self.bundle.folder),
            state.BUNDLE_DIGEST: self.bundle.digest,
            state.STATE_FOLDER: str(self.service.root),
            state.SUBMIT_OPTIONS: json.dumps(self._sbatch()),
            **self.variables,
        }

    @property
    def drain_s(self) -> float:
        """How long a job of the bundle may take to drain and to stop."""
        stop_s = max(step["stop_timeout_s"] for step in self.document["steps"])
        return float(self.document["time"]["drain_s"] + stop_s)

    def with_private_copy(self, requirements: tuple[trust.Requirement, ...]) -> Submission:
        """The same with a copy of the bundle next to the state of the service.

        Jobs may start days after they were submitted; the copy is what was verified.
        """
        folder = self.service.path / COPIES / self.bundle.digest[:16]
        if folder == self.bundle.folder:
            return self
        remedy = "see the disk, or name another state folder with --state"
        with reported(folder, "cannot be written", remedy):
            copy = trust.private_copy(self.bundle, folder, requirements)
        document = state.read_json(copy.folder / "slurm" / "service.json")
        assert document is not None
        return replace(self, bundle=copy, document=document)

    def with_variables(self, variables: Mapping[str, str]) -> Submission:
        return replace(self, variables={**self.variables, **variables})

    def check(self) -> None:
        """Raises `BadInput` where Slurm would refuse the scripts."""
        diagnostics: list[Diagnostic] = []
        for name in (SERVE, PREFLIGHT):
            diagnostics += scheduler.check(self.script(name), self.options, self.environment)
        if diagnostics:
            raise BadInput(diagnostics)

    def submit(self) -> JobFolder:
        self.service.path.mkdir(parents=True, exist_ok=True)
        script = self.script(SERVE)
        job = self.service.job(scheduler.submit(script, self._sbatch(), self.environment))
        job.path.mkdir(parents=True, exist_ok=True)
        facts = {
            "format": state.FORMAT,
            "job_id": job.id,
            "bundle": str(self.source),
            "bundle_digest": self.bundle.digest,
            "submitted": state.timestamp(),
            "sbatch": list(self.options),
        }
        state.write_json(job.path / state.SUBMISSION, facts)
        with suppress(OSError):  # whoever asks for it then needs --state
            services.remember(self.service)
        return job

    def preflight(self, timeout_s: float, say: Say) -> None:
        """Check a node by a short job. Raises `ChecksFailed` with every check that failed."""
        self.service.path.mkdir(parents=True, exist_ok=True)
        log = self.service.path / "preflight-%j.log"
        options = ["--export=ALL", f"--output={log}", *self.options]
        job = self.service.job(scheduler.submit(self.script(PREFLIGHT), options, self.environment))
        say(f"job {job.id}: preflight")
        try:
            if not jobs.Watch(job, say).until_gone(timeout_s):
                what = f"has not ended after {timeout_s:g} s"
                raise NotReady(Diagnostic(f"preflight job {job.id}", what, "see: squeue --start"))
        except BaseException:
            scheduler.cancel(job.id)
            raise
        found = state.read_json(job.path / state.PREFLIGHT)
        if found is None:
            path = self.service.path / f"preflight-{job.id}.log"
            text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
            last = "".join(f"\n    {line}" for line in text.splitlines()[-LAST_LINES:])
            raise NotReady(
                Diagnostic(f"preflight job {job.id}", f"left no result; {path} ends:{last}")
            )
        for row in found["checks"]:
            say(f"  {'ok  ' if row['ok'] else 'FAIL'} {row['check']}: {row['what']}")
        if failed := [row for row in found["checks"] if row["ok"] is False]:
            where = f"preflight on {found['node']}"
            raise ChecksFailed(
                [Diagnostic(f"{where}: {row['check']}", row["what"]) for row in failed]
            )

    def _sbatch(self) -> list[str]:
        name = self.service.name  # what a job is known by
        log = self.service.job("%j").log
        return ["--export=ALL", f"--output={log}", *self.options, f"--job-name={name}"]


def read_bundle(
    folder: Path, root: Path | None, options: Sequence[str] = (), engine: str | None = None
) -> Submission:
    """A complete bundle that has a job. Raises `BadInput` or `DamagedBundle`.

    The reference engine serves a miniature, whatever checkpoint the environment names.
    """
    for option in options:  # Slurm accepts the beginning of a long one
        name = option.partition("=")[0].removeprefix("--")
        long = [one for one in UNFIT if one == name or (len(name) > 1 and one.startswith(name))]
        unfit = long[0] if option.startswith("--") and long else None
        if not option.startswith("--"):
            unfit = UNFIT_LETTERS.get(option[1:].lstrip(PLAIN_LETTERS)[:1])
        if unfit:
            what = f"is not for the jobs of a bundle (sbatch --{unfit})"
            raise BadInput(Diagnostic(f"--sbatch={option}", what, "leave it out"))
    bundle = bundles.read(folder)
    document = state.read_json(bundle.folder / "slurm" / "service.json")
    if document is None:
        remedy = "render it with target slurm and a site profile"
        raise BadInput(Diagnostic(str(folder), "has no target slurm", remedy))
    description.check(document, bundle.folder / "slurm" / "service.json")
    service = ServiceFolder(services.root(root, document), document["name"])
    _check_writable(service.root)
    variables = named_checkpoints(os.environ)
    if engine == engines.REFERENCE:
        prepared = service.root / ".reference" / bundle.digest[:16]
        variables = _reference_engine(bundle, prepared)
    return Submission(bundle.folder, bundle, document, service, tuple(options), variables)


def check_free(service: ServiceFolder) -> None:
    """Raises `BadInput` if the service has a job already."""
    if alive := jobs.alive_jobs(service):
        what = f"has job {alive[-1].id} already, {alive[-1].summary}"
        remedy = "replace it, stop it, or name another state folder with --state"
        raise BadInput(Diagnostic(f"service {service.name}", what, remedy))


def _check_writable(root: Path) -> None:
    remedy = "name a folder that this host and all nodes see with --state"
    with reported(root, "cannot be made", remedy):
        root.mkdir(parents=True, exist_ok=True)
    if not os.access(root, os.W_OK):
        raise BadInput(Diagnostic(str(root), "is not writable", remedy))


def _reference_engine(bundle: Bundle, folder: Path) -> dict[str, str]:
    """Variables with which jobs serve a miniature, prepared once in a folder that nodes see."""
    if not (folder / COMPLETE).exists():
        shutil.rmtree(folder, ignore_errors=True)
        from builder import miniature
        from builder.facts import checkpoint, servers  # with numpy, which nothing else here needs

        from .. import triton

        (folder / "miniature").mkdir(parents=True)
        miniature.write(checkpoint.from_bundle(bundle.folder), folder / "miniature")
        engines.path_entries("reference", folder / "python", lambda path: path)
        programs = {servers.load(name).program for name in bundle.launch["targets"]}
        if triton.PROGRAM in programs:
            triton.prepare(folder / "tritonserver")
        (folder / COMPLETE).touch()
    entries = [folder / "python" / "bin", engines.REFERENCE_FOLDER / "bin"]
    launcher = folder / "tritonserver" / "bin"
    entries += [launcher] if launcher.is_dir() else []
    engine = bundle.launch["engine"]
    return {
        "PATH": os.pathsep.join([*map(str, entries), os.environ.get("PATH", os.defpath)]),
        "CHECKPOINT": str(folder / "miniature"),
        f"{engine['name'].upper()}_REFERENCE_RELEASE": engine["release"],
    }
