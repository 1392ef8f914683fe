"""Updates under load: good ones replace what serves without a failed request, bad ones are rolled back by themselves."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from hack.samples.revisions import WIDTH
from tests.e2e import load
from tests.e2e.harness import Namespace, eventually, inference_model

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

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
