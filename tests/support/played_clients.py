"""Clients of the model's worker that are played: what each asks for, and what becomes of its request."""

import time
from dataclasses import dataclass, field

import numpy as np
from enginewright_runtime.core.request_errors import RequestError
from enginewright_serving.server.inference.job import Job
from enginewright_serving.server.protocol.priorities import DEFAULT
from enginewright_serving.transport.call import InferenceCall


@dataclass
class Plan:
    """What a request asks for, by default as one that states nothing (`RequestPlan`)."""

    outputs: list[str] = field(default_factory=lambda: ["y"])
    timeout: float = 0.0
    priority: int = DEFAULT
    has_run: bool = True


class PlayedClient:
    """Records what one client is sent (`Responder`)."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.messages: list[str] = []
        self.released = False
        self.aborted = 0

    def succeed(self, job: Job) -> None:
        assert job.arrays is not None
        self.sent.append(200)

    def fail(self, error: RequestError) -> None:
        self.sent.append(error.status)
        self.messages.append(error.message)

    def release(self) -> None:
        self.released = True

    def abort(self) -> None:
        self.aborted += 1


class PlayedHealth:
    """Keeps whether runs have succeeded (`Watchdog`)."""

    def __init__(self) -> None:
        self.recorded: list[bool] = []

    def record(self, *, succeeded: bool) -> None:
        self.recorded.append(succeeded)


class Panic(BaseException):
    """What native code raises, which is no `Exception`."""


def play_job(
    client: PlayedClient | None = None,
    value: float = 1.0,
    *,
    plan: Plan | None = None,
    call: InferenceCall | None = None,
    rows: int = 1,
    width: int = 2,
) -> Job:
    """Return a request that arrives now, with so many rows; none: it joins no batch."""
    x = np.full((rows, width) if rows else (), value, np.float32)
    return Job(
        call or InferenceCall(),
        plan or Plan(),
        {"x": x},
        client or PlayedClient(),
        time.monotonic(),
    )
