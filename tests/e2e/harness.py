"""A Kubernetes user's view of the cluster: kubectl, and requests to a Service."""

import contextlib
import json
import os
import re
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
REPOSITORY = Path(__file__).resolve().parents[2]
CLUSTER_NAME = "test"
OPERATOR_NAMESPACE = "enginewright-system"
GPUS = 4  # of node-2
FAIL_SWITCH = "/tmp/fail"
SHORT_HOLD = {"hold": "5s"}  # of a canary, in tests of something else
HELD_STAGES = (
    "validate",
    "golden",
)  # which the library in `held/` keeps running until /tmp/STAGE exists


def cluster(*arguments: str, timeout: float = 600) -> str:
    """Run the local cluster's command and return its output. Raises CommandError with all output."""
    command = [str(REPOSITORY / "hack/cluster/cluster"), "--name", CLUSTER_NAME, *arguments]
    return run(command, timeout=timeout)


def run(
    command: list[str],
    *,
    timeout: float = 600,
    stdin: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run a command and return its output. Raises CommandError with all output."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        input=stdin,
        env={**os.environ, **(environment or {})},
    )
    if done.returncode != 0:
        raise CommandError(command, done.returncode, done.stdout, done.stderr)
    return done.stdout


class CommandError(AssertionError):
    """A command failed."""

    def __init__(self, command: list[str], code: int, stdout: str, stderr: str) -> None:
        super().__init__(f"{' '.join(command)} -> {code}\n{stdout}\n{stderr}")
        self.stderr = stderr


def eventually(
    check: Callable[[], T], seconds: float = 120, what: str = "", interval: float = 0.5
) -> T:
    """Poll until `check` returns a true value, and return it; `check` may raise meanwhile."""
    deadline = time.monotonic() + seconds
    last: object = None
    while True:
        try:
            if result := check():
                return result
            last = result
        except (CommandError, OSError) as error:
            last = error
        if time.monotonic() > deadline:
            raise AssertionError(
                f"timed out after {seconds} s waiting for {what or 'a condition'}; last: {last}"
            )
        time.sleep(interval)


@dataclass(frozen=True)
class Namespace:
    """One namespace, with kubectl for it."""

    name: str
    kubeconfig: Path

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout: float = 200) -> str:
        """Run kubectl in this namespace."""
        return run([*self._command(), *arguments], stdin=stdin, timeout=timeout)

    def _command(self) -> list[str]:
        program = str(self.kubeconfig.parent / "bin" / "kubectl")
        return [program, "--kubeconfig", str(self.kubeconfig), "--namespace", self.name]

    def apply(self, *objects: dict[str, Any]) -> str:
        """Apply objects like a user: client-side, with strict validation."""
        text = "\n---\n".join(json.dumps(each) for each in objects)
        return self.kubectl("apply", "--filename", "-", stdin=text)

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """Return one object."""
        return dict(json.loads(self.kubectl("get", kind, name, "--output", "json")))

    def items(self, kind: str, selector: str = "") -> list[dict[str, Any]]:
        """Return all objects of a kind."""
        found = json.loads(self.kubectl("get", kind, "--selector", selector, "--output", "json"))
        return list(found["items"])

    def condition(self, name: str, kind: str) -> dict[str, Any]:
        """Return one condition of an InferenceModel; empty if it is missing."""
        conditions = self.get("inferencemodel", name).get("status", {}).get("conditions", [])
        return next((each for each in conditions if each["type"] == kind), {})

    def wait_ready(self, name: str, seconds: int = 300) -> None:
        """Run `kubectl wait` for Ready."""
        timeout = f"--timeout={seconds}s"
        try:
            self.kubectl(
                "wait", "--for=condition=Ready", f"im/{name}", timeout, timeout=seconds + 10
            )
        except CommandError as error:
            raise AssertionError(f"{error}\n{self.story(name)}") from None

    def wait_condition(
        self, name: str, kind: str, status: str, reason: str, seconds: float = 120
    ) -> dict[str, Any]:
        """Wait for a condition with this status and reason, and return it."""

        def check(model: dict[str, Any]) -> dict[str, Any]:
            conditions = model.get("status", {}).get("conditions", [])
            found: dict[str, Any] = next((each for each in conditions if each["type"] == kind), {})
            wanted = found.get("status") == status and found.get("reason") == reason
            return found if wanted else {}

        try:
            return self.watch("im", name, check, seconds, f"{kind}={status}/{reason}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.story(name)}") from None

    def watch(
        self, kind: str, name: str, check: Callable[[dict[str, Any]], T], seconds: float, what: str
    ) -> T:
        """Watch an object until `check` returns a true value for a state; no state is missed."""
        deadline = time.monotonic() + seconds
        last: object = None
        while (left := deadline - time.monotonic()) > 0:
            with contextlib.closing(self._states(kind, name, left)) as states:
                for last in states:
                    if result := check(last):
                        return result
            time.sleep(0.2)  # it does not exist yet, or the API server has ended the watch
        raise AssertionError(f"timed out after {seconds} s waiting for {what}; last: {last}")

    def _states(
        self, kind: str, name: str, seconds: float
    ) -> Generator[dict[str, Any], None, None]:
        """Yield an object's current state and every change, for at most `seconds`."""
        process = subprocess.Popen(
            [*self._command(), "get", kind, name, "--watch", "--output", "json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        end = threading.Timer(seconds, process.kill)
        end.start()
        try:
            assert process.stdout is not None
            lines: list[str] = []
            for line in process.stdout:
                lines.append(line)
                if line.startswith("}"):
                    yield json.loads("".join(lines))
                    lines.clear()
        finally:
            end.cancel()
            process.kill()
            process.communicate()

    def story(self, name: str) -> str:
        """Return what a user would inspect to diagnose a failure."""
        parts = [
            self.kubectl("describe", f"im/{name}"),
            self.kubectl("get", "jobs,pods,deployments", "--output", "wide"),
        ]
        return "\n".join(parts)

    @contextlib.contextmanager
    def forward(self, target: str, port: int) -> Iterator[str]:
        """Forward a local port to a Service or a pod; yield the base URL."""
        process = subprocess.Popen(
            [*self._command(), "port-forward", target, f":{port}", "--address", "127.0.0.1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"127\.0\.0\.1:(\d+)", line)
            if not found:
                process.terminate()
                raise CommandError(["port-forward"], 1, line + process.communicate()[0], "")
            # a line for each connection: nothing is forwarded any more once the pipe is full
            threading.Thread(target=process.stdout.read, daemon=True).start()
            yield f"http://127.0.0.1:{found.group(1)}"
        finally:
            process.terminate()
            process.wait()


def inference_model(name: str, file: str, *, on: str = "cpu", **spec: Any) -> dict[str, Any]:
    """Return an InferenceModel of a file in the claim `models`, served by one accelerator class."""
    return {
        "apiVersion": "enginewright.dev/v1alpha1",
        "kind": "InferenceModel",
        "metadata": {"name": name},
        "spec": {
            "source": {"uri": f"pvc://models/{file}"},
            "accelerators": [{"class": on}],
            **spec,
        },
    }


def http_json(url: str, body: object = None, timeout: float = 30) -> Any:
    """GET, or POST `body` as JSON; return the answer's JSON."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=timeout) as answer:
        return json.load(answer)
