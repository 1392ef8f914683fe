"""What the configured images hold, asked of the images themselves, once each.

A Job runs `enginewright-runtime probe` in the image; what it says is kept in a ConfigMap, so that
a restarted operator asks nothing. Models wait for the answer, and are told why there is none.
"""

import json
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from pydantic import ValidationError

from enginewright.contract.images import ImageFacts
from enginewright.controller.cache import Cache
from enginewright.controller.catch_up import PodCatchUp
from enginewright.controller.children import finished
from enginewright.controller.execute import Executor
from enginewright.controller.loop import Outcome
from enginewright.kube.api import JsonObject, KubeApi
from enginewright.kube.errors import NotFound
from enginewright.kube.resources import CONFIG_MAPS, JOBS, PODS
from enginewright.manifests.labels import IMAGE, MANAGED_BY, OPERATOR
from enginewright.manifests.probe_job import image_hash, probe_job
from enginewright.plan.types import Config, ObjectRef

CONFIG_MAP: Final = "enginewright-images"
FIRST_RETRY: Final = 30.0  # seconds after a failed probe, doubled each time
LAST_RETRY: Final = 600.0
# These take turns while the kubelet backs off, so the reason itself is not told.
_CANNOT_PULL: Final = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
    }
)
_CANNOT_START: Final = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
)

_logger = logging.getLogger(__name__)


class ImageReconciler:
    """Knows the images by reference; its keys are their hashes, which probes carry as a label."""

    def __init__(
        self,
        api: KubeApi,
        cache: Cache,
        pods: PodCatchUp,
        executor: Executor,
        config: Config,
        *,
        changed: Callable[[], None],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api = api
        self._cache = cache
        self._pods = pods
        self._executor = executor
        self._config = config
        self._changed = changed
        self._now = now
        self._images = {image_hash(image): image for image in config.images.values()}
        self._attempts: dict[str, int] = {}
        self.facts: dict[str, ImageFacts] = {}
        self.failures: dict[str, str] = {}
        self.loaded = False

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the keys of all configured images."""
        return tuple(self._images)

    async def load(self) -> None:
        """Read what was learnt by an earlier run. Raises KubeError."""
        try:
            stored = await self._api.get(CONFIG_MAPS, self._config.namespace, CONFIG_MAP)
        except NotFound:
            stored = {}
        for key, text in (stored.get("data") or {}).items():
            if key in self._images and (facts := _read_entry(text, self._images[key])):
                self.facts[self._images[key]] = facts
        self.loaded = True

    async def reconcile(self, key: str) -> Outcome:
        """Bring one image closer to being known. Raises KubeError."""
        image = self._images.get(key)
        if image is None or image in self.facts:
            return Outcome(exists=False)  # a probe of an image that is configured no more, or done
        job = probe_job(
            self._config.namespace,
            image,
            pull_policy=self._config.image_pull_policy,
            image_pull_secrets=self._config.image_pull_secrets,
        )
        observed = self._cache.get(JOBS, self._config.namespace, job["metadata"]["name"])
        if observed is None:
            return Outcome(again=await self._executor.apply(job))
        await self._pods.catch_up((observed,))
        if facts := self._answer(key):
            await self._learn(image, facts)
            return Outcome(exists=False)
        if finished(observed):
            return await self._failed(key, image, observed)
        if failure := self._why_not_started(key):
            self._tell(image, failure)
        return Outcome()

    async def _learn(self, image: str, facts: ImageFacts) -> None:
        known = {**self.facts, image: facts}
        await self._api.apply(
            {
                "apiVersion": CONFIG_MAPS.api_version,
                "kind": CONFIG_MAPS.kind,
                "metadata": {
                    "name": CONFIG_MAP,
                    "namespace": self._config.namespace,
                    "labels": {MANAGED_BY: OPERATOR},
                },
                # Whole: what an apply leaves out is removed.
                "data": {
                    image_hash(one): json.dumps(
                        {"image": one, "facts": known[one].model_dump(mode="json")}, sort_keys=True
                    )
                    for one in known
                },
            }
        )
        self.facts = known
        self.failures = {one: why for one, why in self.failures.items() if one != image}
        _logger.info("image %s: %s", image, facts.to_json())
        self._changed()

    async def _failed(self, key: str, image: str, job: JsonObject) -> Outcome:
        """Say why, and make way for another probe when its time has come."""
        # An earlier failure stays told until there is another: the deadline explains less.
        known = self._last_words(key) or self.failures.get(image) or _job_failure(job)
        self._tell(image, known or "the probe said nothing")
        attempts = self._attempts.get(key, 0)
        delay = min(FIRST_RETRY * 2.0**attempts, LAST_RETRY)
        waited = (self._now() - _finished_at(job, self._now())).total_seconds()
        if waited < delay:
            return Outcome(requeue_after=delay - waited)
        self._attempts[key] = attempts + 1
        metadata = job["metadata"]
        await self._executor.delete(
            ObjectRef(JOBS.api_version, JOBS.kind, metadata["namespace"], metadata["name"])
        )
        return Outcome(again=True)

    def _tell(self, image: str, failure: str) -> None:
        if failure != self.failures.get(image):
            self.failures = {**self.failures, image: failure}
            _logger.warning("image %s cannot be probed: %s", image, failure)
            self._changed()

    def _answer(self, key: str) -> ImageFacts | None:
        for state in self._states(key):
            terminated = state.get("terminated") or {}
            if terminated.get("exitCode") == 0 and (
                facts := _read_facts(terminated.get("message") or "")
            ):
                return facts
        return None

    def _last_words(self, key: str) -> str | None:
        """Return why the last container of the probe ended badly."""
        for state in self._states(key):
            terminated = state.get("terminated") or {}
            if message := (terminated.get("message") or "").strip():
                return f"the probe ended with code {terminated.get('exitCode')}: {message}"
            if terminated.get("exitCode"):
                return f"the probe ended with code {terminated['exitCode']}"
        return self._why_not_started(key)

    def _why_not_started(self, key: str) -> str | None:
        for state in self._states(key):
            reason = (state.get("waiting") or {}).get("reason")
            if reason in _CANNOT_PULL:
                return "it cannot be pulled: check the reference, the registry and the pull secrets"
            if reason in _CANNOT_START:
                return "its container cannot be started: see the probe's pod"
        return None

    def _states(self, key: str) -> list[Mapping[str, Any]]:
        """Return the states of the probe's containers, the newest pod first.

        Only pods of the operator's namespace: a tenant may label a pod as it likes.
        """
        pods = [
            pod
            for pod in self._cache.all(PODS)
            if pod["metadata"]["namespace"] == self._config.namespace
            and (pod["metadata"].get("labels") or {}).get(IMAGE) == key
        ]
        pods.sort(key=lambda pod: str(pod["metadata"].get("creationTimestamp")), reverse=True)
        return [
            status.get("state") or {}
            for pod in pods
            for status in pod["status"].get("containerStatuses") or ()
        ]


def _read_facts(message: str) -> ImageFacts | None:
    try:
        return ImageFacts.model_validate_json(message)
    except ValidationError:
        return None


def _read_entry(text: str, image: str) -> ImageFacts | None:
    """Read one value of the ConfigMap; None, so that the image is asked again, when it is no use."""
    try:
        entry = json.loads(text)
        return ImageFacts.model_validate(entry["facts"]) if entry["image"] == image else None
    except (ValueError, TypeError, KeyError):
        return None


def _finished_at(job: Mapping[str, Any], now: datetime) -> datetime:
    text = (finished(job) or {}).get("lastTransitionTime")
    return datetime.fromisoformat(text) if text else now


def _job_failure(job: Mapping[str, Any]) -> str | None:
    condition = finished(job) or {}
    message: str | None = condition.get("message") if condition.get("type") == "Failed" else None
    return message
