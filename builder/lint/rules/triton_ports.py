"""Checks the ports of Triton's servers against those that are opened, published or probed."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from ...diagnostics import Diagnostic, located
from ...documents import Yaml, value_at
from ..engine import TRITON_SERVER
from ..model import Server, below, is_open
from ..read.containers import Object, in_containers, number_of, object_at
from ..read.file import Text
from ..read.shell_values import with_branches
from .files import exposed_port_diagnostics
from .names import has_functions
from .ports import (
    PROBES,
    Launch,
    opened_port_diagnostics,
    published_port_diagnostics,
    shared_port_diagnostics,
)
from .references import UNKNOWN_PROBE


@dataclass(frozen=True, slots=True)
class Listening:
    """A command with the ports at which its server listens, each with its flag; `given` are the
    flags that the command has."""

    server: Server
    ports: Mapping[str, str]
    given: Collection[str]

    @property
    def launches(self) -> list[Launch]:
        """The server as one launch for each of its ports."""
        row = self.server
        place = row.start or row.statements[0].words[0].location
        return [Launch(row.statements, row.before, place, port, "") for port in self.ports]


def port_diagnostics(source: Text, rows: Sequence[Listening], paths: str) -> Iterator[Diagnostic]:
    """Checks the ports of all servers in a file; `paths` is the pattern of those that answer."""
    for row in rows:
        yield from published_port_diagnostics(row.server.before, row.ports, "")
    for document, row in product(source.documents, rows):
        here, known = object_at(document, row.server.path), in_containers(document, TRITON_SERVER)
        if here and row.server.is_alone and row.server in known:
            own = row.ports
            yield from opened_port_diagnostics(document, here.data, here.path, own, here.around)
            yield from _path_diagnostics(document, here, own, paths)
    if source.documents:
        return
    statements = source.script.statements
    if len(rows) == 1:
        explicit = {port: flag for port, flag in rows[0].ports.items() if flag in rows[0].given}
        yield from exposed_port_diagnostics(statements, explicit)
    direct = [row for row in rows if len(row.server.statements) == 1]
    started = {row.server.statements[0] for row in direct}
    branches = any(optional and row in started for row, optional in with_branches(statements))
    if not (branches or has_functions(source.text)):
        launches = [launch for row in direct for launch in row.launches]
        yield from shared_port_diagnostics(statements, launches)


def _path_diagnostics(
    document: Yaml, here: Object, ports: Collection[str], paths: str
) -> Iterator[Diagnostic]:
    """Reports HTTP probes of a path that the server does not have."""
    for probe in PROBES:
        asked = value_at(here.data, f"{probe}.httpGet")
        path, port = value_at(asked, "path"), number_of(here.data, str(value_at(asked, "port")))
        if port not in ports or not isinstance(path, str) or is_open(path):
            continue
        if not re.fullmatch(paths, path.partition("?")[0].rstrip("/")):
            where = below(here.path, f"{probe}.httpGet.path")
            what = f"the server has no {path[:60]}: it answers 404, and the pod is never ready"
            fix = "give /v2/health/ready, or /v2/health/live"
            yield located(document.locate(where), where, what, fix, UNKNOWN_PROBE)
