"""Runs the cluster's command like a user, and finds without the driver what a cluster leaves behind."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

COMMAND = Path(__file__).resolve().parents[2] / "hack/cluster/cluster"
STATE = Path("/var/lib/enginewright")
T = TypeVar("T")


def until(what: str, check: Callable[[], T | None], seconds: float = 60) -> T:
    """Poll until `check` returns a true value, and return it."""
    deadline = time.monotonic() + seconds
    while not (result := check()):
        assert time.monotonic() < deadline, f"timed out after {seconds} s waiting for {what}"
        time.sleep(0.1)
    return result


@dataclass(frozen=True)
class Handle:
    """The command, for one cluster."""

    name: str

    @property
    def folder(self) -> Path:
        return STATE / self.name

    def command(self, *arguments: str | Path) -> list[str]:
        return [str(COMMAND), "--name", self.name, *map(str, arguments)]

    def run(self, *arguments: str | Path, stdin: str = "", ok: bool = True) -> str:
        """Run a verb and return its standard output; if not `ok`, it must fail: return its messages."""
        done = subprocess.run(
            self.command(*arguments),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert (done.returncode == 0) is ok, f"{arguments}: {done.stdout}\n{done.stderr}"
        return done.stdout if ok else done.stderr

    def kubectl(self, *arguments: str | Path, stdin: str = "") -> str:
        return self.run("kubectl", *arguments, stdin=stdin)

    def probe(self, pod: str, *arguments: str) -> str:
        """Run the test program inside a pod."""
        return self.kubectl("exec", pod, "--", "/probe", *arguments)

    def reach(self, pod: str, url: str) -> str:
        """GET a URL from a pod until it succeeds, as kube-proxy may still restart; return the body."""

        def body() -> str:
            command = self.command("kubectl", "exec", pod, "--", "/probe", "get", url)
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            return done.stdout.strip() if done.returncode == 0 else ""

        return until(f"an answer of {url} to {pod}", body)

    def get(self, *arguments: str) -> Any:
        return json.loads(self.kubectl("get", *arguments, "--output", "json"))

    def apply(self, *objects: dict[str, Any]) -> None:
        items = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", "--filename", "-", stdin=json.dumps(items))

    def wait(self, condition: str, *what: str, seconds: int = 60) -> None:
        self.kubectl("wait", f"--for={condition}", f"--timeout={seconds}s", *what)

    def pids(self) -> dict[str, int]:
        """Return the pid of each process name, from the cluster's folder."""
        marks = sorted((self.folder / "processes").glob("*.json"))
        return {mark.stem: json.loads(mark.read_text())["pid"] for mark in marks}


def traces(name: str) -> list[str]:
    """Return everything of a cluster on this machine, found without the driver's own code."""
    paths = [STATE / name, Path(f"/run/lock/ew-{name}.lock")]
    remains = [str(path) for path in paths if path.exists()]
    remains += [str(path) for path in Path("/run/netns").glob(f"ew-{name}*")]
    for pattern in (f"*/ew-{name}-*", f"ew-{name}-*"):
        remains += [str(path) for path in Path("/sys/fs/cgroup").glob(pattern)]
    mounts = Path("/proc/mounts").read_text().splitlines()
    remains += [line for line in mounts if f"/{name}/" in line or f"ew-{name}" in line]
    needles = (f"{STATE}/{name}/".encode(), f"/ew-{name}-".encode())
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            text = (entry / "cmdline").read_bytes()
            text += b" " + (entry / "cgroup").read_bytes()
            text += (entry / "mountinfo").read_bytes()
        except OSError:
            continue
        if any(needle in text for needle in needles):
            remains.append(f"process {entry.name}: {text[:200]!r}")
    return remains


def start_and_kill(handle: Handle, moment: Callable[[], bool], *arguments: str) -> None:
    """Run `up` until `moment`, then kill the driver, like the kernel's OOM killer."""
    driver = subprocess.Popen(
        handle.command("up", *arguments),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        until("the moment to crash", lambda: moment() or driver.poll() is not None)
        assert driver.poll() is None, "the driver ended before it could be killed"
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
