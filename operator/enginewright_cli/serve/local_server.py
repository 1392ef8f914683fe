"""A prepared model served on this machine as its pod would: one folder with the artefact, two processes.

The server and the sidecar end together: when one of them does, or when the command is interrupted.
"""

import json
import logging
import os
import shlex
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from enginewright_contract.manifest import MANIFEST_NAME, Manifest
from enginewright_contract.reasons import Fault
from enginewright_contract.report import read_termination_message
from enginewright_contract.task import ServeTask

from enginewright_cli.preflight.remedies import advise
from enginewright_cli.preflight.stages import Stages
from enginewright_cli.preflight.stopping import Stop, Stopped, in_parallel
from enginewright_cli.preflight.workspace import link_locales
from enginewright_cli.reporting import CommandError, Refused

_PROCESSES: Final = "enginewright_cli.serve.processes"
_INLINE: Final = 600  # characters of a request in the command line
_ANSWER_SECONDS: Final = 2.0
_STDERR: Final = 2


@dataclass(frozen=True)
class Ports:
    """Where server and sidecar listen; three in a row."""

    http: int

    def check(self) -> None:
        """Raise CommandError if one of them is taken."""
        for port in (self.http, self.sidecar, self.grpc):
            try:
                socket.create_server(("", port)).close()
            except OSError as error:
                raise CommandError(
                    f"port {port}: {error.strerror}; choose another --port"
                ) from None

    @property
    def sidecar(self) -> int:
        """Return the port of the sidecar."""
        return self.http + 1

    @property
    def grpc(self) -> int:
        """Return the server's port for gRPC."""
        return self.http + 2


class LocalServer:
    """A serving pod on this machine, whose folder is `root`."""

    def __init__(
        self, root: Path, artifact: Path, task: ServeTask, ports: Ports, *, verbose: bool
    ) -> None:
        self._root = root
        self._least = logging.INFO if verbose else logging.WARNING
        self._task = task
        self._ports = ports
        for folder in ("dev", "tmp"):
            (root / folder).mkdir()
        (root / "dev/termination-log").touch()
        (root / "artifact").symlink_to(artifact, target_is_directory=True)

    def run(self, stages: Stages, stop: Stop, on_ready: Callable[[], None]) -> None:
        """Serve until an interrupt, which ends with Stopped; `on_ready` is called once. Raises CommandError."""
        told = threading.Event()
        given = (self._task.to_json(), str(self._root), self._least)
        own = Stop(stop)

        def look() -> None:
            if own.is_set():
                raise Stopped

        def wait() -> None:
            look()
            if not told.is_set() and self._is_ready():
                told.set()
                on_ready()

        scratch = {"TMPDIR": str(self._root / "tmp")}
        environment = {**os.environ, **scratch, **link_locales(self._root / "locale")}

        def call(name: str, ports: tuple[int, int], check: Callable[[], None]) -> None:
            arguments = (f"{_PROCESSES}:{name}", *given, *ports)
            code = stages.call(arguments, environment, _STDERR, check)
            raise self._describe_end(_NAMES[name], code)

        ports = self._ports
        in_parallel(
            [
                lambda: call("serve", (ports.http, ports.grpc), wait),
                lambda: call("watch", (ports.sidecar, ports.http), look),
            ],
            2,
            own.set,
        )

    def _is_ready(self) -> bool:
        """Return whether the sidecar admits requests."""
        address = f"http://127.0.0.1:{self._ports.sidecar}/readyz"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(address, timeout=_ANSWER_SECONDS):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def _describe_end(self, name: str, code: int) -> CommandError:
        ended = (
            f"the {name} ended with code {code}"
            if code >= 0
            else f"the {name} was killed by signal {-code}"
        )
        with suppress(OSError):
            report = read_termination_message((self._root / "dev/termination-log").read_text())
            if report and (failure := report.failure):
                kind = CommandError if failure.reason.facets.fault is Fault.PRODUCT else Refused
                return kind(f"{ended}: {failure.cause}; {advise(failure)}")
        return CommandError(f"{ended}; its last lines above say why")

    def curl(self) -> str:
        """Return the command that sends the model's first golden sample; a large request goes into a file."""
        from enginewright_serving.sidecar.protocol import (  # noqa: PLC0415 - heavy
            UnencodableError,
            encode,
        )
        from enginewright_serving.sidecar.samples import GoldenSamples  # noqa: PLC0415 - heavy

        artifact = self._root / "artifact"
        manifest = Manifest.model_validate_json((artifact / MANIFEST_NAME).read_bytes())
        samples = GoldenSamples(artifact, manifest)
        sample = samples.read(samples.names[0])
        address = f"http://localhost:{self._ports.http}/v2/models/{self._task.model}/infer"
        try:
            body = b"".join(encode(sample, samples.types, binary=False).parts)
            header = ""
        except UnencodableError:
            encoded = encode(sample, samples.types, binary=True)
            body = b"".join(encoded.parts)
            header = f" -H 'Inference-Header-Content-Length: {encoded.json_length}' -o answer"
        if not header and len(body) <= _INLINE:
            return f"curl -s {address} -d {shlex.quote(_without_outputs(body))}"
        file = self._root / "request"
        file.write_bytes(body)
        return f"curl -s {address}{header} --data-binary @{file}"


_NAMES: Final = {"serve": "server", "watch": "sidecar"}


def _without_outputs(body: bytes) -> str:
    """Return a request in JSON for all outputs, which is shorter."""
    document: dict[str, Any] = json.loads(body)
    return json.dumps({"inputs": document["inputs"]})
