"""A real Chromium without a screen, driven over a pipe by its own protocol (CDP): no port, no driver.

https://chromedevtools.github.io/devtools-protocol/
"""

import base64
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
_SECONDS = 30.0  # that one answer may take
_STOP_SECONDS = 10.0
_SAID = frozenset({"Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"})


@dataclass
class Page:
    """A page that is shown, and what happened while it was loaded."""

    browser: "Browser"
    session: str
    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression, as JSON."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def show(self, *, width: int = 1200, height: int = 900, scheme: str = "light") -> None:
        """Set size and colour scheme."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self._call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )

    def screenshot(self) -> bytes:
        """Return all of the page as PNG."""
        answer = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(answer["data"])

    def press_tab(self) -> None:
        """Move the focus on, as a keyboard does."""
        for kind in ("rawKeyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key="Tab", windowsVirtualKeyCode=9)

    def accessibility(self) -> list[dict[str, Any]]:
        """Return what assistive technology is told, one entry a node that is not ignored."""
        nodes = self._call("Accessibility.getFullAXTree")["nodes"]
        return [
            {
                "role": node["role"]["value"],
                "name": node.get("name", {}).get("value", ""),
                **{each["name"]: each["value"].get("value") for each in node.get("properties", ())},
            }
            for node in nodes
            if not node["ignored"]
        ]

    def load(self, path: Path) -> None:
        """Go to a file and wait until it is loaded."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        self._call("Page.navigate", url=path.as_uri())
        self.browser.wait(self.session, "Page.loadEventFired")
        for event in self.browser.events(self.session):
            told = event["params"]
            if event["method"] in _SAID:
                self.console.append(json.dumps(told))
            elif event["method"] == "Network.requestWillBeSent":
                self.requests.append(told["request"]["url"])

    def _call(self, method: str, **parameters: Any) -> Any:
        return self.browser.call(method, self.session, **parameters)


class Browser:
    """The process, and the pipes to it."""

    def __init__(self, process: "subprocess.Popen[bytes]", write: int, read: int) -> None:
        self._process = process
        self._write = write
        self._read = read
        self._number = 0
        self._rest = b""
        self._events: list[dict[str, Any]] = []

    def open(self, path: Path) -> Page:
        """Open a file in a new tab."""
        tab = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=tab, flatten=True)
        page = Page(self, attached["sessionId"])
        page.load(path)
        return page

    def call(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        """Send a command and return its result."""
        self._number += 1
        told = {"id": self._number, "method": method, "params": parameters}
        if session:
            told["sessionId"] = session
        os.write(self._write, json.dumps(told).encode() + b"\0")
        deadline = time.monotonic() + _SECONDS
        while (answer := self._next(deadline)).get("id") != self._number:
            self._events.append(answer)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def wait(self, session: str, method: str) -> None:
        """Wait for an event."""
        deadline = time.monotonic() + _SECONDS
        while not any(
            each.get("method") == method and each.get("sessionId") == session
            for each in self._events
        ):
            self._events.append(self._next(deadline))

    def events(self, session: str) -> list[dict[str, Any]]:
        """Return the events of a tab so far."""
        return [each for each in self._events if each.get("sessionId") == session]

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self._read], [], [], max(0.0, left))
            assert ready, "Chromium says nothing"
            chunk = os.read(self._read, 1 << 20)
            assert chunk, f"Chromium has ended with code {self._process.wait(_STOP_SECONDS)}"
            self._rest += chunk
        message, _, self._rest = self._rest.partition(b"\0")
        told: dict[str, Any] = json.loads(message)
        return told


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """Run Chromium with a profile of its own, installing it where it is missing."""
    found = subprocess.run(
        [str(REPOSITORY / "hack/chromium")], capture_output=True, text=True, check=True, timeout=280
    )
    (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
    command = [
        found.stdout.strip(),
        "--headless",
        "--no-sandbox",  # which needs more rights than a container has; the pages are ours
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--no-first-run",
        "--hide-scrollbars",
        "--remote-debugging-pipe",  # file descriptors 3 and 4
        f"--user-data-dir={profile}",
    ]
    process = subprocess.Popen(
        ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(theirs_in, theirs_out),
    )
    for theirs in (theirs_in, theirs_out):
        os.close(theirs)
    browser = Browser(process, ours_out, ours_in)
    try:
        yield browser
        browser.call("Browser.close")
        process.wait(_STOP_SECONDS)
    finally:
        for ours in (ours_out, ours_in):
            os.close(ours)
        if process.poll() is None:
            process.kill()
            process.wait()
