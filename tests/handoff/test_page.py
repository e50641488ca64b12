"""The runbook's page in a real browser, as its readers have it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page

from builder import pipeline
from tests.handoff import runbook
from tests.launch.report.conftest import browser as browser
from tests.launch.report.conftest import idle as idle
from tests.launch.report.conftest import opened as opened

Open = Callable[..., Page]
WIDE = {"width": 1320, "height": 900}
PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The handoff of a bundle with every target that adds to the page."""
    folder = tmp_path_factory.mktemp("page") / "bundle"
    settings = ["targets={triton: {}, kubernetes: {}, compose: {}, monitoring: {}, handoff: {}}"]
    pipeline.render("deepseek-v3.2-nvfp4-gb200", folder, settings)
    return folder / "handoff"


@pytest.mark.parametrize("name", ["runbook", "slo"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("screen", [WIDE, PHONE], ids=["wide", "phone"])
def test_nothing_is_wider_than_the_screen(
    name: str, scheme: str, screen: dict[str, int], folder: Path, opened: Open
) -> None:
    page = opened(folder / f"{name}.html", viewport=screen, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= screen["width"]


def test_the_contents_stay_in_view_on_wide_screens(folder: Path, opened: Open) -> None:
    page = opened(folder / "runbook.html", viewport=WIDE)
    page.locator("#vulnerabilities").scroll_into_view_if_needed()
    box = page.locator("nav").bounding_box()
    assert box and 0 <= box["y"] < 100


def test_a_link_of_an_alert_opens_its_part(folder: Path, opened: Open) -> None:
    page = opened(folder / "runbook.html", viewport=PHONE)
    page.evaluate("location.hash = '#alert-server-not-ready'")
    box = page.locator("#alert-server-not-ready").bounding_box()
    assert box and 0 <= box["y"] < PHONE["height"] / 2


def test_every_command_is_reached_by_keyboard_and_marked_whole(folder: Path, opened: Open) -> None:
    page = opened(folder / "runbook.html", viewport=WIDE)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.locator("pre:not([tabindex])").count() == 0
    styles = "[...document.querySelectorAll('pre code')].map(e => getComputedStyle(e).userSelect)"
    assert set(page.evaluate(styles)) == {"all"}


def test_what_is_copied_is_what_the_markdown_says(folder: Path, opened: Open) -> None:
    page = opened(folder / "runbook.html", viewport=WIDE)
    shown = page.locator("pre code").all_text_contents()
    written = [block.script.rstrip("\n") for block in runbook.read(folder / "runbook.md")]
    assert shown == written


def test_contents_and_colours_stay_off_paper(folder: Path, opened: Open) -> None:
    page = opened(folder / "runbook.html", viewport=WIDE, color_scheme="dark")
    page.emulate_media(media="print")
    assert not page.locator("nav").is_visible()
    ink = page.evaluate("getComputedStyle(document.documentElement).color")
    assert ink == "rgb(23, 32, 42)"
