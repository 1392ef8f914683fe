"""Updates under load: good ones are promoted without a failed request, bad ones are rolled back."""

import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Self

import pytest

from hack.samples.load import WIDTH
from tests.e2e import load
from tests.e2e.devices import SHAPES, holder
from tests.e2e.harness import GPUS, Namespace, cases, eventually, inference_model
from tests.e2e.test_faults import replace_operator

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

HOLD: Final = 10  # seconds
CANARY: Final = {"replicas": 1, "hold": f"{HOLD}s", "minSamples": 50}
ALLOW: Final = {"policy": "Allow"}


def body(*shape: int) -> dict[str, Any]:
    """Return a request with an input of this shape."""
    x = {"name": "x", "shape": shape, "datatype": "FP32", "data": [0.5] * math.prod(shape)}
    return {"inputs": [x]}


X: Final = body(1, WIDTH)
FOUR: Final = body(1, 4)
IMAGE: Final = body(1, 3, 32, 32)


def model(name: str, file: str, *, replicas: int = 2, **spec: Any) -> dict[str, Any]:
    rollout = {"canary": CANARY, **spec.pop("rollout", {})}
    backends = spec.pop("backends", ["cpu"])
    return inference_model(
        name, file, replicas=replicas, backends=backends, rollout=rollout, **spec
    )


def with_library(name: str, folder: Path, defect: str, hold: int) -> dict[str, Any]:
    """Return a model with a custom operator that is right at first."""
    rollout = {"canary": {**CANARY, "hold": f"{hold}s"}}
    (library,) = (folder / defect).glob("*.so")
    extension = {"uri": f"pvc://models/{defect}/{library.name}", "sha256": library.stem}
    extensions = [{**extension, "type": "CustomOperators"}]
    limits = {"resources": {"requests": {"cpu": "250m"}, "limits": {"memory": "1Gi"}}}
    return model(name, "cube.onnx", extensions=extensions, rollout=rollout, podTemplate=limits)


def revision(namespace: Namespace, name: str) -> str:
    """Return the active revision."""
    return str(namespace.get("inferencemodel", name)["status"]["active"]["revision"])


def whole(namespace: Namespace, name: str, active: str, replicas: int = 2) -> bool:
    """Return whether all serving pods are of a revision, and no others are left."""
    pods = [
        pod
        for pod in namespace.items("pods", f"enginewright.dev/model={name}")
        if pod["metadata"]["labels"]["enginewright.dev/component"] in ("serve", "canary")
        and "deletionTimestamp" not in pod["metadata"]
    ]
    ready = [
        pod
        for pod in pods
        if any(
            (item["type"], item["status"]) == ("Ready", "True")
            for item in pod["status"].get("conditions", ())
        )
    ]
    revisions = {pod["metadata"]["labels"]["enginewright.dev/revision"] for pod in pods}
    return revisions == {active} and len(ready) == len(pods) == replicas


class Update:
    """An update of a model that serves, under requests, until the block ends."""

    def __init__(
        self,
        namespace: Namespace,
        before: dict[str, Any],
        after: dict[str, Any],
        body: dict[str, Any] | None,
    ) -> None:
        """Apply a model, wait until it serves, start clients if there is a body, and update it."""
        self.namespace, self.name = namespace, str(before["metadata"]["name"])
        self.replicas: int = before["spec"]["replicas"]
        namespace.apply(before)
        namespace.wait_ready(self.name)
        self.old = revision(namespace, self.name)
        self.clients = load.start(namespace, self.name, body) if body else None
        self.began = time.monotonic()
        namespace.apply(after)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the clients, and delete the model."""
        if self.clients:
            self.clients.stop()
        self.namespace.kubectl("delete", "im", self.name)

    def seconds(self) -> float:
        """Return the seconds since the update was applied."""
        return time.monotonic() - self.began

    def status(self) -> dict[str, Any]:
        return dict(self.namespace.get("inferencemodel", self.name).get("status", {}))

    def phase(self) -> str:
        return str((self.status().get("target") or {}).get("phase", ""))

    def has_replaced(self) -> bool:
        """Return whether another revision has been promoted."""
        return revision(self.namespace, self.name) != self.old

    def wait_promoted(self, seconds: float = 300) -> None:
        """Wait until another revision has been promoted."""
        eventually(self.has_replaced, seconds, "the promotion")

    def has_old(self) -> bool:
        """Return whether the pods of the old revision serve, and no others are left."""
        return whole(self.namespace, self.name, self.old, self.replicas)

    def wait_whole(self) -> None:
        """Wait until the pods of the new revision are ready, and no others are left."""
        new = revision(self.namespace, self.name)

        def is_whole() -> bool:
            return whole(self.namespace, self.name, new, self.replicas)

        eventually(is_whole, 60, f"only revision {new}")

    def wait_rolled_back(self, reason: str, seconds: float = 240) -> str:
        """Wait until the update is rejected for a reason and the old revision is whole; return the time."""
        self.namespace.wait_condition(self.name, "RolledBack", "True", reason, seconds)
        eventually(self.has_old, 90, f"revision {self.old} whole")
        took = self.seconds()
        status = self.status()
        assert status["lastFailure"]["reason"] == reason
        assert status["active"]["revision"] == self.old
        return f"from apply to RolledBack and whole {took:.1f} s"

    def events(self) -> str:
        chosen = f"involvedObject.name={self.name}"
        return self.namespace.kubectl("get", "events", "--field-selector", chosen)

    def counts(self) -> load.Counts:
        assert self.clients
        return self.clients.counts()

    def check_requests(self) -> str:
        """Assert that requests were sent all the time and none failed; return the counts."""
        took, counts = self.seconds(), self.counts()
        assert counts.failed == 0, counts.failures
        assert counts.sent > load.LEAST * took
        return f"{counts.sent} requests, 0 failed, the slowest took {counts.slowest:.2f} s"


def good(namespace: Namespace, name: str, **spec: Any) -> str:
    before, after = (model(name, file, **spec) for file in ("linear-1.onnx", "linear-2.onnx"))
    with Update(namespace, before, after, X) as update:
        seen: set[str] = set()

        def has_replaced() -> bool:
            seen.add(update.phase())
            return update.has_replaced()

        eventually(has_replaced, 300, "the promotion")
        namespace.wait_ready(name)
        took = update.seconds()
        assert seen >= {"Verifying", "Analyzing", "Promoting"}
        assert took > HOLD
        update.wait_whole()
        return f"promoted after {took:.1f} s; {update.check_requests()}"


def slow(namespace: Namespace) -> str:
    before, after = model("slow", "linear-1.onnx"), model("slow", "linear-slow.onnx")
    with Update(namespace, before, after, X) as update:
        took = update.wait_rolled_back("SlowerThanStable")
        counts = update.check_requests()
        eventually(lambda: "SlowerThanStable" in update.events(), 60, "the Event")
        return f"{took}; {counts}"


def right_at_first(namespace: Namespace, folder: Path, defect: str, reason: str, hold: int) -> str:
    before = with_library(defect, folder, "sound", hold)
    after = with_library(defect, folder, defect, hold)
    with Update(namespace, before, after, FOUR) as update:
        took, counts = update.wait_rolled_back(reason, 400), update.counts()
        if defect != "crashes":  # which loses the requests in flight
            update.check_requests()
        return f"{took}; {counts.sent} requests, {counts.failed} failed"


def fails_after_promotion(namespace: Namespace, folder: Path) -> str:
    """A pod of the old revision is verified before it gets requests again."""
    before = with_library("later", folder, "sound", 5)
    after = with_library("later", folder, "drifts-later", 5)
    with Update(namespace, before, after, FOUR) as update:
        update.wait_promoted()
        update.wait_rolled_back("ParityFailed", 400)
        assert update.status()["lastFailure"]["stage"] == "serving"
        then = update.counts()
        eventually(lambda: update.counts().sent > then.sent + 300, 60, "further requests")
        assert update.counts().failed == then.failed, "it serves again"
        return f"{then.sent} requests, {then.failed} failed"


def rename_input(namespace: Namespace) -> str:
    before, after = model("renamed", "linear-1.onnx"), model("renamed", "linear-renamed.onnx")
    with Update(namespace, before, after, X) as update:
        stalled = namespace.wait_condition("renamed", "Stalled", "True", "SignatureChanged", 180)
        assert "pixels" in stalled["message"]
        assert update.has_old()
        return update.check_requests()


def idle(namespace: Namespace) -> str:
    """Golden inferences decide, as there are no requests."""
    before = model("idle", "linear-1.onnx", replicas=1)
    after = model("idle", "linear-2.onnx", replicas=1)
    with Update(namespace, before, after, None) as update:
        update.wait_promoted()
        namespace.wait_ready("idle")
        return f"promoted after {update.seconds():.1f} s"


def falls_back(
    namespace: Namespace, name: str, file: str, on: str, backend: str, named: str
) -> str:
    """The active revision falls back, which is allowed; the update, of the same model, forbids it."""
    takes_image = file == "partly-supported.onnx"
    shapes = SHAPES if takes_image else []
    fixed: dict[str, Any] = {"on": on, "backends": [backend], "shapes": shapes, "replicas": 1}
    before, after = model(name, file, fallback=ALLOW, **fixed), model(name, file, **fixed)
    with Update(namespace, before, after, IMAGE if takes_image else X) as update:
        eventually(lambda: "lastFailure" in update.status(), 180, "the rejection")
        reason = str(update.status()["lastFailure"]["reason"])
        assert reason in ("NodeFallback", "ProviderMissing", "DriverMissing")
        took = update.wait_rolled_back(reason)
        message = namespace.condition(name, "RolledBack")["message"]
        assert named in message, "it names the nodes, or the missing library"
        # Events follow the status
        eventually(lambda: reason in update.events(), 60, "the Event")
        return f"{reason}; {took}; {update.check_requests()}"


# the longest first; functions of the namespace and the folder of the models
UPDATES: Final[dict[str, Callable[[Namespace, Path], str]]] = {
    "leaks": lambda namespace, folder: right_at_first(
        namespace, folder, "leaks", "MemoryGrowth", 60
    ),
    "fails after its promotion": fails_after_promotion,
    "crashes": lambda namespace, folder: right_at_first(
        namespace, folder, "crashes", "BackendCrashed", 30
    ),
    "is good and may fall back": lambda namespace, _: good(
        namespace, "may-fall-back", on="l4", backends=["cuda"], fallback=ALLOW, replicas=1
    ),
    "drifts": lambda namespace, folder: right_at_first(
        namespace, folder, "drifts", "ParityFailed", 30
    ),
    "is good, Surge": lambda namespace, _: good(namespace, "surge"),
    "is good, InPlace": lambda namespace, _: good(
        namespace, "in-place", rollout={"strategy": "InPlace"}
    ),
    "is slow": lambda namespace, _: slow(namespace),
    "falls back whole": lambda namespace, _: falls_back(
        namespace, "no-cuda", "linear-1.onnx", "l4", "cuda", "lib"
    ),
    "falls back in part": lambda namespace, _: falls_back(
        namespace, "partly-back", "partly-supported.onnx", "cpu", "openvino", "Det"
    ),
    "is idle": lambda namespace, _: idle(namespace),
    "renames an input": lambda namespace, _: rename_input(namespace),
}


@pytest.fixture(scope="module")
def results(
    request: pytest.FixtureRequest, l4: Namespace, model_files: Path
) -> Iterator[dict[str, Future[str]]]:
    """The selected updates, three at a time, as each one mostly waits."""
    selected = [
        str(case.callspec.params["update"])
        for case in cases(request, "test_an_update_under_requests")
    ]
    with ThreadPoolExecutor(3) as pool:
        yield {name: pool.submit(UPDATES[name], l4, model_files) for name in selected}


@pytest.mark.parametrize("update", UPDATES)
def test_an_update_under_requests(results: dict[str, Future[str]], update: str) -> None:
    print(f"an update that {update}: {results[update].result()}")


@pytest.fixture
def one_device(l4: Namespace) -> Iterator[Namespace]:
    """All devices but one are in use."""
    l4.apply(holder(GPUS - 1))
    l4.kubectl("wait", "--for=condition=Ready", "pod/devices", "--timeout=120s")
    yield l4
    l4.kubectl("delete", "pod", "devices", "--grace-period=1")


def test_with_one_device_every_strategy_goes_through_or_says_what_is_missing(
    one_device: Namespace,
) -> None:
    name = "single"

    def apply(file: str, strategy: str) -> None:
        fixed: dict[str, Any] = {"on": "l4", "backends": ["cuda"], "fallback": ALLOW}
        one_device.apply(model(name, file, replicas=1, rollout={"strategy": strategy}, **fixed))

    apply("linear-1.onnx", "Surge")
    one_device.wait_ready(name)
    first = revision(one_device, name)
    apply("linear-2.onnx", "Surge")
    ready = one_device.wait_condition(name, "Ready", "False", "CapacityBlocked", 120)
    assert "nvidia.com/gpu" in ready["message"]
    assert one_device.condition(name, "Available")["status"] == "True"
    assert revision(one_device, name) == first, "it serves, and the canary waits"
    apply("linear-2.onnx", "InPlace")
    eventually(lambda: revision(one_device, name) != first, 120, "InPlace")
    one_device.wait_ready(name)
    second = revision(one_device, name)
    apply("linear-1.onnx", "Recreate")
    eventually(lambda: revision(one_device, name) != second, 120, "Recreate")
    one_device.wait_ready(name)
    one_device.kubectl("delete", "im", name)


def test_the_operator_is_killed_three_times_during_a_rollout(
    l4: Namespace, installed: Namespace
) -> None:
    before, after = model("killed", "linear-1.onnx"), model("killed", "linear-2.onnx")
    with Update(l4, before, after, X) as update:
        for phase in ("Verifying", "Analyzing", "Promoting"):

            def has_reached(phase: str = phase) -> bool:
                return update.phase() == phase or update.has_replaced()

            eventually(has_reached, 240, phase, interval=0.1)
            replace_operator(installed)
        update.wait_promoted(240)
        l4.wait_ready("killed")
        update.check_requests()
        update.wait_whole()
