"""Runs the verbs for bundles: explain, diff, pin, upgrade, verify, sign."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..diagnostics import Diagnostic, nearest
from ..errors import BadInput
from .deployments import decisions_text
from .terminal import (
    Parser,
    add_advisories,
    add_json,
    add_set,
    columns,
    lines_text,
    print_json,
    wrapped,
)

if TYPE_CHECKING:
    from ..bundle import Bundle
    from ..diff import Row
    from ..facts.release import Release


def add_explain(parser: Parser) -> None:
    parser.add_argument("bundle", type=Path)
    parser.add_argument("path", nargs="?", help="an option path (default: all)")
    add_json(parser)


def run_explain(options: argparse.Namespace) -> None:
    from .. import bundle

    rows = explained(bundle.read(options.bundle), options.path)
    print_json(rows) if options.json else print(explained_text(rows))


def explained(found: Bundle, path: str | None) -> list[dict[str, Any]]:
    """The decisions at or below a path, then the engine's defaults of the other options there.

    Below a path, options of record kinds that the plan does not use are left out. A server flag may
    be written without its dashes. Raises `BadInput` if the engine's release has no such option.
    """
    decided: list[dict[str, Any]] = found.manifest["decisions"]
    if path is None:
        return [*decided, *found.manifest.get("engine_defaults", ())]  # older bundles have none
    wanted = re.compile(rf"(--)?{re.escape(path)}(\..*)?")
    rows = [row for row in decided if wanted.fullmatch(row["path"])]
    if [row["path"].lstrip("-") for row in rows] == [path]:
        return rows
    from ..rules.options import of_other_kinds

    defaults = _engine_defaults(found)
    known = {row["path"]: row["value"] for row in decided}
    foreign = of_other_kinds(_release(found), known) - {path}
    left = [name for name in defaults if wanted.fullmatch(name)]
    left = [name for name in left if name not in known and name not in foreign]
    if not rows and not left:
        what = f"unknown option of release {found.manifest['engine']['release']}"
        remedy = _called_here(found, path) or nearest(path, {*known, *defaults})
        raise BadInput(Diagnostic(path, what, remedy))
    return [*rows, *(defaults[name] for name in left)]


def explained_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Decisions with their reasons; several engine defaults become a table of values."""
    left = [row for row in rows if row["evidence"] == "engine default"]
    if len(left) <= 1:
        return decisions_text(rows)
    table = [("ENGINE DEFAULT", "VALUE")]
    table += [
        (row["path"], "-" if row["value"] is None else json.dumps(row["value"])) for row in left
    ]
    decided = decisions_text(row for row in rows if row not in left)
    unset = any(row["value"] is None for row in left)
    legend = "-: off, or determined by the engine at startup" if unset else ""
    return "\n\n".join(filter(None, (decided, columns(table), legend)))


def _engine_defaults(found: Bundle) -> dict[str, dict[str, Any]]:
    """Every option and server flag of the bundle's release with the engine's default.

    Options that the plan left out for a reason carry the plan's reason.
    """
    from ..planning import engine_default
    from ..rules.flags import option_path, spellings
    from ..rules.options import ANY_KEY

    table = _release(found)
    plain = ("record", "union", "mapping")
    options = [
        path
        for path, rows in table.paths.items()
        if ANY_KEY not in path and all(row["type"] not in plain for row in rows)
    ]
    own = spellings(table).items()
    flags = [text for text, flag in own if not (flag.positional or option_path(flag, table))]
    known = {path: asdict(engine_default(table, path)) for path in (*options, *flags)}
    return known | {row["path"]: row for row in found.manifest.get("engine_defaults", ())}


def _called_here(found: Bundle, path: str) -> str:
    """The bundle's name for an option known by this name in another engine or release."""
    from ..rules import remedies

    table, name = _release(found), path.removeprefix("--")
    return (
        remedies.of_other_engine(table, name)
        or remedies.former(table, name, path=name)
        or remedies.elsewhere(table, name)
        or remedies.without_counterpart(table, name)
    )


def _release(found: Bundle) -> Release:
    from ..facts import engines, release

    engine = found.manifest["engine"]
    return release.load(engine["release"], found.folder, engines.load(engine["name"]))


def add_diff(parser: Parser) -> None:
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    add_json(parser)


def run_diff(options: argparse.Namespace) -> None:
    from .. import bundle, diff

    found = diff.compare(bundle.read(options.old), bundle.read(options.new))
    print_json(found) if options.json else print(comparison_text(found))


def comparison_text(found: Mapping[str, Sequence[Row]]) -> str:
    """The comparison for a terminal; lines of files are not wrapped."""
    if not any(rows for name, rows in found.items() if name != "counterparts"):
        return "The bundles are the same."
    sections = {
        "Request": _lines(found["request"]),
        "Decisions": _lines(found["decisions"]),
        **_counterpart_sections(found["counterparts"]),
        "Memory per GPU": _lines(found["memory"]),
        "Inputs": [f"  {row['kind']:<8} {row['path']}" for row in found["inputs"]],
        "Files": list(chain.from_iterable(map(_file_lines, found["files"]))),
    }
    return "\n\n".join(lines_text([title, *lines]) for title, lines in sections.items() if lines)


_VERDICTS = {
    "same": "Decisions that mean the same",
    "differs": "Decisions that differ",
    "only_old": "Decisions of the first engine only",
    "only_new": "Decisions of the second engine only",
}


def _counterpart_sections(rows: Sequence[Row]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {title: [] for title in _VERDICTS.values()}
    for row in rows:
        sides = ((row["old_path"], row["before"]), (row["path"], row["after"]))
        given = [f"{path} {json.dumps(value)}" for path, value in sides if path]
        section = found[_VERDICTS[row["verdict"]]]
        section += wrapped("  ", (" = " if row["verdict"] == "same" else " -> ").join(given))
        section += wrapped("           ", row["note"])
    return found


_SENTENCES = {
    "added": "{path} = {after}",
    "removed": "{path}, was {before}",
    "renamed": "{old_path} -> {path} = {after}",
    "changed": "{path}: {before} -> {after}",
}


def _lines(changes: Sequence[Row]) -> list[str]:
    lines = []
    for row in changes:
        values = {side: json.dumps(row[side], ensure_ascii=False) for side in ("before", "after")}
        sentence = _SENTENCES[row["kind"]].format(**{**row, **values})
        lines += wrapped(f"  {row['kind']:<8} ", sentence)
        lines += wrapped("           ", row["reason"])
    return lines


def _file_lines(row: Row) -> list[str]:
    return [f"  {row['kind']:<8} {row['path']}", *(f"    {line}" for line in row["lines"])]


def add_pin(parser: Parser) -> None:
    parser.add_argument("deployment", help="a deployment file, a preset or a bundle")
    text = "the pinned deployment file, for a preset or a bundle, which stay as they are"
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=text)


def run_pin(options: argparse.Namespace) -> None:
    from ..upgrade import pinning

    file, rows = pinning.pin(options.deployment, options.output)
    for row in rows:
        note = "new" if row.is_new else "already pinned"
        note = "not written: pin it in the site's profile" if row.is_elsewhere else note
        print(f"{row.path}: {row.written} ({', '.join(row.architectures)}; {note})")
    if not rows:
        print("no image of a registry is named here: there is nothing to pin")
    print(f"{file}: render it with: python -m builder render {shlex.quote(str(file))} -o DIR")


def add_upgrade(parser: Parser) -> None:
    parser.add_argument("bundle", type=Path)
    text = "the new release of the engine, or the path of an imported table"
    parser.add_argument("--to", required=True, metavar="RELEASE", help=text)
    add_set(parser, "images.triton=REFERENCE")
    text = "a new folder, for deployment.yaml and upgrade.md"
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help=text)
    add_advisories(parser)


def run_upgrade(options: argparse.Namespace) -> None:
    from tempfile import TemporaryDirectory

    from ..files import is_there, save
    from ..upgrade import move, page

    if is_there(options.output):
        raise BadInput(Diagnostic(str(options.output), "exists", "choose another folder with -o"))
    with TemporaryDirectory() as scratch:
        found = move.upgrade(options.bundle, options.to, options.set, Path(scratch))
        text = page.text(found)
    for name, written in {"deployment.yaml": found.deployment, "upgrade.md": text}.items():
        save(options.output / name, written, "-o")
        print(options.output / name)


def add_verify(parser: Parser) -> None:
    parser.add_argument("bundle", type=Path)
    text = "allowed signers as for ssh-keygen: lines of NAME and public key; one must have signed"
    parser.add_argument("--signers", type=Path, metavar="FILE", help=text)
    parser.add_argument("--identity", metavar="NAME", help="the signer must be this one")
    add_json(parser)


def run_verify(options: argparse.Namespace) -> None:
    from .. import verification

    if options.identity and not options.signers:
        raise BadInput(Diagnostic("--identity", "needs a list of signers", "add --signers FILE"))
    report = verification.verify(options.bundle, options.signers, options.identity)
    if options.json:
        print_json(report.document())
        sys.stdout.flush()
    verification.require(report)
    if not options.json:
        print(verified_text(report.document()))


def verified_text(report: Mapping[str, Any]) -> str:
    """What was compared in an intact bundle, and who signed it."""
    lines = [
        f"{report['folder']}: {report['rendered']} files match, digest {report['digest']}",
        f"evidence: {report['evidence']} files" if report["evidence"] else "evidence: none",
    ]
    signer = report["signer"]
    if signer is None:
        lines.append("signature: none; the author is unknown")
    elif signer["name"] is None:
        lines.append(f"signature: by key {signer['key']}; owner not checked (use --signers)")
    else:
        lines.append(f"signature: by {signer['name']}, key {signer['key']}")
    return lines_text(lines)


def add_sign(parser: Parser) -> None:
    parser.add_argument("bundle", type=Path)
    text = "a private key, or the public key of one in the agent"
    parser.add_argument("--key", type=Path, required=True, metavar="FILE", help=text)


def run_sign(options: argparse.Namespace) -> None:
    from .. import verification

    signer = verification.sign(options.bundle, options.key)
    print(f"{options.bundle}: signed with key {signer.key}")
