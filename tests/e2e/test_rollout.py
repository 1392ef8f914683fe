"""Updates under load: good ones replace what serves without a failed request, bad ones are rolled back by themselves."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from hack.samples.revisions import WIDTH
from tests.e2e import load
from tests.e2e.harness import (
    GPUS,
    REPOSITORY,
    Namespace,
    eventually,
    inference_model,
    run,
)
from tests.e2e.test_engines import SHAPES, l4
from tests.e2e.test_faults import replace_operator

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

__all__ = ["l4"]  # a fixture

HOLD: Final = 10  # seconds
CANARY: Final = {"replicas": 1, "hold": f"{HOLD}s", "minSamples": 50}
X: Final[dict[str, Any]] = {
    "inputs": [{"name": "x", "shape": [1, WIDTH], "datatype": "FP32", "data": [0.5] * WIDTH}]
}
FOUR: Final[dict[str, Any]] = {
    "inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [0.5] * 4}]
}

IMAGE: Final[dict[str, Any]] = {
    "inputs": [
        {
            "name": "x",
            "shape": [1, 3, 32, 32],
            "datatype": "FP32",
            "data": [0.5] * (3 * 32 * 32),
        }
    ]
}


def model(name: str, file: str, *, replicas: int = 2, **spec: Any) -> dict[str, Any]:
    rollout = {"canary": CANARY, **spec.pop("rollout", {})}
    backends = spec.pop("backends", ["cpu"])
    return inference_model(
        name, file, replicas=replicas, backends=backends, rollout=rollout, **spec
    )


def with_library(name: str, folder: Path, defect: str, hold: int) -> dict[str, Any]:
    """Return a model with an operator of a library that is right at first."""
    rollout = {"canary": {**CANARY, "hold": f"{hold}s"}}
    (library,) = (folder / defect).glob("*.so")
    extension = {"uri": f"pvc://models/{defect}/{library.name}", "sha256": library.stem}
    extensions = [{**extension, "type": "CustomOperators"}]
    limits = {"resources": {"requests": {"cpu": "250m"}, "limits": {"memory": "1Gi"}}}
    return model(name, "cube.onnx", extensions=extensions, rollout=rollout, podTemplate=limits)


def status(namespace: Namespace, name: str) -> dict[str, Any]:
    return dict(namespace.get("inferencemodel", name).get("status", {}))


def phase(namespace: Namespace, name: str) -> str:
    return str((status(namespace, name).get("target") or {}).get("phase", ""))


def revision(namespace: Namespace, name: str) -> str:
    """Return the revision that serves whole."""
    return str(status(namespace, name)["active"]["revision"])


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
            (each["type"], each["status"]) == ("Ready", "True")
            for each in pod["status"].get("conditions", ())
        )
    ]
    revisions = {pod["metadata"]["labels"]["enginewright.dev/revision"] for pod in pods}
    return revisions == {active} and len(ready) == len(pods) == replicas


class Scene(Namespace):
    """The namespace of all models, with clients."""

    def clients(self, name: str, body: dict[str, Any]) -> load.Load:
        """Start clients of a model: they end with `done`."""
        return load.start(self, name, body)

    def done(self, name: str, clients: load.Load | None = None) -> None:
        """Delete a model, and its clients."""
        if clients:
            clients.stop()
        self.kubectl("delete", "im", name)

    def rolled_back(
        self, name: str, old: str, reason: str, seconds: float = 240, replicas: int = 2
    ) -> None:
        """Wait until the update is rejected for a reason, and the old revision is whole."""
        self.wait_condition(name, "RolledBack", "True", reason, seconds)
        eventually(lambda: whole(self, name, old, replicas), 90, f"revision {old} whole")
        found = status(self, name)
        assert found["lastFailure"]["reason"] == reason
        assert found["active"]["revision"] == old


def no_failures(clients: load.Load, seconds: float) -> str:
    """Return the counts; at least 100 requests a second were sent, and none failed."""
    counts = clients.counts()
    assert counts.failed == 0, counts.failures
    assert counts.sent > 100 * seconds
    return (
        f"{counts.sent} requests, {counts.failed} failed, the slowest took {counts.slowest:.2f} s"
    )


def good(scene: Scene, strategy: str) -> str:
    name = f"good-{strategy.lower()}"
    rollout = {"strategy": strategy}
    scene.apply(model(name, "linear-1.onnx", rollout=rollout))
    scene.wait_ready(name)
    old = revision(scene, name)
    running = scene.clients(name, X)
    began = time.monotonic()
    scene.apply(model(name, "linear-2.onnx", rollout=rollout))
    seen: set[str] = set()

    def promoted() -> bool:
        seen.add(phase(scene, name))
        return revision(scene, name) != old

    eventually(promoted, 300, "the promotion")
    scene.wait_ready(name)
    took = time.monotonic() - began
    assert seen >= {"Verifying", "Analyzing", "Promoting"}
    assert took > HOLD
    found = no_failures(running, took)
    eventually(lambda: whole(scene, name, revision(scene, name)), 60, "only the new revision")
    scene.done(name, running)
    return f"promoted after {took:.1f} s; {found}"


def slow(scene: Scene) -> str:
    name = "slow"
    scene.apply(model(name, "linear-1.onnx"))
    scene.wait_ready(name)
    old = revision(scene, name)
    running = scene.clients(name, X)
    began = time.monotonic()
    scene.apply(model(name, "linear-slow.onnx"))
    scene.rolled_back(name, old, "SlowerThanStable")
    took = time.monotonic() - began
    found = no_failures(running, took)
    events = scene.kubectl("get", "events", "--field-selector", f"involvedObject.name={name}")
    assert "SlowerThanStable" in events
    scene.done(name, running)
    return f"from apply to RolledBack and whole {took:.1f} s; {found}"


def right_at_first(scene: Scene, folder: Path, defect: str, reason: str, hold: int) -> str:
    scene.apply(with_library(defect, folder, "sound", hold))
    scene.wait_ready(defect)
    old = revision(scene, defect)
    running = scene.clients(defect, FOUR)
    began = time.monotonic()
    scene.apply(with_library(defect, folder, defect, hold))
    scene.rolled_back(defect, old, reason, 400)
    took = time.monotonic() - began
    counts = running.counts()
    if defect != "crashes":  # requests that it was answering are lost
        no_failures(running, took)
    scene.done(defect, running)
    return (
        f"from apply to RolledBack and whole {took:.1f} s; {counts.sent} requests,"
        f" {counts.failed} failed"
    )


def fails_after_promotion(scene: Scene, folder: Path) -> str:
    """The revision before is better there, as one pod of it shows before it gets requests."""
    name = "later"
    scene.apply(with_library(name, folder, "sound", 5))
    scene.wait_ready(name)
    old = revision(scene, name)
    running = scene.clients(name, FOUR)
    scene.apply(with_library(name, folder, "drifts-later", 5))
    eventually(lambda: revision(scene, name) != old, 300, "the promotion")
    scene.rolled_back(name, old, "ParityFailed", 400)
    assert status(scene, name)["lastFailure"]["stage"] == "serving"
    before = running.counts()
    eventually(lambda: running.counts().sent > before.sent + 300, 60, "further requests")
    assert running.counts().failed == before.failed, "it serves again"
    scene.done(name, running)
    return f"{before.sent} requests, {before.failed} failed"


def renamed_input(scene: Scene) -> str:
    name = "renamed"
    scene.apply(model(name, "linear-1.onnx"))
    scene.wait_ready(name)
    old = revision(scene, name)
    running = scene.clients(name, X)
    scene.apply(model(name, "linear-renamed.onnx"))
    found = scene.wait_condition(name, "Stalled", "True", "SignatureChanged", 180)
    assert "pixels" in found["message"]
    assert whole(scene, name, old)
    counted = no_failures(running, 0)
    scene.done(name, running)
    return counted


def source_gone(scene: Scene) -> str:
    name = "vanished"
    scene.apply(model(name, "linear-1.onnx"))
    scene.wait_ready(name)
    old = revision(scene, name)
    running = scene.clients(name, X)
    scene.apply(model(name, "no-such-file.onnx"))
    scene.wait_condition(name, "Validated", "False", "SourceUnreachable", 180)
    assert whole(scene, name, old)
    counted = no_failures(running, 0)
    scene.done(name, running)
    return counted


def idle(scene: Scene) -> str:
    """Golden inferences decide: nobody sends requests."""
    name = "idle"
    scene.apply(model(name, "linear-1.onnx", replicas=1))
    scene.wait_ready(name)
    old = revision(scene, name)
    scene.apply(model(name, "linear-2.onnx", replicas=1))
    eventually(lambda: revision(scene, name) != old, 300, "the promotion")
    scene.wait_ready(name)
    scene.done(name)
    return "promoted"


def falls_back(
    scene: Scene, name: str, file: str, on: str, backend: str, body: dict[str, Any], named: str
) -> str:
    """What serves falls back, as its owner allows; the update, of the same model, forbids it."""
    shapes = SHAPES if body is IMAGE else []
    allow = {"policy": "Allow"}
    fixed: dict[str, Any] = {"on": on, "backends": [backend], "shapes": shapes, "replicas": 1}
    scene.apply(model(name, file, fallback=allow, **fixed))
    scene.wait_ready(name)
    old = revision(scene, name)
    running = scene.clients(name, body)
    began = time.monotonic()
    scene.apply(model(name, file, **fixed))
    eventually(lambda: "lastFailure" in status(scene, name), 180, "the rejection")
    reason = str(status(scene, name)["lastFailure"]["reason"])
    assert reason in ("NodeFallback", "ProviderMissing", "DriverMissing")
    scene.rolled_back(name, old, reason, replicas=1)
    took = time.monotonic() - began
    counted = no_failures(running, took)
    message = scene.condition(name, "RolledBack")["message"]
    assert named in message, "it names the nodes, or the missing library"
    events = scene.kubectl("get", "events", "--field-selector", f"involvedObject.name={name}")
    assert reason in events
    scene.done(name, running)
    return f"{reason}; from apply to RolledBack and whole {took:.1f} s; {counted}"


def no_driver(scene: Scene) -> str:
    name = "no-driver"
    allow = {"policy": "Allow"}
    fixed: dict[str, Any] = {"on": "l4", "replicas": 1}
    fixed["rollout"] = {"allowSignatureChange": True}
    scene.apply(model(name, "linear-1.onnx", backends=["cuda"], fallback=allow, **fixed))
    scene.wait_ready(name)
    old = revision(scene, name)
    running = scene.clients(name, X)
    began = time.monotonic()
    scene.apply(model(name, "linear-1.onnx", backends=["tensorrt-rtx"], **fixed))
    scene.rolled_back(name, old, "DriverMissing", 300, replicas=1)
    took = time.monotonic() - began
    counted = no_failures(running, took)
    scene.done(name, running)
    return f"from apply to RolledBack and whole {took:.1f} s; {counted}"


# the longest first; functions of scene and folder of the models
UPDATES: Final[dict[str, Callable[[Scene, Path], str]]] = {
    "leaks": lambda scene, folder: right_at_first(scene, folder, "leaks", "MemoryGrowth", 60),
    "fails after its promotion": fails_after_promotion,
    "crashes": lambda scene, folder: right_at_first(scene, folder, "crashes", "BackendCrashed", 30),
    "drifts": lambda scene, folder: right_at_first(scene, folder, "drifts", "ParityFailed", 30),
    "is good, Surge": lambda scene, _: good(scene, "Surge"),
    "is good, InPlace": lambda scene, _: good(scene, "InPlace"),
    "is slow": lambda scene, _: slow(scene),
    "has no driver": lambda scene, _: no_driver(scene),
    "falls back whole": lambda scene, _: falls_back(
        scene, "no-cuda", "linear-1.onnx", "l4", "cuda", X, "lib"
    ),
    "falls back in part": lambda scene, _: falls_back(
        scene, "partly-back", "partly-supported.onnx", "cpu", "openvino", IMAGE, "Det"
    ),
    "is idle": lambda scene, _: idle(scene),
    "renames an input": lambda scene, _: renamed_input(scene),
    "has no source": lambda scene, _: source_gone(scene),
}


@pytest.fixture(scope="module")
def results(l4: Namespace, model_files: Path) -> Iterator[dict[str, Future[str]]]:
    """All updates, three at a time: each of them waits most of its time."""
    scene = Scene(l4.name, l4.kubeconfig)
    with ThreadPoolExecutor(3) as pool:
        yield {name: pool.submit(update, scene, model_files) for name, update in UPDATES.items()}


@pytest.mark.parametrize("update", UPDATES)
def test_an_update_under_requests(results: dict[str, Future[str]], update: str) -> None:
    print(f"an update that {update}: {results[update].result()}")


# capacity


@pytest.fixture
def one_device(l4: Namespace) -> Iterator[Namespace]:
    """All devices but one are in use."""
    l4.apply(holder(GPUS - 1))
    l4.kubectl("wait", "--for=condition=Ready", "pod/devices", "--timeout=120s")
    yield l4
    l4.kubectl("delete", "pod", "devices", "--grace-period=1")


def holder(devices: int) -> dict[str, Any]:
    """Return a pod that uses some devices."""
    image = run([str(REPOSITORY / "hack/images"), "list", "cpu"]).split()[1]
    container = {
        "name": "devices",
        "image": image,
        "command": ["sleep", "3600"],
        "resources": {"limits": {"nvidia.com/gpu": str(devices)}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec = {
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "containers": [container],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "devices"}, "spec": spec}


def test_with_one_device_every_strategy_goes_through_or_says_what_is_missing(
    one_device: Namespace,
) -> None:
    name = "single"

    def spec(file: str, strategy: str) -> dict[str, Any]:
        return model(
            name,
            file,
            replicas=1,
            on="l4",
            backends=["cuda"],
            fallback={"policy": "Allow"},
            rollout={"strategy": strategy},
        )

    one_device.apply(spec("linear-1.onnx", "Surge"))
    one_device.wait_ready(name)
    first = revision(one_device, name)
    one_device.apply(spec("linear-2.onnx", "Surge"))
    found = one_device.wait_condition(name, "Ready", "False", "CapacityBlocked", 120)
    assert "nvidia.com/gpu" in found["message"]
    assert one_device.condition(name, "Available")["status"] == "True"
    assert revision(one_device, name) == first, "it serves, and the canary waits"
    one_device.apply(spec("linear-2.onnx", "InPlace"))
    eventually(lambda: revision(one_device, name) != first, 120, "InPlace")
    one_device.wait_ready(name)
    second = revision(one_device, name)
    one_device.apply(spec("linear-1.onnx", "Recreate"))
    eventually(lambda: revision(one_device, name) != second, 120, "Recreate")
    one_device.wait_ready(name)
    one_device.kubectl("delete", "im", name)


# the operator dies


def test_the_operator_is_killed_three_times_during_a_rollout(
    l4: Namespace, installed: Namespace
) -> None:
    name, scene = "killed", Scene(l4.name, l4.kubeconfig)
    scene.apply(model(name, "linear-1.onnx"))
    scene.wait_ready(name)
    old = revision(scene, name)
    running = scene.clients(name, X)
    scene.apply(model(name, "linear-2.onnx"))
    for wanted in ("Verifying", "Analyzing", "Promoting"):

        def reached(wanted: str = wanted) -> bool:
            return phase(scene, name) == wanted or revision(scene, name) != old

        eventually(reached, 240, wanted, interval=0.1)
        replace_operator(installed)
    eventually(lambda: revision(scene, name) != old, 240, "the promotion")
    scene.wait_ready(name)
    no_failures(running, 10)
    eventually(lambda: whole(scene, name, revision(scene, name)), 60, "only the new revision")
    scene.done(name, running)
