"""The server under test: its addresses, its access, and what its bundle says about it.

Every load process imports this: what only a bundle needs is imported where it is read.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from builder.diagnostics import Diagnostic
from builder.errors import BadInput, NotReady
from builder.files import reason

from .access import Access

if TYPE_CHECKING:
    from builder.facts import servers

    from .target import Target

URL_FORMS = (
    "http://HOST:PORT for an engine's own server, with ?model=NAME where it does not report its "
    "model, "
    "triton://HOST:HTTP_PORT?grpc=PORT&metrics=PORT&model=NAME for Triton, where PORT may be off, "
    "as in triton://HOST?http=off&grpc=8001"
)
CONNECT_TIMEOUT_S = 10.0
GREETING_TIMEOUT_S = 2.0  # of TLS, to a server that took the connection


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A `server` by the name of its record, and where it listens.

    `url` is that of HTTP and `metrics` that of Triton's metrics; what is off is missing.

    `model` is the name in requests; without one an engine's server is asked for it, which the
    router of disaggregated serving does not report (release 1.2.1, NVIDIA/TensorRT-LLM#12213).

    `model_folder` holds the rendered config.pbtxt of a Triton model, and `options` the rendered
    options, where a bundle is known. `pid` is that of a server that this program started;
    `rehearsal` says that it runs random weights, `on_reference` that the reference engine runs
    them. `positions` are those of the served model, where
    they are known.
    """

    server: str
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
    on_reference: bool = False
    positions: int | None = None

    @property
    def record(self) -> servers.Server:
        from builder.facts import servers

        return servers.load(self.server)

    @property
    def api(self) -> servers.Api:
        """The protocol family that its clients speak."""
        return self.record.api

    @property
    def unary_model(self) -> str | None:
        """The second model over the same engine, for unary calls, where a bundle has one."""
        folder = self.model_folder and self.model_folder.with_name(
            f"{self.model}{self.record.unary_suffix}"
        )
        return folder.name if folder and folder.is_dir() else None

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
                with socket.create_connection(address, CONNECT_TIMEOUT_S) as connection:
                    if parts.scheme == "https" and (what := _no_tls(connection, parts.hostname)):
                        plain = parts._replace(scheme="http").geturl()
                        diagnostics.append(Diagnostic(url, what, f"write {plain}"))
            except OSError as error:
                what = f"no server answers: {reason(error)}"
                remedy = "start it, for example with: python -m launch up BUNDLE"
                diagnostics.append(Diagnostic(url, what, remedy))
        if diagnostics:
            raise NotReady(diagnostics)


def _no_tls(connection: socket.socket, host: str | None) -> str | None:
    """What a server does with a greeting of TLS that none of TLS would do.

    Whom it trusts and who trusts it is another matter, which its clients find out.
    """
    import ssl  # which takes long, and most addresses need none

    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection.settimeout(GREETING_TIMEOUT_S)
    try:
        context.wrap_socket(connection, server_hostname=host).close()
    except TimeoutError:
        return f"takes connections, but answers no TLS in {GREETING_TIMEOUT_S:g} s"
    except (ssl.SSLEOFError, ConnectionError):
        return "takes connections, but closes them at a greeting of TLS"
    except OSError as error:
        is_other = getattr(error, "reason", None) == "WRONG_VERSION_NUMBER"
        return "answers, but speaks no TLS" if is_other else None
    return None


def from_target(target: Target) -> Endpoint:
    """The endpoint that a target of a bundle serves. Raises `BadInput` for missing files."""
    record, urls = target.server, target.urls
    model = target.model_name or record.default_model or ""
    # With a parser that few commands need.
    from builder.documents import load_yaml_mapping, merged, value_at
    from builder.facts import engines
    from builder.facts import release as releases

    written = load_yaml_mapping(target.folder / record.option_file(model))
    options: Mapping[str, Any] = written  # also under the names that plans use for all engines
    release = releases.load(target.release, engine=engines.load(target.engine))
    for word, name in release.aliases.items():
        if (value := value_at(written, name)) is not None:
            for key in reversed(word.split(".")):
                value = {key: value}
            options = merged(options, value)
    if record.files["model"] is None:
        return Endpoint(record.name, urls["http"], model=target.model_name, options=options)
    return Endpoint(
        record.name,
        urls.get("http"),
        urls.get("grpc"),
        urls.get("metrics"),
        model,
        target.folder / record.files["model"].replace("{model}", model),
        options,
        target.restricted_apis,
        target.access(),
    )


def from_url(text: str, access: Access | None = None) -> Endpoint:
    """The endpoint that a URL names. Triton's ports are 8000 for HTTP and those after it.

    Raises `BadInput` for anything else than the two forms.
    """

    parts = urlsplit(text)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    scheme = parts.scheme.replace("https", "http")
    records = _by_scheme()
    if not host or scheme not in records:
        raise BadInput(Diagnostic(text, "is not the URL of a server", f"write {URL_FORMS}"))
    record = records[scheme]
    wrong_url = BadInput(Diagnostic(text, f"is not a URL of {record.title}", f"write {URL_FORMS}"))
    query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    if record.api == "openai":
        if query.keys() - {"model"}:
            raise wrong_url
        # The base URL that clients of OpenAI are given ends with the version of its API.
        url = f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/").removesuffix("/v1")
        shown = access or Access()
        return Endpoint(record.name, url, model=query.get("model"), access=shown)
    model = query.pop("model", record.default_model)
    first = port or record.ports["http"]
    ports = {name: str(first + i) for i, name in enumerate(record.ports)} | query
    wrong = set(ports) - set(record.ports)
    wrong |= {name for name, value in ports.items() if value != "off" and not value.isdecimal()}
    if wrong or ports["http"] == ports["grpc"] == "off":
        raise wrong_url
    place = f"[{host}]" if ":" in host else host
    at = {name: f"{place}:{value}" for name, value in ports.items() if value != "off"}
    return Endpoint(
        record.name,
        f"http://{at['http']}" if "http" in at else None,
        at.get("grpc"),
        f"http://{at['metrics']}{record.paths['metrics']}" if "metrics" in at else None,
        model,
        access=access or Access(),
    )


def _by_scheme() -> dict[str, servers.Server]:
    """The servers by the scheme of their URLs; of several, that of the default engine."""
    from builder.facts import engines, servers

    records = list(map(servers.load, servers.names()))
    records.sort(key=lambda record: engines.default().name in record.engines)
    return {record.url_scheme: record for record in records}


def takes_connections(address: str) -> bool:
    parts = urlsplit(f"//{address}")
    try:
        socket.create_connection((parts.hostname, parts.port or 0), CONNECT_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def from_rehearsal(target: Target, engine: str, pid: int) -> Endpoint:
    """The endpoint of a target that this program started on a miniature."""
    config = json.loads((Path(target.environment["CHECKPOINT"]) / "config.json").read_text())
    positions = {**config, **config.get("text_config", {})}.get("max_position_embeddings")
    served = from_target(target)
    is_reference = engine == "reference"
    return replace(served, pid=pid, rehearsal=True, on_reference=is_reference, positions=positions)
