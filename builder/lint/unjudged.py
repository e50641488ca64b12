"""What is said of files of which nothing was judged: broken ones, and those of no kind."""

from __future__ import annotations

from dataclasses import replace

from ..diagnostics import NOWHERE, Diagnostic, located
from ..errors import BadInput
from . import rules
from .coverage import NOTHING
from .files import SourceFile
from .report import Checked, FindingsByRelease, Report, Skipped
from .script_judging import SCRIPT
from .validate import DOCKERFILE, PROSE, PYTHON, YAML_SUFFIXES, Text, mentions_options


def of_no_kind(
    source: Text, target: SourceFile, by_release: FindingsByRelease, report: Report
) -> None:
    """A file of a kind that check does not know: passed over, or named as such."""
    first, found = next(iter(by_release.items()))
    broken = _is_malformed(source) and not _is_template(source)
    is_yaml = source.path.suffix in (YAML_SUFFIXES if target.given else (".yaml", ".yml"))
    broken = broken and (is_yaml or mentions_options(source.text, first))
    name, unknown = str(target.path), _unknown(source)
    report.skipped.append(Skipped(name, "cannot be read" if broken else unknown.message))
    if not (target.given or broken):
        return
    report.files.append(Checked(name, "unknown kind", (), judged=NOTHING))
    report.findings += (row.in_file(name) for row in (found if broken else [unknown]))


def of_unreadable(error: BadInput, name: str, report: Report) -> None:
    """A file that cannot be read."""
    report.findings += (_unreadable(row, name) for row in error.diagnostics)
    report.files.append(Checked(name, "unreadable", (), judged=NOTHING))
    report.skipped.append(Skipped(name, "cannot be read"))


def of_nothing(target: SourceFile, reason: str, report: Report) -> None:
    """A file of a known kind that has nothing to judge, which is said of one that was named."""
    report.skipped.append(Skipped(str(target.path), reason))
    if target.given:
        remedy = "it is neither right nor wrong: check the file that holds the options"
        found = located(
            NOWHERE, "", "has nothing to judge", remedy, rules.NOTHING_TO_JUDGE, "warning"
        )
        report.findings.append(found.in_file(str(target.path)))


def _is_template(source: Text) -> bool:
    """Whether a file is YAML only when its template is filled in, by its text or its folder."""
    return "{{" in source.text or "{%" in source.text or "templates" in source.path.parts[:-1]


def _is_malformed(source: Text) -> bool:
    return any(document.diagnostics for document in source.documents)


def _unreadable(diagnostic: Diagnostic, name: str) -> Diagnostic:
    where = "" if diagnostic.where == name else diagnostic.where
    return replace(diagnostic, path=where, rule=rules.UNREADABLE).in_file(name)


def _unknown(source: Text) -> Diagnostic:
    """A file that was named, and of which nothing can be said."""
    data = source.documents[0].data if source.documents else source.text
    remedy = "give an option file, model.yaml, config.pbtxt, deployment or server script"
    is_read = isinstance(data, dict | list) and not source.unread
    if not source.form and _is_template(source) and not is_read:
        what = "is a template that is no YAML before it is filled in"
        remedy = "fill it in, and check the result"
        return located(NOWHERE, "", what, remedy, rules.UNKNOWN_KIND, "warning")
    if data is None and not _is_malformed(source):
        return located(NOWHERE, "", "is empty", remedy, rules.EMPTY_FILE)
    if source.form == PROSE:
        what = "is text that runs nothing: what it mentions is not judged"
        return located(NOWHERE, "", what, remedy, rules.UNKNOWN_KIND, "warning")
    if source.form == PYTHON:
        what = "constructs no engine of the LLM API"
        return located(NOWHERE, "", what, remedy, rules.UNKNOWN_KIND, "warning")
    if source.form in (SCRIPT, DOCKERFILE):
        return located(NOWHERE, "", "starts no server", remedy, rules.UNKNOWN_KIND, "warning")
    if isinstance(data, dict | list):
        return located(NOWHERE, "", "kind not recognised", remedy, rules.UNKNOWN_KIND, "warning")
    return located(NOWHERE, "", "holds no options", remedy, rules.UNKNOWN_KIND)
