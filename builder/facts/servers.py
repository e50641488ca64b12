"""Loads the servers that can be deployed: one record for each, from `builder/data/servers/`.

A record says how a server is started, reached and monitored. The module of the same name in
`builder/servers` renders its files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from ..documents import DATA
from ..schema import Plain, Positive, Text
from .data_file import load as load_file
from .engines import EngineName

SERVERS = DATA / "servers"

Api = Literal["openai", "kserve"]
Protocol = Literal["http", "grpc", "metrics"]
ServerRole = Literal["agg", "prefill", "decode"]


@dataclass(frozen=True, slots=True)
class ServerMetrics:
    """The protocol whose port serves metrics. `needs` is the engine option that enables them.
    `by_release` means that the set of metrics depends on the engine's release."""

    protocol: Protocol
    by_release: bool
    needs: Text | None


# The smallest request that a working server answers. `{model}` is replaced by its name.
_CANARY: Any = {"path": Text, "body": {"*": Any}}
# How a server is started on several nodes if no launcher starts its ranks: each node runs the same
# command, with its number after `number_flag` and the host of node 0, whose ranks listen on
# `head_port`, after `head_flag`. All other nodes also get `others_flag` and answer no clients.
_NODE_COMMAND: Any = {
    **dict.fromkeys(("number_flag", "head_flag", "others_flag", "source"), Text),
    "head_port": int,
}


@dataclass(frozen=True, slots=True)
class Server:
    """One server.

    `roles` are the sides of serving that it can run, `program` its command, and `router` the
    command of a router for disaggregated serving. `api` is the protocol family of its clients,
    `client_apis` the ways to measure it, best first. `launch` takes URLs with `url_scheme`, and
    `default_model` as the model's name if a URL has none. `unary_suffix` is added to a model's name
    for a second model over the same engine that takes unary calls only. `ports` are the usual ones
    by protocol, `ready_log` the log line of a ready server. `image` describes published images: the
    end of their repository, and the product that their tags version. `paths` are the HTTP paths for
    readiness, liveness and metrics. `model_owner` is the owner in its list of models, which
    distinguishes servers of one protocol. `ignores_unknown_fields` says that it skips unknown
    fields of a request, and `json_schema_format` how to ask for text that fits a schema. `files`
    are those of engine options and model, if it has one, in a bundle; `{model}` is its name.
    `llm_d_engine` is the server's name in llm-d's router; none if that cannot read its requests.
    """

    name: Text
    title: Text
    engines: tuple[EngineName, ...]
    roles: tuple[ServerRole, ...]
    program: Text
    router: tuple[Text, ...] | None
    license: Text
    image: dict[Literal["product", "repository"], Text]
    api: Api
    client_apis: tuple[Text, ...]
    kserve_protocols: tuple[Text, ...]
    url_scheme: Text
    default_model: Text | None
    unary_suffix: Text | None
    ports: Mapping[Protocol, Positive]
    paths: dict[Literal["ready", "live", "metrics"], Text]
    metrics: ServerMetrics
    ready_log: Text | None
    canary: Annotated[Mapping[str, Any], Plain(_CANARY)]
    files: dict[Literal["options", "model"], Text | None]
    model_owner: Text | None = None
    ignores_unknown_fields: bool = False
    json_schema_format: Literal["json", "json_schema"] = "json"
    llm_d_engine: Text | None = None
    node_command: Annotated[Mapping[str, Any], Plain(_NODE_COMMAND)] | None = None

    def canary_for(self, model: str) -> dict[str, Any]:
        """The smallest request to a model: `path` and `body`."""
        body = dict(self.canary["body"])
        for key, value in body.items():
            if isinstance(value, str):
                body[key] = value.replace("{model}", model)
        return {"path": self.canary["path"].replace("{model}", model), "body": body}

    def option_file(self, model: str) -> str:
        """The path of the rendered engine options in a bundle."""
        return str(self.files["options"]).replace("{model}", model)

    def url(self, host: str, ports: Mapping[str, int | str], model: str | None = None) -> str:
        """The URL that `launch` uses for it; protocols without a port are off."""
        front = f":{ports['http']}" if "http" in ports else ""
        others = [name for name in self.ports if name != "http" or not front]
        query = [f"{name}={ports.get(name, 'off')}" for name in others]
        if model:
            from urllib.parse import quote  # takes long to import

            query.append(f"model={quote(model)}")
        return f"{self.url_scheme}://{host}{front}" + (f"?{'&'.join(query)}" if query else "")


@cache
def names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in SERVERS.glob("*.yaml")))


def load(name: str) -> Server:
    """The record of one of `names()`. Raises `BadFacts` with the errors of its file."""
    return load_file(SERVERS / f"{name}.yaml", Server)


def counterpart(name: str, engine: str) -> str:
    """The server of an engine with the same API as this one; this one if the engine has none."""
    given = load(name)
    if engine in given.engines:
        return name
    same = (other for other in map(load, names()) if other.api == given.api)
    return next((other.name for other in same if engine in other.engines), name)


def with_role(role: str) -> list[str]:
    """The servers that support a role; all published servers for one side are trtllm-serve."""
    return [name for name in names() if role in load(name).roles]
