"""Which pods are polled for measurements, and which responses are kept."""

import json
from typing import Any, Final

import pytest
from enginewright.controller.cache import ObjectCache
from enginewright.controller.measured import MeasurementPolls
from enginewright.controller.observe import DEPLOYMENT, POD
from enginewright.kube.pod_http import BadAnswer, NoAnswer, PodAddress
from enginewright.kube.resources import DEPLOYMENTS, INFERENCE_MODELS, PODS
from enginewright.manifests.labels import CANARY, MODEL, REVISION, TRACK
from enginewright_contract.measurements import Measurements

from tests.support.fake_kube import FakeKube, at_once
from tests.support.plan_objects import make_object

MEASURED: Final = Measurements(model="m", revision="r1", since=1.0)


class Pods:
    """Two models, of which `m` has a canary, and what their sidecars answer."""

    def __init__(self, **canary: Any) -> None:
        self.kube, self.cache = FakeKube(), ObjectCache()
        self.asked: list[str] = []
        self.answer: bytes | Exception = MEASURED.to_json().encode()
        self.polls = MeasurementPolls(self.cache, self)
        spec = {"rollout": {"canary": canary}}
        self._have(INFERENCE_MODELS, make_object("InferenceModel", "m", "ns", spec=spec))
        labels = {MODEL: "m", TRACK: CANARY}
        self._have(DEPLOYMENTS, make_object("Deployment", "m-canary", "ns", labels=labels, spec={}))
        for model in ("m", "other"):
            labels = {MODEL: model, REVISION: "r1"}
            self._have(PODS, make_object("Pod", f"{model}-1", "ns", labels=labels))
        self.compare()

    def _have(self, resource: Any, obj: Any) -> None:
        self.cache.observe(resource, self.kube.put(obj))

    def compare(self) -> None:
        deployments = self.cache.views(DEPLOYMENT, self.cache.all(DEPLOYMENTS))
        self.polls.compare(deployments, self.views())

    def views(self) -> Any:
        return self.cache.views(POD, self.cache.all(PODS))

    def poll(self) -> dict[str, Measurements | None]:
        for view in self.views():
            if self.polls.concerns(view):
                at_once(self.polls.poll(PodAddress("ns", view.name, "192.0.2.1", 8081), view))
        return self.polls.get_measurements(self.views())

    async def get(self, pod: PodAddress, path: str, query: str = "") -> bytes:
        self.asked.append(f"{pod.name}{path}?{query}")
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def close(self) -> None: ...


@pytest.mark.parametrize(
    ("canary", "query"), [({}, "probe=1"), ({"probeTraffic": False}, "")], ids=["usual", "none"]
)
def test_only_pods_of_models_with_a_canary_are_polled(canary: dict[str, Any], query: str) -> None:
    pods = Pods(**canary)
    assert pods.poll() == {"m-1": MEASURED}
    assert pods.asked == [f"m-1/measurements?{query}"]


def test_silent_pod_keeps_its_measurements() -> None:
    pods = Pods()
    pods.poll()
    pods.answer = NoAnswer("connection refused")
    assert pods.poll() == {"m-1": MEASURED}


def test_measurements_that_have_not_changed_stay_the_same_object() -> None:
    """So that they are not compared again."""
    pods = Pods()
    first = pods.poll()["m-1"]
    assert pods.poll()["m-1"] is first
    pods.answer = MEASURED.model_copy(update={"golden_ok": 1}).to_json().encode()
    assert pods.poll()["m-1"] is not first


NOT_FOUND: Final = BadAnswer("the status is 404 instead of 200", 404)


def test_a_sidecar_of_a_version_that_measures_nothing_is_known_as_such() -> None:
    pods = Pods()
    pods.answer = NOT_FOUND
    assert pods.poll() == {"m-1": None}


@pytest.mark.parametrize("answer", [NOT_FOUND, BadAnswer("429", 429), b"{}", b"no json"])
def test_no_other_response_takes_the_measurements_away(answer: bytes | Exception) -> None:
    """Else one of them would end the comparison, and promote."""
    pods = Pods()
    pods.poll()
    pods.answer = answer
    assert pods.poll() == {"m-1": MEASURED}


OF_ANOTHER_REVISION: Final = MEASURED.model_copy(update={"revision": "r0"}).to_json().encode()


@pytest.mark.parametrize("answer", [BadAnswer("longer than the limit"), b"{}", OF_ANOTHER_REVISION])
def test_unreadable_measurements_are_unknown(answer: bytes | Exception) -> None:
    pods = Pods()
    pods.answer = answer
    assert pods.poll() == {}


@pytest.mark.parametrize(
    "changes",
    [{"responses": {"200": -1}}, {"responses": {"200": 10**400}}, {"responses": {"x" * 9999: 1}}],
)
def test_unknown_figures_are_one_bounded_message(
    changes: Any, caplog: pytest.LogCaptureFixture
) -> None:
    pods = Pods()
    pods.answer = json.dumps({"model": "m", "revision": "r1", "since": 1.0, **changes}).encode()
    for _ in range(3):
        assert pods.poll() == {}
    (record,) = caplog.records
    assert "responses" in record.getMessage()
    assert len(record.getMessage()) < 500


def test_without_its_canary_a_model_is_forgotten() -> None:
    pods = Pods()
    pods.poll()
    (deployment,) = pods.kube.all("Deployment")
    pods.cache.observe(DEPLOYMENTS, deployment, deleted=True)
    pods.compare()
    assert pods.poll() == {}
