"""Texts of several lines that a Python program writes into a file, each line with its place."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from ..diagnostics import Location
from ..documents import Yaml
from .variables import SHELL, MaskedText

Meaning = Callable[[ast.expr, ast.Call], ast.expr]
"""What an argument of a call stands for."""

_WRITES = ("write", "write_text", "writelines", "print", "safe_load")
_SHAPED_BY = ("dedent", "strip", "lstrip", "rstrip", "format", "cleandoc", "encode")
_WRITING = re.compile(r"\.write(?:_text|lines)?\(|\bfile=")
_GROUP = re.compile(r"\w_config:\s|\bmax_\w+:\s")
_OPTION = re.compile(r"^\w+:(?:[ \t]|$)", re.MULTILINE)
# Where a line of the text begins in the source: a line's end inside of triple quotes, or `\n`.
_ENDS = re.compile(r"\\\\|\\n|\\\n|\n|\\.")
_TRIPLE = re.compile(r"[A-Za-z]{0,2}(\"\"\"|''')")


def may_hold(text: str) -> bool:
    """Whether a program may write options as text."""
    return _WRITING.search(text) is not None and _GROUP.search(text) is not None


def documents(
    tree: ast.Module, code: str, meant: Meaning, start: Location
) -> Iterator[tuple[ast.expr | None, Yaml]]:
    """The YAML that a program writes as text, each with what it is written to."""
    lines = code.split("\n")
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args or _name(node.func) not in _WRITES:
            continue
        text_node, is_format = _bare(meant(node.args[0], node), node, meant)
        text = _dedented(_text(text_node, is_format))
        if len(_OPTION.findall(text)) < 2:
            continue
        places = _places(text_node, lines, start)
        for document in MaskedText(text, SHELL).documents():
            if document.data is not None:
                _move(document, places)
                yield _holder(node), document


def _bare(node: ast.expr, call: ast.Call, meant: Meaning) -> tuple[ast.expr, bool]:
    """The text below `dedent(...)` and `.strip()`, and whether `.format` fills it in."""
    is_format = False
    for _ in range(4):
        if not isinstance(node, ast.Call) or _name(node.func) not in _SHAPED_BY:
            break
        is_format |= _name(node.func) == "format"
        holder = node.func.value if isinstance(node.func, ast.Attribute) else None
        is_method = holder is not None and _name(holder) not in ("textwrap", "inspect")
        inner = holder if is_method else node.args[0] if node.args else None
        if inner is None:
            break
        node = meant(inner, call)
    return node, is_format


def _text(node: ast.expr, is_format: bool) -> str:
    """A text with a variable of the shell for each value that is put in; empty if it is none."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        if not is_format:
            return node.value
        filled = re.sub(r"(?<!\{)\{(\w*)[^{}\n]*\}(?!\})", r"${v\1}", node.value)
        return filled.replace("{{", "{").replace("}}", "}")
    if not isinstance(node, ast.JoinedStr):
        return ""
    parts = []
    for value in node.values:
        if isinstance(value, ast.Constant):
            parts.append(str(value.value))
        elif isinstance(value, ast.FormattedValue):
            parts.append(f"${{{re.sub(r'[^A-Za-z0-9_]', '_', ast.unparse(value.value))}}}")
    return "".join(parts)


def _dedented(text: str) -> str:
    """The text, its lines moved left together; none is dropped."""
    rows = text.split("\n")
    margin = min((len(row) - len(row.lstrip()) for row in rows if row.strip()), default=0)
    return "\n".join(row[margin:] for row in rows)


def _places(node: ast.expr, lines: list[str], start: Location) -> list[Location]:
    """The place in the program at which each line of a text begins."""
    source = lines[node.lineno - 1 : node.end_lineno]
    code = "\n".join(source)[len(source[0].encode()[: node.col_offset].decode()) :]
    is_triple = _TRIPLE.match(code) is not None
    places, line = [node.lineno], node.lineno
    for found in _ENDS.finditer(code):
        if "\n" in found[0]:
            line += 1
        if found[0] == "\\\n" and is_triple:
            places[-1] = line
        if found[0] == "\\n" or (found[0] == "\n" and is_triple):
            places.append(line)
            continue
        if found[0] == "\n" and not is_triple:  # the next of several texts side by side
            places[-1] = line
    return [Location(start.line + row - 1, 1) for row in places]


def _move(document: Yaml, places: list[Location]) -> None:
    def moved(place: Location) -> Location:
        at = places[min(max(place.line, 1), len(places)) - 1]
        return Location(at.line, place.column)

    document.places = {path: moved(place) for path, place in document.places.items()}


def _name(function: ast.expr) -> str:
    return str(getattr(function, "attr", getattr(function, "id", "")))


def _holder(call: ast.Call) -> ast.expr | None:
    """What a text is written to: the object of the method, or the file of `print`."""
    given = [row.value for row in call.keywords if row.arg == "file"]
    return given[0] if given else getattr(call.func, "value", None)
