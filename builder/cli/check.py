"""Runs the verb check: checks configuration files of any origin against exact engine releases."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..command import Override
from ..credentials import mask
from ..diagnostics import NOWHERE, Diagnostic
from ..errors import BadInput
from .terminal import (
    ASSUME_RELEASE,
    ASSUME_RELEASE_HELP,
    Parser,
    add_advisories,
    add_json,
    lines_text,
    print_json,
    wrapped,
)

if TYPE_CHECKING:
    from ..lint import Checked, Report
    from ..lint.model import Judged

MANY_FILES = 20
MANY_SKIPPED = 100
MANY_VARIABLES = 12


def add_check(parser: Parser) -> None:
    parser.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="a file or a folder")
    parser.add_argument(
        "--release",
        action="append",
        default=[],
        help="the engine release; repeat it to compare releases",
    )
    parser.add_argument("--assume-release", action="store_true", help=ASSUME_RELEASE_HELP)
    parser.add_argument("--role", choices=("agg", "prefill", "decode"), help="what the server does")
    parser.add_argument("--gpu", help="the GPU type, if the files do not name it")
    text = "the checkpoint, if the files do not name it: a known name or a folder"
    parser.add_argument("--model", metavar="NAME", help=text)
    text = "report every image of a vulnerable version as an error, not one warning for all"
    parser.add_argument("--refuse-vulnerable", action="store_true", help=text)
    text = "also write the findings as SARIF 2.1.0"
    parser.add_argument("--sarif", type=Path, metavar="FILE", help=text)
    text = "also write the findings as a GitLab code quality report"
    parser.add_argument("--code-quality", type=Path, metavar="FILE", help=text)
    add_json(parser)
    add_advisories(parser)


def run_check(options: argparse.Namespace) -> None:
    from .. import lint
    from ..lint.report import code_quality, sarif, write

    def planner(path: Path, overrides: Sequence[str]) -> Sequence[Diagnostic]:
        from .. import pipeline  # only deployment files need planning

        assumed = (Override(ASSUME_RELEASE, "--assume-release"),) if options.assume_release else ()
        return pipeline.deployment_diagnostics(path, (*overrides, *assumed))

    releases = tuple(dict.fromkeys(options.release))
    request = lint.CheckOptions(
        releases, options.role, options.gpu, options.model, assume_release=options.assume_release
    )
    request = replace(request, refuse_vulnerable=options.refuse_vulnerable)
    report = lint.check(options.paths, request, planner)
    forms = {options.sarif: sarif, options.code_quality: code_quality}
    for path, form in forms.items():
        if path:
            write(path, form(report, Path.cwd()))
    print_json(report.document()) if options.json else print(findings_text(report))
    sys.stdout.flush()
    for bug in report.bugs.values():
        raise bug  # exits like a bug, after all other files were checked
    if report.errors:
        raise BadInput(())  # the findings have been printed


def findings_text(report: Report) -> str:
    """One line per finding, a block per drift, then which files were checked as what."""
    from ..lint.report import as_line, subject
    from ..lint.tables import DRIFT

    lines = [as_line(row) for row in report.findings if row.rule != DRIFT]
    for row in report.findings:
        if row.rule == DRIFT:
            line, column = row.location
            lines += ["", f"{row.where}:{line}:{column}: drift: {subject(row)}"]
            lines += wrapped("  ", f"{row.message}; {row.fix}" if row.fix else row.message)
    if lines:
        lines.append("")
    lines += [f"note: {note}" for note in report.notes]
    if count := len(report.suppressed):
        lines.append(f"note: comments suppress {count} finding{'s' * (count != 1)}")
    return lines_text([*lines, *_checked(report), *_not_judged(report), _totals(report)])


def _checked(report: Report) -> Iterator[str]:
    """The kind of each checked file; for many files, the number per kind."""
    judged = [row for row in report.files if row.judged]
    if len(judged) <= MANY_FILES:
        for row in judged:
            yield f"{row.file}: {row.kind}{_by(row)}{_extent(row.judged)}"
            yield from wrapped("  ", _variables(row.judged)) if row.judged.variables else ()
            for what in dict.fromkeys(row.judged.unread):
                yield f"  not read: {what}"
        return
    counts = Counter(f"{row.kind}{_by(row)}" for row in judged)
    yield from (f"{count} x {kind}" for kind, count in sorted(counts.items()))


def _extent(judged: Judged) -> str:
    """How much of a file was checked, if it has more than one options block."""
    if not judged.commands and judged.sections <= 1:
        return ""
    counted = {"section": judged.sections, "command": judged.commands, "image": judged.images}
    return ": " + ", ".join(f"{n} {word}{'s' * (n != 1)}" for word, n in counted.items() if n)


def _variables(judged: Judged) -> str:
    names = list(dict.fromkeys(judged.variables))
    shown, more = names[:MANY_VARIABLES], len(names) - MANY_VARIABLES
    rest = f" and {more} more" if more > 0 else ""
    return f"values set at run time were not checked: {', '.join(shown)}{rest}"


def _not_judged(report: Report) -> Iterator[str]:
    """One line for each skipped file, and one for the file types that are never read.

    Files with a finding of their own are left out.
    """
    named = {row.where for row in report.findings if row.location == NOWHERE}
    skipped = [row for row in report.skipped if row.file not in named]
    for row in skipped[:MANY_SKIPPED]:
        yield mask(f"not checked: {row.file}: {row.reason}")
    if (more := len(skipped) - MANY_SKIPPED) > 0:
        yield f"not checked: {more} more files; --json lists them"
    if report.unread:
        kinds = ", ".join(f"{count} x {suffix}" for suffix, count in sorted(report.unread.items()))
        yield f"not read: {kinds}"


def _by(row: Checked) -> str:
    if not row.releases:
        return ""
    guess = ", assumed: the newest stable one" if row.assumed else ""
    return f", release {' and '.join(row.releases)}{guess}"


def _totals(report: Report) -> str:
    files, errors = report.checked, report.errors
    warnings = len(report.findings) - errors
    skipped = len(report.skipped)
    rest = f", {skipped} file{'s' * (skipped != 1)} not checked" if skipped else ""
    return (
        f"checked {files} file{'s' * (files != 1)}: {errors} error{'s' * (errors != 1)}, "
        f"{warnings} warning{'s' * (warnings != 1)}{rest}"
    )
