"""Option classes read from their source: annotations and defaults in the words of a table.

A dataclass or pydantic model becomes a group of options, a literal or an enumeration its values. A
type that no file can hold stays out of unions, and alone is an object.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from .python_source import UNKNOWN, Module, Name, dotted

Row = dict[str, Any]

_PLAIN: Mapping[str, str] = {
    "int": "int",
    "float": "float",
    "bool": "bool",
    "str": "str",
    "Path": "str",
    "Any": "any",
    "object": "any",
}
_LISTS = ("list", "tuple", "set", "frozenset", "Sequence", "List", "Set", "Iterable", "Collection")
_MAPPINGS = ("dict", "Mapping", "Dict", "MutableMapping", "Counter", "OrderedDict", "defaultdict")
_WRAPPERS = ("Annotated", "Required", "NotRequired", "Final", "ReadOnly")
_ENUMS = ("Enum", "StrEnum", "IntEnum", "Flag", "enum.Enum", "enum.IntEnum", "enum.StrEnum")
_BOUNDS = ("ge", "gt", "le", "lt", "min_length")
_MAX_FACTORY = 60  # of the text of a default that is made when the engine starts
_DEPRECATED = re.compile(r"\W*(this \w+ is )?deprecated\b", re.IGNORECASE)

_OBJECT: Row = {"type": "object"}


class OptionClasses:
    """Groups of options by class, made as they are asked for."""

    def __init__(self) -> None:
        self.types: dict[str, Row] = {}
        self._homes: dict[str, tuple[str, str]] = {}

    def record(self, found: Name) -> str:
        """The name of the group of a class, with those of all classes that it names."""
        node = found.node
        assert isinstance(node, ast.ClassDef)
        home = (found.module.name, node.name)
        name = node.name
        if self._homes.get(name, home) != home:
            name = f"{found.module.name.rpartition('.')[2]}.{node.name}"
        if name not in self._homes:
            self._homes[name] = home
            self.types[name] = {"fields": {}}
            self.types[name]["fields"] |= self.fields(found)
            if is_typed_dict(found):
                self.types[name]["open_keys"] = ["*"]
        return name

    def fields(self, found: Name) -> dict[str, Row]:
        """The options of a class and its bases."""
        rows: dict[str, Row] = {}
        for name, row in declared(found).items():
            if not name.startswith("_") and not _is_no_option(row.statement):
                rows[name] = self._field(row)
        return rows

    def field(self, found: Name, name: str) -> Row | None:
        """One option of a class."""
        where = declared(found).get(name)
        return self._field(where) if where else None

    def _field(self, where: Declared) -> Row:
        statement, module = where.statement, where.module
        row = self.option(statement.annotation, module)
        row |= _bounds(statement, module) | self._default(statement.value, module)
        if row.get("default", 0) is None and row["type"] != "any":
            row["nullable"] = True
        if _DEPRECATED.match(where.text):
            row["status"] = "deprecated"
        return row

    def option(self, node: ast.AST, module: Module) -> Row:
        rows = list(self._alternatives(node, module))
        extra: Row = {"nullable": True} if None in rows else {}
        options: list[Row] = []
        for row in rows:
            if row is not None and row not in options:
                options.append(row)
        if any(row["type"] == "any" for row in options):
            return {"type": "any"}
        known = [row for row in options if row["type"] != "object"] or options or [_OBJECT]
        return {**_merged(known), **extra}

    def _alternatives(self, node: ast.AST, module: Module) -> Iterator[Row | None]:
        """What an annotation allows, `None` for nothing."""
        if isinstance(node, ast.Constant):
            if node.value is None:
                yield None
            elif isinstance(node.value, str):
                yield from self._alternatives(ast.parse(node.value, mode="eval").body, module)
            else:
                yield _OBJECT
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            yield from self._alternatives(node.left, module)
            yield from self._alternatives(node.right, module)
        elif isinstance(node, ast.Subscript):
            yield from self._generic(node, module)
        else:
            yield from self._named(dotted(node), module)

    def _generic(self, node: ast.Subscript, module: Module) -> Iterator[Row | None]:
        name = dotted(node.value).rpartition(".")[2]
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if name == "Optional":
            yield None
            yield from self._alternatives(inner[0], module)
        elif name == "Union":
            for one in inner:
                yield from self._alternatives(one, module)
        elif name in _WRAPPERS:
            yield from (
                {**row, **_annotated(inner[1:], module)} if row else None
                for row in self._alternatives(inner[0], module)
            )
        elif name == "Literal":
            yield {"type": "enum", "values": list(_literals(inner, module))}
        elif name in _LISTS:
            yield {"type": "list", "items": self.option(inner[0], module)}
        elif name in _MAPPINGS:
            keys = self.option(inner[0], module)["type"]
            value = self.option(inner[1], module) if len(inner) > 1 else {"type": "int"}
            yield {
                "type": "mapping",
                "items": value,
                **({"keys": keys} if keys in ("int", "str") else {}),
            }
        elif name == "SkipValidation":
            yield {"type": "any", "internal": True}
        else:
            yield _OBJECT

    def _named(self, name: str, module: Module) -> Iterator[Row | None]:
        last = name.rpartition(".")[2]
        found = module.lookup(name) if name else None
        if found is None and last in _PLAIN:
            yield {"type": _PLAIN[last]}
        elif found is None and last in _LISTS:
            yield {"type": "list", "items": {"type": "any"}}
        elif found is None and last in _MAPPINGS:
            yield {"type": "mapping", "items": {"type": "any"}}
        elif found and isinstance(found.node, ast.Assign | ast.AnnAssign) and found.node.value:
            yield from self._alternatives(found.node.value, found.module)
        elif found and isinstance(found.node, ast.ClassDef):
            yield self._class(found)
        else:
            yield _OBJECT

    def _class(self, found: Name) -> Row:
        node = found.node
        assert isinstance(node, ast.ClassDef)
        above = [dotted(base).rpartition(".")[2] for base in node.bases]
        above += [
            dotted(base.value).rpartition(".")[2]
            for base in node.bases
            if isinstance(base, ast.Subscript)
        ]
        if members := _members(found):
            return members
        if set(above) & set(_MAPPINGS):
            return {"type": "mapping", "items": {"type": "any"}}
        if is_typed_dict(found) or _is_options(found):
            return {"type": "record", "of": self.record(found)}
        return dict(_OBJECT)

    def _default(self, node: ast.AST | None, module: Module) -> Row:
        """`default` if the source has it as a constant, else `default_factory`."""
        if node is None:
            return {"required": True}
        if isinstance(node, ast.Call):
            return self._called_default(node, module)
        if isinstance(node, ast.Attribute) and (owner := module.class_of(dotted(node.value))):
            return self.default_of(owner, node.attr)
        return _written(module.value(node), node)

    def _called_default(self, node: ast.Call, module: Module) -> Row:
        given = {word.arg: word.value for word in node.keywords}
        called = dotted(node.func).rpartition(".")[2]
        if called == "get_field" and len(node.args) == 2:
            owner, name = module.class_of(dotted(node.args[0])), module.value(node.args[1])
            return self.default_of(owner, name) if owner else {}
        if called not in ("Field", "field"):
            return _written(module.value(node), node)
        if node.args:
            return _written(module.value(node.args[0]), node.args[0])
        if "default" in given:
            return self._default(given["default"], module)
        if factory := given.get("default_factory"):
            body = factory.body if isinstance(factory, ast.Lambda) else None
            made = _EMPTY_FACTORIES.get(dotted(factory), module.value(body))
            return _written(made, body or factory)
        return {"required": True}

    def default_of(self, owner: Name, name: str) -> Row:
        """The default of an option of a class, or the value of a member of an enumeration."""
        if (members := _members(owner)) is not None:
            return {"default": name} if name in members["values"] else {}
        where = declared(owner).get(name)
        found = self._default(where.statement.value, where.module) if where else {}
        return {key: value for key, value in found.items() if key != "required"}


_EMPTY_FACTORIES: Mapping[str, Any] = {"list": [], "dict": {}, "set": []}


@dataclass(frozen=True, slots=True)
class Declared:
    """An annotated name of a class, in the module of that class, and the text that follows it."""

    statement: ast.AnnAssign
    module: Module
    text: str


def declared(found: Name) -> dict[str, Declared]:
    """Annotated names of a class and its bases, inherited ones first."""
    node, rows = found.node, dict[str, Declared]()
    assert isinstance(node, ast.ClassDef)
    for base in node.bases:
        if (above := found.module.class_of(dotted(base))) and above.node is not node:
            rows |= declared(above)
    for statement, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = after.value if isinstance(after, ast.Expr) else None
            said = str(text.value) if isinstance(text, ast.Constant) else ""
            rows[statement.target.id] = Declared(statement, found.module, said)
    return rows


def is_typed_dict(found: Name) -> bool:
    assert isinstance(found.node, ast.ClassDef)
    return any(dotted(base).endswith("TypedDict") for base in found.node.bases)


def _is_options(found: Name) -> bool:
    """Whether a class is a group of options: decorated, or a pydantic model."""
    node = found.node
    assert isinstance(node, ast.ClassDef)
    marks = [mark.func if isinstance(mark, ast.Call) else mark for mark in node.decorator_list]
    if {dotted(mark).rpartition(".")[2] for mark in marks} & {"config", "dataclass"}:
        return True
    bases = [dotted(base) for base in node.bases]
    above = [found.module.class_of(base) for base in bases]
    models = any(base.rpartition(".")[2] == "BaseModel" for base in bases)
    return models or any(_is_options(one) for one in above if one and one.node is not node)


def _members(found: Name) -> Row | None:
    """An enumeration, by the names of its members and by plain values; `None` for other classes."""
    node = found.node
    assert isinstance(node, ast.ClassDef)
    if not any(dotted(base) in _ENUMS for base in node.bases):
        return None
    values: list[Any] = []
    for statement in node.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name, value = statement.targets[0].id, found.module.value(statement.value)
            plain = isinstance(value, int) or (isinstance(value, str) and "." not in value)
            values += (
                [] if name.startswith("_") else [name, *([value] if plain and value != "" else [])]
            )
    kept = list(dict.fromkeys(values))
    return {"type": "enum", "values": kept, "case_insensitive": True} if kept else None


def _literals(nodes: list[ast.expr], module: Module) -> Iterator[Any]:
    """The values of a literal, with those of the literals that it names."""
    for node in nodes:
        inner = node.value if isinstance(node, ast.Starred) else node
        if isinstance(inner, ast.Call) and dotted(inner.func).endswith("get_args"):
            inner = inner.args[0]
        if isinstance(inner, ast.Subscript):
            elements = inner.slice.elts if isinstance(inner.slice, ast.Tuple) else [inner.slice]
            yield from _literals(elements, module)
        elif isinstance(inner, ast.Name | ast.Attribute) and (
            found := module.lookup(dotted(inner))
        ):
            if value := getattr(found.node, "value", None):
                yield from _literals([value], found.module)
        elif (value := module.value(inner)) is not UNKNOWN and value is not None:
            yield value


def _merged(rows: list[Row]) -> Row:
    """One row for several alternatives: all their values, and `open` if one is text."""
    enums = [row for row in rows if row["type"] == "enum"]
    rest = [row for row in rows if row["type"] != "enum"]
    if enums:
        values = list(dict.fromkeys(chain.from_iterable(row["values"] for row in enums)))
        one: Row = {**enums[0], "values": values}
        if {"type": "str"} in rest:
            one["open"] = True
            rest.remove({"type": "str"})
        rest.insert(0, one)
    return dict(rest[0]) if len(rest) == 1 else {"type": "either", "of": rest}


def _is_no_option(statement: ast.AnnAssign) -> bool:
    """What is made by the class itself: class variables, and fields that `__init__` lacks."""
    annotation = statement.annotation
    head = dotted(annotation.value if isinstance(annotation, ast.Subscript) else annotation)
    if head.rpartition(".")[2] in ("ClassVar", "InitVar"):
        return True
    words = statement.value.keywords if isinstance(statement.value, ast.Call) else []
    return any(word.arg == "init" and getattr(word.value, "value", True) is False for word in words)


def _bounds(statement: ast.AnnAssign, module: Module) -> Row:
    value = statement.value
    if isinstance(value, ast.Call) and dotted(value.func).rpartition(".")[2] == "Field":
        return _limits(value, module)
    return {}


def _annotated(nodes: list[ast.expr], module: Module) -> Row:
    limits: Row = {}
    for node in nodes:
        if isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] == "Field":
            limits |= _limits(node, module)
    return limits


def _limits(node: ast.Call, module: Module) -> Row:
    found = {word.arg: module.value(word.value) for word in node.keywords if word.arg in _BOUNDS}
    return {str(key): value for key, value in found.items() if isinstance(value, int | float)}


def _written(value: Any, node: ast.AST) -> Row:
    if value is UNKNOWN:
        text = ast.unparse(node)
        return {"default_factory": text if len(text) <= _MAX_FACTORY else "made at the start"}
    if isinstance(value, tuple | set | frozenset):
        value = list(value)
    return {"default": value}
