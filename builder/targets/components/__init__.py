"""What a deployment is made from: the images, packages and checkpoints."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ...bundle import File
from ...documents import DATA
from ...facts import data_file, plain_data
from ...facts.checkpoint import Checkpoint
from ...facts.images import Image
from ...facts.plain_data import Package
from ...servers import RenderContext

PACKAGES = DATA / "packages.yaml"

# Where a name that is not a folder is looked for; its own variable HF_ENDPOINT moves it.
HUB = "huggingface.co"

# How the files for container platforms name an image.
_NAMED = re.compile(rb"^[ \t-]*image: *[\"']?([^\"'\s]+)[\"']?[ \t]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Product:
    """Software in an image. `product` is its name in the advisories."""

    name: str
    product: str
    version: str | None
    license: str
    package: str | None = None


@dataclass(frozen=True, slots=True)
class Components:
    """Everything that a deployment is made from.

    `images` are those of the servers, and others that files of the bundle name, each with who needs
    it. `hosts` are asked at run time, each with when; `telemetry` are the variables that keep the
    engine from sending usage data.
    """

    images: Mapping[Image, list[str]]
    packages: tuple[Package, ...]
    engine: Product
    servers: tuple[Product, ...]
    checkpoints: tuple[Checkpoint, ...]
    hosts: tuple[tuple[str, str], ...]
    telemetry: Mapping[str, str]

    @property
    def is_silent(self) -> bool:
        """Whether usage data is off; an override of the deployment may have turned it on."""
        return "1" in self.telemetry.values()


def of(context: RenderContext, files: Mapping[str, File]) -> Components:
    """The components of a service and of its rendered files."""
    release = context.release.name
    given = context.environment
    engine = context.engine_record
    return Components(
        images=_images(context, files),
        packages=data_file.load(PACKAGES, plain_data.Packages).packages,
        engine=Product(engine.title, engine.product, release, engine.license, engine.package),
        servers=tuple(
            Product(row.title, row.image["product"], _version(context, row.name), row.license)
            for row in (server.record for server in context.servers.values())
            if row.image["product"] != engine.product
        ),
        checkpoints=tuple(_checkpoints(context)),
        hosts=tuple(_hosts(context)),
        telemetry={name: given[name] for name in engine.telemetry_variables if name in given},
    )


def _version(context: RenderContext, server: str) -> str | None:
    image = context.image(server)
    return image.version if image else None


def _images(context: RenderContext, files: Mapping[str, File]) -> dict[Image, list[str]]:
    """Those of the servers, and what else the files name."""
    known: dict[str, Image] = {}
    users: dict[str, list[str]] = {}
    for server in context.servers:
        if image := context.image(server):
            known.setdefault(image.reference, image)
            users.setdefault(image.reference, []).append(server)
    for path, reference in (*_slurm_images(context), *_named_in(files)):
        users.setdefault(reference, []).append(path)
    return {known.get(name) or _unknown(name): found for name, found in users.items()}


def _slurm_images(context: RenderContext) -> Iterator[tuple[str, str]]:
    """Those of the site's profile, which may be files."""
    site = context.deployment.targets.get("slurm", {}).get("site", {})
    for reference in site.get("container", {}).get("images", {}).values():
        yield "slurm", reference


def _named_in(files: Mapping[str, File]) -> Iterator[tuple[str, str]]:
    for path, file in sorted(files.items()):
        if path.endswith((".yaml", ".yml")):
            for name in dict.fromkeys(_NAMED.findall(file.data)):
                yield path, name.decode()


def _unknown(reference: str) -> Image:
    """An image whose content is in no data."""
    whole, _, digest = reference.partition("@")
    folder, slash, last = whole.rpartition("/")
    name, _, tag = last.partition(":")
    return Image(f"{folder}{slash}{name}", tag or None, digest or None, known=False)


def _checkpoints(context: RenderContext) -> Iterator[Checkpoint]:
    """The model and the draft models, those of the other side included, each once."""
    facts = context.plan.facts
    seen = {facts.checkpoint.name}
    yield facts.checkpoint
    for one in (context, context.prefill):
        if one and (draft := one.plan.facts.draft) and draft.name not in seen:
            seen.add(draft.name)
            yield draft


def _hosts(context: RenderContext) -> Iterator[tuple[str, str]]:
    """A name of the hub is downloaded, unless the start script is given a folder."""
    for variable, name in context.checkpoints.items():
        if not name.startswith("/"):
            yield HUB, f"unless {variable} is set to a folder that holds {name}"
