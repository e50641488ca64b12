"""Figures that a command measures, a file keeps and a page of the documentation shows."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Page:
    """The file of the figures, and the page that has their table between two marks."""

    figures: Path
    path: Path
    name: str

    @property
    def begin(self) -> str:
        return f"<!-- {self.name}: python -m benchmarks.{self.figures.stem} --write -->"

    @property
    def end(self) -> str:
        return f"<!-- end of {self.name} -->"

    def with_table(self, table: str) -> str:
        """The page's text with a table between its marks."""
        before, begin, rest = self.path.read_text(encoding="utf-8").partition(self.begin)
        _, end, after = rest.partition(self.end)
        return f"{before}{begin}\n{table}\n{end}{after}"

    def write(self, document: Document, table: str) -> None:
        self.figures.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        self.path.write_text(self.with_table(table), encoding="utf-8")


def main(
    words: Sequence[str],
    text: str | None,
    page: Page,
    report: Callable[[], Document],
    table: Callable[[Document], str],
    misses: Callable[[Document], Iterable[str]],
) -> int:
    """Measures, prints, and with `--check` ends with 1 where a bound is missed."""
    parser = argparse.ArgumentParser(description=(text or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail where a bound is missed")
    parser.add_argument("--json", action="store_true", help="print JSON")
    keep = f"keep the figures, and the table in docs/{page.path.name}"
    parser.add_argument("--write", action="store_true", help=keep)
    options = parser.parse_args(words)
    document = report()
    if options.write:
        page.write(document, table(document))
    print(json.dumps(document, indent=1) if options.json else table(document))
    missed = list(misses(document)) if options.check else []
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if missed else 0
