"""Updates under load: good ones replace what serves without a failed request, bad ones are rolled back by themselves."""

import time
from collections.abc import Callable, Iterator
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


def model(name: str, file: str, *, replicas: int = 2, **spec: Any) -> dict[str, Any]:
    rollout = {"canary": CANARY, **spec.pop("rollout", {})}
    backends = spec.pop("backends", ["cpu"])
    return inference_model(
        name, file, replicas=replicas, backends=backends, rollout=rollout, **spec
    )


def with_library(name: str, folder: Path, defect: str, hold: int = 30) -> dict[str, Any]:
    """Return a model with an operator of a library that is right at first."""
    rollout = {"canary": {**CANARY, "hold": f"{hold}s"}}
    (library,) = (folder / defect).glob("*.so")
    extension = {"uri": f"pvc://models/{defect}/{library.name}", "sha256": library.stem}
    extensions = [{**extension, "type": "CustomOperators"}]
    return model(name, "cube.onnx", extensions=extensions, rollout=rollout)


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


@pytest.fixture(scope="module")
def team(namespace: Namespace) -> Namespace:
    return namespace


@pytest.fixture
def clients(team: Namespace) -> Iterator[Callable[..., load.Load]]:
    """A function that starts clients; they end with the test."""
    started: list[load.Load] = []

    def start(name: str, body: dict[str, Any]) -> load.Load:
        started.append(load.start(team, name, body))
        return started[-1]

    yield start
    for each in started:
        each.stop()


def rolled_back(
    team: Namespace, name: str, old: str, reason: str, seconds: float = 180, replicas: int = 2
) -> float:
    """Wait until the update is rejected for a reason and the old revision is whole; return the seconds."""
    began = time.monotonic()
    team.wait_condition(name, "RolledBack", "True", reason, seconds)
    eventually(lambda: whole(team, name, old, replicas), 90, f"revision {old} whole")
    found = status(team, name)
    assert found["lastFailure"]["reason"] == reason
    assert found["active"]["revision"] == old
    return time.monotonic() - began


def no_failures(clients: load.Load, rate: float) -> load.Counts:
    counts = clients.counts()
    print(
        f"{clients.name}: {counts.sent} requests, {counts.failed} failed, slowest {counts.slowest:.2f} s"
    )
    assert counts.failed == 0, counts.failures
    assert counts.sent > rate
    return counts


@pytest.mark.parametrize("strategy", ["Surge", "InPlace"])
def test_a_good_update_is_promoted_without_a_failed_request(
    team: Namespace, clients: Callable[..., load.Load], strategy: str
) -> None:
    name = f"good-{strategy.lower()}"
    rollout = {"strategy": strategy}
    team.apply(model(name, "linear-1.onnx", rollout=rollout))
    team.wait_ready(name)
    old = revision(team, name)
    running = clients(name, X)
    began = time.monotonic()
    team.apply(model(name, "linear-2.onnx", rollout=rollout))
    seen: set[str] = set()

    def promoted() -> bool:
        seen.add(phase(team, name))
        return revision(team, name) != old

    eventually(promoted, 240, "the promotion")
    team.wait_ready(name)
    took = time.monotonic() - began
    assert seen >= {"Verifying", "Analyzing", "Promoting"}
    assert took > HOLD
    no_failures(running, 100 * took / 2)
    eventually(lambda: whole(team, name, revision(team, name)), 60, "only the new revision")
    team.kubectl("delete", "im", name)


def test_a_slow_update_gets_no_user_request(
    team: Namespace, clients: Callable[..., load.Load]
) -> None:
    name = "slow"
    team.apply(model(name, "linear-1.onnx"))
    team.wait_ready(name)
    old = revision(team, name)
    running = clients(name, X)
    began = time.monotonic()
    team.apply(model(name, "linear-slow.onnx"))
    rolled_back(team, name, old, "SlowerThanStable")
    print(f"from apply to RolledBack and whole: {time.monotonic() - began:.1f} s")
    no_failures(running, 500)
    events = team.kubectl("get", "events", "--field-selector", f"involvedObject.name={name}")
    assert "SlowerThanStable" in events
    team.kubectl("delete", "im", name)


@pytest.mark.parametrize(
    ("defect", "reason"),
    [("drifts", "ParityFailed"), ("crashes", "BackendCrashed"), ("leaks", "MemoryGrowth")],
)
def test_an_update_that_is_right_at_first_is_rolled_back(
    team: Namespace,
    clients: Callable[..., load.Load],
    model_files: Path,
    defect: str,
    reason: str,
) -> None:
    team.apply(with_library(defect, model_files, "sound"))
    team.wait_ready(defect)
    old = revision(team, defect)
    running = clients(defect, FOUR)
    began = time.monotonic()
    team.apply(with_library(defect, model_files, defect))
    rolled_back(team, defect, old, reason, 400)
    print(f"{defect}: from apply to RolledBack and whole: {time.monotonic() - began:.1f} s")
    counts = running.counts()
    print(f"{counts.sent} requests, {counts.failed} failed: {counts.failures}")
    if defect != "crashes":  # requests that it was answering are lost
        assert counts.failed == 0, counts.failures
    team.kubectl("delete", "im", defect)


def test_an_update_that_fails_after_its_promotion_is_rolled_back(
    team: Namespace, clients: Callable[..., load.Load], model_files: Path
) -> None:
    """The revision before is better there, as one pod of it shows before it gets requests."""
    name = "later"
    team.apply(with_library(name, model_files, "sound", hold=5))
    team.wait_ready(name)
    old = revision(team, name)
    running = clients(name, FOUR)
    team.apply(with_library(name, model_files, "drifts-later", hold=5))
    eventually(lambda: revision(team, name) != old, 240, "the promotion")
    team.wait_condition(name, "RolledBack", "True", "ParityFailed", 300)
    eventually(lambda: whole(team, name, old), 120, f"revision {old} whole")
    assert status(team, name)["lastFailure"]["stage"] == "serving"
    counts = running.counts()
    print(f"{name}: {counts.sent} requests, {counts.failed} failed")
    before = counts.failed
    eventually(lambda: running.counts().sent > counts.sent + 300, 60, "further requests")
    assert running.counts().failed == before, "it serves again"
    team.kubectl("delete", "im", name)


def test_a_renamed_input_is_held(team: Namespace) -> None:
    name = "renamed"
    team.apply(model(name, "linear-1.onnx"))
    team.wait_ready(name)
    old = revision(team, name)
    team.apply(model(name, "linear-renamed.onnx"))
    found = team.wait_condition(name, "Stalled", "True", "SignatureChanged", 120)
    assert "pixels" in found["message"]
    assert whole(team, name, old)
    team.kubectl("delete", "im", name)


def test_an_idle_model_is_promoted_by_golden_inferences(team: Namespace) -> None:
    name = "idle"
    team.apply(model(name, "linear-1.onnx", replicas=1))
    team.wait_ready(name)
    old = revision(team, name)
    team.apply(model(name, "linear-2.onnx", replicas=1))
    eventually(lambda: revision(team, name) != old, 240, "the promotion")
    team.wait_ready(name)
    team.kubectl("delete", "im", name)


# fallback, on devices without CUDA and without a driver


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


@pytest.mark.parametrize(
    ("name", "file", "on", "backends", "body", "reasons"),
    [
        ("partly-back", "partly-supported.onnx", "cpu", ["openvino"], IMAGE, {"NodeFallback"}),
        ("no-cuda", "linear-1.onnx", "l4", ["cuda"], X, {"ProviderMissing", "DriverMissing"}),
    ],
)
def test_an_update_that_falls_back_gets_no_request(
    l4: Namespace,
    clients: Callable[..., load.Load],
    name: str,
    file: str,
    on: str,
    backends: list[str],
    body: dict[str, Any],
    reasons: set[str],
) -> None:
    """What serves falls back as its owner allows; the update, of the same model, forbids it."""
    shapes = SHAPES if body is IMAGE else []
    allowed = model(
        name, file, on=on, backends=backends, shapes=shapes, fallback={"policy": "Allow"}
    )
    l4.apply(allowed)
    l4.wait_ready(name)
    old = revision(l4, name)
    running = clients(name, body)
    began = time.monotonic()
    l4.apply(model(name, file, on=on, backends=backends, shapes=shapes))
    eventually(lambda: "lastFailure" in status(l4, name), 120, "the rejection")
    reason = str(status(l4, name)["lastFailure"]["reason"])
    assert reason in reasons
    rolled_back(l4, name, old, reason)
    print(f"{name}: from apply to RolledBack and whole: {time.monotonic() - began:.1f} s")
    no_failures(running, 300)
    message = l4.condition(name, "RolledBack")["message"]
    assert "Det" in message or "lib" in message, "it names nodes, or the missing library"
    events = l4.kubectl("get", "events", "--field-selector", f"involvedObject.name={name}")
    assert reason in events
    l4.kubectl("delete", "im", name)


def test_an_engine_without_a_driver_gets_no_request(
    l4: Namespace, clients: Callable[..., load.Load]
) -> None:
    name = "no-driver"
    l4.apply(model(name, "linear-1.onnx", on="l4", backends=["cuda"], fallback={"policy": "Allow"}))
    l4.wait_ready(name)
    old = revision(l4, name)
    running = clients(name, X)
    l4.apply(model(name, "linear-1.onnx", on="l4", backends=["tensorrt-rtx"]))
    rolled_back(l4, name, old, "DriverMissing", 240)
    no_failures(running, 300)
    l4.kubectl("delete", "im", name)


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
    team: Namespace, installed: Namespace, clients: Callable[..., load.Load]
) -> None:
    name = "killed"
    team.apply(model(name, "linear-1.onnx"))
    team.wait_ready(name)
    old = revision(team, name)
    running = clients(name, X)
    team.apply(model(name, "linear-2.onnx"))
    for wanted in ("Verifying", "Analyzing", "Promoting"):

        def reached(wanted: str = wanted) -> bool:
            return phase(team, name) == wanted or revision(team, name) != old

        eventually(reached, 240, wanted, interval=0.1)
        replace_operator(installed)
    eventually(lambda: revision(team, name) != old, 240, "the promotion")
    team.wait_ready(name)
    no_failures(running, 1000)
    eventually(lambda: whole(team, name, revision(team, name)), 60, "only the new revision")
    team.kubectl("delete", "im", name)


def test_a_source_that_is_gone_takes_nothing_away(
    team: Namespace, clients: Callable[..., load.Load]
) -> None:
    name = "vanished"
    team.apply(model(name, "linear-1.onnx"))
    team.wait_ready(name)
    old = revision(team, name)
    running = clients(name, X)
    team.apply(model(name, "no-such-file.onnx"))
    team.wait_condition(name, "Validated", "False", "SourceUnreachable", 120)
    assert whole(team, name, old)
    no_failures(running, 200)
    team.kubectl("delete", "im", name)
