"""The sidecar's process: reads manifest and golden samples, opens its port, monitors until SIGTERM.

As a native sidecar container it starts before the server and ends after it.
"""

import asyncio
import contextlib
import logging
import signal
import time
from typing import Final

from enginewright_contract.reasons import ExitCode, Reason
from enginewright_contract.task import HTTP_PORT, SIDECAR, SIDECAR_PORT, ServeTask
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.core.reporting import end_with, write_termination_message

from enginewright_serving.manifest import read_manifest
from enginewright_serving.sidecar.app import SidecarApp
from enginewright_serving.sidecar.monitor import Monitor
from enginewright_serving.sidecar.pod_state import PodState
from enginewright_serving.sidecar.samples import GoldenSamples
from enginewright_serving.transport.acceptor import Acceptor
from enginewright_serving.transport.application import listen
from enginewright_serving.transport.connection import RECEIVE_BYTES, Connection
from enginewright_serving.transport.head import HeadParser

_log: Final = logging.getLogger(__name__)


def run(
    task: ServeTask,
    paths: Paths | None = None,
    *,
    port: int = SIDECAR_PORT,
    server_port: int = HTTP_PORT,
) -> int:
    """Monitor the server on this machine until SIGTERM, listen on all addresses; return the exit code."""
    paths = paths or Paths.from_environment()
    try:
        pod_state, monitor = _prepare(task, paths, server_port)
        asyncio.run(_run(pod_state, monitor, port))
    except StageFailure as failure:
        return end_with(SIDECAR, failure, paths)
    except OSError as error:
        cause = f"cannot listen on port {port}: {error}"
        return end_with(SIDECAR, StageFailure(Reason.INTERNAL_ERROR, cause), paths)
    write_termination_message(paths, "")
    return ExitCode.OK


def _prepare(task: ServeTask, paths: Paths, server_port: int) -> tuple[PodState, Monitor]:
    manifest = read_manifest(task, paths.artifact)
    try:
        samples = GoldenSamples(paths.artifact, manifest)
    except (OSError, ValueError) as error:
        raise StageFailure(
            Reason.ARTIFACT_CORRUPT, f"the golden samples of the artefact are unusable: {error}"
        ) from error
    pod_state = PodState(task, manifest, len(samples.names), time.monotonic)
    return pod_state, Monitor(pod_state, samples, paths, server_port)


async def _run(pod_state: PodState, monitor: Monitor, port: int) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    app = SidecarApp(pod_state, monitor)
    heads, buffer = HeadParser(), bytearray(RECEIVE_BYTES)
    acceptor = Acceptor(listen(port), lambda: Connection(app, heads, buffer), app.close_one)
    task = pod_state.task
    _log.info("monitoring model %s, revision %s, port %d open", task.model, task.revision, port)
    running = [asyncio.create_task(monitor.run()), asyncio.create_task(app.sweep())]
    await asyncio.wait([asyncio.create_task(stop.wait()), *running], return_when="FIRST_COMPLETED")
    acceptor.close()
    for item in running:
        item.cancel()
    for item in running:
        with contextlib.suppress(asyncio.CancelledError):
            await item
    _log.info("received SIGTERM")
