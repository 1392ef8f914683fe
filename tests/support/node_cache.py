"""The cache of a node as a process, and plain requests to it."""

import hashlib
import http.client
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from enginewright_contract.node_cache import file_path
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.harness import eventually
from tests.support.ports import free_port

SCOPE: Final = "5c" * 32
_SECONDS: Final = 20.0


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def path_of(content: bytes, scope: str = SCOPE) -> str:
    return file_path(scope, sha256(content))


def node_cache_metrics(text: str) -> dict[str, float]:
    """Return the values of a cache's metrics by name, such as `bytes`, and result: `reads_total hit`."""
    samples = (
        sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    )
    return {
        " ".join(
            (sample.name.removeprefix("enginewright_node_cache_"), *sample.labels.values())
        ): sample.value
        for sample in samples
    }


@dataclass
class CacheProcess:
    """The cache of one folder; it may be killed and started again."""

    folder: Path
    port: int
    size: str
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start, and wait until it answers."""
        command = [sys.executable, "-m", "enginewright.node_cache", "--folder", str(self.folder)]
        options = ["--size", self.size, "--keep-free", "0%", "--port", str(self.port)]
        self.process = subprocess.Popen([*command, *options])

        def answers() -> bool:
            with suppress(OSError):
                return self.ask("GET", "/healthz") == (200, b"ok\n")
            return False

        eventually(answers, _SECONDS, "the cache", interval=0.02)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """End it as a kubelet does; return its exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(_SECONDS)

    def ask(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.address, timeout=_SECONDS)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, named)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def put(self, content: bytes, scope: str = SCOPE) -> bool:
        """Offer a content that the cache lacks; return whether it has taken it."""
        try:
            status, _ = self.ask("PUT", path_of(content, scope), content, If_None_Match="*")
        except ConnectionError:
            return False  # it receives nothing of what it refuses
        assert status in (201, 409, 412)
        return status == 201

    def get(self, content: bytes, scope: str = SCOPE) -> bool:
        status, content_read = self.ask("GET", path_of(content, scope))
        assert (status, content_read) in ((200, content), (404, b""))
        return status == 200

    def files(self) -> list[str]:
        """Return the names of the files in the folder, also of partial ones."""
        return sorted(path.name for path in self.folder.rglob("*") if path.is_file())

    def metrics(self) -> dict[str, float]:
        status, text = self.ask("GET", "/metrics")
        assert status == 200
        return node_cache_metrics(text.decode())


@contextmanager
def node_cache(folder: Path, size: str = "64Mi") -> Iterator[CacheProcess]:
    """Run the cache of a folder."""
    process = CacheProcess(folder, free_port(), size)
    process.start()
    try:
        yield process
    finally:
        if process.process is not None and process.process.poll() is None:
            process.stop()
