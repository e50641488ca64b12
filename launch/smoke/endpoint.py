"""The server under test: its addresses, its access, and what its bundle says about it.

Every load process imports this: what only a bundle needs is imported where it is read.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qs, urlsplit

from builder.diagnostics import Diagnostic
from builder.errors import BadInput, NotReady

from ..access import Access

if TYPE_CHECKING:
    from ..target import Target

URL_FORMS = (
    "http://HOST:PORT for trtllm-serve, with ?model=NAME where it does not tell its model, "
    "triton://HOST:HTTP_PORT?grpc=PORT&metrics=PORT&model=NAME for Triton, where PORT may be off, "
    "as in triton://HOST?http=off&grpc=8001"
)
TRITON_MODEL = "tensorrt_llm"
TRITON_PORTS = {"http": 8000, "grpc": 8001, "metrics": 8002}
CONNECT_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`url` is that of HTTP and `metrics` that of Triton's metrics; what is off is missing.

    `model` is the name in requests; without one trtllm-serve is asked for it, which the router
    of disaggregated serving does not tell (release 1.2.1, NVIDIA/TensorRT-LLM#12213).

    `model_folder` holds the rendered config.pbtxt of a Triton model, and `options` the rendered
    options, where a bundle is known. `pid` is that of a server that this program started;
    `rehearsal` says that it runs random weights on the reference engine, whose model has so many
    `positions`.
    """

    kind: Literal["trtllm_serve", "triton"]
    url: str | None
    grpc: str | None = None
    metrics: str | None = None
    model: str | None = None
    model_folder: Path | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    restricted_apis: tuple[str, ...] = ()
    access: Access = field(default_factory=Access)
    pid: int | None = None
    rehearsal: bool = False
    positions: int | None = None

    @property
    def is_rendered(self) -> bool:
        """Whether a bundle says what this server should be."""
        return bool(self.options)

    def check_listens(self) -> None:
        """Raises `NotReady` naming each address at which no server takes connections."""
        diagnostics = []
        for url in filter(None, (self.url, self.grpc and f"grpc://{self.grpc}")):
            parts = urlsplit(url)
            address = (parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))
            try:
                socket.create_connection(address, CONNECT_TIMEOUT_S).close()
            except OSError as error:
                what = f"no server answers: {(error.strerror or str(error)).lower()}"
                remedy = "start it, for example with: python -m launch up BUNDLE"
                diagnostics.append(Diagnostic(url, what, remedy))
        if diagnostics:
            raise NotReady(diagnostics)


def of_target(target: Target) -> Endpoint:
    """The endpoint that a target of a bundle serves. Raises `BadInput` for missing files."""
    urls = target.urls
    if not target.is_triton:
        options = _yaml(target.folder / "trtllm_serve" / "config.yaml")
        return Endpoint("trtllm_serve", urls["http"], options=options)
    model = target.model_name or TRITON_MODEL
    folder = target.folder / "triton" / "model_repository" / model
    return Endpoint(
        "triton",
        urls.get("http"),
        urls.get("grpc"),
        urls.get("metrics"),
        model,
        folder,
        _yaml(folder / "1" / "model.yaml"),
        target.restricted_apis,
        target.access(),
    )


def of_url(text: str, access: Access | None = None) -> Endpoint:
    """The endpoint that a URL names. Triton's ports are 8000 for HTTP and those after it.

    Raises `BadInput` for anything else than the two forms.
    """
    parts = urlsplit(text)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or parts.scheme not in ("http", "https", "triton"):
        raise BadInput(Diagnostic(text, "is not the URL of a server", f"write {URL_FORMS}"))
    query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    if parts.scheme != "triton":
        if query.keys() - {"model"}:
            raise BadInput(Diagnostic(text, "is not a URL of trtllm-serve", f"write {URL_FORMS}"))
        url = f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")
        return Endpoint("trtllm_serve", url, model=query.get("model"))
    model = query.pop("model", TRITON_MODEL)
    first = port or TRITON_PORTS["http"]
    ports = {name: str(first + i) for i, name in enumerate(TRITON_PORTS)} | query
    wrong = set(ports) - set(TRITON_PORTS)
    wrong |= {name for name, value in ports.items() if value != "off" and not value.isdecimal()}
    if wrong or ports["http"] == ports["grpc"] == "off":
        raise BadInput(Diagnostic(text, "is not a URL of a Triton server", f"write {URL_FORMS}"))
    shown = f"[{host}]" if ":" in host else host
    at = {name: f"{shown}:{value}" for name, value in ports.items() if value != "off"}
    return Endpoint(
        "triton",
        f"http://{at['http']}" if "http" in at else None,
        at.get("grpc"),
        f"http://{at['metrics']}/metrics" if "metrics" in at else None,
        model,
        access=access or Access(),
    )


def of_rehearsal(target: Target, pid: int) -> Endpoint:
    """The endpoint of a target that this program started on a miniature."""
    config = json.loads((Path(target.environment["CHECKPOINT"]) / "config.json").read_text())
    positions = {**config, **config.get("text_config", {})}.get("max_position_embeddings")
    return replace(of_target(target), pid=pid, rehearsal=True, positions=positions)


def _yaml(path: Path) -> Mapping[str, Any]:
    """The options of a rendered file; a bundle's files are whole."""
    import yaml

    document: Mapping[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    return document
