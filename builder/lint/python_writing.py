"""What a Python program does without the LLM API: the options that it writes, and the servers that
it starts. Nothing is run; what is not literal is a value that is put in later."""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..diagnostics import Location
from ..documents import START, Variable, Yaml
from .script import Script, Word, is_server, statements
from .variables import SHELL

_DUMPS = ("dump", "safe_dump", "dumps")
_WRITES = re.compile(r"\bya?ml\b.*\bdump|\bjson\b.*\bdumps?\b", re.S)


@dataclass(frozen=True, slots=True)
class Dumped:
    """A mapping that a program writes as YAML or JSON, and the file's name where that is known.

    `is_open` if the program may put more into it.
    """

    name: str
    data: Yaml
    is_open: bool


def may_hold(text: str) -> bool:
    """Whether a program may write options or start a server."""
    return _WRITES.search(text) is not None or "trtllm-serve" in text


def documents(text: str, start: Location = START, expands: bool = False) -> Iterator[Dumped]:
    """The mappings that a program writes, as far as they are literal, each with its places."""
    code = SHELL.sub(_as_name, text) if expands else text
    tree, shift = _parsed(code)
    if tree is None:
        return
    known, files = _literals(tree), _opened(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args or _name_of(node.func) not in _DUMPS:
            continue
        given = node.args[0]
        name = ast.unparse(given)
        is_open = re.search(rf"\b{re.escape(name)}\.(?:update|setdefault)\(", code) is not None
        if isinstance(given, ast.Name):
            given = known.get(given.id, given)
        if isinstance(given, ast.Dict):
            document = Yaml()
            document.data = _value(given, "", document, start, shift)
            target = node.args[1] if len(node.args) > 1 else None
            is_open |= any(None in row.keys for row in ast.walk(given) if isinstance(row, ast.Dict))
            name = files.get(ast.unparse(target), "") if target else ""
            yield Dumped(name, document, is_open)


def started(text: str) -> Script:
    """The servers that a program starts, by a list of words or by a line for the shell."""
    tree, shift = _parsed(text)
    found: list[list[Word]] = []
    starts: list[Location] = []
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.List | ast.Tuple):
            words = [_word(item, shift) for item in node.elts]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = _of_line(node, shift)
        else:
            continue
        at = next((n for n, word in enumerate(words) if is_server(word.text)), None)
        if at is not None and len(words) > 1:
            found.append(words[at + 1 :])
            starts.append(words[at].location)
    return Script(found, starts=starts)


def _parsed(code: str) -> tuple[ast.Module | None, int]:
    """The program, and the columns that all of it is indented by; `None` if it is no Python."""
    dedented = textwrap.dedent(code)
    first, second = (text.lstrip("\n").partition("\n")[0] for text in (code, dedented))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # of escapes in the program's texts
            return ast.parse(dedented), len(first) - len(second)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None, 0


def _literals(tree: ast.Module) -> dict[str, ast.expr]:
    """The last value of each name, with the keys that are set in it one by one."""
    known: dict[str, ast.expr] = {}
    rows = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    for node in sorted(rows, key=lambda row: row.lineno):
        target = node.targets[0]
        if isinstance(target, ast.Name):
            known[target.id] = node.value
        elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            holder = known.get(target.value.id)
            if isinstance(holder, ast.Dict) and isinstance(target.slice, ast.Constant):
                holder.keys.append(target.slice)
                holder.values.append(node.value)
    return known


def _opened(tree: ast.Module) -> dict[str, str]:
    """The files that a program opens, by the name that each has there."""
    found = {}
    for node in ast.walk(tree):
        for item in node.items if isinstance(node, ast.With) else ():
            call, target = item.context_expr, item.optional_vars
            if isinstance(call, ast.Call) and isinstance(target, ast.Name) and call.args:
                path = call.args[0]
                if isinstance(path, ast.Constant) and isinstance(path.value, str):
                    found[target.id] = path.value
    return found


def _word(node: ast.expr, shift: int) -> Word:
    place = Location(node.lineno, node.col_offset + shift + 1)
    certain = isinstance(node, ast.Constant)
    text = str(node.value) if isinstance(node, ast.Constant) else f"${{{ast.unparse(node)}}}"
    return Word(text, place, certain)


def _of_line(node: ast.Constant, shift: int) -> list[Word]:
    text = str(node.value)
    if not re.match(r"\s*(?:\S+=\S+\s+)*trtllm-serve\s", text):
        return []
    place = Location(node.lineno, node.col_offset + shift + 1)
    rows = statements(text)
    return [Word(word.text, place, word.certain) for word in rows[0].words] if rows else []


def _as_name(found: re.Match[str]) -> str:
    """A variable of the shell as a name of Python, as long as it was."""
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
    except ValueError:
        return Variable(ast.unparse(node))
