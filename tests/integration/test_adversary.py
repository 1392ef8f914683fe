"""A server that lies in each way that it can: every lie costs its pod the readiness or fires an alert.

Server, sidecar, Prometheus and the chart's rules are the real ones; the lies come from a proxy
between the server and those who ask it. The sidecar checks five times as often as in a pod, so that
its times are a fifth of those that are stated. An alert counts from the moment when its expression
holds: what its `for` adds comes on top.
"""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from tests.support.adversary import (
    Lie,
    Tensors,
    answers,
    change_each_output,
    execution,
    outputs,
)
from tests.support.monitoring import RULES, Stack, running
from tests.support.pods import Pod, run_pod
from tests.support.serving import linear_model
from tests.support.sidecar import prepare_served

pytestmark = pytest.mark.timeout(300)

PACE = 0.2  # of the checks' intervals
LOADED = 5.0  # a machine with other work on it may take so many times the stated time
RANDOM = np.random.default_rng()
CPU, GPU = "CPUExecutionProvider", "CUDAExecutionProvider"


def without_one(tensors: Tensors) -> Tensors:
    return dict(list(tensors.items())[1:])


class Stale:
    """Gives every question the answer to the first one."""

    def __init__(self) -> None:
        self._first: Tensors | None = None

    def __call__(self, tensors: Tensors) -> Tensors:
        self._first = self._first or tensors
        return self._first


FAILED = "EnginewrightCheckFailed"
UNPLACED = f"{FAILED}|EnginewrightCPUFallback"
OUTPUTS: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "a tenth too large": lambda array: array * np.float32(1.1),
    "that are no numbers": lambda array: np.full_like(array, np.nan),
    # as uninitialized memory: another answer every time
    "that are random": lambda array: RANDOM.normal(0, 1e6, array.shape).astype(np.float32),
    "that are zero": np.zeros_like,
    "in another order": np.flip,
    "in another shape": np.ravel,
    "of another type": lambda array: array.astype(np.float64),
}
RUNS: dict[str, dict[str, Any]] = {
    "another ONNX Runtime": {"ort_version": "1.0.0"},
    "another opset": {"opset": 3},
    "another model": {"model_digest": "0" * 64},
    "another revision": {"revision": "r0"},
    "another backend": {"backend": "cuda"},
    "an engine where there is none": {"engine_key": "0" * 64},
    "two distributions of ONNX Runtime": {"ort_distributions": ["onnxruntime", "onnxruntime-gpu"]},
}
PLACED: dict[str, tuple[dict[str, Any], str]] = {
    "nodes on another provider": (
        {"placement": {"nodes": {GPU: 2}, "elsewhere": ["MatMul_0 (MatMul)", "Sum_1 (ReduceSum)"]}},
        "EnginewrightCPUFallback",
    ),
    "no nodes anywhere": ({"placement": {"nodes": {}, "elsewhere": []}}, UNPLACED),
    "a provider that is not the backend's": (
        {
            "provider": GPU,
            "providers": [GPU, CPU],
            "placement": {"nodes": {GPU: 2}, "elsewhere": []},
        },
        UNPLACED,
    ),
    "a provider that the session has not": ({"providers": []}, UNPLACED),
}
LIES = [
    *(
        Lie(f"outputs {name}", change_each_output(change), 5, reason="ParityFailed")
        for name, change in OUTPUTS.items()
    ),
    Lie("an output that is missing", outputs(without_one), 5, reason="ParityFailed"),
    Lie("the answer to another request", outputs(Stale()), 40, reason="ParityFailed"),
    *(Lie(name, execution(**said), 10, alert=alert) for name, (said, alert) in PLACED.items()),
    *(Lie(name, execution(**said), 20, alert=FAILED) for name, said in RUNS.items()),
    # how well it is
    Lie("errors in one answer of ten", answers({200: 900, 500: 100}), 30, alert=FAILED),
    Lie(
        "ready while every inference fails",
        lambda proxy: proxy.refusing.update({"/infer": 500}),
        10,
        reason="RunsFail",
    ),
    Lie(
        "alive and never ready",
        lambda proxy: proxy.refusing.update({"/v2/health/ready": 503}),
        10,
        alert="EnginewrightNotServing",
    ),
    Lie(
        "how it runs the model is kept secret",
        lambda proxy: proxy.refusing.update({"/execution": 500}),
        60,
        alert="EnginewrightChecksUnknown",
    ),
    Lie("nonsense to every question", lambda proxy: setattr(proxy, "saying", b"\x00nonsense"), 10),
]


@dataclass(frozen=True)
class Scene:
    """A pod whose server is honest and whose proxy may lie, and those who watch."""

    pod: Pod
    stack: Stack

    def alerts(self) -> set[str]:
        """Return the names of the alerts whose expression holds."""
        return {entry["metric"]["alertname"] for entry in self.stack.query("ALERTS")}

    def truthful(self) -> None:
        """Wait until the sidecar is ready and no alert fires."""
        self.pod.mend()
        self.pod.sidecar.until(lambda: not self.alerts() & _OF_MODELS, "no alert", 120)


_OF_MODELS = {
    alert["alert"]
    for group in yaml.safe_load(RULES.read_text())["groups"]
    if group["name"] == "enginewright-models"
    for alert in group["rules"]
}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    root = tmp_path_factory.mktemp("adversary")
    task = prepare_served(root, linear_model())
    with run_pod(root, task, pace=PACE) as pod:
        scrape = {
            "job_name": "enginewright-sidecar",
            "static_configs": [
                {
                    "targets": [f"127.0.0.1:{pod.sidecar.port}"],
                    "labels": {"namespace": "shop", "pod": "m-1"},
                }
            ],
        }
        with running(tmp_path_factory.mktemp("stack"), [scrape], 0.25) as stack:
            yield Scene(pod, stack)


# fault: Servers | wrong outputs: scaled, zero, NaN, random, another order, shape or type, one
#   missing | golden inference: unready | 1 s
# fault: Servers | the answer to another request | golden inference: unready | 2 s for each sample
# fault: Servers | nodes on another provider or nowhere, or a provider that the session lacks |
#   checks `placement`, `provider`; alerts EnginewrightCPUFallback, EnginewrightCheckFailed | 1 s
#   and a scrape; second alert 2 min more
# fault: Servers | another backend's provider | check `provider` | 1 s; alert 2 min more
# fault: Servers | another ONNX Runtime, opset, model, revision, backend or engine than was
#   verified | check `versions` | 10 s; alert 2 min more
# fault: Servers | two ONNX Runtimes in one image | check `distribution` | 10 s; alert 2 min more
# fault: Servers | ready, but every inference is a 500 | golden inference: unready, `RunsFail` | 2
#   s
# fault: Servers | 5% of the answers are errors | check `errors` | 5 s; alert 2 min more
# fault: Servers | live, but never ready again | check `server`; alert EnginewrightNotServing | 1
#   s; alert 2 min more
# fault: Servers | `/execution` is no longer answered | checks become `unknown`; alert
#   EnginewrightChecksUnknown | 50 s; alert 10 min more
# fault: Servers | every answer is malformed | golden inference: unready | 1 s
@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.name)
def test_every_lie_costs_readiness_or_fires_an_alert(scene: Scene, lie: Lie) -> None:
    scene.truthful()
    lie.begin(scene.pod.proxy)
    expected_alerts = set(lie.alert.split("|")) if lie.alert else set()

    def is_found_out() -> bool:
        return (
            bool(expected_alerts & scene.alerts())
            if expected_alerts
            else not scene.pod.sidecar.is_ready()
        )

    took = scene.pod.sidecar.until(
        is_found_out, f"{lie.alert or 'unready'}", lie.seconds * PACE * LOADED
    )
    print(f"{lie.name}: {took:.1f} s")
    if lie.reason:
        failed = {
            check.reason for check in scene.pod.sidecar.verdict().checks if check.state == "failed"
        }
        assert lie.reason in failed
    scene.truthful()


# fault: Servers | the process hangs | check `server`; alert EnginewrightNotServing | 3 s; alert 2
#   min more
def test_a_server_that_hangs_while_its_process_lives(scene: Scene) -> None:
    scene.truthful()
    os.kill(scene.pod.server.process.pid, signal.SIGSTOP)
    try:
        scene.pod.sidecar.until(
            lambda: "EnginewrightNotServing" in scene.alerts(), "alert", 10 * LOADED
        )
    finally:
        os.kill(scene.pod.server.process.pid, signal.SIGCONT)
    scene.truthful()
