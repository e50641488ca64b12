"""Container images: which one carries a server of an engine release, and the version in a tag."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from ..documents import DATA
from ..schema import Check, Day, Plain, Text
from . import advisories, data_file, engines, release, servers
from .engines import Engine
from .release.version import oldest_first, order

IMAGES = DATA / "images.yaml"

# HOST[:PORT]/PATH[:TAG][@sha256:DIGEST], in the spelling that every container runtime takes.
_PATTERN = (
    r"^(?P<name>[A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+)"
    r"(:(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(@(?P<digest>sha256:[0-9a-f]{64}))?$"
)
# The same without named groups, for error messages.
REFERENCE_PATTERN = re.sub(r"\?P<[a-z]+>", "", _PATTERN)

# A tag may be the default of a variable, as in ${TAG:-1.2.1}.
_VERSION = (
    r":(?:\$\{\w+:?-)?(?P<version>v?\d+(?:\.\d+)+(?:\.?(?:rc|post|dev)\d+)*)(?P<rest>[\w.-]*)"
)
_CLIENTS = "-sdk"  # such an image contains clients and no server


@dataclass(frozen=True, slots=True)
class Content:
    """A product in an image that a text names at `start`. `product` is its name in advisories."""

    product: str
    version: str
    start: int


def untold(text: str) -> Iterator[Content]:
    """The products of images that a text names without a version, such as `latest` or a digest
    only."""
    products = _products()
    if not any(repository in text for repository in products):
        return  # at once, for texts of megabytes
    for found in _untold_pattern().finditer(text):
        if not found["tag"].endswith(_CLIENTS):
            start = found.start("repository")
            yield Content(products[found["repository"]], advisories.UNKNOWN, start)


def are_named(text: str) -> bool:
    """Whether a text names any image of a server."""
    return any(contents(text)) or any(untold(text))


def contents(text: str) -> Iterator[Content]:
    """The products of all images that a text names with a version in their tags."""
    products = _products()
    if not any(f"{repository}:" in text for repository in products):
        return  # at once, for texts of megabytes
    for found in _pattern().finditer(text):
        if not found["rest"].endswith(_CLIENTS):
            yield Content(products[found["repository"]], found["version"], found.start())


@dataclass(frozen=True, slots=True)
class Carried:
    """The engine releases that an image contains, in the `words` of a text, from `start` on.

    There are two if the image lies between two known images, none if nothing is known. An image
    that `is_fork` is from another publisher or a development build: its engine may have other
    options than the release that it names.
    """

    start: int
    words: str
    releases: tuple[str, ...]
    is_fork: bool = False


def carried_releases(line: str, engine: Engine) -> Iterator[Carried]:
    """The images of other products with an engine that a line names, with its release in each."""
    for found in _carrier_pattern().finditer(line):
        for row in _data().carriers:
            is_own = row["engine"] == engine.name and row["repository"] == found["repository"]
            if is_own and row.get("mark", "") in found["tag"]:
                yield Carried(found.start(), found[0], _carried(row, found["tag"]))


def engine_releases(line: str) -> Iterator[Carried]:
    """The images with the usual engine that a line names, with the engine's release in each."""
    taken: list[tuple[int, int]] = []
    for one in carried_releases(line, engines.default()):
        taken.append((one.start, one.start + len(one.words)))
        yield one
    for found in _pattern().finditer(line):
        product, version = _products()[found["repository"]], found["version"]
        taken.append(found.span())
        if product == engines.default().product:
            yield Carried(found.start(), found[0], (version.removeprefix("v"),))
    for found in _ANY_IMAGE.finditer(line):
        spot = found.start("image")
        if any(start <= found.end() and spot <= end for start, end in taken):
            continue
        for name in servers.names():
            told = told_version(name, found["image"])
            if told and servers.load(name).image["product"] == engines.default().product:
                taken.append((spot, found.end()))
                yield Carried(spot, found["image"], (told.removeprefix("v"),))
    for row in references(line, _ANY_NAME):
        if not any(start <= row.start + len(row.text) and row.start <= end for start, end in taken):
            version = row.version(_ANY_NAME)
            yield Carried(row.start, row.text, (version,) if version else (), is_fork=True)


_ANY_NAME = re.compile(r"(?:tensorrt|trt)[-_]?llm", re.IGNORECASE)
_NUMBERS = r"\d+\.\d+\.\d+(?:\.?(?:rc|post|dev)\d+)*(?![\d.])"
_REFERENCE = re.compile(r"(?:^|(?<=[\s=\"',(]))[\w./#@+${}:-]*[\w}]")
# Text before an image in a file or a command that names one.
_SAID = re.compile(
    r"(?:(?:^|[\s,{\"'-])(?i:[\w-]*image|container[\w-]*)[\"']?\s*[:=]\s*[\"']?"
    r"|--[\w-]*image\s+|^\s*FROM\s+(?:--\S+\s+)?)\Z"
)
_BUILD = re.compile(r"(?:latest|nightly|main|master|dev|edge|stable)(?![a-z])", re.IGNORECASE)
_IS_MOVING = re.compile(r"latest(?![a-z])|\$")  # the newest release, or what a variable says


@dataclass(frozen=True, slots=True)
class Reference:
    """An image in a line of text: its `host` if there is one, the `spaces` of its registry, its
    `name` and its `tag`."""

    start: int
    text: str
    host: str
    spaces: tuple[str, ...]
    name: str
    tag: str

    def version(self, name: re.Pattern[str]) -> str:
        """The version in the tag of the engine called `name`; empty for none."""
        tag = re.sub(r"^\$\{\w+:?-", "", self.tag)
        found = (
            re.search(rf"(?:{name.pattern})[-_]?v?({_NUMBERS})", tag, name.flags)
            or re.match(rf"v?({_NUMBERS})", tag)
            or re.search(rf"(?<![\w.])v({_NUMBERS})", tag)
        )
        return found[1] if found else ""

    @property
    def is_development(self) -> bool:
        """Whether the tag is neither that of a release nor one that moves with the releases."""
        if self.version(_NO_NAME):
            return re.search(r"dev\d", self.tag) is not None
        return bool(self.tag) and not _IS_MOVING.match(self.tag)


_NO_NAME = re.compile(r"(?!)")


def references(line: str, name: re.Pattern[str]) -> Iterator[Reference]:
    """The images in a line whose own name contains `name`, if the line or the tag marks them as
    images."""
    if not name.search(line):
        return
    for found in _REFERENCE.finditer(line):
        text = re.sub(r"^docker(?:d|-daemon)?:(?://)?", "", found[0])
        plain, _, digest = text.replace("#", "/").partition("@")
        *above, last = plain.split("/")
        own, _, tag = last.partition(":")
        is_said = bool(_SAID.search(line, 0, found.start()))
        if not name.search(own) or "://" in text or ":/" in text or plain[:1] in "/.~":
            continue
        if re.search(r"\.(?:ya?ml|json|py|sh|sqsh|toml|txt|md)$", own) or tag.isdigit():
            continue
        row = Reference(found.start(), text, *_host(above), own, tag)
        is_named = bool(above or tag) and is_said
        if is_named or digest or row.version(name) or _BUILD.match(tag):
            yield row


def _host(above: list[str]) -> tuple[str, tuple[str, ...]]:
    """Splits a repository into its host, if it has one, and the remaining parts."""
    is_host = bool(above) and bool(re.search(r"[.:$}]|^localhost$", above[0]))
    return (above[0], tuple(above[1:])) if is_host else ("", tuple(above))


# Images with any name, in places where a file or a command expects an image.
_ANY_IMAGE = re.compile(
    r"(?:^|(?<=[\s=:\"',]))"
    r"(?P<image>[\w./#@+$}{:-]*(?:tensorrt|trt)[\w.+-]*llm[\w./#@+:-]*)",
    re.IGNORECASE,
)


def _carried(row: Mapping[str, Any], tag: str) -> tuple[str, ...]:
    """The releases in a carrier image: from its tag, or from the neighbouring tags."""
    tags, mark = row["tags"], row.get("mark")
    plain = re.sub(r"(-(cuda\d+|amd64|arm64|x86_64|aarch64|efa))+$", "", tag)
    if mark:
        plain = plain.partition(mark)[0]
    if plain in tags:
        return (tags[plain],)
    here = order(plain)
    numbered = [name for name in release.known(engines.load(row["engine"])) if order(name)]
    if here is None or re.search(r"[a-z]{3,}", re.sub(r"post|dev", "", plain)):
        return ()  # made for a model, say; the tag has no date
    rows = sorted((at, name) for name in tags if "-" not in name and (at := order(name)))
    before = re.search(r"-(dev|rc)", plain) is not None  # such a tag is older than its number
    older = [tags[name] for at, name in rows if at < here or (at == here and not before)]
    newer = [tags[name] for at, name in rows if at >= here]
    if newer and not older and (order(newer[0]) or ()) < (order(numbered[0]) or ()):
        return (newer[0],)  # older than all known releases
    return tuple(dict.fromkeys(([*numbered[:1], *older][-1], [*newer, *numbered[-1:]][0])))


@cache
def _carrier_pattern() -> re.Pattern[str]:
    names = dict.fromkeys(row["repository"] for row in _data().carriers)
    repositories = "|".join(map(re.escape, names))
    return re.compile(rf"(?<![\w.-])(?P<repository>{repositories}):(?P<tag>[\w.-]+)")


@cache
def _products() -> dict[str, str]:
    """Products by the publisher's repository, on any host; their tags begin with the version."""
    images = (servers.load(name).image for name in servers.names())
    return {image["repository"]: image["product"] for image in images}


@cache
def _pattern() -> re.Pattern[str]:
    repositories = "|".join(map(re.escape, _products()))
    return re.compile(rf"(?<![\w.-])(?P<repository>{repositories}){_VERSION}")


@cache
def _untold_pattern() -> re.Pattern[str]:
    repositories = "|".join(map(re.escape, _products()))
    return re.compile(
        rf"[/#](?P<repository>{repositories})(?P<tag>:(?!v?\d+\.\d)[\w.-]+|@sha256:[0-9a-f]{{64}})"
    )


# Words in an image's name, besides the product, that leave the tag a version of the product. With
# any other word it is another product, and has its own versions.
_PLAIN_WORDS = frozenset(
    ("release", "server", "serve", "devel", "nvidia", "py3", "mirror", "image")
)


def told_version(server: str, reference: str) -> str | None:
    """The version of a server's product in the tag or file name of an image on any host, however it
    is spelled; `None` if it contains none.

    >>> told_version("triton", "registry.example/mirror/triton-server:v26.07-custom")
    '26.07'
    """
    record = servers.load(server)
    for found in contents(reference):
        if found.product == record.image["product"]:
            return found.version
    *above, last = reference.partition("@")[0].replace("#", "/").lower().split("/")
    name, _, tag = re.sub(r"\.(sqsh|squashfs|sif|img|tar|gz)\b", "", last).partition(":")
    if name in _PLAIN_WORDS and above:
        name = f"{above[-1]}-{name}"
    program = record.program.partition("-")[0]
    own = {*re.split(r"\W|_", f"{record.image['product']}_{record.image['repository']}"), program}
    joined = "".join(re.findall(r"[a-z]+", name))
    known = any(word in joined for word in (program, record.image["product"].replace("_", "")))
    version = _version_pattern(record.image["product"])
    words = {word for word in re.split(r"[^a-z0-9]+", version.sub("", name)) if word}
    glued = words & {joined, record.image["product"].replace("_", "")}
    if not known or words - own - glued - _PLAIN_WORDS - {record.name, server}:
        return None
    told = version.search(tag) or version.search(name)
    return told["version"] if told else None


def told_release(server: str, reference: str, product: str) -> str | None:
    """The release of an engine, which is `product`, in the name of a server's image.

    An image of another product contains the engine that its publisher chose; an image with an
    unknown name can contain any.
    """
    if servers.load(server).image["product"] == product:
        told = told_version(server, reference)
        return told.lower().removeprefix("v") if told else None
    last = re.split(r"[/#]", reference.partition("@")[0])[-1]
    same = (row for row in _rows() if row.image.rpartition("/")[2] == last)
    return next((row.release for row in same if row.server == server), None)


@cache
def _version_pattern(product: str) -> re.Pattern[str]:
    """Matches versions in the form of a product: the same number of parts, two digits where its own
    have two."""
    numbers = advisories.minimum(product).version.split(".")
    parts = r"\.".join(r"\d\d" if len(number) == 2 else r"\d+" for number in numbers)
    return re.compile(
        rf"(?<![A-Za-z0-9.])[vr]?(?P<version>{parts}(?:\.?(?:rc|post|dev)\d+)*)(?![\d.])",
        re.IGNORECASE,
    )


@dataclass(frozen=True, slots=True)
class Image:
    """An image that contains a server.

    `known` is set if its content is in the data. `version` is its Triton version, if known.
    `size_gb` is the size that its publisher states.
    """

    name: str
    tag: str | None
    digest: str | None
    known: bool
    version: str | None = None
    architectures: tuple[str, ...] = ()
    size_gb: float | None = None
    source: str = "named by the deployment"

    @property
    def reference(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.name}{tag}" + (f"@{self.digest}" if self.digest else "")


@dataclass(frozen=True, slots=True)
class PublishedImage:
    """An image of its publisher. `version` is the version of the product whose advisories apply in
    addition to the engine's; `size_gb` is `None` if unknown."""

    server: Text
    release: Text
    image: Annotated[
        str, Check(lambda name: bool(re.match(_PATTERN, name)), "must be HOST/PATH:TAG")
    ]
    architectures: tuple[Literal["amd64", "arm64"], ...]
    size_gb: float | None
    source: Text
    version: str | None = None


# An image of another product that contains an engine: the engine's release by the image's tag. If
# the repository has images of several kinds, tags with the engine contain `mark` after the version.
_CARRIER: Any = {
    **dict.fromkeys(("repository", "engine", "source"), Text),
    "tags": {"*": str},
    "mark?": str,
}
# Until when images of a server were searched, and what to do about a release without one.
_SEARCHES: Any = [{"server": Text, "as_of": Day, "source": Text, "remedy": (Text, None)}]


@dataclass(frozen=True, slots=True)
class PublishedImages:
    """The content of `images.yaml`."""

    images: tuple[PublishedImage, ...]
    searches: Annotated[Sequence[Mapping[str, Any]], Plain(_SEARCHES)]
    carriers: Annotated[Sequence[Mapping[str, Any]], Plain([_CARRIER])]


def image(server: str, release: str, given: str | None = None) -> Image | None:
    """The image of a server of a release: as `given`, else that of the data, else `None`.

    The same tag on a mirror has the same content: only the host differs.
    """
    product = servers.load(server).image["product"]
    if given is None:
        row = next((row for row in _rows() if (row.server, row.release) == (server, release)), None)
        return _image(row.image, row, product) if row else None
    found = re.match(_PATTERN, given)
    if found is None:
        raise ValueError(f"{given} is not an image reference")
    last = f"{found['name'].rpartition('/')[2]}:{found['tag']}"
    same = (row for row in _rows() if row.image.rpartition("/")[2] == last)
    return _image(given, next((row for row in same if row.server == server), None), product)


def newest_release(server: str) -> str | None:
    """The newest engine release for which an image with this server is published."""
    carried = [row.release for row in _rows() if row.server == server]
    return max(carried, key=oldest_first, default=None)


def release_in(server: str, version: str) -> str | None:
    return _containers(server).get(version)


def search_words(server: str) -> str:
    """Until when images of a server were searched, and where to get another; empty if unknown."""
    row = next((row for row in _data().searches if row["server"] == server), None)
    if row is None:
        return ""
    what, held = f"no published one is listed as of {row['as_of']}", _containers(server)
    if held:
        newest = max(held, key=oldest_first)
        what += f" (the newest, {newest}, has {held[newest]})"
    return f"{what}; {row['remedy']}" if row["remedy"] else what


def _containers(server: str) -> Mapping[str, str]:
    """The engine release by the version of a server's containers."""
    record = servers.load(server)
    for row in _data().carriers:
        if row["repository"] == record.image["repository"] and row["engine"] in record.engines:
            tags: Mapping[str, str] = row["tags"]
            return tags
    return {}


def versions(server: str) -> list[str]:
    """The versions in the published images of a server, newest last."""
    return [row.version for row in _rows() if row.server == server and row.version]


def _image(reference: str, row: PublishedImage | None, product: str) -> Image:
    found = re.match(_PATTERN, reference)
    assert found is not None  # validated before
    parts = (found["name"], found["tag"], found["digest"])
    if row is None:
        content = next(contents(reference), None)
        version = content.version if content and content.product == product else None
        return Image(*parts, known=False, version=version)
    return Image(*parts, True, row.version, row.architectures, row.size_gb, row.source)


def _rows() -> tuple[PublishedImage, ...]:
    return _data().images


def _data() -> PublishedImages:
    return data_file.load(IMAGES, PublishedImages)
