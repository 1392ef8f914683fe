"""What the pods of both revisions of a rollout measure: polled only during a rollout, and kept by the sidecars."""

import logging
from collections.abc import Iterable
from typing import Final

from enginewright_contract.base import TEXT_LENGTH, first_problem
from enginewright_contract.measurements import PROBE_QUERY, Measurements
from pydantic import ValidationError

from enginewright.controller.cache import ObjectCache
from enginewright.controller.routing import ModelKey
from enginewright.kube.pod_http import BadAnswer, NoAnswer, PodAddress, PodHttp
from enginewright.kube.resources import INFERENCE_MODELS
from enginewright.manifests.labels import MODEL, REVISION, model_value
from enginewright.observed.deployments import DeploymentView
from enginewright.observed.pods import PodView

PATH: Final = "/measurements"
_NOT_FOUND: Final = 404  # the sidecar's version has no such path

_logger = logging.getLogger(__name__)


class MeasurementPolls:
    """The last measurements of each pod whose model has a canary."""

    def __init__(self, cache: ObjectCache, http: PodHttp) -> None:
        self._cache = cache
        self._http = http
        self._compared: frozenset[ModelKey] = frozenset()  # models that have a canary
        self._measurements: dict[
            str, Measurements | None
        ] = {}  # by uid; None if its sidecar has none
        self._logged: set[str] = set()  # pods whose invalid response was logged

    def compare(self, deployments: Iterable[DeploymentView], pods: Iterable[PodView]) -> None:
        """Find the models that have a canary, and forget pods of others."""
        self._compared = frozenset(
            model_key(deployment) for deployment in deployments if deployment.is_canary
        )
        compared = {pod.uid for pod in pods if model_key(pod) in self._compared}
        for uid in self._measurements.keys() - compared:
            del self._measurements[uid]
        self._logged &= compared

    def concerns(self, pod: PodView) -> bool:
        """Return whether the pod's model has a canary."""
        return model_key(pod) in self._compared

    def get_measurements(self, pods: Iterable[PodView]) -> dict[str, Measurements | None]:
        """Return the measurements of those of `pods` that were polled, by name; None if its sidecar has none."""
        return {
            pod.name: self._measurements[pod.uid] for pod in pods if pod.uid in self._measurements
        }

    async def poll(self, address: PodAddress, pod: PodView) -> None:
        """Get the measurements of a pod; the last ones stay if it does not respond."""
        query = f"{PROBE_QUERY}=1" if self._wants_probes(pod) else ""
        try:
            body = await self._http.get(address, PATH, query)
            measurements = Measurements.model_validate_json(body)
        except NoAnswer:
            return
        except (BadAnswer, ValidationError) as error:
            if isinstance(error, BadAnswer) and error.status == _NOT_FOUND:
                # unless it has reported before: then another pod answered
                self._measurements.setdefault(pod.uid, None)
            why = str(error) if isinstance(error, BadAnswer) else first_problem(error)[:TEXT_LENGTH]
            self._log_invalid(pod, why)
            return
        is_own = model_value(measurements.model) == pod.label(
            MODEL
        ) and measurements.revision == pod.label(REVISION)
        # equal ones stay the same object, so that they are not compared again
        if is_own and measurements != self._measurements.get(pod.uid):
            self._measurements[pod.uid] = measurements

    def _wants_probes(self, pod: PodView) -> bool:
        key = model_key(pod)
        model = self._cache.get(INFERENCE_MODELS, key.namespace, key.name) or {}
        spec = model.get("spec") or {}
        canary = (spec.get("rollout") or {}).get("canary") or {}
        return bool(canary.get("probeTraffic", True))

    def _log_invalid(self, pod: PodView, why: str) -> None:
        if pod.uid not in self._logged:
            self._logged.add(pod.uid)
            _logger.warning(
                "cannot read the measurements of pod %s/%s: %s; logged once per pod",
                pod.namespace,
                pod.name,
                why,
            )


def model_key(view: PodView | DeploymentView) -> ModelKey:
    """Return the model that an object belongs to."""
    return ModelKey(view.namespace, view.label(MODEL))
