"""Pins the images of a deployment: asks registries for digests and writes them into its file.

The machine's own skopeo, crane or docker prints each manifest as the registry holds it; the digest
is computed here. Of an image for several platforms it is the digest of the index. How the programs
are asked, and what their errors mean, is in `builder/data/registries.yaml`.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import bundle, deployment, pipeline
from ..deployment import Document
from ..diagnostics import Diagnostic, one_line
from ..documents import edited
from ..errors import BadFacts, BadInput, ToolkitError
from ..facts import data_file, plain_data
from ..facts.images import REFERENCE_PATTERN
from ..facts.published_results import flatten
from ..files import is_there, read_text, save, without_links
from ..pipeline import ServicePlan
from ..resolve import IMPORTED_RELEASE
from ..targets.container import ARCHITECTURES
from ..targets.slurm.options import IMAGE_FILES

TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Pinned:
    """The digest of an image, and the platforms that it holds, such as `arm64`.

    `path` is where the deployment names the image; `written` is the reference with its digest, and
    `is_new` is false where it had that digest before. A Slurm site's profile `is_elsewhere`.
    """

    path: str
    written: str
    architectures: tuple[str, ...]
    is_new: bool
    is_elsewhere: bool = False


def pin(reference: str, output: Path | None = None) -> tuple[Path, list[Pinned]]:
    """Write the digest of every image into a deployment file, or a pinned copy to `output`.

    `reference` is a deployment file, a preset or a bundle; the last two are never changed. Raises
    with every image that has no certain digest, and then writes nothing.
    """
    place = Path(reference)
    if place.is_dir():
        bundle.read(place)  # raises if it is damaged
        source = place / "deployment.yaml"
        document = deployment.read(str(source))
        planned = pipeline.plan_bundle(place, document)
    else:
        is_preset = reference in deployment.preset_names()
        source = deployment.PRESETS / f"{reference}.yaml" if is_preset else place
        document, planned = deployment.read(reference), pipeline.plan(reference)
    is_own = source == place
    if is_own and output:
        what = "is only for a bundle or a preset: a deployment file is changed in place"
        raise BadInput(Diagnostic("--output", what, "leave it out"))
    if not is_own and not output:
        what = "is required: a bundle and a preset stay as they are"
        raise BadInput(Diagnostic("--output", what, "add -o FILE"))
    if output and is_there(output):
        raise BadInput(Diagnostic(str(output), "exists", "choose another file with -o"))
    found, text = resolve(document, planned), read_text(source)
    changes = {row.path: row.written for row in found if row.is_new and not row.is_elsewhere}
    if planned.document.get("engine.release") == IMPORTED_RELEASE and place.is_dir():
        changes["engine.release"] = str(without_links(place / IMPORTED_RELEASE))
    new = edited(text, changes)
    if new is None:
        rows = [
            Diagnostic(path, "cannot be set here", f"write {changes[path]}") for path in changes
        ]
        raise BadInput(document.locate_all(rows))
    if output or new != text:
        is_dos = is_own and b"\r\n" in source.read_bytes()
        written = new.replace("\n", "\r\n") if is_dos else new
        save(without_links(output or source), written, "-o")
    return output or source, found


def resolve(document: Document, planned: ServicePlan) -> list[Pinned]:
    """The digest of every image of a plan. Raises with each one that has none."""
    programs = data_file.shipped("registries.yaml", plain_data.REGISTRIES)["programs"]
    program = next((row for row in programs if shutil.which(row["name"])), None)
    if program is None:
        names = ", ".join(row["name"] for row in programs)
        what = f"has none of {names}, and the digests of images need one of them"
        raise BadFacts(Diagnostic("PATH", what, f"install {programs[0]['name']}"))
    gpu = planned.plan.facts.gpu
    needed, errors, found = ARCHITECTURES[gpu.cpu_arch.value], list[ToolkitError](), list[Pinned]()
    known: dict[str, tuple[str, tuple[str, ...]]] = {}
    for path, image in _named(planned):
        plain, _, digest = _plain(image).partition("@")
        try:
            if image not in known:
                known[image] = _asked(program, plain, digest)
            held, architectures = known[image]
            if needed not in architectures:
                what = f"{image} is for {', '.join(architectures) or 'no known platform'}"
                fix = f"name an image for {needed}, which nodes of {gpu.name} have"
                raise BadInput(Diagnostic("", what, fix))
        except ToolkitError as error:
            errors.append(type(error)(replace(row, where=path) for row in error.diagnostics))
            continue
        written = image if digest else f"{image}@{held}"
        found.append(Pinned(path, written, architectures, not digest, ".site." in path))
    if errors:
        rows = document.locate_all(row for error in errors for row in error.diagnostics)
        raise (BadInput if any(isinstance(row, BadInput) for row in errors) else BadFacts)(rows)
    return found


def _named(planned: ServicePlan) -> Iterator[tuple[str, str]]:
    """Every image that a registry holds: those of the servers, and those in options of targets."""
    for server in planned.context.servers:
        if image := planned.context.image(server):
            yield f"images.{server}", image.reference
    for path, value in flatten(dict(planned.plan.deployment.targets)).items():
        above, _, name = path.rpartition(".")
        plain = _plain(str(value))
        is_reference = re.match(REFERENCE_PATTERN, plain) and not plain.endswith(IMAGE_FILES)
        if is_reference and (name == "image" or above.endswith(".images")):
            yield f"targets.{path}", str(value)


def _plain(image: str) -> str:
    """An image as registries name it, without the forms of enroot and skopeo."""
    return image.replace("#", "/").removeprefix("docker://")


def _asked(program: Mapping[str, Any], plain: str, digest: str) -> tuple[str, tuple[str, ...]]:
    """The digest of an image, and its platforms. Programs refuse a tag next to a digest."""
    name = re.sub(r":[^:/]+$", "", plain)
    wanted = f"{name}@{digest}" if digest else plain
    answer = _run(program, "manifest", wanted)
    held = f"sha256:{hashlib.sha256(answer).hexdigest()}"
    document = _json(answer, wanted)
    if digest and held != digest:
        what = f"{wanted} has another digest, {held}: {program['name']} did not print it as it is"
        raise BadFacts(Diagnostic("", what, "try another program of `pin`"))
    if "manifests" in document:
        platforms = [row.get("platform") or {} for row in document["manifests"]]
    elif "config" in document:
        one = f"{name}@{held}"
        platforms = [_json(_run(program, "config", one), one)]
    else:
        what = f"{wanted} has a manifest of an unknown kind"
        raise BadFacts(Diagnostic("", what, "build the image again with a current tool"))
    names = {row.get("architecture") for row in platforms if row.get("os", "linux") == "linux"}
    return held, tuple(sorted(filter(None, names)))


def _run(program: Mapping[str, Any], what: str, image: str) -> bytes:
    """What a program prints of an image: its `manifest` or `config`."""
    *words, last = program[what]
    command = (program["name"], *words, last.replace("@", image))
    host = image.partition("/")[0]
    values = {"host": host, "program": program["name"], "login": program["login"]}
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            start_new_session=True,
            check=True,
        ).stdout
    except subprocess.TimeoutExpired:
        said = ended = f"timed out after {TIMEOUT_S} s"
    except subprocess.CalledProcessError as error:
        ended = f"failed with code {error.returncode}"
        said = one_line(error.stderr.decode(errors="replace").strip().rpartition("\n")[2])
    for row in data_file.shipped("registries.yaml", plain_data.REGISTRIES)["errors"]:
        if re.search(row["matches"], said, re.IGNORECASE):
            problem = f"{image} {row['what'].format_map(values)}"
            found = Diagnostic("", problem, row["fix"].format_map(values), log=(said,))
            raise (BadInput if row["is_input"] else BadFacts)(found)
    problem = f"{image} cannot be looked up: {program['name']} {ended}"
    raise BadFacts(Diagnostic("", problem, f"try {' '.join(command)}", log=(said,)))


def _json(answer: bytes, image: str) -> Mapping[str, Any]:
    try:
        found = json.loads(answer)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise BadFacts(Diagnostic("", f"{image} has no JSON manifest", "check the registry"))
    return found
