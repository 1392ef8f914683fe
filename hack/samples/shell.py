"""A user's terminal: prints commands with their output, and measures the duration of parts."""

import contextlib
import json
import os
import re
import shlex
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

from hack.samples.magika import REPOSITORY

NAMESPACE = "demo"
CONTEXT = os.environ.get("CONTEXT", "")


class DemoError(Exception):
    """A step of the demo failed."""


class Shell:
    """Runs commands like a user, and prints them."""

    def __init__(self) -> None:
        self.environment = dict(os.environ)
        self.times: list[tuple[str, float]] = []

    def show(self, command: str, *, stdin: str | None = None, timeout: float = 300) -> str:
        """Run a command, print it and its output, and return the output.

        Raises:
            DemoError: It failed.
        """
        print(f"\n$ {command}", flush=True)
        if stdin:
            print("\n".join(f"    {line}" for line in stdin.rstrip().splitlines()), flush=True)
        output = self.quiet(command, stdin=stdin, timeout=timeout)
        print(output.rstrip(), flush=True)
        return output

    def quiet(self, command: str, *, stdin: str | None = None, timeout: float = 300) -> str:
        """Run a command and return its output. Raises DemoError if it fails."""
        arguments = shlex.split(command)
        if arguments[0] == "kubectl":
            context = ["--context", CONTEXT] if CONTEXT else []
            arguments = ["kubectl", *context, "--namespace", NAMESPACE, *arguments[1:]]
        done = subprocess.run(
            arguments,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env=self.environment,
        )
        if done.returncode != 0:
            raise DemoError(f"`{command}` failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def step(self, title: str, *command: str) -> None:
        """Run one of our long commands with its output visible. Raises DemoError if it fails."""
        print(f"\n=== {title}", flush=True)
        start = time.monotonic()
        done = subprocess.run(command, cwd=REPOSITORY, env=self.environment, check=False)
        if done.returncode != 0:
            raise DemoError(f"`{' '.join(command)}` failed; its output is above")
        self.times.append((title, time.monotonic() - start))

    @contextlib.contextmanager
    def chapter(self, title: str) -> Iterator[None]:
        """Print the title of a part and measure its duration."""
        print(f"\n{'=' * 100}\n{title}\n{'=' * 100}", flush=True)
        start = time.monotonic()
        yield
        self.times.append((title, time.monotonic() - start))

    @contextlib.contextmanager
    def forward(self, target: str, port: int, namespace: str = NAMESPACE) -> Iterator[str]:
        """Forward a free port of this machine to a Service and yield its URL."""
        context = ["--context", CONTEXT] if CONTEXT else []
        forward = ["--namespace", namespace, "port-forward", target, f":{port}"]
        print(f"\n$ kubectl port-forward {target} :{port} --namespace {namespace}", flush=True)
        process = subprocess.Popen(
            ["kubectl", *context, *forward],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.environment,
        )
        try:
            line = process.stdout.readline() if process.stdout else ""
            print(line.rstrip(), flush=True)
            address = re.search(r"127\.0\.0\.1:\d+", line)
            if not address:
                raise DemoError(f"port-forward to {target} failed")
            yield f"http://{address[0]}"
        finally:
            process.terminate()
            process.wait(10)

    def until(self, what: str, check: Callable[[], Any], seconds: float = 180) -> Any:  # noqa: ANN401 - any value
        """Poll until `check` returns a true value, and return it. Raises DemoError after `seconds`."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with contextlib.suppress(DemoError, OSError):
                if result := check():
                    return result
            time.sleep(0.5)
        raise DemoError(f"timed out after {seconds:.0f} s waiting for {what}")

    def condition(self, model: str, kind: str) -> dict[str, Any]:
        """Return a condition of an InferenceModel; empty if it is missing."""
        model_object = json.loads(self.quiet(f"kubectl get im {model} --output json"))
        conditions = model_object.get("status", {}).get("conditions", [])
        return next((item for item in conditions if item["type"] == kind), {})


def get_json(url: str, body: bytes | None = None) -> Any:  # noqa: ANN401 - any JSON value
    """GET a URL, or POST JSON to it."""
    request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=30) as answer:
        return json.load(answer)
