"""The sidecar's process: reads what was proven, opens its port, watches until it is received SIGTERM.

It starts before the server and ends after it, being a native sidecar: neither a server that is not
there yet nor one that drains is a reason to stop.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import time
from typing import Final

from enginewright.contract.manifest import MANIFEST_NAME, Manifest
from enginewright.contract.reasons import ExitCode, Reason, exit_code
from enginewright.contract.task import HTTP_PORT, SIDECAR_PORT, ServeTask
from pydantic import ValidationError

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.core.reporting import failed, write_herald
from enginewright_runtime.serve.server.connection import RECEIVE_BYTES, Connection
from enginewright_runtime.serve.server.head import HeadParser
from enginewright_runtime.serve.sidecar.app import App
from enginewright_runtime.serve.sidecar.findings import Findings
from enginewright_runtime.serve.sidecar.samples import Samples
from enginewright_runtime.serve.sidecar.settings import Settings
from enginewright_runtime.serve.sidecar.watch import Watch

_log: Final = logging.getLogger(__name__)
STAGE: Final = "sidecar"


def run(
    task: ServeTask,
    paths: Paths | None = None,
    *,
    port: int = SIDECAR_PORT,
    server_port: int = HTTP_PORT,
    settings: Settings | None = None,
) -> int:
    """Watch until SIGTERM and return the exit code.

    Args:
        task: what the server serves.
        paths: where artefact and termination log lie; None: the contract's.
        port: TCP port on all addresses.
        server_port: of the server, on this machine.
        settings: times and limits; None: the defaults.
    """
    paths = paths or Paths.from_environment()
    try:
        findings, watch = _prepare(task, paths, settings or Settings(), server_port)
        asyncio.run(_run(findings, watch, port))
    except StageFailure as failure:
        report = failed(STAGE, failure)
        _log.error("%s: %s", report.reason, report.message)
        write_herald(paths, report.herald())
        return int(exit_code(failure.reason))
    except OSError as error:
        report = failed(
            STAGE,
            StageFailure(Reason.INTERNAL_ERROR, f"cannot answer on port {port}: {error}"),
        )
        _log.error("%s: %s", report.reason, report.message)
        write_herald(paths, report.herald())
        return ExitCode.INTERNAL
    write_herald(paths, "")
    return ExitCode.OK


def _prepare(
    task: ServeTask, paths: Paths, settings: Settings, server_port: int
) -> tuple[Findings, Watch]:
    manifest = _read_manifest(task, paths)
    try:
        samples = Samples(paths.artifact, manifest)
    except (OSError, ValueError) as error:
        raise StageFailure(
            Reason.ARTIFACT_CORRUPT, f"the golden samples of the artefact are unusable: {error}"
        ) from error
    findings = Findings(task, manifest, len(samples.names), settings, time.monotonic)
    return findings, Watch(findings, samples, settings, paths, server_port)


def _read_manifest(task: ServeTask, paths: Paths) -> Manifest:
    path = paths.artifact / MANIFEST_NAME
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise StageFailure(
            Reason.ARTIFACT_MISSING, f"there is no {path}: nothing was fetched"
        ) from None
    except (OSError, ValidationError) as error:
        raise StageFailure(Reason.ARTIFACT_CORRUPT, f"cannot read {path}: {error}") from error
    wanted = task.engine_key or task.prepared_key
    if manifest.key != wanted:
        raise StageFailure(
            Reason.ARTIFACT_CORRUPT,
            f"the artefact has key {manifest.key[:12]}, the task asks for {wanted[:12]}",
        )
    return manifest


async def _run(findings: Findings, watch: Watch, port: int) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    app = App(findings, watch)
    heads, buffer = HeadParser(), bytearray(RECEIVE_BYTES)
    server = await loop.create_server(lambda: Connection(app, heads, buffer), sock=_listen(port))
    task = findings.task
    _log.info("watching model %s, revision %s, port %d open", task.model, task.revision, port)
    running = [asyncio.create_task(watch.run()), asyncio.create_task(app.sweep())]
    await asyncio.wait([asyncio.create_task(stop.wait()), *running], return_when="FIRST_COMPLETED")
    server.close()
    for each in running:
        each.cancel()
    for each in running:
        with contextlib.suppress(asyncio.CancelledError):
            await each
    _log.info("received SIGTERM")


def _listen(port: int) -> socket.socket:
    """Return a listening socket for IPv4 and IPv6, for IPv4 alone where there is no IPv6."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))
