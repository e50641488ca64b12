"""What a person says of a site before it is probed."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from builder.diagnostics import Diagnostic
from builder.errors import BadInput

from .. import service as services


@dataclass(frozen=True, slots=True)
class Asked:
    """What a person said of the site: it is a part of every trial."""

    name: str | None
    given: Mapping[str, str]
    images: Mapping[str, str]
    mounts: tuple[str, ...]
    root: Path
    timeout_s: float

    @classmethod
    def of(cls, options: argparse.Namespace) -> Asked:
        names = ("partition", "account", "qos", "reservation", "constraint")
        given = {name: value for name in names if (value := getattr(options, name))}
        pairs = [text.partition("=") for text in options.image]
        if wrong := [name for name, _, image in pairs if not image]:
            raise BadInput(Diagnostic("--image", f"{wrong[0]} is not SERVER=IMAGE"))
        images = {name: image for name, _, image in pairs}
        root = services.root(options.state)
        return cls(options.name, given, images, tuple(options.mount), root, options.timeout)

    @property
    def sbatch(self) -> list[str]:
        return [f"--{name}={value}" for name, value in self.given.items()]
