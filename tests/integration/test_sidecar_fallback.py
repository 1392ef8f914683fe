"""Real fallbacks, seen by the real sidecar through the real server: each has one reason, wherever it is read.

`/execution`, checks, metrics, the shipped alert rule, conditions and Events are asked of the same pod.
"""

import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from enginewright_contract import causes
from enginewright_contract.execution import Execution
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Finding
from enginewright_contract.task import ServeTask
from enginewright_contract.verdict import Check, Verdict

from tests.support.broken_models import parse_text
from tests.support.monitoring import RULES, evaluate
from tests.support.optional import present
from tests.support.plan_world import World
from tests.support.serving import (
    REPLACES_SESSION,
    Server,
    json_inputs,
    linear_model,
)
from tests.support.sidecar import Sidecar, artifact, prepare_served, promising, value

CPU = "CPUExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"


def build_mixed() -> Any:
    """Return a model of which OpenVINO takes three nodes and not the determinant."""
    return parse_text("""(float[2, 3, 3] x) => (float[2] y) {
        [product] a = MatMul(x, x) [relu] b = Relu(a) [sum] c = Add(b, x)
        [determinant] y = Det(c) }""")


@pytest.fixture(scope="module")
def partial(openvino_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run the server of the mixed model, prepared for OpenVINO by the real stages."""
    root = tmp_path_factory.mktemp("partial")
    task = prepare_served(root, build_mixed(), backend="openvino", python=openvino_python)
    with Server(root, task, python=openvino_python) as server:
        yield server


@contextmanager
def pod(
    root: Path, task: ServeTask, python: Path, before: str = ""
) -> Iterator[tuple[Server, Sidecar]]:
    """Run server and sidecar on the same image, as pods do."""
    with (
        Server(root, task, python=python, before=before) as server,
        Sidecar(root, task, server.port, python=python) as sidecar,
    ):
        yield server, sidecar


def check_alert(folder: Path, metric: set[str], reason: Reason) -> None:
    """Check that the shipped rule makes of the metric one alert, with that reason."""
    labels = 'namespace="shop", pod="p", model="m", revision="r1", kind="NodeFallback"'
    expected = {
        "severity": "warning", "namespace": "shop", "model": "m", "revision": "r1",
        "kind": "NodeFallback", "reason": str(reason),
    }  # fmt: skip
    fired = (
        f'ALERTS{{alertname="EnginewrightCPUFallback", alertstate="firing", {_labels(expected)}}}'
    )
    evaluate(
        folder,
        {f'enginewright_fallback_reason{{{labels}, reason="{item}"}}': "1 1" for item in metric},
        {'ALERTS{alertname="EnginewrightCPUFallback"}': {fired: 1}},
        "30s",
        [RULES],
    )


def _labels(labels: dict[str, str]) -> str:
    return ", ".join(f'{name}="{value}"' for name, value in labels.items())


def agree(
    folder: Path, server: Server, sidecar: Sidecar, reason: Reason, *, provider: bool
) -> Execution:
    """Check that all say `reason`, under Allow; `provider`: it is about the provider, not only about nodes."""

    def is_seen() -> bool:
        fallback = sidecar.verdict().fallback
        return fallback is not None and fallback.reason is reason

    sidecar.until(is_seen, f"the reason {reason}")
    verdict = sidecar.verdict()
    metric = {
        sample.labels["reason"] for sample in sidecar.metrics()["enginewright_fallback_reason"]
    }
    assert metric == {str(reason)}
    check_alert(folder, metric, reason)
    failed = {check.check: check.reason for check in verdict.checks if check.state == "failed"}
    assert failed == ({Check.PROVIDER: reason} if provider else {})
    # under Allow: it serves, and says so
    world = World(fallback={"policy": "Allow"}, replicas=2).settle().job_succeeds().all_available()
    world.events.clear()
    world.sidecars_say(verdict)
    conditions = {item["type"]: item for item in world.status["conditions"]}
    fallback, placement = conditions["FallbackActive"], conditions["PlacementVerified"]
    assert (fallback["status"], fallback["reason"]) == ("True", reason)
    assert placement["reason"] == (reason if provider else "PromiseKept")
    assert {event.reason for event in world.events if event.type == "Warning"} == {str(reason)}
    # under Forbid: it is not ready, for that very reason
    forbidden = World(replicas=2).settle().job_succeeds().all_available()
    forbidden.sidecars_say(_break_promise(verdict))
    conditions = {item["type"]: item for item in forbidden.status["conditions"]}
    kinds = ("Ready", "PlacementVerified", "FallbackActive")
    assert {kind: conditions[kind]["reason"] for kind in kinds} == dict.fromkeys(kinds, str(reason))
    return read_execution(server)


def read_execution(server: Server) -> Execution:
    return Execution.model_validate(server.get("/v2/models/m/execution").json())


def _break_promise(verdict: Verdict) -> Verdict:
    """Return the verdict as it is where the promise does not allow the fallback."""
    assert verdict.fallback is not None
    fallback = verdict.fallback.model_copy(update={"broken": True})
    changed = {"state": "failed", "reason": fallback.reason, "message": fallback.message}
    checks = tuple(
        check.model_copy(update=changed) if check.check is Check.PLACEMENT else check
        for check in verdict.checks
    )
    return verdict.model_copy(update={"fallback": fallback, "checks": checks})


def test_a_part_elsewhere_is_never_ready_under_forbid_and_named(
    partial: Server, openvino_python: Path
) -> None:
    with Sidecar(partial.root, partial.task, partial.port, python=openvino_python) as sidecar:
        placement = sidecar.until_state(Check.PLACEMENT, "failed")
        assert placement.reason is Reason.NODE_FALLBACK
        assert "determinant (Det)" in placement.message
        sidecar.until_state(Check.GOLDEN, "ok")
        verdict = sidecar.verdict()
        assert (verdict.ready, verdict.admitted) == (False, False)
        assert {check.check: check.state for check in verdict.checks}[Check.PROVIDER] == "ok"
        metrics = sidecar.metrics()
        assert value(metrics, "enginewright_placement_nodes", provider=OPENVINO) == 3
        assert value(metrics, "enginewright_placement_nodes", provider=CPU) == 1
        assert value(metrics, "enginewright_fallback_nodes") == 1
        ratio = present(value(metrics, "enginewright_fallback_ratio"))
        assert 0 < ratio < 1
        assert value(metrics, "enginewright_fallback_active", kind="NodeFallback") == 1
        active = {"kind": "NodeFallback", "reason": "NodeFallback"}
        assert value(metrics, "enginewright_fallback_reason", **active) == 1


# fault: Reports | an allowed fallback without an Event | an Event when FallbackActive's reason
#   changes | next verdict
def test_a_part_elsewhere_that_is_allowed_has_one_reason(
    partial: Server, openvino_python: Path, tmp_path: Path
) -> None:
    task = promising(partial.task, "Allow")
    with Sidecar(partial.root, task, partial.port, python=openvino_python) as sidecar:
        sidecar.until_ready()
        execution = agree(tmp_path, partial, sidecar, Reason.NODE_FALLBACK, provider=False)
        assert execution.provider_reason is None


# fault: Reports | one fallback has several reasons | one cause, chosen by one function |
#   prevented
def test_the_incident_whole_and_silent_on_the_cpu(gpu_python: Path, tmp_path: Path) -> None:
    sample = {"x": np.ones((2, 8), np.float32)}
    task = promising(artifact(tmp_path, linear_model(), [sample]), "Allow")
    task = task.model_copy(update={"backend": "cuda"})
    with pod(tmp_path, task, gpu_python) as (server, sidecar):
        sidecar.until_ready()
        execution = agree(tmp_path, server, sidecar, Reason.PROVIDER_MISSING, provider=True)
        # both things that are wrong are facts, and the message names the second one too
        assert execution.provider_reason is Reason.PROVIDER_MISSING
        assert (execution.driver.needed, execution.driver.reason) == (True, Reason.DRIVER_MISSING)
        for message in (execution.provider_message, sidecar.check(Check.PROVIDER).message):
            libraries, _, driver = message.partition("; and DriverMissing: ")
            assert "libcublasLt.so.13" in libraries
            assert driver.count("libcuda.so.1: ") == 1
        assert execution.provider == "CUDAExecutionProvider"
        assert execution.providers == (CPU,)
        assert execution.placement.nodes == {CPU: 2}
        assert len(execution.placement.elsewhere) == 2
        assert execution.ort_distributions == ("onnxruntime-gpu",)
        assert execution.backend_version == "13"
        answer = server.post(json_inputs(**sample)).json()
        assert answer["outputs"][0]["data"] == [14, 15, 16, 17] * 2
        assert "fallback, which policy Allow allows" in server.log()
        assert "Failed to load library" in server.log(), "ONNX Runtime's own words"
        fallback = present(sidecar.verdict().fallback)
        assert fallback.active
        assert fallback.nodes_elsewhere == fallback.nodes_total == 2
        metrics = sidecar.metrics()
        cuda = "CUDAExecutionProvider"
        assert value(metrics, "enginewright_provider_available", provider=cuda) == 0
        assert value(metrics, "enginewright_placement_nodes", provider=cuda) == 0
        assert value(metrics, "enginewright_placement_nodes", provider=CPU) == 2


# fault: Reports | anybody who reaches port 8081 takes a pod out of service | requests change
#   nothing; only the pod's annotation does | prevented
def test_a_session_that_falls_back_while_it_serves(openvino_python: Path, tmp_path: Path) -> None:
    task = prepare_served(
        tmp_path,
        parse_text("(float[3, 3] x) => (float[3, 3] y) { [product] y = MatMul(x, x) }"),
        backend="openvino",
        python=openvino_python,
    )
    allowed = tmp_path / "allowed"
    shutil.copytree(tmp_path / "artifact", allowed / "artifact")
    (allowed / "dev").mkdir()
    with (
        pod(tmp_path, task, openvino_python, REPLACES_SESSION) as (server, sidecar),
        Sidecar(allowed, promising(task, "Allow"), server.port, python=openvino_python) as other,
    ):
        sidecar.until_ready()
        other.until_ready()
        before = read_execution(server)
        assert (before.session, before.provider_reason) == (1, None)
        assert before.placement.nodes == {OPENVINO: 1}
        active = {"kind": "NodeFallback", "reason": "SessionReplaced"}
        server.process.send_signal(signal.SIGUSR1)
        took = sidecar.until(
            lambda: value(sidecar.metrics(), "enginewright_fallback_reason", **active) == 1,
            "fallback in the metrics",
        )
        print(f"fallback begun to metric: {took:.2f} s")
        assert sidecar.verdict("?release=1").ready, "a request releases nothing"
        time.sleep(2)
        assert sidecar.is_ready()
        sidecar.annotate(time.time() + 60)
        sidecar.until(lambda: not sidecar.is_ready(), "the operator lets it go")
        assert sidecar.verdict().admitted
        sidecar.annotate(None)
        sidecar.until(sidecar.is_ready, "it is held back again")
        placement = sidecar.check(Check.PLACEMENT)
        assert (placement.state, placement.reason) == ("failed", Reason.SESSION_REPLACED)
        assert "product (MatMul)" in placement.message
        after = agree(allowed, server, other, Reason.SESSION_REPLACED, provider=True)
        assert (after.session, after.providers) == (2, (CPU,)), "one replacement counts once"
        assert after.placement.nodes == {CPU: 1}
        assert len(after.placement.elsewhere) == 1


def test_the_first_cause_is_named_and_the_others_listed() -> None:
    libraries = Finding(reason=Reason.PROVIDER_MISSING, cause="no libcudart")
    driver = Finding(reason=Reason.DRIVER_MISSING, cause="no libcuda")
    nodes = Finding(reason=Reason.NODE_FALLBACK, cause="4 of 4 nodes")
    cause = present(causes.first([nodes, driver, libraries]))
    assert cause.reason is Reason.PROVIDER_MISSING
    assert (
        cause.cause == "no libcudart; and DriverMissing: no libcuda; and NodeFallback: 4 of 4 nodes"
    )
    assert causes.first([cause, driver]) == cause, "what is listed is not listed twice"
    assert causes.first([]) is None
