"""The site's own search, its index and its worker in a real browser, finds the right section for what users write."""

import shutil
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final

import pytest
import yaml
from playwright.sync_api import Browser
from typing_extensions import override

from tests.support.browser import REPOSITORY, chromium
from tests.support.programs import run_program

SEARCHES: Final = yaml.safe_load((REPOSITORY / "tests/fixtures/searches.yaml").read_text())
MISSES: Final = 3
# what the site's script does with its index and worker, without its page, which would index everything a second time
SEARCH: Final = """async searches => {
    const text = async path => (await fetch(path)).text();
    const home = new DOMParser().parseFromString(await text("/index.html"), "text/html");
    const worker = new Worker("/" + JSON.parse(home.querySelector("#__config").textContent).search);
    const ask = message => new Promise((resolve, reject) => {
        worker.onmessage = ({ data }) => data.type === 4 ? reject(message) : resolve(data.data);
        worker.postMessage(message);
    });
    const index = JSON.parse(await text("/search.json"));
    await ask({ type: 0, data: index });
    const first = [];
    for (const input of searches) {
        const { items } = await ask({ type: 2, data: { input } });
        first.push(items.length ? index.items[items[0].id].location : "nothing");
    }
    return first;
}"""


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, and logs nothing."""

    @override
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Build the site and serve it on this machine; yield the address of one of its pictures."""
    root = tmp_path_factory.mktemp("site")
    shutil.copytree(REPOSITORY / "docs", root / "docs")
    shutil.copy(REPOSITORY / "zensical.toml", root)
    run_program([str(REPOSITORY / ".venv/bin/zensical"), "build", "--strict"], cwd=root)
    handler = partial(Quiet, directory=root / "build/site")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/overview.svg"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


def test_the_right_section_comes_first(site: str, browser: Browser) -> None:
    assert len(SEARCHES) == 30
    assert all(case["search"].lower() in case["title"].lower() for case in SEARCHES)
    page = browser.new_page()
    page.goto(site)
    first = page.evaluate(SEARCH, [case["search"] for case in SEARCHES])
    wrong = {
        case["search"]: location
        for case, location in zip(SEARCHES, first, strict=True)
        if location != case["page"]
    }
    assert len(wrong) <= MISSES, wrong
