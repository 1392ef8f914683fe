"""What becomes of submitted requests, and what is measured of them."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from enginewright_serving.server.inference.batching import BatchLimits
from enginewright_serving.server.inference.results import InferenceResults
from enginewright_serving.server.inference.run_errors import Fault
from enginewright_serving.server.inference.worker import InferenceWorker
from enginewright_serving.server.observe.buckets import ComputeBuckets
from enginewright_serving.server.observe.metrics import Metrics
from typing_extensions import override

from tests.support.played_clients import PlayedClient, PlayedHealth, play_job


@dataclass(frozen=True)
class Interrupting(BatchLimits):
    """Calls something in the model's thread after it has checked which requests are late, once."""

    interrupt: Callable[[], None] = lambda: None
    calls: list[int] = field(default_factory=list)

    @override
    def whole(self, rows: Sequence[int]) -> int:
        if not self.calls:
            self.calls.append(len(rows))
            self.interrupt()
        return super().whole(rows)


async def wait_until_returned(worker: InferenceWorker) -> None:
    """Wait until the worker has returned all jobs."""
    async with asyncio.timeout(20):
        while worker.outstanding:  # noqa: ASYNC110 - nothing signals it
            await asyncio.sleep(0.001)


@pytest.mark.asyncio(loop_factories=["real"])  # a thread takes part
async def test_a_request_that_expires_just_before_its_run_is_the_clients_deadline_only() -> None:
    metrics, health, buckets = Metrics("m", "r1"), PlayedHealth(), ComputeBuckets()
    results = InferenceResults(metrics, 60.0)
    results.observe_runs(cast("Any", health), buckets)
    loop = asyncio.get_running_loop()
    client = PlayedClient()
    late = play_job(client)

    def expire_now() -> None:
        expired = threading.Event()
        loop.call_soon_threadsafe(results.expire, late)
        loop.call_soon_threadsafe(expired.set)
        assert expired.wait(20)

    judged: list[Exception] = []

    def judge(_plan: Any, _feeds: Any, error: Exception) -> Fault:
        judged.append(error)
        return Fault.SERVER

    limits = Interrupting(interrupt=expire_now)
    lost: list[None] = []
    worker = InferenceWorker(
        *(lambda _, feeds: [feeds["x"]], judge, 8, limits, 1, results.finish),
        lambda: lost.append(None),
    )
    worker.submit(late)
    await wait_until_returned(worker)
    assert limits.calls == [1]
    assert (client.sent, client.released) == ([504], True)
    assert (health.recorded, judged) == ([], [])
    assert metrics.queue.count == 1
    assert metrics.compute.count == 0

    client = PlayedClient()
    worker.submit(play_job(client))
    await wait_until_returned(worker)
    assert (client.sent, health.recorded, lost) == ([200], [True], [])
    assert metrics.compute.count == 1
