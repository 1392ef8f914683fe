"""A new runtime image under requests: models move one by one, and a model that it cannot run keeps its image.

The image is OpenVINO's, whose ONNX Runtime lacks the newest opset: it serves the backend cpu too.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, Self

import pytest

from hack.samples.load import WIDTH
from tests.e2e import harness, load
from tests.e2e.devices import serving_pods
from tests.e2e.harness import Namespace, eventually, image, inference_model

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

NAMES: Final = [f"m{number:02}" for number in range(8)]
REFUSING: Final = "m03"  # needs opset 26
LIMIT: Final = 2  # models at once, the chart's default
CANARY: Final = {"replicas": 1, "hold": "5s", "minSamples": 50}
BODY: Final[dict[str, Any]] = {
    "inputs": [{"name": "x", "shape": [1, WIDTH], "datatype": "FP32", "data": [0.5] * WIDTH}]
}


def use(reference: str) -> None:
    """Install the chart with another image of the variant cpu, as a user does."""
    harness.upgrade(f"images.runtime.cpu={reference}")


class Watch:
    """Polls all models, and records how many moved at once."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.most_moving = 0
        self.most_updated = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(0.3):
            self.most_moving = max(self.most_moving, states(self._namespace)["Moving"])
            self.most_updated = max(self.most_updated, count_updating(self._namespace))


def states(namespace: Namespace) -> Counter[str]:
    """Return how many models are in each state of a move."""
    images = (entry.get("status", {}).get("images", {}) for entry in namespace.items("im"))
    return Counter(str(item.get("state", "")) for item in images)


def count_updating(namespace: Namespace) -> int:
    """Return how many models have a canary, or pods that are not ready."""
    return len(
        {
            entry["metadata"]["labels"]["enginewright.dev/model"]
            for entry in namespace.items("deployments", "app.kubernetes.io/managed-by=enginewright")
            if entry["metadata"]["labels"].get("enginewright.dev/track") == "canary"
            or entry.get("status", {}).get("unavailableReplicas", 0)
        }
    )


@pytest.fixture
def fleet(namespace: Namespace) -> Iterator[Namespace]:
    """Eight models that serve with the image of the installation, which has another one at the end."""
    others = [entry["metadata"]["name"] for entry in namespace.items("im")]
    eventually(lambda: not states(namespace), 120, f"the end of {others}")
    files = {name: "opset-26.onnx" if name == REFUSING else "linear-1.onnx" for name in NAMES}
    fixed: dict[str, Any] = {"backends": ["cpu"], "rollout": {"canary": CANARY}}
    namespace.apply(*(inference_model(name, file, **fixed) for name, file in files.items()))
    for name in NAMES:
        namespace.wait_ready(name)
    yield namespace
    namespace.kubectl("delete", "im", *NAMES)
    use(image("cpu"))


# event: Operator | a new version whose runtime image lacks an operator of one of eight models | none;
#   seven move, two at a time, one [keeps its image](../fleet.md) | `kubectl get im -o wide`
def test_eight_models_move_to_an_image_that_cannot_run_one_of_them(fleet: Namespace) -> None:
    old, new = image("cpu"), image("openvino")
    running = load.start(fleet, NAMES[0], BODY, *NAMES[1:])
    began = time.monotonic()
    with Watch(fleet) as watch:
        use(new)
        done = {"Moved": len(NAMES) - 1, "Kept": 1}
        eventually(lambda: states(fleet) == done, 600, f"the moves; now {states(fleet)}")
        eventually(lambda: count_updating(fleet) == 0, 60, "only whole models")
    took = time.monotonic() - began
    counts = running.stop()
    assert counts.failed == 0, counts.failures
    assert counts.sent > load.LEAST * took
    assert watch.most_moving == LIMIT
    assert watch.most_updated <= LIMIT

    images = {name: serving_image(fleet, name) for name in NAMES}
    assert images.pop(REFUSING) == old
    assert set(images.values()) == {new}
    kept = fleet.get("im", REFUSING)["status"]["images"]
    assert (kept["reason"], kept["image"]) == ("OpsetUnsupported", old)
    assert "CumProd" in kept["message"]
    for name in NAMES:
        assert fleet.condition(name, "Ready")["status"] == "True", name
    print(
        f"seven models moved in {took:.0f} s, at most {watch.most_moving} at once;"
        f" {counts.sent} requests, {counts.failed} failed, the slowest took {counts.slowest:.2f} s"
    )


def serving_image(namespace: Namespace, model: str) -> str:
    """Return the image of the pods that serve a model."""
    pods = serving_pods(namespace, model)
    (reference,) = {item["image"] for pod in pods for item in pod["spec"]["containers"]}
    return str(reference)
