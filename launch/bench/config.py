"""The configuration of a benchmark: workload, load levels and plans, from options and bundle."""

from __future__ import annotations

import argparse
import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from builder.diagnostics import Diagnostic
from builder.errors import BadInput

from ..endpoint import Endpoint
from . import clients, load, system_under_test, workload
from .clients import Api
from .load import Kind, LoadPlan
from .point_metrics import LIMITS, MetricOptions
from .request import LoadRequest
from .system_under_test import SystemUnderTest
from .workload import BenchWorkload, Prompts

CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64)
# Requests of a point per concurrent request, as InferenceMAX has it; and the minimum.
REQUESTS_PER_STREAM = 10
LEAST_REQUESTS = 20
# A load that ends by time repeats its prompts after this many.
REQUESTS_OF_DURATION = 1000
OPEN_REQUESTS = 200
# Warm-up requests of an open loop, whose concurrency is unknown.
OPEN_WARMUP = 8
LEAST_TASKS = 4
TASKS_PER_STREAM = 2
# Without a bundle: the middle one of InferenceMAX's shapes.
ISL = OSL = 1024
# The client of gRPC costs several times as much as that of HTTP.
GRPC_PROCESSES = 4


# What varies from point to point, as in the document.
LoadLevel = Mapping[str, Any]


def label(level: LoadLevel) -> str:
    if level["kind"] == "trace":
        return "trace" if level["speed"] == 1 else f"trace x{level['speed']:g}"
    rate = level.get("rate_per_s")
    return f"c{level['concurrency']}" if rate is None else f"r{rate:g}"


def closed(kind: load.Kind, concurrencies: Sequence[int]) -> list[LoadLevel]:
    return [{"kind": kind, "concurrency": concurrency} for concurrency in concurrencies]


@dataclass(frozen=True, slots=True)
class BenchConfig:
    """Which workload is sent, at which load levels, and how it is measured."""

    workload: BenchWorkload
    levels: Sequence[LoadLevel]
    prompts: Prompts
    api: Api
    metrics: MetricOptions = field(default_factory=MetricOptions)
    processes: int = 1
    requests: int | None = None
    duration_s: float | None = None
    warmup: int | None = None
    retries: int = 3
    seed: int = 0

    def plan(self, one: LoadLevel, first: int) -> LoadPlan:
        """The load of a point whose prompts start at index `first` of the workload."""
        kind, concurrency = one["kind"], one.get("concurrency", 1)
        if kind == "trace":
            return LoadPlan(kind, self.workload.timed(self.requests, one["speed"]))
        if kind == "tasks":
            least = max(LEAST_TASKS, TASKS_PER_STREAM * concurrency)
            tasks = self.workload.tasks(first, self.requests or least)
            return LoadPlan(kind, tasks=tasks, concurrency=concurrency, retries=self.retries)
        calls = self.workload.calls(first, self._count(one))
        if kind == "concurrency":
            return LoadPlan(kind, calls, concurrency=concurrency, duration_s=self.duration_s)
        rate, burstiness = one["rate_per_s"], one["burstiness"]
        times = load.arrivals_s(len(calls), rate, burstiness, self.seed)
        timed = [replace(call, at_s=at_s) for call, at_s in zip(calls, times, strict=True)]
        return LoadPlan(kind, tuple(timed))

    def _count(self, one: LoadLevel) -> int:
        if self.requests:
            return self.requests
        if rate := one.get("rate_per_s"):
            return max(1, round(rate * self.duration_s)) if self.duration_s else OPEN_REQUESTS
        least = REQUESTS_OF_DURATION if self.duration_s else LEAST_REQUESTS
        return max(least, REQUESTS_PER_STREAM * int(one["concurrency"]))

    def warm(self, one: LoadLevel, first: int) -> LoadPlan | None:
        """Warm-up requests before a point, as many as run concurrently in it.

        A trace gets none: its blocks would be in the server's cache.
        """
        usual = {"trace": 0}.get(one["kind"], one.get("concurrency", OPEN_WARMUP))
        count = usual if self.warmup is None else self.warmup
        if not count:
            return None
        return LoadPlan("concurrency", self.workload.calls(first, count), concurrency=count)


def of_options(options: argparse.Namespace, system: SystemUnderTest, version: str) -> BenchConfig:
    """Raises `BadInput` for options that do not fit a server of this version."""
    api = _api(options, system.endpoint)
    defaults = system_under_test.deployment(system.bundle)
    made_of = _prompts(options, system, version, api)
    given = defaults.get("slo") or {}
    slo = options.slo or {name: given[name] for name in LIMITS if given.get(name) is not None}
    return BenchConfig(
        workload=_workload(options, made_of, api, defaults.get("workload") or {}),
        levels=_levels(options),
        prompts=made_of,
        api=api,
        metrics=MetricOptions(
            slo=slo or None,
            num_gpus=options.gpus
            or system_under_test.hardware_options(system.bundle).get("num_gpus"),
            price_per_gpu_hour_usd=options.price_per_gpu_hour,
            window=options.window,
        ),
        processes=options.processes
        or (max(1, min(GRPC_PROCESSES, (os.cpu_count() or 2) - 1)) if api == "grpc" else 1),
        requests=options.requests,
        duration_s=options.duration,
        warmup=options.warmup,
        retries=options.retries,
        seed=options.seed,
    )


def check(options: argparse.Namespace) -> None:
    """Raises `BadInput` with all options that contradict each other or lack another one."""
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
    if diagnostics := [Diagnostic(where, what) for broken, where, what in rules if broken]:
        raise BadInput(diagnostics)


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


def _prompts(
    options: argparse.Namespace, system: SystemUnderTest, version: str, api: Api
) -> Prompts:
    """Text from a named or local tokenizer, else token ids, if the vocabulary size is known."""
    if options.tokenizer:
        return workload.from_tokenizer(options.tokenizer)
    text_only = api == "openai_chat" or options.workload in ("agent", "sharegpt")
    return prompts_of(system, version, text_only)


def prompts_of(system: SystemUnderTest, version: str, text_only: bool = False) -> Prompts:
    """Text from the tokenizer of what the server loads, else token ids if the vocabulary size is
    known, else words."""
    folder = system.tokenizer
    if folder and importlib.util.find_spec("tokenizers"):
        return workload.from_tokenizer(folder)
    size = system.vocabulary_size(version)
    return workload.from_word_list() if size is None or text_only else workload.from_token_ids(size)


def _workload(
    options: argparse.Namespace, made_of: Prompts, api: Api, defaults: Mapping[str, Any]
) -> BenchWorkload:
    isl = options.isl or defaults.get("isl") or ISL
    osl = options.osl or defaults.get("osl") or OSL
    template = LoadRequest(
        ignore_eos=not options.stop_at_eos,
        temperature=options.temperature,
        timeout_s=options.request_timeout,
        keep_text=api in ("generate_stream", "grpc"),
    )
    seed = options.seed
    if options.workload == "sharegpt":
        context = options.context_length
        return workload.sharegpt(made_of, options.data, template, seed, options.osl, context)
    if options.workload == "trace":
        return workload.trace(made_of, options.data, template, seed)
    if options.workload == "shared-prefix":
        if options.prefix >= isl:
            raise BadInput(Diagnostic("--prefix", f"{options.prefix} is not below --isl {isl}"))
        return workload.shared_prefix(
            made_of, options.prefix, isl, osl, template, seed, options.groups
        )
    if options.workload == "agent":
        return workload.agent(
            made_of, isl, osl, template, seed, options.calls, options.turn, api == "openai_chat"
        )
    return workload.fixed(made_of, isl, osl, template, seed, options.range_ratio)


def _levels(options: argparse.Namespace) -> list[LoadLevel]:
    if options.rate:
        law = "poisson" if options.burstiness == 1 else "gamma"
        return [
            {"kind": law, "rate_per_s": rate, "burstiness": options.burstiness}
            for rate in options.rate
        ]
    if options.workload == "trace" and not options.concurrency:
        return [{"kind": "trace", "speed": options.speed}]
    kind: Kind = "tasks" if options.workload == "agent" else "concurrency"
    return closed(kind, options.concurrency or CONCURRENCIES)
