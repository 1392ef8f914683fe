"""The operator's entry point, with kopf as informer only.

kopf lists, watches and reconnects, and passes each event to the router. No kopf handler does IO,
stores state in objects or adds finalizers.
"""

import asyncio
import logging
import os
import signal
import sys
from contextlib import suppress
from typing import Any, Final, cast

import kopf
from typing_extensions import override

from enginewright.controller.app import OperatorApplication
from enginewright.controller.informer import Watch
from enginewright.controller.logs import configure_logging
from enginewright.controller.settings import BadSettings, OperatorSettings, load_settings
from enginewright.kube.connection import (
    ConnectionNotConfigured,
    authorization_of,
    load_connection,
)

EX_CONFIG: Final = 78  # sysexits.h
EX_TEMPFAIL: Final = 75
KOPF_GRACE: Final = 0.3  # seconds


def main() -> None:
    """Run until SIGTERM or SIGINT; exit 78 with one sentence if the settings are invalid."""
    try:
        settings = load_settings()
        configure_logging(settings.log_level)
        asyncio.run(_run(settings))
    except (BadSettings, ConnectionNotConfigured) as error:
        print(f"enginewright-operator: {error}", file=sys.stderr)
        sys.exit(EX_CONFIG)


async def _run(settings: OperatorSettings) -> None:
    await load_connection()  # fails early if it is not configured
    stop = asyncio.Event()
    app = OperatorApplication(settings, _on_lost)
    starting = asyncio.create_task(app.start())
    stopping = asyncio.create_task(stop.wait())
    _on_signals(stop)
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            return
        starting.result()
        await _watch(app, settings, stop, stopping)
    finally:
        stopping.cancel()
        await app.stop_acting()
        await app.stop_serving()
        await app.stop()


def _on_lost(why: str) -> None:
    """Exit at once: no pending request may reach the API server after another replica has become leader."""
    logging.getLogger(__name__).error("lost leadership, exiting: %s", why)
    logging.shutdown()
    os._exit(EX_TEMPFAIL)


async def _watch(
    app: OperatorApplication,
    settings: OperatorSettings,
    stop: asyncio.Event,
    stopping: asyncio.Task[bool],
) -> None:
    """Run kopf until `stop`, until it fails, or until there is a kind that it does not watch.

    At its end kopf waits 5 s for every task that was started after it: also for an open scrape of our
    metrics, so the HTTP server is closed first, and for its own tasks if they were still listing.
    """
    unwatch = asyncio.Event()
    outdated = asyncio.create_task(app.informer.outdated.wait())
    earlier = asyncio.all_tasks()
    tasks = await kopf.spawn_tasks(
        registry=_registry(app),
        settings=_settings(app.informer.present),
        clusterwide=settings.namespaces is None,
        namespaces=settings.namespaces or (),
        # Peering is off, but without an identity kopf asks for the user's name, which a pod lacks.
        identity=cast("Any", "enginewright"),  # kopf does not export the type
        stop_flag=unwatch,
    )
    _on_signals(stop)  # kopf has replaced the handlers
    watching = asyncio.create_task(kopf.run_tasks(tasks, ignored=earlier))
    await asyncio.wait((watching, stopping, outdated), return_when=asyncio.FIRST_COMPLETED)
    outdated.cancel()
    if app.informer.outdated.is_set():
        message = "the cluster has a kind of objects that is not watched: exiting, to start again"
        logging.getLogger(__name__).info(message)
        stop.set()
    if not watching.done():
        for name in (
            "kopf",
            "asyncio",
        ):  # they complain about tasks that kopf leaves open when stopped
            logging.getLogger(name).setLevel(logging.CRITICAL)
    await app.stop_acting()  # first of all: another replica waits to become leader
    await app.stop_serving()
    unwatch.set()
    await asyncio.wait((watching,), timeout=KOPF_GRACE)
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching


def _on_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)


def _registry(app: OperatorApplication) -> kopf.OperatorRegistry:
    async def handle(event: Any, param: Any = None, **_kwargs: Any) -> None:  # noqa: ANN401 - kopf's
        if event["type"] is None:  # from a list, with which each watch begins
            app.informer.watch_restarted()
        app.router.event(param, event["object"], deleted=event["type"] == "DELETED")

    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry)(_login)
    for resource in (watch.resource for watch in app.informer.present):
        place = (resource.group, resource.version, resource.plural)
        kopf.on.event(*place, id=resource.plural, param=resource, registry=registry)(handle)
    return registry


async def _login(**_kwargs: Any) -> kopf.ConnectionInfo:  # noqa: ANN401 - kopf's
    """Give kopf the same connection as our client; called again at every 401."""
    configuration = await load_connection()
    scheme, _, token = (await authorization_of(configuration) or "").partition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        scheme=scheme or None,
        token=token or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        proxy_url=configuration.proxy,
    )


class _NoDifferences(kopf.AnnotationsDiffBaseStorage):
    """Keeps nothing of objects: kopf copies each of them several times, for handlers that we do not have."""

    @override
    def fetch(self, **_kwargs: Any) -> None:
        return None

    @override
    def build(self, **_kwargs: Any) -> kopf.BodyEssence:
        return cast("kopf.BodyEssence", {})


class _NoProgress(kopf.AnnotationsProgressStorage):
    @override
    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        return essence


def _settings(watched: tuple[Watch, ...]) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.persistence.diffbase_storage = _NoDifferences()
    settings.persistence.progress_storage = _NoProgress()
    settings.scanning.disabled = True  # kinds and namespaces are fixed: less RBAC, no CRD watch
    settings.peering.standalone = True  # no peering CRD
    settings.posting.enabled = False  # our recorder writes Events
    settings.queueing.worker_limit = None  # handlers take microseconds; our queues set the bound
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.watching.connect_timeout = 30
    settings.watching.chunk_size = 200  # objects, each of them held until its worker ends
    settings.queueing.idle_timeout = 0.05  # seconds after which it does
    settings.networking.request_timeout = 30
    settings.networking.error_backoffs = (1, 2, 4)  # the default also waits 54 s on a 403
    for watch in watched:
        key = (watch.resource.group, watch.resource.version, watch.resource.plural)
        if watch.labels:
            settings.watching.label_selectors[key] = watch.labels
        if watch.fields:
            settings.watching.field_selectors[key] = watch.fields
    return settings


if __name__ == "__main__":
    main()
