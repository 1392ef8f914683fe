"""A pod that is slow from its start: against the benchmark of its class, like with like, and against other pods."""

from pathlib import Path

import numpy as np
import pytest
from enginewright_contract.reasons import Reason
from enginewright_contract.verdict import Check

from tests.support.optional import present
from tests.support.serving import Feeds, Server, slow_model
from tests.support.shared import share_server
from tests.support.sidecar import Sidecar, artifact, change_manifest, share_token, value
from tests.unit.test_sidecar_benchmark import engine, figure

TURNS: Feeds = {"turns": np.array([50])}
server = share_server(slow_model, TURNS)


# fault: Latency | a pod is slow from its start, with an engine | check `class-latency` | at the
#   start; alert after 5 min
@pytest.mark.parametrize(("p50", "state"), [(1e-5, "failed"), (60.0, "ok")])
def test_a_pod_that_starts_slow_is_found_by_the_real_sidecar(
    server: Server, tmp_path: Path, p50: float, state: str
) -> None:
    task = artifact(tmp_path, slow_model(), [TURNS])
    change_manifest(tmp_path, engine=engine(figure("s0", p50)))
    share_token(server, tmp_path)
    with Sidecar(tmp_path, task, server.port, pace=0.1) as sidecar:
        verdict = sidecar.until_state(Check.CLASS_LATENCY, state, 60)
        ratio = value(sidecar.metrics(), "enginewright_latency_ratio", check="class-latency")
        assert (present(ratio) > 2) is (state == "failed")
        if state == "failed":
            assert verdict.reason is Reason.SLOWER_THAN_BENCHMARK


# fault: Latency | a pod is slow from its start, without engines
def test_a_pod_that_is_slow_from_its_start_shows_beside_another_one(
    server: Server, tmp_path: Path
) -> None:
    def read_usual(beside: Server) -> float:
        with Sidecar(beside.root, beside.task, beside.port, pace=0.1) as sidecar:
            sidecar.until_ready()
            name = "enginewright_usual_latency_seconds"
            return present(value(sidecar.metrics(), name, shapes="s0"))

    task = artifact(tmp_path, slow_model(), [{"turns": np.array([5])}])
    with Server(tmp_path, task) as other:
        quick = read_usual(other)
    slow = read_usual(server)
    assert slow > 2 * quick
    assert slow - quick > 0.001
