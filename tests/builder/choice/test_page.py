"""The page of a choice in a real browser, as its readers have it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page

from builder.choice import page, report, request, selection
from builder.estimates import Estimator
from tests.builder.choice.test_choose import OPEN
from tests.launch.report.conftest import browser as browser
from tests.launch.report.conftest import idle as idle
from tests.launch.report.conftest import opened as opened

Open = Callable[..., Page]
WIDE = {"width": 1320, "height": 900}
PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("choice")
    text = OPEN.replace("nvidia/DeepSeek-R1-0528-NVFP4-v2", "nvidia/Llama-3.3-70B-Instruct-FP8")
    text = text.replace("name: r1", "name: r1-b").replace("{b200: 4.5}", "4.5")
    hardware = "hardware: {gpu: [b200, h200], num_gpus: {at_most: 4}}"
    text = text.replace("hardware: {gpu: b200, num_gpus: {at_most: 8}}", hardware)
    (folder / "open.yaml").write_text(text)
    found = selection.select(request.read(str(folder / "open.yaml")), Estimator.load())
    chosen = report.chosen(found)
    assert chosen is not None
    (folder / "choice.html").write_text(page.text(found, chosen[0]))
    return folder / "choice.html"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("screen", [WIDE, PHONE], ids=["wide", "phone"])
def test_nothing_is_wider_than_the_screen(
    scheme: str, screen: dict[str, int], file: Path, opened: Open
) -> None:
    shown = opened(file, viewport=screen, color_scheme=scheme)
    assert shown.evaluate("document.documentElement.scrollWidth") <= screen["width"]


def test_a_wide_screen_and_paper_show_every_column(file: Path, opened: Open) -> None:
    cut = "all => all.filter(one => one.scrollWidth > one.clientWidth).map(one => one.innerText)"
    shown = opened(file, viewport=WIDE)
    assert shown.locator(".scroll").evaluate_all(cut) == []
    shown.set_viewport_size({"width": 703, "height": 1000})  # A4 within its margins
    shown.emulate_media(media="print")
    assert shown.locator(".scroll").evaluate_all(cut) == []


def test_a_dark_screen_gets_a_dark_page(file: Path, opened: Open) -> None:
    papers = {
        scheme: opened(file, color_scheme=scheme).evaluate(
            "getComputedStyle(document.documentElement).backgroundColor"
        )
        for scheme in ("light", "dark")
    }
    assert papers == {"light": "rgb(255, 255, 255)", "dark": "rgb(16, 19, 23)"}


def test_the_picture_has_the_chosen_one_the_front_and_every_option(
    file: Path, opened: Open
) -> None:
    shown = opened(file, viewport=WIDE)
    marks = shown.locator("svg.plot .mark")
    assert marks.count() == shown.locator("tbody tr").count()
    assert shown.locator("svg.plot .mark.chosen").count() == 1
    box = shown.locator("svg.plot").bounding_box()
    for place in range(marks.count()):
        mark = marks.nth(place).bounding_box()
        assert box and mark
        assert box["x"] <= mark["x"] and mark["x"] + mark["width"] <= box["x"] + box["width"]
        assert box["y"] <= mark["y"] and mark["y"] + mark["height"] <= box["y"] + box["height"]


def test_a_phone_can_read_the_picture(file: Path, opened: Open) -> None:
    shown = opened(file, viewport=PHONE)
    tick = shown.locator("svg.plot text:visible").first.bounding_box()
    assert tick and tick["height"] >= 10
    box = shown.locator("svg.plot").bounding_box()
    labels = shown.locator("svg.plot text.label:visible")
    assert labels.count()
    for place in range(labels.count()):
        label = labels.nth(place).bounding_box()
        assert box and label
        assert box["x"] <= label["x"] and label["x"] + label["width"] <= box["x"] + box["width"]
