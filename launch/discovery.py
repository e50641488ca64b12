"""Finds out what answers at an address: the kind of server, its ports and its only model.

A server that gives no whole answer within `FIRST_ANSWER_S` ends a command, and does not hold it up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx

from builder.diagnostics import Diagnostic
from builder.errors import BadInput, NotReady
from builder.facts import servers

from .answers import model_name, read_json
from .bounded_answer import TooLate, client
from .endpoint import URL_FORMS, Endpoint, from_url, takes_connections

FIRST_ANSWER_S = 15.0
QUESTION_S = 10.0  # of each further question
MOST_POSITIONS = 10_000_000  # of a model, above which a number is none

Answer = tuple[int, bytes]  # status and body


def identified(endpoint: Endpoint, text: str) -> Endpoint:
    """The endpoint of a URL as what is found there: a server of another kind than its scheme says,
    with those of its usual ports that take connections, and the only model that it has ready. Of
    several kinds with one scheme, that whose models these are.

    Raises `BadInput` if it has several and the URL names none of them, `NotReady` if the server
    takes connections and does not answer.
    """
    return asyncio.run(_identified(endpoint, text)) if endpoint.url else endpoint


def check_answers(endpoint: Endpoint) -> None:
    """Raises `NotReady` naming each address at which no server takes connections or answers."""
    endpoint.check_listens()
    if silent := asyncio.run(_silent(endpoint)):
        raise NotReady(silent)


async def _silent(endpoint: Endpoint) -> list[Diagnostic]:
    asked = []
    if endpoint.url:
        asked.append(_silent_http(endpoint))
    if endpoint.grpc:
        asked.append(_silent_grpc(endpoint))
    return [found for found in await asyncio.gather(*asked) if found]


async def _silent_http(endpoint: Endpoint) -> Diagnostic | None:
    try:
        await _answer(endpoint, endpoint.record.paths["live"], FIRST_ANSWER_S)
    except TooLate:
        return _no_answer(_place(endpoint), FIRST_ANSWER_S)
    return None


async def _silent_grpc(endpoint: Endpoint) -> Diagnostic | None:
    import grpc  # type: ignore[import-untyped]
    from tritonclient.grpc import service_pb2
    from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

    access = endpoint.access
    async with access.channel(endpoint.grpc or "", grpc.aio) as channel:
        asked = GRPCInferenceServiceStub(channel).ServerLive(
            service_pb2.ServerLiveRequest(), timeout=FIRST_ANSWER_S, metadata=access.grpc_metadata
        )
        try:
            await asked
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                return _no_answer(f"grpc://{endpoint.grpc}", FIRST_ANSWER_S)
    return None


def _no_answer(where: str, within_s: float) -> Diagnostic:
    what = f"takes connections, but gives no whole answer within {within_s:g} s"
    return Diagnostic(where, what, "see the log of the server: it may hang, or be another one")


async def _identified(endpoint: Endpoint, text: str) -> Endpoint:
    try:
        found = await _answer(endpoint, endpoint.record.paths["live"], FIRST_ANSWER_S)
    except TooLate:
        raise NotReady(_no_answer(_place(endpoint), FIRST_ANSWER_S)) from None
    if not _is_ok(found) and not str(endpoint.url).startswith("https:"):
        endpoint = await _of_another_kind(endpoint, text) or endpoint
    if endpoint.api == "openai":
        return await _by_its_models(endpoint)
    if "model" in parse_qs(urlsplit(text).query):
        return endpoint
    return replace(endpoint, model=await _only_model(endpoint))


async def _of_another_kind(endpoint: Endpoint, text: str) -> Endpoint | None:
    """The first kind of server that says at this address that it is alive."""
    kinds = list(_kinds(endpoint, text))
    alive = await asyncio.gather(*map(_is_alive, kinds))
    for kind, is_alive in zip(kinds, alive, strict=True):
        if is_alive:
            has_grpc = kind.grpc and takes_connections(kind.grpc)
            return replace(kind, grpc=kind.grpc if has_grpc else None)
    return None


def _kinds(endpoint: Endpoint, text: str) -> Iterator[Endpoint]:
    rest = text.partition("://")[2]
    for record in map(servers.load, servers.names()):
        with suppress(BadInput):  # the URL's parameters are those of the other kind
            kind = from_url(f"{record.url_scheme}://{rest}", endpoint.access)
            if kind.url and _place(kind) != _place(endpoint):
                yield kind


def _place(kind: Endpoint) -> str:
    return f"{kind.url}{kind.record.paths['live']}"


async def _is_alive(kind: Endpoint) -> bool:
    try:
        return _is_ok(await _answer(kind, kind.record.paths["live"]))
    except TooLate:
        return False


async def _by_its_models(endpoint: Endpoint) -> Endpoint:
    """The server whom its list of models names as their owner, and how long they take texts."""
    path = "/v1/models"
    try:
        found = await _answer(endpoint, path, FIRST_ANSWER_S)
    except TooLate:
        if endpoint.model is None:
            raise NotReady(_no_answer(f"{endpoint.url}{path}", FIRST_ANSWER_S)) from None
        return endpoint
    try:
        model = read_json(found[1] if found else b"")["data"][0]
        owner, positions = model.get("owned_by"), model.get("max_model_len")
    except (ValueError, TypeError, AttributeError, LookupError):
        return endpoint
    records = map(servers.load, servers.names())
    owned = (one.name for one in records if owner and one.model_owner == owner)
    is_known = type(positions) is int and 0 < positions <= MOST_POSITIONS
    known = positions if is_known else None
    return replace(endpoint, server=next(owned, endpoint.server), positions=known)


async def _only_model(endpoint: Endpoint) -> str | None:
    """By the index of models (KServe's model repository extension), where it is open."""
    path = "/v2/repository/index"
    try:
        found = await _answer(endpoint, path, sent={})
    except TooLate:
        raise NotReady(_no_answer(f"{endpoint.url}{path}", QUESTION_S)) from None
    if not _is_ok(found):
        return endpoint.model
    assert found
    try:
        rows = read_json(found[1])
        if not isinstance(rows, list):
            raise TypeError
        names = [model_name(row["name"]) for row in rows if row.get("state") == "READY"]
    except (ValueError, TypeError, AttributeError, KeyError):
        what = f"answers with something else than the models of {endpoint.record.title}"
        raise BadInput(Diagnostic(endpoint.url or "", what, f"write {URL_FORMS}")) from None
    second = {f"{name}{endpoint.record.unary_suffix}" for name in names}
    names = [name for name in names if name not in second]
    if endpoint.model in names or not names:
        return endpoint.model
    if len(names) > 1:
        what = f"has {len(names)} models ready: {', '.join(names)}"
        remedy = f"name one: {endpoint.record.url_scheme}://...?model={names[0]}"
        raise BadInput(Diagnostic(endpoint.url or "", what, remedy))
    return names[0]


async def _answer(
    endpoint: Endpoint, path: str, timeout_s: float = QUESTION_S, sent: Any = None
) -> Answer | None:
    """`None` where nothing listens, or where the connection breaks off. Raises `TooLate`."""
    method = "GET" if sent is None else "POST"
    async with client(endpoint.url or "", timeout_s, endpoint.access.http_headers) as http:
        try:
            found = await http.request(method, f"{endpoint.url}{path}", json=sent)
        except TooLate:
            raise
        except httpx.TransportError:
            return None
    return found.status_code, found.content


def _is_ok(found: Answer | None) -> bool:
    return found is not None and found[0] == httpx.codes.OK
