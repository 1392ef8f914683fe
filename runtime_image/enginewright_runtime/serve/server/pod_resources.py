"""What a pod with several server processes answers for all of them, once for all that ask meanwhile."""

import asyncio
import enum
from functools import partial
from typing import Protocol

from enginewright_runtime.serve.server.message import HttpResponse


class PodResource(enum.Enum):
    """What is answered for all processes."""

    METRICS = "metrics"
    MEASUREMENTS = "measurements"
    EXECUTION = "execution"
    STATISTICS = "statistics"
    COPY = "copy"


class PodResources(Protocol):
    """The other server processes, if there are some."""

    async def answer(self, resource: PodResource, target: bytes) -> HttpResponse:
        """Return the response to a request with this target; RequestError: it has none."""


class SharedAnswers:
    """Lets requests have one answer that ask for the same while it is being made (`PodResources`).

    Else a client that sends many would occupy the event loops of all processes.
    """

    def __init__(self, pod: PodResources) -> None:
        self._pod = pod
        self._asking: dict[PodResource, asyncio.Task[HttpResponse]] = {}

    async def answer(self, resource: PodResource, target: bytes) -> HttpResponse:
        """Return the response to a request with this target; RequestError: it has none."""
        if resource is PodResource.COPY:  # each is taken by one
            return await self._pod.answer(resource, target)
        asking = self._asking.get(resource)
        if asking is None:
            asking = asyncio.create_task(self._pod.answer(resource, target))
            self._asking[resource] = asking
            asking.add_done_callback(partial(self._answered, resource))
        return await asyncio.shield(asking)

    def _answered(self, resource: PodResource, _: object) -> None:
        del self._asking[resource]
