"""The site profile that a probe writes: what was given, what was found and how, as text."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from builder import site
from builder.diagnostics import Diagnostic
from builder.errors import BadInput
from builder.files import whole_file

from .. import services

# The key of a line of the profile, its value, and how it was found. The value is `None` for what
# the profile leaves out; the last part is then the reason.
Finding = tuple[str, Any, str]


@dataclass(frozen=True, slots=True)
class SiteOptions:
    """What is already known of the site, and a part of every trial."""

    name: str | None
    given: Mapping[str, str]
    images: Mapping[str, str]
    mounts: tuple[str, ...]
    root: Path
    timeout_s: float

    @classmethod
    def from_arguments(cls, options: argparse.Namespace) -> SiteOptions:
        names = ("partition", "account", "qos", "reservation", "constraint")
        given = {name: value for name in names if (value := getattr(options, name))}
        pairs = [text.partition("=") for text in options.image]
        if wrong := [name for name, _, image in pairs if not image]:
            raise BadInput(Diagnostic("--image", f"must be SERVER=IMAGE, not {wrong[0]}"))
        images = {name: image for name, _, image in pairs}
        root = services.root(options.state)
        return cls(options.name, given, images, tuple(options.mount), root, options.timeout)

    @property
    def sbatch(self) -> list[str]:
        return [f"--{name}={value}" for name, value in self.given.items()]


def text(found: Sequence[Finding]) -> str:
    """A profile in which each line says how it was found; what is left out is below."""
    lines = []
    for key, value, how in found:
        if value is not None:
            line = yaml.safe_dump({key: value}, sort_keys=False, width=1000)
            lines += [f"# {how}", line.rstrip()]
    left = [f"# - {key}: {why}" for key, value, why in found if value is None]
    heading = ["", "# Left out:"] if left else []
    return "\n".join([*lines, *heading, *left, ""])


def save(profile: str, file: Path) -> None:
    """The file appears once it is read as a profile."""
    try:
        with whole_file(file) as new:
            new.write_text(profile, encoding="utf-8")
            site.read(new)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise BadInput(Diagnostic(str(file), f"cannot be written: {reason}")) from None
