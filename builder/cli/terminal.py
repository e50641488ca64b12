"""Shared arguments of verbs, their output as JSON or text of 80 columns, and their completion."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

from .. import command
from ..command import Override
from ..diagnostics import Diagnostic, one_line

SITE = "targets.slurm.site"  # what --site sets
MEASURED = "measured"  # what --facts sets
ASSUME_RELEASE = "engine.assume_release=true"  # what --assume-release sets
ASSUME_RELEASE_HELP = "accept an engine release that this toolkit does not know"

Parser = argparse.ArgumentParser


def add_deployment(parser: Parser) -> None:
    parser.add_argument("deployment", help="a deployment file, or the name of a preset")
    add_set(parser, "workload.concurrency=32")
    text = "also render this target, e.g. kubernetes, monitoring or handoff"
    parser.add_argument("--target", action="append", default=[], metavar="NAME", help=text)
    add_advisories(parser)
    for option, path, text in (
        ("--site", SITE, "the profile of a Slurm cluster; adds the target slurm"),
        ("--facts", MEASURED, "memory that an earlier start measured, from its run folder"),
    ):
        made_of_file = partial(_override, path, option)
        parser.add_argument(
            option, action="append", dest="set", type=made_of_file, metavar="FILE", help=text
        )
    for option, change, text in (
        ("--strict", "strict=true", "refuse versions whose vulnerabilities are unknown"),
        ("--assume-release", ASSUME_RELEASE, ASSUME_RELEASE_HELP),
    ):
        made = Override(change, option)
        parser.add_argument(option, action="append_const", dest="set", const=made, help=text)


def _override(path: str, option: str, file: str) -> Override:
    return Override(f"{path}={file}", option)


def add_set(parser: Parser, example: str) -> None:
    text = f"change a value of the deployment, e.g. {example}"
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help=text)


def add_rows(parser: Parser) -> None:
    text = "a folder of results of launch bench, used like the public measurements"
    parser.add_argument("--rows", type=Path, metavar="DIR", help=text)


def add_output(parser: Parser) -> None:
    text = "the folder"
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help=text)


def add_advisories(parser: Parser) -> None:
    text = "a folder of advisories to use instead of the shipped ones"
    parser.add_argument("--advisories", type=Path, metavar="FOLDER", help=text)


def add_json(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_completion(parser: Parser) -> None:
    parser.add_argument("shell", choices=get_args(command.Shell))


def run_completion(options: argparse.Namespace) -> None:
    from .. import deployment, targets
    from ..facts import hardware, model_names, release

    known: Mapping[str, command.Words] = {
        "deployment": deployment.preset_names,
        "target": targets.names,
        "checkpoint": lambda: sorted(model_names.known_names()),
        "release": release.known,
        "like": release.known,
        "gpu": hardware.known,
    }
    print(
        command.completion_script(options.shell, options.parser(), "trtllm-builder", known), end=""
    )


WIDTH = 80


def print_json(document: object) -> None:
    print(json.dumps(document, indent=2, ensure_ascii=False))


def wrapped(label: str, text: str) -> list[str]:
    """A text wrapped to the terminal's width with a hanging indent; names are not broken."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=label,
        subsequent_indent=" " * (len(label) or 4),
        break_long_words=False,
        break_on_hyphens=False,
    )


def lines_text(lines: Iterable[str]) -> str:
    """Lines of text; line breaks inside one are escaped."""
    return "\n".join(map(one_line, lines))


def columns(rows: Sequence[Sequence[str]], numeric: Collection[int] = ()) -> str:
    """Rows in columns; columns with `numeric` indices are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return lines_text(
        "  ".join(
            cell.rjust(width) if index in numeric else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def warn(warnings: Sequence[Mapping[str, Any]]) -> None:
    for row in warnings:
        print(f"warning: {Diagnostic(row['where'], row['what'], row['remedy'])}", file=sys.stderr)


def size(nbytes: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= scale:
            return f"{nbytes / scale:.2f} {unit}"
    return f"{nbytes:.0f} B"
