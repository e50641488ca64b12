"""A submission: a bundle, checked and handed to Slurm as a job of its service."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from builder import bundle as bundles
from builder.bundle import Bundle
from builder.diagnostics import Diagnostic
from builder.errors import BadInput

from ..engine import REFERENCE
from ..run import now
from . import scheduler, stopping
from . import service as services
from .service import JobFolder, Service

SERVE, PREFLIGHT, BENCH = "serve.sbatch", "preflight.sbatch", "bench.sbatch"
# What a job tells its successors; a person's new job has none of it.
OF_ANOTHER_JOB = ("SERVICE_PREDECESSOR", "SERVICE_CANARY", "SERVICE_SUBMIT_OPTIONS")


@dataclass(frozen=True, slots=True)
class Submission:
    """A bundle with the service that its jobs belong to. `options` are for sbatch."""

    bundle: Bundle
    document: Mapping[str, Any]
    service: Service
    options: tuple[str, ...]
    variables: Mapping[str, str]

    def script(self, name: str) -> Path:
        return self.bundle.folder / "slurm" / name

    @property
    def environment(self) -> dict[str, str]:
        """That of a job: successors inherit it, and submit with the same options."""
        kept = {k: v for k, v in scheduler.outside().items() if k not in OF_ANOTHER_JOB}
        return {
            **kept,
            "BUNDLE": str(self.bundle.folder),
            services.VARIABLE: str(self.service.root),
            "SERVICE_SUBMIT_OPTIONS": json.dumps(self._sbatch("%j")),
            **self.variables,
        }

    def with_variables(self, **variables: str) -> Submission:
        return replace(self, variables={**self.variables, **variables})

    def check(self) -> None:
        """Raises `BadInput` with what Slurm has against the scripts."""
        problems = [
            problem
            for name in (SERVE, PREFLIGHT)
            for problem in scheduler.check(self.script(name), self.options, self.environment)
        ]
        if problems:
            raise BadInput(problems)

    def submit(self) -> JobFolder:
        """The new job, which Slurm has taken."""
        self.service.folder.mkdir(parents=True, exist_ok=True)
        script = self.script(SERVE)
        job = self.service.job(scheduler.submit(script, self._sbatch("%j"), self.environment))
        job.folder.mkdir(parents=True, exist_ok=True)
        facts = {
            "format": 1,
            "job_id": job.id,
            "bundle": str(self.bundle.folder),
            "bundle_digest": self.bundle.digest,
            "submitted": now(),
            "sbatch": list(self.options),
        }
        services.write_json(job.folder / "submission.json", facts)
        return job

    def _sbatch(self, job: str) -> list[str]:
        name = self.service.name  # what a job is known by
        log = self.service.job(job).log
        return ["--export=ALL", f"--output={log}", *self.options, f"--job-name={name}"]


def of(
    folder: Path, state: Path | None, options: Sequence[str] = (), engine: str | None = None
) -> Submission:
    """A bundle that is whole and has a job. Raises `BadInput` or `DamagedBundle`."""
    bundle = bundles.read(folder)
    document = services.read_json(bundle.folder / "slurm" / "service.json")
    if document is None:
        remedy = "render it with target slurm and a site profile"
        raise BadInput(Diagnostic(str(folder), "has no target slurm", remedy))
    service = Service(services.root(state, document), document["name"])
    _check_writable(service.root)
    variables: dict[str, str] = {}
    if engine == REFERENCE:
        from . import rehearsal_engine  # with what renders a miniature

        made = service.root / ".reference" / bundle.digest[:16]
        variables = rehearsal_engine.environment(bundle, made)
    return Submission(bundle, document, service, tuple(options), variables)


def check_free(service: Service) -> None:
    """Raises `BadInput` if the service has a job already."""
    if alive := stopping.living(service):
        what = f"has job {alive[-1].id} already, {alive[-1].words}"
        remedy = "replace it, stop it, or name another state folder with --state"
        raise BadInput(Diagnostic(f"service {service.name}", what, remedy))


def _check_writable(root: Path) -> None:
    try:
        root.mkdir(parents=True, exist_ok=True)
        fault = None if os.access(root, os.W_OK) else "is not writable"
    except OSError as error:
        fault = f"cannot be made: {(error.strerror or str(error)).lower()}"
    if fault:
        remedy = "name a folder that this host and all nodes see with --state"
        raise BadInput(Diagnostic(str(root), fault, remedy))
