"""The system under test: which model, engine and bundle answer at an endpoint."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.bundle import Bundle
from builder.diagnostics import Diagnostic
from builder.documents import load_yaml_mapping
from builder.errors import NotReady
from builder.facts import engines
from builder.files import load_json_mapping

from .. import access
from ..answers import model_name
from ..endpoint import Endpoint
from ..run import of_bundle
from ..smoke import metrics
from ..smoke.client import CheckFailure, NotSupported, RequestRejected, reading
from ..target import Target
from . import workload

UNKNOWN = "unknown"
ENGINE_WORD = ", TensorRT-LLM "
TIMEOUT_S = 10.0
_PARALLEL = ("parallel", "attention_dp", "draft", "nextn", "speculative_tokens")  # in option paths


@dataclass(frozen=True, slots=True)
class SystemUnderTest:
    """An endpoint, and its bundle, target and run.json, if they are known."""

    endpoint: Endpoint
    bundle: Bundle | None = None
    target: Target | None = None
    run: Mapping[str, Any] | None = None

    @property
    def checkpoint(self) -> Path | None:
        """The folder that the server loads: the run's, else the target's."""
        if self.target is None:
            return None
        named = self.target.environment["CHECKPOINT"]
        return Path((self.run or {}).get("checkpoint", named)).expanduser()

    @property
    def tokenizer(self) -> Path | None:
        """The folder that the server loads, if it is here with a tokenizer."""
        folder = self.checkpoint
        return folder if folder and (folder / workload.TOKENIZER).is_file() else None

    def vocabulary_size(self, version: str) -> int | None:
        """Of the checkpoint folder if it is here, else of the bundle, unless `version` is that of
        the reference engine, which serves a miniature."""
        if self.checkpoint and (file := self.checkpoint / "config.json").is_file():
            return _vocabulary_size(load_json_mapping(file))
        if self.run is None and metrics.is_reference(version):
            return None
        return _vocabulary_size(_checkpoint(self.bundle).get("config", {}))

    def described(
        self, reported: tuple[str, str | None], num_gpus: int | None = None
    ) -> dict[str, Any]:
        """The subject of the document, from the bundle and what the server reports.

        The run that started the server says whether this is a rehearsal, else the version does.
        Triton reports its engine's version in a metric; without that it is unknown.
        """
        (version, model), endpoint, bundle = reported, self.endpoint, self.bundle
        hardware, facts = hardware_options(bundle), _checkpoint(bundle)
        used = _used(endpoint, self.run, version)
        about = bundle and {
            "name": bundle.launch["name"],
            "folder": str(bundle.folder),
            "digest": bundle.digest,
        }
        return {
            "name": about["name"] if about else endpoint.url or endpoint.grpc,
            "model": facts.get("name") or model,
            "precision": precision(facts),
            "gpu": hardware.get("gpu"),
            "num_gpus": num_gpus or hardware.get("num_gpus"),
            "options": _parallel_options(bundle),
            "engine": {
                **(bundle.launch["engine"] if bundle else _engine_of(used, version)),
                "used": used,
                "rehearsal": _is_rehearsal(endpoint, self.run, used),
            },
            "bundle": about,
            "target": endpoint.server,
            "url": endpoint.url or f"grpc://{endpoint.grpc}",
            "server_version": version,
        }


def _parallel_options(bundle: Bundle | None) -> dict[str, Any]:
    if bundle is None:
        return {}
    manifest = json.loads((bundle.folder / "manifest.json").read_bytes())
    return {
        row["path"]: row["value"]
        for row in manifest["decisions"]
        if any(word in row["path"] for word in _PARALLEL) and type(row["value"]) in (int, bool)
    }


def _used(endpoint: Endpoint, run: Mapping[str, Any] | None, version: str) -> str:
    if run:
        return str(run["engine"]["used"])
    if endpoint.rehearsal or metrics.is_reference(version):
        return "reference"
    if endpoint.api == "openai":  # an engine's own server
        return endpoint.record.engines[0]
    return engines.default().name if ENGINE_WORD in version else UNKNOWN


def _engine_of(used: str, version: str) -> dict[str, str | None]:
    if used not in engines.names():
        return {"name": None, "release": None}
    return {"name": used, "release": None if version == UNKNOWN else version}


def _is_rehearsal(endpoint: Endpoint, run: Mapping[str, Any] | None, used: str) -> bool:
    """Whether the speed says nothing about a GPU."""
    return endpoint.rehearsal or used == "reference" or bool(run and run["engine"]["rehearsal"])


def reported(endpoint: Endpoint) -> tuple[str, str | None]:
    """The version and the model's name, as the server reports them. Raises `NotReady`."""
    try:
        with reading():
            return asyncio.run(_reported(endpoint))
    except (CheckFailure, RequestRejected, NotSupported) as error:
        where = endpoint.url or f"grpc://{endpoint.grpc}"
        what = f"does not say what it serves: {error}"
        remedy = access.remedy(str(error)) or "give the address of a server's HTTP port"
        raise NotReady(Diagnostic(where, what, remedy)) from None


async def _reported(endpoint: Endpoint) -> tuple[str, str | None]:
    if endpoint.api == "kserve":
        from ..smoke.suite import clients

        async with AsyncExitStack() as stack:
            first = (await clients(endpoint, stack, TIMEOUT_S))[0]
            try:
                version = await first.served()
            except RequestRejected:  # the model index is closed to those without the key
                version = f"Triton {UNKNOWN}"
            release = await metrics.engine_version(endpoint)
            return f"{version}{ENGINE_WORD}{release}" if release else version, None
    model = endpoint.model
    if model is None:
        from ..bounded_answer import client as session
        from ..smoke.http import get_json

        headers = endpoint.access.http_headers
        async with session(endpoint.url or "", TIMEOUT_S, headers) as http:
            models = (await get_json(http, "/v1/models")).get("data")
            first = models[0] if isinstance(models, list) and models else {}
            model = first.get("id") if isinstance(first, dict) else None
            if model is not None:
                model = model_name(model)
    return await metrics.engine_version(endpoint) or UNKNOWN, model


def hardware_options(bundle: Bundle | None) -> Mapping[str, Any]:
    return deployment(bundle).get("hardware") or {}


def deployment(bundle: Bundle | None) -> Mapping[str, Any]:
    if bundle is None:
        return {}
    return load_yaml_mapping(bundle.folder / "deployment.yaml")


def _checkpoint(bundle: Bundle | None) -> Mapping[str, Any]:
    if bundle is None:
        return {}
    return load_json_mapping(bundle.folder / "checkpoint.json")


def precision(facts: Mapping[str, Any]) -> str | None:
    """The checkpoint's quantization; without one the weights are BF16."""
    return (facts["quantization"]["quant_algo"] or "BF16") if facts else None


def _vocabulary_size(config: Mapping[str, Any]) -> int | None:
    text = config.get("text_config")
    size = {**config, **(text if isinstance(text, dict) else {})}.get("vocab_size")
    return size if isinstance(size, int) else None


def running(bundle: Bundle, ports: Mapping[str, int], runs: Path) -> Mapping[str, Any] | None:
    """The `run.json` of the server that was started from this bundle on these ports, if it runs."""
    for _, facts in of_bundle(bundle, runs):
        if facts.get("outcome") == "ready" and facts.get("ports") == dict(ports):
            return facts
    return None
