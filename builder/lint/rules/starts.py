"""Checks what a server's start needs around it: shared memory for its ranks, and time to load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...diagnostics import Diagnostic, Location, located
from ...documents import Yaml, value_at
from ...facts import engines
from ...general_rules import Rule
from ..engine import surroundings
from ..model import Server, Word, below
from ..read.containers import Around, listed
from .gpus import world_size
from .model import find_model

SMALL_SHARED_MEMORY = Rule(
    "small-shared-memory",
    "Several ranks share the little shared memory that a container has by default.",
    "warning",
)
START_LIMIT = Rule(
    "start-limit", "A probe ends the server before its weights can be loaded.", "warning"
)

# Assumed: what few pods exceed that read a checkpoint over a network.
_LOAD_GB_PER_S = 1.0
_MODEL_FLAGS = ("--model",)  # of commands that are the arguments of an image


def container_start_diagnostics(
    server: Server, document: Yaml, path: str, data: Mapping[str, Any], around: Around
) -> Iterator[Diagnostic]:
    """Checks a container or Compose service that starts one server."""
    record = surroundings()["shared_memory"]
    folder = record["folder"]
    if value_at(document.data, "kind") in record["pods"]:
        yield from _liveness_diagnostics(server, document, path, data)
        has_memory = around.pod.get("hostIPC") is True
        fix = f"mount an emptyDir with medium: Memory at {folder}"
    elif path.rpartition(".")[0] == "services":
        has_memory = any(data.get(key) for key in record["compose"])
        fix = "give shm_size: 16gb, or ipc: host"
    else:
        return
    mounts = [*listed(data.get("volumeMounts")), *listed(data.get("volumes"))]
    mounts += [data["tmpfs"]] if "tmpfs" in data else []
    if has_memory or any(folder in str(row) for row in mounts):
        return
    ranks = _ranks(server)
    if not server.sizes and server.file and server.gpus and not server.is_disaggregated:
        ranks = server.gpus.count  # the option file may set the sizes
    yield from _memory_diagnostics(ranks, document.locate(path), path, fix)


def docker_diagnostics(before: Sequence[Word], words: Sequence[Word]) -> Iterator[Diagnostic]:
    """Checks a server that `docker run` starts. `before` are the words before the server, `words`
    those of its whole statement."""
    record = surroundings()["shared_memory"]
    texts = [word.text for word in before]
    programs = [word for word in before if word.text.rpartition("/")[2] in ("docker", "podman")]
    if not programs or "run" not in texts or not all(word.certain for word in before):
        return
    if any(text.startswith(tuple(record["docker"])) or record["folder"] in text for text in texts):
        return
    ranks = max(_ranks(Server(tuple(words), engine=name)) for name in engines.names())
    fix = "give --ipc host, or --shm-size 16g"
    yield from _memory_diagnostics(ranks, programs[0].location, "docker run", fix)


def _memory_diagnostics(ranks: int, place: Location, path: str, fix: str) -> Iterator[Diagnostic]:
    if ranks > 1:
        folder = surroundings()["shared_memory"]["folder"]
        what = f"{ranks} ranks share {folder}, which has 64 MiB without another setting"
        yield located(place, path, what, fix, SMALL_SHARED_MEMORY)


def _ranks(server: Server) -> int:
    return world_size(server.sizes, server.engine) or 1


def _liveness_diagnostics(
    server: Server, document: Yaml, path: str, data: Mapping[str, Any]
) -> Iterator[Diagnostic]:
    """Reports a liveness probe that ends a server while it loads its weights."""
    probe = data.get("livenessProbe")
    name = server.model.name if server.model else (server.flag(_MODEL_FLAGS) or [""])[0]
    model = find_model(name)
    if not isinstance(probe, Mapping) or data.get("startupProbe") or model is None:
        return
    defaults = surroundings()["probes"]["defaults"]
    fields = {name: value_at(probe, name) or default for name, default in defaults.items()}
    if not all(isinstance(value, int) for value in fields.values()):
        return
    delay_s, period_s = fields["initialDelaySeconds"], fields["periodSeconds"]
    failures = fields["failureThreshold"]
    limit_s, needed_s = delay_s + failures * period_s, model.nbytes / 1e9 / _LOAD_GB_PER_S
    if limit_s < needed_s:
        where = below(path, "livenessProbe")
        what = (
            f"ends the server {limit_s} s after its start, and {model.nbytes / 1e9:.0f} GB of "
            f"weights take {needed_s:.0f} s at an assumed {_LOAD_GB_PER_S:g} GB/s"
        )
        fix = "add a startupProbe that waits for the load: the other probes begin after it"
        yield located(document.locate(where), where, what, fix, START_LIMIT)
