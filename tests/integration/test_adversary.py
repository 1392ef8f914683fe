"""A server that lies in each way that it can: every lie costs its pod the readiness or fires an alert.

Server, sidecar, Prometheus and the chart's rules are the real ones; the lies come from a proxy
between the server and those who ask it. The sidecar checks five times as often as in a pod, so that
its times are a fifth of those that are stated. An alert counts from the moment when its expression
holds: what its `for` adds comes on top.
"""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import yaml

from tests.support.adversary import (
    Lie,
    Tensors,
    answers,
    execution,
    honest,
    outputs,
    placement,
)
from tests.support.monitoring import RULES, Stack, running
from tests.support.serving import Server, linear_model
from tests.support.sidecar import Proxy, Sidecar, prepared

pytestmark = pytest.mark.timeout(300)

PACE = 0.2  # of the checks' intervals
LOADED = 5.0  # a machine with other work on it may take so many times the stated time
CPU, GPU = "CPUExecutionProvider", "CUDAExecutionProvider"


def scaled(tensors: Tensors) -> Tensors:
    return {name: np.asarray(array * np.float32(1.1)) for name, array in tensors.items()}


def not_numbers(tensors: Tensors) -> Tensors:
    return {name: np.full_like(array, np.nan) for name, array in tensors.items()}


def random(tensors: Tensors) -> Tensors:
    """What uninitialised memory looks like: another answer every time."""
    generator = np.random.default_rng()
    return {
        name: generator.normal(0, 1e6, array.shape).astype(np.float32)
        for name, array in tensors.items()
    }


def zeros(tensors: Tensors) -> Tensors:
    return {name: np.zeros_like(array) for name, array in tensors.items()}


def turned(tensors: Tensors) -> Tensors:
    return {name: np.ascontiguousarray(np.flip(array)) for name, array in tensors.items()}


def flat(tensors: Tensors) -> Tensors:
    return {name: array.reshape(-1) for name, array in tensors.items()}


def wide(tensors: Tensors) -> Tensors:
    return {name: array.astype(np.float64) for name, array in tensors.items()}


def without_one(tensors: Tensors) -> Tensors:
    return dict(list(tensors.items())[1:])


class Stale:
    """Gives every question the answer to the first one."""

    def __init__(self) -> None:
        self._first: Tensors | None = None

    def __call__(self, tensors: Tensors) -> Tensors:
        self._first = self._first or tensors
        return self._first


UNPLACED = "EnginewrightCheckFailed|EnginewrightCPUFallback"
LIES = [
    # what it computes
    Lie("outputs a tenth too large", outputs(scaled), 5, reason="ParityFailed"),
    Lie("outputs that are no numbers", outputs(not_numbers), 5, reason="ParityFailed"),
    Lie("outputs that are random", outputs(random), 5, reason="ParityFailed"),
    Lie("outputs that are zero", outputs(zeros), 5, reason="ParityFailed"),
    Lie("outputs in another order", outputs(turned), 5, reason="ParityFailed"),
    Lie("outputs in another shape", outputs(flat), 5, reason="ParityFailed"),
    Lie("outputs of another type", outputs(wide), 5, reason="ParityFailed"),
    Lie("an output that is missing", outputs(without_one), 5, reason="ParityFailed"),
    Lie("the answer to another request", outputs(Stale()), 40, reason="ParityFailed"),
    # where it computes
    Lie(
        "nodes on another provider",
        placement(nodes={GPU: 2}, elsewhere=["MatMul_0 (MatMul)", "ReduceSum_1 (ReduceSum)"]),
        10,
        alert="EnginewrightCPUFallback",
    ),
    Lie(
        "no nodes anywhere",
        placement(nodes={}, elsewhere=[]),
        10,
        alert=UNPLACED,
    ),
    Lie(
        "a provider that is not the backend's",
        execution(
            provider=GPU,
            providers=[GPU, CPU],
            placement={"nodes": {GPU: 2}, "elsewhere": [], "context_nodes": []},
        ),
        10,
        alert=UNPLACED,
    ),
    Lie(
        "a provider that the session has not",
        execution(providers=[]),
        10,
        alert=UNPLACED,
    ),
    # what it runs
    Lie(
        "another ONNX Runtime", execution(ort_version="1.0.0"), 20, alert="EnginewrightCheckFailed"
    ),
    Lie("another opset", execution(opset=3), 20, alert="EnginewrightCheckFailed"),
    Lie("another model", execution(model_digest="0" * 64), 20, alert="EnginewrightCheckFailed"),
    Lie("another revision", execution(revision="r0"), 20, alert="EnginewrightCheckFailed"),
    Lie("another backend", execution(backend="cuda"), 20, alert="EnginewrightCheckFailed"),
    Lie(
        "an engine where there is none",
        execution(engine_key="0" * 64),
        20,
        alert="EnginewrightCheckFailed",
    ),
    Lie(
        "two distributions of ONNX Runtime",
        execution(ort_distributions=["onnxruntime", "onnxruntime-gpu"]),
        20,
        alert="EnginewrightCheckFailed",
    ),
    # how well it is
    Lie(
        "errors in one answer of ten",
        answers({200: 900, 500: 100}),
        30,
        alert="EnginewrightCheckFailed",
    ),
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
    """An honest server, what may lie in its name, and those who watch."""

    server: Server
    proxy: Proxy
    sidecar: Sidecar
    stack: Stack

    def alerts(self) -> set[str]:
        """Return the names of the alerts whose expression holds."""
        return {each["metric"]["alertname"] for each in self.stack.query("ALERTS")}

    def truthful(self) -> None:
        """Wait until nobody has anything to say against the pod."""
        honest(self.proxy)
        self.sidecar.until_ready()
        self.sidecar.until(lambda: not self.alerts() & _OF_MODELS, "no alert", 120)


_OF_MODELS = {
    alert["alert"]
    for group in yaml.safe_load(RULES.read_text())["groups"]
    if group["name"] == "enginewright-models"
    for alert in group["rules"]
}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    root = tmp_path_factory.mktemp("adversary")
    task = prepared(root, linear_model())
    with (
        Server(root, task) as server,
        Proxy(server.port) as proxy,
        Sidecar(root, task, proxy.port, pace=PACE) as sidecar,
    ):
        scrape = {
            "job_name": "enginewright-sidecar",
            "static_configs": [
                {
                    "targets": [f"127.0.0.1:{sidecar.port}"],
                    "labels": {"namespace": "shop", "pod": "m-1"},
                }
            ],
        }
        with running(tmp_path_factory.mktemp("stack"), [scrape], 0.25) as stack:
            yield Scene(server, proxy, sidecar, stack)


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
    lie.begin(scene.proxy)
    wanted = set(lie.alert.split("|")) if lie.alert else set()

    def found_out() -> bool:
        return bool(wanted & scene.alerts()) if wanted else not scene.sidecar.is_ready()

    took = scene.sidecar.until(found_out, f"{lie.alert or 'unready'}", lie.seconds * PACE * LOADED)
    print(f"{lie.name}: {took:.1f} s")
    if lie.reason:
        failed = {each.reason for each in scene.sidecar.verdict().checks if each.state == "failed"}
        assert lie.reason in failed
    scene.truthful()


# fault: Servers | the process hangs | check `server`; alert EnginewrightNotServing | 3 s; alert 2
#   min more
def test_a_server_that_hangs_while_its_process_lives(scene: Scene) -> None:
    scene.truthful()
    os.kill(scene.server.process.pid, signal.SIGSTOP)
    try:
        scene.sidecar.until(
            lambda: "EnginewrightNotServing" in scene.alerts(), "alert", 10 * LOADED
        )
    finally:
        os.kill(scene.server.process.pid, signal.SIGCONT)
    scene.truthful()
