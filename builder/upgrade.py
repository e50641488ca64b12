"""Moves the deployment of a bundle to another release of its engine, and compares both.

Renamed options and images change with the release. What has no certain counterpart is an error at
its line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from . import bundle, deployment, diff, pipeline
from .bundle import Bundle
from .command import Override
from .deployment import Deployment, Document
from .diagnostics import Diagnostic
from .documents import dump_yaml, value_at
from .errors import BadInput
from .facts import advisories, engines, images, memory, release, servers
from .facts.advisories import Advisory
from .facts.release import Release
from .files import without_links
from .general_rules import UNKNOWN_KEY
from .pipeline import KnownDefect, ServicePlan
from .rules import vulnerability_policy
from .targets import disaggregated

RELEASE = "engine.release"
_OPTION = "--to"


@dataclass(frozen=True)
class Upgrade:
    """A bundle and the one that takes its place, with the plans of both.

    `comparison` is what `diff` says of them. `edits` are the changes to the deployment next to its
    release: path, value before, value after, and why; a value that is gone is `None`. `prefill` is
    the same of the prefill servers inside.
    """

    old: Bundle
    new: Bundle
    before: ServicePlan
    after: ServicePlan
    deployment: str
    edits: tuple[tuple[str, Any, Any, str], ...]
    comparison: Mapping[str, list[diff.Row]]
    prefill: Upgrade | None = None

    @property
    def tables(self) -> tuple[Release, Release]:
        return self.before.plan.facts.release, self.after.plan.facts.release

    def defects(self) -> Iterator[tuple[str, KnownDefect]]:
        """Each known defect that this deployment meets: fixed, left, new, or unknown."""
        sides = map(pipeline.known_defects, (self.before, self.after))
        old, new = ({(row.product, row.row.id): row for row in side} for side in sides)
        yield from self._compared(old, new)

    def vulnerabilities(self) -> Iterator[tuple[str, tuple[str, Advisory]]]:
        """Each open advisory with the version that has it: fixed, left, new, or unknown."""
        sides: list[dict[tuple[str, str], tuple[str, Advisory]]] = []
        for planned in (self.before, self.after):
            sides.append({})
            for use in _used(planned):
                for row in advisories.open_for(use.product, use.version):
                    words = f"{advisories.name(use.product)} {use.version}"
                    sides[-1][use.product, row.cve] = words, row
        yield from self._compared(*sides)

    def _compared(
        self, old: Mapping[Any, Any], new: Mapping[Any, Any]
    ) -> Iterator[tuple[str, Any]]:
        """`unknown` is what a product has whose new version is in no data."""
        known = {use.product for use in _used(self.after)}
        for key, row in old.items():
            if key not in new:
                yield "fixed" if key[0] in known else "unknown", row
        for key, row in new.items():
            yield "left" if key in old else "new", row

    def memory_causes(self) -> Iterator[tuple[str, Any, Any, memory.Budget]]:
        """Each input of the memory budget that differs: what it does alone to the old budget."""
        old, new, facts = self.before.plan, self.after.plan, self.before.plan.facts
        for name in ("sharding", "load"):
            one, other = getattr(old, name), getattr(new, name)
            for row in fields(one):
                values = getattr(one, row.name), getattr(other, row.name)
                if values[0] != values[1]:
                    tried = replace(old, **{name: replace(one, **{row.name: values[1]})})
                    inputs = facts.checkpoint, facts.gpu, tried.sharding, tried.load, facts.draft
                    yield row.name, *values, memory.budget(*inputs)


def _used(planned: ServicePlan) -> list[vulnerability_policy.ComponentReference]:
    facts = planned.plan.facts
    return vulnerability_policy.references(planned.plan.deployment, facts.release.name)


def upgrade(folder: Path, to: str, overrides: list[str], scratch: Path) -> Upgrade:
    """The bundle in `folder` for release `to`, rendered into `scratch`.

    `overrides` change the new deployment only; `null` removes an engine option. Raises `BadInput`
    or `BadFacts` with everything that has no counterpart.
    """
    old, file = bundle.read(folder), folder / "deployment.yaml"
    document = deployment.read(str(file))
    before = pipeline.plan_bundle(folder, _accepting(folder, document))
    table = _table(to, before)
    moved = deployment.read(str(file), [Override(f"{RELEASE}={to}", _OPTION), *overrides])
    if moved.get("name") != document.get("name"):
        what = "an upgrade keeps the name: its steps replace the servers that have it"
        remedy = "render the deployment under another name with `render`, to run both"
        raise BadInput(moved.locate_all([Diagnostic("name", what, remedy)]))
    moved.data[RELEASE.partition(".")[0]]["release"] = (
        table.name if table.ships else str(table.path)
    )
    for path in moved.overridden:
        if path.startswith("engine_config.") and moved.get(path) is None:
            _remove(moved.data, path)
    edits = list(_edits(moved, before, table))
    after = pipeline.plan_bundle(folder, moved)
    if useless := [row.where for row in after.warnings if row.where.startswith(_ACCEPTED)]:
        edits += _dropped(moved.data, useless)
        after = pipeline.plan_bundle(folder, moved)
    known = {row.where for row in before.warnings if row.rule == UNKNOWN_KEY}
    gone = [row for row in after.warnings if row.rule == UNKNOWN_KEY and row.where not in known]
    if gone:
        raise BadInput(moved.locate_all(replace(row, severity="error") for row in gone))
    new, text = pipeline.write(after, scratch / "bundle"), dump_yaml(moved.data)
    inner = None
    if before.prefill and after.prefill:
        one, other = (bundle.read(row.folder / disaggregated.PREFILL_FOLDER) for row in (old, new))
        compared = diff.compare(one, other)
        inner = Upgrade(one, other, before.prefill, after.prefill, "", (), compared)
    return Upgrade(old, new, before, after, text, tuple(edits), diff.compare(old, new), inner)


_ACCEPTED = (f"{advisories.ACCEPTED}.", "accepted_warnings.")


def _accepting(folder: Path, document: Document) -> Document:
    """The old deployment, also if its versions are refused by now: they are what is left behind."""
    request, _ = Deployment.read(document.data)
    if request is None:
        return document
    table = release.load(request.engine.release, folder, engines.load(request.engine.name))
    rows = document.data.get(advisories.ACCEPTED) or []
    for use in vulnerability_policy.references(request, table.name):
        why = "this upgrade leaves it behind"
        rows = [*rows, {"product": use.product, "version": use.version, "reason": why}]
    return replace(document, data={**document.data, advisories.ACCEPTED: rows})


def _table(to: str, before: ServicePlan) -> Release:
    """The table of the new release: upgrades need its own, not that of its neighbours."""
    old = before.plan.facts.release
    known = [name for name in release.known(old.engine) if name != old.name]
    try:
        path = str(without_links(Path(to))) if to.endswith(".json") else to
        found = release.load(path, engine=old.engine)
    except BadInput as error:
        raise BadInput(replace(row, where=_OPTION) for row in error.diagnostics) from None
    if found.neighbours:
        remedy = f"choose one of {', '.join(known)}, or import its table with `release import`"
        raise BadInput(Diagnostic(_OPTION, f"{to} has no option table", remedy))
    if found.name == old.name:
        what, remedy = f"{to} is the release of the bundle", f"choose one of {', '.join(known)}"
        raise BadInput(Diagnostic(_OPTION, what, remedy))
    return found


def _edits(
    document: Document, before: ServicePlan, table: Release
) -> Iterator[tuple[str, Any, Any, str]]:
    """Rename options and name images of the new release, for the servers of both sides.

    Raises `BadInput` for servers without a known image of that release.
    """
    sides, errors = {"": document.data}, list[Diagnostic]()
    for name in disaggregated.TARGETS:
        where = disaggregated.path(name)
        if isinstance(other := value_at(document.data, where), dict):
            other["engine"]["release"] = document.get(RELEASE)
            sides[f"{where}."] = other
    for prefix, data in sides.items():
        yield from _renamed(prefix, data.get("engine_config") or {}, before, table)
        for server, image in list((data.get("images") or {}).items()):
            path = f"{prefix}images.{server}"
            if path in document.overridden:
                continue
            found = _image_of(server, image, before.plan.facts.release, table)
            if isinstance(found, Diagnostic):
                errors.append(replace(found, where=path))
            elif found is None:
                del data["images"][server]
                yield path, image, None, f"no image with {table.name} is published"
            elif found != image:
                data["images"][server] = found
                yield path, image, found, f"its tag with {table.name}; pin it again"
    if errors:
        raise BadInput(document.locate_all(errors))


def _renamed(
    prefix: str, options: dict[str, Any], before: ServicePlan, table: Release
) -> Iterator[tuple[str, Any, Any, str]]:
    """Move overrides of options that the new release knows by another name."""
    for word, path in before.plan.facts.release.aliases.items():
        new, value = table.aliases.get(word), value_at(options, path)
        if value is None or new in (None, path):
            continue
        own = f"{prefix}engine_config.{path}"
        _remove(options, path)
        _set(options, str(new), value)
        yield own, value, value, f"it is {new} in {table.name}"


def _remove(options: dict[str, Any], path: str) -> None:
    *above, name = path.split(".")
    group = value_at(options, ".".join(above)) if above else options
    group.pop(name, None)


def _set(options: dict[str, Any], path: str, value: Any) -> None:
    *above, name = path.split(".")
    for key in above:
        options = options.setdefault(key, {})
    options[name] = value


def _image_of(server: str, image: str, old: Release, new: Release) -> str | Diagnostic | None:
    """The same repository's image of the new release; `None` if none is published; or what is
    wrong with an image that is not known to have the old one."""
    name = image.partition("@")[0]
    held = images.told_release(server, name, new.engine.product)
    if held == new.name:
        return image
    own = name.rpartition(":")[0]
    if held == old.name and own.endswith(f"/{servers.load(server).image['repository']}"):
        published = images.image(server, new.name)
        return f"{own}:{published.tag}" if published else None
    remedy = f"name one that has: --set images.{server}=REFERENCE"
    if words := images.search_words(server):
        remedy += f"; {words}"
    return Diagnostic("", f"{image} is not known to have {new.name}", remedy)


def _dropped(data: dict[str, Any], useless: list[str]) -> Iterator[tuple[str, Any, Any, str]]:
    """Remove acceptances that match nothing in the new release."""
    found = sorted((path.split(".")[0], int(path.split(".")[1])) for path in useless)
    for name, index in reversed(found):
        row = deepcopy(data[name].pop(index))
        yield f"{name}.{index}", row, None, "it matches nothing in the new release"
        if not data[name]:
            del data[name]
