"""The tree keeps its shape: imports run one way, and the default install stays small."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

from tests import reach
from tests.conftest import ROOT

MOST_LINES, MOST_FUNCTION_LINES, MOST_HOMONYMS = 600, 60, 2


def layers() -> list[list[str]]:
    """The rows of ARCHITECTURE.md's table: a room may import those of its own row and above."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    section = text.partition("## Layers of `builder`")[2].partition("## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return [re.findall(r"`(\w+)`", row) for row in rows]


LAYERS = layers()
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def known_to_launch() -> set[str]:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    return set(
        re.findall(
            r"`(\w+)`",
            text.partition("Of `builder`, `launch` may import only")[2].partition(".")[0],
        )
    )


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def imports(path: Path) -> frozenset[str]:
    """Dotted names that a module imports, relative ones resolved, inside functions too."""
    return frozenset(reach.read(tree(path), path.relative_to(ROOT)).imports)


def builder_modules(path: Path) -> set[str]:
    parts = (name.split(".") for name in imports(path))
    return {name[1] for name in parts if name[0] == "builder" and len(name) > 1} & set(LEVEL)


def noun(path: Path) -> str:
    """The module of `builder` that a file belongs to."""
    return path.relative_to(ROOT / "builder").with_suffix("").parts[0]


BUILDER_FILES = [path for path in (ROOT / "builder").rglob("*.py") if path.stem != "__init__"]


def test_builder_imports_run_one_way() -> None:
    too_high = [
        (path.relative_to(ROOT).as_posix(), name)
        for path in BUILDER_FILES
        for name in builder_modules(path)  # both names make the message
        if LEVEL[name] > LEVEL[noun(path)]
    ]
    assert too_high == []


def test_bundle_imports_only_errors_and_how_files_are_read_and_checked() -> None:
    found = builder_modules(ROOT / "builder" / "bundle.py")
    assert found == {"diagnostics", "errors", "files", "schema"}


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
    assert known <= known_to_launch()


def test_the_reference_engine_also_knows_how_options_are_checked() -> None:
    known = set().union(*map(builder_modules, (ROOT / "launch" / "reference").rglob("*.py")))
    assert known <= known_to_launch() | {"rules", "lint"}


def test_nothing_but_main_imports_the_command_line_of_launch() -> None:
    files = [p for p in (ROOT / "launch").rglob("*.py") if p.parent.name != "cli"]
    users = [p.relative_to(ROOT) for p in files if any("launch.cli" in name for name in imports(p))]
    assert users == [Path("launch/__main__.py")]


def test_launch_knows_nothing_of_the_supervisor_but_what_both_need() -> None:
    """Files of the state and a service's description, words of Slurm, probes, ports, checks of
    nodes: the rest runs on compute nodes only."""
    names = {name for path in (ROOT / "launch").rglob("*.py") for name in imports(path)}
    used = {name.split(".")[1] for name in names if name.startswith("supervisor.")}
    assert used == {"state", "spec", "lock", "slurm", "checks", "ports", "network"}


def test_importing_the_builder_stays_light() -> None:
    heavy = {"numpy", "grpc", "torch", "jinja2", "pydantic"}
    code = f"import builder.cli.main, sys; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


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


@functools.cache
def product_modules() -> dict[str, Path]:
    """Every module of the product by its dotted name; of the Triton model by its name there."""
    return {name: ROOT / path for name, path in reach.modules(*reach.PRODUCT).items()}


@functools.cache
def graph() -> dict[str, set[str]]:
    """What each module of the product imports of it, for types and inside functions too."""
    modules = product_modules()
    edges: dict[str, set[str]] = {}
    for name, path in modules.items():
        package = name.split(".") if path.stem == "__init__" else name.split(".")[:-1]
        edges[name] = set()
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Import):
                found = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                above = package[: len(package) - node.level + 1] if node.level else []
                base = ".".join([*above, *([node.module] if node.module else [])])
                below = [f"{base}.{alias.name}" for alias in node.names]
                found = [one if one in modules else base for one in below]
            else:
                continue
            edges[name] |= {one for one in found if one in modules and one != name}
    return edges


def test_modules_and_functions_fit_a_reader() -> None:
    too_long = []
    for name, path in product_modules().items():
        text = path.read_text()
        if len(text.splitlines()) > MOST_LINES:
            too_long.append(name)
        for node in ast.walk(tree(path)):
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    if (node.end_lineno or 0) - node.lineno >= MOST_FUNCTION_LINES:
                        too_long.append(f"{name}.{node.name}")
    assert too_long == []


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        name
        for name, path in product_modules().items()
        if path.read_text().strip() and not ast.get_docstring(tree(path))
    ]
    assert silent == []


def test_no_imports_run_in_a_circle() -> None:
    TopologicalSorter(graph()).prepare()  # a CycleError names the circle


def test_only_main_imports_a_command_line() -> None:
    users = {
        name
        for name, imported in graph().items()
        if any(re.match(r"(builder|launch)\.cli\b", other) for other in imported)
    }
    outside = {name for name in users if not re.match(r"(builder|launch)\.(cli|__main__)\b", name)}
    assert outside == set()


def test_no_class_has_many_namesakes() -> None:
    names = Counter(
        node.name
        for path in product_modules().values()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > MOST_HOMONYMS] == []
