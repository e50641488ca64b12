"""The components of a deployment: its mirror list, and its software bill of materials.

The mirror list names everything to copy into a network without internet access, with sizes and
digests. The bill is CycloneDX 1.6, https://cyclonedx.org/docs/1.6/json/; it has no time, and its
serial number is derived from its content, so that the bytes are always the same.
"""

from __future__ import annotations

import json
import re
import shlex
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .. import __version__
from ..bundle import File, sums, to_json
from ..documents import DATA
from ..facts import advisories, checkpoint_files, data_file, plain_data
from ..facts.advisories import Advisory
from ..facts.checkpoint import Checkpoint
from ..facts.checkpoint_files import CheckpointFile
from ..facts.images import Image
from ..facts.plain_data import Package
from ..render import text
from ..servers import RenderContext

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
    release, engine = context.release.name, context.engine_record
    given, servers = context.environment, list[Product]()
    for name, server in context.servers.items():
        row, image = server.record, context.image(name)
        if (product := row.image["product"]) != engine.product:
            version = image.version if image else None
            servers.append(Product(row.title, product, version, row.license))
    return Components(
        images=_images(context, files),
        packages=data_file.load(PACKAGES, plain_data.Packages).packages,
        engine=Product(engine.title, engine.product, release, engine.license, engine.package),
        servers=tuple(servers),
        checkpoints=tuple(_checkpoints(context)),
        hosts=tuple(_hosts(context)),
        telemetry={name: given[name] for name in engine.telemetry_variables if name in given},
    )


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


FOLDER = "handoff"
MIRROR_FORMAT = 1

_IMAGE_DIGEST = "docker buildx imagetools inspect {image}"
_WHEELS = "pip download --only-binary :all: --dest wheels"


def render_mirror(components: Components) -> dict[str, File]:
    """The list for programs and for people, and the digests of each checkpoint for `sha256sum`."""
    document = _mirror_document(components)
    functions = {"code": _code, "gigabytes": lambda nbytes: f"{nbytes / 1e9:.2f}"}
    files = {
        "mirror.json": File(to_json(document)),
        "mirror.md": File(text("handoff/mirror.md.j2", **document, **functions).encode()),
    }
    for index, row in enumerate(components.checkpoints):
        known = {file.name: file.sha256 for file in row.listing.files if file.sha256}
        if known:
            files[f"{'draft' if index else 'checkpoint'}.sha256"] = File(sums(known))
    return {f"{FOLDER}/{name}": file for name, file in files.items()}


def _mirror_document(components: Components) -> dict[str, Any]:
    packages = [row.requirement for row in components.packages]
    engine = f"{components.engine.package}=={components.engine.version}"
    return {
        "format": MIRROR_FORMAT,
        "images": [_mirror_image(*row) for row in components.images.items()],
        "python": {
            "toolkit": __version__,
            "requirements": [
                {"requirement": row.requirement, "for": row.command} for row in components.packages
            ],
            "engine": {
                "requirement": engine,
                "in": "the images; the wheel is for nodes without containers",
            },
            "sha256": None,
            "digests_by": f"{_WHEELS} {shlex.join(packages)} && sha256sum wheels/*",
        },
        "checkpoints": [_mirror_checkpoint(row) for row in components.checkpoints],
        "hosts": [{"host": host, "asked": when} for host, when in components.hosts],
        "telemetry": {"off": components.is_silent, "variables": dict(components.telemetry)},
    }


def _mirror_image(image: Image, users: list[str]) -> dict[str, Any]:
    return {
        "image": image.reference,
        "digest": image.digest,
        "digest_by": None if image.digest else _IMAGE_DIGEST.format(image=image.reference),
        "architectures": list(image.architectures),
        "size_gb": image.size_gb,
        "for": users,
        "source": image.source,
    }


def _mirror_checkpoint(row: Checkpoint) -> dict[str, Any]:
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
    """How to get missing digests; rendering does not read weights."""
    if row.listing.files:
        return f"in its folder: {checkpoint_files.COMMAND}; then render again"
    return "render with the folder of the checkpoint instead of its name"


def _code(words: str) -> str:
    """Text that no reader of Markdown takes for anything else, in a table too."""
    plain = " ".join(words.split()).replace("|", "\\|").replace("`", "'")
    return f"`{plain}`"


BILL_FILE = "handoff/sbom.cdx.json"
TOOL = "trtllm-deployment-toolkit"
# The root of the serial numbers; any fixed one would do.
_ROOT = uuid.UUID("7bb2ab5e-6f0c-5e3c-9a5e-0d6b0d3f6c1f")
_SEVERITIES = ((9.0, "critical"), (7.0, "high"), (4.0, "medium"), (0.1, "low"), (0.0, "none"))

Accepted = Mapping[tuple[str, str], str]


def render_bill(
    name: str, components: Components, files: Mapping[str, File], accepted: Accepted
) -> File:
    """The bill of a bundle with these files. `accepted` are the reasons for which vulnerabilities
    of a product and version are taken, by both."""
    products = [f"product:{row.product}" for row in (components.engine, *components.servers)]
    images = [f"image:{image.reference}" for image in components.images]
    models = [f"model:{row.name}" for row in components.checkpoints]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {"type": "application", "bom-ref": "bundle", "name": name},
            "tools": {"components": [_tool(components)]},
        },
        "components": [
            *(_model(row) for row in components.checkpoints),
            *(_bill_image(*row) for row in components.images.items()),
            *(_product(row) for row in (components.engine, *components.servers)),
            *(_bill_file(path, file) for path, file in sorted(files.items())),
        ],
        "dependencies": [{"ref": "bundle", "dependsOn": [*models, *images, *products]}],
        "vulnerabilities": list(_vulnerabilities(components, accepted)),
    }
    serial = uuid.uuid5(_ROOT, json.dumps(document, sort_keys=True))
    head = {"bomFormat": "CycloneDX", "specVersion": "1.6", "serialNumber": f"urn:uuid:{serial}"}
    return File(to_json(head | document))


def bill_digests(document: Mapping[str, Any]) -> dict[str, str]:
    """The digests of the bundle's own files that a bill holds."""
    return {
        row["name"]: row["hashes"][0]["content"]
        for row in document["components"]
        if row["type"] == "file"
    }


def _tool(components: Components) -> dict[str, Any]:
    return {
        "type": "application",
        "bom-ref": "toolkit",
        "name": TOOL,
        "version": __version__,
        "licenses": [{"license": {"id": "Apache-2.0"}}],
        "components": [_package(row) for row in components.packages],
    }


def _package(row: Package) -> dict[str, Any]:
    """Which version is installed differs between machines; what is asked for does not."""
    return {
        "type": "library",
        "bom-ref": f"package:{row.name}",
        "name": row.name,
        "purl": f"pkg:pypi/{row.name}",
        "licenses": [{"license": {"id": row.license}}],
        "properties": _properties(requirement=row.requirement, needed_by=row.command),
    }


def _model(row: Checkpoint) -> dict[str, Any]:
    found = row.license
    return {
        "type": "machine-learning-model",
        "bom-ref": f"model:{row.name}",
        "name": row.name,
        **({"version": row.listing.revision} if row.listing.revision else {}),
        **({"licenses": [{"license": {"name": found.name}}]} if found else {}),
        "modelCard": {"modelParameters": {"modelArchitecture": row.architecture.name}},
        "properties": _properties(
            precision=row.precision,
            parameters=row.parameters,
            tensor_bytes=row.nbytes,
            facts=row.source,
            digests=_digests_word(row),
            licence=found.source if found else "not known",
        ),
        **_nested([_checkpoint_file(row, file) for file in row.listing.files]),
    }


def _digests_word(row: Checkpoint) -> str:
    listing = row.listing
    if not listing.files:
        return "not known: the deployment names the checkpoint and no folder of it"
    known = len(listing.files) - len(listing.unknown)
    return f"known of {known} of {len(listing.files)} files"


def _checkpoint_file(row: Checkpoint, file: CheckpointFile) -> dict[str, Any]:
    return {
        "type": "data",
        "bom-ref": f"model:{row.name}/{file.name}",
        "name": file.name,
        **({"hashes": [_sha256(file.sha256)]} if file.sha256 else {}),
        "properties": _properties(
            bytes=file.nbytes, digest=file.digest_source or "not known: weights are not read"
        ),
    }


def _bill_image(image: Image, users: list[str]) -> dict[str, Any]:
    digest = (image.digest or "").removeprefix("sha256:")
    return {
        "type": "container",
        "bom-ref": f"image:{image.reference}",
        "name": image.name,
        **({"version": image.tag} if image.tag else {}),
        **({"hashes": [_sha256(digest)]} if digest else {}),
        "properties": _properties(
            used_by=", ".join(users),
            digest="given by the deployment" if digest else "not known: give it in `images`",
            source=image.source,
        ),
    }


def _product(row: Product) -> dict[str, Any]:
    version = {"version": row.version} if row.version else {}
    purl = {"purl": f"pkg:pypi/{row.package}@{row.version}"} if row.package else {}
    return {
        "type": "framework",
        "bom-ref": f"product:{row.product}",
        "supplier": {"name": "NVIDIA"},
        "name": row.name,
        **version,
        **purl,
        "licenses": [{"license": {"id": row.license}}],
        "properties": _properties(version="the deployment's" if row.version else "not known"),
    }


def _bill_file(path: str, file: File) -> dict[str, Any]:
    return {
        "type": "file",
        "bom-ref": f"file:{path}",
        "name": path,
        "hashes": [_sha256(file.sha256)],
        "properties": _properties(bytes=len(file.data)),
    }


def _vulnerabilities(components: Components, accepted: Accepted) -> Iterator[dict[str, Any]]:
    for product in (components.engine, *components.servers):
        if product.version is not None and product.product in advisories.products():
            reason = accepted.get((product.product, product.version))
            for row in advisories.open_for(product.product, product.version):
                yield _vulnerability(product.product, row, reason)


def _vulnerability(product: str, row: Advisory, reason: str | None) -> dict[str, Any]:
    source = {"name": f"NVIDIA security bulletin {row.bulletin}"}
    fixed = f"upgrade to {row.fixed_in} or later" if row.fixed_in else "no fix is known"
    cwe = {"cwes": [int(row.cwe.removeprefix("CWE-"))]} if row.cwe else {}
    analysis: dict[str, Any] = {"state": "exploitable", "response": ["will_not_fix"]}
    analysis["detail"] = f"accepted: {reason}"
    if reason is None:
        detail = "this one was neither accepted nor ruled out"
        analysis = {"state": "in_triage", "detail": detail}
    return {
        "bom-ref": f"vulnerability:{product}/{row.cve}",
        "id": row.cve,
        "source": source,
        **({"ratings": [_rating(row.cvss)]} if row.cvss is not None else {}),
        **cwe,
        "recommendation": fixed,
        "published": f"{row.published}T00:00:00Z",
        "analysis": analysis,
        "affects": [{"ref": f"product:{product}"}],
    }


def _rating(score: float) -> dict[str, Any]:
    severity = next(name for least, name in _SEVERITIES if score >= least)
    return {"score": score, "severity": severity}


def _sha256(digest: str) -> dict[str, str]:
    return {"alg": "SHA-256", "content": digest}


def _properties(**values: object) -> list[dict[str, str]]:
    return [{"name": f"{TOOL}:{name}", "value": str(value)} for name, value in values.items()]


def _nested(components: list[dict[str, Any]]) -> dict[str, Any]:
    return {"components": components} if components else {}
