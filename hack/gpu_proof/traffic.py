"""Requests of the Open Inference Protocol with the binary tensor extension, and a closed-loop load of them."""

import json
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hack.gpu_proof.pod import HTTP, StepError

_TYPES: Final = {
    "float32": "FP32",
    "float16": "FP16",
    "float64": "FP64",
    "int64": "INT64",
    "int32": "INT32",
    "uint8": "UINT8",
    "bool": "BOOL",
}


def encode(feeds: Mapping[str, NDArray[Any]]) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of a request whose tensors, and whose answer's, are binary."""
    inputs = [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": _TYPES[array.dtype.name],
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in feeds.items()
    ]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    body = head + b"".join(np.ascontiguousarray(array).tobytes() for array in feeds.values())
    return body, {
        "Inference-Header-Content-Length": str(len(head)),
        "Content-Type": "application/octet-stream",
    }


@dataclass(frozen=True)
class Measured:
    """The result of a load."""

    requests: int
    failed: int
    seconds: float
    latencies: tuple[float, ...]  # seconds, sorted

    @property
    def rate(self) -> float:
        """Return the requests per second."""
        return self.requests / self.seconds

    def quantile(self, share: float) -> float:
        """Return the latency in seconds that a share of the requests did not exceed."""
        return self.latencies[min(len(self.latencies) - 1, int(share * len(self.latencies)))]

    def figures(self) -> dict[str, float]:
        """Return the figures in requests per second and milliseconds."""
        return {
            "requests_per_second": round(self.rate, 1),
            "p50_ms": round(self.quantile(0.5) * 1e3, 3),
            "p99_ms": round(self.quantile(0.99) * 1e3, 3),
            "requests": self.requests,
            "failed": self.failed,
        }


def load(body: bytes, headers: Mapping[str, str], connections: int, seconds: float) -> Measured:
    """Send one request after the other on each of some kept connections.

    Raises:
        StepError: nothing was answered.
    """
    lines = [
        "POST /v2/models/m/infer HTTP/1.1",
        "Host: m",
        f"Content-Length: {len(body)}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    request = "\r\n".join(lines).encode() + b"\r\n\r\n" + body
    latencies: list[float] = []
    failed: list[str] = []
    end = time.perf_counter() + seconds

    def send() -> None:
        stream = _Stream()
        while (began := time.perf_counter()) < end:
            try:
                status = stream.exchange(request)
            except OSError as error:
                failed.append(str(error))
                stream = _Stream()
                continue
            if status == 200:
                latencies.append(time.perf_counter() - began)
            else:
                failed.append(str(status))

    began = time.perf_counter()
    threads = [threading.Thread(target=send) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - began
    if not latencies:
        raise StepError(f"no request was answered: {failed[:3]}")
    return Measured(len(latencies), len(failed), elapsed, tuple(sorted(latencies)))


class _Stream:
    """One kept connection; reconnects after the server has closed it."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def exchange(self, request: bytes) -> int:
        if self._socket is None:
            self._socket = socket.create_connection(("127.0.0.1", HTTP), timeout=60)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(request)
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._receive()
        head, _, rest = data.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        size = next(
            int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:")
        )
        remaining = size - len(rest)
        while remaining > 0:
            remaining -= len(self._receive())
        if b"connection: close" in lines:
            self._socket.close()
            self._socket = None
        return int(lines[0].split()[1])

    def _receive(self) -> bytes:
        assert self._socket is not None  # noqa: S101 - set by exchange
        received = self._socket.recv(1 << 20)
        if not received:
            self._socket = None
            raise OSError("the server closed the connection")
        return received


def time_runs(run: Callable[[], object], seconds: float, warm: int = 5) -> Sequence[float]:
    """Return the sorted seconds of repeated calls."""
    for _ in range(warm):
        run()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end or len(times) < 5:
        run()
        times.append(time.perf_counter() - began)
    return sorted(times)


def summary(times: Sequence[float]) -> dict[str, float]:
    """Return median and p99 of sorted seconds in milliseconds, and how many there are."""
    return {
        "p50_ms": round(times[len(times) // 2] * 1e3, 3),
        "p99_ms": round(times[min(len(times) - 1, int(len(times) * 0.99))] * 1e3, 3),
        "runs": len(times),
    }
