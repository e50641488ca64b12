"""YAML documents: reads untrusted text, bounded, with the location of every key and every error."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from . import credentials
from .diagnostics import NOWHERE, Diagnostic, Location, closest, located
from .errors import BadInput
from .files import read_text
from .general_rules import DUPLICATE_KEY, SYNTAX

MAX_NODES, MAX_DOCUMENTS = 100_000, 10_000
MAX_DEPTH = 100
TAG = "tag:yaml.org,2002:"
# Compose's merge tags: remove the value of the other file, or replace it.
_RESET, _OVERRIDE = "!reset", "!override"
_SERVICES = "services"


class Refused(Exception):
    """Valid YAML that this reader refuses."""

    def __init__(self, mark: Any, what: str, remedy: str) -> None:
        place = NOWHERE if mark is None else Location(mark.line + 1, mark.column + 1)
        self.diagnostic = located(place, "", what, remedy)
        super().__init__(what)


class Composer:
    """Builds nodes from parser events; aliases are shared, and size limits apply while parsing.

    PyYAML's own composer first builds the whole tree, which takes gigabytes for a hostile file of a
    few megabytes.
    """

    def __init__(self, loader: Any) -> None:
        self._loader, self._count = loader, 0
        self._anchors: dict[str, yaml.Node] = {}
        self._open: list[str] = []  # anchors of what is not read to its end
        self._is_marked = False

    def documents(self) -> Iterator[yaml.Node]:
        count = 0
        while not isinstance(event := self._loader.get_event(), yaml.StreamEndEvent):
            if isinstance(event, yaml.DocumentStartEvent):
                count += 1
                if count > MAX_DOCUMENTS:
                    what = f"has more than {MAX_DOCUMENTS} documents"
                    raise Refused(event.start_mark, what, "write several files")
                self._anchors = {}
                node = self._node(self._loader.get_event(), 0)
                yield self._unmarked(node, {}) if self._is_marked and _is_compose(node) else node

    def _node(self, event: Any, depth: int) -> yaml.Node:
        self._count += 1
        if self._count > MAX_NODES:
            raise too_many()
        if depth > MAX_DEPTH:
            raise Refused(event.start_mark, "is nested too deeply", "flatten it")
        kind = type(event)
        if kind is yaml.AliasEvent:
            if event.anchor in self._open:
                what = f"is inside the anchor {event.anchor}, which would contain itself"
                raise Refused(event.start_mark, what, "write the values that are meant")
            if event.anchor not in self._anchors:
                what = f"names the alias {event.anchor}, which nothing above defines"
                near = closest(event.anchor, self._anchors)
                fix = f"did you mean {near}?" if near else "define it first"
                raise Refused(event.start_mark, what, fix)
            return self._anchors[event.anchor]
        if event.anchor:
            self._open.append(event.anchor)
        node = self._scalar(event) if kind is yaml.ScalarEvent else self._collection(event, depth)
        if event.anchor:
            self._anchors[self._open.pop()] = node
        return node

    def _scalar(self, event: Any) -> yaml.Node:
        tag = self._tag(event, yaml.ScalarNode, event.value)
        return yaml.ScalarNode(tag, event.value, event.start_mark, event.end_mark, event.style)

    def _collection(self, event: Any, depth: int) -> yaml.Node:
        items: list[Any] = []
        kind: type[yaml.CollectionNode]
        next_event = self._loader.get_event
        if isinstance(event, yaml.SequenceStartEvent):
            while type(inner := next_event()) is not yaml.SequenceEndEvent:
                items.append(self._node(inner, depth + 1))
            kind = yaml.SequenceNode
        else:
            while type(inner := next_event()) is not yaml.MappingEndEvent:
                key = self._node(inner, depth + 1)
                items.append((key, self._node(next_event(), depth + 1)))
            kind = yaml.MappingNode
        return kind(self._tag(event, kind, None), items, event.start_mark, event.end_mark)

    def _unmarked(self, node: yaml.Node, done: dict[int, yaml.Node]) -> yaml.Node:
        """A node without Compose's merge tags. `done` keeps nodes that aliases share."""
        if id(node) in done:
            return done[id(node)]
        if node.tag == _RESET:
            node = yaml.ScalarNode(f"{TAG}null", "", node.start_mark, node.end_mark)
        elif node.tag == _OVERRIDE:
            node.tag = str(self._loader.resolve(type(node), node.value, (True, False)))
        done[id(node)] = node
        if isinstance(node, yaml.MappingNode):
            node.value = [(key, self._unmarked(value, done)) for key, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            node.value = [self._unmarked(item, done) for item in node.value]
        return node

    def _tag(self, event: Any, kind: type[yaml.Node], value: str | None) -> str:
        self._is_marked = self._is_marked or event.tag in (_RESET, _OVERRIDE)
        if event.tag is not None and event.tag != "!":
            return str(event.tag)
        return str(self._loader.resolve(kind, value, event.implicit))


def _is_compose(node: yaml.Node) -> bool:
    rows = node.value if isinstance(node, yaml.MappingNode) else ()
    return any(key.value == _SERVICES for key, _ in rows)


def too_many() -> Refused:
    what = f"has more than {MAX_NODES} values, aliases counted"
    return Refused(None, what, "write less")


def constructed(node: yaml.Node, loader: Any) -> Any:
    """The data of a node as PyYAML constructs it, or the reason why it cannot.

    PyYAML itself raises plain errors for text such as `!!int abc` or `0x_`.
    """
    try:
        return loader.construct_object(node, deep=True)
    except (ValueError, LookupError, ArithmeticError):
        kind = node.tag.removeprefix(TAG)
        what = f"is no {kind}: {credentials.shown(node.value)}"
        raise Refused(node.start_mark, what, "correct it, or quote it as text") from None


# One folder for each kind of fact.
DATA = Path(__file__).parent / "data"

MAX_DIGITS = 100


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML 1.1 as the engine reads its option files, except that dates stay text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rows if not tag.endswith(":timestamp")]
    for first, rows in _Loader.yaml_implicit_resolvers.items()
}

_MERGE = f"{TAG}merge"
_TEXT, _LIST, _MAPPING = f"{TAG}str", f"{TAG}seq", f"{TAG}map"
_NUMBERS = (f"{TAG}int", f"{TAG}float")
_PLAIN = {f"{TAG}{name}" for name in ("str", "int", "float", "bool", "null", "seq", "map")}


_CONTROL = r"[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"


START = Location(1, 1)


class Variable(str):
    """Text that a shell or a template replaces later with a value of any type.

    `pattern` finds such text inside other text.
    """

    __slots__ = ("pattern",)

    pattern: re.Pattern[str] | None

    def __new__(cls, text: str, pattern: re.Pattern[str] | None = None) -> Variable:
        made = super().__new__(cls, text)
        made.pattern = pattern
        return made


@dataclass(eq=False)  # documents compare by identity, and cache what is found in them
class Yaml:
    """A YAML document: plain data, the location of every dotted path, and the errors of its text.

    `blocks` are the locations where literal blocks begin, `folded` the locations and source of
    other multi-line texts. `readable` is false if the text could not be read to its end; `data` is
    then `None`.
    """

    data: Any = None
    places: dict[str, Location] = field(default_factory=dict)
    blocks: dict[str, Location] = field(default_factory=dict)
    folded: dict[str, tuple[Location, str]] = field(default_factory=dict)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    readable: bool = True

    @property
    def lines(self) -> dict[str, int]:
        """The line of every dotted path except the root."""
        return {path: place.line for path, place in self.places.items() if path}

    def locate(self, path: str) -> Location:
        """The location of a path, or of the nearest path above it."""
        while path and path not in self.places:
            path = path.rpartition(".")[0]
        return self.places.get(path, NOWHERE)


def above(path: str) -> Iterator[str]:
    """The dotted paths that contain a value, outermost first, then its own."""
    keys = path.split(".")
    return (".".join(keys[:depth]) for depth in range(len(keys) + 1))


def groups_of(path: str) -> Iterator[str]:
    """The dotted paths of the groups that contain a value, innermost first."""
    while "." in path:
        path = path.rpartition(".")[0]
        yield path


def value_at(data: Any, path: str) -> Any:
    """The value at a dotted path of nested mappings, or `None`."""
    for key in path.split("."):
        if data is None or not isinstance(data, Mapping):
            return None
        data = data.get(key)
    return data


def merged(data: Any, given: Any) -> Any:
    """Data with other data merged over it, group by group."""
    if not (isinstance(data, Mapping) and isinstance(given, Mapping)):
        return given
    return {**data, **{key: merged(data.get(key), item) for key, item in given.items()}}


def load_yaml(text: str) -> Any:
    """Plain data from YAML that the toolkit wrote or ships."""
    return yaml.load(text, Loader=_Loader)


def _plain(node: yaml.Node, loader: Any) -> Any:
    """The data of a node, faster than PyYAML for the usual types."""
    if node.tag == _TEXT and isinstance(node, yaml.ScalarNode):
        return node.value
    if node.tag == _LIST and isinstance(node, yaml.SequenceNode):
        return [_plain(item, loader) for item in node.value]
    if node.tag == _MAPPING and isinstance(node, yaml.MappingNode):
        loader.flatten_mapping(node)
        if all(isinstance(key, yaml.ScalarNode) for key, _ in node.value):
            return {_plain(key, loader): _plain(item, loader) for key, item in node.value}
    return constructed(node, loader)


def parse_yaml(text: str, name: str) -> Yaml:
    """The only document of a text. Raises `BadInput` with every error of the text.

    Duplicate keys are errors of the returned document, which can still be used.
    """
    documents = scan_yaml(text)
    diagnostics = list(chain.from_iterable(document.diagnostics for document in documents))
    if len(documents) > 1:
        what = "begins a second document"
        diagnostics.append(
            located(documents[1].places[""], "", what, "write one document per file")
        )
    if fatal := [row for row in diagnostics if row.rule != DUPLICATE_KEY]:
        raise BadInput(with_file(row, name) for row in fatal)
    documents[0].diagnostics = [with_file(row, name) for row in diagnostics]
    return documents[0]


def load_yaml_mapping(path: Path) -> dict[str, Any]:
    """The mapping in a file, empty for an empty file.

    Raises `BadInput` with every error of its text.
    """
    document = parse_yaml(read_text(path), str(path))
    if document.diagnostics:
        raise BadInput(document.diagnostics)
    if not isinstance(document.data, dict | None):
        raise BadInput(Diagnostic(str(path), "holds no mapping", "restore the file"))
    return document.data or {}


def with_file(diagnostic: Diagnostic, name: str) -> Diagnostic:
    line = f":{diagnostic.location.line}" if diagnostic.location.line else ""
    where = ": ".join(filter(None, (f"{name}{line}", diagnostic.path)))
    return Diagnostic(
        where, diagnostic.message, diagnostic.fix, diagnostic.rule, diagnostic.severity
    )


def scan_yaml(text: str, start: Location = START) -> list[Yaml]:
    """All documents of a text, at least one; an unreadable text ends with the error.

    `start` is the location of the text inside a larger one. The root of a document has the path "".
    """
    documents: list[Yaml] = []
    try:
        loader = _Loader(text)
    except UnicodeEncodeError as error:
        place = _location(text, error.start)
        refused = located(place, "", "is not UTF-8 text", "write it as UTF-8")
        _give_up(documents, refused, start)
        return documents
    try:
        for node in Composer(loader).documents():
            documents.append(document := Yaml())
            _Walk(document, loader, text, start).visit(node, "", 0)
            if not any(row.rule == SYNTAX for row in document.diagnostics):
                document.data = _plain(node, loader)
    except Refused as refused:
        _give_up(documents, refused.diagnostic, start)
    except yaml.YAMLError as error:
        _give_up(documents, _syntax(error, text), start)
    finally:
        loader.dispose()
    return documents or [Yaml(places={"": start})]


def _too_deep(text: str) -> Location | None:
    """The first bracket that is deeper than is read."""
    depth = 0
    for position, letter in enumerate(text):
        depth += (letter in "[{") - (letter in "]}")
        if depth > MAX_DEPTH:
            return _location(text, position)
    return None


def _location(text: str, index: int) -> Location:
    return Location(text.count("\n", 0, index) + 1, index - text.rfind("\n", 0, index))


def _syntax(error: yaml.YAMLError, text: str) -> Diagnostic:
    """The parser's error, at the location that it names or that has the refused character."""
    mark = getattr(error, "problem_mark", None)
    reason = str(getattr(error, "problem", None) or getattr(error, "reason", "unreadable"))
    if mark is None and (control := re.search(_CONTROL, text)):
        place = _location(text, control.start())
    else:
        place = Location(mark.line + 1, mark.column + 1) if mark else NOWHERE
    if "nesting depth" in reason:  # newer parsers count brackets ahead of what they return
        return located(_too_deep(text) or place, "", "is nested too deeply", "flatten it")
    if "cannot start any token" in reason and _character(text, place) == "\t":
        reason = "found a tab character where indentation is expected"
    if "mapping values are not allowed" in reason and (odd := _odd_indent(text, place)):
        line, key = odd
        fix = f"indent {key} and the line below it alike: {key} has a value"
        return located(Location(line, 1), "", f"is not YAML: {reason}", fix)
    # Where a bracket or a quote is open the parser says something else.
    if "could not find expected ':'" in reason and (run_on := _run_on(text, place)):
        number, key = run_on
        what = f"is not YAML: {key} has no colon with a space behind it, so that it is no key"
        return located(Location(number, 1), "", what, f"write {key}: and a space")
    return located(place, "", f"is not YAML: {reason}", "correct this line")


def _odd_indent(text: str, place: Location) -> tuple[int, str] | None:
    """The number of a wrongly indented line, and the key above that already has a value."""
    rows = list(enumerate(text.splitlines()[: place.line], 1))[-50:]
    rows = [(number, row) for number, row in rows if row.strip()]
    if len(rows) < 2:
        return None
    (number, above), (refused, line) = rows[-2:]
    key = re.match(r"( *)(?:- +)?([\w.-]{1,60}): +[^|>\s]", above)
    depth = len(line) - len(line.lstrip())
    is_key = re.match(r"\s*(?:- +)?[\w.-]{1,60}:(?:\s|$)", line)  # and no text that has a colon
    if key is None or not is_key or depth <= len(key[1]):
        return None
    before = rows[-3][1] if len(rows) > 2 else ""
    is_above = before.endswith(":") or len(before) - len(before.lstrip()) == depth
    return number if is_above else refused, key[2]


_RUN_ON = re.compile(
    r"\s*(?:(?P<key>[A-Za-z]\w*):[^\s:/]+|(?P<equal>[A-Za-z]\w*) *= *[^\s:]+)\s*(?:#.*)?$"
)


def _run_on(text: str, place: Location) -> tuple[int, str] | None:
    """The line of a key without a space after its colon, or with another sign than a colon."""
    lines = text.splitlines()[: place.line]
    for number in range(len(lines), max(len(lines) - 2, 0), -1):
        if found := _RUN_ON.match(lines[number - 1]):
            return number, found["key"] or found["equal"]
    return None


def _character(text: str, place: Location) -> str:
    lines = text.splitlines()
    line = lines[place.line - 1] if 0 < place.line <= len(lines) else ""
    return line[place.column - 1 : place.column]


def _give_up(documents: list[Yaml], diagnostic: Diagnostic, start: Location) -> None:
    """Add an error that stops reading to the document where it occurred."""
    if not documents or (documents[-1].readable and documents[-1].data is not None):
        documents.append(Yaml(places={"": start}))
    broken = documents[-1]
    broken.data, broken.readable = None, False
    broken.diagnostics.append(replace(diagnostic, location=_shift(diagnostic.location, start)))


def _shift(place: Location, start: Location) -> Location:
    if place == NOWHERE:
        return place if start == START else start
    return Location(place.line + start.line - 1, place.column + start.column - 1)


class _Walk:
    """Collects the locations, blocks and errors of a node tree, following every alias."""

    def __init__(self, document: Yaml, loader: Any, text: str, start: Location) -> None:
        self._document, self._loader, self._text, self._start = document, loader, text, start
        self._nodes = 0

    def visit(self, node: Any, path: str, depth: int) -> None:
        self._count(node, depth)
        self._document.places.setdefault(path, self._place(node))
        if node.tag not in _PLAIN:
            self._add(node, path, f"a value of type {node.tag.removeprefix(TAG)}")
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self.visit(item, _below(path, str(index)), depth + 1)
        elif isinstance(node, yaml.MappingNode):
            self._mapping(node, path, depth, merged=False)
        elif self._is_huge(node):
            self._add(node, path, f"a number of {len(node.value)} digits")
        elif node.style == "|":
            self._document.blocks[path] = self._block(node)
        elif node.tag == _TEXT and node.start_mark.line < node.end_mark.line - (node.style == ">"):
            written = self._text[node.start_mark.index : node.end_mark.index]
            self._document.folded[path] = self._place(node), written

    def _mapping(self, node: yaml.MappingNode, path: str, depth: int, merged: bool) -> None:
        """Visit a mapping; `merged` ones come from `<<`, and the mapping's own keys win."""
        seen: dict[str, int] = {}
        merges = [value for key, value in node.value if key.tag == _MERGE]
        for key, value in node.value:
            if key.tag == _MERGE:
                continue
            text = self._key(key)
            place, inner = self._place(key), _below(path, text)
            if self._is_huge(key):
                self._add(key, path, f"a number of {len(key.value)} digits as key")
            if text in seen:
                what = f"is given twice, first in line {seen[text]}"
                diagnostic = located(place, inner, what, "keep one", DUPLICATE_KEY)
                self._document.diagnostics.append(diagnostic)
            seen.setdefault(text, place.line)
            if not merged or inner not in self._document.places:
                self._document.places[inner] = place
            self.visit(value, inner, depth + 1)
        for value in merges:
            parts = value.value if isinstance(value, yaml.SequenceNode) else [value]
            for each in parts:
                self._count(each, depth + 1)
                if isinstance(each, yaml.MappingNode):
                    self._mapping(each, path, depth + 1, merged=True)

    @staticmethod
    def _is_huge(node: yaml.Node) -> bool:
        return node.tag in _NUMBERS and len(node.value) > MAX_DIGITS

    def _count(self, node: yaml.Node, depth: int) -> None:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise too_many()
        if depth > MAX_DEPTH:
            raise Refused(node.start_mark, "is nested too deeply", "flatten it")

    def _key(self, node: yaml.Node) -> str:
        """A key as in the data: in YAML 1.1 `on` is True and `1` a number."""
        if isinstance(node, yaml.ScalarNode) and node.tag in _PLAIN and len(node.value) < 4000:
            if node.tag == _TEXT or self._is_huge(node):
                return str(node.value)
            return str(constructed(node, self._loader))
        return str(node.value)[:60]

    def _block(self, node: Any) -> Location:
        """Where the text of a literal block begins: the next line, after its indentation."""
        line = node.start_mark.line + 1
        rows = iter(self._text.splitlines()[line:])
        raw = next((row for row in rows if row.strip()), "")
        own = next((row for row in node.value.splitlines() if row.strip()), "")
        indent = _indent(raw) - _indent(own)
        return _shift(Location(line + 1, max(indent, 0) + 1), self._start)

    def _place(self, node: yaml.Node) -> Location:
        mark = node.start_mark
        place = Location(mark.line + 1, mark.column + 1)
        return place if self._start is START else _shift(place, self._start)

    def _add(self, node: yaml.Node, path: str, value: str) -> None:
        what = f"holds a value that no option can have: {value}"
        remedy = "write plain text, numbers, lists and mappings"
        self._document.diagnostics.append(located(self._place(node), path, what, remedy))


def _below(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def edited(text: str, changes: Mapping[str, str]) -> str | None:
    """A YAML mapping with texts set at dotted paths; comments, order and layout stay.

    `None` if the result would not read back as meant, as where a path leads through a list.
    """
    first, *others = scan_yaml(text)
    if others or first.diagnostics:
        return None
    wanted = first.data
    for path, value in changes.items():
        for key in reversed(path.split(".")):
            value = {key: value}  # type: ignore[assignment]
        wanted = merged(wanted, value)
    for path, value in changes.items():
        text = _with_text(text, path.split("."), value)
    found = scan_yaml(text)
    is_meant = len(found) == 1 and not found[0].diagnostics and found[0].data == wanted
    return text if is_meant else None


def _with_text(text: str, keys: list[str], value: str) -> str:
    """A text with one value set or added, as far as its layout is known."""
    node, key = yaml.compose(text, Loader=_Loader), None
    while keys and isinstance(node, yaml.MappingNode):
        row = next((row for row in node.value if row[0].value == keys[0]), None)
        if row is None:
            break
        (key, node), keys = row, keys[1:]
    is_unset = not keys or (node and node.tag == f"{TAG}null")
    if key and isinstance(node, yaml.ScalarNode) and is_unset:
        new = _flow(keys, value) if keys or node.style or not node.value else value
        start = node.start_mark.index if node.value else text.index(":", key.end_mark.index) + 1
        return f"{text[:start]}{' ' * (not node.value)}{new}{text[node.end_mark.index :]}"
    if not isinstance(node, yaml.MappingNode):
        return text
    if node.flow_style:
        inside = node.start_mark.index + 1
        more = ", " if node.value else ""
        return f"{text[:inside]}{_flow(keys, value)[1:-1]}{more}{text[inside:]}"
    column = node.start_mark.column
    lines = [f"{' ' * (column + 2 * depth)}{name}:" for depth, name in enumerate(keys)]
    added = "\n".join(lines) + f" {value}\n"
    if key is None:
        return text + "\n" * (not text.endswith("\n")) + added
    after = text.find("\n", key.end_mark.index) + 1
    return text[:after] + added + text[after:]


def _flow(keys: Sequence[str], value: str) -> str:
    """A text below some keys as a flow mapping."""
    opened = "".join(f"{{{json.dumps(key)}: " for key in keys)
    return f"{opened}{json.dumps(value)}{'}' * len(keys)}"


def dump_yaml(document: Mapping[str, Any]) -> str:
    """A document as YAML that reads the same in YAML 1.1 and 1.2."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    """Quotes text that YAML 1.1 or 1.2 reads as a number, such as 0o17 and 1e3, and escapes their
    line breaks."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        style = '"' if re.search(r"[\r\x85\u2028\u2029\ufeff]", text) else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _Dumper.represent_text)
_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"[-+]?(([0-9_]*\.[0-9_]+|[0-9_]+\.?)([eE][-+]?[0-9]+)?"
        r"|0o[0-7_]+|0x[0-9a-fA-F_]+|0b[01_]+)$"
    ),
    list("-+._0123456789"),
)
