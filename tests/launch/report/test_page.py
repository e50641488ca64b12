"""The page in a real browser: what a reader sees, and what a reader does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from builder import render
from launch.report import page
from launch.report.verdict import REHEARSAL
from tests.launch.report import samples
from tests.launch.report.conftest import Written

Opened = Callable[..., Page]
PageOf = Callable[[str], Path]

PHONE = {"viewport": {"width": 390, "height": 844}}
expect.set_options(timeout=30_000)

CHARTS = ("throughput", "interactivity", "ttft", "itl")


@pytest.mark.parametrize("name", ["one", "four", "rehearsal"])
def test_it_shows_everything_without_a_network(
    opened: Opened, session_page: PageOf, name: str
) -> None:
    window = opened(session_page(name))
    expect(window.get_by_role("heading", level=1)).to_be_visible()
    assert window.locator("html").get_attribute("lang") == "en"
    for landmark in ("banner", "main", "contentinfo"):
        expect(window.get_by_role(landmark)).to_have_count(1)
    for chart in CHARTS:
        if (name, chart) != ("rehearsal", "interactivity"):
            expect(window.locator(f"#{chart} svg.plot.lin")).to_be_visible()


def test_the_first_screen_says_what_came_out(opened: Opened, session_page: PageOf) -> None:
    window = opened(session_page("one"), viewport={"width": 1280, "height": 800})
    top = window.locator(".verdict")
    expect(top.get_by_role("heading")).to_have_text(
        "Within the SLO with up to 16 concurrent requests"
    )
    expect(top).to_contain_text("All 1,280 requests succeeded.")
    expect(top).to_contain_text("2 of 3 smoke checks passed, 1 with a warning.")
    expect(top.locator(".tiles > div").first).to_contain_text("4,361 tokens/s")
    expect(window.locator("header")).to_contain_text("nvidia/DeepSeek-V3.2-NVFP4 4x gb200")
    bottom = top.bounding_box()
    assert bottom and bottom["y"] + bottom["height"] < 800


def test_a_failed_start_shows_its_cause_its_phases_and_its_options(
    opened: Opened, session_page: PageOf
) -> None:
    window = opened(session_page("failed"))
    expect(window.locator(".note.bad").first).to_contain_text(
        "The server failed in phase kv. One of several causes: "
        "The KV cache does not fit: 11.5 GiB were free."
    )
    section = window.get_by_role("region", name="Diagnosis", exact=True)
    expect(section.locator("div", has_text="nvidia-smi lists it").first).to_contain_text("or")
    expect(section).not_to_contain_text("rank 0")  # a symptom is shown without a cause only
    for words in ("server.log:41", "free_gpu_memory_fraction: 0.8", "confirmed", "#5872"):
        expect(section).to_contain_text(words)
    rows = window.get_by_role("table", name="Phases of the start").get_by_role("row")
    assert rows.all_inner_texts()[2].split() == ["load", "61.5", "s", "48", "s", "+13.5", "s"]
    rows = window.get_by_role("table", name="Planned and in force").get_by_role("row")
    assert [text.split()[-1] for text in rows.all_inner_texts()] == ["verdict", "differs", "tokens"]


def test_a_start_that_failed_without_a_cause_shows_what_its_line_may_mean(
    opened: Opened, tmp_path: Path
) -> None:
    unknown = {**samples.FAILED_START["diagnosis"], "causes": []}
    run = json.dumps({**samples.FAILED_START, "diagnosis": unknown})
    (tmp_path / "run.json").write_text(run)
    page.write([tmp_path], tmp_path / "report.html")
    section = opened(tmp_path / "report.html").get_by_role("region", name="Diagnosis", exact=True)
    terms = section.locator("dl > div").all_inner_texts()
    assert [" ".join(text.split()) for text in terms[:2]] == [
        "find out Read the log of rank 0.",
        "perhaps A rank died: its log ends first",
    ]
    for words in ("does not tell which cause it has", "The cause is unknown", "server.log:40"):
        expect(section).to_contain_text(words)


def test_points_are_labelled_as_published_figures_are(opened: Opened, session_page: PageOf) -> None:
    labels = opened(session_page("one")).locator("#throughput .lin .label").all_text_contents()
    assert {"8", "64", "1, published"} <= set(labels)  # the last one was published


def test_the_mouse_over_a_point_shows_its_figures(opened: Opened, session_page: PageOf) -> None:
    window = opened(session_page("one"))
    tip = window.locator("#tip")
    expect(tip).to_be_hidden()
    window.locator("#throughput .lin .mark.s0").nth(3).hover()
    expect(tip).to_contain_text("8 concurrent requests")
    expect(tip).to_contain_text("1,651 output tokens/s")
    window.mouse.move(2, 2)
    expect(tip).to_be_hidden()


def test_the_keyboard_walks_from_point_to_point(opened: Opened, session_page: PageOf) -> None:
    window = opened(session_page("one"))
    tip = window.locator("#tip")
    window.locator("#throughput .axes").focus()
    window.keyboard.press("Tab")
    expect(tip).to_contain_text(", 1 concurrent request")
    window.keyboard.press("ArrowRight")
    expect(tip).to_contain_text(", 2 concurrent requests")
    window.keyboard.press("End")
    expect(tip).to_contain_text("Published: Microsoft and NVIDIA")
    window.keyboard.press("Escape")
    expect(tip).to_be_hidden()
    window.keyboard.press("Tab")  # the whole chart is one stop
    assert window.evaluate("document.activeElement.tagName") == "SUMMARY"


def test_everything_that_can_be_pressed_is_reached_by_tab(
    opened: Opened, session_page: PageOf
) -> None:
    window = opened(session_page("four"))
    reached = set()
    for _ in range(80):
        window.keyboard.press("Tab")
        reached.add(window.evaluate("document.activeElement.outerHTML.slice(0, 120)"))
    buttons = window.locator("button").evaluate_all(
        "all => all.map(b => b.outerHTML.slice(0, 120))"
    )
    assert set(buttons) <= reached


def test_a_series_is_switched_off_and_on_in_all_charts(
    opened: Opened, session_page: PageOf
) -> None:
    window = opened(session_page("four"))
    toggle = window.get_by_role("button", name="nvfp4 MTP off")
    marks = window.locator(".lin .mark[data-series='3']")
    expect(marks.first).to_be_visible()
    toggle.click()
    expect(toggle).to_have_attribute("aria-pressed", "false")
    assert not any(mark.is_visible() for mark in marks.all())
    toggle.click()
    assert all(mark.is_visible() for mark in marks.all())


def test_axes_are_linear_or_logarithmic(opened: Opened, session_page: PageOf) -> None:
    window = opened(session_page("one"))
    figure = window.locator("#throughput")
    button = figure.get_by_role("button", name="Logarithmic")
    button.scroll_into_view_if_needed()
    before = figure.bounding_box()
    button.click()
    expect(figure.locator("svg.log")).to_be_visible()
    expect(figure.locator("svg.lin")).to_be_hidden()
    assert figure.bounding_box() == before


def test_it_is_dark_where_the_reader_wants_it_dark(opened: Opened, session_page: PageOf) -> None:
    window = opened(session_page("one"), color_scheme="dark")
    paper = "getComputedStyle(document.documentElement).backgroundColor"
    assert _lightness(window.evaluate(paper)) < 40
    button = window.locator("#theme")
    expect(button).to_have_text("Use light colours")
    button.click()
    expect(button).to_have_text("Use dark colours")
    assert _lightness(window.evaluate(paper)) > 240


@pytest.mark.parametrize("name", ["rehearsal", "failed"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(
    opened: Opened, session_page: PageOf, scheme: str, name: str
) -> None:
    """4.5 to 1 for text, as WCAG AA asks for; the colours of the series are used for no text."""
    window = opened(session_page(name), color_scheme=scheme)
    assert window.evaluate(WEAK) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_series_stand_out_from_the_paper(opened: Opened, session_page: PageOf, scheme: str) -> None:
    """3 to 1, as WCAG AA asks for what is not text."""
    window = opened(session_page("one"), color_scheme=scheme)
    paper = _rgb(window.evaluate("getComputedStyle(document.documentElement).backgroundColor"))
    for index in range(8):
        colour = window.evaluate(COLOUR, index)
        assert _contrast(_rgb(colour), paper) >= 3, f"s{index} {scheme}"


@pytest.mark.parametrize("name", ["one", "four", "rehearsal", "failed"])
def test_a_phone_shows_it_without_scrolling_sideways(
    opened: Opened, session_page: PageOf, name: str
) -> None:
    window = opened(session_page(name), **PHONE)
    assert window.evaluate("document.documentElement.scrollWidth") == 390
    window.locator("details").evaluate_all("all => all.forEach(one => one.open = true)")
    assert window.evaluate("document.documentElement.scrollWidth") == 390


@pytest.mark.parametrize("name", ["one", "four", "rehearsal"])
def test_a_wide_screen_shows_every_column(opened: Opened, session_page: PageOf, name: str) -> None:
    window = opened(session_page(name), viewport={"width": 1280, "height": 800})
    cut = "all => all.filter(one => one.scrollWidth > one.clientWidth).map(one => one.innerText)"
    assert window.locator(".scroll:visible").evaluate_all(cut) == []


def test_a_phone_stacks_the_rows_of_wide_tables_with_their_titles(
    opened: Opened, session_page: PageOf
) -> None:
    window = opened(session_page("four"), **PHONE)
    cell = window.get_by_role("region", name="The runs at a glance").locator("td").first
    assert cell.evaluate("one => getComputedStyle(one, '::before').content") == '"failed"'
    cut = (
        "all => all.filter(one => one.querySelector('.stack') && one.scrollWidth > one.clientWidth)"
    )
    assert window.locator(".scroll:visible").evaluate_all(f"all => ({cut})(all).length") == 0


def test_decisions_are_folded_and_memory_is_drawn(opened: Opened, session_page: PageOf) -> None:
    window = opened(session_page("one"))
    expect(window.get_by_text("decisions with their reasons")).to_be_visible()
    expect(window.get_by_role("table", name="Decisions of the bundle")).to_have_count(0)
    bars = window.get_by_role("table", name="Memory budget").locator(".bar rect")
    widths = bars.evaluate_all("all => all.map(one => one.getBoundingClientRect().width)")
    assert len(widths) == 7 and 0 < widths[0] < widths[-1]


def test_letters_in_a_chart_can_be_read_on_a_phone(opened: Opened, session_page: PageOf) -> None:
    window = opened(session_page("one"), **PHONE)
    heights = window.locator("#throughput .lin .tick:visible").evaluate_all(
        "all => all.map(one => one.getBoundingClientRect().height)"
    )
    assert min(heights) >= 11


@pytest.mark.parametrize("name", ["one", "four", "rehearsal", "failed"])
def test_a_phone_shows_titles_of_tables_and_ends_of_scales_whole(
    opened: Opened, session_page: PageOf, name: str
) -> None:
    window = opened(session_page(name), **PHONE)
    titles = window.locator("caption span:visible").all()
    assert titles
    for title in titles:
        assert title.evaluate("one => one.getBoundingClientRect().right") <= 390
    for plot in window.locator(".plot.lin").all():
        assert plot.locator(".tick:not(.y):visible").count() >= 2


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_no_text_in_a_chart_stands_on_another(
    opened: Opened, session_page: PageOf, width: int
) -> None:
    window = opened(session_page("four"), viewport={"width": width, "height": 844})
    for plot in window.locator(".plot.lin").all():
        assert plot.evaluate(OVERLAPPING) == []


def test_print_is_light_unfolded_and_without_buttons(opened: Opened, session_page: PageOf) -> None:
    window = opened(session_page("one"), color_scheme="dark")
    window.emulate_media(media="print", color_scheme="dark")
    assert _lightness(window.evaluate("getComputedStyle(document.body).color")) < 60
    expect(window.locator("#theme")).to_be_hidden()
    window.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert window.locator("details:not([open])").count() == 0
    window.evaluate("dispatchEvent(new Event('afterprint'))")
    assert window.locator("details:not([open])").count() > 3
    assert window.pdf(prefer_css_page_size=True).count(b"/Type /Page\n") >= 3


def test_a_rehearsal_says_so_on_top_at_every_section_and_on_every_printed_page(
    opened: Opened, session_page: PageOf
) -> None:
    window = opened(session_page("rehearsal"))
    expect(window.get_by_role("note").first).to_contain_text(REHEARSAL)
    sections = window.locator("section[aria-labelledby]:not(.verdict)")
    for section in sections.all():
        expect(section.locator("h2 .badge")).to_have_text("rehearsal")
    assert REHEARSAL in window.evaluate(PAGE_HEADERS)
    window.emulate_media(media="print")
    assert window.evaluate("getComputedStyle(document.body).page") == "rehearsal"


def test_a_rehearsal_is_not_set_beside_gpus(opened: Opened, session_page: PageOf) -> None:
    window = opened(session_page("rehearsal"))
    expect(window.locator("#interactivity")).to_have_count(0)
    expect(window.locator(".mark.pub")).to_have_count(0)
    expect(window.locator("main")).not_to_contain_text("$")


def test_nothing_moves_after_the_page_is_drawn(opened: Opened, session_page: PageOf) -> None:
    window = opened(session_page("four"))
    assert window.evaluate(SHIFT) == 0


HOSTILE = (
    "</script><script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>",
    "{{ 7*7 }} {% raw %}",
    "javascript:alert(1)",
    "</svg><style>*{display:none}</style>",
    "http://example.invalid/\u202egnp.exe",
)  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_in_the_data_is_only_text(opened: Opened, written: Written, text: str) -> None:
    document = _replaced(samples.bench(points=[samples.point(1, failed=1)]), text)
    window = opened(written(document, document))
    expect(window.get_by_role("heading", level=1)).to_be_visible()
    expect(window.locator("main")).to_contain_text(text.split("\u202e")[0][:20])
    assert window.locator("img, iframe, object, a[href^=javascript]").count() == 0
    assert window.locator("script").count() == 1


@pytest.mark.parametrize(
    "letter",
    [*"\u202e\u2066\u200b\u200f\ufeff\xad\x1b\x7f\x9b\r\x00\u2028", "\ud800", "\U000e0041"],
    ids=ascii,
)
def test_no_letter_turns_or_hides_the_text_of_a_page(written: Written, letter: str) -> None:
    document = _replaced(samples.bench(points=[samples.point(1, failed=1)]), f"a{letter}b")
    content = written(document, document).read_bytes().decode("utf-8")
    assert letter not in content
    assert f"a\\u{ord(letter):04x}b" in content


def test_the_browser_runs_no_other_script_and_style(opened: Opened, session_page: PageOf) -> None:
    """Whatever gets into the page: the policy knows the page's own by their digests."""
    file = session_page("one")
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', file.read_text())
    assert policy and "unsafe" not in policy[1]
    assert policy[1].startswith("default-src 'none'")


def test_a_report_of_four_configurations_is_small(session_page: PageOf) -> None:
    file = session_page("four")
    assert file.stat().st_size <= 300_000
    script = re.search(r"<script>(.*)</script>", file.read_text(), re.DOTALL)
    assert script and len(script[1]) < 15_000


def test_the_page_works_without_its_script(opened: Opened, session_page: PageOf) -> None:
    window = opened(session_page("one"), java_script_enabled=False)
    expect(window.locator("#throughput svg.lin")).to_be_visible()
    expect(window.locator(".axes").first).to_be_hidden()


def test_the_same_runs_give_the_same_page(session_page: PageOf, tmp_path: Path) -> None:
    first = session_page("one")
    page.write([first.parent / "one-0"], tmp_path / "again.html")
    assert (tmp_path / "again.html").read_bytes() == first.read_bytes()


def test_the_printed_words_are_those_of_the_page() -> None:
    css = render.html("report/page.css")
    assert f"REHEARSAL: {REHEARSAL}" in css


def _replaced(document: Any, text: str) -> Any:
    """The document with a text in place of every one that is free."""
    kept = {"kind", "format", "outcome"}
    if isinstance(document, dict):
        return {
            key: value if key in kept else _replaced(value, text) for key, value in document.items()
        }
    if isinstance(document, list):
        return [_replaced(one, text) for one in document]
    return text if isinstance(document, str) else document


def _rgb(colour: str) -> tuple[float, float, float]:
    red, green, blue = map(float, re.findall(r"[\d.]+", colour)[:3])
    return red, green, blue


def _lightness(colour: str) -> float:
    return sum(_rgb(colour)) / 3


def _contrast(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    def luminance(colour: tuple[float, ...]) -> float:
        parts = [part / 255 for part in colour]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


PAGE_HEADERS = (
    """() => [...document.styleSheets[0].cssRules].map(rule => rule.cssText).join("\\n")"""
)

SHIFT = """async () => {
  let moved = 0;
  new PerformanceObserver(list => list.getEntries().forEach(one => { moved += one.value; }))
    .observe({ type: "layout-shift", buffered: true });
  await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
  return moved;
}"""

COLOUR = """index => {
  const swatch = document.querySelector(".swatch");
  swatch.setAttribute("class", `swatch s${index}`);
  return getComputedStyle(swatch.firstChild).fill;
}"""

# Pairs of texts in a plot that share more than a hair's breadth.
OVERLAPPING = """plot => {
  const texts = [...plot.querySelectorAll("text")].filter(one => one.checkVisibility());
  const boxes = texts.map(one => one.getBoundingClientRect());
  const share = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1.5
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3;
  return texts.flatMap((one, i) => texts.slice(i + 1)
    .filter((_, j) => share(boxes[i], boxes[i + 1 + j]))
    .map(other => `${one.textContent} / ${other.textContent}`));
}"""

# Texts whose contrast with the nearest painted background is too low.
WEAK = """() => {
  const rgb = text => text.match(/[\\d.]+/g).map(Number);
  const luminance = colour => {
    const [r, g, b] = colour.map(c => c / 255)
      .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = element => {
    for (let one = element; one; one = one.parentElement) {
      const colour = rgb(getComputedStyle(one).backgroundColor);
      if (colour.length < 4 || colour[3] > 0.99) return colour.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const weak = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility({ checkVisibilityCSS: true })
        || element.matches("script")) continue;
    const style = getComputedStyle(element);
    const paint = element.closest("svg") ? style.fill : style.color;
    const [low, high] = [luminance(rgb(paint).slice(0, 3)), luminance(behind(element))]
      .sort((a, b) => a - b);
    if ((high + 0.05) / (low + 0.05) < 4.5) weak.push(walker.currentNode.data.trim());
  }
  return weak;
}"""
