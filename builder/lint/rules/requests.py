"""Checks requests for structured output without a backend and for unknown sampling parameters."""

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
from ..read.files import SourceFile
from ..report import Checked
from . import GUIDE_IGNORED

RULE = GUIDE_IGNORED
OPTION = "guided_decoding_backend"
ASKS = "response_format"
# A request field, a client argument, or a parameter of the LLM API.
_ASKED = re.compile(rf"\\?[\"']?\b{ASKS}\\?[\"']?\s*[:=](?!=)|\bGuidedDecodingParams\(")
_ASKS_NOTHING = re.compile(r"[\s{\\\"']*type[\s\\\"':]*text\b|\s*(?:None|null|null,)")
_BEFORE_NAME = re.compile(r"(?:^|\n)\s*(?:#|//)[^\n]*\Z")


def place(text: str) -> Location | None:
    """The first place where a text requests structured output."""
    if ASKS not in text and "GuidedDecodingParams" not in text:
        return None
    for found in _ASKED.finditer(text):
        if _ASKS_NOTHING.match(text, found.end()) or _BEFORE_NAME.search(text[: found.start()]):
            continue
        begin = text.rfind("\n", 0, found.start()) + 1
        return Location(text.count("\n", 0, found.start()) + 1, found.start() - begin + 1)
    return None


def unguided(text: str, server: str) -> Diagnostic | None:
    """Reports a text that requests structured output which a server does not provide. `server`
    describes the server in the message."""
    if (where := place(text)) is None:
        return None
    what = f"asks for structured output, and {server} no {OPTION}: the answer may not follow it"
    fix = f"add {OPTION}: xgrammar to the server's options"
    return located(where, ASKS, what, fix, RULE, "warning")


def of_clients(targets: Sequence[SourceFile], files: Collection[Checked]) -> Iterator[Diagnostic]:
    """Reports clients that request structured output if no server in their folder has a backend.
    When a whole folder is checked, its Python programs count as clients too."""
    judged = {row.file for row in files if row.judged.sections or row.judged.commands}
    servers: dict[Path, list[Path]] = {}
    clients: dict[Path, set[Path]] = {}
    listed: set[Path] = set()
    for target in targets:
        if target.context or target.diagnostic:
            continue
        folder = target.path.parent
        if str(target.path) not in judged:
            clients.setdefault(folder, set()).add(target.path)
            continue
        servers.setdefault(folder, []).append(target.path)
        if not target.given:
            listed.add(folder)
    for folder in listed:
        clients.setdefault(folder, set()).update(folder.glob("*.py"))
    for folder, beside in servers.items():
        found: list[Diagnostic] = []
        for path in sorted(clients.get(folder, ())):
            if asked := unguided(_text(path), "the servers next to it have"):
                found.append(asked.in_file(str(path)))
        if found and not any(OPTION in (_text(path) or OPTION) for path in beside):
            yield from found


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except BadInput:
        return ""  # reported when the file itself is checked


def request_diagnostics(text: str, release: Release) -> Iterator[Diagnostic]:
    """Reports arguments that the request class lacks in all releases; the program fails there."""
    known = formats(release.engine.name)
    if not known.request_class or known.request_class not in text:
        return
    from ..read import python_api  # not needed for most files

    api = python_api.Api(release.engine.module, (known.request_class,))
    sections = python_api.sections(text, release, api=api)
    for section in sections or ():
        for name in section.options:
            # Here the first positional argument is not a model.
            if name in known.request_names or name == "model" or name.startswith("_"):
                continue  # private parameters are not in the list
            what = f"is not an argument of {known.request_class}"
            fix = known.request_words.get(name) or nearest(name, known.request_names)
            yield located(section.document.locate(name), name, what, fix, UNKNOWN_KEY)
