"""Records what `check` finds in the public faults and in folders of files, to compare two versions.

    python -m tests.builder.lint.snapshot record OUT.json [FOLDER...]
    python -m tests.builder.lint.snapshot compare BEFORE.json AFTER.json

A change of `check` that is meant to change no finding is run through both. `record` without a
folder takes the public faults alone: each row of `semantic_faults.yaml` with its base. `compare`
prints the findings that only one side has, and exits with 1 if there are any.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from builder import lint, pipeline
from builder.diagnostics import Diagnostic
from tests.builder.lint.test_semantic_faults import BASES, FAULTS, base_findings, fault_findings

Findings = Mapping[str, Sequence[str]]


def shown(row: Diagnostic, folder: Path | None = None) -> str:
    """One finding as a line of text, with paths below the folder."""
    place = f"{row.location.line}:{row.location.column}"
    text = f"{place} {row.severity} {row.rule} [{row.within}|{row.path}] {row.message}; {row.fix}"
    return text.replace(f"{folder}/", "") if folder else text


def of_public_faults() -> Iterator[tuple[str, list[str]]]:
    """Each base and each fault with its findings."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for base in BASES:
            yield f"base {base}", [shown(row, folder) for row in base_findings(base, folder)]
        for fault in FAULTS:
            rows = [shown(row, folder) for row in fault_findings(fault, folder)]
            yield f"fault {fault['is']}", rows


def of_folder(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Each file below a folder, checked alone, and the folder as a whole."""
    options = lint.CheckOptions()
    for path in [*sorted(row for row in folder.rglob("*") if row.is_file()), folder]:
        name = f"{folder.name}/{path.relative_to(folder)}"
        report = lint.check([path], options, pipeline.deployment_diagnostics)
        findings = [f"{row.where}: {shown(row)}" for row in report.findings]
        rows = [*findings, *(f"note {note}" for note in report.notes), *map(str, report.files)]
        if rows:
            yield name, [row.replace(f"{folder}/", "") for row in rows]


def record(out: Path, folders: Sequence[Path]) -> None:
    """Write the findings of the public faults and of the folders as JSON."""
    found = dict(of_public_faults())
    for folder in folders:
        found |= of_folder(folder.resolve())
    out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{out}: {len(found)} cases, {sum(map(len, found.values()))} lines")


def compare(before: Findings, after: Findings) -> Iterator[str]:
    """The lines that only one side has."""
    for name in sorted(before.keys() | after.keys()):
        old, new = Counter(before.get(name, ())), Counter(after.get(name, ()))
        changes = [f"  - {row}" for row in old - new] + [f"  + {row}" for row in new - old]
        if changes:
            yield name
            yield from changes


def main(words: Sequence[str]) -> int:
    match words:
        case ["record", out, *folders]:
            record(Path(out), [Path(folder) for folder in folders])
            return 0
        case ["compare", before, after]:
            sides = [json.loads(Path(name).read_text(encoding="utf-8")) for name in (before, after)]
            changes = list(compare(*sides))
            print("\n".join(changes) or "no difference")
            return 1 if changes else 0
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
