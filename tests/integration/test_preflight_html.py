"""The page of preflight, as a real browser shows it: whole, alone, readable and harmless."""

import itertools
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from enginewright_cli.preflight.html_charts import Quantiles, Tile, box_plots, treemap
from enginewright_cli.preflight.html_markup import tag
from enginewright_cli.preflight.html_page import page
from enginewright_cli.preflight.outputs import Outputs
from enginewright_cli.preflight.words import visible
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from tests.support.browser import Browser, Page, chromium
from tests.support.preflight_results import HOSTILE, hostile, partial

WIDTHS = (320, 768, 1400)
# every piece of text with the colours that it is seen in; alpha is not used for text
COLOURS = """(() => {
  const seen = [];
  const solid = element => {
    for (let at = element; at; at = at.parentElement) {
      const style = getComputedStyle(at);
      if (!/rgba\\(.*, 0\\)|transparent/.test(style.backgroundColor)) return style.backgroundColor;
      if (style.backgroundImage !== 'none') return 'pattern';
    }
    return 'none';
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.data.trim(), element = walker.currentNode.parentElement;
    if (!text || !element.checkVisibility({contentVisibilityAuto: false})) continue;
    const style = getComputedStyle(element);
    const ink = element.namespaceURI.endsWith('svg') ? style.fill : style.color;
    seen.push([text.slice(0, 40), ink, solid(element), parseFloat(style.fontSize), style.opacity]);
  }
  return seen;
})()"""
OPEN_ALL = "document.querySelectorAll('details').forEach(each => each.open = true)"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture(scope="module")
def shown(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Page:
    return open_page(browser, tmp_path_factory.mktemp("page"), page([partial()]))


def open_page(browser: Browser, folder: Path, text: str) -> Page:
    path = folder / "page.html"
    path.write_text(text, encoding="utf-8")
    return browser.open(path)


def count(shown: Page, selector: str) -> int:
    found: int = shown.evaluate(f"document.querySelectorAll({selector!r}).length")
    return found


def body(shown: Page) -> str:
    text: str = shown.evaluate("document.body.textContent")
    return text


def test_it_asks_nobody_for_anything_and_has_no_scripts(shown: Page) -> None:
    assert shown.console == []
    assert len(shown.requests) == 1
    assert shown.requests[0].startswith("file:")
    assert count(shown, "script, iframe, img, object, embed, form") == 0
    policy = shown.evaluate("document.querySelector('meta[http-equiv]').content")
    assert policy.startswith("default-src 'none'")


def test_it_holds_what_was_found(shown: Page) -> None:
    text = body(shown)
    for words in (
        "Not deployable: of 3 targets, openvino would not serve it.",
        "backend openvino has no operator for /nms (NonMaxSuppression)",
        "replace the operators when exporting",
        "--shapes images=1x3x32x32:1x3x320x320:8x3x640x640",
        "converted opset 11 to 17",
        "2 of 65 elsewhere",
        "32.5% elsewhere",
        "0.00025",
        "0.999999",
        "99.5%",
        "14.1 MB",
        "81.5 s",
        "2.1 ms",
        "1,905",
        "1.2 GB",
        "Of the engine, over all samples.",
        "pytorch 2.9.1",
        "120 kinds",
        "images",
        "[n, 3, ?, 640]",
        "and 100 more",  # 140 nodes of a finding, 40 of them named
        "9 further operators (and 99 that are not listed)",
        "Not measured, because there is no device or no pass: openvino.",
    ):
        assert words in text
    assert shown.evaluate("document.title") == "detector.onnx: fail (preflight)"


def test_the_map_has_areas_by_cost_and_says_what_is_elsewhere_without_colour(shown: Page) -> None:
    tiles: list[dict[str, Any]] = shown.evaluate(
        "[...document.querySelectorAll('.tile')].map(each => ({title: each.title, kind: each.className,"
        " area: each.offsetWidth * each.offsetHeight, image: getComputedStyle(each).backgroundImage}))"
    )
    by_title = {each["title"]: each for each in tiles}
    whole = shown.evaluate(
        "(() => {const map = document.querySelector('.map');"
        " return map.clientWidth * map.clientHeight})()"
    )
    nms = by_title["/nms (NonMaxSuppression): 30% of the computing time, elsewhere"]
    assert nms["area"] / whole == pytest.approx(0.3, abs=0.02)
    assert "gradient" in nms["image"]  # hatched
    added = "unnamed (Add): 2.5% of the computing time, elsewhere"
    assert by_title[added]["area"] / whole == pytest.approx(0.025, abs=0.01)
    rest = "20 further nodes of Conv: 10% of the computing time, on backend tensorrt-rtx"
    assert by_title[rest]["area"] / whole == pytest.approx(0.1, abs=0.02)
    assert {each["kind"] for each in tiles if each["image"] == "none"} == {"tile on"}


def test_boxes_are_drawn_to_scale_and_nothing_below_the_median(shown: Page) -> None:
    rows = [
        Quantiles("cpu", 0.0104, 0.0124, 0.0171),
        Quantiles("gpu", 0.0021, 0.0024, 0.0031),
    ]
    drawn = box_plots(rows, "Latency")
    assert re.findall(r'<rect x="([\d.]+)%" width="([\d.]+)%"', drawn) == [
        ("52.00", "10.00"),  # of 20 ms
        ("10.50", "1.50"),
    ]
    whiskers = re.findall(r'<line x1="([\d.]+)%" x2="([\d.]+)%"[^>]* class="whisker">', drawn)
    assert ("62.00", "85.50") in whiskers
    assert shown.evaluate("document.querySelectorAll('svg.boxes rect').length") == 2
    assert min(float(x) for x, _ in whiskers) == 12.0  # p90 of the quicker one


def test_tiles_fill_the_map_and_never_overlap() -> None:
    weights = [0.4, 0.2, 0.1, 0.1, 0.05, 0.05, 0.04, 0.03, 0.02, 0.01]
    drawn = treemap(
        [Tile(each, str(each), "n", f"g{i % 3}", "on") for i, each in enumerate(weights)], ""
    )
    boxes = [
        tuple(map(float, found))
        for found in re.findall(
            r'class="tile on" style="left:([\d.]+)%;top:([\d.]+)%;width:([\d.]+)%;height:([\d.]+)%',
            drawn,
        )
    ]
    assert sum(width * height for _, _, width, height in boxes) == pytest.approx(10_000, rel=0.001)
    for i, (left, top, width, height) in enumerate(boxes):
        assert left + width < 100.01
        assert top + height < 100.01
        for other_left, other_top, other_width, other_height in boxes[:i]:
            apart_x = left + width < other_left + 0.01 or other_left + other_width < left + 0.01
            apart_y = top + height < other_top + 0.01 or other_top + other_height < top + 0.01
            assert apart_x or apart_y


def test_assistive_technology_finds_its_way(shown: Page) -> None:
    nodes = shown.accessibility()
    roles = [each["role"] for each in nodes]
    for landmark in ("banner", "main", "contentinfo"):
        assert roles.count(landmark) == 1
    for each in nodes:
        if each["role"] in {"navigation", "region", "article", "image", "link", "group", "figure"}:
            named = each["name"] or each["role"] in {"figure", "group"}
            assert named, each
    regions = [each["name"] for each in nodes if each["role"] == "region"]
    assert len(regions) == len(set(regions))
    levels = [each["level"] for each in nodes if each["role"] == "heading"]
    in_order = shown.evaluate(
        "[...document.querySelectorAll('h1,h2,h3,h4,h5,h6')].map(each => +each.tagName[1])"
    )
    assert sorted(levels) == sorted(in_order)
    assert in_order[0] == 1
    assert in_order.count(1) == 1
    steps = [after - before for before, after in itertools.pairwise(in_order)]
    assert max(steps) == 1  # no level is left out
    assert count(shown, "table") == count(shown, "table thead th[scope=col]:first-child")
    assert count(shown, "tbody tr") == count(shown, "tbody tr > th[scope=row]:first-child")
    assert count(shown, "svg:not([aria-hidden]):not([role=img][aria-label])") == 0
    assert shown.evaluate("document.documentElement.lang") == "en"


def test_ids_are_unique_and_links_lead_somewhere(shown: Page) -> None:
    ids = shown.evaluate("[...document.querySelectorAll('[id]')].map(each => each.id)")
    assert len(ids) == len(set(ids))
    targets = shown.evaluate(
        "[...document.querySelectorAll('a')].map(each => each.getAttribute('href'))"
    )
    assert {each.removeprefix("#") for each in targets} <= set(ids)
    named = shown.evaluate(
        "[...document.querySelectorAll('[aria-labelledby]')]"
        ".map(each => each.getAttribute('aria-labelledby'))"
    )
    assert set(named) <= set(ids)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_contrast(shown: Page, scheme: str) -> None:
    """WCAG 2.2, success criterion 1.4.3, level AA."""
    shown.show(scheme=scheme)
    shown.evaluate(OPEN_ALL)
    seen = shown.evaluate(COLOURS)
    assert len(seen) > 200
    for text, ink, ground, size, opacity in seen:
        assert ground not in {"pattern", "none"}, text
        assert opacity == "1", text
        assert contrast(ink, ground) >= 4.5, (text, ink, ground)
        assert size >= 11, text


def contrast(first: str, second: str) -> float:
    """Return the ratio of two colours' relative luminances, as WCAG defines both."""
    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [int(each) / 255 for each in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_dark_and_light_differ_and_both_are_drawn(shown: Page) -> None:
    shots, grounds = {}, {}
    for scheme in ("light", "dark"):
        shown.show(scheme=scheme)
        shots[scheme] = shown.screenshot()
        grounds[scheme] = shown.evaluate("getComputedStyle(document.body).backgroundColor")
    assert shots["light"] != shots["dark"]
    assert luminance(grounds["light"]) > 0.9
    assert luminance(grounds["dark"]) < 0.05


@pytest.mark.parametrize("width", WIDTHS)
def test_it_fits_narrow_and_wide(shown: Page, width: int) -> None:
    shown.show(width=width)
    shown.evaluate(OPEN_ALL)
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    hidden = shown.evaluate(
        "[...document.querySelectorAll('main p, main dd, main h1, main h2, main pre')].filter(each => {"
        " const box = each.getBoundingClientRect(); return box.right > innerWidth + 1 || box.left < 0;"
        "}).map(each => each.textContent)"
    )
    assert hidden == []


def test_it_works_by_keyboard(browser: Browser, tmp_path: Path) -> None:
    shown = open_page(browser, tmp_path, page([partial()]))
    shown.show()
    shown.press_tab()
    first = shown.evaluate(
        "[document.activeElement.textContent, document.activeElement.getBoundingClientRect().left >= 0,"
        " getComputedStyle(document.activeElement).outlineStyle]"
    )
    assert first == ["Skip to the report", True, "solid"]
    reached: list[str] = []
    while (at := press_and_look(shown)) not in {"BODY", "Skip to the report"}:
        reached.append(at)
        assert len(reached) < 100
    assert reached.count("SUMMARY") == count(shown, "summary")
    assert reached.count("A") == count(shown, "main a")
    assert reached.count("DIV") == count(shown, "details[open] .scroll, .scroll:not(details *)")


def press_and_look(shown: Page) -> str:
    shown.press_tab()
    at: str = shown.evaluate(
        "(at => at.className === 'skip' ? at.textContent : at.tagName)(document.activeElement)"
    )
    return at


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_are_shown_and_do_nothing(
    browser: Browser, tmp_path: Path, text: str
) -> None:
    written = page([hostile(text)])
    shown = open_page(browser, tmp_path, written)
    shown.evaluate(OPEN_ALL)
    assert shown.console == []
    assert len(shown.requests) == 1
    tags = shown.evaluate(
        "[...new Set([...document.querySelectorAll('*')].map(each => each.localName))]"
    )
    assert not {"script", "iframe", "img", "b:"} & set(tags)
    taken = shown.evaluate(
        "[...document.querySelectorAll('*')].flatMap(each => [...each.attributes])"
        ".filter(each => each.name.startsWith('on')).length"
    )
    assert taken == 0
    assert visible(text, 160)[:100] in body(shown)
    assert shown.evaluate("document.documentElement.scrollWidth") <= 1200
    assert not set("\x00\x07\x1b\x85\u202e\u2066\u200b\udcff") & set(written)


@given(st.text(), st.text())
def test_text_is_never_markup(content: str, title: str) -> None:
    """What a parser reads back is what was said, whatever it was."""

    class Reader(HTMLParser):
        def __init__(self) -> None:
            super().__init__(convert_charrefs=True)
            self.tags: list[str] = []
            self.told: list[tuple[str, str | None]] = []
            self.words = ""

        @override
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.tags.append(tag)
            self.told += attrs

        @override
        def handle_data(self, data: str) -> None:
            self.words += data

    reader = Reader()
    reader.feed(tag("p", content, title=title))
    reader.close()
    assert reader.tags == ["p"]
    assert reader.told == [("title", visible(title))]
    assert reader.words == visible(content)


def test_several_models_stand_on_one_page(browser: Browser, tmp_path: Path) -> None:
    good = partial().model_copy(
        update={
            "source": "models/good.onnx",
            "verdict": "pass",
            "findings": (),
            "targets": {"cpu": partial().targets["cpu"]},
            "cached": True,
        }
    )
    absent = good.model_copy(update={"source": "gone.onnx", "model": None, "targets": {}})
    shown = open_page(browser, tmp_path, page([partial(), good, absent]))
    text = body(shown)
    assert "3 models" in text
    assert "2 of 3 can be deployed." in text
    assert "The model could not be fetched." in text
    assert "of an earlier run: nothing has changed" in text
    assert count(shown, "article") == 3
    assert count(shown, "h1") == 1
    ids = shown.evaluate("[...document.querySelectorAll('[id]')].map(each => each.id)")
    assert len(ids) == len(set(ids))


def test_it_is_written_whole_and_the_same_each_time(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    outputs = Outputs(html=path)
    outputs.check(["model.onnx"])
    assert outputs.save_reports([partial()]) == []
    first = path.read_bytes()
    outputs.save_reports([partial()])
    assert path.read_bytes() == first
    assert list(tmp_path.iterdir()) == [path]
