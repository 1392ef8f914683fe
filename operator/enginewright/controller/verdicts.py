"""Polls sidecars for their verdicts and build pods for their progress.

Live measurements must not be written to etcd: the operator polls, keeps the last response of each pod
in memory, and enqueues the pod's owner when the response has changed. After a restart nothing is
known until the pods have been polled again.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from enginewright_contract.base import first_problem
from enginewright_contract.keys import sha256_text
from enginewright_contract.report import Progress
from enginewright_contract.verdict import (
    RELEASE_ANNOTATION,
    RELEASE_SECONDS,
    TIMES_ANNOTATION,
    Verdict,
)
from prometheus_client import CollectorRegistry, Counter
from pydantic import ValidationError

from enginewright.controller.cache import ObjectCache
from enginewright.controller.measured import MeasurementPolls, model_key
from enginewright.controller.observe import DEPLOYMENT, POD
from enginewright.controller.poll_schedule import SWEEP, PollSchedule, sweep_interval
from enginewright.controller.poll_targets import (
    PollTarget,
    ServingPod,
    is_verdict_of,
    may_be_released,
    poll_target,
    releasable,
)
from enginewright.controller.routing import ModelKey
from enginewright.controller.start_times import StartTimesMemory
from enginewright.kube.errors import KubeError
from enginewright.kube.pod_http import BadAnswer, NoAnswer, PodHttp
from enginewright.kube.resources import DEPLOYMENTS, PODS
from enginewright.manifests.labels import ENGINE
from enginewright.observed.pods import JOB_NAME, PodView

CONCURRENCY: Final = 32  # requests in progress
FRESH: Final = 15.0  # seconds after a change in which more of them are likely
STARTING: Final = 600.0  # seconds for which a pod that is not ready is polled fast
EXPIRY: Final = 3 * SWEEP  # seconds after which a response that was not renewed is discarded

# seconds without a response after which a pod's last report is too old; more where sweeps take longer
SILENCE: Final = 300.0
_RENEW: Final = RELEASE_SECONDS / 2  # seconds before its end at which a release is written again
_BURST: Final = 0.1  # seconds between two comparisons with the cache, which changes in bursts
_LOOK: Final = 1.0  # seconds between two searches for responses that are too old
_MAX_MESSAGE: Final = 1024  # characters of a verdict's message that go into conditions
_TENTH: Final = 10  # percent

_Name = tuple[str, str]  # namespace, name

_logger = logging.getLogger(__name__)


@dataclass
class _Pod:
    view: PodView
    target: PollTarget
    since: float  # when it first was this target
    changed: float  # when its readiness or its verdict changed
    renewed: float = 0.0  # when it was last polled successfully
    failures: int = 0  # consecutive failed polls
    failure_logged: bool = False
    body: bytes | None = None  # the last valid response
    canonical: str = ""  # hash of the same as canonical JSON
    is_releasable: bool = False  # by its verdict
    progress: Progress | None = None
    silent: bool = False  # whether it has not responded for `SILENCE` seconds
    marked_until: float = 0.0  # from its annotation, in seconds since 1970

    @property
    def verdict(self) -> Verdict | None:
        """Return its verdict, if it is known; parsed again each time, as it takes ten times the memory of its JSON."""
        if self.body is None or self.target.kind != "verdict":
            return None
        return _shorten(Verdict.model_validate_json(self.body))


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
    """Polls every serving pod for its verdict and every building pod for its progress.

    `changed` is called when a verdict of a model has changed or expired, `engine_changed` with
    namespace and name of the InferenceEngine when its build has advanced by 10%. `stop` closes
    `http`.
    """

    def __init__(
        self,
        cache: ObjectCache,
        http: PodHttp,
        registry: CollectorRegistry,
        *,
        changed: Callable[[ModelKey], None],
        engine_changed: Callable[[str, str], None],
        write: Callable[[Mapping[str, Any]], Awaitable[object]],
        wall: Callable[[], float],
    ) -> None:
        self._cache = cache
        self._http = http
        self._changed = changed
        self._engine_changed = engine_changed
        self._write = write
        self._wall = wall
        self._polls = poll_counter(registry)
        self._schedule = PollSchedule(jitter=random.random)
        # models whose pods are being replaced, and those that have a canary, by their Deployments
        self._rolling: dict[_Name, ModelKey] = {}
        self._canaries: dict[_Name, ModelKey] = {}
        self._rolling_models: frozenset[ModelKey] = frozenset()
        self.measurements = MeasurementPolls(cache, http)
        self._start_times = StartTimesMemory()
        self._pods: dict[str, _Pod] = {}  # by uid
        self._uids: dict[_Name, str] = {}  # of these
        # since the last comparison with the cache
        self._changed_pods = set(cache.names(PODS))
        self._changed_deployments = set(cache.names(DEPLOYMENTS))
        cache.listen(PODS, lambda name, _: self._note(self._changed_pods, name))
        cache.listen(DEPLOYMENTS, lambda name, _: self._note(self._changed_deployments, name))
        self._released: dict[ModelKey, str] = {}  # the pod that may become unready
        self._in_flight: set[asyncio.Task[object]] = set()
        self._woken = asyncio.Event()  # by a change, or a request that has ended
        self._task: asyncio.Task[None] | None = None

    def verdicts_of(self, pods: Iterable[PodView]) -> dict[str, Verdict]:
        """Return the known verdicts of `pods` by pod name."""
        polled = ((pod.name, self._pods.get(pod.uid)) for pod in pods)
        return {name: said for name, pod in polled if pod and (said := pod.verdict)}

    def silent(self, pods: Iterable[PodView]) -> frozenset[str]:
        """Return the names of those of `pods` that have not responded for `SILENCE` seconds."""
        polled = ((pod.name, self._pods.get(pod.uid)) for pod in pods)
        return frozenset(name for name, pod in polled if pod and pod.silent)

    def progress_of(self, namespace: str, job: str) -> Progress | None:
        """Return the progress of a Job's build, or None while it is not known."""
        names = self._cache.find_names(PODS, namespace, JOB_NAME, job)
        pods = (self._pods.get(self._uids.get((namespace, name), "")) for name in names)
        return next((pod.progress for pod in pods if pod and pod.progress is not None), None)

    def start(self) -> None:
        """Start polling."""
        self._task = asyncio.create_task(self._run(), name="verdicts")

    async def stop(self) -> None:
        """Stop polling."""
        tasks = [*self._in_flight, *((self._task,) if self._task else ())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._http.close()

    def problem(self) -> str | None:
        """Return why pods are not polled, or None."""
        if self._task is not None and self._task.done():
            return "the verdict poller has stopped"
        return None

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        next_look = next_compare = clock()
        while True:
            now = clock()
            if self._has_changed and now >= next_compare:
                self._compare(now)
                next_compare = now + _BURST
            if now >= next_look:
                self._discard_old(now)
                next_look = now + _LOOK
            while len(self._in_flight) < CONCURRENCY and (uid := self._schedule.take(now)):
                self._start_poll(uid)
            wake = min(next_look, next_compare) if self._has_changed else next_look
            full = len(self._in_flight) >= CONCURRENCY
            if not full and (due := self._schedule.next_time()) is not None:
                wake = min(wake, due)
            self._woken.clear()
            try:
                async with asyncio.timeout_at(wake):
                    await self._woken.wait()
            except TimeoutError:
                continue

    @property
    def _has_changed(self) -> bool:
        return bool(self._changed_pods or self._changed_deployments)

    def _note(self, changed: set[_Name], name: _Name) -> None:
        changed.add(name)
        self._woken.set()

    def _discard_old(self, now: float) -> None:
        """Expire responses that are too old."""
        thrice = 3 * sweep_interval(len(self._pods))
        expiry, silence = max(EXPIRY, thrice), max(SILENCE, thrice)
        for pod in self._pods.values():
            if pod.canonical and pod.renewed + expiry < now:
                self._expire(pod, now)
            if not pod.silent and max(pod.renewed, pod.since) + silence < now:
                pod.silent = True
                self._notify(pod)

    def _compare(self, now: float) -> None:
        """Take over what has changed in the cache."""
        changed, self._changed_deployments = self._changed_deployments, set()
        for name in changed:
            self._compare_deployment(name)
        self._rolling_models = frozenset(self._rolling.values())
        pods, self._changed_pods = self._changed_pods, set()
        for name in sorted(pods):
            self._compare_pod(name, now)
        of_canaries = (
            self._cache.of_model(PODS, *key) for key in frozenset(self._canaries.values())
        )
        canaries = (self._cache.get(DEPLOYMENTS, *name) for name in self._canaries)
        self.measurements.compare(
            self._cache.views(DEPLOYMENT, filter(None, canaries)),
            self._cache.views(POD, chain.from_iterable(of_canaries)),
        )

    def _compare_deployment(self, name: _Name) -> None:
        observed = self._cache.get(DEPLOYMENTS, *name)
        for models in (self._rolling, self._canaries):
            models.pop(name, None)
        for view in self._cache.views(DEPLOYMENT, (observed,) if observed else ()):
            if view.is_rolling_out and not view.is_trial:
                self._rolling[name] = model_key(view)
            if view.is_canary:
                self._canaries[name] = model_key(view)

    def _compare_pod(self, name: _Name, now: float) -> None:
        observed, polled = self._cache.get(PODS, *name), self._uids.get(name)
        views = self._cache.views(POD, (observed,) if observed else ())
        target = next(map(poll_target, views), None)
        if polled and (target is None or views[0].uid != polled):
            self._forget(name)
        if target:
            self._observe(views[0], target, now)
        for view in views:
            if times := self._start_times.find_for(view):
                self._start(self._annotate(view, {TIMES_ANNOTATION: times}))

    def _observe(self, view: PodView, target: PollTarget, now: float) -> None:
        pod = self._pods.get(view.uid)
        if pod is None or pod.target != target:
            # Not "changed": after a restart of ours all pods are new, and most of them settled.
            marked = _read_mark(view)
            self._uids[view.namespace, view.name] = view.uid
            self._pods[view.uid] = _Pod(
                view, target, since=now, changed=-FRESH, marked_until=marked
            )
            self._schedule.poll_now(view.uid, now)
            return
        before, pod.view = pod.view, view
        if before.ready != view.ready:
            pod.changed = now
            self._schedule.poll_now(view.uid, now)

    def _forget(self, name: _Name) -> None:
        uid = self._uids.pop(name)
        pod = self._pods.pop(uid)
        self._schedule.forget(uid)
        self._withdraw_release(uid, pod)
        if pod.canonical:
            self._notify(pod)

    def _expire(self, pod: _Pod, now: float) -> None:
        pod.body, pod.canonical, pod.progress, pod.is_releasable = None, "", None, False
        pod.changed = now
        self._notify(pod)

    def _start_poll(self, uid: str) -> None:
        pod = self._pods.get(uid)
        if pod is None:
            return
        self._start(self._poll(uid, pod))

    def _start(self, request: Coroutine[Any, Any, object]) -> None:
        task = asyncio.create_task(request)
        self._in_flight.add(task)
        task.add_done_callback(self._request_done)

    def _request_done(self, task: asyncio.Task[object]) -> None:
        if len(self._in_flight) >= CONCURRENCY:
            self._woken.set()
        self._in_flight.discard(task)
        if not task.cancelled() and (error := task.exception()):
            _logger.error("a request about a pod failed, a bug", exc_info=error)

    async def _poll(self, uid: str, pod: _Pod) -> None:
        address, kind = pod.target.address, pod.target.kind
        released = self._may_become_unready(uid, pod)
        # else what an earlier operator process decided expires by itself
        if pod.body is not None and kind == "verdict":
            await self._mark(pod, released=released)
        result = "ok"
        try:
            body = await self._http.get(address, f"/{kind}")
            self._accept(pod, body)
            if kind == "verdict" and self.measurements.concerns(pod.view):
                await self.measurements.poll(address, pod.view)
        except NoAnswer as error:
            result = "no-answer"
            # The sidecar of a pod that is not ready may not listen yet.
            self._on_failure(pod, str(error), log=pod.view.ready)
        except BadAnswer as error:
            result = "bad-answer"
            self._on_failure(pod, str(error), log=True)
        finally:
            if self._pods.get(uid) is pod:
                now = asyncio.get_running_loop().time()
                self._schedule.reschedule(
                    uid,
                    now,
                    fast=self._is_young(pod, now),
                    failures=pod.failures,
                    pods=len(self._pods),
                )
        self._polls.labels(result).inc()

    def _accept(self, pod: _Pod, body: bytes) -> None:
        """Keep a valid response, and enqueue the owner if it has changed. Raises BadAnswer."""
        now = asyncio.get_running_loop().time()
        if body != pod.body:
            before = pod.progress
            canonical = self._read(pod, body)
            pod.body = body
            if canonical != pod.canonical:
                pod.canonical = canonical
                if pod.progress is None or _has_advanced(before, pod.progress):
                    pod.changed = now
                    self._notify(pod)
        pod.renewed, pod.failures = now, 0
        if pod.silent:
            pod.silent = False
            self._notify(pod)

    def _read(self, pod: _Pod, body: bytes) -> str:
        """Read a response, a progress into `pod`; returns a hash of its canonical form, which equals itself, unlike NaN."""
        try:
            if pod.target.kind == "progress":
                progress = Progress.model_validate_json(body)
                pod.progress = progress.model_copy(
                    update={"percent": min(max(progress.percent, 0), 100)}
                )
                return sha256_text(pod.progress.to_json())
            verdict = _shorten(Verdict.model_validate_json(body))
        except ValidationError as error:
            raise BadAnswer(f"not a {pod.target.kind}: {first_problem(error)}") from None
        if not is_verdict_of(verdict, pod.view):
            raise BadAnswer(
                f"the verdict is for model {verdict.model[:63]}, revision {verdict.revision[:63]},"
                " so another pod answered"
            )
        pod.is_releasable = may_be_released(verdict)
        self._start_times.learn(pod.view, verdict)
        return sha256_text(verdict.to_json())

    @staticmethod
    def _on_failure(pod: _Pod, why: str, *, log: bool) -> None:
        pod.failures += 1
        if log and not pod.failure_logged:
            pod.failure_logged = True
            address = pod.target.address
            _logger.warning(
                "cannot get the %s of pod %s/%s: %s; retrying; logged once per pod",
                pod.target.kind,
                address.namespace,
                address.name,
                why,
            )

    def _is_young(self, pod: _Pod, now: float) -> bool:
        return (
            pod.target.kind == "progress"
            or now - pod.changed < FRESH
            or (not pod.view.ready and now - max(pod.since, pod.changed) < STARTING)
            or model_key(pod.view) in self._rolling_models
            or self.measurements.concerns(pod.view)
            or model_key(pod.view) in self._released  # the others must go on keeping the promise
        )

    async def _mark(self, pod: _Pod, *, released: bool) -> None:
        """Annotate the pod with the time until which it may become unready, if that changes."""
        now = self._wall()
        if released and pod.marked_until < now + _RENEW:
            until = now + RELEASE_SECONDS
            annotations = {RELEASE_ANNOTATION: str(int(until))}
        elif not released and pod.marked_until > now:
            until, annotations = 0.0, {}
        else:
            return
        if await self._annotate(pod.view, annotations):  # else retried with the next poll
            pod.marked_until = until

    async def _annotate(self, view: PodView, annotations: Mapping[str, str]) -> bool:
        times = view.annotations.get(TIMES_ANNOTATION)
        kept = {TIMES_ANNOTATION: times} if times else {}
        metadata = {
            "namespace": view.namespace,
            "name": view.name,
            "uid": view.uid,
            # server-side apply removes what it does not name
            "annotations": {**kept, **annotations},
        }
        try:
            await self._write({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})
        except KubeError as error:
            _logger.warning(
                "cannot annotate pod %s/%s: %s",
                view.namespace,
                view.name,
                error.message,
            )
            return False
        return True

    def _withdraw_release(self, uid: str, pod: _Pod) -> None:
        key = model_key(pod.view)
        if self._released.get(key) == uid:
            del self._released[key]

    def _may_become_unready(self, uid: str, pod: _Pod) -> bool:
        if not pod.is_releasable:
            self._withdraw_release(uid, pod)
            return False
        key = model_key(pod.view)
        siblings = self._cache.views(POD, self._cache.of_model(PODS, *key))
        chosen = releasable(
            (
                ServingPod.of(view, sibling.verdict)
                for view in siblings
                if (sibling := self._pods.get(view.uid))
            ),
            self._released.get(key),
        )
        if chosen is None:
            self._released.pop(key, None)
        elif self._released.get(key) != chosen:
            self._released[key] = chosen
            name = self._pods[chosen].target.address.name
            _logger.warning(
                "pod %s/%s violates spec.fallback and is released to become unready: other pods of its class comply",
                key.namespace,
                name,
            )
        return chosen == uid

    def _notify(self, pod: _Pod) -> None:
        if pod.target.kind == "progress":
            self._engine_changed(pod.view.namespace, pod.view.label(ENGINE))
        else:
            self._changed(model_key(pod.view))


def _read_mark(pod: PodView) -> float:
    """Return the Unix time in the pod's annotation, which an earlier process may have written."""
    text = str(pod.annotations.get(RELEASE_ANNOTATION) or "")
    return float(text) if text.isascii() and text.isdigit() else 0.0


def _has_advanced(before: Progress | None, now: Progress) -> bool:
    """Return whether a build has reached another 10% or another stage."""
    return (
        before is None
        or before.stage != now.stage
        or before.percent // _TENTH != now.percent // _TENTH
    )


def _shorten(verdict: Verdict) -> Verdict:
    """Truncate messages that go into conditions to what the API server accepts."""
    checks = tuple(
        check.model_copy(update={"message": check.message[:_MAX_MESSAGE]})
        for check in verdict.checks
    )
    fallback = verdict.fallback
    if fallback is not None:
        fallback = fallback.model_copy(update={"message": fallback.message[:_MAX_MESSAGE]})
    return verdict.model_copy(update={"checks": checks, "fallback": fallback})
