"""Verifies a bundle before it starts: its lists, signature and images, and a private copy of it.

A policy file of the machine may require signatures and pinned images of everyone who starts servers
there, one of both or both:

    signatures:
      signers: /etc/trtllm-deployment-toolkit/allowed_signers
      identity: releases@example.com      # one of them; any if it is left out
    images:
      digests: required                   # a tag alone can come to mean another image
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from builder import bundle as bundles
from builder import schema
from builder.bundle import EVIDENCE, MANIFEST, Bundle
from builder.diagnostics import Diagnostic
from builder.documents import load_yaml_mapping, scan_yaml, with_file
from builder.errors import BadInput, DamagedBundle
from builder.files import parse_json

COPY = ".bundle"  # the private copy, in the folder of a run
POLICY_FILE = Path("/etc/trtllm-deployment-toolkit/policy.yaml")
POLICY = "TRTLLM_TOOLKIT_POLICY"  # a variable that names another one, which holds as well
_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
_IMAGE_FILES = (".sqsh", ".sif")  # on the machine's own disk, which no tag names
# Nothing starts from the manifest, from evidence, or from pages and examples for others.
_NOT_STARTED = (MANIFEST, f"{EVIDENCE}/", "handoff/")
_REMEDY = (
    "render the file that `python -m builder pin BUNDLE -o FILE` writes where the registry can be "
    "reached; images of a Slurm site belong into its profile, as REFERENCE@sha256:DIGEST"
)


@dataclass(frozen=True, slots=True)
class Signers:
    """Who may have signed a bundle: a file for ssh-keygen, and one of its names if only that."""

    file: Path
    identity: str | None = None


# Or the policy file that wants every container image of a bundle by its digest.
Requirement = Signers | Path
POLICY_FORM = {
    "signatures?": {"signers": schema.Text, "identity?": schema.Text},
    "images?": {"digests": Literal["required"]},
}


def required(file: Path | None, identity: str | None) -> tuple[Requirement, ...]:
    """All that a bundle must satisfy: what the user asks for, and the policy of the machine."""
    if identity and not file:
        raise BadInput(Diagnostic("--identity", "is one of the signers", "add --signers FILE"))
    asked = (Signers(file, identity),) if file else ()
    return (*asked, *_policy())


def _policy() -> Iterator[Requirement]:
    named = os.environ.get(POLICY)
    for path in dict.fromkeys([POLICY_FILE, *([Path(named)] if named else [])]):
        if str(path) == named or _is_there(path):
            yield from _read_policy(path)


def _is_there(path: Path) -> bool:
    """Also one that cannot be read, or a link to nothing: only no policy at all asks nothing."""
    try:
        path.lstat()
    except OSError as error:
        return not isinstance(error, FileNotFoundError)
    return True


def _read_policy(path: Path) -> Iterator[Requirement]:
    document = load_yaml_mapping(path)
    _, wrong = schema.build(POLICY_FORM, document)
    if wrong or not document:
        what = "is not a policy for signatures and images"
        faults = [Diagnostic(f"{path}: {one.path}", one.message, one.fix) for one in wrong]
        remedy = "write signatures and images, or one of both"
        raise BadInput([Diagnostic(str(path), what, remedy), *faults])
    if rows := document.get("signatures"):
        yield Signers(path.parent / rows["signers"], rows.get("identity"))
    if "images" in document:
        yield path


def read(folder: Path, requirements: tuple[Requirement, ...]) -> Bundle:
    """A bundle whose files, lists, signature and images pass all checks.

    Raises `BadInput` if it is not a bundle or names images that the policy refuses, `DamagedBundle`
    with all faults.
    """
    from builder import verification  # with all that renders, which --help does without

    bundle = bundles.read(folder)
    signers = [one for one in requirements if isinstance(one, Signers)]
    for one in signers or (None,):
        wanted = (one.file, one.identity) if one else (None, None)
        verification.require(verification.verify(folder, *wanted))
    policies = (one for one in requirements if isinstance(one, Path))
    if (policy := next(policies, None)) and (found := unpinned_images(bundle)):
        what = f"wants every image by its digest, and this bundle names {len(found)} otherwise"
        raise BadInput([Diagnostic(str(policy), what), *found])
    return bundle


def unpinned_images(bundle: Bundle) -> list[Diagnostic]:
    """Every image that may be started and has no digest, at the file that names it."""
    found = []
    for path, file in sorted(bundles.read_contents(bundle.folder).files.items()):
        if path.startswith(_NOT_STARTED):
            continue
        for image in dict.fromkeys(_named_images(_documents(path, file.data))):
            is_file = image.startswith("/") or image.endswith(_IMAGE_FILES)
            if not (is_file or _DIGEST.search(image) is not None):
                what = f"names the image {image} without a digest"
                found.append(Diagnostic(f"{bundle.folder}/{path}", what, _REMEDY))
    return found


def _documents(path: str, data: bytes) -> Iterable[Any]:
    kind = PurePosixPath(path).suffix
    if kind == ".json":
        return [parse_json(data.decode())]
    if kind not in (".yaml", ".yml"):
        return ()
    documents = scan_yaml(data.decode(errors="surrogateescape"))
    for document in documents:
        if document.diagnostics:  # others may read images in it
            raise DamagedBundle([with_file(row, path) for row in document.diagnostics])
    return [document.data for document in documents]


def _named_images(documents: Iterable[Any]) -> Iterator[str]:
    """Values under `image`, and under names of servers in `images`, at any depth."""
    left, seen = list(documents), set[int]()
    while left:
        one = left.pop()
        if id(one) in seen:
            continue  # an alias
        seen.add(id(one))
        if isinstance(one, Mapping):
            named = one.get("images")
            found = [one.get("image"), *(named.values() if isinstance(named, Mapping) else ())]
            yield from (image for image in found if isinstance(image, str) and image)
            left += one.values()
        elif isinstance(one, list):
            left += one


def private_copy(bundle: Bundle, into: Path, requirements: tuple[Requirement, ...]) -> Bundle:
    """The same bundle in a folder that only this user may open, written and then verified.

    Whoever can write to the bundle's own folder cannot change what starts. A copy that is there
    already is used if it still is whole.
    """
    if into.is_dir():
        read(bundle.folder, requirements)
        return _same(bundle, _existing(into))
    into.parent.mkdir(parents=True, exist_ok=True)
    contents = bundles.read_contents(bundle.folder)
    if contents.forbidden:
        raise DamagedBundle(contents.forbidden)
    beside = Path(tempfile.mkdtemp(prefix=f".{into.name}.", dir=into.parent))  # for this user only
    try:
        for name, file in contents.files.items():
            bundles.write_file(beside / name, file)
        copy = _same(bundle, read(beside, requirements))
        try:
            beside.rename(into)
        except OSError:
            if not into.is_dir():
                raise
            return _same(bundle, _existing(into))  # another submission was first
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return Bundle(into.resolve(), copy.manifest, copy.digest)


def _existing(copy: Path) -> Bundle:
    try:
        return bundles.read(copy)
    except (BadInput, DamagedBundle) as error:
        remedy = "stop what runs from it, and remove it"
        damaged = Diagnostic(str(copy), "is a damaged copy of the bundle", remedy)
        raise DamagedBundle([damaged, *error.diagnostics]) from None


def _same(bundle: Bundle, copy: Bundle) -> Bundle:
    if copy.digest != bundle.digest:
        what = "was changed while it was read"
        raise DamagedBundle(Diagnostic(str(bundle.folder), what, "start again"))
    return copy
