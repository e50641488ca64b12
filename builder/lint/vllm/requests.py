"""The arguments of requests that a Python program makes for vLLM."""

from __future__ import annotations

from collections.abc import Iterator

from ...diagnostics import Diagnostic, located, nearest
from ...facts.release import Release
from ...general_rules import UNKNOWN_KEY
from .. import python_api
from .formats import formats


def diagnostics(text: str, release: Release) -> Iterator[Diagnostic]:
    """Arguments that no release's class of requests has: the program ends there."""
    known = formats()
    api = python_api.Api(release.engine.module, (known.request_class,))
    sections = python_api.sections(text, release, api=api) if known.request_class in text else None
    for section in sections or ():
        for name in section.options:
            # The first argument without a name is not a model's here.
            if name in known.request_names or name == "model" or name.startswith("_"):
                continue  # what begins so is the engine's own, which no list here has
            what = f"is no argument of {known.request_class}"
            fix = known.request_words.get(name) or nearest(name, known.request_names)
            yield located(section.document.locate(name), name, what, fix, UNKNOWN_KEY)
