"""Reads the engine options in Python programs that use an engine's API, without running them.

An argument is read if it is a literal, a name with a single value, or a call of an option class.
Any other argument is treated as unknown.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...diagnostics import Location
from ...documents import START, Variable, Yaml
from ...facts import engines
from ...facts.engines import Engine
from ...facts.release import Release
from ..engine import formats
from ..model import OptionsBlock, below

KIND = "LLM API program"
_USE = re.compile(r"\b\w*(?:LLM|LlmArgs|EngineArgs|LLMConfig|EngineProcessorConfig)\s*\(")
_WRAPPER = re.compile(r"\bray\.(?:serve|data)\.llm\b")  # does not name the engine
MAX_DEPTH = 20
MOST_VALUES = 10_000  # limit per program: nested lists of one name double at every level


@dataclass(frozen=True, slots=True)
class Api:
    """The Python API of an engine. `engines` are the classes of `package` that take engine options.
    `others` are modules of the package with classes of the same names that take other options."""

    package: str
    engines: tuple[str, ...]
    others: tuple[str, ...] = ()


def api_of(engine: Engine) -> Api:
    """Returns the classes of an engine that take its options."""
    known = formats(engine.name)
    return Api(engine.module, known.python_classes, known.python_others)


def may_be_program(text: str) -> bool:
    """Returns whether a text can be a program that uses an engine's LLM API."""
    if _USE.search(text) is None:
        return False
    return engines.are_mentioned(text) or _WRAPPER.search(text) is not None


def sections(
    text: str, release: Release, start: Location = START, api: Api | None = None
) -> list[OptionsBlock] | None:
    """Returns the options of each engine object, or `None` if the text is not valid Python.
    Locations count from `start`, where the program begins."""
    tree = parsed(text)
    if tree is None:
        return None
    return list(_Program(tree, release, start, api or api_of(release.engine)).sections())


def parsed(text: str) -> ast.Module | None:
    """Parses a program; returns `None` if it is not valid Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # about escapes in the program's strings
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


class _Program:
    """Reads a program by its imports and the values of its names."""

    def __init__(self, tree: ast.Module, release: Release, start: Location, api: Api) -> None:
        self._tree, self._release, self._start, self._api = tree, release, start, api
        self._modules: set[str] = set()
        self._names: dict[str, str] = {}
        self._values: dict[str, list[ast.expr | None]] = {}
        self._left = MOST_VALUES
        for node in ast.walk(tree):
            self._read(node)

    def sections(self) -> Iterator[OptionsBlock]:
        calls = [node for node in ast.walk(self._tree) if isinstance(node, ast.Call)]
        engines = [node for node in calls if self._class(node.func) in self._api.engines]
        for node in engines:
            yield self._section(node)

    def _read(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for row in node.names:
                if self._is_of(row.name):
                    self._modules.add(row.asname or self._api.package)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if self._is_of(module):
                self._names.update({row.asname or row.name: row.name for row in node.names})
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                self._set(target, node.value)
        elif isinstance(node, ast.AnnAssign) and node.value:
            self._set(node.target, node.value)
        elif isinstance(node, ast.AugAssign | ast.For | ast.NamedExpr | ast.comprehension):
            self._set(node.target, None)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            arguments = node.args
            for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                self._values.setdefault(each.arg, []).append(None)

    def _is_of(self, module: str) -> bool:
        """Returns whether the classes of a module belong to the engine."""
        own = module.partition(".")[0] == self._api.package
        return own and not module.startswith(self._api.others)

    def _set(self, target: ast.expr, value: ast.expr | None) -> None:
        """Records the value of a name; a value that is modified in place becomes unknown."""
        if isinstance(target, ast.Tuple | ast.List):
            for each in target.elts:
                self._set(each, None)
        elif isinstance(target, ast.Name):
            self._values.setdefault(target.id, []).append(value)
        elif isinstance(target, ast.Subscript | ast.Attribute) and isinstance(
            target.value, ast.Name
        ):
            self._values.setdefault(target.value.id, []).append(None)

    def _class(self, function: ast.expr) -> str:
        """Returns the class of the engine's package that a call uses; empty for any other call."""
        if isinstance(function, ast.Name):
            return self._names.get(function.id, "")
        path = ast.unparse(function) if isinstance(function, ast.Attribute) else ""
        first, _, rest = path.partition(".")
        if not rest or not self._is_of(f"{self._api.package}.{rest}"):
            return ""
        inside = first in self._modules or first in self._names
        return rest.rpartition(".")[2] if inside else ""

    def _section(self, call: ast.Call) -> OptionsBlock:
        document = Yaml({}, {"": self._place(call)})
        options: dict[str, Any] = {}
        if call.args and not isinstance(call.args[0], ast.Starred):
            options["model"] = self._value(call.args[0], "model", document, 0)
            document.places["model"] = self._place(call.args[0])
        is_open = self._arguments(call, "", options, document, 0)
        return OptionsBlock(options, document, is_open=is_open)

    def _arguments(
        self, call: ast.Call, path: str, options: dict[str, Any], document: Yaml, depth: int
    ) -> bool:
        """Reads the keyword arguments of a call; returns whether there may be more of them."""
        is_open = False
        for keyword in call.keywords:
            if keyword.arg is None:
                given = self._known(keyword.value)
                if isinstance(given, ast.Dict) or self._is_dict_call(given):
                    found = self._value(given, path, document, depth)
                    options.update(found if isinstance(found, Mapping) else {})
                else:
                    is_open = True
            else:
                inner = below(path, keyword.arg)
                document.places[inner] = self._place(keyword)
                options[keyword.arg] = self._value(keyword.value, inner, document, depth)
        return is_open

    def _value(self, node: ast.expr, path: str, document: Yaml, depth: int) -> Any:
        given, node = node, self._known(node)
        if isinstance(node, ast.Constant | ast.Call) and node is not given:
            document.places[path] = self._place(node)
        self._left -= 1
        if depth > MAX_DEPTH or self._left < 0:
            return Variable(ast.unparse(node))
        if isinstance(node, ast.Dict):
            return self._mapping(node, path, document, depth)
        if isinstance(node, ast.List | ast.Tuple):
            rows = [self._value(row, path, document, depth + 1) for row in node.elts]
            is_known = not any(isinstance(row, Variable) for row in rows)
            return rows if is_known else Variable(ast.unparse(node))
        if isinstance(node, ast.Call):
            return self._constructed(node, path, document, depth)
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError):
            return Variable(ast.unparse(node))

    def _mapping(self, node: ast.Dict, path: str, document: Yaml, depth: int) -> Any:
        data = {}
        for key, item in zip(node.keys, node.values, strict=True):
            if not isinstance(key, ast.Constant):
                return Variable(ast.unparse(node))
            inner = below(path, str(key.value))
            document.places[inner] = self._place(key)
            data[str(key.value)] = self._value(item, inner, document, depth + 1)
        return data

    def _constructed(self, node: ast.Call, path: str, document: Yaml, depth: int) -> Any:
        """Returns the options that a call of an option class sets; a variable for any other
        call."""
        name = self._class(node.func)
        # A class that later became part of a union keeps its name for the union's default member.
        table = self._release.table
        is_options = name in table["types"] or "default" in table["unions"].get(f"{name}Type", {})
        if node.args or not (is_options or self._is_dict_call(node)):
            return Variable(ast.unparse(node))
        options = self._tag(name)
        if self._arguments(node, path, options, document, depth + 1):
            return Variable(ast.unparse(node))
        return options

    def _tag(self, name: str) -> dict[str, Any]:
        """Returns the discriminator option that selects this class in a union."""
        for union in self._release.table["unions"].values():
            for value, member in union["types"].items():
                if member == name:
                    return {union["discriminator"]: value}
        return {}

    def _is_dict_call(self, node: ast.expr) -> bool:
        return (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "dict"
            and not node.args
        )

    def _known(self, node: ast.expr) -> ast.expr:
        """Returns the value of a name that is set exactly once."""
        for _ in range(MAX_DEPTH):
            rows = self._values.get(node.id, []) if isinstance(node, ast.Name) else []
            if len(rows) != 1 or rows[0] is None:
                break
            node = rows[0]
        return node

    def _place(self, node: ast.expr | ast.keyword) -> Location:
        first = node.lineno == 1
        column = node.col_offset + (self._start.column if first else 1)
        return Location(self._start.line + node.lineno - 1, column)
