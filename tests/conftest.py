"""Fixtures that all tests share, and what holds for a run as a whole."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from builder import miniature
from builder.facts import advisories, checkpoint, images
from tests import groups, prefork, watcher

ROOT = Path(__file__).parent.parent

# Marks the processes of a session's launch tests, apart from those of others on this machine.
LAUNCH_TAG = "LAUNCH_TEST_SESSION"

# Generated examples are the same on every run, so that only what a change touches can fail it;
# `--hypothesis-profile anew` makes others. Hypothesis also draws numbers of the modules that happen
# to be imported, of which a change anywhere would change all examples: it gets none.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("anew", deadline=None, print_blob=True)
settings.load_profile("fixed")
providers._get_local_constants = Constants

# Ten thousand tests are collected and stay.
gc.set_threshold(50_000)

# Tests read YAML with the library in C, as the toolkit does: it takes a tenth of the time.
yaml.SafeLoader = yaml.CSafeLoader  # type: ignore[assignment, misc]

# Programs that the tests start run as they do for users, compiled once and not on every start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Begins the reason of a skipped test where data is missing that no clone has. Nothing else may be
# skipped under CI.
ABSENT = "shared/ is not beside this checkout"
# The same where `tests/run.sh fast` leaves tools out that come from packages.
NO_TOOLS = "a fast run needs no packages"

# The same where an older Slurm lacks what a step of `tests/run.sh` tests with a newer one.
NEWER_SLURM = "a newer Slurm is needed, which has a step of its own"

# The same for the tests on vLLM itself, which a step of `tests/run.sh` runs where it is wanted.
NO_VLLM = "vLLM's CPU build, 2.3 GB, is wanted with TEST_VLLM=1 only, in a step of its own"

# The day of the tests, as far as it matters: advisories grow old.
os.environ.setdefault("SOURCE_DATE_EPOCH", "1793059200")  # 2026-10-27

Run = Callable[..., subprocess.CompletedProcess[str]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden")
    help_text = "how many requests that no sound client sends the Triton model gets"
    parser.addoption("--fuzzed-requests", type=int, default=1000, metavar="N", help=help_text)
    help_text = "the Triton model within this process, without Triton; what needs it is skipped"
    parser.addoption("--model-in-process", action="store_true", help=help_text)
    parser.addoption("--exported", help="a folder that export_with_modelopt.py filled")


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return  # what follows is done once, by the process that started this worker
    if config.getoption("--update-golden") and os.environ.get("CI"):
        raise pytest.UsageError("--update-golden is refused under CI: it would accept any change")
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # as nohup sets it
        # Programs under test get the signal as usual; one of the terminal reaches none of them.
        signal.signal(signal.SIGHUP, lambda *_: None)
        with suppress(PermissionError):
            os.setsid()
    config.pluginmanager.register(groups.Stopwatch(config))
    watcher.begin()


@pytest.hookimpl(tryfirst=True)  # before the groups become a part of the tests' names
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    groups.arrange(items, groups.recorded(config))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Under CI, where every tool has to be there, a test that would be skipped fails."""
    report = yield
    if os.environ.get("CI") and report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        elsewhere = () if "SLURM_ROOT" in os.environ else (NEWER_SLURM,)
        if not reason.startswith((ABSENT, NO_TOOLS, NO_VLLM, *elsewhere)):
            report.outcome = "failed"
            report.longrepr = f"skipped under CI, where nothing may be missing: {reason}"
    return report


def of_release(name: str) -> list[str]:
    """Settings for a release; one below the minimum comes with the acceptance that it needs."""
    image = images.image("triton", name)
    versions = {"tensorrt_llm": name, "triton": (image and image.version) or ""}
    rows = [
        f"{{product: {product}, version: '{version}', reason: a test of an old release}}"
        for product, version in versions.items()
        if advisories.is_refused(product, version)
    ]
    return [f"engine.release={name}", f"accepted_advisories=[{', '.join(rows)}]"]


@pytest.fixture(scope="session")
def make_miniature(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The miniature of a known checkpoint, made once per session; it must not be changed."""
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("miniature") / name.replace("/", "--")
            made[name].mkdir()
            miniature.write(checkpoint.gather(name), made[name])
        return made[name]

    return make


@pytest.fixture(scope="session")
def one_layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A miniature with a single layer, which computes a token in a third of the time.

    For tests of servers, which ask nothing of the model; it must not be changed.
    """
    document = checkpoint.to_document(checkpoint.gather("llama-tiny"))
    document["config"]["num_hidden_layers"] = 1
    folder = tmp_path_factory.mktemp("one-layer") / "llama-tiny"
    folder.mkdir()
    miniature.write(checkpoint.from_document(document), folder)
    return folder


@pytest.fixture
def builder(tmp_path: Path) -> Run:
    """`python -m builder ARGUMENTS` of this checkout, in a folder of its own."""

    def run(*arguments: str | Path, cwd: Path = tmp_path) -> subprocess.CompletedProcess[str]:
        return prefork.shared().run(list(map(str, arguments)), cwd).done

    return run
