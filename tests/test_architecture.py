"""The tree keeps its shape: imports run one way, and the default install stays small."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

# Each module may import the ones of its own row's left side, and anything further left.
LAYERS = (
    {"diagnostics"},
    {"errors"},
    {"documents", "bundle", "command", "signature"},
    {"facts", "render"},
    {"deployment"},
    {"site", "observability", "credentials", "miniature"},
    {"rules"},
    {"planning"},
    {"engines"},
    {"servers"},
    {"targets"},
    {"lint"},
    {"resolve", "manifest"},
    {"pipeline"},
    {"verification"},
    {"diff"},
    {"cli"},
    {"__main__"},
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}

# What `launch` may know of the builder.
LAUNCH_MAY_IMPORT = {"diagnostics", "errors", "bundle", "facts", "miniature", "command", "site"}


def imports(path: Path) -> Iterator[str]:
    """Dotted names that a module imports, relative ones resolved, inside functions too."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join(filter(None, (*above, node.module)))
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def builder_modules(path: Path) -> set[str]:
    parts = (name.split(".") for name in imports(path))
    return {name[1] for name in parts if name[0] == "builder" and len(name) > 1} & set(LEVEL)


def noun(path: Path) -> str:
    """The module of `builder` that a file belongs to."""
    return path.relative_to(ROOT / "builder").with_suffix("").parts[0]


BUILDER_FILES = [path for path in (ROOT / "builder").rglob("*.py") if path.stem != "__init__"]


@pytest.mark.parametrize("path", BUILDER_FILES, ids=lambda path: path.stem)
def test_builder_imports_run_one_way(path: Path) -> None:
    level = LEVEL[noun(path)]
    too_high = {name for name in builder_modules(path) if LEVEL[name] > level}
    assert not too_high


def test_bundle_imports_only_errors() -> None:
    assert builder_modules(ROOT / "builder" / "bundle.py") == {"diagnostics", "errors"}


def test_builder_never_imports_launch() -> None:
    users = [
        path
        for path in BUILDER_FILES
        if any(name.split(".")[0] == "launch" for name in imports(path))
    ]
    assert not users


def test_launch_knows_little_of_the_builder() -> None:
    files = [p for p in (ROOT / "launch").rglob("*.py") if "reference" not in p.parts]
    known = set().union(*map(builder_modules, files))
    assert known <= LAUNCH_MAY_IMPORT


@pytest.mark.parametrize("heavy", ["numpy", "grpc", "torch", "jinja2", "pydantic"])
def test_importing_the_builder_stays_light(heavy: str) -> None:
    code = f"import builder, builder.cli.main, sys; sys.exit({heavy!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_rendering_needs_none_of_the_extras(tmp_path: Path) -> None:
    """Nor does a miniature: both run with the default install."""
    code = (
        "import sys; from builder.cli.main import main\n"
        "assert main(['render', 'llama-tiny', '-o', 'bundle']) == 0\n"
        "assert main(['miniature', 'llama-tiny', '-o', 'tiny']) == 0\n"
        "sys.exit(bool({'numpy', 'grpc', 'torch', 'httpx', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False)
    assert done.returncode == 0


def test_templates_hold_layout_only() -> None:
    """No defaults, assignments, arithmetic on versions or model names."""
    for path in (ROOT / "templates").rglob("*.j2"):
        text = path.read_text()
        for word in ("default(", "{% set", "release ==", "deepseek", "llama"):
            assert word not in text.lower(), f"{path.name} holds {word}"
