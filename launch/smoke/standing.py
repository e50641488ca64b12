"""Checks of what a server is: its process, its health, and the model as it was rendered."""

from __future__ import annotations

from pathlib import Path

from . import rendered
from .client import Ask, Client, Fault, NotOffered, Refused, Unjudged
from .endpoint import Endpoint

# Asked of a server that no bundle describes.
DANGEROUS = ("shared-memory", "model-repository", "trace", "logging")
_NOTHING = Ask("")


async def process(_: Client, endpoint: Endpoint) -> str:
    if endpoint.pid is None:
        raise NotOffered("this program did not start the server")
    try:
        state = Path(f"/proc/{endpoint.pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        state = "gone"
    if state in ("gone", "Z", "X"):
        raise Fault(f"process {endpoint.pid} is {state}, a running one is expected")
    return f"process {endpoint.pid} runs"


async def ready(client: Client, _: Endpoint) -> str:
    return await client.ready()


async def served(client: Client, endpoint: Endpoint) -> str:
    try:
        return await client.served()
    except Refused as refusal:
        if "restricted" in str(refusal) and endpoint.access.key is None:
            raise NotOffered("the model index is closed, and no key is given") from None
        raise


async def metadata(client: Client, endpoint: Endpoint) -> str:
    return rendered.compare_metadata(await client.metadata(), endpoint)


async def config(client: Client, endpoint: Endpoint) -> str:
    try:
        return rendered.compare_config(await client.config(), endpoint)
    except Refused as refusal:
        if "restricted" in str(refusal) and endpoint.access.key is None:
            raise NotOffered("model-config is closed, and no key is given") from None
        raise


async def closed_apis(client: Client, endpoint: Endpoint) -> str:
    """Every restricted API without the key; of an unknown server the dangerous ones."""
    apis = endpoint.restricted_apis if endpoint.is_rendered else DANGEROUS
    if not apis:
        raise NotOffered("the deployment restricts no API")
    opened, closed = [], []
    for api in apis:
        if api == "inference":
            continue
        try:
            await client.misuse(f"closed {api}", _NOTHING)
            opened.append(api)
        except Refused:
            closed.append(api)
    if opened and not endpoint.is_rendered:
        raise Unjudged(f"open for everyone: {', '.join(opened)}")
    if opened:
        raise Fault(f"answers without a key: {', '.join(opened)}")
    return f"closed without the key: {', '.join(closed)}"
