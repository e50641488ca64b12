"""What holds for every run of the tests: what CI refuses, and what `nohup` changes."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import again, groups, skipping_run, tables
from tests.conftest import ROOT

NO_CACHE = ("-p", "no:cacheprovider")


def run(*arguments: str, prefix: tuple[str, ...] = (), **variables: str) -> tuple[int, str]:
    """The status and the output of a run of the tests that are skipped."""
    command = [*prefix, sys.executable, "-m", "pytest", *(arguments or NO_CACHE)]
    environment = {name: value for name, value in os.environ.items() if name != "CI"} | variables
    done = subprocess.run(
        [*command, str(skipping_run.__file__)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_every_table_has_its_test_or_name() -> None:
    for path in (ROOT / "tests").rglob("test_*.yaml"):
        code = path.with_suffix(".py").read_text()
        for name in tables.tables(path):
            used = rf'@by_table\n( *@.*\n)* *def {name}\(|\b{name} = TABLES\["{name}"\]'
            assert re.search(used, code), f"{path}: {name}"


def test_a_missing_tool_fails_its_tests_under_ci() -> None:
    status, said = run(CI="true")
    assert status == 1
    assert "1 failed, 1 passed, 1 skipped, 1 error" in said
    assert "skipped under CI, where nothing may be missing: no such tool on this machine" in said
    assert "skipped under CI, where nothing may be missing: no such cluster on this machine" in said


def test_golden_bundles_are_not_rewritten_under_ci() -> None:
    status, said = run(*NO_CACHE, "--update-golden", CI="true")
    assert status == 4
    assert "--update-golden is refused under CI" in said


def test_tests_of_a_group_run_on_one_worker() -> None:
    """Else each worker starts servers of its own for the tests that share one."""
    files = ["tests/test_reach.py", "tests/supervisor/test_times.py"]
    options = ["-n", "2", "--dist", "loadgroup", "-v", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    ran = re.findall(r"^\[(gw\d)\].* PASSED (\S+?)::", done.stdout, re.MULTILINE)
    assert {file for _, file in ran} == set(files), done.stdout
    assert len(set(ran)) == len(files), "a file's tests ran on several workers"


def test_the_longest_groups_start_first_and_many_short_ones_come_last() -> None:
    """A group that no run recorded starts before the recorded ones that wait, as it is listed."""
    seconds = {"Slurm": 9.0, "Triton": 40.0, "up": 3.0, "a.py": 1.0, "b.py": 5.0, "c.py": 2.0}
    seconds |= {"d.py": 0.5, "e.py": 0.2, "f.py": 0.1}
    order = ["up", "b.py", "Triton", "c.py", "Slurm", "a.py", "d.py", "e.py", "f.py"]
    assert groups._order(seconds, seconds.keys() - {"up"}) == order
    assert [name for name in groups._order(seconds, ()) if ".py" not in name] == [
        "Slurm",
        "Triton",
        "up",
    ]


def test_a_run_without_a_terminal_skips_what_has_no_tool_and_records_seconds(
    tmp_path: Path,
) -> None:
    """Programs under test end with their terminal. A run of some tests of a file records none."""
    words = ["-o", f"cache_dir={tmp_path}"]
    recorded = tmp_path / "v" / groups.CACHED
    run(*words, "-k", "terminal")
    assert not recorded.exists()
    status, said = run(*words, prefix=("nohup",))
    assert status == 0
    assert "1 passed, 3 skipped" in said
    assert "no such tool on this machine" in said
    [(file, seconds)] = json.loads(recorded.read_text()).items()
    assert file == "tests/skipping_run.py"
    assert seconds > 0


def test_few_failures_of_a_whole_run_are_run_again_by_name() -> None:
    """A test's own name may hold what begins the name of its group."""
    few = [
        "tests/a.py::test[user@host]@Slurm",
        "tests/b.py::test[q - z]@tests/b.py",
        "tests/c.py::t",
    ]
    expected = ["tests/a.py::test[user@host]", "tests/b.py::test[q - z]", "tests/c.py::t"]
    assert again.names(few) == expected
    assert again.names([*few, "tests/d.py::t"]) == []
    assert again.names(["gw2"]) == []


def test_generated_examples_do_not_depend_on_what_else_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a number in a module that a test never uses would change its examples."""

    def examples() -> list[int]:
        found = []

        @given(st.integers(0, 10**9))
        def take(number: int) -> None:
            found.append(number)

        take()
        return found

    before = examples()
    (tmp_path / "of_another_room.py").write_text(f"NUMBERS = {list(range(1001, 1101))}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("of_another_room")
    assert examples() == before
    assert before
