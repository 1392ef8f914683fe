"""The operator's entry point, with kopf as informer only.

kopf lists, watches, reconnects and logs in. Its events go straight to the router: for handlers it would run a task for
each object, copy it several times and remember it, which takes more processor time than all that we do with an event.
"""

import asyncio
import logging
import os
import signal
import sys
from typing import Any, Final, cast

import kopf
from aiohttp import ClientError
from kopf._cogs.clients.errors import APIError
from kopf._cogs.clients.watching import Bookmark, WatchingError, infinite_watch

from enginewright.controller.app import OperatorApplication
from enginewright.controller.informer import Informer, WatchedPlace
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
_NOT_FOUND: Final = 404
_FAILURES: Final = (APIError, WatchingError, ClientError, TimeoutError)  # of kopf's requests

_logger: Final = logging.getLogger(__name__)


class _KopfEndedError(Exception):
    """kopf's own tasks have failed; the message says why."""


def main() -> None:
    """Run until SIGTERM or SIGINT; exit 78 with one sentence if the settings are invalid."""
    try:
        settings = load_settings()
        configure_logging(settings.log_level)
        asyncio.run(_run(settings))
    except (BadSettings, ConnectionNotConfigured) as error:
        print(f"enginewright-operator: {error}", file=sys.stderr)
        sys.exit(EX_CONFIG)
    except _KopfEndedError as error:
        _logger.error("kopf ended, exiting to start again: %s", error)  # noqa: TRY400 - kopf's frames say nothing
        sys.exit(EX_TEMPFAIL)


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
        await _watch(app, stop, stopping)
    finally:
        stopping.cancel()
        await app.stop_acting()
        await app.stop_serving()
        await app.stop()


def _on_lost(why: str) -> None:
    """Exit at once: no pending request may reach the API server after another replica has become leader."""
    _logger.error("lost leadership, exiting: %s", why)
    logging.shutdown()
    os._exit(EX_TEMPFAIL)


async def _watch(
    app: OperatorApplication, stop: asyncio.Event, stopping: asyncio.Task[bool]
) -> None:
    """Run kopf once this process leads, until `stop` or until it fails: at its start it asks for what the cluster serves.

    At its end kopf waits 5 s for every task that was started after it: also for an open scrape of our
    metrics, so the HTTP server is closed first, and for its own tasks if they were still listing.
    """
    leading = asyncio.create_task(app.informer.wanted.wait())
    await asyncio.wait((leading, stopping), return_when=asyncio.FIRST_COMPLETED)
    if not leading.done():
        leading.cancel()
        return
    unwatch = asyncio.Event()
    earlier = asyncio.all_tasks()
    registry, settings = kopf.OperatorRegistry(), _settings(app.informer)
    kopf.on.login(registry=registry)(_login)
    tasks = await kopf.spawn_tasks(
        registry=registry,
        settings=settings,
        clusterwide=True,
        # Peering is off, but without an identity kopf asks for the user's name, which a pod lacks.
        identity=cast("Any", "enginewright"),  # kopf does not export the type
        stop_flag=unwatch,
    )
    _on_signals(stop)  # kopf has replaced the handlers
    following = asyncio.create_task(_follow_all(app.informer, settings), name="watches")
    watching = asyncio.create_task(kopf.run_tasks([*tasks, following], ignored=earlier))
    await asyncio.wait((watching, stopping), return_when=asyncio.FIRST_COMPLETED)
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
    try:
        await watching
    except asyncio.CancelledError:
        pass
    except _FAILURES as error:
        raise _KopfEndedError(_describe(error)) from None


async def _follow_all(informer: Informer, settings: kopf.OperatorSettings) -> None:
    """List and watch everything: one kind after the other, as each listing takes memory."""
    async with asyncio.TaskGroup() as group:
        for place in informer.places:
            group.create_task(_follow(informer, settings, place))
            await informer.wait_listed(place)


async def _follow(informer: Informer, settings: kopf.OperatorSettings, place: WatchedPlace) -> None:
    """Pass on what kopf lists and watches, without end."""
    kind = place.watch.resource
    resource = kopf.Resource(kind.group, kind.version, kind.plural, namespaced=kind.namespaced)
    while True:
        try:
            async for event in infinite_watch(
                settings=settings, resource=resource, namespace=cast("Any", place.namespace)
            ):
                if event is Bookmark.LISTED:
                    informer.on_listed(place)
                elif event["type"] != "BOOKMARK":
                    is_deleted = event["type"] == "DELETED"
                    informer.on_event(kind, cast("Any", event["object"]), deleted=is_deleted)
        except _FAILURES as error:
            is_missing = isinstance(error, APIError) and error.status == _NOT_FOUND
            wait = informer.on_failed(place, _describe(error), is_missing=is_missing)
            await asyncio.sleep(wait)


def _describe(error: Exception) -> str:
    message = error.message if isinstance(error, APIError) else None
    return message or str(error) or type(error).__name__


def _on_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)


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


def _settings(informer: Informer) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True  # kinds and namespaces are fixed: less RBAC, no CRD watch
    settings.peering.standalone = True  # no peering CRD
    settings.posting.enabled = False  # our recorder writes Events
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.watching.connect_timeout = 30
    settings.watching.chunk_size = (
        200  # objects, which may take 20 MiB until the next ones are there
    )
    settings.networking.request_timeout = 30
    settings.networking.error_backoffs = (1, 2, 4)  # the default also waits 54 s on a 403
    for watch in informer.watched:
        key = (watch.resource.group, watch.resource.version, watch.resource.plural)
        if watch.labels:
            settings.watching.label_selectors[key] = watch.labels
        if watch.fields:
            settings.watching.field_selectors[key] = watch.fields
    return settings


if __name__ == "__main__":
    main()
