"""The smoke suite: the table of its checks, their run over every transport, and the final stop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from typing import Literal

from builder.credentials import mask
from builder.facts.servers import Api

from .. import triton
from ..endpoint import Endpoint
from ..process import ServerProcess
from . import concurrency, generation, health, negative
from .client import (
    PROMPT,
    REASONS,
    SHORT,
    CheckFailure,
    CheckFunction,
    Completion,
    Inconclusive,
    NotSupported,
    RequestRejected,
    SmokeClient,
    SmokeRequest,
    healthy,
    reading,
)
from .health import is_decoupled
from .negative import rejects, rejects_misuse
from .results import CheckResult, Outcome

KSERVE: tuple[Api, ...] = ("kserve",)
OPENAI: tuple[Api, ...] = ("openai",)


@dataclass(frozen=True, slots=True)
class Check:
    """A row of the suite. `reason` says what goes wrong without it.

    `streams` says whether it needs a model that streams, or one that does not; `rendered` that it
    needs a bundle. A `negative` one misuses the server, which must be healthy afterwards. All but
    a few need a server that `generates`.
    """

    id: str
    title: str
    reason: str
    function: CheckFunction
    apis: tuple[Api, ...] = ("kserve", "openai")
    streams: bool | None = None
    rendered: bool = False
    generates: bool = True
    level: Literal["error", "warning"] = "error"

    @property
    def failed(self) -> Outcome:
        return "failed" if self.level == "error" else "warned"

    @property
    def negative(self) -> bool:
        return self.id.startswith("N")

    def skip_reason(self, client: SmokeClient, endpoint: Endpoint) -> str | None:
        """Why it does not apply to this server over this transport, or None."""
        if endpoint.api not in self.apis:
            return f"not for {endpoint.server}"
        if self.streams not in (None, client.streams):
            how = "decoupled and streams" if client.streams else "not decoupled and does not stream"
            return f"the model is {how}"
        if self.rendered and not endpoint.is_rendered:
            return "no bundle says what this server should be"
        return None


POSITIVE = (
    Check("P1", "Process", "a dead server may leave its port to another one", health.process,
          generates=False),
    Check("P2", "Live and ready", "what a load balancer asks before it sends", health.ready,
          generates=False),
    Check("P3", "Model served", "the server is up, but not this model", health.served,
          generates=False),
    Check("P4", "Metadata", "clients build their requests from names, data types and shapes",
          health.metadata, apis=KSERVE, rendered=True, generates=False),
    Check("P5", "Configuration", "the server took another configuration than the rendered one",
          health.config, apis=KSERVE, rendered=True, generates=False),
    Check("P6", "Generation", "the minimum that a client needs", generation.generate),
    Check("P6.unary", "Unary calls", "clients of the published model get no answer",
          generation.unary, apis=KSERVE, streams=True, rendered=True),
    Check("P6.chat", "Chat", "most clients send messages, not prompts", generation.chat),
    Check("P7", "Repeated", "unstable greedy decoding hides other failures", generation.repeat),
    Check("P7.batch", "Text in a batch",
          "a neighbour changes the text, as quantized and sparse models may",
          concurrency.batch_text, level="warning"),
    Check("P8", "Streamed text", "a stream loses, doubles or mixes up text", generation.stream_text,
          streams=True),
    Check("P9", "Kind of stream", "clients that take new text for all text show it wrongly",
          generation.stream_mode, streams=True),
    Check("P9.final", "One final response", "clients wait for ever, or miss what follows",
          generation.one_final, streams=True),
    Check("P9.all", "Cumulative text", "clients of the published model ask for all text so far",
          generation.cumulative, apis=KSERVE, streams=True),
    Check("P10", "Own answers", "a client gets the answer of another", concurrency.own_answers),
    Check("P11", "Stop word", "text continues after its end", generation.stop_word),
    Check("P12", "max_tokens", "answers cost more, or end early", generation.max_tokens),
    Check("P12.name", "Short names", "clients of other backends get answers of another length",
          generation.short_names, apis=KSERVE),
    Check("P13", "Characters", "a character of several bytes is torn between two responses",
          generation.characters, streams=True),
    Check("P14", "Overlap", "requests wait for one another", concurrency.overlap, streams=True),
    Check("P15", "Longest prompt", "the limit is lower than planned", generation.long_prompt),
    Check("P15.needle", "Needle", "text far from the end is not seen", generation.needle,
          level="warning"),
    Check("P16", "Prefix reuse", "every prompt is computed anew", generation.prefix,
          level="warning"),
    Check("P17", "Token counts", "billing and benchmarks rely on them", generation.usage),
    Check("P18", "Log probabilities", "clients rank answers by them", generation.logprobs),
    Check("P19", "Drafted tokens", "drafts that are not accepted cost time", generation.drafts),
    Check("P20", "Seed", "sampled answers cannot be reproduced", generation.seed),
    Check("P21", "Guided JSON", "programs read the answer", generation.guided),
    Check("P21.tools", "Tool calls", "programs read the answer", generation.tools, apis=OPENAI),
    Check("P22", "Metrics", "alerts and autoscaling rely on them", concurrency.counters),
    Check("P22.name", "One model name", "dashboards and clients look for different models",
          concurrency.served_name, apis=OPENAI, generates=False),
    Check("P23", "Accuracy", "precision lost in quantization", generation.accuracy),
    Check("P24", "Soak", "requests fail or leave memory taken under load", concurrency.soak),
)  # fmt: skip
# P25, the graceful stop, is in `suite`: only who started a server may stop it.

# After each of these the server must be healthy.
NEGATIVE = (
    # trtllm-serve 1.x serves its model under any name.
    Check("N1", "Unknown model", "a wrong name is served by chance",
          rejects(OPENAI, model="no_such_model")),
    Check("N2", "Missing prompt", "a request without its input", rejects(prompt=None)),
    Check("N3.type", "Wrong type", "a text for a number reaches the engine",
          rejects(max_tokens="many")),
    Check("N3.shape", "Wrong shape", "two values for one", rejects_misuse("wrong_shape")),
    Check("N3.input", "Unknown input", "a misspelt name goes unnoticed, or breaks the server",
          rejects_misuse("unknown_input", unknown_field=True)),
    Check("N3.name", "Misspelt parameter", "an answer has another length than was asked for",
          rejects(parameters={"max_token": 3}, unknown_field=True)),
    Check("N4", "Malformed JSON", "half a request or none breaks the parser",
          rejects_misuse("malformed_json", "empty_body")),
    Check("N5", "Unary RPC", "a client without streams waits for ever", rejects_misuse("unary"),
          apis=KSERVE, streams=True),
    Check("N6", "Many responses", "the first part passes for the whole text",
          negative.many_responses, apis=KSERVE, streams=True),
    Check("N7", "top_p 1.5", "a value outside of its range", rejects(top_p=1.5)),
    Check("N8", "Prompt too long", "it crashed servers of some releases", negative.too_long),
    # An engine's server may take 0 for a limit that was not given, and an empty prompt for a start.
    Check("N9.tokens0", "max_tokens 0", "a request without an end", rejects(OPENAI, max_tokens=0)),
    Check("N9.tokens", "max_tokens -1", "a loop without an end", rejects(max_tokens=-1)),
    Check("N9.top_k", "top_k -1", "it crashed servers of some releases", rejects(OPENAI, top_k=-1)),
    Check("N9.heat", "temperature -1", "a division that fails", rejects(temperature=-1.0)),
    Check("N9.prompt", "Empty prompt", "no token to begin with", rejects(OPENAI, prompt="")),
    Check("N10", "Client cancels", "the engine keeps working without a client", negative.cancel,
          streams=True),
    Check("N11", "Deadline", "the engine keeps working without a client", negative.deadline,
          streams=True),
    Check("N12", "Loading models", "who may load a model may run any code",
          rejects_misuse("load", "unload"), apis=KSERVE),
    Check("N13.url", "Unknown URL", "another service than expected", rejects_misuse("unknown_url")),
    Check("N13.verb", "Wrong method", "a wrong method has an effect",
          rejects_misuse("wrong_method")),
    Check("N13.rpc", "Unknown RPC", "a newer client breaks the server",
          rejects_misuse("unknown_method")),
    Check("N14", "Stream without one", "a client waits for a stream that never comes",
          rejects_misuse("streaming"), apis=KSERVE, streams=False),
    Check("N15", "Too many at once", "waiting requests have no bound", negative.overload,
          streams=True),
    Check("N16", "Lone stream_options", "an option without its effect",
          rejects_misuse("stream_options"), apis=OPENAI),
    Check("N17", "File as image", "a client reads the server's files",
          rejects_misuse("image_file")),
    Check("N18", "Closed APIs", "shared memory and management are open to everyone",
          health.closed_apis, apis=KSERVE),
    Check("N19", "Clients that vanish", "what they asked for holds up all others",
          negative.vanish, apis=KSERVE, streams=True),
)  # fmt: skip


MOST_EVIDENCE = 4_000  # letters

# One generation of a large model takes seconds; a check has a few of them.
CHECK_TIMEOUT_S = 120.0
# What is asked before the checks, where an answer is not needed.
QUESTION_S = 10.0
# One token tells a slow server from one that does not generate. It is requested before the first
# check that generates, and after a check that timed out. Checks without a generation have as long.
TOKEN_TIMEOUT_S = 40.0
NOT_RUN = "not run: the server does not generate"

# The last check, after which the server is gone.
STOP_ID, STOP_TITLE = "P25", "Graceful stop"
STOP_REASON = "a restart cuts answers off, or leaves processes and memory behind"
LONG = SmokeRequest(PROMPT, max_tokens=128)

OnResult = Callable[[Sequence[CheckResult]], None]


def run(
    endpoint: Endpoint, on_result: OnResult, checks: Sequence[Check] = (*POSITIVE, *NEGATIVE)
) -> list[CheckResult]:
    """All results in order; `on_result` gets those of each check immediately."""
    return asyncio.run(_run(endpoint, on_result, checks))


async def clients(
    endpoint: Endpoint, stack: AsyncExitStack, timeout_s: float = CHECK_TIMEOUT_S
) -> list[SmokeClient]:
    """One client per transport, closed when the stack is; `timeout_s` is for each answer."""
    if endpoint.api == "openai":
        from .http import OpenAIClient

        made: list[SmokeClient] = [OpenAIClient(endpoint, timeout_s)]
    else:
        made = await _triton_clients(endpoint, timeout_s)
    for client in made:
        stack.push_async_callback(client.close)
    return made


async def _run(
    endpoint: Endpoint, on_result: OnResult, checks: Sequence[Check]
) -> list[CheckResult]:
    results: list[CheckResult] = []
    generates: dict[str, bool] = {}
    async with AsyncExitStack() as stack:
        transports = await clients(endpoint, stack)
        for check in checks:
            rows = [await _run_check(check, client, endpoint, generates) for client in transports]
            on_result(rows)
            results += rows
    return results


async def _run_check(
    check: Check, client: SmokeClient, endpoint: Endpoint, generates: dict[str, bool]
) -> CheckResult:
    """`generates` says for each transport tried so far whether its server generates."""
    outcome: Outcome
    start = time.monotonic()
    name, limit_s = client.transport, CHECK_TIMEOUT_S if check.generates else TOKEN_TIMEOUT_S
    skip_reason = check.skip_reason(client, endpoint)
    if check.generates and not skip_reason and name not in generates:
        generates[name] = await _generates(client)
    if skip_reason:
        outcome, said = "skipped", skip_reason
    elif not generates.get(name, True):
        outcome, said = check.failed, NOT_RUN
    else:
        begun = time.monotonic()
        outcome, said = await _outcome(check, client, endpoint, limit_s)
        if time.monotonic() - begun >= limit_s:
            generates[name] = await _generates(client)
    evidence = mask(said)[:MOST_EVIDENCE]  # servers repeat the key that they refuse
    seconds = round(time.monotonic() - start, 3)
    return CheckResult(check.id, check.title, check.reason, name, outcome, evidence, seconds)


async def _generates(client: SmokeClient) -> bool:
    """Whether a request for one token is answered in time; an error is an answer."""
    try:
        with reading():
            async with asyncio.timeout(TOKEN_TIMEOUT_S):
                await client.generate(replace(SHORT, max_tokens=1))
    except TimeoutError:
        return False
    except (CheckFailure, RequestRejected, NotSupported):
        return True
    return True


async def _outcome(
    check: Check, client: SmokeClient, endpoint: Endpoint, limit_s: float
) -> tuple[Outcome, str]:
    try:
        with reading():
            async with asyncio.timeout(limit_s):
                evidence = await check.function(client, endpoint)
                if check.negative:
                    await healthy(client)
    except NotSupported as reason:
        return "skipped", str(reason)
    except Inconclusive as reason:
        return "warned", str(reason)
    except CheckFailure as failure:
        return check.failed, str(failure)
    except RequestRejected as rejection:
        return check.failed, f"a valid request was rejected: {rejection}"
    except TimeoutError:
        return check.failed, f"no answer after {limit_s:.0f} s"
    return "passed", evidence


async def _triton_clients(endpoint: Endpoint, timeout_s: float) -> list[SmokeClient]:
    from .http import TritonHttpClient
    from .triton_grpc import TritonGrpcClient

    made: list[SmokeClient] = []
    if endpoint.grpc:
        made.append(TritonGrpcClient(endpoint, timeout_s))
    if endpoint.url:
        made.append(TritonHttpClient(endpoint, timeout_s))
    streams = await _streams(endpoint, made[0])
    for client in made:
        client.streams = streams
    return made


async def _streams(endpoint: Endpoint, client: SmokeClient) -> bool:
    """Whether the model is decoupled: as the server says, else the bundle, else yes."""
    try:
        with reading():
            async with asyncio.timeout(QUESTION_S):
                return is_decoupled(await client.config())
    except (CheckFailure, RequestRejected, TimeoutError):
        return bool(endpoint.options.get("triton_config", {}).get("decoupled", True))


def stop(endpoint: Endpoint, server: ServerProcess, shm_prefix: str | None) -> list[CheckResult]:
    """P25: stop the server during a stream of each transport. It is stopped afterwards."""
    return asyncio.run(_stop(endpoint, server, shm_prefix))


async def _stop(
    endpoint: Endpoint, server: ServerProcess, shm_prefix: str | None
) -> list[CheckResult]:
    start = time.monotonic()
    async with AsyncExitStack() as stack:
        transports = await clients(endpoint, stack)
        begun = [asyncio.Event() for _ in transports]
        streams = [
            asyncio.create_task(_stream(client, event))
            for client, event in zip(transports, begun, strict=True)
        ]
        await asyncio.wait([*(asyncio.create_task(event.wait()) for event in begun)])
        await asyncio.to_thread(server.stop)
        ends = await asyncio.gather(*streams)
    left = _stop_failures(server, shm_prefix)
    seconds = round(time.monotonic() - start, 3)
    results = []
    for client, end in zip(transports, ends, strict=True):
        failures = [*left, *([end] if end else [])]
        outcome: Outcome = "failed" if failures else "passed"
        stream = "its stream ran to its end, " if client.streams else ""
        evidence = "; ".join(failures) or f"{stream}exit status 0, nothing left"
        results.append(
            CheckResult(
                STOP_ID, STOP_TITLE, STOP_REASON, client.transport, outcome, evidence, seconds
            )
        )
    return results


async def _stream(client: SmokeClient, begun: asyncio.Event) -> str:
    """The fault of a stream, or an empty text; also for a client that does not stream."""
    if not client.streams:
        begun.set()
        return ""
    last: Completion | None = None
    try:
        with reading():
            async with asyncio.timeout(CHECK_TIMEOUT_S), aclosing(client.stream(LONG)) as parts:
                async for part in parts:
                    begun.set()
                    last = part if part.finish_reason else last
    except TimeoutError:
        return f"the stream has not ended after {CHECK_TIMEOUT_S:.0f} s"
    except (CheckFailure, RequestRejected) as error:
        return f"the stream was cut off: {error}"
    finally:
        begun.set()
    return "" if last and last.finish_reason in REASONS else "the stream has no finish_reason"


def _stop_failures(server: ServerProcess, shm_prefix: str | None) -> list[str]:
    status = server.exit_status(0)
    failures = [] if status == 0 else [f"exit status {status}, 0 expected"]
    if server.killed:
        failures.append("did not end when asked and was killed")
    if server.left:
        failures.append(f"{server.left} processes were left")
    regions = triton.shared_memory(shm_prefix) if shm_prefix else []
    if regions:
        failures.append(f"shared memory was left: {', '.join(region.name for region in regions)}")
    return failures
