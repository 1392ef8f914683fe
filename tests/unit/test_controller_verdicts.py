"""Polling of sidecars and builds: how often, what is kept, who is woken, who may become unready."""

import asyncio
import itertools
import json
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any

import pytest
from enginewright.controller import poll_schedule
from enginewright.controller.cache import ObjectCache
from enginewright.controller.observe import POD
from enginewright.controller.poll_schedule import FAST, RATE, SWEEP, PollSchedule, sweep_interval
from enginewright.controller.poll_targets import ServingPod, poll_target, releasable
from enginewright.controller.routing import ModelKey
from enginewright.controller.verdicts import CONCURRENCY, EXPIRY, FRESH, SILENCE, VerdictPoller
from enginewright.kube.errors import Forbidden
from enginewright.kube.pod_http import BadAnswer, NoAnswer, PodAddress
from enginewright.kube.resources import PODS
from enginewright.observed.deployments import deployment_view
from enginewright.observed.pods import PodView, pod_view
from enginewright_contract.execution import StartTimes
from enginewright_contract.reasons import Reason
from enginewright_contract.verdict import (
    RELEASE_ANNOTATION,
    RELEASE_SECONDS,
    TIMES_ANNOTATION,
    Check,
    Verdict,
)
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from tests.support.fake_kube import FakeKube
from tests.support.optional import present
from tests.support.plan_objects import KINDS, Json, make_object

RUNNING = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
KEEPS = {"active": False}
BREAKS = {"active": True, "kind": "NodeFallback", "reason": "NodeFallback", "broken": True}


def verdict(model: str = "m", **change: Any) -> dict[str, Any]:
    return {
        "model": model,
        "revision": "r1",
        "backend": "tensorrt-rtx",
        "ready": True,
        "admitted": True,
        "checks": [{"check": "placement", "state": "ok"}],
        "fallback": KEEPS,
        **change,
    }


class Sidecars:
    """Pods in a real cache, and what they answer; time is virtual."""

    def __init__(self) -> None:
        self.kube = FakeKube()
        self.cache = ObjectCache()
        self.registry = CollectorRegistry()
        self.answers: dict[str, Callable[[], Coroutine[Any, Any, bytes]]] = {}  # by pod name
        self.default: bytes | None = None
        self.polls: Counter[str] = Counter()
        self.times: list[float] = []
        self.asked: set[tuple[str, str, int]] = set()
        self.under_way = 0
        self.most_under_way = 0
        self.changed: list[ModelKey] = []
        self.engines: list[tuple[str, str]] = []
        self.poller = VerdictPoller(
            self.cache,
            self,
            self.registry,
            changed=self.changed.append,
            engine_changed=lambda *key: self.engines.append(key),
            write=self.write,
            wall=lambda: asyncio.get_running_loop().time(),
        )

    async def write(self, obj: Mapping[str, Any]) -> None:
        """Take an annotation, and nothing else."""
        assert (obj["apiVersion"], obj["kind"]) == ("v1", "Pod")
        assert obj["metadata"].keys() == {"namespace", "name", "uid", "annotations"}
        assert obj["metadata"]["annotations"].keys() <= {RELEASE_ANNOTATION, TIMES_ANNOTATION}
        await self.kube.apply(obj)

    def may_go(self) -> set[str]:
        """Return the pods that may become unready now."""
        now = asyncio.get_running_loop().time()
        marks = {entry["metadata"]["name"]: _mark(entry) for entry in self.kube.all("Pod")}
        return {name for name, until in marks.items() if until > now}

    async def get(self, pod: PodAddress, path: str, query: str = "") -> bytes:
        self.polls[pod.name] += 1
        self.asked.add((pod.name, f"{path}?{query}" if query else path, pod.port))
        self.times.append(asyncio.get_running_loop().time())
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            if answer := self.answers.get(pod.name):
                return await answer()
            if self.default is not None:
                return self.default
            raise NoAnswer("connection refused")
        finally:
            self.under_way -= 1

    async def close(self) -> None: ...

    def say(self, pod: str, answer: object) -> None:
        body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()

        async def give() -> bytes:
            return body

        self.answers[pod] = give

    def fail(self, pod: str, error: Exception, after: float = 0) -> None:
        async def give() -> bytes:
            await asyncio.sleep(after)
            raise error

        self.answers[pod] = give

    def add_pod(
        self,
        name: str = "p",
        model: str = "m",
        *,
        ready: bool = True,
        accelerator_class: str = "l4",
        revision: str = "r1",
        component: str = "serve",
        track: str = "stable",
        sidecar: Mapping[str, Any] = RUNNING,
        **status: Any,
    ) -> Json:
        labels = {
            "enginewright.dev/model": model,
            "enginewright.dev/component": component,
            "enginewright.dev/track": track,
            "enginewright.dev/class": accelerator_class,
            "enginewright.dev/revision": revision,
        }
        answering = {"name": "sidecar", "state": sidecar}
        return self._put(name, labels, ready, answering, status)

    def serve(self, **fallbacks: Mapping[str, Any]) -> None:
        """Add ready pods, by name, whose sidecars report these fallbacks."""
        for name, fallback in fallbacks.items():
            self.add_pod(name)
            self.say(name, verdict(fallback=fallback))

    def add_build(self, name: str = "b", **status: Any) -> Json:
        labels = {
            "enginewright.dev/engine": "rtx-l4-0123",
            "enginewright.dev/component": "engine",
            "batch.kubernetes.io/job-name": "job",
        }
        return self._put(name, labels, False, {"name": "build", "state": RUNNING}, status)

    def _put(
        self,
        name: str,
        labels: Mapping[str, str],
        ready: bool,
        container: Mapping[str, Any],
        status: Mapping[str, Any],
    ) -> Json:
        reported = {
            "phase": "Pending",
            "podIP": "192.0.2.1",
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            "initContainerStatuses": [container],
            **status,
        }
        pod = self.kube.objects.get(("Pod", "ns", name)) or make_object(
            "Pod", name, "ns", labels=labels
        )
        return self._show({**pod, "status": reported})

    def _show(self, obj: Json) -> Json:
        stored = self.kube.put(obj)
        self.cache.observe(KINDS[obj["kind"]], stored)
        return stored

    def remove_pod(self, name: str) -> None:
        pod = self.kube.objects.pop(("Pod", "ns", name))
        self.cache.observe(PODS, pod, deleted=True)

    def add_deployment(self, model: str = "m", **status: Any) -> None:
        counts = {"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, **status}
        labels = {"enginewright.dev/model": model}
        spec = {"replicas": 2}
        self._show(make_object("Deployment", model, "ns", labels=labels, spec=spec, status=counts))

    def pods(self) -> tuple[PodView, ...]:
        return self.cache.views(POD, self.cache.all(PODS))

    def verdicts(self) -> dict[str, Verdict]:
        return self.poller.verdicts_of(self.pods())

    def count(self, result: str) -> float:
        labels = {"result": result}
        return self.registry.get_sample_value("enginewright_verdict_polls_total", labels) or 0


def _mark(pod: Json) -> float:
    return float(pod["metadata"].get("annotations", {}).get(RELEASE_ANNOTATION, 0))


@pytest.fixture
async def world() -> AsyncIterator[Sidecars]:
    """Return a world whose poller runs."""
    world = Sidecars()
    world.poller.start()
    yield world
    problem = world.poller.problem()
    await world.poller.stop()
    assert problem is None


# How often


async def test_thousands_of_settled_pods_are_swept_within_the_rate(world: Sidecars) -> None:
    for number in range(1500):
        world.add_pod(f"p{number}", f"m{number // 3}")
        world.say(f"p{number}", verdict(f"m{number // 3}"))
    await asyncio.sleep(120)
    world.polls.clear()
    world.times.clear()
    await asyncio.sleep(60)
    # A minute holds 2 intervals of 30 s; each pod has its share, and no second is crowded.
    assert 1500 * 1.5 <= sum(world.polls.values()) <= 1500 * 2.5
    assert min(world.polls.values()) >= 1
    assert max(Counter(int(time) for time in world.times).values()) <= 1.1 * RATE
    assert world.most_under_way <= CONCURRENCY
    assert len(world.changed) == 1500  # once each, for the first answer


async def test_a_restarted_operator_polls_every_pod_soon(world: Sidecars) -> None:
    for number in range(1000):
        world.add_pod(f"p{number}")
    world.default = json.dumps(verdict()).encode()
    await asyncio.sleep(1000 / RATE + 2)
    assert len(world.verdicts()) == 1000


def gaps(world: Sidecars) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(world.times)]


async def test_a_pod_is_asked_often_until_it_has_been_ready_for_a_moment(world: Sidecars) -> None:
    world.add_pod(ready=False)
    world.say("p", verdict(ready=False))
    await asyncio.sleep(100)
    assert all(0.75 * FAST <= gap <= 1.25 * FAST for gap in gaps(world))
    assert len(world.times) >= 25
    world.add_pod(ready=True)
    flipped = asyncio.get_running_loop().time()
    world.times.clear()
    await asyncio.sleep(300)
    assert world.times[0] - flipped < 0.1  # at once
    young = [time for time in world.times if time - flipped < FRESH]
    assert 4 <= len(young) <= 8
    assert len(world.times) - len(young) <= 11
    assert gaps(world)[-1] >= 0.75 * SWEEP


async def test_a_pod_that_never_gets_ready_is_no_news_for_ever(world: Sidecars) -> None:
    world.add_pod(ready=False)
    world.say("p", verdict(ready=False))
    await asyncio.sleep(1000)
    world.times.clear()
    await asyncio.sleep(300)
    assert len(world.times) <= 13


async def test_a_changed_verdict_makes_a_pod_young_again(world: Sidecars) -> None:
    world.serve(p=KEEPS)
    await asyncio.sleep(200)
    world.say("p", verdict(fallback=BREAKS))
    world.times.clear()
    await asyncio.sleep(1.2 * SWEEP + FRESH + FAST)
    assert len(world.times) >= FRESH / FAST


async def test_pods_of_a_model_that_rolls_out_are_asked_often(world: Sidecars) -> None:
    world.add_pod("a", "rolls")
    world.add_pod("b", "rests")
    world.say("a", verdict("rolls"))
    world.say("b", verdict("rests"))
    world.add_deployment("rolls", updatedReplicas=1)
    world.add_deployment("rests")
    await asyncio.sleep(300)
    world.polls.clear()
    await asyncio.sleep(60)
    assert world.polls["a"] >= 15
    assert world.polls["b"] <= 3
    world.add_deployment("rolls")
    await asyncio.sleep(30)
    world.polls.clear()
    await asyncio.sleep(60)
    assert world.polls["a"] <= 3


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, False),
        ({"status": {}}, True),
        ({"status": {"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2}}, True),
        ({"status": {"observedGeneration": 2, "replicas": 3, "updatedReplicas": 2}}, True),
        ({"status": {"observedGeneration": 2, "replicas": 3, "updatedReplicas": 1, "conditions": [
            {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}]}},
         False),
        ({"spec": {"replicas": 0}, "status": {"observedGeneration": 2}}, False),
    ],
)  # fmt: skip
def test_deployment_is_rolling_out(change: dict[str, Any], expected: bool) -> None:
    settled = {"observedGeneration": 2, "replicas": 2, "updatedReplicas": 2}
    deployment = {
        "metadata": {"name": "d", "generation": 2},
        "spec": {"replicas": 2},
        "status": settled,
    }
    view = deployment_view({**deployment, **change})
    assert view.is_rolling_out is expected


async def test_silent_pods_are_polled_less_and_delay_no_others(world: Sidecars) -> None:
    for number in range(200):
        world.add_pod(f"dead{number}", ready=False)
        world.fail(f"dead{number}", NoAnswer("no response within 2 s"), after=2)
    world.add_pod("alive", ready=False)
    world.say("alive", verdict(ready=False))
    await asyncio.sleep(120)
    world.polls.clear()
    await asyncio.sleep(120)
    assert world.polls["alive"] >= 30
    assert max(world.polls[f"dead{number}"] for number in range(200)) <= 6
    assert world.most_under_way == CONCURRENCY


@given(
    st.lists(st.tuples(st.integers(0, 20), st.booleans(), st.integers(0, 9)), max_size=60),
    st.floats(0, 1),
)
def test_schedule_loses_and_hurries_no_pod(
    steps: list[tuple[int, bool, int]], jitter: float
) -> None:
    schedule = PollSchedule(jitter=lambda: jitter)
    now, waiting, last = 100.0, set[str](), dict[str, float]()
    for number, fast, failures in steps:
        pod = f"p{number}"
        if pod not in waiting and pod not in last:
            schedule.poll_now(pod, now)
            waiting.add(pod)
        when = present(schedule.next_time())
        assert when <= now + 1.2 * SWEEP
        now = max(now, when)
        taken = schedule.take(now)
        assert taken in waiting
        assert now - last.get(taken, -1e9) >= 0.8 * FAST - 1e-6
        last[taken] = now
        schedule.reschedule(taken, now, fast=fast, failures=failures, pods=len(waiting))
    for pod in waiting:
        schedule.forget(pod)
    assert schedule.next_time() is None
    assert schedule.take(now + 1e6) is None


async def test_a_free_slot_is_used_at_once(world: Sidecars) -> None:
    async def take_a_while() -> bytes:
        await asyncio.sleep(0.2)
        return json.dumps(verdict()).encode()

    for number in range(10 * CONCURRENCY):
        world.add_pod(f"p{number}")
        world.answers[f"p{number}"] = take_a_while
    await asyncio.sleep(10 * 0.2 + 2)
    assert len(world.verdicts()) == 10 * CONCURRENCY


def test_very_many_pods_make_the_sweep_slower_not_the_operator_busier() -> None:
    assert sweep_interval(1) == sweep_interval(3000) == SWEEP
    assert sweep_interval(30_000) == 10 * SWEEP


# What is kept


async def test_verdicts_are_kept_by_pod_and_owners_are_woken_once(world: Sidecars) -> None:
    world.serve(a=KEEPS)
    world.add_pod("b")
    await asyncio.sleep(40)
    assert world.asked == {("a", "/verdict", 8081), ("b", "/verdict", 8081)}
    assert world.verdicts() == {"a": Verdict.model_validate(verdict())}
    assert world.changed == [ModelKey("ns", "m")]
    # Other bytes of the same content wake no owner.
    world.say("a", json.dumps(verdict(), indent=2).encode())
    await asyncio.sleep(40)
    assert len(world.changed) == 1
    world.say("a", verdict(fallback=BREAKS))
    await asyncio.sleep(40)
    assert len(world.changed) == 2
    kept = world.verdicts()["a"].fallback
    assert kept is not None
    assert kept.broken


async def test_nan_wakes_the_owner_once(world: Sidecars) -> None:
    world.add_pod()
    odd = itertools.cycle([b"NaN", b"NaN "])
    text = json.dumps(verdict(parity_max_abs_error=1.5)).encode()

    async def give() -> bytes:
        return text.replace(b"1.5", next(odd))

    world.answers["p"] = give
    await asyncio.sleep(300)
    assert len(world.changed) == 1


async def test_a_verdict_that_is_not_renewed_becomes_unknown(world: Sidecars) -> None:
    world.serve(p=KEEPS)
    await asyncio.sleep(10)
    world.fail("p", NoAnswer("connection refused"))
    await asyncio.sleep(EXPIRY - 15)
    assert "p" in world.verdicts()
    await asyncio.sleep(20)
    assert world.verdicts() == {}
    assert len(world.changed) == 2
    world.say("p", verdict())
    await asyncio.sleep(40)
    assert "p" in world.verdicts()
    assert len(world.changed) == 3


@pytest.mark.parametrize(
    "end",
    [
        lambda world: world.remove_pod("p"),
        lambda world: world.add_pod(phase="Failed"),
        lambda world: world.add_pod(sidecar={"waiting": {"reason": "CrashLoopBackOff"}}),
    ],
)
async def test_deleted_pod_is_forgotten(world: Sidecars, end: Callable[[Sidecars], object]) -> None:
    world.serve(p=KEEPS)
    await asyncio.sleep(5)
    pods = world.pods()
    end(world)
    await asyncio.sleep(2)
    assert world.poller.verdicts_of(pods) == {}
    assert len(world.changed) == 2
    world.polls.clear()
    await asyncio.sleep(100)
    assert not world.polls


def test_pods_that_cannot_be_asked_are_left_alone() -> None:
    world = Sidecars()
    assert poll_target(pod_view(world.add_pod())) is not None
    assert poll_target(pod_view(world.add_build())) is not None
    assert poll_target(pod_view(world.add_pod(podIP=""))) is None
    assert poll_target(pod_view(world.add_pod(initContainerStatuses=[]))) is None
    assert poll_target(pod_view(world.add_build(initContainerStatuses=None))) is None
    leaving = world.add_pod()
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert poll_target(pod_view(leaving)) is None
    other = world.add_pod()
    other["metadata"]["labels"] = {"enginewright.dev/component": "prepare"}
    assert poll_target(pod_view(other)) is None


# fault: Reports | a later sidecar's verdict has an unknown check or reason | it is left out, the
#   rest is read | prevented
def test_a_verdict_of_a_later_version_is_read_as_far_as_it_is_known() -> None:
    """Operators are rolled back while pods of the later version serve."""
    golden = {"check": "golden", "state": "failed", "reason": "ParityFailed"}
    later = {"check": "quantum", "state": "ok"}
    because = {"check": "server", "state": "failed", "reason": "Entangled"}
    fallback = {"active": True, "kind": "NodeFallback", "reason": "Entangled"}
    reported = verdict(checks=[golden, later, because], fallback=fallback)
    read = Verdict.model_validate_json(json.dumps(reported))
    assert [check.check for check in read.checks] == [Check.GOLDEN, Check.SERVER]
    assert [check.reason for check in read.checks] == [Reason.PARITY_FAILED, None]
    assert read.fallback is not None
    assert (read.fallback.active, read.fallback.reason) == (True, None)


HOSTILE = {
    "empty": b"",
    "no JSON": b"<html>404</html>",
    "no UTF-8": b"\xff\xfe{}",
    "a list": b"[]",
    "deep": b"[" * 100_000,
    "wrong types": json.dumps(verdict(checks="all well")).encode(),
    "unknown check": json.dumps(verdict(checks=[{"check": "luck"}])).encode(),
    "of another model": json.dumps(verdict("other")).encode(),
    "of another revision": json.dumps(verdict(revision="r0")).encode(),
    "missing fields": b'{"model": "m"}',
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE.keys())
async def test_hostile_answer_is_logged_once(
    world: Sidecars, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    world.add_pod(ready=False)
    world.say("p", body)
    await asyncio.sleep(300)
    assert world.verdicts() == {}
    assert world.changed == []
    assert world.count("bad-answer") > 5
    assert world.count("ok") == 0
    world.say("p", verdict())
    await asyncio.sleep(40)
    assert "p" in world.verdicts()
    (line,) = caplog.messages
    assert "verdict of pod ns/p" in line
    assert len(line) < 500


async def test_silence_of_ready_pods_is_logged_once(
    world: Sidecars,
    caplog: pytest.LogCaptureFixture,
) -> None:
    world.add_pod("starts", ready=False)
    world.add_pod("serves")
    world.add_pod("refuses", ready=False)
    world.fail("refuses", BadAnswer("the status is 404 instead of 200"))
    await asyncio.sleep(300)
    assert world.count("no-answer") > 10
    named = [re.findall(r"pod (\S+):", line) for line in caplog.messages]
    assert sorted(named) == [["ns/refuses"], ["ns/serves"]]


async def test_long_messages_are_cut(world: Sidecars) -> None:
    world.add_pod()
    checks = [{"check": "golden", "state": "failed", "message": "x" * 100_000}]
    world.say("p", verdict(checks=checks, fallback={**BREAKS, "message": "y" * 100_000}))
    await asyncio.sleep(5)
    kept = world.verdicts()["p"]
    assert kept.fallback is not None
    assert len(kept.checks[0].message) == len(kept.fallback.message) == 1024


async def test_bug_stops_neither_poller_nor_pod(
    world: Sidecars, caplog: pytest.LogCaptureFixture
) -> None:
    world.add_pod(ready=False)
    world.fail("p", RuntimeError("oops"))
    await asyncio.sleep(10)
    world.say("p", verdict())
    await asyncio.sleep(10)
    assert "p" in world.verdicts()
    assert "a bug" in caplog.text


# What pods measured at their start


def times_of(world: Sidecars, pod: str) -> StartTimes | None:
    text = (
        world.kube.objects["Pod", "ns", pod]["metadata"]
        .get("annotations", {})
        .get(TIMES_ANNOTATION)
    )
    return StartTimes.model_validate_json(text) if text else None


async def test_pods_that_have_not_started_get_what_others_of_their_revision_measured(
    world: Sidecars,
) -> None:
    measured = {"batches": {"8": {"1": 0.001, "2": 0.0015}}, "gains": {"1": 1.0}}
    usual = {"p50": 0.001, "samples": 100, "shapes": "opt"}
    world.add_pod("first")
    world.say("first", verdict(times=measured, baseline=usual))
    await asyncio.sleep(FAST)
    world.remove_pod("first")  # as with its model, which is applied again
    pods: dict[str, dict[str, Any]] = {
        "next": {},
        "of another revision": {"revision": "r2"},
        "of another class": {"accelerator_class": "a100"},
        "of another model": {"model": "other"},
        "started": {"sidecar": RUNNING},
    }
    for name, change in pods.items():
        world.add_pod(name, ready=False, **({"sidecar": {"waiting": {}}} | change))
    await asyncio.sleep(0.2)
    given = StartTimes.model_validate({**measured, "usual": usual})
    assert times_of(world, "next") == given
    others = {"of another revision", "of another class", "of another model", "started"}
    assert not any(times_of(world, name) for name in others)


async def test_a_released_pod_keeps_the_times_that_it_was_given(world: Sidecars) -> None:
    """Its server may be started again."""
    world.serve(b=KEEPS)
    world.say("b", verdict(times={"gains": {"1": 1.0}}))
    await asyncio.sleep(FAST)
    world.add_pod("a", ready=False, sidecar={"waiting": {}})
    await asyncio.sleep(1)
    world.serve(a=BREAKS)
    await asyncio.sleep(60)
    assert world.may_go() == {"a"}
    assert times_of(world, "a")


async def test_times_that_do_not_fit_an_annotation_are_not_passed_on(world: Sidecars) -> None:
    world.add_pod("first")
    world.say("first", verdict(times={"gains": {str(number): 1.0 for number in range(2000)}}))
    await asyncio.sleep(FAST)
    world.add_pod("next", ready=False, sidecar={"waiting": {}})
    await asyncio.sleep(0.2)
    assert times_of(world, "next") is None


# Builds


async def test_progress_is_reported_in_tenths(world: Sidecars) -> None:
    world.add_build()
    for percent in (0, 3, 9, 11, 15, 40, 41, 1000):
        world.say("b", {"stage": "build", "percent": percent, "phase": f"phase {percent}"})
        await asyncio.sleep(2 * FAST)
    assert world.asked == {("b", "/progress", 8081)}
    # 0, 11, 40, 100
    assert world.engines == [("ns", "rtx-l4-0123")] * 4
    reported = present(world.poller.progress_of("ns", "job"))
    assert reported.percent == 100
    assert world.poller.progress_of("ns", "other") is None
    assert world.poller.progress_of("other", "job") is None
    world.add_build(initContainerStatuses=[{"name": "build", "state": {"terminated": {}}}])
    await asyncio.sleep(2)
    assert world.poller.progress_of("ns", "job") is None
    assert world.changed == []


async def test_builds_are_asked_often_to_their_end(world: Sidecars) -> None:
    world.add_build()
    world.say("b", {"stage": "build", "percent": 50})
    await asyncio.sleep(3000)
    assert world.polls["b"] >= 900


# Release


def make_serving_pod(
    name: str,
    state: str,
    *,
    ready: bool = True,
    accelerator_class: str = "l4",
    revision: str = "r1",
    stays: bool = True,
) -> ServingPod:
    verdicts = {
        "good": verdict(),
        "good, not let in": verdict(ready=False, admitted=False),
        "broken": verdict(fallback=BREAKS),
        "broken under Budget": verdict(fallback={**BREAKS, "policy": "Budget"}),
        "broken, never let in": verdict(fallback=BREAKS, ready=False, admitted=False),
        "fallback unknown": verdict(fallback=None),
        "fallback allowed": verdict(fallback={"active": True, "kind": "NodeFallback"}),
    }
    reported = Verdict.model_validate(verdicts[state]) if state in verdicts else None
    return ServingPod(f"uid-{name}", name, accelerator_class, revision, stays, ready, reported)


@pytest.mark.parametrize(
    ("pods", "before", "expected"),
    [
        ((), None, None),
        ((make_serving_pod("a", "good"), make_serving_pod("b", "good")), None, None),
        ((make_serving_pod("a", "broken"),), None, None),
        ((make_serving_pod("a", "broken"), make_serving_pod("b", "good")), None, "uid-a"),
        ((make_serving_pod("a", "broken"), make_serving_pod("b", "fallback allowed")), None, "uid-a"),
        ((make_serving_pod("a", "broken"), make_serving_pod("b", "good", ready=False)), None, None),
        ((make_serving_pod("a", "broken"), make_serving_pod("b", "good, not let in")), None, None),
        ((make_serving_pod("a", "broken"), make_serving_pod("b", "not known")), None, None),
        ((make_serving_pod("a", "broken"), make_serving_pod("b", "fallback unknown")), None, None),
        ((make_serving_pod("a", "broken"), make_serving_pod("b", "good", accelerator_class="t4")), None, None),
        ((make_serving_pod("a", "broken, never let in"), make_serving_pod("b", "good")), None, None),
        ((make_serving_pod("a", "broken under Budget"), make_serving_pod("b", "good")), None, None),
        # it may get no requests, or be rejected
        ((make_serving_pod("a", "broken"), make_serving_pod("b", "good", stays=False)), None, None),
        ((make_serving_pod("a", "broken"), make_serving_pod("b", "good", revision="r2")), None, None),
        # Two that break at once: none of two, one of three, and it stays the same one.
        ((make_serving_pod("a", "broken"), make_serving_pod("b", "broken")), None, None),
        ((make_serving_pod("a", "broken"), make_serving_pod("b", "broken"), make_serving_pod("c", "good")), None, "uid-a"),
        ((make_serving_pod("a", "broken"), make_serving_pod("b", "broken"), make_serving_pod("c", "good")), "uid-b", "uid-b"),
        ((make_serving_pod("a", "broken"), make_serving_pod("b", "broken"), make_serving_pod("c", "good")), "uid-x", "uid-a"),
        # After a restart: the one that is unready already.
        ((make_serving_pod("a", "broken"), make_serving_pod("b", "broken", ready=False), make_serving_pod("c", "good")), None,
         "uid-b"),
        # Once the last good one breaks too, no pod may leave.
        ((make_serving_pod("a", "broken", ready=False), make_serving_pod("b", "broken")), "uid-a", None),
        # One a model, not one a class.
        ((make_serving_pod("a", "broken"), make_serving_pod("b", "good"),
          make_serving_pod("c", "broken", accelerator_class="t4"), make_serving_pod("d", "good", accelerator_class="t4")),
         None, "uid-a"),
    ],
)  # fmt: skip
def test_released_pod(
    pods: tuple[ServingPod, ...], before: str | None, expected: str | None
) -> None:
    assert releasable(pods, before) == expected
    assert releasable(reversed(pods), before) == expected


@pytest.mark.parametrize("component", ["canary", "serve"])
async def test_no_canary_has_a_serving_pod_become_unready(world: Sidecars, component: str) -> None:
    """It gets no requests at first, and may be rejected later."""
    world.serve(a=BREAKS)
    world.add_pod("canary", component=component, track="canary")
    world.say("canary", verdict())
    await asyncio.sleep(120)
    assert (world.may_go(), world.kube.writes) == (set(), 0)
    world.serve(b=KEEPS)
    await asyncio.sleep(60)
    assert world.may_go() == {"a"}


async def test_one_pod_is_released_while_another_is_good(world: Sidecars) -> None:
    world.serve(a=KEEPS, b=KEEPS, c=KEEPS)
    await asyncio.sleep(120)
    assert world.kube.writes == 0
    for name in "ab":
        world.say(name, verdict(fallback=BREAKS))
    await asyncio.sleep(60)
    (first,) = world.may_go()
    assert first in "ab"
    assert world.kube.writes == 1
    second = "b" if first == "a" else "a"
    world.say(first, verdict(fallback=BREAKS, ready=False))
    world.add_pod(first, ready=False)
    # It is renewed before it ends, and seldom: each is a write that every watcher sees.
    for _ in range(100):
        await asyncio.sleep(60)
        assert world.may_go() == {first}
    assert world.kube.writes <= 1 + 6000 / (RELEASE_SECONDS / 2)
    # The good one breaks: within seconds no pod is released.
    world.say("c", verdict(fallback=BREAKS))
    await asyncio.sleep(5 * FAST)
    assert world.may_go() == set()
    writes = world.kube.writes
    await asyncio.sleep(120)
    assert (world.may_go(), world.kube.writes) == (set(), writes)
    # The first is replaced by a good one: the next may go.
    world.remove_pod(first)
    world.serve(d=KEEPS)
    await asyncio.sleep(60)
    assert len(world.may_go()) == 1
    assert world.may_go() <= {second, "c"}


async def test_a_refused_release_is_tried_again(world: Sidecars) -> None:
    world.kube.fail["apply"] = [Forbidden("pods is forbidden", code=403)]
    world.serve(a=BREAKS, b=KEEPS)
    await asyncio.sleep(60)
    assert (world.may_go(), world.kube.writes) == ({"a"}, 2)


# fault: Reports | an operator that is gone leaves a pod released | the annotation expires | 10
#   min
async def test_a_release_ends_by_itself_when_the_operator_is_gone(world: Sidecars) -> None:
    world.serve(a=BREAKS, b=KEEPS)
    await asyncio.sleep(60)
    assert world.may_go() == {"a"}
    await world.poller.stop()
    await asyncio.sleep(RELEASE_SECONDS)
    assert world.may_go() == set()
    world.poller.start()


async def test_new_operator_takes_over_released_pods(world: Sidecars) -> None:
    """It releases no second pod, and the first one does not become ready for a moment."""
    until = asyncio.get_running_loop().time() + RELEASE_SECONDS
    pod = world.add_pod("b", ready=False)
    identity = {key: pod["metadata"][key] for key in ("namespace", "name", "uid")}
    annotations = {RELEASE_ANNOTATION: str(int(until))}
    await world.write({**pod, "metadata": {**identity, "annotations": annotations}})
    world.add_pod("b", ready=False)
    writes = world.kube.writes
    world.serve(a=BREAKS, c=KEEPS)
    world.say("b", verdict(fallback=BREAKS, ready=False))
    for _ in range(60):
        await asyncio.sleep(1)
        assert world.may_go() == {"b"}
    assert world.kube.writes == writes
    # whose promise is kept again loses what an operator before has written
    world.say("b", verdict())
    await asyncio.sleep(3 * FAST)
    assert "b" not in world.may_go()


@pytest.mark.parametrize("end", ["mended", "gone"])
async def test_others_are_polled_often_while_one_is_released(world: Sidecars, end: str) -> None:
    world.serve(a=BREAKS, b=KEEPS)
    await asyncio.sleep(200)
    world.polls.clear()
    await asyncio.sleep(60)
    assert world.polls["b"] >= 15
    if end == "mended":
        world.say("a", verdict())
    else:
        world.remove_pod("a")
    await asyncio.sleep(100)
    world.polls.clear()
    await asyncio.sleep(60)
    assert world.polls["b"] <= 3


# fault: Reports | the operator cannot reach sidecars (a NetworkPolicy) | Unknown,
#   SidecarUnreachable | 5 min
async def test_pod_is_silent_after_five_minutes_without_answer(world: Sidecars) -> None:
    world.serve(p=KEEPS)
    await asyncio.sleep(60)
    pods = world.pods()
    world.fail("p", NoAnswer("a NetworkPolicy"))
    world.changed.clear()
    await asyncio.sleep(SILENCE - SWEEP)
    assert world.poller.silent(pods) == frozenset()
    assert len(world.changed) == 1, "its verdict is gone"
    await asyncio.sleep(2 * SWEEP)
    assert world.poller.silent(pods) == {"p"}
    assert len(world.changed) == 2
    await asyncio.sleep(2000)
    assert len(world.changed) == 2
    world.say("p", verdict())
    await asyncio.sleep(2 * SWEEP)
    assert world.poller.silent(pods) == frozenset()


async def test_pods_that_answer_are_not_silent_where_a_sweep_takes_longer_than_five_minutes(
    world: Sidecars, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of 36,000 pods: here of three, with a 12,000th of the rate."""
    monkeypatch.setattr(poll_schedule, "RATE", RATE / 12_000)
    assert sweep_interval(3) > SILENCE
    world.serve(p=KEEPS, q=KEEPS, r=KEEPS)
    silent = []
    for _ in range(120):
        await asyncio.sleep(60)
        silent.append(world.poller.silent(world.pods()))
    assert set(silent[15:]) == {frozenset()}
    assert world.polls["p"] > 10


async def test_pod_that_never_answered_is_silent_too(world: Sidecars) -> None:
    world.add_pod("p")
    world.fail("p", NoAnswer("a NetworkPolicy"))
    await asyncio.sleep(SILENCE - SWEEP)
    assert world.poller.silent(world.pods()) == frozenset()
    await asyncio.sleep(2 * SWEEP)
    assert world.poller.silent(world.pods()) == {"p"}
