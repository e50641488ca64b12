"""Checks of the server itself: process, health, and metadata and configuration as rendered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from builder.documents import parse_yaml

from ..endpoint import Endpoint
from .client import (
    CheckFailure,
    Inconclusive,
    NotSupported,
    RequestRejected,
    SmokeClient,
    SmokeRequest,
)

# Checked on a server that no bundle describes.
DANGEROUS = ("shared-memory", "model-repository", "trace", "logging")
# A tensor: its data type in Triton's protocol, and its shape.
Tensors = Mapping[str, tuple[str, list[int]]]
_NOTHING = SmokeRequest("")


async def process(_: SmokeClient, endpoint: Endpoint) -> str:
    if endpoint.pid is None:
        raise NotSupported("this program did not start the server")
    try:
        state = Path(f"/proc/{endpoint.pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        state = "gone"
    if state in ("gone", "Z", "X"):
        raise CheckFailure(f"process {endpoint.pid} is {state}, a running one is expected")
    return f"process {endpoint.pid} runs"


async def ready(client: SmokeClient, _: Endpoint) -> str:
    return await client.ready()


@contextmanager
def _needs_key(endpoint: Endpoint, api: str) -> Iterator[None]:
    """Without a key, a check of a restricted API does not apply."""
    try:
        yield
    except RequestRejected as rejection:
        if "restricted" in str(rejection) and endpoint.access.key is None:
            raise NotSupported(f"{api} is closed, and no key is given") from None
        raise


async def served(client: SmokeClient, endpoint: Endpoint) -> str:
    with _needs_key(endpoint, "the model index"):
        return await client.served()


async def metadata(client: SmokeClient, endpoint: Endpoint) -> str:
    return compare_metadata(await client.metadata(), endpoint)


async def config(client: SmokeClient, endpoint: Endpoint) -> str:
    with _needs_key(endpoint, "model-config"):
        return compare_config(await client.config(), endpoint)


async def closed_apis(client: SmokeClient, endpoint: Endpoint) -> str:
    """Restricted APIs reject requests without the key; for unknown servers, dangerous APIs."""
    apis = endpoint.restricted_apis if endpoint.is_rendered else DANGEROUS
    if not apis:
        raise NotSupported("the deployment restricts no API")
    opened, closed = [], []
    for api in apis:
        if api == "inference":
            continue
        try:
            await client.misuse(f"closed {api}", _NOTHING)
            opened.append(api)
        except RequestRejected:
            closed.append(api)
    if opened and not endpoint.is_rendered:
        raise Inconclusive(f"open for everyone: {', '.join(opened)}")
    if opened:
        raise CheckFailure(f"answers without a key: {', '.join(opened)}")
    return f"closed without the key: {', '.join(closed)}"


def compare_metadata(found: Mapping[str, Any], endpoint: Endpoint) -> str:
    """Raises `CheckFailure` naming every tensor that differs from config.pbtxt."""
    text = _read(endpoint, "config.pbtxt")
    config = text_format.Parse(text, model_config_pb2.ModelConfig())
    batched = [-1] if _triton_config(endpoint)["max_batch_size"] else []
    differences, count = [], 0
    for kind, rows in (("input", config.input), ("output", config.output)):
        expected = _expected(rows, batched)
        told = found.get(f"{kind}s", ())
        # gRPC's JSON writes 64-bit numbers as strings.
        actual = {row["name"]: (row["datatype"], [*map(int, row["shape"])]) for row in told}
        count += len(expected)
        differences += [
            f"{kind} {name} is {actual.get(name, 'missing')}, {expected.get(name, 'none')} expected"
            for name in sorted({**expected, **actual})
            if expected.get(name) != actual.get(name)
        ]
    if differences:
        raise CheckFailure("; ".join(differences))
    return f"{count} tensors as rendered"


def compare_config(found: Mapping[str, Any], endpoint: Endpoint) -> str:
    """Raises `CheckFailure` for a configuration that differs from model.yaml."""
    expected = _triton_config(endpoint)
    actual = {
        "decoupled": is_decoupled(found),
        "max_batch_size": int(found.get("max_batch_size", 0)),
    }
    different = [
        f"{key} is {value}, {expected[key]} expected"
        for key, value in actual.items()
        if value != expected[key]
    ]
    if different:
        raise CheckFailure("; ".join(different))
    return ", ".join(f"{key} {value}" for key, value in actual.items())


def is_decoupled(config: Mapping[str, Any]) -> bool:
    """Whether a model may send any number of responses, that is, stream."""
    return bool(config.get("model_transaction_policy", {}).get("decoupled", False))


def _expected(rows: Iterable[Any], batched: list[int]) -> Tensors:
    def datatype(number: int) -> str:
        name = model_config_pb2.DataType.Name(number).removeprefix("TYPE_")
        return "BYTES" if name == "STRING" else name

    return {row.name: (datatype(row.data_type), [*batched, *row.dims]) for row in rows}


def _triton_config(endpoint: Endpoint) -> dict[str, Any]:
    document = parse_yaml(_read(endpoint, "1/model.yaml"), "1/model.yaml").data
    config: dict[str, Any] = document["triton_config"]
    return config


def _read(endpoint: Endpoint, name: str) -> str:
    if endpoint.model_folder is None:
        raise CheckFailure("no bundle is known for this server")
    return (endpoint.model_folder / name).read_text(encoding="utf-8")
