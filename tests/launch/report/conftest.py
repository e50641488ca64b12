"""Pages, and a real browser to look at them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from builder import bundle
from builder.cli.main import main as builder_main
from launch.report import page
from tests.launch.report import samples

BROWSERS = ("chromium", "google-chrome", "chromium-browser", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",  # as root there is none
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")  # while it is there, no other event loop can run
def browser() -> Iterator[Browser]:
    """A headless browser with a profile of its own, that of the machine."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"no browser on this machine: none of {', '.join(BROWSERS)}")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=found, args=list(FLAGS))
        yield running
        running.close()


@pytest.fixture(scope="module")
def idle(browser: Browser) -> dict[str, Page]:
    """Windows that no test has, by their settings: to open another takes a second."""
    return {}


@pytest.fixture
def opened(browser: Browser, idle: dict[str, Page]) -> Iterator[Callable[..., Page]]:
    """A page in a window of its own, with the network off. What goes wrong in it fails the test."""
    faults: list[str] = []
    asked: list[str] = []
    windows: list[tuple[str, Page]] = []
    heard: dict[str, Callable[[Any], None]] = {
        "console": lambda message: faults.append(f"console: {message.text}"),
        "pageerror": lambda error: faults.append(f"error: {error}"),
        "dialog": lambda dialog: faults.append(f"dialog: {dialog.message}"),
        "request": lambda request: asked.append(request.url),
    }

    def open_(file: Path, **settings: Any) -> Page:
        key = json.dumps(settings, sort_keys=True)
        window = idle.pop(key, None) or browser.new_context(offline=True, **settings).new_page()
        windows.append((key, window))
        listen: Any = window.on
        for event, hear in heard.items():
            listen(event, hear)
        window.goto(file.as_uri())
        return window

    yield open_
    for key, window in windows:
        forget: Any = window.remove_listener
        for event, hear in heard.items():
            forget(event, hear)
        window.goto("about:blank")
        window.mouse.move(0, 0)
        window.emulate_media(media="null")
        idle[key] = window
    assert not faults
    asked = [url for url in asked if not url.startswith("data:")]
    assert len(asked) == len(windows)  # the page itself, and nothing beside it


@pytest.fixture(scope="session")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> samples.Json:
    """A rendered bundle, as bench.json names it."""
    folder = tmp_path_factory.mktemp("bundle") / "deepseek-v3.2-nvfp4-gb200"
    assert builder_main(["render", folder.name, "-o", str(folder)]) == 0
    digest = bundle.read(folder).digest
    return {"name": folder.name, "folder": str(folder), "digest": digest}


Written = Callable[..., Path]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """The page of documents, each in a run folder of its own."""

    def write(*documents: samples.Json) -> Path:
        runs = [
            samples.run_folder(tmp_path / f"run-{index}", document)
            for index, document in enumerate(documents)
        ]
        page.write(runs, tmp_path / "report.html")
        return tmp_path / "report.html"

    return write


@pytest.fixture(scope="session")
def session_page(
    tmp_path_factory: pytest.TempPathFactory, rendered: samples.Json
) -> Callable[[str], Path]:
    """Pages of several tests: of `one` run, `four` runs, a `rehearsal`, and one that `failed`."""
    documents = {
        "one": [samples.bench(bundle=rendered)],
        "four": four(rendered),
        "rehearsal": [samples.bench(bundle=rendered, rehearsal=True)],
    }
    folder = tmp_path_factory.mktemp("pages")

    def page_of(name: str) -> Path:
        file = folder / f"{name}.html"
        if not file.exists():
            runs = [
                samples.run_folder(folder / f"{name}-{index}", document)
                for index, document in enumerate(documents.get(name, ()))
            ]
            page.write(runs or [failed_run(folder / name)], file)
        return file

    return page_of


def failed_run(folder: Path) -> Path:
    """The folder of a run whose server did not start."""
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps(samples.FAILED_START))
    return folder


def four(rendered: samples.Json) -> list[samples.Json]:
    """Four configurations, each slower than the one before, at seven concurrencies."""
    speeds = {"nvfp4": 3.4, "fp8": 4.1, "fp8 EP4": 5.2, "nvfp4 MTP off": 6.8}
    return [
        samples.bench(
            name,
            bundle=rendered,
            points=[samples.point(load, tpot_ms=tpot_ms) for load in samples.LOADS],
        )
        for name, tpot_ms in speeds.items()
    ]


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[object, str], Path]:
    """A document in a file."""

    def save(document: object, name: str = "bench.json") -> Path:
        file = tmp_path / name
        file.write_text(document if isinstance(document, str) else json.dumps(document))
        return file

    return save
