"""Pins the images of a deployment: asks registries for digests and writes them into its file.

The machine's own skopeo, crane or docker prints each manifest as the registry holds it; the digest
is computed here. Of an image for several platforms it is the digest of the index.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import bundle, deployment, pipeline
from .deployment import Document
from .diagnostics import Diagnostic, one_line
from .documents import edited
from .errors import BadFacts, BadInput, ToolkitError
from .facts.images import REFERENCE_PATTERN
from .facts.published_results import flatten
from .files import is_there, read_text, save, without_links
from .pipeline import ServicePlan
from .resolve import IMPORTED_RELEASE
from .targets.container import ARCHITECTURES
from .targets.slurm.options import IMAGE_FILES

# How each program prints a manifest as it is and the configuration of an image of one platform, and
# how to log in.
# Sources: skopeo 1.9.3; google/go-containerregistry cmd/crane/cmd/manifest.go and config.go;
# docker/buildx@00b7d5b util/imagetools/printers.go.
PROGRAMS = {
    "skopeo": (("inspect", "--raw", "docker://"), ("inspect", "--config", "docker://"), "login"),
    "crane": (("manifest", ""), ("config", ""), "auth login"),
    "docker": (
        ("buildx", "imagetools", "inspect", "--raw", ""),
        ("buildx", "imagetools", "inspect", "--format", "{{json .Image}}", ""),
        "login",
    ),
}
TIMEOUT_S = 120

# Words in the programs' errors, what is wrong, the fix, and whether another value of the
# deployment fixes it.
_FAULTS = (
    (
        "(manifest|name).unknown|not found",
        "is not in the registry",
        "correct the name or the tag",
        True,
    ),
    (
        "unauthorized|authentication|denied|forbidden",
        "is refused by the registry without a login, or does not exist",
        "log in first: {program} {login} {host}",
        False,
    ),
    ("unknown command", "cannot be looked up: docker has no buildx", "install skopeo", False),
    (
        "no such host|refused|timeout|timed out|unreachable|dial tcp|eof|tls|x509|http response",
        "cannot be looked up: {host} cannot be reached",
        "run this on a machine that reaches {host}",
        False,
    ),
)


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
    document, planned, text = _read(reference)
    folder = Path(reference)
    is_own = folder.is_file() and reference not in deployment.preset_names()
    if is_own == (output is not None):
        what = "is only for a bundle or a preset: a deployment file is changed in place"
        if not is_own:
            what = "is required: a bundle and a preset stay as they are"
        raise BadInput(Diagnostic("--output", what, "leave it out" if is_own else "add -o FILE"))
    file = output or folder
    if output is not None and is_there(output):
        raise BadInput(Diagnostic(str(output), "exists", "choose another file with -o"))
    found = resolve(document, planned)
    changes = {row.path: row.written for row in found if row.is_new and not row.is_elsewhere}
    if planned.document.get("engine.release") == IMPORTED_RELEASE and folder.is_dir():
        changes["engine.release"] = str(without_links(folder / IMPORTED_RELEASE))
    new = edited(text, changes)
    if new is None:
        rows = (
            Diagnostic(path, "cannot be set here", f"write {changes[path]}") for path in changes
        )
        raise BadInput(document.locate_all(rows))
    if output or new != text:
        is_dos = is_own and b"\r\n" in file.read_bytes()
        save(without_links(file), new.replace("\n", "\r\n") if is_dos else new, "-o")
    return file, found


def _read(reference: str) -> tuple[Document, ServicePlan, str]:
    """A deployment, its plan, and its text; a bundle must be intact."""
    folder = Path(reference)
    if folder.is_dir():
        bundle.read(folder)
        file = folder / "deployment.yaml"
        document = deployment.read(str(file))
        return document, pipeline.plan_bundle(folder, document), read_text(file)
    document = deployment.read(reference)
    is_preset = reference in deployment.preset_names()
    path = deployment.PRESETS / f"{reference}.yaml" if is_preset else folder
    return document, pipeline.plan(reference), read_text(path)


def resolve(document: Document, planned: ServicePlan) -> list[Pinned]:
    """The digest of every image of a plan. Raises with each one that has none."""
    program = next(filter(shutil.which, PROGRAMS), None)
    if program is None:
        what = "is not installed, and the digests of images need one of them"
        raise BadFacts(Diagnostic(", ".join(PROGRAMS), what, "install skopeo"))
    gpu = planned.plan.facts.gpu
    needed, errors, found = ARCHITECTURES[gpu.cpu_arch.value], list[ToolkitError](), list[Pinned]()
    known: dict[str, tuple[str, tuple[str, ...]]] = {}
    for path, image in _named(planned):
        plain, _, digest = image.replace("#", "/").removeprefix("docker://").partition("@")
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
        is_image = name == "image" or above.endswith(".images")
        plain = str(value).replace("#", "/").removeprefix("docker://")
        if is_image and re.match(REFERENCE_PATTERN, plain) and not plain.endswith(IMAGE_FILES):
            yield f"targets.{path}", str(value)


def _asked(program: str, plain: str, digest: str) -> tuple[str, tuple[str, ...]]:
    """The digest of an image, and its platforms. Programs refuse a tag next to a digest."""
    raw, config, _ = PROGRAMS[program]
    name = re.sub(r":[^:/]+$", "", plain)
    wanted = f"{name}@{digest}" if digest else plain
    answer = _run(program, raw, wanted)
    held = f"sha256:{hashlib.sha256(answer).hexdigest()}"
    document = _json(answer, wanted)
    if digest and held != digest:
        what = f"{wanted} has another digest, {held}: {program} did not print it as it is"
        raise BadFacts(Diagnostic("", what, "try another of " + ", ".join(PROGRAMS)))
    if "manifests" in document:
        platforms = [row.get("platform") or {} for row in document["manifests"]]
    elif "config" in document:
        one = f"{name}@{held}"
        platforms = [_json(_run(program, config, one), one)]
    else:
        what = f"{wanted} has a manifest of an unknown kind"
        raise BadFacts(Diagnostic("", what, "build the image again with a current tool"))
    names = (row.get("architecture") for row in platforms if row.get("os", "linux") == "linux")
    return held, tuple(sorted({name for name in names if name}))


def _run(program: str, arguments: Iterable[str], image: str) -> bytes:
    *words, prefix = arguments
    command, host = (program, *words, f"{prefix}{image}"), image.partition("/")[0]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        what = f"{image} cannot be looked up: {host} did not answer within {TIMEOUT_S} s"
        fix = f"run this on a machine that reaches {host}"
        raise BadFacts(Diagnostic("", what, fix)) from None
    if done.returncode == 0:
        return done.stdout
    said = one_line(done.stderr.decode(errors="replace").strip().rpartition("\n")[2])
    for words_of_fault, what, fix, is_input in _FAULTS:
        if re.search(words_of_fault, said, re.IGNORECASE):
            values = {"host": host, "program": program, "login": PROGRAMS[program][2]}
            row = Diagnostic(
                "", f"{image} {what}".format(**values), fix.format(**values), log=(said,)
            )
            raise (BadInput if is_input else BadFacts)(row)
    what = f"{image} cannot be looked up: {program} failed with code {done.returncode}"
    raise BadFacts(Diagnostic("", what, f"try {' '.join(command)}", log=(said,)))


def _json(answer: bytes, image: str) -> Mapping[str, Any]:
    try:
        found = json.loads(answer)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise BadFacts(Diagnostic("", f"{image} has no JSON manifest", "check the registry"))
    return found
