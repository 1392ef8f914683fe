"""Real fallbacks, seen by the real sidecar through the real server, under each policy."""

import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from enginewright_contract.reasons import Reason
from enginewright_contract.task import ServeTask
from enginewright_contract.verdict import Check

from tests.support.broken_models import parse_text
from tests.support.optional import present
from tests.support.serving import (
    REPLACES_SESSION,
    Server,
    asks_openvino_for,
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


def test_a_part_elsewhere_within_a_budget_is_ready_and_reported(
    partial: Server, openvino_python: Path
) -> None:
    task = promising(partial.task, "Budget", max_node_share=0.26)
    with Sidecar(partial.root, task, partial.port, python=openvino_python) as sidecar:
        sidecar.until_ready()
        fallback = present(sidecar.verdict().fallback)
        assert (fallback.nodes_total, fallback.nodes_elsewhere) == (4, 1)
        assert not fallback.active
        assert value(sidecar.metrics(), "enginewright_fallback_active", kind="NodeFallback") == 0


def test_the_incident_whole_and_silent_on_the_cpu(gpu_python: Path, tmp_path: Path) -> None:
    sample = {"x": np.ones((2, 8), np.float32)}
    task = promising(artifact(tmp_path, linear_model(), [sample]), "Allow")
    task = task.model_copy(update={"backend": "cuda"})
    with pod(tmp_path, task, gpu_python) as (_, sidecar):
        sidecar.until_ready()
        provider = sidecar.check(Check.PROVIDER)
        assert provider.state == "failed"
        assert provider.reason in (Reason.PROVIDER_MISSING, Reason.DRIVER_MISSING)
        fallback = present(sidecar.verdict().fallback)
        assert (fallback.active, fallback.reason) == (True, Reason.PROVIDER_MISSING)
        assert fallback.nodes_elsewhere == fallback.nodes_total == 2
        metrics = sidecar.metrics()
        cuda = "CUDAExecutionProvider"
        assert value(metrics, "enginewright_provider_available", provider=cuda) == 0
        assert value(metrics, "enginewright_placement_nodes", provider=cuda) == 0
        assert value(metrics, "enginewright_placement_nodes", provider=CPU) == 2
        active = {"kind": "NodeFallback", "reason": "ProviderMissing"}
        assert value(metrics, "enginewright_fallback_reason", **active) == 1


def test_a_provider_refused_by_openvino_has_its_own_reason(
    partial: Server, openvino_python: Path, tmp_path: Path
) -> None:
    shutil.copytree(partial.root / "artifact", tmp_path / "artifact")
    (tmp_path / "dev").mkdir()
    before = asks_openvino_for(device_type="GPU")
    task = promising(partial.task, "Allow")
    with pod(tmp_path, task, openvino_python, before) as (_, sidecar):
        sidecar.until_ready()
        assert sidecar.check(Check.PROVIDER).reason is Reason.PROVIDER_REFUSED
        fallback = present(sidecar.verdict().fallback)
        assert (fallback.active, fallback.reason) == (True, Reason.PROVIDER_REFUSED)


# fault: Reports | anybody who reaches port 8081 takes a pod out of service | requests change
#   nothing; only the pod's annotation does | prevented
def test_a_session_that_falls_back_while_it_serves(openvino_python: Path, tmp_path: Path) -> None:
    task = prepare_served(
        tmp_path,
        parse_text("(float[3, 3] x) => (float[3, 3] y) { [product] y = MatMul(x, x) }"),
        backend="openvino",
        python=openvino_python,
    )
    with pod(tmp_path, task, openvino_python, REPLACES_SESSION) as (server, sidecar):
        sidecar.until_ready()
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
