"""The page of preflight, as a real browser shows it: whole, alone, readable and harmless."""

import itertools
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from html.parser import HTMLParser
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest
from enginewright_cli.formatting import visible
from enginewright_cli.preflight.html.page import artifact_page, environment, page
from enginewright_cli.preflight.outputs import Outputs
from enginewright_cli.preflight.result import Parity, Result
from enginewright_contract.manifest import (
    BackendLatency,
    Latency,
    Manifest,
    NodeCost,
    OutputParity,
    Partition,
    UnjudgedParts,
)
from hypothesis import given
from hypothesis import strategies as st
from playwright.sync_api import Browser
from typing_extensions import override

from tests.support.browser import Loaded, chromium, load
from tests.support.manifests import engine_info, manifest
from tests.support.optional import present
from tests.support.preflight_results import HOSTILE, hostile, partial

Scheme: TypeAlias = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
WIDTHS = (320, 390, 1400)
STACKED = 640  # widest screen on which a row of a table is a list
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
PARAGRAPH = environment().from_string('<p title="{{ title }}">{{ content }}</p>')
OPEN_ALL = "document.querySelectorAll('details').forEach(each => each.open = true)"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def shown(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return open_page(browser, tmp_path_factory.mktemp("page"), page([partial()]))


def open_page(browser: Browser, folder: Path, text: str) -> Loaded:
    path = folder / "page.html"
    path.write_text(text, encoding="utf-8")
    return load(browser, path)


@pytest.fixture(scope="module", params=["preflight", "engine"])
def either(
    request: pytest.FixtureRequest, browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> Loaded:
    text = page([partial()]) if request.param == "preflight" else artifact_page(make_engine())
    return open_page(browser, tmp_path_factory.mktemp("either"), text)


def make_engine() -> Manifest:
    """Return the manifest of an engine that has two of three nodes, with an output that is judged in parts."""
    unjudged = UnjudgedParts(axis=1, indices=(4, 7), count=2, of=84)
    times = [
        Latency(p50=p50, p90=p50 * 1.2, p99=p50 * 1.5, samples=200, shapes=shapes)
        for shapes, p50 in (("min", 0.001), ("opt", 0.004), ("max", 0.016))
    ]
    labels = ("/conv (Conv)", "/relu (Relu)", "/nms (NonMaxSuppression)")
    return manifest(
        node_costs=tuple(NodeCost(label=label, count=1, share=1 / 3) for label in labels),
        engine=engine_info(
            partitions=(Partition(context_node="engine", nodes=labels[:2]),),
            nodes_total=3,
            nodes_accelerated=2,
            workspace_bytes=1 << 30,
            peak_memory_bytes=3 << 30,
            latencies=tuple(times),
            backends=(BackendLatency(backend="cuda", latency=times[2]),),
            parity=(
                OutputParity(
                    name="dets", compared_with="prepared", max_abs_error=1e-3, unjudged=(unjudged,)
                ),
            ),
        ),
    )


def count(shown: Loaded, selector: str) -> int:
    return shown.page.locator(selector).count()


def body(shown: Loaded) -> str:
    return shown.page.locator("body").text_content() or ""


def test_the_page_sends_no_requests_and_has_no_scripts(shown: Loaded) -> None:
    assert shown.console == []
    assert len(shown.requests) == 1
    assert shown.requests[0].startswith("file:")
    assert count(shown, "script, iframe, img, object, embed, form") == 0
    policy = shown.page.evaluate("document.querySelector('meta[http-equiv]').content")
    assert policy.startswith("default-src 'none'")


def test_the_page_has_the_findings(shown: Loaded) -> None:
    text = body(shown)
    for wording in (
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
        "9 more operators (and 99 that are not listed)",
        "Not measured (no device, or it does not run): openvino.",
    ):
        assert wording in text
    assert shown.page.evaluate("document.title") == "detector.onnx: fail (preflight)"


def test_map_areas_follow_costs_and_mark_nodes_elsewhere(shown: Loaded) -> None:
    tiles: list[dict[str, Any]] = shown.page.evaluate(
        "[...document.querySelectorAll('.tile')].map(each => ({title: each.title, kind: each.className,"
        " area: each.offsetWidth * each.offsetHeight, image: getComputedStyle(each).backgroundImage}))"
    )
    by_title = {tile["title"]: tile for tile in tiles}
    whole = shown.page.evaluate(
        "(() => {const map = document.querySelector('.map');"
        " return map.clientWidth * map.clientHeight})()"
    )
    nms = by_title["/nms (NonMaxSuppression): 30% of the compute time, elsewhere"]
    assert nms["area"] / whole == pytest.approx(0.3, abs=0.02)
    assert "gradient" in nms["image"]  # hatched
    added = "unnamed (Add): 2.5% of the compute time, elsewhere"
    assert by_title[added]["area"] / whole == pytest.approx(0.025, abs=0.01)
    rest = "20 further nodes of Conv: 10% of the compute time, on backend tensorrt-rtx"
    assert by_title[rest]["area"] / whole == pytest.approx(0.1, abs=0.02)
    assert {tile["kind"] for tile in tiles if tile["image"] == "none"} == {"tile on"}


def test_boxes_are_drawn_to_scale_and_nothing_below_the_median() -> None:
    drawn = page([partial()])  # p50, p90 and p99: 2.1, 2.4 and 3.1 ms; 10.4, 12.4 and 17.1 ms
    assert re.findall(r'<rect x="([\d.]+)%" width="([\d.]+)%"', drawn) == [
        ("10.50", "1.50"),  # of 20 ms
        ("52.00", "10.00"),
    ]
    whiskers = re.findall(r'<line x1="([\d.]+)%" x2="([\d.]+)%"[^>]* class="whisker">', drawn)
    assert ("62.00", "85.50") in whiskers
    assert min(float(x) for x, _ in whiskers) == 12.0  # p90 of the quicker one


def test_assistive_technology_finds_its_way(shown: Loaded) -> None:
    shown.page.evaluate(OPEN_ALL)
    nodes = shown.accessibility()
    roles = [node["role"] for node in nodes]
    for landmark in ("banner", "main", "contentinfo"):
        assert roles.count(landmark) == 1
    for node in nodes:
        if node["role"] in {"navigation", "region", "article", "image", "link", "group", "figure"}:
            named = node["name"] or node["role"] in {"figure", "group"}
            assert named, node
    regions = [node["name"] for node in nodes if node["role"] == "region"]
    assert len(regions) == len(set(regions))
    levels = [node["level"] for node in nodes if node["role"] == "heading"]
    in_order = shown.page.evaluate(
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
    assert shown.page.evaluate("document.documentElement.lang") == "en"


def test_ids_are_unique_and_links_lead_somewhere(shown: Loaded) -> None:
    ids = shown.page.evaluate("[...document.querySelectorAll('[id]')].map(each => each.id)")
    assert len(ids) == len(set(ids))
    targets = shown.page.evaluate(
        "[...document.querySelectorAll('a')].map(each => each.getAttribute('href'))"
    )
    assert {target.removeprefix("#") for target in targets} <= set(ids)
    named = shown.page.evaluate(
        "[...document.querySelectorAll('[aria-labelledby]')]"
        ".map(each => each.getAttribute('aria-labelledby'))"
    )
    assert set(named) <= set(ids)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_all_text_has_contrast(either: Loaded, scheme: Scheme) -> None:
    """WCAG 2.2, success criterion 1.4.3, level AA."""
    shown = either
    shown.page.emulate_media(color_scheme=scheme)
    shown.page.evaluate(OPEN_ALL)
    seen = shown.page.evaluate(COLOURS)
    assert len(seen) > 80
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
    parts = [int(item) / 255 for item in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_dark_and_light_differ_and_both_are_drawn(shown: Loaded) -> None:
    shots, grounds = {}, {}
    for scheme in SCHEMES:
        shown.page.emulate_media(color_scheme=scheme)
        shots[scheme] = shown.page.screenshot(full_page=True)
        grounds[scheme] = shown.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert shots["light"] != shots["dark"]
    assert luminance(grounds["light"]) > 0.9
    assert luminance(grounds["dark"]) < 0.05


@pytest.mark.parametrize("width", WIDTHS)
def test_it_fits_narrow_and_wide(either: Loaded, width: int) -> None:
    shown = either
    shown.page.set_viewport_size({"width": width, "height": 900})
    shown.page.evaluate(OPEN_ALL)
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= width
    hidden = shown.page.evaluate(
        "[...document.querySelectorAll('main p, main dd, main h1, main h2, main pre')].filter(each => {"
        " const box = each.getBoundingClientRect(); return box.right > innerWidth + 1 || box.left < 0;"
        "}).map(each => each.textContent)"
    )
    assert hidden == []
    if width <= STACKED:
        cut = "[...document.querySelectorAll('.scroll')].filter(each => each.scrollWidth > each.clientWidth)"
        assert shown.page.evaluate(f"{cut}.map(each => each.ariaLabel)") == []


def test_a_pass_takes_one_screen_and_the_rest_opens(browser: Browser, tmp_path: Path) -> None:
    result = passing()
    shown = open_page(browser, tmp_path, page([result]))
    assert shown.page.evaluate("document.documentElement.scrollHeight") <= 900
    assert count(shown, ".map:visible") == 0
    seen = shown.page.locator("body").inner_text()
    for wording in (
        f"Enginewright {metadata.version('enginewright')} preflight",
        "checked 2026-11-27 21:30 UTC in 118 s",
        "backend tensorrt-rtx 1.7.1.116 (onnxruntime 1.31.1), as installed here",
        "Next: put the files where the manifest says",
    ):
        assert wording in seen
    shown.page.get_by_role("link", name="sm89").click()
    assert shown.page.locator("details[open]").inner_text().startswith("sm89")
    shown.page.evaluate(OPEN_ALL)
    shown.page.get_by_text("kind: InferenceModel").click()  # selects it whole
    assert shown.page.evaluate("getSelection().toString()").strip() == "kind: InferenceModel"
    assert count(shown, ".map:visible") == 1  # placement is perfect on both targets


def passing() -> Result:
    result = partial()
    engine = result.targets["sm89"]
    placement = present(engine.placement)
    moved = placement.model_copy(
        update={
            "nodes": tuple(node.model_copy(update={"elsewhere": 0}) for node in placement.nodes)
        }
    )
    perfect = {
        "verdict": "pass",
        "nodes_accelerated": engine.nodes_total,
        "placement": moved,
        "scope": "backend tensorrt-rtx 1.7.1.116 (onnxruntime 1.31.1), as installed here",
    }
    targets = {name: result.targets[name].model_copy(update=perfect) for name in ("sm89", "cpu")}
    checked = datetime(2026, 11, 27, 21, 30, tzinfo=UTC)
    return result.model_copy(
        update={
            "verdict": "pass",
            "findings": (),
            "targets": targets,
            "checked_at": checked,
            "manifest": "kind: InferenceModel\n",
        }
    )


def test_an_error_stands_once() -> None:
    text = page([partial()])
    assert text.count("backend openvino has no operator for") == 1
    assert "backend openvino cannot run the model" not in text  # its findings say why
    unexplained = partial().model_copy(update={"findings": ()})
    assert page([unexplained]).count("backend openvino cannot run the model") == 1


def test_it_works_by_keyboard(browser: Browser, tmp_path: Path) -> None:
    shown = open_page(browser, tmp_path, page([partial()]))
    shown.page.keyboard.press("Tab")
    first = shown.page.evaluate(
        "[document.activeElement.textContent, document.activeElement.getBoundingClientRect().left >= 0,"
        " getComputedStyle(document.activeElement).outlineStyle]"
    )
    assert first == ["Skip to the report", True, "solid"]
    reached: list[str] = []
    while (at := press_and_look(shown)) not in {"BODY", "Skip to the report"}:
        reached.append(at)
        assert len(reached) < 100
    assert reached.count("SUMMARY") == count(shown, "summary:visible")
    assert reached.count("A") == count(shown, "main a:visible")
    assert reached.count("DIV") == count(shown, ".scroll:visible")


def press_and_look(shown: Loaded) -> str:
    shown.page.keyboard.press("Tab")
    at: str = shown.page.evaluate(
        "(at => at.className === 'skip' ? at.textContent : at.tagName)(document.activeElement)"
    )
    return at


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_are_shown_and_do_nothing(
    browser: Browser, tmp_path: Path, text: str
) -> None:
    written = page([hostile(text)])
    shown = open_page(browser, tmp_path, written)
    shown.page.evaluate(OPEN_ALL)
    assert shown.console == []
    assert len(shown.requests) == 1
    tags = shown.page.evaluate(
        "[...new Set([...document.querySelectorAll('*')].map(each => each.localName))]"
    )
    assert not {"script", "iframe", "img", "b:"} & set(tags)
    taken = shown.page.evaluate(
        "[...document.querySelectorAll('*')].flatMap(each => [...each.attributes])"
        ".filter(each => each.name.startsWith('on')).length"
    )
    assert taken == 0
    assert visible(text, 160)[:100] in body(shown)
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= 1200
    assert not set("\x00\x07\x1b\x85\u202e\u2066\u200b\udcff") & set(written)


@given(st.text(), st.text())
def test_text_is_never_markup(content: str, title: str) -> None:
    class Reader(HTMLParser):
        def __init__(self) -> None:
            super().__init__(convert_charrefs=True)
            self.tags: list[str] = []
            self.attributes: list[tuple[str, str | None]] = []
            self.text = ""

        @override
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.tags.append(tag)
            self.attributes += attrs

        @override
        def handle_data(self, data: str) -> None:
            self.text += data

    reader = Reader()
    reader.feed(PARAGRAPH.render(content=content, title=title))
    reader.close()
    assert reader.tags == ["p"]
    assert reader.attributes == [("title", visible(title))]
    assert reader.text == visible(content)


def test_parts_that_the_samples_do_not_judge_are_listed() -> None:
    result = partial()
    name, target = next(iter(result.targets.items()))
    parts = UnjudgedParts(axis=1, indices=(4,), count=1, of=84)
    compared = OutputParity(name=HOSTILE[0], compared_with="source", unjudged=(parts,))
    parity = Parity(verdict="unknown", outputs=(compared,))
    unproven = target.model_copy(update={"parity": parity, "engine": None})
    text = page([result.model_copy(update={"targets": {name: unproven}})])
    assert "Not judged, since the samples do not move them enough: 1 of 84 indices" in text
    assert HOSTILE[0] not in text


def test_an_engine_of_a_store_has_placement_parity_by_parts_latency_and_memory(
    browser: Browser, tmp_path: Path
) -> None:
    shown = open_page(browser, tmp_path, artifact_page(make_engine()))
    text = " ".join(body(shown).split())
    for wording in (
        "2 of 84 indices of axis 1 (4, 7) of output 'dets'",
        "1 of 3 elsewhere",
        "min p50 1 ms, p90 1.2 ms, p99 1.5 ms, 200 runs",
        "backend cuda",
        "Peak build memory",
        "3.22 GB",
    ):
        assert wording in text, text
    assert count(shown, ".tile") == 3
    assert count(shown, ".tile.off") == 1
    assert count(shown, "svg .box") == 4


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
    assert "cached from an earlier run: nothing has changed" in text
    assert count(shown, "article") == 3
    assert count(shown, "h1") == 1
    ids = shown.page.evaluate("[...document.querySelectorAll('[id]')].map(each => each.id)")
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
