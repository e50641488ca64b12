"""Reads Python source without running it: names, constants and classes of a package or a wheel.

Names are looked up through imports within the same package.
"""

from __future__ import annotations

import ast
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from ...diagnostics import Diagnostic
from ...errors import BadFacts, BadInput

MAX_BYTES = 20_000_000  # of one module; an engine's largest module has a hundredth of it
MAX_IMPORTS = 20  # from a name to its definition

UNKNOWN: Final[Any] = object()
"""The value of an expression that only running it could tell."""


@dataclass(frozen=True, slots=True)
class Name:
    """The definition of a name: a statement, or a value, in its module."""

    node: ast.AST
    module: Module


class Sources:
    """The modules of one top-level package in a folder of packages, or in a wheel."""

    def __init__(self, path: Path, package: str) -> None:
        self.path, self.package = path, package
        self._modules: dict[str, Module | None] = {}
        if path.is_dir():
            self._wheel = None
            return
        try:
            self._wheel = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile) as error:
            what, remedy = f"cannot be read: {error}", "give a wheel, or a folder of packages"
            raise BadInput(Diagnostic(str(path), what, remedy)) from None

    def version(self) -> str:
        """The version in the metadata of the distribution that holds the package."""
        for name in self._names():
            folder, _, file = name.rpartition("/")
            if folder.endswith(".dist-info") and file == "METADATA" and "/" not in folder:
                top = folder.removesuffix(".dist-info").rpartition("-")
                if top[0].replace("-", "_").startswith(self.package):
                    return top[2]
        what = f"holds no {self.package}"
        raise BadFacts(Diagnostic(str(self.path), what, "give the engine's wheel or its folder"))

    def module(self, name: str) -> Module | None:
        """A module by its dotted name; `None` outside the package or if it is missing."""
        if name not in self._modules:
            self._modules[name] = self._parsed(name)
        return self._modules[name]

    def below(self, package: str) -> Iterator[Module]:
        """Every module of a package, at any depth."""
        folder = package.replace(".", "/") + "/"
        for file in sorted(self._files(folder)):
            if file.endswith(".py"):
                name = file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
                if (found := self.module(name)) is not None:
                    yield found

    def needed(self, name: str) -> Module:
        """A module that must exist; raises `BadFacts` if it is missing."""
        if (found := self.module(name)) is None:
            what = f"has no module {name}"
            raise BadFacts(Diagnostic(str(self.path), what, "this release is laid out otherwise"))
        return found

    def _parsed(self, name: str) -> Module | None:
        if name.partition(".")[0] != self.package:
            return None
        path = name.replace(".", "/")
        for file, package in (
            (f"{path}.py", name.rpartition(".")[0]),
            (f"{path}/__init__.py", name),
        ):
            if (text := self._text(file)) is not None:
                try:
                    return Module(self, name, package, ast.parse(text))
                except (SyntaxError, ValueError, RecursionError) as error:
                    what, remedy = f"{file} cannot be parsed: {error}", "give a released wheel"
                    raise BadFacts(Diagnostic(str(self.path), what, remedy)) from None
        return None

    def _text(self, file: str) -> str | None:
        try:
            if self._wheel is None:
                path = self.path / file
                return path.read_text(encoding="utf-8") if path.is_file() else None
            if (
                file not in self._wheel.NameToInfo
                or self._wheel.getinfo(file).file_size > MAX_BYTES
            ):
                return None
            return self._wheel.read(file).decode("utf-8")
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            what, remedy = f"{file} cannot be read: {error}", "give a whole wheel"
            raise BadFacts(Diagnostic(str(self.path), what, remedy)) from None

    def _files(self, folder: str) -> Iterator[str]:
        if self._wheel is not None:
            yield from (name for name in self._wheel.namelist() if name.startswith(folder))
        else:
            for path in (self.path / folder).rglob("*.py"):
                yield path.relative_to(self.path).as_posix()

    def _names(self) -> Iterator[str]:
        if self._wheel is not None:
            yield from self._wheel.namelist()
        else:
            for folder in sorted(self.path.glob("*.dist-info")):
                yield f"{folder.name}/METADATA"


class Module:
    """A parsed module: definitions of its names, and values of its expressions."""

    def __init__(self, sources: Sources, name: str, package: str, tree: ast.Module) -> None:
        self.sources, self.name, self._package, self.tree = sources, name, package, tree

    @cached_property
    def _bound(self) -> Mapping[str, ast.AST]:
        """The statement that binds each name, the first if there are several, including those under
        `if`."""
        found: dict[str, ast.AST] = {}
        for node in _statements(self.tree.body):
            for name in _binds(node):
                found.setdefault(name, node)
        return found

    def lookup(self, name: str, steps: int = 0) -> Name | None:
        """The definition of a name, which may be dotted, in this module."""
        head, _, rest = name.partition(".")
        node = self._bound.get(head)
        if node is None or steps > MAX_IMPORTS:
            return None
        if isinstance(node, ast.ImportFrom):
            alias = next(one for one in node.names if (one.asname or one.name) == head)
            return self._imported(self._absolute(node), alias.name, rest, steps)
        if isinstance(node, ast.Import):
            alias = next(one for one in node.names if (one.asname or one.name) == head)
            module, _, last = rest.rpartition(".")
            found = self.sources.module(".".join(filter(None, (alias.name, module))))
            return found.lookup(last, steps + 1) if found and last else None
        return None if rest else Name(node, self)

    def _imported(self, module: str, name: str, rest: str, steps: int) -> Name | None:
        if (inner := self.sources.module(f"{module}.{name}")) is not None:
            return inner.lookup(rest, steps + 1) if rest else None
        source = self.sources.module(module)
        return source.lookup(f"{name}.{rest}" if rest else name, steps + 1) if source else None

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self._package.split(".")
        parts = parts[: len(parts) - node.level + 1]
        return ".".join([*parts, *([node.module] if node.module else [])])

    def class_of(self, name: str) -> Name | None:
        found = self.lookup(name)
        return found if found and isinstance(found.node, ast.ClassDef) else None

    def needed_class(self, name: str) -> Name:
        """A class that must exist; raises `BadFacts` if it is missing."""
        if (found := self.class_of(name)) is None:
            what = f"{self.name} has no class {name}"
            remedy = "this release is laid out otherwise"
            raise BadFacts(Diagnostic(str(self.sources.path), what, remedy))
        return found

    def value(self, node: ast.AST | None) -> Any:
        """The value of an expression of constants, or `UNKNOWN`."""
        if node is None:
            return UNKNOWN
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            pass
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Pow | ast.LShift):
            sides = [self.value(node.left), self.value(node.right)]
            if all(type(side) is int and abs(side) < 2**31 for side in sides):
                return _COMPUTE[type(node.op)](*sides)
        if isinstance(node, ast.Name | ast.Attribute) and (name := dotted(node)):
            return self._value_of_name(name)
        if isinstance(node, ast.Call) and not node.args and not node.keywords:
            return _EMPTY.get(dotted(node.func), UNKNOWN)
        return UNKNOWN

    def _value_of_name(self, name: str) -> Any:
        found = self.lookup(name)
        if found and isinstance(found.node, ast.Assign | ast.AnnAssign):
            return found.module.value(found.node.value)
        return UNKNOWN


_COMPUTE: Mapping[type, Any] = {
    ast.Mult: lambda left, right: left * right,
    ast.Pow: lambda left, right: left**right if 0 <= right <= 64 else UNKNOWN,
    ast.LShift: lambda left, right: left << right if 0 <= right <= 64 else UNKNOWN,
}
_EMPTY: Mapping[str, Any] = {"list": [], "dict": {}, "set": [], "tuple": []}


def dotted(node: ast.AST) -> str:
    """The dotted name that an expression is, empty for any other one."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        above = dotted(node.value)
        return f"{above}.{node.attr}" if above else ""
    return ""


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        for part in ("body", "orelse", "handlers", "finalbody"):
            if isinstance(node, ast.If | ast.Try | ast.With):
                for inner in getattr(node, part, ()):
                    yield from _statements(
                        inner.body if isinstance(inner, ast.ExceptHandler) else [inner]
                    )


def _binds(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        for alias in node.names:
            yield alias.asname or alias.name
    elif isinstance(node, ast.Assign):
        yield from (dotted(target) for target in node.targets if isinstance(target, ast.Name))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id
