"""Reads Python programs without running them: engines of an API, written options, started servers.

A value is read if it is a literal, a name that is set once, or a call of an option class. Any other
value is treated as unknown.
"""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

from ...diagnostics import Location
from ...documents import START, Variable, Yaml
from ...facts import engines
from ...facts.engines import Engine
from ...facts.release import Release
from ..engine import default_formats, formats, programs
from ..model import OptionsBlock, Word, below
from .shell import statements
from .yaml_text import SHELL

KIND = "LLM API program"
_USE = re.compile(r"\b\w*(?:LLM|LlmArgs|EngineArgs|LLMConfig|EngineProcessorConfig)\s*\(")
_WRAPPER = re.compile(r"\bray\.(?:serve|data)\.llm\b")  # does not name the engine
MAX_DEPTH = 20
MOST_VALUES = 10_000  # limit per program: nested lists of one name double at every level
_PRINTERS = ("print", "info", "warning", "error", "debug", "exit")
_DUMPS = ("dump", "safe_dump", "dumps")
_LOADS = ("load", "safe_load", "full_load", "loads")
# A library and its write functions. One pattern for both would search a long text again for each
# match of the library's name.
_WRITERS = (
    (re.compile(r"\bya?ml\b"), re.compile(r"\bdump")),
    (re.compile(r"\bjson\b"), re.compile(r"\bdumps?\b")),
)


class Dumped(NamedTuple):
    """A mapping that a program writes as YAML or JSON, with the file name if it is known. `is_open`
    means that the program may add keys, `is_edit` that it adds these to a file that it has read."""

    name: str
    data: Yaml
    is_open: bool
    is_edit: bool


class _Given(NamedTuple):
    """The value that a name, or the item at its `keys`, has after the position `end`; `None` if it
    is unknown."""

    end: tuple[int, int]
    value: ast.expr | None
    keys: tuple[ast.Constant, ...] = ()


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


def may_write(text: str) -> bool:
    """Returns whether a program may write options or start a server."""
    if default_formats().program in text:
        return True
    for library, dump in _WRITERS:
        if (found := library.search(text)) and dump.search(text, found.end()):
            return True
    return False


def may_start(text: str) -> bool:
    """Returns whether a program may start the server of another engine."""
    return _starting().search(text) is not None


@cache
def _starting() -> re.Pattern[str]:
    names = "|".join(re.escape(engines.load(name).module) for name in engines.names())
    return re.compile(rf"\b(?:{names})(?:[\"', \t\n]+serve\b|\.entrypoints\b)")


def sections(text: str, release: Release, api: Api | None = None) -> list[OptionsBlock] | None:
    """Returns the options of each engine object, or `None` if the text is not valid Python."""
    tree = _parsed(text)
    return list(_Engines(tree, release, api or api_of(release.engine)).sections()) if tree else None


def dumped_documents(text: str, start: Location = START, expands: bool = False) -> Iterator[Dumped]:
    """Yields the mappings that a program writes. `expands` means that a shell expands its text,
    which begins at `start`."""
    code = re.sub(SHELL, lambda found: re.sub(r"\W", "_", found[0]), text) if expands else text
    tree, shift = _indented(code)
    if tree is None:
        return
    program = _Program(tree, start, shift)
    for call in program.calls:
        if not call.args or _name_of(call.func) not in _DUMPS:
            continue
        first, *changes = program.latest(call.args[0], call)
        given = first.value
        is_edit = isinstance(given, ast.Call) and _name_of(given.func) in _LOADS
        if given is None or not (isinstance(given, ast.Dict) or (is_edit and changes)):
            continue
        document, is_open = Yaml({}, {"": program.place(given)}), is_edit
        for node in ast.walk(given):
            is_open |= isinstance(node, ast.Dict) and None in node.keys
        if not is_edit:
            document.data = program.value(given, "", document)
        for row in changes:
            is_open |= row.value is None
            program.put(row, document.data, document)
        target = program.latest(call.args[1], call)[0].value if len(call.args) > 1 else None
        yield Dumped(_opened(target), document, is_open, is_edit)


def command_lines(text: str) -> Iterator[list[Word]]:
    """Yields the lists of words and the command lines of servers in a program. Lines that it
    prints or raises are messages and are skipped."""
    tree, shift = _indented(text)
    for node in ast.walk(tree) if tree else ():
        given: Sequence[ast.expr | None] = ()
        if isinstance(node, ast.List | ast.Tuple):
            yield [replace(_word(item, shift), quoted=True) for item in node.elts]
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.Return):
            given = [node.value]
        elif isinstance(node, ast.Call) and _name_of(node.func) not in _PRINTERS:
            given = node.args
        for each in given:
            if isinstance(each, ast.Constant | ast.JoinedStr):
                yield _of_line(each, shift)


def _parsed(text: str) -> ast.Module | None:
    """Parses a program; returns `None` if it is not valid Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # about escapes in the program's strings
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _indented(code: str) -> tuple[ast.Module | None, int]:
    """Parses a program that may be indented; returns the tree and the indentation."""
    dedented = textwrap.dedent(code)
    first, second = (text.lstrip("\n").partition("\n")[0] for text in (code, dedented))
    tree = _parsed(dedented)
    return tree, len(first) - len(second) if tree else 0


class _Program:
    """The calls of a program and the values of its names, in order. The program begins at `start`
    and is indented by `shift` columns."""

    def __init__(self, tree: ast.Module, start: Location = START, shift: int = 0) -> None:
        self._start, self._shift = start, shift
        self._values: dict[str, list[_Given]] = {}
        self._left = MOST_VALUES
        self.calls: list[ast.Call] = []
        for node in ast.walk(tree):
            self._read(node)
        for rows in self._values.values():
            rows.sort(key=lambda row: row.end)

    def _read(self, node: ast.AST) -> None:
        if isinstance(node, ast.Call):
            self.calls.append(node)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                self._set(target, node.value)
        elif isinstance(node, ast.AnnAssign) and node.value:
            self._set(node.target, node.value)
        elif isinstance(node, ast.withitem) and node.optional_vars:
            self._set(node.optional_vars, node.context_expr)
        elif isinstance(node, ast.AugAssign | ast.For | ast.NamedExpr | ast.comprehension):
            self._set(node.target, None)
        elif isinstance(node, ast.Attribute) and node.attr in ("update", "setdefault"):
            self._set(node, None)
        elif isinstance(node, ast.arg):
            self._values.setdefault(node.arg, []).append(_Given(_end(node), None))

    def _set(self, target: ast.expr, value: ast.expr | None) -> None:
        """Records the value of a name or of an item in it."""
        if isinstance(target, ast.Tuple | ast.List):
            for each in target.elts:
                self._set(each, None)
        end, keys = _end(value or target), list[ast.Constant]()
        while isinstance(target, ast.Subscript | ast.Attribute):
            key = target.slice if isinstance(target, ast.Subscript) else None
            if isinstance(key, ast.Constant):
                keys.insert(0, key)
            else:
                keys, value = [ast.Constant("")], None
            target = target.value
        if isinstance(target, ast.Name):
            self._values.setdefault(target.id, []).append(_Given(end, value, tuple(keys)))

    def latest(self, node: ast.expr, call: ast.Call) -> list[_Given]:
        """Returns the value of an argument at a call, and what was set in it since. If no value
        precedes the call, a later one is used: code below a function may set its names."""
        rows = self._values.get(node.id, []) if isinstance(node, ast.Name) else []
        before = bisect_right(rows, (call.lineno, call.col_offset), key=lambda row: row.end)
        for end in (before, len(rows)):
            for first in range(end - 1, -1, -1):
                if not rows[first].keys:
                    return rows[first:end]
        return [_Given(_end(node), node)]

    def put(self, row: _Given, data: dict[str, Any], document: Yaml) -> None:
        """Sets an item in nested mappings."""
        path = ""
        for index, key in enumerate(row.keys):
            name, path = str(key.value), below(path, str(key.value))
            if row.value is None:
                return
            document.places.setdefault(path, self.place(key))
            if index == len(row.keys) - 1:
                document.places[path] = self.place(key)
                data[name] = self.value(row.value, path, document, 1)
            else:
                inner = data.get(name)
                inner = inner if isinstance(inner, dict) else {}
                data[name] = inner
                data = inner

    def known(self, node: ast.expr) -> ast.expr:
        """Returns the value of a name that is set exactly once."""
        for _ in range(MAX_DEPTH):
            rows = self._values.get(node.id, []) if isinstance(node, ast.Name) else []
            value = rows[0].value if len(rows) == 1 and not rows[0].keys else None
            if value is None:
                break
            node = value
        return node

    def value(self, node: ast.expr, path: str, document: Yaml, depth: int = 0) -> Any:
        """Returns an expression as data, and adds the locations of its parts to a document."""
        given, node = node, self.known(node)
        if path not in document.places or (
            isinstance(node, ast.Constant | ast.Call) and node is not given
        ):
            document.places[path] = self.place(node)
        self._left -= 1
        if depth > MAX_DEPTH or self._left < 0:
            return Variable(_source(node))
        if isinstance(node, ast.Dict):
            return self._mapping(node, path, document, depth)
        if isinstance(node, ast.List | ast.Tuple):
            rows = enumerate(node.elts)
            return [self.value(row, f"{path}.{n}", document, depth + 1) for n, row in rows]
        if isinstance(node, ast.Call):
            return self._called(node, path, document, depth)
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return Variable(_source(node))

    def _mapping(self, node: ast.Dict, path: str, document: Yaml, depth: int) -> Any:
        data: dict[str, Any] = {}
        for key, item in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant):
                inner = below(path, str(key.value))
                document.places[inner] = self.place(key)
                data.pop(str(key.value), None)
                data[str(key.value)] = self.value(item, inner, document, depth + 1)
                continue
            more = self.value(item, path, document, depth + 1) if key is None else None
            if isinstance(more, Mapping):
                data |= more
            elif depth:
                return Variable(_source(node))
        return data

    def _called(self, node: ast.Call, path: str, document: Yaml, depth: int) -> Any:
        """Returns the value of a call, which is known for `dict(...)`."""
        if not _is_dict_call(node):
            return Variable(_source(node))
        options: dict[str, Any] = {}
        is_open = self._arguments(node, path, options, document, depth + 1)
        return Variable(_source(node)) if is_open else options

    def _arguments(
        self, call: ast.Call, path: str, options: dict[str, Any], document: Yaml, depth: int
    ) -> bool:
        """Reads the keyword arguments of a call; returns whether there may be more of them."""
        is_open = False
        for keyword in call.keywords:
            if keyword.arg is None:
                given = self.known(keyword.value)
                if isinstance(given, ast.Dict) or _is_dict_call(given):
                    found = self.value(given, path, document, depth)
                    options.update(found if isinstance(found, Mapping) else {})
                else:
                    is_open = True
            else:
                inner = below(path, keyword.arg)
                document.places[inner] = self.place(keyword)
                options[keyword.arg] = self.value(keyword.value, inner, document, depth)
        return is_open

    def place(self, node: ast.expr | ast.keyword) -> Location:
        column = node.col_offset + self._shift
        column += self._start.column if node.lineno == 1 else 1
        return Location(self._start.line + node.lineno - 1, column)


class _Engines(_Program):
    """The engines that a program constructs with the classes of an API."""

    def __init__(self, tree: ast.Module, release: Release, api: Api) -> None:
        self._release, self._api = release, api
        self._modules: set[str] = set()
        self._names: dict[str, str] = {}
        super().__init__(tree)

    def _read(self, node: ast.AST) -> None:
        super()._read(node)
        if isinstance(node, ast.Import):
            for row in node.names:
                if self._is_of(row.name):
                    self._modules.add(row.asname or self._api.package)
        elif isinstance(node, ast.ImportFrom) and self._is_of(node.module or ""):
            self._names.update({row.asname or row.name: row.name for row in node.names})

    def sections(self) -> Iterator[OptionsBlock]:
        for call in self.calls:
            if self._class(call.func) not in self._api.engines:
                continue
            document = Yaml({}, {"": self.place(call)})
            options: dict[str, Any] = {}
            if call.args and not isinstance(call.args[0], ast.Starred):
                options["model"] = self.value(call.args[0], "model", document)
                document.places["model"] = self.place(call.args[0])
            is_open = self._arguments(call, "", options, document, 0)
            yield OptionsBlock(options, document, is_open=is_open)

    def _is_of(self, module: str) -> bool:
        """Returns whether the classes of a module belong to the engine."""
        own = module.partition(".")[0] == self._api.package
        return own and not module.startswith(self._api.others)

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

    def _called(self, node: ast.Call, path: str, document: Yaml, depth: int) -> Any:
        """Returns the options that a call of an option class sets, with the option that selects the
        class in a union."""
        name = self._class(node.func)
        unions = self._release.table["unions"]
        # A class that later became part of a union keeps its name for the union's default member.
        is_options = name in self._release.table["types"]
        is_options = is_options or "default" in unions.get(f"{name}Type", {})
        if node.args or not is_options:
            return super()._called(node, path, document, depth)
        options: dict[str, Any] = {}
        for union in unions.values():
            for value, member in union["types"].items():
                if member == name and not options:
                    options[union["discriminator"]] = value
        is_open = self._arguments(node, path, options, document, depth + 1)
        return Variable(_source(node)) if is_open else options


def _is_dict_call(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and _source(node.func) == "dict" and not node.args


def _end(node: ast.expr | ast.arg) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or node.col_offset


def _opened(node: ast.expr | None) -> str:
    """Returns the literal path that an expression opens, or an empty string."""
    if not isinstance(node, ast.Call) or _name_of(node.func) not in ("open", "Path"):
        return ""
    holder = getattr(node.func, "value", None)
    given = holder.args if isinstance(holder, ast.Call) else node.args
    is_path = holder is None or isinstance(holder, ast.Call) or len(given) > 1
    path = given[0] if given and is_path else None
    return path.value if isinstance(path, ast.Constant) and isinstance(path.value, str) else ""


def _source(node: ast.expr) -> str:
    try:
        return ast.unparse(node)
    except (ValueError, RecursionError):  # a huge number, or a sum of thousands of terms
        return "..."


def _word(node: ast.expr, shift: int) -> Word:
    place = Location(node.lineno, node.col_offset + shift + 1)
    certain = isinstance(node, ast.Constant)
    source = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
    text = source or (_source(node) if certain else f"${{{_source(node)}}}")
    return Word(text, place, certain)


def _of_line(node: ast.Constant | ast.JoinedStr, shift: int) -> list[Word]:
    """Returns the words of a command line; values that are filled in are shell variables."""
    text = ""
    for part in node.values if isinstance(node, ast.JoinedStr) else [node]:
        text += str(part.value) if isinstance(part, ast.Constant) else "${_}"
    if not re.match(rf"\s*(?:[^\s=]+=\S*\s+)*(?:{'|'.join(programs())})\s", text):
        return []
    place = Location(node.lineno, node.col_offset + shift + 1)
    rows = statements(text)
    return [Word(word.text, place, word.certain) for word in rows[0].words] if rows else []


def _name_of(function: ast.expr) -> str:
    return str(getattr(function, "attr", getattr(function, "id", "")))
