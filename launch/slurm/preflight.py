"""The preflight: a short job that looks on a node whether the bundle can be served there."""

from __future__ import annotations

from builder.diagnostics import Diagnostic
from builder.errors import ChecksFailed, NotReady

from . import scheduler, waiting
from .service import read_json
from .submission import PREFLIGHT, Submission
from .waiting import Say

RESULT = "preflight.json"
LAST_LINES = 8


def run(order: Submission, timeout_s: float, say: Say) -> None:
    """Raises `ChecksFailed` with every check that failed on the node."""
    service = order.service
    service.folder.mkdir(parents=True, exist_ok=True)
    log = service.folder / "preflight-%j.log"
    options = ["--export=ALL", f"--output={log}", *order.options]
    job = service.job(scheduler.submit(order.script(PREFLIGHT), options, order.environment))
    say(f"job {job.id}: preflight")
    try:
        if not waiting.Watch(job, say).until_gone(timeout_s):
            what = f"has not ended after {timeout_s:g} s"
            raise NotReady(Diagnostic(f"preflight job {job.id}", what, "see: squeue --start"))
    except BaseException:
        scheduler.cancel(job.id)
        raise
    found = read_json(job.folder / RESULT)
    if found is None:
        path = service.folder / f"preflight-{job.id}.log"
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        last = "".join(f"\n    {line}" for line in text.splitlines()[-LAST_LINES:])
        raise NotReady(Diagnostic(f"preflight job {job.id}", f"left no result; {path} ends:{last}"))
    for row in found["checks"]:
        say(f"  {'ok  ' if row['ok'] else 'FAIL'} {row['check']}: {row['what']}")
    if failed := [row for row in found["checks"] if not row["ok"]]:
        where = f"preflight on {found['node']}"
        raise ChecksFailed([Diagnostic(f"{where}: {row['check']}", row["what"]) for row in failed])
