"""Events: once per change, counted up over restarts, and never waited for."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from enginewright.controller.events import PROGRESS, REPEAT_AFTER, EventRecorder
from enginewright.controller.shared import utc_now
from enginewright.kube.errors import Forbidden, Transient
from enginewright.plan.types import EventIntent

from tests.support.fake_kube import FakeKube
from tests.support.plan_objects import make_object

SERVER = FakeKube()
MODEL = SERVER.put(make_object("InferenceModel", "m", "ns"))
CLASS = SERVER.put(make_object("AcceleratorClass", "cpu"))
NEWS = EventIntent("Warning", "ParityFailed", "output y differs")


class Clock:
    def __init__(self) -> None:
        self.seconds = 1_000_000.0

    def __call__(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.seconds, UTC)


async def report_news(
    kube: FakeKube, clock: Clock, *news: tuple[Mapping[str, Any], EventIntent]
) -> None:
    """Tell `news` in a process of its own and wait until all is written."""
    recorder = EventRecorder(kube, clock=clock, now=clock.now)
    writer = asyncio.create_task(recorder.run())
    for regarding, intent in news:
        recorder.record(regarding, intent)
    await asyncio.wait_for(recorder.drain(), 5)
    writer.cancel()
    with suppress(asyncio.CancelledError):
        await writer


async def test_fields_that_kubectl_describe_needs() -> None:
    kube, clock = FakeKube(), Clock()
    await report_news(kube, clock, (MODEL, NEWS))
    (event,) = kube.objects.values()
    assert event["involvedObject"] == {
        "apiVersion": "enginewright.dev/v1alpha1",
        "kind": "InferenceModel",
        "name": "m",
        "namespace": "ns",
        "uid": MODEL["metadata"]["uid"],
    }
    assert event["metadata"]["namespace"] == "ns"
    assert (event["type"], event["reason"]) == ("Warning", "ParityFailed")
    assert (event["message"], event["count"]) == ("output y differs", 1)
    assert event["firstTimestamp"] == event["lastTimestamp"] == "1970-01-12T13:46:40Z"


async def test_each_news_is_one_event_in_its_objects_namespace_or_default() -> None:
    kube, clock = FakeKube(), Clock()
    other = EventIntent("Normal", "Serving", "serves")
    await report_news(kube, clock, (MODEL, NEWS), (MODEL, NEWS), (MODEL, other), (CLASS, NEWS))
    assert sorted(namespace for _, namespace, _ in kube.objects) == ["default", "ns", "ns"]
    assert kube.writes == 3


async def test_after_a_while_and_after_a_restart_it_counts_up() -> None:
    kube, clock = FakeKube(), Clock()
    recorder = EventRecorder(kube, clock=clock, now=clock.now)
    writer = asyncio.create_task(recorder.run())
    for _ in range(4):
        recorder.record(MODEL, NEWS)
        await asyncio.wait_for(recorder.drain(), 5)
        clock.seconds += 0.4 * REPEAT_AFTER
    writer.cancel()
    await report_news(kube, clock, (MODEL, NEWS))
    ((_, _, _), event), *more = kube.objects.items()
    assert not more
    assert event["count"] == 3  # at 0, at 1.2 and, restarted, at 1.6 times REPEAT_AFTER
    assert event["firstTimestamp"] < event["lastTimestamp"]


async def test_failed_event_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    kube, clock = FakeKube(), Clock()
    kube.fail["create"] = [Forbidden("events is forbidden")]
    await report_news(kube, clock, (MODEL, NEWS), (MODEL, EventIntent("Normal", "A", "b")))
    assert [kind for kind, _, _ in kube.objects] == ["Event"]
    assert "events is forbidden" in caplog.text


async def test_events_outlast_a_minute_in_which_the_api_server_fails() -> None:
    kube, clock = FakeKube(), Clock()
    kube.fail["create"] = [Transient("etcdserver: request timed out", code=500) for _ in range(5)]
    recorder = EventRecorder(kube, clock=clock, now=clock.now)
    recorder.record(MODEL, NEWS)
    writer = asyncio.create_task(recorder.run())
    await asyncio.wait_for(recorder.drain(), 90)
    writer.cancel()
    assert [kind for kind, _, _ in kube.objects] == ["Event"]


async def test_recording_never_waits_however_many_events_there_are() -> None:
    recorder = EventRecorder(FakeKube(), clock=time.monotonic, now=utc_now)
    for number in range(5000):  # no task writes them
        recorder.record(MODEL, EventIntent("Normal", "A", str(number)))


async def test_progress_is_told_once_it_takes_long_and_not_if_something_else_follows() -> None:
    kube, clock = FakeKube(), Clock()
    recorder = EventRecorder(kube, clock=clock, now=clock.now)
    writer = asyncio.create_task(recorder.run())
    for number, intent in enumerate(("Preparing", "RollingOut", "Serving", "Analyzing")):
        is_progress = intent != "Serving"
        recorder.record(MODEL, EventIntent("Normal", intent, str(number), is_progress))
        clock.seconds += 0.9 * PROGRESS
        await asyncio.sleep(10)
    assert [event["reason"] for event in kube.all("Event")] == ["Serving"]
    clock.seconds += 0.2 * PROGRESS
    await asyncio.sleep(10)
    assert {event["reason"] for event in kube.all("Event")} == {"Serving", "Analyzing"}
    writer.cancel()


# event: Operator | a thousand models progress at once, and one is rolled back | all | the Warning is written, before what
#   progresses
async def test_a_burst_of_progress_drops_no_warning_and_delays_none() -> None:
    kube = FakeKube()
    recorder = EventRecorder(kube, clock=time.monotonic, now=utc_now)
    for number in range(1200):
        recorder.record(MODEL, EventIntent("Normal", "Analyzing", str(number)))
    recorder.record(MODEL, NEWS)
    writer = asyncio.create_task(recorder.run())
    await asyncio.wait_for(recorder.drain(), 5)
    writer.cancel()
    with suppress(asyncio.CancelledError):
        await writer
    assert next(iter(kube.objects.values()))["reason"] == NEWS.reason
    assert len(kube.objects) == 1001


async def test_an_event_that_was_dropped_is_recorded_when_it_comes_again() -> None:
    kube = FakeKube()
    recorder = EventRecorder(kube, clock=time.monotonic, now=utc_now)
    news = [(MODEL, EventIntent("Warning", "A", str(number))) for number in range(1001)]
    for regarding, intent in news:
        recorder.record(regarding, intent)
    writer = asyncio.create_task(recorder.run())
    await asyncio.wait_for(recorder.drain(), 5)
    recorder.record(*news[-1])
    await asyncio.wait_for(recorder.drain(), 5)
    writer.cancel()
    with suppress(asyncio.CancelledError):
        await writer
    assert len(kube.objects) == 1001
