"""Finds the test files that a change can reach, for `bash tests/run.sh changed`.

    python -m tests.reach [REVISION]      prints one file a line

The change is the difference to REVISION, or to where this branch left `main`, plus the files that
git does not track yet. A test needs what it imports, also inside functions, its fixtures, the
programs that it mentions, and the files whose name or folder it mentions. A file that nobody
mentions reaches every test.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PRODUCT = ("builder", "launch", "supervisor", "model_repository")
TREES = (*PRODUCT, "benchmarks", "maintenance", "tests")
# Triton and the reference engine have these folders on their path.
ON_PATH = ("model_repository/tensorrt_llm/1", "launch/reference")
# Tests start the programs in these folders by these words.
PROGRAMS = {
    **{tree: tree for tree in TREES if tree != "tests"},
    "reference": "launch/reference",
    "triton": "model_repository",
    "slurm": "supervisor",
}
# Of files below these folders, code mentions this part of the path and no later one.
MENTIONED_PART = {"builder/data": 2, "templates": 1, "tests/golden": 1}
# Longer strings are texts, which name nothing.
LONGEST_WORD = 200
# These mention programs for the tests that start them, and mention them too.
ABOUT_TESTS = ("tests.groups", "tests.prefork", "tests.reach")


class Code(NamedTuple):
    """The dotted names that code imports; its strings, and the parameters of its functions."""

    imports: set[str]
    words: set[str]


def name_of(path: PurePath) -> str:
    """The dotted name of a file of the checkout."""
    inside = path.as_posix()
    for folder in ON_PATH:
        inside = inside.removeprefix(f"{folder}/")
    parts = PurePath(inside).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules(*folders: str) -> dict[str, PurePath]:
    """Every module of these folders by its dotted name."""
    paths = (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))
    inside = (path.relative_to(ROOT) for path in paths)
    return {name_of(path): path for path in inside}


def read(node: ast.AST, path: PurePath) -> Code:
    """What code imports and mentions; of a module also what it takes from it."""
    name = name_of(path)
    package = name.split(".") if path.stem == "__init__" else name.split(".")[:-1]
    found = Code(set(), set())
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant):
            if isinstance(inner.value, str) and len(inner.value) < LONGEST_WORD:
                found.words.add(inner.value)
        elif isinstance(inner, ast.arg):
            found.words.add(inner.arg)
        elif isinstance(inner, ast.Import):
            found.imports.update(alias.name for alias in inner.names)
        elif isinstance(inner, ast.ImportFrom):
            above = package[: len(package) - inner.level + 1] if inner.level else []
            base = ".".join(filter(None, [*above, inner.module]))
            found.imports.update((base, *(f"{base}.{alias.name}" for alias in inner.names)))
        elif isinstance(inner, ast.Name) and inner.id == "import_module":
            found.imports.update(modules(str(path.parent)))  # data name one of them
    return found


def code() -> dict[str, Code]:
    """All modules, and each definition of a `conftest.py`, by their dotted names.

    A `conftest.py` itself stands for its hooks and automatic fixtures, which every test needs.
    """
    found: dict[str, Code] = {}
    for name, path in modules(*TREES).items():
        tree = ast.parse((ROOT / path).read_bytes())
        if path.name == "conftest.py":
            found |= _definitions(tree, name, path)
        else:
            found[name] = read(tree, path)
    return found


def _definitions(tree: ast.Module, module: str, path: PurePath) -> dict[str, Code]:
    sources: dict[str, set[str]] = {}
    for node in tree.body:
        for name in _defined(node):
            sources[name] = {f"{module}.{name}"}
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = read(node, path).imports
            for alias in node.names:
                own = {one for one in names if f".{one}".endswith(f".{alias.name}")}
                sources[alias.asname or alias.name] = own
    found = {module: Code(set(), set())}
    for node in tree.body:
        defined = _defined(node)
        part = read(node, path)
        names = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
        part.imports.update(*(sources.get(name, set()) for name in names - set(defined)))
        for name in defined:
            if name.startswith("pytest_"):
                found[module].imports.update(part.imports)
                continue
            found[f"{module}.{name}"] = part
            if _is_automatic(node):
                found[module].imports.add(f"{module}.{name}")
    return found


def _defined(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


def _is_automatic(node: ast.stmt) -> bool:
    return any(isinstance(one, ast.keyword) and one.arg == "autouse" for one in ast.walk(node))


def needs(found: dict[str, Code], paths: dict[str, PurePath]) -> dict[str, set[str]]:
    """Which code each code needs, by their dotted names."""
    of_program = {word: set(modules(folder)) for word, folder in PROGRAMS.items()}
    needed: dict[str, set[str]] = {}
    for name, (imported, mentioned) in found.items():
        needed[name] = set(imported)
        parts = name.split(".")
        if name in ABOUT_TESTS:
            needed[name] = {one for one in needed[name] if one.startswith("tests.")}
        if parts[0] != "tests" or name in ABOUT_TESTS:
            continue
        for word in mentioned & of_program.keys():
            needed[name] |= of_program[word]
        needed[name] |= {word for word in mentioned if word in paths and "." in word}
        for depth in range(1, len(parts)):
            above = ".".join([*parts[:depth], "conftest"])
            needed[name] |= {above, *(f"{above}.{word}" for word in mentioned)} & found.keys()
    return needed


def changed(revision: str) -> set[str]:
    """Files that differ from a revision, with those that git does not track yet."""
    found = set()
    for command in (
        ["diff", "--name-only", "--no-renames", revision],
        ["ls-files", "--others", "--exclude-standard"],
    ):
        done = subprocess.run(
            ["git", *command], cwd=ROOT, capture_output=True, text=True, check=True
        )
        found |= set(done.stdout.splitlines())
    return found


def reached(files: Iterable[str]) -> list[str]:
    """The test files that these files of the checkout can reach."""
    found, paths = code(), modules(*TREES)
    users = defaultdict(set)
    for name, needed in needs(found, paths).items():
        for other in needed:
            users[other].add(name)
    waiting = [name for file in files for name in _begin(PurePath(file), found)]
    seen = set()
    while waiting:
        if (name := waiting.pop()) not in seen:
            seen.add(name)
            waiting += users[name]
    tests = {name for name in seen if name.rpartition(".")[2].startswith("test_")}
    return sorted(str(paths[name]) for name in tests if name in paths)


def _begin(file: PurePath, found: dict[str, Code]) -> Iterable[str]:
    """The code that a changed file is, or that mentions it; all code if none does."""
    if file.suffix == ".py" and file.parts[0] in TREES:
        return [name_of(file)]
    if (test := name_of(file)).startswith("tests.") and test in found:
        return [test]  # the tables of its cases (`tests.tables`)
    readers: tuple[str, ...] = ("tests.", "maintenance.")
    mentions = {file.name, f"*{file.suffix}", *file.parts[1:][-2:-1]}
    for folder, index in MENTIONED_PART.items():
        if file.is_relative_to(folder):
            mentions = {file.parts[index]}
            readers = ("tests.",) if folder.startswith("tests") else ("builder.",)
    users = [
        name
        for name, one in found.items()
        if name.startswith(readers)
        and name not in ABOUT_TESTS
        and any(mentions & set(word.split("/")) for word in one.words)
    ]
    return users or found


def main(arguments: list[str]) -> None:
    """Print the test files that the change can reach."""
    revision = arguments[0] if arguments else left_main()
    print(*reached(changed(revision)), sep="\n")


def left_main() -> str:
    command = ["git", "merge-base", "HEAD", "main"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "HEAD"


if __name__ == "__main__":
    main(sys.argv[1:])
