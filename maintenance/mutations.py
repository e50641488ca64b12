"""Mutates the code of a room, one small change at a time, and tells which changes no test notices.

    python -m maintenance.mutations [ROOM...] [--folder FOLDER] [--sample N [--seed N]]

mutmut makes the mutants and runs, for each, the tests that reach its function; a mutant that mypy
refuses counts as caught, since the types are checked with every change. What rooms there are, and
which survivors are harmless for what reason, is in `mutations.yaml`. Exit code 1: a survivor that
is not judged, or a score below the least one. With --folder a second run tries again what survived.
Needs the extra `mutations`.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from launch.bench.samples import wilson

ROOT = Path(__file__).parent.parent
DATA = Path(__file__).with_suffix(".yaml")
LEAST_PERCENT = 85.0
WHOLE = "number_of_mutants"  # a file beside a room's mutants: a sample holds fewer of them
SEED = 7  # so that two runs try the same sample, unless told otherwise
# Exit codes of a mutant in mutmut's files: a failed test, an internal error of pytest, what mypy
# refused, and the ways in which a time limit ends it. None is one that has not run.
CAUGHT = {1, 3, 37, 36, 24, -24, 152, 255}
UNREACHED = {5, 33}
# The quickest tests of a mutant are run first: any of them may catch it.
MUTMUT = """
from mutmut.__main__ import cli
from mutmut.runners.harness import PytestRunner
from mutmut.state import state
from mutmut.workers.isolation import ForkRunner
ForkRunner.run_clean_tests = lambda runner, tests: 0  # they have passed where they were timed
arguments = PytestRunner._pytest_args_regular_run
def quickest_first(runner, tests):
    known = state().duration_by_test
    return arguments(runner, sorted(tests, key=lambda name: (known.get(name, 0), name)))
PytestRunner._pytest_args_regular_run = quickest_first
any_child = ForkRunner.wait_for_result
def mutant_alone(runner, timeout=None):
    while True:
        try:
            return any_child(runner, timeout)
        except KeyError:  # a process that tests left to mutmut has ended, and is no mutant
            continue
ForkRunner.wait_for_result = mutant_alone
cli()
"""
# How long the tests of a mutant may take: a time of its own, and then so many times as usual.
PATIENCE = {"timeout_constant": 10.0, "timeout_multiplier": 4.0}
MAKE = """
import os
import mutmut.__main__ as mutmut
os.makedirs("mutants", exist_ok=True)
mutmut.copy_src_dir()
mutmut.copy_also_copy_files()
mutmut.create_mutants(1)
"""


@dataclass(frozen=True, slots=True)
class Room:
    """Modules that are mutated together, and the tests that should notice."""

    name: str
    modules: tuple[str, ...]  # patterns
    tests: tuple[str, ...]
    left_out: tuple[str, ...] = ()  # names of tests that cannot run on mutants
    beside: dict[str, str] = field(default_factory=dict)  # links to packages that lie deeper
    options: tuple[str, ...] = ()  # of pytest


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of a function: where, and the lines before and after it."""

    place: str  # supervisor/lock.py Lock.take
    change: str  # BEFORE => AFTER
    exit_code: int | None


@dataclass(frozen=True, slots=True)
class Judgement:
    """Mutants that may survive, by place and change, and why."""

    because: str
    mutants: frozenset[tuple[str, str]]

    def covers(self, mutant: Mutant) -> bool:
        return (mutant.place, mutant.change) in self.mutants


def read(path: Path = DATA) -> tuple[dict[str, Room], list[Judgement]]:
    """The rooms by name, and what was judged."""
    document: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    rooms = {
        name: Room(
            name,
            tuple(row["modules"]),
            tuple(row["tests"]),
            tuple(row.get("left_out", ())),
            row.get("beside", {}),
            tuple(row.get("options", ())),
        )
        for name, row in document["rooms"].items()
    }
    judged = [
        Judgement(
            row["because"],
            frozenset(
                (place, change) for place, changes in row["mutants"].items() for change in changes
            ),
        )
        for row in document["harmless"]
    ]
    return rooms, judged


def prepare(room: Room, folder: Path) -> None:
    """A folder in which mutmut works: links to this checkout, and settings of the room."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    tops = sorted({name.split("/")[0] for name in names.splitlines()} - {"pyproject.toml"})
    for name, target in {**{top: top for top in tops}, **room.beside}.items():
        link = folder / name
        link.unlink(missing_ok=True)
        link.symlink_to(ROOT / target)
    packages = sorted({pattern.split("/")[0] for pattern in room.modules})
    checked = [str(path) for pattern in room.modules for path in sorted(folder.glob(pattern))]
    types = [sys.executable, "-m", "mypy", "--output=json", "--no-warn-unused-ignores"]
    settings = {
        "source_paths": packages,
        "only_mutate": list(room.modules),
        "also_copy": [top for top in tops if top not in packages],
        "pytest_add_cli_args": ["-p", "no:cacheprovider", *room.options, *_left_out(room)],
        "pytest_add_cli_args_test_selection": list(room.tests),
        **PATIENCE,
        "type_check_command": [*types, *(str(Path(one).relative_to(folder)) for one in checked)],
    }
    rows = "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (folder / "pyproject.toml").write_text(f"{project}\n[tool.mutmut]\n{rows}", encoding="utf-8")


def _left_out(room: Room) -> list[str]:
    return ["-k", " and ".join(f"not {name}" for name in room.left_out)] if room.left_out else []


def forget(folder: Path) -> None:
    """So that mutmut tries again what survived an earlier run in the folder."""
    for path in _results(folder):
        document = json.loads(path.read_text(encoding="utf-8"))
        codes = document["exit_code_by_key"]
        document["exit_code_by_key"] = {
            key: code if code in CAUGHT else None for key, code in codes.items()
        }
        path.write_text(json.dumps(document), encoding="utf-8")


def run(room: Room, folder: Path, processes: int, sample: int | None, seed: int) -> None:
    """Make and try the mutants, or so many of them. Raises `CalledProcessError` where it cannot."""
    if sample:  # those of an earlier one are none of this one
        shutil.rmtree(folder / "mutants", ignore_errors=True)
    prepare(room, folder)
    forget(folder)
    # Mutated modules are many times as long as the code: they are compiled once.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    # Other runs of pytest clear away what they find beside theirs, and a fault of that kind ends
    # this one.
    temporary = folder / "temporary"
    temporary.mkdir(exist_ok=True)
    environment["PYTEST_DEBUG_TEMPROOT"] = str(temporary)
    make = [sys.executable, "-c", MAKE]
    subprocess.run(make, cwd=folder, check=True, stdout=subprocess.DEVNULL, env=environment)
    names = sorted(key for path in _results(folder) for key in _codes(path))
    (folder / WHOLE).write_text(str(len(names)), encoding="utf-8")
    if sample:
        reduce(folder, {*chosen_of(names, sample, seed)})
    command = [sys.executable, "-c", MUTMUT, "run", "--max-children", str(processes)]
    subprocess.run(command, cwd=folder, check=True, env=environment)


def reduce(folder: Path, chosen: Collection[str]) -> None:
    """Take all mutants but these out of the modules, which mypy and the tests read much faster."""
    for path in _results(folder):
        document = json.loads(path.read_text(encoding="utf-8"))
        codes = document["exit_code_by_key"]
        document["exit_code_by_key"] = {key: codes[key] for key in codes if key in chosen}
        path.write_text(json.dumps(document), encoding="utf-8")
        dropped = {key.rpartition(".")[2] for key in codes if key not in chosen}
        module = path.with_suffix("")
        lines = module.read_text(encoding="utf-8").splitlines(keepends=True)
        for node in ast.walk(ast.parse("".join(lines))):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Assign):
                continue
            if _version(node) in dropped:
                decorators = getattr(node, "decorator_list", [])
                first = min(one.lineno for one in (node, *decorators)) - 1
                last = node.end_lineno or node.lineno
                lines[first:last] = [""] * (last - first)
        module.write_text("".join(lines), encoding="utf-8")


def _version(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Assign) -> str:
    """The mutant that it defines, or that it puts where mutmut looks for it; else nothing."""
    if not isinstance(node, ast.Assign):
        return node.name
    target = node.targets[0]
    name = target.slice if isinstance(target, ast.Subscript) else None
    return str(name.value) if isinstance(name, ast.Constant) else ""


def chosen_of(names: Sequence[str], sample: int | None, seed: int) -> list[str]:
    """So many of them at random, or all."""
    if sample is None or sample >= len(names):
        return list(names)
    return random.Random(seed).sample(names, sample)


def sources(room: Room, pattern: str) -> set[str]:
    """The files of a pattern of the room, by the names that mutants have for them."""
    first, _, rest = pattern.partition("/")
    folder = ROOT / room.beside.get(first, first)
    return {f"{first}/{path.relative_to(folder).as_posix()}" for path in folder.glob(rest)}


def _results(folder: Path) -> list[Path]:
    return sorted((folder / "mutants").rglob("*.py.meta"))


def _codes(path: Path) -> dict[str, int | None]:
    codes: dict[str, int | None] = json.loads(path.read_text(encoding="utf-8"))["exit_code_by_key"]
    return codes


def mutants(folder: Path) -> Iterator[Mutant]:
    """All that mutmut made in the folder, each with how it ended."""
    made = folder / "mutants"
    for path in _results(folder):
        codes = _codes(path)
        module = path.with_suffix("")
        text = module.read_text(encoding="utf-8")
        versions = _functions(text)
        for key, code in codes.items():
            name = key.rpartition(".")[2]
            original = f"{name.partition('__mutmut_')[0]}__mutmut_orig"
            function = original.removesuffix("__mutmut_orig")
            dotted = function[2:] if function.startswith("x_") else function[2:].replace("ǁ", ".")
            place = f"{module.relative_to(made).as_posix()} {dotted}"
            yield Mutant(place, _change(versions[original], versions[name]), code)


def _functions(text: str) -> dict[str, list[str]]:
    """The lines of each version of a function below its name, by the name mutmut gave it."""
    lines = text.splitlines()
    return {
        node.name: [
            lines[node.lineno - 1].replace(node.name, ""),
            *lines[node.lineno : node.end_lineno],
        ]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and "__mutmut_" in node.name
    }


def _change(before: Sequence[str], after: Sequence[str]) -> str:
    rows = [row for row in difflib.ndiff(before, after) if row[0] in "-+"]
    sides = (" ".join(row[2:].strip() for row in rows if row[0] == sign) for sign in "-+")
    return " => ".join(sides)


def report(
    room: Room, found: Sequence[Mutant], judged: Sequence[Judgement], whole: int | None = None
) -> bool:
    """Print the score of a room and the survivors that nobody judged; whether all is well.

    Of a sample of the `whole` room it has an interval, which is Wilson's.
    """
    found = [one for one in found if one.exit_code is not None]
    survivors = [one for one in found if one.exit_code not in CAUGHT]
    open_ones = [one for one in survivors if not any(row.covers(one) for row in judged)]
    percent = 100 * (1 - len(survivors) / len(found)) if found else 0.0
    unreached = sum(one.exit_code in UNREACHED for one in survivors)
    score = f"{room.name}: {len(found)} mutants, {percent:.1f} % caught"
    if found and whole is not None and whole > len(found):
        low, high = (100 * bound for bound in wilson(percent / 100, len(found)))
        score = f"{room.name}: {len(found)} of {whole} mutants, {percent:.1f} % caught"
        score += f" (95 %: {low:.1f} to {high:.1f})"
    print(
        f"{score}; {len(survivors)} survived, "
        f"{unreached} of them where no test goes, {len(open_ones)} not judged"
    )
    place = None
    for one in open_ones:
        if one.place != place:
            place = one.place
            print(f"  {place}:")
        print(f"  - {json.dumps(one.change, ensure_ascii=False)}")
    return not open_ones and percent >= LEAST_PERCENT


def main() -> int:
    rooms, judged = read()
    parser = argparse.ArgumentParser(prog="python -m maintenance.mutations")
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=f"of {', '.join(rooms)}; all")
    parser.add_argument("--folder", type=Path, help="where results stay for the next run")
    parser.add_argument("--processes", type=int, default=1, help="mutants tried at a time; 1")
    parser.add_argument("--sample", type=int, help="try so many of a room, chosen at random")
    parser.add_argument("--seed", type=int, default=SEED, help=f"of the sample; {SEED}")
    parser.add_argument("--report", action="store_true", help="of the last run in the folder only")
    chosen = parser.parse_args()
    if unknown := set(chosen.rooms) - set(rooms):
        parser.error(f"no room {', '.join(sorted(unknown))}; there are {', '.join(rooms)}")
    if chosen.report and not chosen.folder:
        parser.error("--report needs the --folder of a run")
    passed = []
    with tempfile.TemporaryDirectory(prefix="mutations-") as temporary:
        for name in chosen.rooms or rooms:
            folder = (chosen.folder or Path(temporary)).resolve() / name
            if not chosen.report:
                run(rooms[name], folder, chosen.processes, chosen.sample, chosen.seed)
            found = list(mutants(folder))
            whole = int((folder / WHOLE).read_text(encoding="utf-8"))
            passed.append(report(rooms[name], found, judged, whole))
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
