"""Runs the verbs release and advisories: option tables and known vulnerabilities."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..diagnostics import Diagnostic
from ..errors import BadInput
from . import terminal
from .terminal import Parser, columns, print_json, wrapped

if TYPE_CHECKING:
    from ..facts.release import Release


def add_release(parser: Parser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
    text = "list the shipped tables, and tables from files"
    sub = actions.add_parser("list", help=text, description=text)
    sub.add_argument("tables", nargs="*", metavar="TABLE.json", help="imported tables")
    terminal.add_json(sub)

    text = "write the table of a release from an installed engine or a manifest"
    sub = actions.add_parser("import", help=text, description=text)
    source = sub.add_mutually_exclusive_group()
    source.add_argument(
        "--from-installed",
        nargs="?",
        default=sys.executable,
        const=sys.executable,
        metavar="PYTHON",
        help="a Python that has tensorrt_llm (default: this one)",
    )
    source.add_argument("--manifest", type=Path, help="llm_args_golden_manifest.json of a release")
    source.add_argument(
        "--source",
        type=Path,
        metavar="PATH",
        help="a vLLM wheel, or the site-packages folder with vLLM; its code is not run",
    )
    sub.add_argument("--name", required=True, help="the name of the release")
    sub.add_argument("--like", help="the release that supplies unknown values")
    sub.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.json")


def run_release(options: argparse.Namespace) -> None:
    from ..facts import release

    if options.action == "import":
        _release_import(options)
        return
    given = [release.load(name) for name in options.tables]
    rows = release_rows([*release.of_all_engines(), *given])
    print_json(rows) if options.json else print(releases_table(rows))


def _release_import(options: argparse.Namespace) -> None:
    from ..facts import engines, release, release_import

    if options.output.suffix != ".json":
        raise BadInput(Diagnostic(str(options.output), "must end in .json", "name the table .json"))
    if options.source:
        engine = engines.load(release_import.SOURCE_ENGINE)
        like = _like(release.load(options.like, engine=engine)) if options.like else None
        table = release_import.from_source(options.source, options.name, like)
    elif not options.like:
        remedy = "name the nearest release"
        raise BadInput(Diagnostic("--like", "is required: the source lacks some values", remedy))
    elif options.manifest:
        like = _like(release.load(options.like))
        table = release_import.from_manifest(options.manifest, options.name, like)
    else:
        like = _like(release.load(options.like))
        table = release_import.from_installed(options.from_installed, options.name, like)
    release_import.write(table, options.output)
    imported = release.load(str(options.output))
    options_given, flags = len(imported.top_level), len(imported.serve_flags)
    print(f"{options.output}: {options_given} top-level options, {flags} flags")
    for part, name in imported.carried_from.items():
        print(f"inherited from {name}: {part}", file=sys.stderr)


def _like(found: Release) -> Release:
    """A release to inherit from. Raises `BadInput` for one without a table."""
    if found.neighbours:
        names = " or ".join(row.name for row in found.neighbours)
        what = f"release {found.name} has no option table to inherit from"
        raise BadInput(Diagnostic("--like", what, f"name {names}"))
    return found


def release_rows(tables: Sequence[Release]) -> list[dict[str, Any]]:
    """Option tables as `release list --json` prints them."""
    from ..facts.release import published

    return [
        {
            "engine": table.engine.name,
            "name": table.name,
            "options": sum("*" not in path for path in table.paths),
            "flags": len(table.serve_flags),
            "rules": len(table.rule_ids),
            "published": published.day(table.name, table.engine),
            "based_on": table.based_on.name if table.based_on else None,
            "nearest": table.table.get("nearest"),
            **{f"{server}_containers": list(tags) for server, tags in table.containers.items()},
            "confidence": table.confidence,
            "sources": list(table.sources),
            "carried_from": dict(table.carried_from),
        }
        for table in tables
    ]


def releases_table(rows: Sequence[Mapping[str, Any]]) -> str:
    heads = ("ENGINE", "RELEASE", "PUBLISHED", "OPTIONS", "FLAGS")
    table = [(*heads, "TRITON CONTAINERS", "INHERITED FROM", "BASED ON")]
    for row in rows:
        known = (row["engine"], row["name"], row["published"] or "-")
        counts = (str(row["options"]), str(row["flags"]))
        carried = ", ".join(dict.fromkeys(row["carried_from"].values())) or "-"
        containers = ", ".join(row.get("triton_containers", ())) or "-"
        standing = f"changes to {row['based_on']}" if row["based_on"] else ""
        nearest = f"nearest {row['nearest']}" if row["nearest"] else ""
        table.append((*known, *counts, containers, carried, standing or nearest or "-"))
    return columns(table)


def add_advisories(parser: Parser) -> None:
    terminal.add_json(parser)
    terminal.add_advisories(parser)


def run_advisories(options: argparse.Namespace) -> None:
    rows = advisory_rows()
    text = "\n\n".join("\n".join(_advisories_of(row)) for row in rows)
    print_json(rows) if options.json else print(text)


def advisory_rows() -> list[dict[str, Any]]:
    """Products and the vulnerabilities of their versions, as `advisories --json` prints them."""
    from ..facts import advisories, engines, images, release, servers

    carried = map(servers.load, servers.names())
    known: dict[str, list[str]] = {}
    for row in carried:
        found = known.setdefault(row.image["product"], [])
        found += [one for one in images.versions(row.name) if one not in found]
    for engine in map(engines.load, engines.names()):
        known[engine.product] = release.known(engine)
    return [
        {
            "product": product,
            "name": advisories.name(product),
            "as_of": advisories.as_of(product),
            "minimum": asdict(advisories.minimum(product)),
            "closes_all": advisories.closes_all(product),
            "versions": [_open_row(product, version) for version in known[product]],
        }
        for product in advisories.products()
    ]


def _open_row(product: str, version: str) -> dict[str, Any]:
    from ..facts import advisories

    keys = ("cve", "cvss", "cwe", "fixed_in", "bulletin", "published")
    found = [asdict(row) for row in advisories.open_for(product, version)]
    return {
        "version": version,
        "refused": advisories.is_refused(product, version),
        "open": [{key: row[key] for key in keys} for row in found],
    }


def _advisories_of(row: Mapping[str, Any]) -> Iterator[str]:
    from ..facts.advisories import score_text

    least = row["minimum"]
    yield f"{row['name']}, advisories as of {row['as_of']}"
    yield from wrapped("  minimum:  ", f"{least['version']}: {least['reason']}")
    yield f"  {row['closes_all']} fixes all known vulnerabilities"
    for version in row["versions"]:
        word = "refused" if version["refused"] else "allowed"
        found = [f"{each['cve']} ({score_text(each['cvss'])})" for each in version["open"]]
        yield f"  {version['version']}: {word}, {len(found)} open"
        yield from wrapped("    ", ", ".join(found))
