"""Which release of vLLM a file names: by an image, a requirement, or the least one of a recipe."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from ...facts import engines, release
from ...facts.images import Carried
from ...facts.release.version import order
from ..stated import Naming
from .formats import ENGINE, formats, image_pattern

_VERSION = re.compile(r"v?(?P<version>\d+\.\d+\.\d+(?:\.?(?:rc|post)\d+)*)(?![\d.])")
_NAME = r"(?:vllm(?:[-_]cpu)?)"


@cache
def naming() -> Naming:
    likely = re.compile(r"vllm|_version", re.IGNORECASE)
    return Naming(engines.load(ENGINE), _NAME, likely, _of_images, _of_minimum)


def _of_images(line: str) -> Iterator[Carried]:
    """The images of the server in a line, and those of others that carry the engine; a tag such as
    `nightly` tells no release."""
    from ...facts import images  # most files name none

    yield from images.carried_releases(line, engines.load(ENGINE))
    for found in image_pattern().finditer(line):
        tag = found["tag"] or ""
        version = _VERSION.match(tag)
        told = (version["version"],) if version and found["own"] else ()
        if tag:
            yield Carried(found.start(), found[0], told)


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
