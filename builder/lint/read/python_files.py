"""Reads the options that a Python program writes and the servers that it starts, without running
it."""

from __future__ import annotations

import ast
import re
import textwrap
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from ...diagnostics import Location
from ...documents import START, Variable, Yaml
from ...facts import engines
from ..engine import default_formats, programs
from ..model import Word
from .python_api import parsed
from .shell import statements
from .yaml_text import SHELL

_PRINTERS = ("print", "info", "warning", "error", "debug", "exit")
_DUMPS = ("dump", "safe_dump", "dumps")
_LOADS = ("load", "safe_load", "full_load", "loads")
_MOST_UNPACKED = 20
# A library and its write functions. One pattern for both would search a long text again for each
# match of the library's name.
_WRITERS = (
    (re.compile(r"\bya?ml\b"), re.compile(r"\bdump")),
    (re.compile(r"\bjson\b"), re.compile(r"\bdumps?\b")),
)


@dataclass(frozen=True, slots=True)
class _Given:
    """The value that a name, or the item at its `keys`, has after the position `end`."""

    end: tuple[int, int]
    keys: tuple[ast.Constant, ...]
    value: ast.expr


@dataclass(frozen=True, slots=True)
class Dumped:
    """A mapping that a program writes as YAML or JSON, with the file name if it is known.

    `is_open` means that the program may add keys, `is_edit` that the mapping is merged into a file
    that the program has read.
    """

    name: str
    data: Yaml
    is_open: bool
    is_edit: bool = False


def may_write(text: str) -> bool:
    """Returns whether a program may write options or start a server."""
    if default_formats().program in text:
        return True
    return any(
        (found := library.search(text)) is not None and dump.search(text, found.end()) is not None
        for library, dump in _WRITERS
    )


def dumped_documents(text: str, start: Location = START, expands: bool = False) -> Iterator[Dumped]:
    """Yields the literal mappings that a program writes, with the location of each key."""
    code = SHELL.sub(_as_name, text) if expands else text
    tree, shift = _parsed(code)
    if tree is None:
        return
    names = _names(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args or _name_of(node.func) not in _DUMPS:
            continue
        name = _source(node.args[0])
        is_open = re.search(rf"\b{re.escape(name)}\.(?:update|setdefault)\(", code) is not None
        is_edit = any(_is_read(row.value) for row in names.get(name, []))
        given = _meant(node.args[0], node, names)
        if isinstance(given, ast.Dict):
            document = Yaml()
            given = _unpacked(given, node, names)
            document.data = _value(given, "", document, start, shift)
            is_open |= any(None in row.keys for row in ast.walk(given) if isinstance(row, ast.Dict))
            target = _meant(node.args[1], node, names) if len(node.args) > 1 else None
            yield Dumped(_opened(target), document, is_open or is_edit, is_edit=is_edit)


def command_lines(text: str) -> Iterator[list[Word]]:
    """Yields the lists of words and the command lines of servers in a program. Lines that it
    prints or raises are messages and are skipped."""
    tree, shift = _parsed(text)
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


def may_start(text: str) -> bool:
    """Returns whether a program may start the server of another engine."""
    return _starting().search(text) is not None


@cache
def _starting() -> re.Pattern[str]:
    names = "|".join(re.escape(engines.load(name).module) for name in engines.names())
    return re.compile(rf"\b(?:{names})(?:[\"', \t\n]+serve\b|\.entrypoints\b)")


def _parsed(code: str) -> tuple[ast.Module | None, int]:
    """Parses a program; returns the tree, or `None` if it is not valid Python, and its
    indentation."""
    dedented = textwrap.dedent(code)
    first, second = (text.lstrip("\n").partition("\n")[0] for text in (code, dedented))
    tree = parsed(dedented)
    return tree, len(first) - len(second) if tree else 0


def _names(tree: ast.Module) -> dict[str, list[_Given]]:
    """Returns the values of each name, in program order."""
    found: dict[str, list[_Given]] = defaultdict(list)
    for node in ast.walk(tree):
        rows: list[tuple[ast.expr | None, ast.expr | None]] = []
        if isinstance(node, ast.Assign):
            rows = [(target, node.value) for target in node.targets]
        elif isinstance(node, ast.AnnAssign):
            rows = [(node.target, node.value)]
        elif isinstance(node, ast.With | ast.AsyncWith):
            rows = [(item.optional_vars, item.context_expr) for item in node.items]
        for target, value in rows:
            holder, keys = _set_in(target)
            if isinstance(holder, ast.Name) and value:
                found[holder.id].append(_Given(_end(value), keys, value))
    return {name: sorted(rows, key=lambda row: row.end) for name, rows in found.items()}


def _set_in(target: ast.expr | None) -> tuple[ast.expr | None, tuple[ast.Constant, ...]]:
    """Returns the object that an assignment changes and the keys of the changed item."""
    keys: list[ast.Constant] = []
    while isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
        keys.insert(0, target.slice)
        target = target.value
    return target, tuple(keys)


def _is_read(value: ast.expr) -> bool:
    """Returns whether a value is loaded from a file."""
    return isinstance(value, ast.Call) and _name_of(value.func) in _LOADS


class _Keys(dict[Any, "ast.expr | _Keys"]):
    """The values of a mapping by key, with their nodes; more keys can be set."""

    def __init__(self, node: ast.Dict) -> None:
        super().__init__()
        self._node, self._nodes = node, dict[Any, ast.expr | None]()
        for n, (key, value) in enumerate(zip(node.keys, node.values, strict=True)):
            self._set(key.value if isinstance(key, ast.Constant) else (n, key), key, value)

    def put(self, keys: Sequence[ast.Constant], value: ast.expr) -> None:
        """Sets a value; nested mappings are copied first, because other objects may share them."""
        inside = self
        for key in keys[:-1]:
            known = inside.get(key.value)
            if not isinstance(known, _Keys):
                empty = ast.copy_location(ast.Dict([], []), key)
                known = _Keys(known if isinstance(known, ast.Dict) else empty)
                inside._set(key.value, key, known)
            inside = known
        inside._set(keys[-1].value, keys[-1], value)

    def _set(self, name: Any, key: ast.expr | None, value: ast.expr | _Keys) -> None:
        self.pop(name, None)  # keeps the order of assignment
        self[name], self._nodes[name] = value, key

    def node(self) -> ast.Dict:
        values = [row.node() if isinstance(row, _Keys) else row for row in self.values()]
        return ast.copy_location(ast.Dict([self._nodes[name] for name in self], values), self._node)


def _meant(node: ast.expr, call: ast.Call, names: Mapping[str, list[_Given]]) -> ast.expr:
    """Returns the latest value of an argument's name, with the keys that were set in it since. If
    no value precedes the call, a later one is used: code below a function may set its names."""
    rows = names.get(node.id, []) if isinstance(node, ast.Name) else []
    before = bisect_right(rows, (call.lineno, call.col_offset), key=lambda row: row.end)
    for end in (before, len(rows)):
        first = next((n for n in range(end - 1, -1, -1) if not rows[n].keys), None)
        if first is None:
            continue
        value = rows[first].value
        if _is_read(value) and end > first + 1:
            value = ast.copy_location(ast.Dict([], []), value)
        if not isinstance(value, ast.Dict) or end == first + 1:
            return value
        # A copy: the program may write the same mapping before and after it sets a key.
        whole = _Keys(value)
        for row in rows[first + 1 : end]:
            whole.put(row.keys, row.value)
        return whole.node()
    return node


def _unpacked(given: ast.Dict, call: ast.Call, names: Mapping[str, list[_Given]]) -> ast.Dict:
    """Expands `**name` in a mapping; a later key overrides an earlier one."""
    rows: dict[str, tuple[ast.expr | None, ast.expr]] = {}
    pending = list(zip(given.keys, given.values, strict=True))
    for _ in range(_MOST_UNPACKED):
        at = next((n for n, (key, _) in enumerate(pending) if key is None), None)
        if at is None:
            break
        inner = _meant(pending[at][1], call, names)
        if not isinstance(inner, ast.Dict):
            break
        pending[at : at + 1] = zip(inner.keys, inner.values, strict=True)
    for key, value in pending:
        name = str(key.value) if isinstance(key, ast.Constant) else f"**{len(rows)}"
        rows.pop(name, None)
        rows[name] = key, value
    whole = ast.Dict([key for key, _ in rows.values()], [value for _, value in rows.values()])
    return ast.copy_location(whole, given)


def _end(node: ast.expr) -> tuple[int, int]:
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


def _as_name(found: re.Match[str]) -> str:
    """Turns a shell variable into a Python name of the same length."""
    return re.sub(r"\W", "_", found[0])


def _name_of(function: ast.expr) -> str:
    return str(getattr(function, "attr", getattr(function, "id", "")))


def _value(node: ast.expr, path: str, document: Yaml, start: Location, shift: int) -> Any:
    column = node.col_offset + shift + (start.column if node.lineno == 1 else 1)
    document.places.setdefault(path, Location(start.line + node.lineno - 1, column))
    if isinstance(node, ast.Dict):
        data = {}
        for key, item in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant):
                inner = f"{path}.{key.value!s}" if path else str(key.value)
                column = key.col_offset + shift + (start.column if key.lineno == 1 else 1)
                document.places[inner] = Location(start.line + key.lineno - 1, column)
                data[str(key.value)] = _value(item, inner, document, start, shift)
        return data
    if isinstance(node, ast.List | ast.Tuple):
        return [
            _value(item, f"{path}.{index}", document, start, shift)
            for index, item in enumerate(node.elts)
        ]
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return Variable(_source(node))
