"""Templates to text, each proved by reading the result back: the only module that knows Jinja."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from .documents import load_yaml

_HERE = Path(__file__).parent
WIDTH = 100
_UNREADABLE = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ufeff\ufffe\uffff]"
)
_YAML_WORDS = {"true", "false", "yes", "no", "on", "off", "y", "n", "null"}


def resource_root(name: str) -> Path:
    """A folder that stands beside `builder` in a checkout and inside it in a wheel."""
    inside = _HERE / name
    return inside if inside.is_dir() else _HERE.parent / name


@cache
def _environment(autoescape: bool = False) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(resource_root("templates")),
        undefined=jinja2.StrictUndefined,
        autoescape=autoescape,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["json"] = scalar
    environment.filters["key"] = key
    environment.filters["shell"] = lambda value: shlex.quote(str(value))
    environment.filters["comment"] = comment
    return environment


def text(template: str, **values: Any) -> str:
    """A rendered template; an undefined name is an error."""
    return _environment().get_template(template).render(values)


def html(template: str, **values: Any) -> str:
    """A rendered template in which every value is escaped."""
    return _environment(autoescape=True).get_template(template).render(values)


def yaml_text(template: str, expected: Mapping[str, Any], **values: Any) -> str:
    """A rendered YAML file that reads back as `expected`.

    The comparison is of JSON texts: in Python, `True` equals 1.
    """
    rendered = text(template, **values)
    found, meant = (json.dumps(item, sort_keys=True) for item in (load_yaml(rendered), expected))
    if found != meant:
        raise AssertionError(f"{template} reads back as {found}, meant was {meant}")
    return rendered


def scalar(value: Any) -> str:
    """A YAML scalar or flow sequence that no YAML reader takes for another type.

    Letters that YAML takes for line breaks or not at all, and such as turn the writing direction
    for a human reader, are escaped.
    """
    return _UNREADABLE.sub(
        lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False)
    )


def key(value: str) -> str:
    """A mapping key, quoted unless every YAML reader takes it for a plain string."""
    plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value) and value.lower() not in _YAML_WORDS
    return value if plain else scalar(value)


def comment(value: str, indent: int = 0) -> str:
    """Text as comment lines, which no line break or other control character can leave."""
    prefix = " " * indent + "# "
    return textwrap.fill(
        " ".join(_UNREADABLE.sub(" ", value).split()),
        WIDTH,
        initial_indent=prefix,
        subsequent_indent=prefix,
    )
