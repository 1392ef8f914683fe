"""What sidecars have found and how far builds are, as asked of the pods themselves.

Live figures must not pass through etcd, so nobody writes them down: the operator asks, keeps the
last answer of each pod in memory, and wakes the pod's owner when the answer means something new.
After a restart nothing is known until the pods have been asked again.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter
from pydantic import ValidationError

from enginewright.contract.report import Progress
from enginewright.contract.verdict import RELEASE_ANNOTATION, RELEASE_SECONDS, Verdict
from enginewright.controller.cache import Cache
from enginewright.controller.observe import DEPLOYMENT, POD
from enginewright.controller.polled import (
    Question,
    Served,
    question,
    releasable,
    speaks_for,
)
from enginewright.controller.polling import SWEEP, Schedule, sweep_interval
from enginewright.controller.routing import ModelKey
from enginewright.kube.errors import KubeError
from enginewright.kube.pod_http import BadAnswer, NoAnswer, PodHttp
from enginewright.kube.resources import DEPLOYMENTS, PODS
from enginewright.manifests.labels import CLASS, ENGINE, MODEL
from enginewright.observed.deployments import DeploymentView
from enginewright.observed.pods import PodView

CONCURRENCY: Final = 32  # requests under way
FRESH: Final = 60.0  # seconds after a change in which more of them are likely
STARTING: Final = 600.0  # seconds after which a pod that is not ready is no longer news
EXPIRY: Final = 3 * SWEEP  # seconds after which an answer that was not renewed is none

SILENCE: Final = 300.0  # seconds without an answer after which what a pod last said is too old
_RENEW: Final = RELEASE_SECONDS / 2  # seconds before its end at which a release is written anew
_LOOK: Final = 1.0  # seconds between two looks at the cache
_MAX_MESSAGE: Final = 1024  # characters of a verdict's message that go into conditions
_TENTH: Final = 10  # percent

_logger = logging.getLogger(__name__)


@dataclass
class _Pod:
    """What is known of one pod."""

    seen: PodView
    asked: Question
    since: float  # when it was first seen with this question
    changed: float  # when its readiness or its verdict changed
    renewed: float = 0.0  # when it answered well
    failures: int = 0  # answers missed in a row
    told: bool = False  # whether its bad answers were logged
    body: bytes | None = None  # the last good answer
    canonical: str = ""  # the same as canonical JSON
    verdict: Verdict | None = None
    progress: Progress | None = None
    silent: bool = False  # whether it has not answered for so long that its owner is to say so
    marked_until: float = 0.0  # as its annotation says, in seconds since 1970


def poll_counter(registry: CollectorRegistry) -> Counter:
    """Return the counter of polls, with a series for every result."""
    polls = Counter(
        "enginewright_verdict_polls",
        "Polls of pods for their verdict or progress, by result: ok, no-answer, bad-answer.",
        ("result",),
        registry=registry,
    )
    for result in ("ok", "no-answer", "bad-answer"):
        polls.labels(result)
    return polls


class VerdictPoller:
    """Asks every serving pod for its verdict and every building pod for its progress.

    `changed` is called when a model's verdict is another one or is gone, `engine_changed` with
    namespace and name of the InferenceEngine when its build has come a tenth further. `http` is
    closed by `stop`.
    """

    def __init__(
        self,
        cache: Cache,
        http: PodHttp,
        registry: CollectorRegistry,
        *,
        changed: Callable[[ModelKey], None],
        engine_changed: Callable[[str, str], None],
        write: Callable[[Mapping[str, Any]], Awaitable[object]],
        wall: Callable[[], float] = time.time,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._cache = cache
        self._http = http
        self._changed = changed
        self._engine_changed = engine_changed
        self._write = write
        self._wall = wall
        self._polls = poll_counter(registry)
        self._schedule = Schedule(jitter=jitter)
        self._rolling: frozenset[ModelKey] = frozenset()  # models whose pods are being replaced
        self._pods: dict[str, _Pod] = {}  # by uid
        self._released: dict[ModelKey, str] = {}  # the pod that may become unready
        self._under_way: set[asyncio.Task[None]] = set()
        self._slot_free = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def verdicts_of(self, pods: Iterable[PodView]) -> dict[str, Verdict]:
        """Return the verdicts of `pods` by pod name; those that are not known are left out."""
        found = ((pod.name, self._pods.get(pod.uid)) for pod in pods)
        return {name: pod.verdict for name, pod in found if pod and pod.verdict}

    def silent(self, pods: Iterable[PodView]) -> frozenset[str]:
        """Return the names of those of `pods` that have not answered for `SILENCE` seconds."""
        found = ((pod.name, self._pods.get(pod.uid)) for pod in pods)
        return frozenset(name for name, pod in found if pod and pod.silent)

    def progress_of(self, namespace: str, job: str) -> Progress | None:
        """Return how far the build of a Job is; None while it is not known."""
        for pod in self._pods.values():
            if pod.progress is not None and (pod.seen.namespace, pod.seen.job) == (namespace, job):
                return pod.progress
        return None

    def start(self) -> None:
        """Start asking."""
        self._task = asyncio.create_task(self._run(), name="verdicts")

    async def stop(self) -> None:
        """Ask nobody any more."""
        tasks = [*self._under_way, *((self._task,) if self._task else ())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._http.close()

    def trouble(self) -> str | None:
        """Return why pods are not asked as they should be; None when they are."""
        if self._task is not None and self._task.done():
            return "the poller of verdicts has ended"
        return None

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        next_look = clock()
        while True:
            now = clock()
            if now >= next_look:
                self._look(now)
                next_look = now + _LOOK
            while len(self._under_way) < CONCURRENCY and (uid := self._schedule.take(now)):
                self._begin(uid)
            wake = next_look
            full = len(self._under_way) >= CONCURRENCY
            if not full and (due := self._schedule.next_time()) is not None:
                wake = min(wake, due)
            self._slot_free.clear()
            try:
                async with asyncio.timeout_at(wake):
                    await self._slot_free.wait()
            except TimeoutError:
                continue

    def _look(self, now: float) -> None:
        """Compare with the cache: what came, what went, what changed."""
        deployments = self._cache.views(DEPLOYMENT, self._cache.all(DEPLOYMENTS))
        self._rolling = frozenset(_model(each) for each in deployments if each.is_rolling_out)
        there = set()
        for seen in self._cache.views(POD, self._cache.all(PODS)):
            known = self._pods.get(seen.uid)
            if known is not None and known.seen is seen:
                there.add(seen.uid)
            elif asked := question(seen):
                there.add(seen.uid)
                self._meet(seen, asked, now)
        for uid in self._pods.keys() - there:
            self._leave(uid)
        expiry = max(EXPIRY, 3 * sweep_interval(len(self._pods)))
        for pod in self._pods.values():
            if pod.canonical and pod.renewed + expiry < now:
                self._lose(pod, now)
            if not pod.silent and max(pod.renewed, pod.since) + SILENCE < now:
                pod.silent = True
                self._tell(pod)

    def _meet(self, seen: PodView, asked: Question, now: float) -> None:
        """Take in a pod that is new, or whose object has changed."""
        known = self._pods.get(seen.uid)
        if known is None or known.asked != asked:
            # Not "changed": after a restart of ours all pods are new, and most of them settled.
            marked = _marked_until(seen)
            self._pods[seen.uid] = _Pod(seen, asked, since=now, changed=-FRESH, marked_until=marked)
            self._schedule.soon(seen.uid, now)
            return
        before, known.seen = known.seen, seen
        if before.ready != seen.ready:
            known.changed = now
            self._schedule.soon(seen.uid, now)

    def _leave(self, uid: str) -> None:
        """Forget a pod that is gone or can be asked no more."""
        pod = self._pods.pop(uid)
        self._schedule.forget(uid)
        self._hold_back(uid, pod)
        if pod.canonical:
            self._tell(pod)

    def _lose(self, pod: _Pod, now: float) -> None:
        pod.body, pod.canonical, pod.verdict, pod.progress = None, "", None, None
        pod.changed = now
        self._tell(pod)

    def _begin(self, uid: str) -> None:
        pod = self._pods.get(uid)
        if pod is None:
            return
        task = asyncio.create_task(self._ask(uid, pod))
        self._under_way.add(task)
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        if len(self._under_way) >= CONCURRENCY:
            self._slot_free.set()
        self._under_way.discard(task)
        if not task.cancelled() and (error := task.exception()):
            _logger.error("asking a pod failed, a bug", exc_info=error)

    async def _ask(self, uid: str, pod: _Pod) -> None:
        address, about = pod.asked.address, pod.asked.about
        released = self._may_become_unready(uid, pod)
        if pod.verdict is not None:  # else what an operator before us has decided ends by itself
            await self._mark(pod, released=released)
        result = "ok"
        try:
            body = await self._http.get(address, f"/{about}")
            self._take(pod, body)
        except NoAnswer as error:
            result = "no-answer"
            # One that is not ready may have nobody to answer yet.
            self._missed(pod, str(error), worth_a_line=pod.seen.ready)
        except BadAnswer as error:
            result = "bad-answer"
            self._missed(pod, str(error), worth_a_line=True)
        finally:
            if self._pods.get(uid) is pod:
                now = asyncio.get_running_loop().time()
                self._schedule.again(
                    uid,
                    now,
                    fast=self._is_young(pod, now),
                    failures=pod.failures,
                    pods=len(self._pods),
                )
        self._polls.labels(result).inc()

    def _take(self, pod: _Pod, body: bytes) -> None:
        """Keep a good answer, and wake the owner where it says something new. Raises BadAnswer."""
        now = asyncio.get_running_loop().time()
        if body != pod.body:
            before = pod.progress
            canonical = self._read(pod, body)
            pod.body = body
            if canonical != pod.canonical:
                pod.canonical = canonical
                if pod.progress is None or _further(before, pod.progress):
                    pod.changed = now
                    self._tell(pod)
        pod.renewed, pod.failures = now, 0
        if pod.silent:
            pod.silent = False
            self._tell(pod)

    @staticmethod
    def _read(pod: _Pod, body: bytes) -> str:
        """Read an answer into `pod`; returns it in a form that equals itself, unlike NaN."""
        try:
            if pod.asked.about == "progress":
                progress = Progress.model_validate_json(body)
                pod.progress = progress.model_copy(
                    update={"percent": min(max(progress.percent, 0), 100)}
                )
                return pod.progress.to_json()
            verdict = _shortened(Verdict.model_validate_json(body))
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            where = ".".join(str(step) for step in first["loc"])
            raise BadAnswer(f"not a {pod.asked.about}: {where}: {first['msg']}") from None
        if not speaks_for(verdict, pod.seen):
            raise BadAnswer(
                f"the verdict is of model {verdict.model[:63]}, revision {verdict.revision[:63]},"
                " which is another pod's"
            )
        pod.verdict = verdict
        return verdict.to_json()

    @staticmethod
    def _missed(pod: _Pod, why: str, *, worth_a_line: bool) -> None:
        pod.failures += 1
        if worth_a_line and not pod.told:
            pod.told = True
            address = pod.asked.address
            _logger.warning(
                "pod %s/%s has no usable %s: %s; polling continues; this is logged once",
                address.namespace,
                address.name,
                pod.asked.about,
                why,
            )

    def _is_young(self, pod: _Pod, now: float) -> bool:
        """Tell whether the pod is likely to say something new soon."""
        return (
            pod.asked.about == "progress"
            or now - pod.changed < FRESH
            or (not pod.seen.ready and now - max(pod.since, pod.changed) < STARTING)
            or _model(pod.seen) in self._rolling
            or _model(pod.seen) in self._released  # the others must go on keeping the promise
        )

    async def _mark(self, pod: _Pod, *, released: bool) -> None:
        """Write on the pod until when it may become unready, where that is not what it says."""
        now = self._wall()
        if released and pod.marked_until < now + _RENEW:
            until = now + RELEASE_SECONDS
            annotations = {RELEASE_ANNOTATION: str(int(until))}
        elif not released and pod.marked_until > now:
            until, annotations = 0.0, {}
        else:
            return
        seen = pod.seen
        metadata = {
            "namespace": seen.namespace,
            "name": seen.name,
            "uid": seen.uid,
            "annotations": annotations,
        }
        try:
            await self._write({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})
        except KubeError as error:  # tried again with the next question
            _logger.warning(
                "pod %s/%s cannot be annotated: %s",
                seen.namespace,
                seen.name,
                error.message,
            )
            return
        pod.marked_until = until

    def _hold_back(self, uid: str, pod: _Pod) -> None:
        """Let the pod become unready no longer."""
        key = _model(pod.seen)
        if self._released.get(key) == uid:
            del self._released[key]

    def _may_become_unready(self, uid: str, pod: _Pod) -> bool:
        verdict = pod.verdict
        if not verdict or not verdict.fallback or not verdict.fallback.broken:
            self._hold_back(uid, pod)
            return False
        key = _model(pod.seen)
        siblings = self._cache.views(POD, self._cache.of_model(PODS, *key))
        chosen = releasable(
            (
                Served(each.uid, each.name, each.label(CLASS), each.ready, known.verdict)
                for each in siblings
                if (known := self._pods.get(each.uid))
            ),
            self._released.get(key),
        )
        if chosen is None:
            self._released.pop(key, None)
        elif self._released.get(key) != chosen:
            self._released[key] = chosen
            name = self._pods[chosen].asked.address.name
            _logger.warning(
                "pod %s/%s breaks its model's promise and may become unready: others keep it",
                key.namespace,
                name,
            )
        return chosen == uid

    def _tell(self, pod: _Pod) -> None:
        if pod.asked.about == "progress":
            self._engine_changed(pod.seen.namespace, pod.seen.label(ENGINE))
        else:
            self._changed(_model(pod.seen))


def _marked_until(pod: PodView) -> float:
    """Return until when the pod's annotation releases it, as an operator before us has written it."""
    text = str(pod.annotations.get(RELEASE_ANNOTATION) or "")
    return float(text) if text.isascii() and text.isdigit() else 0.0


def _model(seen: PodView | DeploymentView) -> ModelKey:
    """Return the model that it serves; the label is there where a verdict is asked for."""
    return ModelKey(seen.namespace, seen.label(MODEL))


def _further(before: Progress | None, now: Progress) -> bool:
    """Tell whether a build has come into another tenth of the whole, or into another stage."""
    return (
        before is None
        or before.stage != now.stage
        or before.percent // _TENTH != now.percent // _TENTH
    )


def _shortened(verdict: Verdict) -> Verdict:
    """Bound what goes into conditions: the API server takes no longer ones."""
    checks = tuple(
        each.model_copy(update={"message": each.message[:_MAX_MESSAGE]}) for each in verdict.checks
    )
    fallback = verdict.fallback
    if fallback is not None:
        fallback = fallback.model_copy(update={"message": fallback.message[:_MAX_MESSAGE]})
    return verdict.model_copy(update={"checks": checks, "fallback": fallback})
