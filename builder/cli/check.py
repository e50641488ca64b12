"""The verb check: lints configuration files of any origin against exact engine releases."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..diagnostics import Diagnostic
from ..errors import BadInput
from .arguments import Parser, add_advisories, add_json
from .terminal import lines_text, print_json, wrapped

if TYPE_CHECKING:
    from ..lint import Checked, Report

MANY_FILES = 20


def add_check(parser: Parser) -> None:
    parser.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="a file or a folder")
    parser.add_argument(
        "--release",
        action="append",
        default=[],
        help="the engine release; given twice, what is right for one only is explained",
    )
    parser.add_argument("--role", choices=("agg", "prefill", "decode"), help="what the server does")
    parser.add_argument("--gpu", help="the kind of GPU, where the files do not say it")
    text = "also write the findings as SARIF 2.1.0, for code review"
    parser.add_argument("--sarif", type=Path, metavar="FILE", help=text)
    text = "also write them as GitLab's code quality report"
    parser.add_argument("--code-quality", type=Path, metavar="FILE", help=text)
    add_json(parser)
    add_advisories(parser)


def run_check(options: argparse.Namespace) -> None:
    from .. import lint
    from ..lint.report import code_quality, sarif, write

    def planner(path: Path, overrides: Sequence[str]) -> Sequence[Diagnostic]:
        from .. import pipeline  # planning is needed for deployment files only

        return pipeline.deployment_diagnostics(path, overrides)

    request = lint.CheckOptions(tuple(dict.fromkeys(options.release)), options.role, options.gpu)
    report = lint.check(options.paths, request, planner)
    forms = {options.sarif: sarif, options.code_quality: code_quality}
    for path, form in forms.items():
        if path:
            write(path, form(report.findings, Path.cwd()))
    print_json(report.document()) if options.json else print(findings_text(report))
    sys.stdout.flush()
    if report.errors:
        raise BadInput(())  # the findings have been printed


def findings_text(report: Report) -> str:
    """One line per finding, drift as a block each, then what was checked and as what."""
    from ..lint.report import as_line, subject

    lines = [as_line(row) for row in report.findings if row.rule != "drift"]
    for row in report.findings:
        if row.rule == "drift":
            line, column = row.location
            lines += ["", f"{row.where}:{line}:{column}: drift: {subject(row)}"]
            lines += wrapped("  ", f"{row.message}; {row.fix}" if row.fix else row.message)
    if lines:
        lines.append("")
    lines += [f"note: {note}" for note in report.notes]
    return lines_text([*lines, *_checked(report), _totals(report)])


def _checked(report: Report) -> Iterator[str]:
    """What each file was taken for, or of many files the number per kind."""
    if len(report.files) <= MANY_FILES:
        yield from (f"{row.file}: {row.kind}{_by(row)}" for row in report.files)
        return
    counts = Counter(f"{row.kind}{_by(row)}" for row in report.files)
    yield from (f"{count} x {kind}" for kind, count in sorted(counts.items()))


def _by(row: Checked) -> str:
    if not row.releases:
        return ""
    guess = ", assumed: the newest stable one" if row.assumed else ""
    return f", release {' and '.join(row.releases)}{guess}"


def _totals(report: Report) -> str:
    files, errors = len(report.files), report.errors
    warnings = len(report.findings) - errors
    return (
        f"checked {files} file{'s' * (files != 1)}: {errors} error{'s' * (errors != 1)}, "
        f"{warnings} warning{'s' * (warnings != 1)}"
    )
