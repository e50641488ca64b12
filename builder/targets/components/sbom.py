"""The software bill of materials of a bundle: CycloneDX 1.6, the same bytes every time.

Specification: https://cyclonedx.org/docs/1.6/json/. There is no time in it, and its serial number
is made from its content.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from ... import __version__
from ...bundle import File, to_json
from ...facts import advisories
from ...facts.advisories import Advisory
from ...facts.checkpoint import Checkpoint
from ...facts.checkpoint_files import CheckpointFile
from ...facts.images import Image
from ...facts.plain_data import Package
from . import Components, Product

FILE = "handoff/sbom.cdx.json"
TOOL = "trtllm-deployment-toolkit"
# The root of the serial numbers; any fixed one would do.
_ROOT = uuid.UUID("7bb2ab5e-6f0c-5e3c-9a5e-0d6b0d3f6c1f")
_SEVERITIES = ((9.0, "critical"), (7.0, "high"), (4.0, "medium"), (0.1, "low"), (0.0, "none"))

Accepted = Mapping[tuple[str, str], str]


def render(
    name: str, components: Components, files: Mapping[str, File], accepted: Accepted
) -> File:
    """The bill of a bundle with these files. `accepted` are the reasons for which vulnerabilities
    of a product and version are taken, by both."""
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
            *(_image(*row) for row in components.images.items()),
            *(_product(row) for row in (components.engine, *components.servers)),
            *(_file(path, file) for path, file in sorted(files.items())),
        ],
        "dependencies": list(_dependencies(components)),
        "vulnerabilities": list(_vulnerabilities(components, accepted)),
    }
    serial = uuid.uuid5(_ROOT, json.dumps(document, sort_keys=True))
    head = {"bomFormat": "CycloneDX", "specVersion": "1.6", "serialNumber": f"urn:uuid:{serial}"}
    return File(to_json(head | document))


def digests(document: Mapping[str, Any]) -> dict[str, str]:
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


def _image(image: Image, users: list[str]) -> dict[str, Any]:
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


def _file(path: str, file: File) -> dict[str, Any]:
    return {
        "type": "file",
        "bom-ref": f"file:{path}",
        "name": path,
        "hashes": [_sha256(file.sha256)],
        "properties": _properties(bytes=len(file.data)),
    }


def _dependencies(components: Components) -> Iterator[dict[str, Any]]:
    products = [f"product:{row.product}" for row in (components.engine, *components.servers)]
    images = [f"image:{image.reference}" for image in components.images]
    models = [f"model:{row.name}" for row in components.checkpoints]
    yield {"ref": "bundle", "dependsOn": [*models, *images, *products]}


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
    return {
        "bom-ref": f"vulnerability:{product}/{row.cve}",
        "id": row.cve,
        "source": source,
        **({"ratings": [_rating(row.cvss)]} if row.cvss is not None else {}),
        **cwe,
        "recommendation": fixed,
        "published": f"{row.published}T00:00:00Z",
        "analysis": _analysis(reason),
        "affects": [{"ref": f"product:{product}"}],
    }


def _rating(score: float) -> dict[str, Any]:
    severity = next(name for least, name in _SEVERITIES if score >= least)
    return {"score": score, "severity": severity}


def _analysis(reason: str | None) -> dict[str, Any]:
    if reason is None:
        return {"state": "in_triage", "detail": "this one was neither accepted nor ruled out"}
    return {"state": "exploitable", "response": ["will_not_fix"], "detail": f"accepted: {reason}"}


def _sha256(digest: str) -> dict[str, str]:
    return {"alg": "SHA-256", "content": digest}


def _properties(**values: object) -> list[dict[str, str]]:
    return [{"name": f"{TOOL}:{name}", "value": str(value)} for name, value in values.items()]


def _nested(components: list[dict[str, Any]]) -> dict[str, Any]:
    return {"components": components} if components else {}
