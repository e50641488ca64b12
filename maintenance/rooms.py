"""Counts what there is to learn: modules, lines, classes and namesakes, by folder.

python -m maintenance.rooms
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
TREES = ("builder", "launch", "supervisor", "model_repository")


def main() -> None:
    """Print a row per folder, then the whole."""
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    classes: Counter[str] = Counter()
    longest_module, longest_function = (0, ""), (0, "")
    for path in (path for tree in TREES for path in sorted((ROOT / tree).rglob("*.py"))):
        parts = path.relative_to(ROOT).parts
        text = path.read_text(encoding="utf-8")
        nodes = list(ast.walk(ast.parse(text)))
        names = [node.name for node in nodes if isinstance(node, ast.ClassDef)]
        classes.update(names)
        lines = len(text.splitlines())
        longest_module = max(longest_module, (lines, "/".join(parts)))
        for node in nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = (node.end_lineno or node.lineno) - node.lineno + 1
                longest_function = max(longest_function, (size, f"{'/'.join(parts)}:{node.name}"))
        for row in ("/".join(parts[:2]) if len(parts) > 2 else parts[0], "all"):
            rows[row].update(modules=1, lines=lines, classes=len(names))
    print(f"{'':32}{'modules':>8}{'lines':>8}{'classes':>8}{'mean':>6}")
    for row in [*sorted(rows.keys() - {"all"}), "all"]:
        counts = rows[row]
        mean = counts["lines"] / counts["modules"]
        print(f"{row:32}{counts['modules']:8}{counts['lines']:8}{counts['classes']:8}{mean:6.0f}")
    print(f"class names used twice or more: {sum(count > 1 for count in classes.values())}")
    print(f"longest module: {longest_module[1]}, {longest_module[0]} lines")
    print(f"longest function: {longest_function[1]}, {longest_function[0]} lines")


if __name__ == "__main__":
    main()
