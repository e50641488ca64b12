"""The profile: what was found and how, as the text of a site profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from builder import site
from builder.diagnostics import Diagnostic
from builder.errors import BadInput


@dataclass(frozen=True, slots=True)
class Finding:
    """A line of the profile and how it was found."""

    key: str
    value: Any
    how: str


@dataclass(frozen=True, slots=True)
class Left:
    """What the profile leaves out, and why."""

    key: str
    why: str


Found = Finding | Left


def text(found: Sequence[Found]) -> str:
    """A profile in which each line says how it was found; what is left out stands below."""
    lines = []
    for one in found:
        if isinstance(one, Finding):
            value = yaml.safe_dump({one.key: one.value}, sort_keys=False, width=1000)
            lines += [f"# {one.how}", value.rstrip()]
    left = [f"# - {one.key}: {one.why}" for one in found if isinstance(one, Left)]
    heading = ["", "# Left out:"] if left else []
    return "\n".join([*lines, *heading, *left, ""])


def save(profile: str, file: Path) -> None:
    """The file appears once it is read as a profile."""
    new = file.with_name(f".{file.name}.new")
    try:
        new.write_text(profile, encoding="utf-8")
        site.read(new)
        new.replace(file)
    except OSError as fault:
        reason = (fault.strerror or str(fault)).lower()
        raise BadInput(Diagnostic(str(file), f"cannot be written: {reason}")) from None
    finally:
        new.unlink(missing_ok=True)
