"""A closed-loop HTTP load generator: each connection sends its next request after the answer.

The request is built in advance, and every answer must have the length and tensors of the first, so
that the client costs little and no wrong answer is counted as a fast one.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, cast

import uvloop
from typing_extensions import override


class _Client(asyncio.Protocol):
    def __init__(self, run: "_Run") -> None:
        self._run = run
        self._transport: asyncio.Transport | None = None
        self._answer = b""
        self._sent = 0.0

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._send()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if not self._run.over:
            self._run.fail(f"a connection was lost: {exc}")

    @override
    def data_received(self, data: bytes) -> None:
        self._answer = self._answer + data if self._answer else data
        run = self._run
        if run.expected_length is None:
            run.learn(self._answer)
        if run.expected_length is None or len(self._answer) < run.expected_length:
            return
        answer, self._answer = self._answer, b""
        if len(answer) != run.expected_length or not answer.endswith(run.expected_end):
            run.fail(f"unexpected answer: {answer[:300]!r}")
            return
        run.latencies.append(time.perf_counter() - self._sent)
        if not run.over:
            self._send()

    def _send(self) -> None:
        if self._transport is not None:
            self._sent = time.perf_counter()
            self._transport.write(self._run.request)


class _Run:
    def __init__(self, request: bytes, tail: int) -> None:
        self.request = request
        self.tail = tail
        self.expected_length: int | None = None
        self.expected_end = b""
        self.latencies: list[float] = []
        self.over = False
        self.failure: str | None = None

    def learn(self, answer: bytes) -> None:
        head, end, body = answer.partition(b"\r\n\r\n")
        if not end:
            return
        if not head.startswith(b"HTTP/1.1 200"):
            self.fail(f"unexpected status: {answer[:500]!r}")
            return
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        length = int(fields[b"content-length"])
        if len(body) >= length:
            self.expected_length = len(head) + 4 + length
            self.expected_end = body[length - self.tail : length]

    def fail(self, why: str) -> None:
        self.failure = self.failure or why
        self.over = True


async def _load(run: _Run, port: int, connections: int, seconds: float, pid: int) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    for _ in range(connections):
        await loop.create_connection(lambda: _Client(run), "127.0.0.1", port)
    await asyncio.sleep(seconds / 4)  # warm-up, not counted
    run.latencies.clear()
    began, cpu = time.perf_counter(), _cpu_seconds(pid)
    await asyncio.sleep(seconds)
    elapsed, cpu = time.perf_counter() - began, _cpu_seconds(pid) - cpu
    latencies = sorted(run.latencies)
    run.over = True
    if run.failure or not latencies:
        return {"failure": run.failure or "no answers"}
    return {
        "requests": len(latencies),
        "per_second": len(latencies) / elapsed,
        "p50_us": latencies[len(latencies) // 2] * 1e6,
        "p99_us": latencies[int(len(latencies) * 0.99)] * 1e6,
        "cpu_us": cpu / len(latencies) * 1e6,
    }


def _cpu_seconds(pid: int) -> float:
    """Return the user and system time of all threads of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--request", type=Path, required=True, help="file with the request")
    parser.add_argument(
        "--tail", type=int, required=True, help="size of an answer's tensors in bytes"
    )
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument(
        "--pid", type=int, required=True, help="process id of the server, for its CPU time"
    )
    arguments = parser.parse_args()
    run = _Run(arguments.request.read_bytes(), arguments.tail)
    result = uvloop.run(
        _load(run, arguments.port, arguments.connections, arguments.seconds, arguments.pid)
    )
    print(json.dumps(result))
    return 1 if "failure" in result else 0


if __name__ == "__main__":
    sys.exit(main())
