"""A real Chromium without a screen, the system's own, driven by Playwright."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from tests.support.programs import run_program

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass
class Loaded:
    """A page, and errors and requests during its load."""

    page: Page
    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def accessibility(self) -> list[dict[str, Any]]:
        """Return the accessibility tree, one entry per node that is not ignored."""
        session = self.page.context.new_cdp_session(self.page)
        return [
            {
                "role": node["role"]["value"],
                "name": node.get("name", {}).get("value", ""),
                **{item["name"]: item["value"].get("value") for item in node.get("properties", ())},
            }
            for node in session.send("Accessibility.getFullAXTree")["nodes"]
            if not node["ignored"]
        ]


def load(browser: Browser, path: Path) -> Loaded:
    """Open a file in a new tab."""
    loaded = Loaded(browser.new_page(viewport={"width": 1200, "height": 900}))
    # a content security policy's violations are on the console too
    loaded.page.on("console", lambda message: loaded.console.append(message.text))
    loaded.page.on("pageerror", lambda error: loaded.console.append(str(error)))
    loaded.page.on("request", lambda request: loaded.requests.append(request.url))
    loaded.page.goto(path.as_uri())
    return loaded


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run Chromium, installing it where it is missing."""
    installed = run_program([str(REPOSITORY / "hack/chromium")], timeout=280)
    with sync_playwright() as playwright:
        # its sandbox needs more rights than a container has; the pages are ours
        browser = playwright.chromium.launch(
            executable_path=installed.stdout.strip(), args=["--no-sandbox"]
        )
        yield browser
        browser.close()
