"""A server to check: where it listens, and what its bundle says it should be."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qs, urlsplit

from builder.errors import BadInput, NotReady, Problem

from ..target import Target

FORMS = "http://HOST:PORT for trtllm-serve, triton://HOST:HTTP_PORT?grpc=PORT&model=NAME for Triton"
TRITON_MODEL = "tensorrt_llm"


CONNECT_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`model_folder` holds the rendered config.pbtxt of a Triton model, where a bundle is known."""

    kind: Literal["trtllm_serve", "triton"]
    url: str
    grpc: str | None = None
    model: str | None = None
    model_folder: Path | None = None

    def check_listens(self) -> None:
        """Raises `NotReady` naming each address at which no server takes connections."""
        problems = []
        for url in filter(None, (self.url, self.grpc and f"grpc://{self.grpc}")):
            parts = urlsplit(url)
            address = (parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))
            try:
                socket.create_connection(address, CONNECT_TIMEOUT_S).close()
            except OSError as fault:
                what = f"no server answers: {(fault.strerror or str(fault)).lower()}"
                remedy = "start it, for example with: python -m launch up BUNDLE"
                problems.append(Problem(url, what, remedy))
        if problems:
            raise NotReady(problems)


def of_target(target: Target) -> Endpoint:
    """The endpoint that a target of a bundle serves."""
    host = f"[{target.host}]" if ":" in target.host else target.host
    url = f"http://{host}:{target.ports['http']}"
    if not target.is_triton:
        return Endpoint("trtllm_serve", url)
    model = target.model_name or TRITON_MODEL
    folder = target.folder / "triton" / "model_repository" / model
    return Endpoint("triton", url, f"{host}:{target.ports['grpc']}", model, folder)


def of_url(text: str) -> Endpoint:
    """The endpoint that a URL names. Without `grpc`, Triton's gRPC port is the one after HTTP's.

    Raises `BadInput` for anything else than the two forms.
    """
    parts = urlsplit(text)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or parts.scheme not in ("http", "https", "triton"):
        raise BadInput(Problem(text, "is no URL of a server", f"write {FORMS}"))
    if parts.scheme != "triton":
        return Endpoint("trtllm_serve", f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/"))
    query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    unknown = set(query) - {"grpc", "model"}
    grpc_port = query.get("grpc", str((port or 8000) + 1))
    if unknown or not grpc_port.isdecimal():
        raise BadInput(Problem(text, "is no URL of a Triton server", f"write {FORMS}"))
    shown = f"[{host}]" if ":" in host else host
    return Endpoint(
        "triton",
        f"http://{shown}:{port or 8000}",
        f"{shown}:{grpc_port}",
        query.get("model", TRITON_MODEL),
    )
