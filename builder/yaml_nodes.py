"""Nodes of YAML texts that anybody may have written: bounded, and each with a value or refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from . import credentials
from .diagnostics import NOWHERE, Location, closest, located

MAX_NODES = 100_000
MAX_DEPTH = 100
TAG = "tag:yaml.org,2002:"
# Of Compose, where files are merged: nothing in place of what stands there, or this alone.
_RESET, _OVERRIDE = "!reset", "!override"
_SERVICES = "services"


class Refused(Exception):
    """A text that is YAML, and that nobody would write."""

    def __init__(self, mark: Any, what: str, remedy: str) -> None:
        place = NOWHERE if mark is None else Location(mark.line + 1, mark.column + 1)
        self.diagnostic = located(place, "", what, remedy)
        super().__init__(what)


class Composer:
    """Nodes from parser events: aliases are shared, and what is too large is refused on the way.

    PyYAML's own composer would first build the whole tree, which for a hostile file of a few
    megabytes takes gigabytes.
    """

    def __init__(self, loader: Any) -> None:
        self._loader, self._count = loader, 0
        self._anchors: dict[str, yaml.Node] = {}
        self._open: list[str] = []  # anchors of what is not read to its end
        self._is_marked = False

    def documents(self) -> Iterator[yaml.Node]:
        while not isinstance(event := self._loader.get_event(), yaml.StreamEndEvent):
            if isinstance(event, yaml.DocumentStartEvent):
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
                what = f"stands in what the anchor {event.anchor} names, which would hold itself"
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
        """A node as Compose reads it by itself. Nodes that aliases share are `done` once."""
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
    """The data of a node by PyYAML, which also says what is wrong with it.

    Of a text that has not the form of its type, such as `!!int abc` or `0x_`, it says nothing.
    """
    try:
        return loader.construct_object(node, deep=True)
    except (ValueError, LookupError, ArithmeticError):
        kind = node.tag.removeprefix(TAG)
        what = f"is no {kind}: {credentials.shown(node.value)}"
        raise Refused(node.start_mark, what, "correct it, or quote it as text") from None
