"""What the runtime images contain, probed once in each image: those configured, and those of revisions.

A Job runs `enginewright-runtime probe` in the image; its report is stored in a ConfigMap, so that a
restarted operator does not probe again. Models wait for the report, and show why it is missing.
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from enginewright_contract.images import ImageFacts
from pydantic import ValidationError

from enginewright.api.job_failure import JobFailure
from enginewright.controller.cache import ObjectCache
from enginewright.controller.loop import ReconcileResult
from enginewright.controller.observe import JOB, NODE, POD
from enginewright.controller.operator_namespace import ConfigMapStore
from enginewright.controller.refusals import read_refusals
from enginewright.controller.shared import Shared
from enginewright.kube.api import JsonObject
from enginewright.kube.resources import (
    CONTROLLER_REVISIONS,
    INFERENCE_MODELS,
    JOBS,
    NODES,
    PODS,
    Resource,
)
from enginewright.manifests.labels import IMAGE
from enginewright.manifests.placement import placement_hash
from enginewright.manifests.probe_job import image_hash, probe_job, probe_job_name
from enginewright.observed.jobs import JobView
from enginewright.plan.attempts import (
    Failed,
    InProgress,
    Observed,
    Start,
    Succeeded,
    advance,
)
from enginewright.plan.resolve.images import probing
from enginewright.plan.types import ObjectRef

CONFIG_MAP: Final = "enginewright-images"
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Attempts:
    attempt: int = 1
    failure: JobFailure | None = None


class ImageReconciler:
    """Knows the images by reference; its keys are their hashes, which probes carry as a label."""

    def __init__(
        self, shared: Shared, *, changed: Callable[[], None], queue: Callable[[str], None]
    ) -> None:
        self._shared = shared
        self._cache = shared.cache
        self._config = shared.config
        self._changed = changed
        self._queue = queue
        self._store = ConfigMapStore(shared.api, shared.own_namespace, CONFIG_MAP)
        self._images = {image_hash(image): image for image in shared.config.images.values()}
        self._attempts: dict[str, _Attempts] = {}
        self.facts: dict[str, ImageFacts] = {}
        self.failures: dict[str, str] = {}
        self.loaded = False

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the keys of all configured images."""
        return tuple(self._images)

    async def load(self) -> None:
        """Read what an earlier run stored. Raises KubeError."""
        for text in (await self._store.load()).values():
            self.facts |= read_entry(text)
        self.loaded = True

    def require(self, images: Iterable[str]) -> None:
        """Probe images that are neither configured nor known."""
        for image in images:
            key = image_hash(image)
            if image not in self.facts and key not in self._images:
                self._images[key] = image
                self._queue(key)

    async def reconcile(self, key: str) -> ReconcileResult:
        """Probe one image, or wait until it is probed. Raises KubeError."""
        image = self._images.get(key)
        if image is None or image in self.facts:
            return ReconcileResult(exists=False)  # probed, or no longer configured
        jobs = self._cache.views(JOB, self._ours(JOBS, key))
        await self._shared.pods.catch_up(jobs)
        jobs = await read_refusals(self._shared, jobs, self._ours(PODS, key))
        observed = self._observe(key, jobs)
        last = self._attempts.get(key, _Attempts())
        attempt = max(last.attempt, _newest(key, observed))
        work = probing(key, placement_hash(self._config.jobs))
        state = advance(work, observed, attempt, last.failure)
        match state:
            case Succeeded():
                await self._store_facts(image, state.result)
                if state.ends:
                    await self._delete(state.ends)
                return ReconcileResult(exists=False)
            case Start():
                return await self._start(key, image, state, observed)
            case InProgress():
                failed = state.failure.sentence if state.failure else ""
                if why := state.wait.message if state.wait else failed:
                    self._report(image, why)
                return ReconcileResult(requeue_after=state.requeue_after)
            case Failed():
                self._attempts[key] = _Attempts(state.attempt, state.failure)
                self._report(image, state.failure.sentence)
                if state.ends:
                    await self._delete(state.ends)
                return ReconcileResult(requeue_after=state.requeue_after)

    def _observe(self, key: str, jobs: Iterable[JobView]) -> Observed:
        pods = self._cache.views(POD, self._ours(PODS, key))
        nodes = self._cache.views(NODE, self._cache.all(NODES))
        return Observed({job.name: job for job in jobs}, pods, self._shared.now(), nodes)

    def _ours(self, resource: Resource, key: str) -> tuple[JsonObject, ...]:
        """Return an image's Jobs or pods in the operator's namespace; labels elsewhere are not trusted."""
        return self._cache.find(resource, self._config.namespace, IMAGE, key)

    async def _start(
        self, key: str, image: str, state: Start, observed: Observed
    ) -> ReconcileResult:
        self._attempts[key] = _Attempts(state.attempt, state.failure)
        job = probe_job(
            self._config.namespace,
            image,
            state.attempt,
            pull_policy=self._config.image_pull_policy,
            image_pull_secrets=self._config.image_pull_secrets,
            template=self._config.jobs,
            assigned_ids=self._config.openshift,
        )
        is_new = await self._shared.executor.apply(self._shared.own_namespace.set_owner(job))
        if state.replaces in observed.jobs:
            await self._delete(state.replaces)
        return ReconcileResult(requeue=is_new)

    async def _delete(self, job: str) -> None:
        ref = ObjectRef(JOBS.api_version, JOBS.kind, self._config.namespace, job)
        await self._shared.executor.delete(ref)

    async def _store_facts(self, image: str, facts: ImageFacts) -> None:
        used = {*self._images.values(), *_list_used(self._cache)}
        kept = {one: held for one, held in self.facts.items() if one in used} | {image: facts}
        entries = {
            image_hash(one): json.dumps(
                {"image": one, "facts": held.model_dump(mode="json")}, sort_keys=True
            )
            for one, held in kept.items()
        }
        await self._store.save(entries)
        self.facts = kept
        self.failures = {one: why for one, why in self.failures.items() if one != image}
        _logger.info("image %s: %s", image, facts.to_json())
        self._changed()

    def _report(self, image: str, failure: str) -> None:
        if failure != self.failures.get(image):
            self.failures = {**self.failures, image: failure}
            _logger.warning("cannot probe image %s: %s", image, failure)
            self._changed()


def _newest(key: str, observed: Observed) -> int:
    """Return the number of the newest Job, which is not recorded elsewhere after a restart."""
    prefix = probe_job_name(key, 0)[:-1]
    numbers = [name.removeprefix(prefix) for name in observed.jobs if name.startswith(prefix)]
    return max((int(number) for number in numbers if number.isdecimal()), default=1)


def _list_used(cache: ObjectCache) -> Iterator[str]:
    """Yield the images that revisions and models have, which may no longer be configured."""
    for revision in cache.all(CONTROLLER_REVISIONS):
        data = revision.get("data")
        classes = data.get("classes") if isinstance(data, dict) else None
        yield from (
            str(device_class.get("image"))
            for device_class in classes or ()
            if isinstance(device_class, dict)
        )
    for model in cache.all(INFERENCE_MODELS):
        images = (model.get("status") or {}).get("images") or {}
        yield from (item["image"] for item in images.get("current") or ())


def read_entry(text: str) -> dict[str, ImageFacts]:
    """Read one value of the ConfigMap; {} if it is invalid, as of another version: the image is probed again."""
    try:
        entry = json.loads(text)
        return {str(entry["image"]): ImageFacts.model_validate(entry["facts"])}
    except (ValueError, TypeError, KeyError, ValidationError):
        return {}
