"""Which release of vLLM a file names: by an image, a requirement, or the least one of a recipe."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from ...facts import engines, images, release
from ...facts.images import Carried
from ...facts.release.version import order
from ..stated import Naming
from .formats import ENGINE, formats

_NAME = r"(?:vllm(?:[-_]cpu)?)"
_IMAGE = re.compile("vllm", re.IGNORECASE)


@cache
def naming() -> Naming:
    likely = re.compile(r"vllm|_version", re.IGNORECASE)
    return Naming(engines.load(ENGINE), _NAME, likely, _of_images, _of_minimum)


def _of_images(line: str) -> Iterator[Carried]:
    """The images of the server in a line, and those of others that carry the engine; a tag such as
    `nightly` tells no release. One of another publisher is a fork, whose tag may tell one."""
    carried = list(images.carried_releases(line, engines.load(ENGINE)))
    yield from carried
    taken = {row.start + len(row.words) for row in carried}
    for found in images.references(line, _IMAGE):
        if found.start + len(found.text) in taken:
            continue
        is_own, version = _is_own(found), found.version(_IMAGE)
        if is_own and not found.tag:
            continue  # of the newest release
        told = () if found.name in formats().extended_images or not version else (version,)
        is_fork = not is_own or found.is_development
        yield Carried(found.start, found.text, told, is_fork)


def _is_own(image: images.Reference) -> bool:
    """Whether an image is its publisher's, or a mirror of it."""
    known = formats()
    if image.name in known.extended_images:
        return False
    if image.spaces and image.spaces[-1] in known.publishers:
        return True
    is_plain = not image.spaces or image.spaces[-1] in known.mirrors
    return is_plain and image.name in (*known.images, known.program)


def _of_minimum(line: str) -> Iterator[Carried]:
    """The least release that a recipe is for: it and every newer one that is known."""
    for found in _minimum().finditer(line):
        here = order(found["version"])
        engine = engines.load(ENGINE)
        newer = [
            name for name in release.known(engine) if (at := order(name)) and here and at > here
        ]
        oldest = order(release.known(engine)[0])
        own = [found["version"]] if here and oldest and here >= oldest else []
        yield Carried(found.start(), found[0].strip(), tuple(dict.fromkeys((*own, *newer))))


def stating(text: str) -> str:
    """What of a file names its release: of a recipe all but the texts for its readers, which tell
    of other releases and of other hardware too."""
    if not _minimum().search(text):
        return text
    return re.sub(r"(?ms)^guide:.*?(?=^\w|\Z)", lambda found: "\n" * found[0].count("\n"), text)


@cache
def _minimum() -> re.Pattern[str]:
    names = "|".join(map(re.escape, formats().minimum))
    return re.compile(
        rf"(?<!\w)(?:{names})[\"']?[ \t]*[:=][ \t]*[\"']?v?(?P<version>\d+(?:\.\d+)+(?:rc\d+)?)"
    )
