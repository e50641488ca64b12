"""Resolves the facts of a request: checkpoint, GPU and release, or every error at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from . import credentials
from . import targets as target_table
from .deployment import Deployment, Document
from .diagnostics import Diagnostic
from .errors import BadFacts, BadInput, ToolkitError
from .facts import checkpoint, engines, hardware, published_results, release, servers
from .facts.checkpoint import Checkpoint
from .facts.engines import Engine
from .facts.release import Release, published
from .general_rules import MISSING_KEY
from .planning import Facts
from .rules import vulnerability_policy
from .rules.validation import checked, validate
from .targets import disaggregated

T = TypeVar("T")
Known = Mapping[str, Checkpoint]  # facts at hand, by the name of the checkpoint in the request

_CREDENTIAL_REMEDY = (
    "pass it to the running server: in its environment, or as a file or secret of its machine"
)

# Where a bundle keeps the option table of a release that does not ship with the toolkit.
IMPORTED_RELEASE = "release.json"


def gather(document: Document, known: Known, is_trial: bool = False) -> tuple[Deployment, Facts]:
    """The valid request and its facts, or all errors of the file and of its facts together. A trial
    of another release looks for no remedy."""
    request, diagnostics = document.validate(target_table.names(), target_table.options_type)
    held = credentials.found(document.data)
    diagnostics += (Diagnostic(path, what, _CREDENTIAL_REMEDY) for path, what in held)
    errors: list[ToolkitError] = [BadInput(diagnostics)] if diagnostics else []

    def attempt(path: str, load: Callable[[Any], T]) -> T | None:
        """Facts for a field of the file, if the field can be read."""
        value = document.get(path)
        text = published.spelled(value) if path == published.WHERE else value
        if not isinstance(text, str) or not text:
            return None
        try:
            return load(value)
        except ToolkitError as error:
            errors.append(error)
            return None

    gpu = attempt("hardware.gpu", hardware.load)
    table = attempt("engine.release", lambda name: _release(name, document))
    folder = document.home("checkpoint")
    facts = attempt("checkpoint", lambda name: known.get(name) or _gather_checkpoint(name, folder))
    if table and isinstance(overrides := document.get("engine_config"), dict):
        errors.append(BadInput(_wrong_overrides(table, overrides)))
    if request and table:
        trial = None if is_trial else partial(_faults, document, known)
        errors.append(BadInput(vulnerability_policy.refusals(request, table.name, trial)))
    if request:
        errors.append(BadInput(_server_diagnostics(request)))
        if gpu:
            found = target_table.diagnostics(request)
            errors.append(BadInput(row for row in found if table or row.where != published.WHERE))
    diagnostics = document.locate_all(chain.from_iterable(one.diagnostics for one in errors))
    if diagnostics:
        only_facts = all(isinstance(error, BadFacts) for error in errors if error.diagnostics)
        raise BadFacts(diagnostics) if only_facts else BadInput(diagnostics)
    assert request and gpu and table and facts  # a missing one has left an error
    results = published_results.published(facts, gpu.name, request.hardware.num_gpus, request.role)
    draft = _gather_draft(request, document.home("draft.checkpoint"), known)
    return _resolved(request, table, facts, draft), Facts(facts, gpu, table, results, draft)


def _faults(document: Document, known: Known, name: str) -> list[Diagnostic]:
    """The errors of the facts with another release of the engine."""
    try:
        gather(with_release(document, name), known, is_trial=True)
    except ToolkitError as error:
        return error.diagnostics
    return []


def with_release(document: Document, name: str) -> Document:
    """The document with another release of its engine."""
    return replace(
        document, data={**document.data, "engine": {**document.data["engine"], "release": name}}
    )


def _release(value: Any, document: Document) -> Release:
    """The table of the release that a file names. Raises `BadInput` for an unknown one."""
    home, assume = document.home(published.WHERE), document.get("engine.assume_release") is True
    return release.load_published(value, home, _engine(document), assume)


def _engine(document: Document) -> Engine:
    """The engine that the file names, or the default one if that is unknown."""
    name = document.get("engine.name")
    return engines.load(name) if name in engines.names() else engines.default()


def for_engine(document: Document) -> Document:
    """The document with servers of other engines replaced by their counterparts.

    So a file in which only the engine was changed keeps its meaning.
    """
    name, targets = document.get("engine.name"), document.targets()
    if name not in engines.names():
        return document
    own = {server: servers.counterpart(server, name) for server in servers.names()}
    moved: dict[str, Any] = {
        own.get(target, target): {
            key: own.get(value, value) if key == "server" and isinstance(value, str) else value
            for key, value in options.items()
        }
        if isinstance(options, dict)
        else options  # which validation refuses
        for target, options in targets.items()
    }
    if moved == targets:
        return document
    return replace(document, data={**document.data, "targets": moved})


def _resolved(
    request: Deployment, table: Release, facts: Checkpoint, draft: Checkpoint | None
) -> Deployment:
    """The request with absolute folders, and with an imported table at its path in bundles."""
    changes: dict[str, Any] = {}
    if facts.path is not None:
        changes["checkpoint"] = str(facts.path)
    elif facts.file is not None:
        changes["checkpoint"] = facts.name
    if not table.ships:
        changes["engine"] = request.engine.replaced(release=IMPORTED_RELEASE)
    if draft and draft.path is not None and request.draft:
        changes["draft"] = request.draft.replaced(checkpoint=str(draft.path))
    return request.replaced(**changes)


def _gather_draft(request: Deployment, folder: Path, known: Known) -> Checkpoint | None:
    """The facts of a draft model; `None` if they are unknown, which is not an error."""
    if request.draft is None:
        return None
    try:
        name = request.draft.checkpoint
        return known.get(name) or checkpoint.gather(name, folder)
    except (BadFacts, BadInput):
        return None


def _server_diagnostics(request: Deployment) -> Iterator[Diagnostic]:
    """Servers of another engine, and targets that cannot serve one side of prefill and decode."""
    known = {row.name: row for row in map(servers.load, servers.names())}
    fitting = [name for name, row in known.items() if request.engine.name in row.engines]
    for name in request.targets:
        if name in known and name not in fitting:
            what = f"does not serve {request.engine.name}"
            yield Diagnostic(f"targets.{name}", what, f"choose from {', '.join(fitting)}")
    if request.role == "agg":
        return
    able = [name for name in servers.with_role(request.role) if name in fitting]
    for name in request.targets:
        if name not in (*able, *target_table.NON_SERVER_TARGETS, *disaggregated.TARGETS):
            what = f"does not serve the {request.role} side of disaggregated serving"
            runners = disaggregated.TARGETS if request.role == "decode" else ()
            remedy = f"name {', '.join((*able, *runners))} only, or give role agg"
            if not able:
                engine = engines.load(request.engine.name)
                remedy = f"give role agg: no server of {engine.title} does one side alone here"
                remedy += f"; {engine.sides_remedy}" if engine.sides_remedy else ""
            yield Diagnostic(f"targets.{name}", what, remedy)


def _wrong_overrides(table: Release, overrides: dict[str, Any]) -> Iterator[Diagnostic]:
    """Overrides that the release rejects; missing keys may come from a rule."""
    for diagnostic in checked(table, lambda release: validate(release, overrides)):
        if diagnostic.severity == "error" and diagnostic.rule != MISSING_KEY:
            yield replace(diagnostic, where=f"engine_config.{diagnostic.where}")


def _gather_checkpoint(reference: str, folder: Path) -> Checkpoint:
    """The facts of a checkpoint; errors inside its folder name their own file."""
    try:
        return checkpoint.gather(reference, folder)
    except (BadFacts, BadInput) as error:
        raise type(error)(
            Diagnostic("checkpoint", f"{p.where}: {p.message}", p.fix) for p in error.diagnostics
        ) from None
