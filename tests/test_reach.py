"""Which test files a change reaches, in a small tree of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests import reach

TREE: Mapping[str, str] = {
    "builder/cli.py": "def main():\n    from . import pipeline\n",
    "builder/pipeline.py": "from .facts.hardware import GPU\nfrom .engines import of\n",
    "builder/facts/hardware.py": 'GPU = DATA / "hardware" / "gpu.yaml"\n',
    "supervisor/unused.py": "",
    "builder/engines/__init__.py": 'def of(name):\n    import_module(f"{__name__}.{name}")\n',
    "builder/engines/vllm.py": "",
    "builder/data/hardware/gb200.yaml": "",
    "launch/reference/tensorrt_llm/llm.py": "from .options import check\n",
    "launch/reference/tensorrt_llm/options.py": "",
    "launch/up.py": "",
    "tests/conftest.py": """\
from builder.facts import hardware
from launch import up
from tests import groups, prefork
from tests.prefork import run as run
ROOT = 1
def pytest_collection_modifyitems(items): groups.arrange(items)
@pytest.fixture
def gpu(): return hardware.GPU
@pytest.fixture
def program(): return run("builder")
""",
    "tests/groups.py": 'GROUPS = ("launch", "Launch")\n',
    "tests/prefork.py": "import builder.cli\nimport launch.up\n",
    "tests/builder/test_cli.py": "def test(program): ...\n",
    "tests/builder/test_gpu.py": "def test(gpu): ...\n",
    "tests/builder/test_render.py": (
        'from builder import pipeline\nfrom tests.conftest import ROOT\nGOLDEN = "tests/golden"\n'
    ),
    "tests/docs/test_pages.py": 'PAGES = ROOT.glob("docs/*.md")\n',
    "tests/golden/tiny/config.yaml": "",
    "tests/launch/conftest.py": (
        "from launch import up\n@pytest.fixture(autouse=True)\ndef tidy(): up.end()\n"
    ),
    "tests/launch/test_servers.py": 'def test(): serve("--engine", "reference")\n',
    "tests/launch/test_words.py": "",
    "docs/clients.md": "",
    "LICENSE": "",
}
CLI, GPU, RENDER = (f"builder/test_{name}.py" for name in ("cli", "gpu", "render"))
PAGES, SERVERS, WORDS = "docs/test_pages.py", "launch/test_servers.py", "launch/test_words.py"
EVERY = {CLI, GPU, RENDER, PAGES, SERVERS, WORDS}


@pytest.fixture(autouse=True)
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in TREE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(reach, "ROOT", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        pytest.param(f"tests/{WORDS}", {WORDS}, id="a test"),
        pytest.param("supervisor/unused.py", set(), id="code that nothing imports"),
        pytest.param("builder/cli.py", {CLI}, id="a program that a fixture runs"),
        pytest.param("builder/pipeline.py", {CLI, RENDER}, id="code imported inside a function"),
        pytest.param("builder/facts/hardware.py", {CLI, GPU, RENDER}, id="code of a fixture"),
        pytest.param("builder/engines/vllm.py", {CLI, RENDER}, id="a module that data name"),
        pytest.param("builder/data/hardware/gb200.yaml", {CLI, GPU, RENDER}, id="data"),
        pytest.param("launch/up.py", {SERVERS, WORDS}, id="code of an automatic fixture"),
        pytest.param(
            "launch/reference/tensorrt_llm/options.py", {SERVERS}, id="the reference engine"
        ),
        pytest.param("tests/groups.py", EVERY, id="code of a hook"),
        pytest.param("tests/golden/tiny/config.yaml", {RENDER}, id="a golden file"),
        pytest.param("tests/launch/test_words.yaml", {WORDS}, id="the tables of a test"),
        pytest.param("docs/clients.md", {PAGES}, id="a page, by its suffix"),
        pytest.param("LICENSE", EVERY, id="a file that nothing mentions"),
    ],
)
def test_a_change_reaches_what_needs_it(file: str, expected: set[str]) -> None:
    assert reach.reached([file]) == sorted(f"tests/{name}" for name in expected)


def test_a_change_is_what_git_does_not_have_at_the_revision(tree: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", *words], cwd=tree, check=True, capture_output=True)

    git("init", "--initial-branch", "main")
    git("add", ".")
    git("-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "--message", "first")
    assert reach.changed(reach.left_main()) == set()
    (tree / "LICENSE").unlink()
    (tree / "launch/up.py").write_text("changed = True\n")
    (tree / "new.txt").touch()
    assert reach.changed(reach.left_main()) == {"LICENSE", "launch/up.py", "new.txt"}
