"""A client that means well: one request after the other on a connection, and a kubelet's probes.

It shares its core with the hostile clients, with a higher priority where that is allowed.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from typing import Final

import numpy as np

from bench.serving import cores
from bench.serving.cases import Case
from bench.serving.exchange import Request, read_values
from bench.serving.servers import HTTP_PORT

_PAUSE_SECONDS: Final = 0.001  # between an answer and the next request
_AGAIN_SECONDS: Final = 0.1  # between a failure and the next request
_TIMEOUT_SECONDS: Final = 5.0
_PROBE_SECONDS: Final = 1.0  # `timeoutSeconds` of a probe, unless a pod says otherwise
_FIRST: Final = -10  # niceness


@dataclass
class Window:
    """What came of the requests of some time."""

    took_us: list[float] = field(default_factory=list)  # of the answered, but for the first
    answered: int = 0
    failed: int = 0

    @property
    def p50_us(self) -> float | None:
        """The median."""
        return float(np.percentile(self.took_us, 50)) if self.took_us else None

    @property
    def p99_us(self) -> float | None:
        """The 99th percentile."""
        return float(np.percentile(self.took_us, 99)) if self.took_us else None


class SteadyClient:
    """Sends a request in binary and compares the answer."""

    def __init__(self, sent: Request, case: Case) -> None:
        self._sent = sent
        self._expected = case.y.ravel()

    def ask(self, seconds: float) -> Window:
        """Ask on a new connection for a while, or until an answer does not come in time."""
        window = Window()
        client = HTTPConnection("127.0.0.1", HTTP_PORT, timeout=_TIMEOUT_SECONDS)
        with cores.pin(cores.LOAD), _prefer(), contextlib.closing(client):
            end = time.monotonic() + seconds
            while time.monotonic() < end or window.answered + window.failed < 2:
                began = time.perf_counter()
                try:
                    answer = self._exchange(client)
                except TimeoutError:
                    window.failed += 1
                    break
                except (OSError, HTTPException):
                    client.close()
                    answer = None
                took = time.perf_counter() - began
                if answer is None or not self._is_right(answer):
                    window.failed += 1
                    time.sleep(_AGAIN_SECONDS)
                    continue
                if window.answered:
                    window.took_us.append(took * 1e6)
                window.answered += 1
                time.sleep(_PAUSE_SECONDS)
        return window

    def _exchange(self, client: HTTPConnection) -> tuple[int, str | None, bytes]:
        client.request("POST", self._sent.path, self._sent.body, dict(self._sent.headers))
        answer = client.getresponse()
        return answer.status, answer.headers.get("Inference-Header-Content-Length"), answer.read()

    def _is_right(self, answer: tuple[int, str | None, bytes]) -> bool:
        status, length, body = answer
        if status != HTTPStatus.OK:
            return False
        try:
            values = read_values(self._sent.transport, length, body)
        except (ValueError, LookupError, TypeError):  # it is no answer at all
            return False
        return values.shape == self._expected.shape and np.allclose(
            values, self._expected, rtol=1e-3, atol=1e-4
        )


def probe(path: str) -> bool:
    """Ask like a kubelet, on a new connection; return whether the answer came in time and was good."""
    client = HTTPConnection("127.0.0.1", HTTP_PORT, timeout=_PROBE_SECONDS)
    began = time.monotonic()
    try:
        with cores.pin(cores.LOAD), _prefer(), contextlib.closing(client):
            client.request("GET", path)
            is_good = client.getresponse().status == HTTPStatus.OK
    except (OSError, HTTPException):
        return False
    return is_good and time.monotonic() - began < _PROBE_SECONDS


@contextmanager
def _prefer() -> Iterator[None]:
    """Have a higher priority than the hostile clients on the same core, where that is allowed."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _FIRST)
    try:
        yield
    finally:
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, before)
