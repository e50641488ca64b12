"""Rehearses a target without a GPU: starts it on a miniature, smoke-tests, measures and stops it.

A key and certificates that the deployment keeps elsewhere are replaced by new ones.
"""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from builder.bundle import Bundle
from builder.diagnostics import Diagnostic
from builder.errors import BadInput, NotReady, ToolkitError
from builder.facts import checkpoint as checkpoints
from builder.facts import engines as known_engines

from . import cpu_build, diagnose, diagnosis_text, endpoint, serving
from . import engine as engines
from . import run as runs
from .access import ClientFiles
from .bench import clients, config, results, system_under_test, workload
from .bench.config import BenchConfig
from .bench.progress import Progress
from .bench.runner import Runner
from .bench.system_under_test import SystemUnderTest
from .process import Interrupts
from .smoke import metrics, suite
from .smoke.results import CheckResult, junit, summary, totals
from .target import Target

# A miniature loads in seconds and has nothing to drain.
STOP_GRACE_S = 30.0
# A few small requests show that a server can be measured: three waves of the most streams.
BENCH_CONCURRENCIES = (1, 2, 4)
BENCH_REQUESTS = 12
BENCH_ISL, BENCH_OSL = 32, 8
CERTIFICATE_DAYS = "2"


@dataclass(frozen=True, slots=True)
class RehearsalResult:
    """What one target showed. `smoke` is missing if the server was not ready.

    `bench` is missing if a check failed before it, or no streams can be measured. `bench_errors`
    say what was wrong with the measurement.
    """

    target: str
    folder: Path
    ready_after_s: float | None
    smoke: dict[str, Any] | None
    not_ready: NotReady | None
    bench: Mapping[str, Any] | None = None
    bench_errors: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return self.smoke is not None and not self.smoke["failed"] and not self.bench_errors


def title(engine: str) -> str:
    """An engine that was chosen, in words."""
    if engine == engines.REFERENCE:
        return "the reference engine"
    record = known_engines.load(engine)
    build = record.cpu_build.requirement if record.cpu_build else record.title
    return f"{record.title} itself ({build})"


def engine_for(target: Target, wanted: str, say: Callable[[str], None]) -> str:
    """The engine that can serve a target's model here; options are checked first.

    A CPU build checks the options with its release. If it has no kernels for the model, the
    reference engine serves instead, with a message. Raises `BadInput` with the message of an engine
    that refuses the options.
    """
    if wanted == engines.REFERENCE:
        return wanted
    record = known_engines.load(wanted)
    build = record.cpu_build
    assert build, "it was chosen because it is there"
    checkpoint = checkpoints.from_bundle(target.folder)
    options = target.folder / target.server.option_file(str(target.model_name))
    words = cpu_build.refusal(record, checkpoint, options)
    if words and any(text in words for text in build.unjudged):
        name = checkpoint.architecture.name
        lacks = " and ".join(build.unfit)
        say(f"{target.name}: {build.package} cannot judge options for {name} without {lacks}")
        return engines.REFERENCE
    if words:
        what = f"is refused by {record.title} {build.release}: {words}"
        raise BadInput(Diagnostic(str(options), what))
    say(f"{target.name}: {record.title} {build.release} takes the options for {checkpoint.name}")
    if target.server.api != "openai":
        say(f"{target.name}: {target.server.title} does not find the CPU build of {record.title}")
        return engines.REFERENCE
    if not cpu_build.serves(build, checkpoint):
        name = checkpoint.architecture.name
        say(f"{target.name}: {build.package} is not known to serve {name} on a CPU")
        return engines.REFERENCE
    say(f"{target.name}: set for the CPU build: {' '.join(build.options)}; weights in BF16")
    return wanted


def rehearse(
    bundle: Bundle,
    target: Target,
    engine: str,
    run: runs.Run,
    start_timeout_s: float,
    interrupts: Interrupts,
    on_result: suite.OnResult,
) -> RehearsalResult:
    """One target with an engine that needs no GPU, on free ports."""
    try:
        served = serving.with_miniature(target, engine, run).on_free_ports()
        served = with_dummy_credentials(served, run.folder)
        with serving.serve(
            served,
            engine,
            run,
            interrupts,
            start_timeout_s=start_timeout_s,
            stop_grace_s=STOP_GRACE_S,
        ) as (target, server):
            at = endpoint.from_rehearsal(target, engine, server.pid)
            info = metrics.engine_info(at)
            checked = suite.run(at, on_result)
            measured: Mapping[str, Any] | None = None
            bench_errors: Sequence[str] = ()
            if all(one.outcome != "failed" for one in checked) and is_measurable(at):
                measured, bench_errors = measure(
                    SystemUnderTest(at, bundle, target, run.facts), run
                )
            last = suite.stop(at, server, target.environment.get("SERVE_SHM_PREFIX"))
            on_result(last)
    except NotReady as not_ready:
        return RehearsalResult(target.name, run.folder, None, None, not_ready)
    smoke = record_smoke(run, [*checked, *last], info)
    if smoke["failed"] or bench_errors:
        found, _ = diagnose.diagnose(diagnose.of_run(run.folder))
        run.record(diagnosis=diagnosis_text.document(found))
    return RehearsalResult(
        target.name, run.folder, run.ready_after_s, smoke, None, measured, tuple(bench_errors)
    )


def is_measurable(at: endpoint.Endpoint) -> bool:
    """Not a model without streams: every measure starts at the first token."""
    return bool(at.options.get("triton_config", {}).get("decoupled", True))


def measure(served: SystemUnderTest, run: runs.Run) -> tuple[Mapping[str, Any] | None, list[str]]:
    """The quick bench, whose results stay in the run folder, and what was wrong with it."""
    try:
        found = _quick_bench(served, run.folder)
    except ToolkitError as error:
        return None, [str(error)]
    errors = []
    for point in found["points"]:
        for kind, one in point["errors"].items():
            what = f"{one['count']} requests failed, {kind}: {one['example']}"
            errors.append(f"{point['label']}: {what}")
    return found, errors


def _quick_bench(system: SystemUnderTest, folder: Path) -> Mapping[str, Any]:
    api = clients.offered(system.endpoint)[0]
    tokenizer = system.tokenizer
    made_of = workload.from_tokenizer(tokenizer) if tokenizer else workload.from_word_list()
    quick = BenchConfig(
        workload=workload.fixed(made_of, BENCH_ISL, BENCH_OSL, workload.TEMPLATE),
        levels=config.closed("concurrency", BENCH_CONCURRENCIES),
        prompts=made_of,
        api=api,
        requests=BENCH_REQUESTS,
        warmup=0,
    )
    reported = system_under_test.reported(system.endpoint)
    files = results.create(folder, "quick")
    try:
        runner = Runner(quick, system, reported, files, Progress(form="none"))
        runner.run()
    finally:
        files.close()
    return runner.document


def record_smoke(
    run: runs.Run, checked: Sequence[CheckResult], engine: Mapping[str, Any]
) -> dict[str, Any]:
    """Leave the results in the run folder and their numbers in `run.json`."""
    document = summary(checked, engine)
    run.write_json("smoke.json", document)
    (run.folder / "smoke.xml").write_bytes(junit(checked, engine))
    run.record(smoke=totals(checked))
    return document


def with_dummy_credentials(target: Target, folder: Path) -> Target:
    """The target with a new key, and new certificates if it uses any, in `folder`.

    Raises `NotReady` if certificates are needed and openssl is not there or fails.
    """
    variables, files = {}, ClientFiles()
    if "SERVE_KEY_FILE" in target.environment:
        key_file = folder / "key"
        key_file.touch(mode=0o600)
        key_file.write_text(secrets.token_hex(32) + "\n")
        variables["SERVE_KEY_FILE"] = str(key_file)
    if "SERVE_TLS_CERTIFICATE" in target.environment:
        _openssl(
            *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", CERTIFICATE_DAYS),
            *("-subj", "/CN=rehearsal", "-keyout", folder / "ca.key", "-out", folder / "ca.pem"),
        )
        ca = folder / "ca.pem"
        certificate, key = _certificate(folder, "server", target.host)
        variables |= {"SERVE_TLS_CERTIFICATE": str(certificate), "SERVE_TLS_KEY": str(key)}
        files = ClientFiles(tls_ca=ca)
    if "SERVE_TLS_CLIENT_CA" in target.environment:
        variables["SERVE_TLS_CLIENT_CA"] = str(folder / "ca.pem")
        certificate, key = _certificate(folder, "client", target.host)
        files = replace(files, tls_certificate=certificate, tls_key=key)
    return replace(target.with_environment(**variables), client_files=files)


def _certificate(folder: Path, name: str, host: str) -> tuple[Path, Path]:
    key, request, certificate = (folder / f"{name}.{end}" for end in ("key", "csr", "pem"))
    kind = "IP" if host.replace(".", "").isdecimal() or ":" in host else "DNS"
    names = folder / f"{name}.names"
    names.write_text(f"subjectAltName={kind}:{host}\n")
    _openssl(
        *("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}"),
        *("-keyout", key, "-out", request),
    )
    _openssl(
        *("x509", "-req", "-in", request, "-days", CERTIFICATE_DAYS, "-extfile", names),
        *("-CA", folder / "ca.pem", "-CAkey", folder / "ca.key", "-CAcreateserial"),
        *("-out", certificate),
    )
    return certificate, key


def _openssl(*arguments: str | Path) -> None:
    remedy = "install openssl: the certificates of a rehearsal are made with it"
    try:
        subprocess.run(
            ["openssl", *map(str, arguments)], check=True, capture_output=True, umask=0o077
        )
    except FileNotFoundError:
        raise NotReady(Diagnostic("openssl", "is not installed", remedy)) from None
    except subprocess.CalledProcessError as error:
        words = error.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise NotReady(Diagnostic("openssl", f"fails: {''.join(words)}", remedy)) from None
