"""The real HorizontalPodAutoscaler and the real metrics-server, on a model of two AcceleratorClasses.

The load is memory, allocated for as long as a test needs it: as with requests, the total is constant however
many pods share it, and it does not depend on the speed of the machine.
"""

import itertools
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import pytest
import yaml
from driver.controlplane import AUTOSCALER_SYNC_SECONDS
from kubernetes.utils.quantity import parse_quantity

from tests.e2e.harness import REPOSITORY, Namespace, eventually, inference_model
from tests.support.plan_objects import make_object

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

NAME: Final = "scaled"
CONTAINER: Final = "server"
CLASSES: Final = {"cpu": "node-1", "cpu-2": "node-2"}
HOSTNAME: Final = "kubernetes.io/hostname"
LOAD_FOLDER: Final = "/load"
LOADED: Final[dict[str, Any]] = {  # podTemplate of a model to be put under load
    "volumes": [{"name": "load", "emptyDir": {"medium": "Memory"}}],
    "volumeMounts": [{"name": "load", "mountPath": LOAD_FOLDER}],
}
FIRST_LOAD: Final = 160 * 2**20  # bytes in each pod: about as many as a server uses
FOLLOWED: Final = "followed"


class Counts(NamedTuple):
    """The number of pods, as reported by each counter."""

    requested: int
    observed: int
    autoscaler_current: int | None
    autoscaler_desired: int | None
    column: str
    pods: tuple[int, ...]


def counts(total: int, first: int, second: int) -> Counts:
    """Return the counts for `total` replicas of the autoscaler and these numbers per class."""
    column = f"cpu {first}/{first}, cpu-2 {second}/{second}"
    return Counts(total, total, total, total, column, (first, second))


@dataclass(frozen=True)
class Scaled:
    """A model and its autoscaler, as shown by kubectl."""

    namespace: Namespace
    model: str = NAME
    autoscaler_name: str = NAME

    @property
    def selector(self) -> str:
        return f"enginewright.dev/model={self.model},enginewright.dev/component=serve"

    def pods(self, accelerator_class: str = "") -> list[str]:
        """Return the names of pods that are not being deleted."""
        of_class = f",enginewright.dev/class={accelerator_class}" if accelerator_class else ""
        return sorted(
            pod["metadata"]["name"]
            for pod in self.namespace.items("pods", self.selector + of_class)
            if not pod["metadata"].get("deletionTimestamp")
        )

    def put(self, load: int, pods: list[str]) -> None:
        """Allocate that many more bytes in each pod."""
        for pod in pods:
            write = f"head -c {load} /dev/zero > $(mktemp -p {LOAD_FOLDER})"
            self._execute(pod, write)

    def clear(self, pods: list[str]) -> None:
        """Free the allocated bytes."""
        for pod in pods:
            self._execute(pod, f"rm -f {LOAD_FOLDER}/*")

    def _execute(self, pod: str, command: str) -> None:
        self.namespace.kubectl("exec", pod, "--container", CONTAINER, "--", "sh", "-c", command)

    def memory(self) -> int:
        """Return the servers' average memory from metrics-server, once all samples are new."""
        since = datetime.now(UTC)
        path = f"/apis/metrics.k8s.io/v1beta1/namespaces/{self.namespace.name}/pods"
        query = self.selector.replace("=", "%3D").replace(",", "%2C")

        def samples() -> list[int]:
            raw = self.namespace.kubectl("get", "--raw", f"{path}?labelSelector={query}")
            used = {
                pod["metadata"]["name"]: int(parse_quantity(container["usage"]["memory"]))
                for pod in json.loads(raw)["items"]
                for container in pod["containers"]
                if container["name"] == CONTAINER
                and datetime.fromisoformat(pod["timestamp"]) > since
            }
            pods = self.pods()
            return [used[item] for item in pods] if used.keys() >= set(pods) else []

        usages = eventually(samples, 60, "metrics of all servers")
        return sum(usages) // len(usages)

    def autoscaler(self) -> dict[str, Any]:
        """Return the autoscaler's status."""
        return dict(self.namespace.get("hpa", self.autoscaler_name).get("status", {}))

    def target(self) -> int:
        """Return the autoscaler's target for a pod."""
        (metric,) = self.namespace.get("hpa", self.autoscaler_name)["spec"]["metrics"]
        return int(parse_quantity(metric["containerResource"]["target"]["averageValue"]))

    def decisions(self) -> list[int]:
        """Return every count that the autoscaler has requested, in order."""
        fields = f"involvedObject.name={self.autoscaler_name},reason=SuccessfulRescale"
        events = self.namespace.items("events", fields=fields)
        events.sort(key=lambda event: str(event["firstTimestamp"]))
        sizes = [
            re.findall(r"New size: (\d+);", event["message"]) * event["count"] for event in events
        ]
        return [int(size) for size in itertools.chain(*sizes)]

    def reaches(self, expected: Counts) -> None:
        """Wait until all counters have these values."""
        try:
            eventually(lambda: self.counts() == expected, 120, str(expected))
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.counts()}\n{self.describe()}") from None

    def stays(self, expected: Counts) -> None:
        """Assert that the autoscaler, with all metrics, keeps the count over several syncs."""
        time.sleep(3 * AUTOSCALER_SYNC_SECONDS)
        assert self.counts() == expected, self.describe()

    def describe(self) -> str:
        return self.namespace.kubectl("describe", "hpa", self.autoscaler_name)

    def counts(self) -> Counts:
        model, autoscaler = self.namespace.get("im", self.model), self.autoscaler()
        return Counts(
            model["spec"]["replicas"],
            model["status"]["replicas"],
            autoscaler.get("currentReplicas"),
            autoscaler.get("desiredReplicas"),
            model["status"]["summary"]["classes"],
            tuple(len(self.pods(device_class)) for device_class in CLASSES),
        )


@pytest.fixture(scope="module")
def two_classes(namespace: Namespace) -> Iterator[Namespace]:
    """Two classes with one node each, instead of one class of all nodes."""

    def narrow(selector: dict[str, str]) -> None:
        change = [{"op": "replace", "path": "/spec/nodeSelector", "value": selector}]
        patch = ("--type=json", "--patch", json.dumps(change))
        namespace.kubectl("patch", "acceleratorclass", first, *patch)

    first, second = CLASSES
    before = namespace.get("acceleratorclass", first)
    narrow({HOSTNAME: CLASSES[first]})
    spec = {**before["spec"], "nodeSelector": {HOSTNAME: CLASSES[second]}}
    namespace.apply(make_object("AcceleratorClass", second, spec=spec))
    yield namespace
    namespace.kubectl("delete", "im", NAME, "--ignore-not-found")
    namespace.kubectl("delete", "acceleratorclass", second)
    narrow(before["spec"]["nodeSelector"])


@pytest.fixture(scope="module")
def scaled(two_classes: Namespace) -> Iterator[Scaled]:
    """A model with a pod on each class, both under load, and an autoscaler that keeps two."""
    model = inference_model(NAME, "magika.onnx", backends=["cpu"], replicas=2)
    model["spec"]["accelerators"] = [{"class": device_class} for device_class in CLASSES]
    model["spec"]["podTemplate"] = LOADED
    two_classes.apply(model)
    two_classes.wait_ready(NAME)
    scaled = Scaled(two_classes)
    scaled.put(FIRST_LOAD, scaled.pods())
    # two pods have 1.4 times the target of one
    two_classes.apply(autoscaler(scaled.memory() * 7 // 5))
    yield scaled
    two_classes.kubectl("delete", "hpa", NAME)


def autoscaler(target: int) -> dict[str, Any]:
    """Return the documentation's autoscaler for the model, by memory: so many bytes in a pod."""
    text = (REPOSITORY / "docs/resource.md").read_text()
    blocks = [yaml.safe_load(part.partition("```")[0]) for part in text.split("```yaml\n")[1:]]
    (example,) = [block for block in blocks if block["kind"] == "HorizontalPodAutoscaler"]
    example["metadata"]["name"] = example["spec"]["scaleTargetRef"]["name"] = NAME
    (metric,) = example["spec"]["metrics"]
    metric["containerResource"] |= {
        "name": "memory",
        "target": {"type": "AverageValue", "averageValue": str(target)},
    }
    example["spec"] |= {
        "minReplicas": 1,
        "maxReplicas": 12,
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
    }
    return dict(example)


def test_it_stays_where_the_metric_is_met(scaled: Scaled) -> None:
    scaled.reaches(counts(2, 1, 1))
    scaled.stays(counts(2, 1, 1))
    conditions = {item["type"]: item for item in scaled.autoscaler()["conditions"]}
    assert conditions["ScalingActive"]["status"] == "True"
    assert conditions["ScalingActive"]["reason"] == "ValidMetricFound"
    assert conditions["ScalingLimited"]["status"] == "False", "it is the metric that says 2"
    assert scaled.decisions() == []


# event: Classes | an autoscaler scales a model of several classes | each class its share of the
#   total | `status.replicas`
def test_more_load_is_shared_by_more_pods_of_both_classes(scaled: Scaled) -> None:
    # then the total is 3.3 times the target, and about 4 with the memory of two more servers
    scaled.put(scaled.target() * 20 // 21, scaled.pods())
    scaled.reaches(counts(4, 2, 2))
    assert scaled.memory() < scaled.target() * 1.1, "more would need a fifth pod"
    scaled.stays(counts(4, 2, 2))
    # metrics of one pod may arrive before the other's, hence perhaps a first step of one; never above four
    assert scaled.decisions() in ([4], [3, 4])


# event: Classes | an autoscaler scales a model of several classes
def test_the_autoscaler_does_not_count_a_class_with_replicas(scaled: Scaled) -> None:
    """Its pods keep their load: counted, they would keep the autoscaler at three."""
    first, second = CLASSES
    accelerators = [{"class": first}, {"class": second, "replicas": 2}]
    spec = {"replicas": 2, "accelerators": accelerators}
    scaled.namespace.patch("im", NAME, {"spec": spec})
    scaled.clear(scaled.pods(first))
    scaled.reaches(counts(1, 1, 2))
    scaled.stays(counts(1, 1, 2))
    assert scaled.decisions()[-2:] == [4, 1]


@pytest.fixture
def followed(two_classes: Namespace) -> Iterator[Scaled]:
    """A model of one class and one pod, under load."""
    spec: dict[str, Any] = {"podTemplate": LOADED, "rollout": {"canary": {"replicas": 0}}}
    two_classes.apply(inference_model(FOLLOWED, "magika.onnx", backends=["cpu"], **spec))
    two_classes.wait_ready(FOLLOWED)
    followed = Scaled(two_classes, FOLLOWED, f"{FOLLOWED}-cpu")
    followed.put(FIRST_LOAD, followed.pods())
    yield followed
    two_classes.kubectl("delete", "im", FOLLOWED)


# event: Classes | `serving.autoscaling` is set
def test_the_autoscaler_of_a_class_scales_it_and_no_rollout_sets_it_back(followed: Scaled) -> None:
    namespace = followed.namespace

    def edit(**spec: Any) -> None:
        namespace.patch("im", FOLLOWED, {"spec": spec})

    def deployment() -> dict[str, Any]:
        return namespace.get("deployment", followed.autoscaler_name)

    def is_available(count: int) -> bool:
        status = deployment()["status"]
        return bool(status.get("availableReplicas") == status.get("replicas") == count)

    # one pod has 1.25 times the target, hence two; both have less than twice the target
    target = {"type": "AverageValue", "averageValue": str(followed.memory() * 4 // 5)}
    memory = {"name": "memory", "container": CONTAINER, "target": target}
    metrics = [{"type": "ContainerResource", "containerResource": memory}]
    edit(serving={"autoscaling": {"maxReplicas": 2, "metrics": metrics}})
    eventually(lambda: deployment()["spec"]["replicas"] == 2, 120, "a second pod")
    eventually(lambda: is_available(2), 120, "the second pod")
    assert followed.decisions() == [2]

    revision = namespace.get("im", FOLLOWED)["status"]["revision"]

    def has_rolled_out() -> bool:
        assert deployment()["spec"]["replicas"] == 2
        return bool(namespace.get("im", FOLLOWED)["status"]["serving"]["revision"] != revision)

    edit(podTemplate={**LOADED, "labels": {"team": "a"}})
    eventually(has_rolled_out, 240, "another revision")
    namespace.wait_ready(FOLLOWED)
    assert deployment()["spec"]["replicas"] == 2

    edit(serving=None)
    eventually(lambda: deployment()["spec"]["replicas"] == 1, 60, "the spec's count")
    assert namespace.items("hpa", f"enginewright.dev/model={FOLLOWED}") == []
