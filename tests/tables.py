"""Parametrises a test by the table of its name in the YAML file next to its module.

The first row names the parameters; each other row is one case. A first column `case` names the
cases and is no parameter.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

Test = TypeVar("Test", bound=Callable[..., None])


def by_table(test: Test) -> Test:
    """As `pytest.mark.parametrize`, with the table that has the name of the test."""
    code = inspect.unwrap(test).__code__
    names, *rows = tables(Path(code.co_filename).with_suffix(".yaml"))[code.co_name]
    ids = None
    if names[0] == "case":
        names, ids, rows = names[1:], [row[0] for row in rows], [row[1:] for row in rows]
    marked: Test = pytest.mark.parametrize(names, rows, ids=ids)(test)
    return marked


@functools.cache
def tables(path: Path) -> dict[str, Any]:
    """What a file holds: tables by the names of their tests, and other data of its module."""
    loaded: dict[str, Any] = yaml.load(path.read_text(), yaml.CSafeLoader)
    return loaded
