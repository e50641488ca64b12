"""The suite against a small server that is right or has one fault, in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from launch import endpoint
from launch.access import Access
from launch.endpoint import Endpoint
from launch.smoke import concurrency, metrics, suite
from launch.smoke.results import CheckResult
from tests.launch import faulty_grpc, faulty_server, faulty_triton

# What a bundle would say of the server that has a fault.
OPTIONS = {
    "max_seq_len": faulty_server.LIMIT,
    "speculative_config": {"decoding_type": "MTP"},
    "guided_decoding_backend": "xgrammar",
}

Results = dict[str, CheckResult]
# A kind of server and its fault; an empty one is none.
Case = tuple[str, str]


@contextmanager
def pool(cases: Iterable[Case]) -> Iterator[Mapping[Case, Future[Results]]]:
    """The results of all cases, which are on their way side by side."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), context) as processes:
        yield {case: processes.submit(results, *case) for case in dict.fromkeys(cases)}


def results(kind: str, fault: str) -> Results:
    # For a count that never comes; these servers bring theirs up to date at once.
    metrics.COUNTED_S, metrics.PERIOD_S = 3.0, 0.05
    concurrency.SOAK = concurrency.SOAK_AT_ONCE
    return KINDS[kind](fault)


def by_id(found: Sequence[CheckResult]) -> Results:
    return {one.id: one for one in found}


def checked(server: Endpoint) -> Results:
    return by_id(suite.run(server, lambda _: None))


def openai(fault: str) -> Results:
    with faulty_server.running(fault) as url:
        return checked(replace(endpoint.from_url(url), options=OPTIONS))


def triton_over_http(fault: str) -> Results:
    with (
        faulty_server.running(fault, faulty_triton.Handler) as url,
        tempfile.TemporaryDirectory() as folder,
    ):
        port = url.rpartition(":")[2]
        text = f"triton://127.0.0.1:{port}?grpc=off&metrics={port}&model={faulty_triton.MODEL}"
        return checked(
            replace(
                endpoint.from_url(text, Access(key=faulty_triton.KEY)),
                model_folder=faulty_triton.write_bundle(Path(folder)),
                options={"triton_config": {"max_requests": faulty_triton.MAX_REQUESTS}},
                restricted_apis=faulty_triton.RESTRICTED,
            )
        )


def triton_over_grpc(fault: str) -> Results:
    with faulty_grpc.running(fault) as address:
        port, model = address.rpartition(":")[2], faulty_triton.MODEL
        text = f"triton://127.0.0.1?http=off&metrics=off&grpc={port}&model={model}"
        return checked(endpoint.from_url(text))


KINDS: Mapping[str, Callable[[str], Results]] = {
    "openai": openai,
    "triton over http": triton_over_http,
    "triton over grpc": triton_over_grpc,
}
