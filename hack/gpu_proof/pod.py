"""Runs the product's own commands like the containers of a Job or a serving pod, with folders as volumes.

Only commands, tasks and HTTP endpoints are used, so that code of the product may move. Each step of the
proof has a separate network namespace, so that several pods with the same ports run side by side.
"""

import contextlib
import ctypes
import fcntl
import http.client
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

STAGES: Final = ("fetch", "validate", "convert", "golden", "quantize", "publish")
ENGINE_STAGES: Final = ("lookup", "build", "verify", "benchmark", "publish-engine")
HTTP: Final = 8080
SIDECAR: Final = 8081
_CLONE_NEWNET: Final = 0x40000000
_SIOCGIFFLAGS: Final = 0x8913
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 1
_KEY: Final = """
import sys
from enginewright_contract.keys import engine_key
from enginewright_contract.task import EngineRecipe
print(engine_key(sys.argv[1], EngineRecipe.model_validate_json(sys.argv[2])))
"""


class StepError(Exception):
    """A step of the proof failed; the message has the observed result."""


def isolate_network() -> bool:
    """Give this process a separate network with loopback; return whether that is permitted."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET):
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh", b"lo", 0)
        flags = struct.unpack("16sh", fcntl.ioctl(control, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh", b"lo", flags | _IFF_UP))
    return True


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    report: dict[str, Any]  # its termination message
    log: str
    seconds: float

    @property
    def reason(self) -> str | None:
        """Return why it failed, as the product names it."""
        failure = self.report.get("failure") or {}
        return failure.get("reason")

    @property
    def message(self) -> str:
        """Return what it did, or why it failed."""
        failure = self.report.get("failure") or {}
        return str(failure.get("cause") or self.report.get("message") or self.log[-400:])


class Pod:
    """The folders of one pod, and the environment that its containers run in."""

    def __init__(self, root: Path, environment: Mapping[str, str] | None = None) -> None:
        """Create the folders below `root`; `environment` is added to this process's."""
        self.root = root
        self.environment = dict(environment or {})
        for name in ("work", "store", "source", "samples", "calibration", "dev", "tmp"):
            (root / name).mkdir(parents=True, exist_ok=True)

    def put(self, file: Path) -> str:
        """Copy a model to the claim; return its address."""
        shutil.copy(file, self.root / "source" / file.name)
        return f"pvc://models/{file.name}"

    def run(
        self, arguments: Sequence[str], task: Mapping[str, Any] | None = None, seconds: float = 300
    ) -> Ended:
        """Run a command of the runtime image to its end."""
        (self.root / "dev/termination-log").unlink(missing_ok=True)
        began = time.monotonic()
        process = self.start(arguments, task, self.root / "run.log")
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise StepError(f"{' '.join(arguments)} did not end within {seconds:.0f} s") from None
        log = (self.root / "run.log").read_text(errors="replace")
        return Ended(code, self._report(), log, time.monotonic() - began)

    def start(
        self, arguments: Sequence[str], task: Mapping[str, Any] | None, log: Path
    ) -> "subprocess.Popen[bytes]":
        """Start a command of the runtime image."""
        variables = {
            **os.environ,
            **self.environment,
            "ENGINEWRIGHT_ROOT": str(self.root),
            "ENGINEWRIGHT_TASK": json.dumps(task or {}),
            "TMPDIR": str(self.root / "tmp"),
        }
        with log.open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "enginewright_runtime", *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=variables,
            )

    def probe(self) -> dict[str, Any]:
        """Return what the image contains."""
        ended = self.run(["probe"])
        if ended.code:
            raise StepError(f"probe fails: {ended.message}")
        facts: dict[str, Any] = json.loads(ended.log.strip().splitlines()[-1])
        return facts

    def prepare(self, uri: str, recipe: Mapping[str, Any], seconds: float = 300) -> Ended:
        """Run all stages of a prepare Job."""
        task = {"job": "prepare", "source_uri": uri, "recipe": dict(recipe)}
        return self.run(["stage", *STAGES], task, seconds)

    def build(self, prepared: str, recipe: Mapping[str, Any], seconds: float = 300) -> Ended:
        """Run all stages of an engine Job."""
        return self.run(["stage", *ENGINE_STAGES], self.engine_task(prepared, recipe), seconds)

    def engine_task(self, prepared: str, recipe: Mapping[str, Any]) -> dict[str, Any]:
        """Return the task of an engine Job."""
        return {
            "job": "engine",
            "prepared_key": prepared,
            "engine_key": self.engine_key(prepared, recipe),
            "recipe": dict(recipe),
        }

    def engine_key(self, prepared: str, recipe: Mapping[str, Any]) -> str:
        """Return the key of an engine, as the product computes it."""
        done = subprocess.run(
            [sys.executable, "-c", _KEY, prepared, json.dumps(recipe)],
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def _report(self) -> dict[str, Any]:
        try:
            text = (self.root / "dev/termination-log").read_text()
            document = json.loads(text)
        except (OSError, ValueError):
            return {}
        return document if isinstance(document, dict) else {}

    @contextlib.contextmanager
    def serving(
        self, task: Mapping[str, Any], environment: Mapping[str, str] | None = None
    ) -> "Iterator[Served]":
        """Fetch the artefact, and run server and sidecar until the end of the block."""
        fetched = self.run(["fetch-artifact"], task)
        if fetched.code:
            raise StepError(f"fetch-artifact fails: {fetched.message}")
        (self.root / "dev/termination-log").unlink(missing_ok=True)
        quiet = Pod(self.root, {**self.environment, **(environment or {})})
        sidecar_root = self.root / "sidecar-dev"
        sidecar_root.mkdir(exist_ok=True)
        began = time.monotonic()
        server = quiet.start(["serve"], task, self.root / "serve.log")
        sidecar = quiet.start(["sidecar"], task, self.root / "sidecar.log")
        try:
            yield Served(self, server, sidecar, began)
        finally:
            for process in (server, sidecar):
                process.send_signal(signal.SIGTERM)
            for process in (server, sidecar):
                try:
                    process.wait(15)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


class Served:
    """A running server with its sidecar."""

    def __init__(
        self,
        pod: Pod,
        server: "subprocess.Popen[bytes]",
        sidecar: "subprocess.Popen[bytes]",
        began: float,
    ) -> None:
        self.pod, self.server, self.sidecar, self._began = pod, server, sidecar, began
        self.ready_seconds: float | None = None

    def wait(self, seconds: float = 120) -> bool:
        """Return whether the sidecar admits the pod, and the server does not end, in time."""
        while time.monotonic() - self._began < seconds:
            if self.server.poll() is not None or self._is_refused():
                return False
            if self.get(SIDECAR, "/readyz")[0] == 200:
                self.ready_seconds = time.monotonic() - self._began
                return True
            time.sleep(0.1)
        return False

    def _is_refused(self) -> bool:
        """Return whether a check has failed, after all those that admit a pod have run."""
        checks = self.checks()
        admitting = ("server", "provider", "placement", "golden")
        states = [checks.get(name, {}).get("state", "unknown") for name in admitting]
        return "failed" in states and checks.get("golden", {}).get("state") != "unknown"

    def wait_for_check(self, check: str, states: Sequence[str], seconds: float) -> dict[str, Any]:
        """Wait until a check of the sidecar has one of some states; return its last result."""
        end = time.monotonic() + seconds
        latest: dict[str, Any] = {}
        while time.monotonic() < end:
            latest = self.checks().get(check, {})
            if latest.get("state") in states:
                break
            time.sleep(0.2)
        return latest

    def get(self, port: int, path: str) -> tuple[int, bytes]:
        """GET; the status is 0 where nothing answers."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except OSError:
            return 0, b""
        finally:
            connection.close()

    def execution(self) -> dict[str, Any]:
        """Return how the server runs the model."""
        return self._json(HTTP, "/v2/models/m/execution")

    def verdict(self) -> dict[str, Any]:
        """Return the results of the sidecar's checks."""
        return self._json(SIDECAR, "/verdict")

    def checks(self) -> dict[str, dict[str, Any]]:
        """Return the results of the sidecar's checks by name."""
        return {item["check"]: item for item in self.verdict().get("checks", [])}

    def _json(self, port: int, path: str) -> dict[str, Any]:
        status, body = self.get(port, path)
        if not body or status not in (200, 503):
            return {}
        try:
            document = json.loads(body)
        except ValueError:
            return {}
        return document if isinstance(document, dict) else {}

    def metrics(self) -> dict[str, float]:
        """Return the samples of both containers, by series without the labels of the model."""
        samples: dict[str, float] = {}
        for port in (HTTP, SIDECAR):
            for line in self.get(port, "/metrics")[1].decode(errors="replace").splitlines():
                if line.startswith("enginewright_"):
                    series, _, number = line.rpartition(" ")
                    with contextlib.suppress(ValueError):
                        samples[_without_model(series)] = float(number)
        return samples

    def infer(
        self, body: bytes, headers: Mapping[str, str], seconds: float = 60
    ) -> tuple[int, bytes]:
        """POST one request; status 0 where the connection ends without an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", HTTP, timeout=seconds)
        try:
            connection.request("POST", "/v2/models/m/infer", body, dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()

    def why_ended(self) -> str:
        """Return the server's termination message as text, or the end of its log."""
        report = self.pod._report()  # noqa: SLF001 - of the same module
        failure = report.get("failure") or {}
        if failure:
            return f"{failure.get('reason')}: {failure.get('cause')}"
        return (self.pod.root / "serve.log").read_text(errors="replace")[-600:]


def _without_model(series: str) -> str:
    name, brace, labels = series.partition("{")
    if not brace:
        return name
    kept = [
        label
        for label in labels.rstrip("}").split(",")
        if label and not label.startswith(("model=", "revision="))
    ]
    return f"{name}{{{','.join(kept)}}}" if kept else name
