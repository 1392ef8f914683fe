"""One real fallback has one reason, wherever it is read: on real servers and sidecars.

`/execution`, checks, metric, the shipped alert rule, conditions and Events are asked of the same pod.
"""

import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

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
    asks_openvino_for,
    linear_model,
)
from tests.support.sidecar import Sidecar, artifact, prepare_served, promising


@dataclass(frozen=True)
class Observed:
    """All that shows one fallback."""

    execution: Execution
    verdict: Verdict
    metric: set[str]


def serve_until(
    root: Path,
    task: ServeTask,
    python: Path,
    reason: Reason,
    *,
    before: str = "",
    falls: bool = False,
) -> Observed:
    """Serve under Allow until fallback for `reason` is seen; `falls`: it begins while it serves."""
    with (
        Server(root, task, python=python, before=before) as server,
        Sidecar(root, task, server.port, python=python) as sidecar,
    ):
        sidecar.until_ready()
        if falls:
            server.process.send_signal(signal.SIGUSR1)

        def is_seen() -> bool:
            fallback = sidecar.verdict().fallback
            return fallback is not None and fallback.reason is reason

        sidecar.until(is_seen, f"the reason {reason}")
        active = sidecar.metrics()["enginewright_fallback_reason"]
        execution = Execution.model_validate(server.get("/v2/models/m/execution").json())
        return Observed(
            execution, sidecar.verdict(), {sample.labels["reason"] for sample in active}
        )


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


def agree(folder: Path, observed: Observed, reason: Reason, *, provider: bool) -> None:
    """Check that all say `reason`; `provider`: it is about the provider, not only about nodes."""
    assert observed.verdict.fallback is not None
    assert observed.verdict.fallback.reason is reason
    assert observed.metric == {str(reason)}
    check_alert(folder, observed.metric, reason)
    failed = {
        check.check: check.reason for check in observed.verdict.checks if check.state == "failed"
    }
    assert failed == ({Check.PROVIDER: reason} if provider else {})
    # under Allow: it serves, and says so
    world = World(fallback={"policy": "Allow"}, replicas=2).settle().job_succeeds().all_available()
    world.events.clear()
    world.sidecars_say(observed.verdict)
    conditions = {item["type"]: item for item in world.status["conditions"]}
    fallback, placement = conditions["FallbackActive"], conditions["PlacementVerified"]
    assert (fallback["status"], fallback["reason"]) == ("True", reason)
    assert placement["reason"] == (reason if provider else "PromiseKept")
    assert {event.reason for event in world.events if event.type == "Warning"} == {str(reason)}
    # under Forbid: it is not ready, for that very reason
    forbidden = World(replicas=2).settle().job_succeeds().all_available()
    forbidden.sidecars_say(_break_promise(observed.verdict))
    conditions = {item["type"]: item for item in forbidden.status["conditions"]}
    assert {
        kind: conditions[kind]["reason"]
        for kind in ("Ready", "PlacementVerified", "FallbackActive")
    } == dict.fromkeys(("Ready", "PlacementVerified", "FallbackActive"), str(reason))


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


# fault: Reports | one fallback has several reasons | one cause, chosen by one function |
#   prevented
def test_onnxruntime_gpu_without_cuda(gpu_python: Path, tmp_path: Path) -> None:
    sample = {"x": np.ones((2, 8), np.float32)}
    task = promising(artifact(tmp_path, linear_model(), [sample]), "Allow")
    task = task.model_copy(update={"backend": "cuda"})
    observed = serve_until(tmp_path, task, gpu_python, Reason.PROVIDER_MISSING)
    agree(tmp_path, observed, Reason.PROVIDER_MISSING, provider=True)
    # both things that are wrong are facts, and the message names the second one too
    assert observed.execution.provider_reason is Reason.PROVIDER_MISSING
    assert observed.execution.driver.reason is Reason.DRIVER_MISSING
    (provider,) = [check for check in observed.verdict.checks if check.check is Check.PROVIDER]
    for message in (observed.execution.provider_message, provider.message):
        libraries, _, driver = message.partition("; and DriverMissing: ")
        assert "libcublasLt.so.13" in libraries
        assert driver.count("libcuda.so.1: ") == 1


@pytest.fixture(scope="module")
def openvino(
    openvino_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, ServeTask]:
    """Return a model of which OpenVINO takes all but the determinant, prepared by the real stages."""
    root = tmp_path_factory.mktemp("openvino")
    mixed = parse_text(
        "(float[2, 3, 3] x) => (float[2] y) { [product] a = MatMul(x, x) [determinant] y = Det(a) }"
    )
    return root, prepare_served(root, mixed, backend="openvino", python=openvino_python)


@pytest.fixture
def copied(openvino: tuple[Path, ServeTask], tmp_path: Path) -> ServeTask:
    root, task = openvino
    shutil.copytree(root / "artifact", tmp_path / "artifact")
    (tmp_path / "dev").mkdir()
    return promising(task, "Allow")


def test_openvino_refused_whole(copied: ServeTask, openvino_python: Path, tmp_path: Path) -> None:
    before = asks_openvino_for(device_type="GPU")
    observed = serve_until(
        tmp_path, copied, openvino_python, Reason.PROVIDER_REFUSED, before=before
    )
    assert observed.execution.provider_reason is Reason.PROVIDER_REFUSED
    agree(tmp_path, observed, Reason.PROVIDER_REFUSED, provider=True)


# fault: Reports | an allowed fallback without an Event | an Event when FallbackActive's reason
#   changes | next verdict
def test_openvino_in_part(copied: ServeTask, openvino_python: Path, tmp_path: Path) -> None:
    observed = serve_until(tmp_path, copied, openvino_python, Reason.NODE_FALLBACK)
    assert observed.execution.provider_reason is None
    agree(tmp_path, observed, Reason.NODE_FALLBACK, provider=False)


def test_openvino_replaced_while_it_serves(
    copied: ServeTask, openvino_python: Path, tmp_path: Path
) -> None:
    observed = serve_until(
        tmp_path, copied, openvino_python, Reason.SESSION_REPLACED,
        before=REPLACES_SESSION, falls=True,
    )  # fmt: skip
    agree(tmp_path, observed, Reason.SESSION_REPLACED, provider=True)


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
