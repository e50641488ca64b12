"""Finds the engine release that each line of a file pins.

An image, a required package or a field of a recipe pins a release. The nearest pin is used: for the
options of a container, its own image. A comment is used only if nothing else pins a release.
"""

from __future__ import annotations

import operator as op
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from ..documents import Yaml
from ..errors import BadInput
from ..facts import engines, release
from ..facts.engines import Engine
from ..facts.release import Release
from ..facts.release.version import order
from .engine import Formats, formats
from .read.versions import with_tags
from .read.yaml_text import places

if TYPE_CHECKING:  # most files name no image
    from ..facts.images import Carried, Reference

_VERSION = r"v?(?P<version>\d+\.\d+\.\d+(?:\.?(?:rc|post|dev)\d+)*)"
_BOUND = re.compile(r"(?P<sign>===?|~=|>=|<=|!=|<|>)[ \t]*v?(?P<version>\d[\w.]*)(?P<any>\*?)")
_BACKEND_FIELD = re.compile(
    rf"(?:backend|framework|engine)_version[\"']?[ \t]*[:=][ \t]*[\"']?{_VERSION}", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class _Naming:
    """How files name the releases of an engine.

    `name` is a pattern for the engine in fields, variables and requirements, `remark` one in
    comments. A file without `mentions` and a line that does not match `likely` have no pin.
    """

    engine: Engine
    name: str
    mentions: re.Pattern[str]
    likely: re.Pattern[str]
    remark: re.Pattern[str] | None


@cache
def _naming(name: str) -> _Naming:
    record = formats(name)
    remark = record.remark and re.compile(_REMARK % record.remark, re.IGNORECASE)
    return _Naming(
        engines.load(name),
        f"(?:{record.named})",
        re.compile(record.mentions or record.named, re.IGNORECASE),
        re.compile(f"{record.release_lines or record.named}|_version", re.IGNORECASE),
        remark or None,
    )


# These patterns are texts: most files never need them compiled.
# A comment that names the release that a file is for. Comments that tell more about the release,
# such as when an option was added, do not match.
_REMARK = (
    r"^\s*(?:#|//|REM\b)[#\s]*(?P<before>(?:[\w/,.:+-]+\s+){0,8}?)"
    rf"(?P<words>(?:%s)(?:\s+(?:release|version))?[ \t:,]+{_VERSION})"
    r"(?=$|[\s,;:.)])(?P<rest>.*)"
)
# Words that such a comment may contain, with models and GPU counts; with other words it may be a
# comparison.
_OF_THIS_FILE = (
    r"(?i)a|against|api|args|built|command|config|configs|configuration|container|context|decode"
    r"|deployment|disaggregated|engine|extra|file|for|framework|generated|generation|gpu|gpus"
    r"|image|llm|made|measured|model|node|nodes|nvidia|official|on|options|parameters|pinned"
    r"|prefill|recipe|release|required|requires|run|runs|runtime|script|serve|server|servers"
    r"|serving|settings|srt-slurm|target|targets|tested|the|these|this|uses|using|validated"
    r"|values|variant|verified|version|with|worker|workers|works|written|\S*\d\S*"
)
_OF_ANOTHER = (
    r"(?i)\b(?:since|until|before|after|from|fix\w*|old\w*|new\w*|not?|never|without|than|remov\w*|add\w*"
    r"|renam\w*|named?|call\w*|deprecat\w*|br[eo]ke?n?|breaks|bug\w*|earlier|later|was|were|had|did|in"
    r"|up|instead|unlike|except|upgrade\w*|see|cf|and|or|vs|https?|is|are|has|have|does|can\w*|needs?"
    r"|requires?|takes?|accepts?|refuses?|crash\w*|hang\w*|ignor\w*|support\w*|only|drop\w*"
    r"|defaults?|use[dr]?s?|this|it|previous\w*|replac\w*|behavio\w*)\b|[<>=+]|\b[a-z]+_\w"
)


def _remark(line: str, pattern: re.Pattern[str]) -> Iterator[Carried]:
    found = pattern.match(line)
    if found and _is_of_this_file(found["before"]) and _ends_so(found["rest"]):
        release_name = found["version"].removeprefix("v")
        yield _carried(found.start("words"), found["words"], (release_name,))


def _is_of_this_file(text: str) -> bool:
    words = (word.strip(",.:") for word in text.split())
    return all(not word or re.fullmatch(_OF_THIS_FILE, word) for word in words)


def _ends_so(rest: str) -> bool:
    """Returns whether the text after a release only describes the file further, or is empty."""
    is_apart = rest.lstrip()[:1] in ",;:.()"
    return (is_apart or _is_of_this_file(rest)) and not re.search(_OF_ANOTHER, rest)


@cache
def _requirement(name: str) -> re.Pattern[str]:
    return re.compile(
        rf"(?<![\w/.]){name}(?:\[[\w,-]+\])?[ \t]*"
        r"(?P<bounds>(?:(?:[<>~=!]=|[<>]|===)[ \t]*v?\d[\w.*]*[ \t]*,?[ \t]*)+)",
        re.IGNORECASE,
    )


@cache
def _field(name: str) -> re.Pattern[str]:
    return re.compile(
        rf"(?<![\w/]){name}(?:[-_](?:version|release|tag|engine_version))?[\"']?[ \t]*[:=][ \t]*"
        rf"[\"']?(?:\$\{{\w+:-)?{_VERSION}(?![\w-]*[./]\w)",
        re.IGNORECASE,
    )


_STAGE = r"(?im)^FROM[ \t]+\S+"
_COMMENT = re.compile(r"(?:^|\s)#")
_Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pin:
    """A line that pins a release.

    `releases` is empty if the words do not show which one. `place` is the part of the file that
    contains the line, outermost part first. A fork may have other options than the release.
    """

    line: int
    words: str
    releases: tuple[str, ...]
    place: _Path
    comment: bool = False
    is_fork: bool = False


@dataclass(frozen=True, slots=True)
class PinnedTables:
    """The tables that lines are checked against. Their errors become warnings for a fork, and for a
    release that is `too_old` for all tables."""

    releases: tuple[Release, ...]
    judges: tuple[Release, ...]
    too_old: bool = False


class Pins:
    """The releases that a file pins, by the lines that each pin applies to."""

    def __init__(self, text: str, documents: Sequence[Yaml], engine: Engine | None = None) -> None:
        engine = engine or engines.default()
        self._naming = _naming(engine.name)
        self._text = _without_guide(with_tags(text), engine.name)
        self._documents = documents
        found = [*self._split_images(), *self._read()]
        outspoken = [row for row in found if not row.comment]
        self.statements = tuple(outspoken or found)
        self._tables: dict[_Path, PinnedTables | None] = {}

    def tables(self, line: int) -> PinnedTables | None:
        """Returns the tables that a line is checked against, or the whole file for line 0: those of
        the nearest pins. `None` if these name no release."""
        part = self._nearest(line)
        if part not in self._tables:  # a file may have thousands of lines and pins
            self._tables[part] = _tables(tuple(self._within[part]), self._naming.engine)
        return self._tables[part]

    def is_fork(self, line: int) -> bool:
        """Returns whether the pins of a line name a fork of the engine."""
        return any(row.is_fork for row in self._within[self._nearest(line)])

    def _nearest(self, line: int) -> _Path:
        """Returns the smallest part of the file around a line that has a pin."""
        here = self._place(line) if line else ()
        return next((part for part in _parts(here) if part in self._within), ())

    @cached_property
    def _within(self) -> dict[_Path, list[Pin]]:
        """The pins in each part of the file that has any, and in the whole file."""
        found: dict[_Path, list[Pin]] = {(): []}
        for row in self.statements:
            for part in _parts(row.place):
                found.setdefault(part, []).append(row)
        return found

    @cached_property
    def pinned(self) -> tuple[PinnedTables, ...]:
        """The tables of all releases that the file pins."""
        engine = self._naming.engine
        return tuple(found for row in self.statements if (found := _tables((row,), engine)))

    @property
    def words(self) -> tuple[str, ...]:
        """The words that pin releases, each with its line."""
        lines: dict[str, int] = {}
        for row in self.statements:
            if row.releases:
                lines.setdefault(row.words, row.line)
        return tuple(f"line {line}: {words}" for words, line in lines.items())

    @property
    def unclear(self) -> tuple[str, ...]:
        """The words that should pin a release but do not show which one, such as an image."""
        return tuple(dict.fromkeys(row.words for row in self.statements if not row.releases))

    def _read(self) -> Iterator[Pin]:
        naming = self._naming
        if not naming.mentions.search(self._text):
            return  # quick exit for most files
        for number, line in enumerate(self._text.splitlines(), 1):
            if not naming.likely.search(line):
                continue
            for found in _of_line(line, naming):
                remark = any(mark.start() < found.start for mark in _COMMENT.finditer(line))
                yield self._statement(found, number, found.words, remark)

    def _split_images(self) -> Iterator[Pin]:
        """Yields images whose repository and tag are two values of one mapping."""
        for document in self._documents:
            for path, data in _mappings(document.data, ""):
                name, tag = _text_of(data, _REPOSITORY_KEYS), _text_of(data, _TAG_KEYS)
                if "/" not in name or ":" in name.rpartition("/")[2] or not tag:
                    continue
                image = "/".join(filter(None, (data.get("registry"), name)))
                for found in _images(f"image: {image}:{tag}", self._naming.engine):
                    line = document.locate(path).line
                    words = f"{name}:{tag}"
                    yield self._statement(found, line, words)

    def _statement(self, found: Carried, line: int, words: str, comment: bool = False) -> Pin:
        is_fork = found.is_fork or any("dev" in name for name in found.releases)
        return Pin(line, words, found.releases, self._place(line), comment, is_fork)

    def _place(self, line: int) -> _Path:
        """Returns the part of a line: its document and keys, or the stage of a Dockerfile."""
        if not self._documents:
            return (str(bisect_right(self._stages, line)),) if self._stages else ()
        at = bisect_right(self._lines, line) - 1
        return self._paths[at] if at >= 0 else ()

    @cached_property
    def _stages(self) -> list[int]:
        place = places(self._text)
        return [place(found.start()).line for found in re.finditer(_STAGE, self._text)]

    @cached_property
    def _starts(self) -> list[tuple[int, int, _Path]]:
        return sorted(
            (place.line, place.column, (str(index), *filter(None, path.split("."))))
            for index, document in enumerate(self._documents)
            for path, place in document.places.items()
        )

    @cached_property
    def _lines(self) -> list[int]:
        return [line for line, _, _ in self._starts]

    @cached_property
    def _paths(self) -> list[_Path]:
        return [path for _, _, path in self._starts]


def _parts(place: _Path) -> Iterator[_Path]:
    """Yields a part of a file and all parts around it, up to the whole file."""
    return (place[:depth] for depth in range(len(place), -1, -1))


@lru_cache(maxsize=2_000)
def _of_line(line: str, naming: _Naming) -> tuple[Carried, ...]:
    """Returns the pins in a line, with their columns and words."""
    return tuple(_read_line(line, naming))


def _read_line(line: str, naming: _Naming) -> Iterator[Carried]:
    yield from _images(line, naming.engine)
    yield from _of_minimum(line, naming.engine)
    if naming.remark:
        yield from _remark(line, naming.remark)
    for match in _requirement(naming.name).finditer(line):
        releases = _satisfying(match["bounds"], naming.engine)
        yield _carried(match.start(), match[0].strip(" ,"), releases)
    for pattern in (_field(naming.name), _BACKEND_FIELD):
        for match in pattern.finditer(line):
            yield _carried(match.start(), match[0].strip(), (match["version"],))


def _carried(start: int, words: str, releases: tuple[str, ...]) -> Carried:
    from ..facts.images import Carried  # not needed for most files

    return Carried(start, words, releases)


def _satisfying(bounds: str, engine: Engine) -> tuple[str, ...]:
    """Returns the release of an exact requirement, else its oldest and newest known releases."""
    rows = [
        (row["sign"], row["version"].rstrip("."), row["any"]) for row in _BOUND.finditer(bounds)
    ]
    exact = [version for sign, version, any_ in rows if sign in ("==", "===") and not any_]
    if exact:
        return (exact[0],)
    lowest = [version for sign, version, _ in rows if sign in (">=", "~=")]
    names = [*lowest, *release.known(engine)]  # of equal versions the known one is kept
    ordered = sorted({at: name for name in names if (at := order(name))}.items())
    taken = [name for _, name in ordered if all(_takes(name, *row) for row in rows)]
    return tuple(dict.fromkeys((taken[0], taken[-1]))) if taken else ()


_COMPARED = {">=": op.ge, ">": op.gt, "<=": op.le, "<": op.lt, "!=": op.ne}


def _takes(name: str, sign: str, version: str, any_: str) -> bool:
    """Returns whether a version satisfies one bound of a requirement."""
    here, limit = order(name), order(version)
    if any_ or sign == "~=":
        prefix = version.rstrip(".").split(".")
        prefix = prefix if any_ else prefix[:-1]
        same = name.split(".")[: len(prefix)] == prefix
        above = limit is None or (here is not None and here >= limit)
        return same == (sign != "!=") if any_ else same and above
    if here is None or limit is None:
        return True
    return sign not in _COMPARED or _COMPARED[sign](here, limit)


# Keys with which charts and image lists write a name and its tag separately.
_REPOSITORY_KEYS = ("repository", "name", "image", "newName")
_TAG_KEYS = ("tag", "newTag", "version")


def _text_of(data: Mapping[str, Any], keys: Sequence[str]) -> str:
    return next((data[key] for key in keys if isinstance(data.get(key), str)), "")


def _mappings(data: Any, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    items: Any = ()
    if isinstance(data, Mapping):
        yield path, data
        items = data.items()
    elif isinstance(data, list):
        items = enumerate(data)
    for key, value in items:
        if isinstance(value, Mapping | list):
            yield from _mappings(value, f"{path}.{key}" if path else str(key))


@cache
def _tables(statements: tuple[Pin, ...], engine: Engine) -> PinnedTables | None:
    """Returns the tables of the releases that the pins name; `None` if they name none. A release
    older than all tables uses the oldest table."""
    names = dict.fromkeys(name for row in statements for name in row.releases)
    found, too_old = [], False
    for name in names:
        try:
            found.append(release.load(name, engine=engine))
        except BadInput:
            oldest = release.of_engine(engine)[0]
            if (order(name) or ()) < (order(oldest.name) or ()) and order(name):
                found.append(_in_place_of(name, oldest))
                too_old = True
    judges = dict.fromkeys(table for row in found for table in row.judges)
    return PinnedTables(tuple(found), tuple(judges), too_old) if found else None


@cache
def _in_place_of(name: str, oldest: Release) -> Release:
    """Returns the oldest table as the table of an older release."""
    return replace(oldest, stands_for=name)


def _images(line: str, engine: Engine) -> Iterator[Carried]:
    """Yields the images in a line that contain an engine. A tag such as `nightly` names no release.
    An image of another publisher is a fork; its tag may name a release."""
    from ..facts import images  # not needed for most files

    if engine.default:  # images of servers with this engine have facts of their own
        yield from images.engine_releases(line)
        return
    carried = list(images.carried_releases(line, engine))
    yield from carried
    taken = {row.start + len(row.words) for row in carried}
    record, name = formats(engine.name), _naming(engine.name).mentions
    for found in images.references(line, name):
        if found.start + len(found.text) in taken:
            continue
        is_own, version = _is_own(found, record), found.version(name)
        if is_own and not found.tag:
            continue  # the newest release
        releases = () if found.name in record.extended_images or not version else (version,)
        is_fork = not is_own or found.is_development
        yield images.Carried(found.start, found.text, releases, is_fork)


def _is_own(image: Reference, record: Formats) -> bool:
    """Returns whether an image comes from the engine's publisher or a mirror."""
    if image.name in record.extended_images:
        return False
    if image.spaces and image.spaces[-1] in record.publishers:
        return True
    is_plain = not image.spaces or image.spaces[-1] in record.mirrors
    return is_plain and image.name in (*record.images, record.program)


def _of_minimum(line: str, engine: Engine) -> Iterator[Carried]:
    """Yields the minimum release of a recipe with all newer known releases."""
    names = formats(engine.name).minimum
    for found in _minimum(names).finditer(line) if names else ():
        here = order(found["version"])
        newer = [
            name for name in release.known(engine) if (at := order(name)) and here and at > here
        ]
        oldest = order(release.known(engine)[0])
        own = [found["version"]] if here and oldest and here >= oldest else []
        yield _carried(found.start(), found[0].strip(), tuple(dict.fromkeys((*own, *newer))))


def _without_guide(text: str, engine: str) -> str:
    """Returns the part of a file that can pin a release. The guide of a recipe is left out: it
    mentions other releases and other hardware too."""
    names = formats(engine).minimum
    if not names or not _minimum(names).search(text):
        return text
    return re.sub(r"(?ms)^guide:.*?(?=^\w|\Z)", lambda found: "\n" * found[0].count("\n"), text)


@cache
def _minimum(names: tuple[str, ...]) -> re.Pattern[str]:
    either = "|".join(map(re.escape, names))
    return re.compile(
        rf"(?<!\w)(?:{either})[\"']?[ \t]*[:=][ \t]*[\"']?v?(?P<version>\d+(?:\.\d+)+(?:rc\d+)?)"
    )
