"""Checks requests: structured output without a backend for it, unknown sampling parameters."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from ...diagnostics import Diagnostic, Location, located, nearest
from ...errors import BadInput
from ...facts.release import Release
from ...files import read_text
from ...general_rules import UNKNOWN_KEY
from ..engine import formats
from ..read import python_api
from ..read.files import SourceFile
from ..read.python_api import Api
from ..report import Checked
from . import GUIDE_IGNORED

RULE = GUIDE_IGNORED
OPTION = "guided_decoding_backend"
ASKS = "response_format"
# A field of a request, an argument of a client, or what the LLM API takes.
_ASKED = re.compile(rf"\\?[\"']?\b{ASKS}\\?[\"']?\s*[:=](?!=)|\bGuidedDecodingParams\(")
_ASKS_NOTHING = re.compile(r"[\s{\\\"']*type[\s\\\"':]*text\b|\s*(?:None|null|null,)")
_BEFORE_NAME = re.compile(r"(?:^|\n)\s*(?:#|//)[^\n]*\Z")


def place(text: str) -> Location | None:
    """Where a text asks for structured output first."""
    if ASKS not in text and "GuidedDecodingParams" not in text:
        return None
    for found in _ASKED.finditer(text):
        if _ASKS_NOTHING.match(text, found.end()) or _BEFORE_NAME.search(text[: found.start()]):
            continue
        begin = text.rfind("\n", 0, found.start()) + 1
        return Location(text.count("\n", 0, found.start()) + 1, found.start() - begin + 1)
    return None


def unguided(text: str, server: str) -> Diagnostic | None:
    """That a text asks for what a server, described in words, does not give."""
    if (where := place(text)) is None:
        return None
    what = f"asks for structured output, and {server} no {OPTION}: the answer may not follow it"
    fix = f"add {OPTION}: xgrammar to the server's options"
    return located(where, ASKS, what, fix, RULE, "warning")


def of_clients(targets: Sequence[SourceFile], files: Collection[Checked]) -> Iterator[Diagnostic]:
    """Clients beside option files and servers of one folder of which none has a backend.

    In a folder that is checked as a whole, programs are among its clients.
    """
    judged = {row.file for row in files if row.judged.sections or row.judged.commands}
    servers: dict[Path, list[Path]] = {}
    clients: dict[Path, set[Path]] = {}
    for target in targets:
        if target.context or target.diagnostic:
            continue
        if str(target.path) in judged:
            servers.setdefault(target.path.parent, []).append(target.path)
            clients.setdefault(target.path.parent, set()).update(_programs(target))
        else:
            clients.setdefault(target.path.parent, set()).add(target.path)
    for folder, beside in servers.items():
        found = [row for path in sorted(clients.get(folder, ())) for row in _of_client(path)]
        if found and not any(OPTION in (_text(path) or OPTION) for path in beside):
            yield from found


def _programs(target: SourceFile) -> Iterator[Path]:
    return iter(()) if target.given else target.path.parent.glob("*.py")


def _of_client(path: Path) -> Iterator[Diagnostic]:
    if found := unguided(_text(path), "the servers next to it have"):
        yield found.in_file(str(path))


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except BadInput:
        return ""  # reported with the file itself, where that was to be read


def request_diagnostics(text: str, release: Release) -> Iterator[Diagnostic]:
    """Arguments that no release's class of requests has: the program ends there."""
    known = formats()
    api = Api(release.engine.module, (known.request_class,))
    sections = python_api.sections(text, release, api=api) if known.request_class in text else None
    for section in sections or ():
        for name in section.options:
            # The first argument without a name is not a model's here.
            if name in known.request_names or name == "model" or name.startswith("_"):
                continue  # what begins so is the engine's own, which no list here has
            what = f"is not an argument of {known.request_class}"
            fix = known.request_words.get(name) or nearest(name, known.request_names)
            yield located(section.document.locate(name), name, what, fix, UNKNOWN_KEY)
