"""Expands paths to the files to check and adds the context of the bundle that they are in."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from ...diagnostics import NOWHERE, Diagnostic, located
from ...documents import scan_yaml, value_at
from ...errors import BadFacts, BadInput, ToolkitError
from ...facts import engines
from ...facts.release import ServerRole
from ...files import MANIFEST, is_folder, is_there, load_json_mapping, read_text
from ..engine import default_formats
from ..model import StatedWorkload, int_at
from ..rules import DAMAGED_BUNDLE, UNREADABLE
from .file import SUFFIXES, is_dockerfile, is_requirements
from .versions import pins_engine

if TYPE_CHECKING:
    from ...facts.checkpoint import Checkpoint

# Maximum depth of a file in a bundle: triton/model_repository/NAME/1/model.yaml.
_BUNDLE_DEPTH = 6


@dataclass(frozen=True)
class BundleContext:
    """What a bundle defines for its files. `folder` is the folder of the bundle.
    `accepted_warnings` are paths in the deployment, each with a rule or ""."""

    folder: Path
    engine: str
    release: str
    role: ServerRole | None
    workload: StatedWorkload
    checkpoint: Checkpoint | None
    block_size: int | None
    damage: tuple[Diagnostic, ...]
    accepted: frozenset[tuple[str, str]] = frozenset()
    accepted_warnings: frozenset[tuple[str, str]] = frozenset()

    def accepts(self, row: Diagnostic) -> bool:
        """Returns whether the deployment accepts this warning about an engine option."""
        paths = {(f"engine_config.{row.path}", rule) for rule in ("", row.rule)}
        return row.severity == "warning" and not paths.isdisjoint(self.accepted_warnings)


@dataclass(frozen=True)
class SourceFile:
    """A file to check. `given` means that the user named the file. `diagnostic` is set if the file
    cannot be listed."""

    path: Path
    given: bool = False
    context: BundleContext | None = None
    diagnostic: Diagnostic | None = None


def expand(paths: Sequence[Path], unread: Counter[str]) -> Iterator[SourceFile]:
    """Yields each file of the paths once; files of a folder are sorted by name. `unread` counts the
    files of folders that check does not support, by suffix."""
    seen: set[tuple[int, int]] = set()
    for path in dict.fromkeys(paths):
        if is_folder(path):
            yield from _folder(path, path.resolve(), seen, _enclosing(path), unread)
        else:
            yield SourceFile(path, given=True, context=_enclosing(path))


def _folder(
    folder: Path,
    given: Path,
    seen: set[tuple[int, int]],
    context: BundleContext | None,
    unread: Counter[str],
) -> Iterator[SourceFile]:
    """Yields the files below a folder, and enters each folder once.

    Links to files are followed. Links to folders are followed only inside the `given` folder: a
    link to `/` would otherwise read every file of the machine.
    """
    try:
        status = folder.stat()
        if (status.st_dev, status.st_ino) in seen:
            return
        seen.add((status.st_dev, status.st_ino))
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        what = f"cannot be read: {reason}"
        yield SourceFile(
            folder, diagnostic=located(NOWHERE, "", what, "check the path", UNREADABLE)
        )
        return
    if own := _surroundings(folder):  # a bundle, possibly inside another one
        context = own
        for diagnostic in own.damage:
            found = located(NOWHERE, "", diagnostic.message, diagnostic.fix, DAMAGED_BUNDLE)
            yield SourceFile(folder / diagnostic.where, diagnostic=found)
    for entry in entries:
        path = folder / entry.name
        if entry.name.startswith(".") or entry.name in ("__pycache__", "node_modules"):
            continue
        if _is(entry, "is_dir"):
            if entry.is_symlink() and not path.resolve().is_relative_to(given):
                unread["link to a folder elsewhere"] += 1
            else:
                yield from _folder(path, given, seen, context, unread)
        elif not _is(entry, "is_file"):
            yield from _no_file(path, entry.is_symlink())
        elif _may_be_judged(path):
            yield SourceFile(path, context=context)
        elif context is None:
            unread[path.suffix or "without suffix"] += 1


def _no_file(path: Path, is_link: bool) -> Iterator[SourceFile]:
    """Warns about a path with a supported name that is a pipe or a broken link."""
    if path.suffix in SUFFIXES or is_dockerfile(path.name):
        what = "is a link that leads to no file" if is_link else "is no plain file"
        row = located(
            NOWHERE, "", f"{what}: not checked", "put a file there", UNREADABLE, "warning"
        )
        yield SourceFile(path, diagnostic=row)


def _may_be_judged(path: Path) -> bool:
    """Returns whether check reads a file that it found in a folder. A Python program must use the
    engine, start it or write options for it; requirements must pin it."""
    pins = is_requirements(path.name)
    if path.suffix != ".py" and not pins:
        return path.suffix in SUFFIXES or is_dockerfile(path.name)
    try:
        text = read_text(path)
    except BadInput:
        return False
    if pins:
        return pins_engine(text)
    from . import python_api, python_files

    if python_files.may_start(text):
        return True
    return python_api.may_be_program(text) or (
        re.search(default_formats().named, text, re.IGNORECASE) is not None
        and python_files.may_write(text)
    )


def _is(entry: os.DirEntry[str], kind: str) -> bool:
    try:
        return bool(getattr(entry, kind)())
    except OSError:  # a link to itself
        return False


def _enclosing(path: Path) -> BundleContext | None:
    """Returns the context of the bundle that contains a file."""
    above = Path(os.path.abspath(path)).parents[:_BUNDLE_DEPTH]  # noqa: PTH100, links are kept
    return next((found for folder in above if (found := _surroundings(folder))), None)


@lru_cache(maxsize=8)
def _surroundings(folder: Path) -> BundleContext | None:
    """Returns the context of a folder if it is a bundle."""
    manifest = _read_json(folder / MANIFEST)
    engine = manifest.get("engine")
    if "format" not in manifest or not isinstance(engine, dict) or "release" not in engine:
        return None
    from ... import bundle  # not needed outside a bundle
    from ...facts import advisories, checkpoint

    damage: tuple[Diagnostic, ...] = ()
    facts = None
    try:
        bundle.read(folder)
        facts = checkpoint.from_bundle(folder)
    except ToolkitError as error:
        damage = tuple(error.diagnostics)
    request = _request(folder / "deployment.yaml")
    role, gpu = value_at(request, "role"), value_at(request, "hardware.gpu")
    return BundleContext(
        folder,
        name if (name := engine.get("name")) in engines.names() else engines.default().name,
        str(engine["release"]),
        role if role in get_args(ServerRole) else None,
        StatedWorkload(
            int_at(request, "workload.isl"),
            int_at(request, "workload.osl"),
            int_at(request, "workload.concurrency"),
            gpu if isinstance(gpu, str) else None,
        ),
        facts,
        int_at(request, "targets.slurm.site.block_size"),
        damage,
        frozenset(_accepted(value_at(request, advisories.ACCEPTED))),
        frozenset(_accepted_warnings(request)),
    )


def _accepted(rows: Any) -> Iterator[tuple[str, str]]:
    """Yields the products and versions whose vulnerabilities a deployment accepts."""
    for row in rows if isinstance(rows, list) else ():
        yield str(value_at(row, "product")), str(value_at(row, "version"))


def _accepted_warnings(request: Any) -> Iterator[tuple[str, str]]:
    """Yields the accepted warnings of a deployment and of the prefill deployments of its
    targets."""
    targets = value_at(request, "targets")
    named = targets if isinstance(targets, dict) else {}
    sides = (value_at(named, f"{name}.prefill.deployment") for name in named)
    for side in (request, *sides):
        rows = value_at(side, "accepted_warnings")
        for row in rows if isinstance(rows, list) else ():
            yield str(value_at(row, "path")), str(value_at(row, "rule") or "")


def _request(path: Path) -> Any:
    try:
        return scan_yaml(read_text(path))[0].data
    except BadInput:
        return None


def _read_json(path: Path) -> Mapping[str, Any]:
    if not is_there(path):
        return {}  # avoids an exception for each parent folder
    try:
        return load_json_mapping(path)
    except BadFacts:
        return {}
