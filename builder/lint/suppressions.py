"""Comments that suppress findings: `# builder: ignore[RULE]` on a line, above it, or on top."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ..diagnostics import Diagnostic, Location, located
from ..general_rules import Rule

UNUSED_SUPPRESSION = Rule(
    "unused-suppression", "A comment suppresses a finding that is not there.", "warning"
)
MARK = "builder: ignore"
_COMMENT = re.compile(rf"(?:^|[\s,;])#\s*{MARK}\[([^\]\n]*)\]")


class Suppression(NamedTuple):
    """One rule of a comment: findings on a line of a file, or, with line 0, in the whole file."""

    file: str
    rule: str
    line: int
    place: Location

    def covers(self, row: Diagnostic) -> bool:
        is_here = self.line in (0, row.location.line)
        return is_here and self.file == row.where and self.rule == row.rule


def suppressions(text: str, file: str) -> Iterator[Suppression]:
    """Reads the comments of a text. One that is alone on its line is for the line below, or for the
    whole file if nothing but comments is above it."""
    is_top = True
    for number, line in enumerate(text.splitlines(), 1):
        is_alone = line.strip()[:1] in ("", "#") or line.strip() == "---"
        is_top = is_top and is_alone
        if found := _COMMENT.search(line):
            place = Location(number, line.index("#", found.start()) + 1)
            covered = 0 if is_top else number + is_alone
            for rule in found[1].split(","):
                yield Suppression(file, rule.strip(), covered, place)


def divided(
    findings: Iterable[Diagnostic], comments: Iterable[Suppression]
) -> tuple[list[Diagnostic], list[Diagnostic]]:
    """The findings to report, with a warning for each comment that suppresses none, and the
    suppressed ones."""
    kept, suppressed, unused = list[Diagnostic](), list[Diagnostic](), dict.fromkeys(comments)
    own = list(unused)
    for row in findings:
        covering = [comment for comment in own if comment.covers(row)]
        (suppressed if covering else kept).append(row)
        for comment in covering:
            unused.pop(comment, None)
    for file, rule, _, place in unused:
        what, fix = f"no finding of the rule {rule} is suppressed here", "remove the comment"
        kept.append(located(place, "", what, fix, UNUSED_SUPPRESSION).in_file(file))
    return kept, suppressed
