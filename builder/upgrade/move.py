"""Moves the deployment of a bundle to another release of its engine.

Renamed options and images change with the release. What has no certain counterpart is an error at
its line.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import bundle, deployment, diff, pipeline
from ..command import Override
from ..deployment import Deployment, Document
from ..diagnostics import Diagnostic
from ..documents import dump_yaml, value_at
from ..errors import BadInput
from ..facts import advisories, engines, images, release, servers
from ..facts.release import Release
from ..files import without_links
from ..general_rules import UNKNOWN_KEY
from ..pipeline import ServicePlan
from ..rules import vulnerability_policy
from ..rules.options import set_option
from ..targets import disaggregated
from ..targets.kubernetes.workload import object_name
from .comparison import Upgrade

RELEASE = "engine.release"
_OPTION = "--to"
_ACCEPTED = (f"{advisories.ACCEPTED}.", "accepted_warnings.")
Edit = tuple[str, Any, Any, str]  # path, value before, value after, and why


def upgrade(folder: Path, to: str, overrides: list[str], scratch: Path) -> Upgrade:
    """The bundle in `folder` for release `to`, rendered into `scratch`.

    `overrides` change the new deployment only; `null` removes an engine option, and another name
    lets both run side by side. Raises `BadInput` or `BadFacts` with everything that has no
    counterpart.
    """
    old, file = bundle.read(folder), folder / "deployment.yaml"
    document = deployment.read(str(file))
    before = pipeline.plan_bundle(folder, _accepting(folder, document))
    table = _table(to, before)
    moved = deployment.read(str(file), [Override(f"{RELEASE}={to}", _OPTION), *overrides])
    old_name, name = (str(row.get("name")) for row in (document, moved))
    if name != old_name and object_name(name) == object_name(old_name):
        what = f"{name} and {old_name} have one name in Kubernetes, {object_name(name)}"
        raise BadInput(moved.locate_all([Diagnostic("name", what, "choose another name")]))
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


def _edits(document: Document, before: ServicePlan, table: Release) -> Iterator[Edit]:
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
) -> Iterator[Edit]:
    """Move overrides of options that the new release knows by another name."""
    for word, path in before.plan.facts.release.aliases.items():
        new, value = table.aliases.get(word), value_at(options, path)
        if value is None or new in (None, path):
            continue
        own = f"{prefix}engine_config.{path}"
        _remove(options, path)
        set_option(options, str(new), value)
        yield own, value, value, f"it is {new} in {table.name}"


def _remove(options: dict[str, Any], path: str) -> None:
    *above, name = path.split(".")
    group = value_at(options, ".".join(above)) if above else options
    group.pop(name, None)


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


def _dropped(data: dict[str, Any], useless: list[str]) -> Iterator[Edit]:
    """Remove acceptances that match nothing in the new release."""
    found = sorted((path.split(".")[0], int(path.split(".")[1])) for path in useless)
    for name, index in reversed(found):
        row = deepcopy(data[name].pop(index))
        yield f"{name}.{index}", row, None, "it matches nothing in the new release"
        if not data[name]:
            del data[name]
