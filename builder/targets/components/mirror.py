"""The mirror list: everything to bring into a network without an exit, with sizes and digests."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ... import __version__
from ...bundle import File, sums, to_json
from ...facts import checkpoint_files
from ...facts.checkpoint import Checkpoint
from ...facts.images import Image
from . import Components

FOLDER = "handoff"
FORMAT = 1

_IMAGE_DIGEST = "docker buildx imagetools inspect {image}"
_WHEELS = "pip download --only-binary :all: --dest wheels"
_GB = 1e9


def render(components: Components) -> dict[str, File]:
    """The list for programs and for people, and the digests of each checkpoint for `sha256sum`."""
    document = _document(components)
    files = {
        "mirror.json": File(to_json(document)),
        "mirror.md": File("\n".join(_lines(document)).encode() + b"\n"),
    }
    for index, row in enumerate(components.checkpoints):
        known = {file.name: file.sha256 for file in row.listing.files if file.sha256}
        if known:
            files[f"{'draft' if index else 'checkpoint'}.sha256"] = File(sums(known))
    return {f"{FOLDER}/{name}": file for name, file in files.items()}


def _document(components: Components) -> dict[str, Any]:
    packages = [row.requirement for row in components.packages]
    engine = f"{components.engine.package}=={components.engine.version}"
    return {
        "format": FORMAT,
        "images": [_image(*row) for row in components.images.items()],
        "python": {
            "toolkit": __version__,
            "requirements": [
                {"requirement": row.requirement, "for": row.command} for row in components.packages
            ],
            "engine": {"requirement": engine, "in": "the images; a wheel is for nodes without"},
            "sha256": None,
            "digests_by": f"{_WHEELS} {shlex.join(packages)} && sha256sum wheels/*",
        },
        "checkpoints": [_checkpoint(row) for row in components.checkpoints],
        "hosts": [{"host": host, "asked": when} for host, when in components.hosts],
        "telemetry": {"off": components.is_silent, "variables": dict(components.telemetry)},
    }


def _image(image: Image, users: list[str]) -> dict[str, Any]:
    return {
        "image": image.reference,
        "digest": image.digest,
        "digest_by": None if image.digest else _IMAGE_DIGEST.format(image=image.reference),
        "architectures": list(image.architectures),
        "size_gb": image.size_gb,
        "for": users,
        "source": image.source,
    }


def _checkpoint(row: Checkpoint) -> dict[str, Any]:
    listing = row.listing
    known = bool(listing.files) and not listing.unknown
    return {
        "name": row.name,
        "revision": listing.revision,
        "bytes": sum(file.nbytes for file in listing.files) or row.published_bytes or row.nbytes,
        "files": [
            {
                "name": file.name,
                "bytes": file.nbytes,
                "sha256": file.sha256,
                "digest_source": file.digest_source,
            }
            for file in listing.files
        ],
        "digests_by": None if known else _digests_by(row),
    }


def _digests_by(row: Checkpoint) -> str:
    """What to do for the digests that are missing; rendering reads no weights."""
    if row.listing.files:
        return f"in its folder: {checkpoint_files.COMMAND}; then render again"
    return "render with the folder of the checkpoint instead of its name"


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    """The list as Markdown."""
    yield "# Mirror list"
    yield ""
    yield "What this deployment is made from. Bring it into the network before the start."
    yield ""
    yield from _table("Container images", _IMAGE_COLUMNS, map(_image_cells, document["images"]))
    for row in document["checkpoints"]:
        title = f"Checkpoint {_code(row['name'])}"
        yield from _checkpoint_lines(title, row)
    python = document["python"]
    cells = ((_code(row["requirement"]), row["for"]) for row in python["requirements"])
    yield from _table("Python packages", ("requirement", "for"), cells)
    yield f"The engine, {_code(python['engine']['requirement'])}, is in {python['engine']['in']}."
    yield f"The wheels for your platform, and their digests: {_code(python['digests_by'])}"
    yield ""
    yield from _network_lines(document)


_IMAGE_COLUMNS = ("image", "digest", "size", "for")


def _image_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    digest = _code(row["digest"]) if row["digest"] else f"not known: {_code(row['digest_by'])}"
    size = f"{row['size_gb']} GB" if row["size_gb"] else "not known"
    return (_code(row["image"]), digest, size, ", ".join(map(_code, row["for"])))


def _checkpoint_lines(title: str, row: Mapping[str, Any]) -> Iterator[str]:
    cells = (
        (
            _code(file["name"]),
            str(file["bytes"]),
            _code(file["sha256"]) if file["sha256"] else "not known",
        )
        for file in row["files"]
    )
    yield from _table(title, ("file", "bytes", "SHA-256"), cells)
    revision = _code(row["revision"]) if row["revision"] else "not known"
    yield f"In all {row['bytes'] / _GB:.2f} GB; revision {revision}."
    if row["digests_by"]:
        yield f"Digests that are not known: {row['digests_by']}."
    yield ""


def _network_lines(document: Mapping[str, Any]) -> Iterator[str]:
    yield "## Hosts"
    yield ""
    for row in document["hosts"]:
        yield f"- {_code(row['host'])}: {_code(row['asked'])}"
    if not document["hosts"]:
        yield "None: the start script, the engine and the server ask no host outside."
    yield ""
    telemetry = document["telemetry"]
    given = ", ".join(_code(f"{name}={value}") for name, value in telemetry["variables"].items())
    word = "off" if telemetry["off"] else "ON"
    yield f"Usage data of the engine is {word}: the start scripts set {given}."


def _table(title: str, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    lines = [f"| {' | '.join(cells)} |" for cells in rows]
    yield f"## {title}"
    yield ""
    if lines:
        yield f"| {' | '.join(columns)} |"
        yield f"|{' --- |' * len(columns)}"
        yield from lines
        yield ""


def _code(text: str) -> str:
    """Text that no reader of Markdown takes for anything else, in a table too."""
    plain = " ".join(text.split()).replace("|", "\\|").replace("`", "'")
    return f"`{plain}`"
