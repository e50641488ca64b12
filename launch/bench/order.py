"""An order: what the options of a benchmark and the bundle together ask for."""

from __future__ import annotations

import argparse
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.bundle import Bundle
from builder.diagnostics import Diagnostic
from builder.errors import BadInput

from ..smoke.endpoint import Endpoint
from ..target import Target
from . import clients, sharegpt, subject, sweep, tokens, trace, workload
from .clients import Api
from .load import Kind
from .measure import Settings, Slo
from .sweep import Load, Sweep
from .tokens import Tokens
from .workload import Style, Workload

# Without a bundle that says otherwise: the middle one of InferenceMAX's shapes.
ISL = OSL = 1024
# The client of gRPC costs several times as much as that of HTTP.
GRPC_PROCESSES = 4


@dataclass(frozen=True, slots=True)
class Served:
    """What is measured: an endpoint, and the bundle, the target and the facts of the run behind it
    as far as they are known."""

    endpoint: Endpoint
    bundle: Bundle | None = None
    target: Target | None = None
    run: Mapping[str, Any] | None = None

    @property
    def checkpoint(self) -> Path | None:
        """The folder that the server loads, if it is here with a tokenizer."""
        if self.target is None:
            return None
        named = os.environ.get("CHECKPOINT") or self.target.environment["CHECKPOINT"]
        folder = Path((self.run or {}).get("checkpoint", named)).expanduser()
        return folder if (folder / tokens.FILE).is_file() else None


def of(options: argparse.Namespace, served: Served) -> Sweep:
    """Raises `BadInput` for options that do not fit each other, or this server."""
    check(options)
    api = _api(options, served.endpoint)
    asked = subject.deployment(served.bundle)
    made_of = _tokens(options, served, api)
    slo = options.slo or {k: v for k, v in (asked.get("slo") or {}).items() if v is not None}
    return Sweep(
        workload=_workload(options, made_of, api, asked.get("workload") or {}),
        loads=_loads(options),
        tokens=made_of,
        api=api,
        settings=Settings(
            slo=Slo(**slo) if slo else None,
            num_gpus=options.gpus or subject.hardware_of(served.bundle).get("num_gpus"),
            price_per_gpu_hour_usd=options.price_per_gpu_hour,
            window=options.window,
        ),
        processes=options.processes or _processes(api),
        requests=options.requests,
        duration_s=options.duration,
        warmup=options.warmup,
        retries=options.retries,
        seed=options.seed,
    )


def facts(order: Sweep, about: Mapping[str, Any]) -> dict[str, Any]:
    """What the document says besides the results."""
    host = {"cpus": os.cpu_count()}
    client = {"tool": sweep.TOOL, "api": order.api, "processes": order.processes, "host": host}
    slo = order.settings.slo
    return {
        "subject": dict(about),
        "client": {**client, "share_of_limit": None, "marked": False},
        "workload": {"kind": order.workload.kind, **order.workload.facts},
        "slo": slo.as_json() if slo else None,
        "price_per_gpu_hour_usd": order.settings.price_per_gpu_hour_usd,
        "seed": order.seed,
    }


def check(options: argparse.Namespace) -> None:
    """All at once: options that contradict each other or lack a partner."""
    kind = options.workload
    rules = (
        (options.rate and options.concurrency, "--rate", "is for open loops; leave --concurrency"),
        (options.rate and kind in ("trace", "agent"), "--rate", f"does not go with {kind}"),
        (options.rate and options.duration and options.requests, "--duration", "or --requests"),
        (kind in ("sharegpt", "trace") and not options.data, "--data", f"is needed for {kind}"),
        (kind not in ("sharegpt", "trace") and options.data, "--data", f"is not for {kind}"),
        (kind == "shared-prefix" and not options.prefix, "--prefix", "is needed for shared-prefix"),
        (kind != "shared-prefix" and options.prefix, "--prefix", "is for shared-prefix only"),
        (kind == "agent" and options.duration, "--duration", "is not for agent; give --requests"),
        (kind == "trace" and options.duration, "--duration", "is not for trace; give --requests"),
        (options.quality and not options.quality_python, "--quality-python", "is needed"),
        (options.quality and not options.quality_tasks, "--quality-tasks", "are needed"),
    )
    if problems := [Diagnostic(where, what) for broken, where, what in rules if broken]:
        raise BadInput(problems)


def _api(options: argparse.Namespace, endpoint: Endpoint) -> Api:
    """Prompts of an exact length go to completions, since a chat template adds tokens."""
    offered = clients.offered(endpoint)
    if options.api:
        if options.api not in offered:
            what = f"{endpoint.server} at this address offers no {options.api}"
            raise BadInput(Diagnostic("--api", what, f"known: {', '.join(offered)}"))
        wanted: Api = options.api
        return wanted
    if "openai_completions" in offered and options.workload != "agent":
        return "openai_completions"
    return offered[0]


def _processes(api: Api) -> int:
    return max(1, min(GRPC_PROCESSES, (os.cpu_count() or 2) - 1)) if api == "grpc" else 1


def _tokens(options: argparse.Namespace, served: Served, api: Api) -> Tokens:
    """Text by a tokenizer that is named or there; else token ids, if their number is known."""
    if options.tokenizer:
        return tokens.of_folder(options.tokenizer)
    folder = served.checkpoint
    if folder and importlib.util.find_spec("tokenizers"):
        return tokens.of_folder(folder)
    size = subject.vocabulary_size(served.bundle)
    text_only = api == "openai_chat" or options.workload in ("agent", "sharegpt")
    return tokens.Words() if size is None or text_only else tokens.Ids(size)


def _workload(
    options: argparse.Namespace, made_of: Tokens, api: Api, asked: Mapping[str, Any]
) -> Workload:
    isl = options.isl or asked.get("isl") or ISL
    osl = options.osl or asked.get("osl") or OSL
    style = Style(
        ignore_eos=not options.stop_at_eos,
        temperature=options.temperature,
        timeout_s=options.request_timeout,
        chat=api == "openai_chat",
        keep_text=api in ("generate_stream", "grpc"),
    )
    seed = options.seed
    if options.workload == "sharegpt":
        context = options.context_length
        return sharegpt.read(made_of, options.data, style, seed, options.osl, context)
    if options.workload == "trace":
        return trace.read(made_of, options.data, style, seed)
    if options.workload == "shared-prefix":
        if options.prefix >= isl:
            raise BadInput(Diagnostic("--prefix", f"{options.prefix} is not below --isl {isl}"))
        return workload.shared_prefix(
            made_of, options.prefix, isl, osl, style, seed, options.groups
        )
    if options.workload == "agent":
        return workload.agent(made_of, isl, osl, style, seed, options.calls, options.turn)
    return workload.fixed(made_of, isl, osl, style, seed, options.range_ratio)


def _loads(options: argparse.Namespace) -> tuple[Load, ...]:
    if options.rate:
        return sweep.open_at(options.rate, options.burstiness)
    if options.workload == "trace" and not options.concurrency:
        return sweep.of_trace(options.speed)
    kind: Kind = "tasks" if options.workload == "agent" else "concurrency"
    return sweep.closed(kind, options.concurrency or sweep.CONCURRENCIES)
