"""Writes the table of rules in docs/linting.md anew.

python -m maintenance.rules_table
"""

from __future__ import annotations

from pathlib import Path

from builder.lint.rules.registry import markdown

PAGE = Path(__file__).parent.parent / "docs" / "linting.md"
BEGIN = "<!-- rules: python -m maintenance.rules_table -->"
END = "<!-- end of rules -->"


def with_table(page: str) -> str:
    """The text of the page with the table between its marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    return "\n".join((before + begin, *markdown(), end + after))


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
