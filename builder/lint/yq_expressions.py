"""What `yq -i` sets in a file, each option at its expression."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from ..documents import Variable, Yaml
from .script import Word
from .variables import SHELL, value_of

_SET = re.compile(r"\s*((?:\.\[?\"?[\w-]+\"?\]?)+)\s*=(?![=])\s*(.+)", re.S)
_KEY = re.compile(r"\.\[?\"?([\w-]+)")


def read(words: Sequence[Word]) -> Iterator[tuple[str, Yaml]]:
    """The options of `yq -i '.a.b = 1' FILE` by its words behind the name, each with the file."""
    if not any(re.fullmatch(r"-\w*i\w*|--inplace", word.text) for word in words):
        return
    plain = [word for word in words if not word.text.startswith("-")]
    expression = next((word for word in plain if "=" in word.text), None)
    if expression is None or len(plain) < 2:
        return
    place = expression.location
    for part in re.split(r"\|(?![^\"]*\"[^\"]*(?:\"[^\"]*\"[^\"]*)*$)", expression.text):
        if found := _SET.fullmatch(part.strip()):
            keys = _KEY.findall(found[1])
            paths = {".".join(keys[:n]): place for n in range(len(keys) + 1)}
            yield plain[-1].text, Yaml(nested(keys, _value(found[2].strip())), paths)


def nested(keys: Sequence[str], value: Any) -> Any:
    """A value below keys."""
    for key in reversed(keys):
        value = {key: value}
    return value


def _value(text: str) -> Any:
    if SHELL.search(text) or re.match(r"\.|strenv|env\(|load|\(", text):
        return Variable(text)
    return Variable(text) if (value := value_of(text)) is None else value
