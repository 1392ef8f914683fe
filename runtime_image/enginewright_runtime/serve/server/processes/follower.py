"""A server process that another one has started: it proves its own copy of the model, then serves.

It takes part in the life of the first process only: it has neither signals nor a termination message of
its own, and ends with it, even if that was killed.
"""

import asyncio
import importlib
import logging
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any, Final, NoReturn

import uvloop
from enginewright.contract.task import ServeTask

from enginewright_runtime.core import logs
from enginewright_runtime.core.parent import end_with_parent
from enginewright_runtime.serve import lanes
from enginewright_runtime.serve.mounted_secret import MountedSecret
from enginewright_runtime.serve.server import memory
from enginewright_runtime.serve.server.application import start_listening
from enginewright_runtime.serve.server.batching import BatchLimits
from enginewright_runtime.serve.server.endpoints import Endpoints
from enginewright_runtime.serve.server.files import fit_files
from enginewright_runtime.serve.server.health import HealthProblem
from enginewright_runtime.serve.server.message import HttpResponse
from enginewright_runtime.serve.server.pod_resources import PodResource, SharedAnswers
from enginewright_runtime.serve.server.processes import messages
from enginewright_runtime.serve.server.processes.channel import (
    Channel,
    ChannelClosedError,
    ProcessMessage,
)
from enginewright_runtime.serve.server.processes.exposition import describe
from enginewright_runtime.serve.server.refusals import as_failure
from enginewright_runtime.serve.server.request_failures import busy
from enginewright_runtime.serve.server.settings import ServerSettings
from enginewright_runtime.serve.server.startup import ServedModel, prepare

_ASK_SECONDS: Final = 2.0
_log: Final = logging.getLogger(__name__)


class _First:
    """What the first process says about the pod, and answers for it."""

    def __init__(self, channel: Channel, seconds: float) -> None:
        """Create it; after `seconds` without a word from the first process it does not work."""
        self._channel = channel
        self._seconds = seconds
        self._heard = time.monotonic()
        self._live: HealthProblem | None = None
        self._ready: HealthProblem | None = None

    def hear(self, fields: dict[str, Any]) -> None:
        """Take what the first process says about the pod's health."""
        self._heard = time.monotonic()
        self._live = messages.read_problem(fields["live"])
        self._ready = messages.read_problem(fields["ready"])

    def why_not_live(self) -> HealthProblem | None:
        """Return why the pod is not live."""
        if time.monotonic() - self._heard > self._seconds:
            return HealthProblem("the first server process does not respond")
        return self._live

    def why_not_ready(self) -> HealthProblem | None:
        """Return why the pod is not ready."""
        return self._ready

    async def answer(self, resource: PodResource, target: bytes) -> HttpResponse:
        """Return the first process's response (`PodResources`)."""
        fields = {"resource": resource.value, "target": target.decode("latin-1")}
        try:
            answer = await self._channel.ask(ProcessMessage(messages.ANSWER, fields), _ASK_SECONDS)
        except TimeoutError:
            raise busy("the first server process does not respond") from None
        except ChannelClosedError:
            raise busy("the server is ending") from None
        return messages.read_response(answer)


class _Follower:
    """One run of the process."""

    def __init__(self, http: socket.socket, grpc: socket.socket) -> None:
        self._sockets = http, grpc
        self._endpoints: Endpoints | None = None
        self._model: ServedModel | None = None
        self._first: _First | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, end: socket.socket) -> None:
        """Do what the first process says, until it has ended."""
        self._channel = Channel(self._take)
        await self._channel.open(end)
        await self._channel.closed()

    async def _take(self, message: ProcessMessage) -> ProcessMessage | None:
        fields = message.fields
        if message.kind == messages.START:
            return await self._start(fields)
        endpoints, model, first = self._endpoints, self._model, self._first
        assert endpoints is not None  # noqa: S101 - the first process waits for the start
        assert model is not None  # noqa: S101 - likewise
        assert first is not None  # noqa: S101 - likewise
        app = endpoints.app
        if message.kind in {messages.SERVE, messages.REPORT}:
            first.hear(fields)
            if message.kind == messages.SERVE:
                for each in self._sockets:
                    start_listening(each)
                endpoints.accept(*self._sockets)
            return ProcessMessage(
                message.kind,
                {
                    "metrics": describe(app.metrics.families()),
                    "statistics": app.statistics(),
                    "memory": memory.resident_bytes(),
                    "live": messages.problem_fields(app.inference.own_why_not_live()),
                    "ready": messages.problem_fields(app.inference.own_why_not_ready()),
                },
            )
        if message.kind == messages.MEASUREMENTS:
            series = [each.model_dump(mode="json") for each in model.buckets.latencies()]
            return ProcessMessage(message.kind, {"latencies": series})
        if message.kind == messages.EXECUTION:
            buckets = [each.model_dump(mode="json") for each in model.buckets.report()]
            known = {"buckets": buckets, "outside": app.metrics.outside}
            return ProcessMessage(message.kind, known, model.execution.document())
        if message.kind == messages.COPY:
            response = app.take_copy(fields["target"].encode("latin-1"), fields["elsewhere"])
            return messages.response_message(message.kind, response, dropped=app.copies.dropped)
        if message.kind == messages.DRAIN:
            self._begin(self._drain(endpoints))
        return None

    async def _start(self, fields: dict[str, Any]) -> ProcessMessage:
        """Load and prove the model."""
        task = ServeTask.model_validate(fields["task"])
        settings = fit_files(ServerSettings(**fields["settings"]), protocols=2)
        limits = fields["batches"]
        batches = BatchLimits(**limits | {"sizes": tuple(limits["sizes"])})
        try:
            tokens = MountedSecret(Path(fields["tokens"]))
            tls = MountedSecret(Path(fields["tls"]))
            endpoints = Endpoints(task, settings, fields["token"], tokens=tokens, tls=tls)
            model = await self._prepare(task, Path(fields["artifact"]), batches)
            # only now: a sidecar that connected earlier would wait for an answer
            lane = lanes.listen(fields["token"], fields["index"])
        except Exception as error:  # noqa: BLE001 - whatever it is must be reported
            return ProcessMessage(
                messages.START, {"failed": as_failure(error).finding.model_dump(mode="json")}
            )
        memory.tune_for_requests()
        self._first = _First(self._channel, settings.process_seconds)
        endpoints.app.inference.others = self._first
        endpoints.app.pod = SharedAnswers(self._first)
        endpoints.serve_model(model)
        endpoints.accept_lane(lane)
        self._endpoints, self._model = endpoints, model
        self._begin(endpoints.sweep())
        _log.info("ready, %s", model.summary)
        return ProcessMessage(messages.START, {"failed": None})

    async def _prepare(self, task: ServeTask, artifact: Path, batches: BatchLimits) -> ServedModel:
        loop = asyncio.get_running_loop()

        def report_progress(state: str) -> None:
            message = ProcessMessage(messages.PROGRESS, {"state": state})
            loop.call_soon_threadsafe(self._channel.tell, message)

        return await asyncio.to_thread(prepare, task, artifact, report_progress, found=batches)

    async def _drain(self, endpoints: Endpoints) -> None:
        endpoints.begin_drain()
        await endpoints.drain()
        endpoints.flush()
        _exit(0)

    def _begin(self, work: Any) -> None:  # noqa: ANN401 - a coroutine
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _exit(code: int) -> NoReturn:
    """End at once: a thread inside a native library would crash a regular exit of the interpreter."""
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)


def main(index: int, end: int, http: int, grpc: int) -> NoReturn:
    """Run it: the place's number from 1, and descriptors of the channel and of the bound sockets."""
    end_with_parent()
    for number in (
        signal.SIGTERM,
        signal.SIGINT,
    ):  # of the whole group; the first process handles them
        signal.signal(number, signal.SIG_IGN)
    logs.configure(f"serve-{index + 1}")
    follower = _Follower(socket.socket(fileno=http), socket.socket(fileno=grpc))
    uvloop.run(follower.run(socket.socket(fileno=end)))
    _exit(1)


if __name__ == "__main__":
    # the module by its own name, under which its lines are logged
    importlib.import_module("enginewright_runtime.serve.server.processes.follower").main(
        *map(int, sys.argv[1:])
    )
