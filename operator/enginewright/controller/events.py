"""Events that `kubectl describe` shows, recorded once per change without blocking a reconcile.

Reconciles enqueue them and go on: one task writes them, patiently while the API server fails, and logs and drops one
that cannot be written. Warnings come first, and what is normal, of which a burst may be long, takes no place from
them. Progress that is over within `PROGRESS` is told by what it has led to alone. The name of an Event is derived from
its content, so that the same Event of a restarted operator increases the count of the existing one instead of adding one.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from enginewright_contract.keys import sha256_text

from enginewright.kube.api import JsonObject, KubeApi
from enginewright.kube.errors import Conflict, KubeError, NotFound, Transient
from enginewright.kube.resources import EVENTS
from enginewright.plan.types import EventIntent

COMPONENT: Final = "enginewright"
REPEAT_AFTER: Final = 300.0  # seconds in which the same Event is recorded once
PROGRESS: Final = (
    30.0  # seconds without another Event about an object, after which its progress is told
)
_TICK: Final = 5.0  # seconds between two looks for progress that is due
_RETRIES: Final = (2.0, 4.0, 8.0, 16.0, 32.0)  # seconds between attempts while no request succeeds
_WAITING: Final = 1000
_REMEMBERED: Final = 4096
_MESSAGE_LIMIT: Final = 1024  # the API server rejects longer ones
_CLUSTER_SCOPED_NAMESPACE: Final = "default"  # where kubectl looks for them

_logger = logging.getLogger(__name__)


class EventRecorder:
    """Queues Events without blocking; `run` writes them."""

    def __init__(
        self, api: KubeApi, *, clock: Callable[[], float], now: Callable[[], datetime]
    ) -> None:
        self._api = api
        self._clock = clock
        self._now = now
        self._waiting: dict[str, asyncio.Queue[JsonObject]] = {
            kind: asyncio.Queue(_WAITING) for kind in ("Warning", "Normal")
        }
        self._count = asyncio.Semaphore(0)  # of all that wait
        self._last_recorded: OrderedDict[str, float] = OrderedDict()
        # that is not told yet, by uid: when it is due, in this order
        self._progress: dict[str, tuple[float, JsonObject]] = {}

    def record(self, regarding: Mapping[str, Any], intent: EventIntent) -> None:
        """Queue an Event about an object, progress later and unless another one follows it."""
        event, uid = _event(regarding, intent), str(regarding["metadata"].get("uid"))
        self._progress.pop(uid, None)
        if intent.is_progress:
            self._progress[uid] = self._clock() + PROGRESS, event
        else:
            self._queue(event)

    def _tell_progress(self) -> None:
        while self._progress:
            uid, (due, event) = next(iter(self._progress.items()))
            if due > self._clock():
                return
            del self._progress[uid]
            self._queue(event)

    def _queue(self, event: JsonObject) -> None:
        """Queue an Event, unless the same one was recorded within `REPEAT_AFTER`."""
        name = event["metadata"]["name"]
        moment = self._clock()
        last = self._last_recorded.get(name)
        if last is not None and moment - last < REPEAT_AFTER:
            return
        try:
            self._waiting[event["type"]].put_nowait(event)
        except asyncio.QueueFull:
            _logger.warning("dropped an event, the queue is full: %s", event["message"])
            return
        self._count.release()
        self._last_recorded[name] = moment
        self._last_recorded.move_to_end(name)
        if len(self._last_recorded) > _REMEMBERED:
            self._last_recorded.popitem(last=False)

    async def run(self) -> None:
        """Write Events until cancelled."""
        while True:
            self._tell_progress()
            try:
                async with asyncio.timeout(_TICK):
                    await self._count.acquire()
            except TimeoutError:
                continue
            waiting = next(queue for queue in self._waiting.values() if not queue.empty())
            event = waiting.get_nowait()
            try:
                await self._write_patiently(event)
            except KubeError as error:
                _logger.warning("cannot write an event: %s: %s", error.message, event["message"])
            waiting.task_done()

    async def drain(self) -> None:
        """Return when all recorded Events are written."""
        for queue in self._waiting.values():
            await queue.join()

    async def _write_patiently(self, event: JsonObject) -> None:
        for pause in _RETRIES:
            try:
                return await self._write(event)
            except Transient as error:
                if error.is_of_one_write:  # the next one need not wait for it
                    raise
            await asyncio.sleep(pause)
        return await self._write(event)

    async def _write(self, event: JsonObject) -> None:
        now = self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
        times = {"firstTimestamp": now, "lastTimestamp": now, "count": 1}
        try:
            await self._api.create({**event, **times})
        except Conflict:
            await self._repeat(event, times)

    async def _repeat(self, event: JsonObject, times: JsonObject) -> None:
        """Count an Event once more that exists, as recorded earlier or by an earlier process."""
        metadata = event["metadata"]
        try:
            stored = await self._api.get(EVENTS, metadata["namespace"], metadata["name"])
        except NotFound:  # it has expired meanwhile
            stored = {}
        earlier = {
            "firstTimestamp": stored.get("firstTimestamp") or times["firstTimestamp"],
            "count": (stored.get("count") or 0) + 1,
        }
        await self._api.apply({**event, **times, **earlier})


def _event(obj: Mapping[str, Any], intent: EventIntent) -> JsonObject:
    """Return an Event about an object, named by a hash of its content, without its times and count."""
    metadata = obj["metadata"]
    reference = {
        "apiVersion": obj["apiVersion"],
        "kind": obj["kind"],
        "namespace": metadata.get("namespace"),
        "name": metadata["name"],
        "uid": metadata.get("uid"),
    }
    identity = "\n".join((metadata.get("uid") or "", intent.type, intent.reason, intent.message))
    digest = sha256_text(identity)[:16]
    return {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {
            "name": f"{metadata['name'][:230]}.{digest}",
            "namespace": metadata.get("namespace") or _CLUSTER_SCOPED_NAMESPACE,
        },
        "involvedObject": {key: value for key, value in reference.items() if value},
        "type": intent.type,
        "reason": intent.reason,
        "message": intent.message[:_MESSAGE_LIMIT],
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
    }
