"""Validates every file of `builder/data` and writes the index of those that are valid.

    python -m maintenance.index_data

Of a file whose digest stands in the index, commands take the data from there.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from builder import command
from builder.documents import DATA
from builder.errors import BadFacts
from builder.facts import data_file
from builder.lint import data_files


def files() -> list[Path]:
    """Every data file that has a schema."""
    return [path for path in sorted(DATA.rglob("*")) if data_files.schema_of(path)]


def index() -> str:
    """The index of the files as they are now."""
    return "".join(map(data_file.index_line, files()))


def main(words: Sequence[str] = ()) -> int:
    return command.run(_run)


def _run() -> None:
    if found := [fault for path in files() for fault in data_files.validate(path)]:
        raise BadFacts(found)
    data_file.INDEX.write_text(index(), encoding="utf-8")
    print(f"{data_file.INDEX}: {len(files())} files")


if __name__ == "__main__":
    sys.exit(main())
