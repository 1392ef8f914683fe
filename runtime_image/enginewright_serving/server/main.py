"""The server process: opens the ports, verifies the model, serves it, drains.

The ports open before the model is loaded, so that health endpoints answer from the start.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from typing import Final

import uvloop
from enginewright_contract.reasons import ExitCode, Reason
from enginewright_contract.task import GRPC_PORT, HTTP_PORT, ServeTask
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.core.reporting import end_with, report_failure, write_termination_message

from enginewright_serving import probe_token
from enginewright_serving.mounted_secret import MountedSecret
from enginewright_serving.server.endpoints import Endpoints
from enginewright_serving.server.observe import memory
from enginewright_serving.server.startup.known_times import read_times
from enginewright_serving.server.startup.prepare import ServedModel, prepare
from enginewright_serving.transport.application import listen
from enginewright_serving.transport.files import fit_files
from enginewright_serving.transport.settings import TransportSettings
from enginewright_serving.transport.tls import HANDSHAKES

_log: Final = logging.getLogger(__name__)


def run(
    task: ServeTask,
    paths: Paths | None = None,
    *,
    port: int = HTTP_PORT,
    grpc_port: int = GRPC_PORT,
    settings: TransportSettings | None = None,
) -> int:
    """Serve on all addresses until SIGTERM; return 0 after a drain, else the exit code of the reason."""
    handshakes = HANDSHAKES if task.tls else 0
    fitting = fit_files(settings or TransportSettings(), protocols=2, handshakes=handshakes)
    paths = paths or Paths.from_environment()
    try:
        server = _Server(task, paths, (port, grpc_port), fitting)
    except StageFailure as failure:
        return end_with("serve", failure, paths)
    try:
        code = uvloop.run(server.run())
    except OSError as error:
        _log.error("cannot serve: %s", error)  # it names the port
        return ExitCode.INTERNAL
    if server.has_loader:
        # a thread inside a native library would crash a regular exit of the interpreter
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _as_failure(error: Exception) -> StageFailure:
    if isinstance(error, StageFailure):
        return error
    if isinstance(error, MemoryError):
        return StageFailure(Reason.OUT_OF_MEMORY, "the model does not fit into memory")
    _log.debug("internal error", exc_info=error)
    return StageFailure(
        Reason.INTERNAL_ERROR, f"unexpected {type(error).__name__} at startup: {error}"
    )


class _Server:
    def __init__(
        self, task: ServeTask, paths: Paths, ports: tuple[int, int], settings: TransportSettings
    ) -> None:
        self._task = task
        self._paths = paths
        self._ports = ports
        self._endpoints = Endpoints(
            task,
            settings,
            probe_token.read_or_create(paths.probe_token),
            tokens=MountedSecret(paths.tokens),
            tls=MountedSecret(paths.tls),
        )
        self._inference = self._endpoints.app.inference
        self._stop = asyncio.Event()
        self._exit_code: int = ExitCode.OK
        self.has_loader = False  # a thread that may be inside a native library

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        http, grpc = map(listen, self._ports)
        self._write_crash_report()  # before any health endpoint answers
        self._endpoints.accept(http, grpc)
        sweep = asyncio.create_task(self._endpoints.sweep())
        threading.Thread(target=self._load, args=(loop,), name="load", daemon=True).start()
        self.has_loader = True
        await self._stop.wait()
        if self._exit_code == ExitCode.OK:
            self._log_why_not_live()
            await self._drain()
        self._endpoints.close()
        self._endpoints.flush()
        sweep.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sweep
        return self._exit_code

    def _write_crash_report(self) -> None:
        """Write the termination message for a native crash, after which none could be written."""
        crashed = StageFailure(
            Reason.BACKEND_CRASHED,
            f"the process ended while backend {self._task.backend} was loading or proving the model"
            " (exit code 139: the native library crashed; 137: killed, usually out of memory)",
        )
        write_termination_message(
            self._paths, report_failure("serve", crashed).termination_message()
        )

    # Loading, in its own thread.

    def _load(self, loop: asyncio.AbstractEventLoop) -> None:
        def report_progress(state: str) -> None:
            loop.call_soon_threadsafe(self._inference.progress, state)

        _log.info(
            "model %s, revision %s: loading on backend %s, ports %d and %d open",
            self._task.model,
            self._task.revision,
            self._task.backend,
            *self._ports,
        )
        try:
            model = prepare(
                self._task,
                self._paths.artifact,
                report_progress,
                self._paths.runtime_cache,
                read_times(self._paths.start_times),
            )
        except Exception as error:  # noqa: BLE001 - what ends the thread must be reported
            code = end_with("serve", _as_failure(error), self._paths)
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._fail, code)
        else:
            write_termination_message(self._paths, "")
            memory.tune_for_requests()
            with contextlib.suppress(RuntimeError):  # the loop may have ended
                loop.call_soon_threadsafe(self._ready, model)

    def _ready(self, model: ServedModel) -> None:
        if self._stop.is_set():
            return
        self._endpoints.serve_model(model, self._end_at_once)
        _log.info(
            "model %s, revision %s: ready, %s",
            self._task.model,
            self._task.revision,
            model.summary,
        )

    def _end_at_once(self) -> None:
        """End the process for a thread that has ended: its requests would wait for ever. In any thread."""
        code: int = ExitCode.INTERNAL
        try:
            failure = StageFailure(Reason.RUNS_FAIL, "a thread that runs the model has ended")
            code = end_with("serve", failure, self._paths)
        finally:
            os._exit(code)

    def _fail(self, code: int) -> None:
        self._exit_code = code
        self._stop.set()

    # Stopping.

    def _on_signal(self, number: int) -> None:
        if self._stop.is_set():
            _log.warning("second signal %d: exiting immediately", number)
            os._exit(128 + number)
        _log.info("signal %d: draining", number)
        self._endpoints.begin_drain()
        self._stop.set()

    def _log_why_not_live(self) -> None:
        problem = self._inference.why_not_live()
        if problem is None or problem.reason is None:
            return
        failure = StageFailure(problem.reason, problem.message)
        self._exit_code = end_with("serve", failure, self._paths)

    async def _drain(self) -> None:
        if self._inference.model is None:
            write_termination_message(self._paths, "")
            return
        await self._endpoints.drain()
