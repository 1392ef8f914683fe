"""A pod that is slow from its start: against the benchmark of its class, like with like."""

from pathlib import Path

import numpy as np
import pytest
from enginewright_contract.reasons import Reason
from enginewright_contract.verdict import Check

from tests.support.optional import present
from tests.support.serving import Feeds, Server, slow_model
from tests.support.sidecar import Sidecar, artifact, change_manifest, value
from tests.unit.test_sidecar_benchmark import engine, figure


# fault: Latency | a pod is slow from its start, with an engine | check `class-latency` | at the
#   start; alert after 5 min
@pytest.mark.parametrize(("p50", "state"), [(1e-5, "failed"), (60.0, "ok")])
def test_a_pod_that_starts_slow_is_found_by_the_real_sidecar(
    tmp_path: Path, p50: float, state: str
) -> None:
    sample: Feeds = {"turns": np.array([50], np.int64)}
    task = artifact(tmp_path, slow_model(), [sample])
    with Server(tmp_path, task) as server:
        change_manifest(tmp_path, engine=engine(figure("s0", p50)))
        with Sidecar(tmp_path, task, server.port, pace=0.1) as sidecar:
            verdict = sidecar.until_state(Check.CLASS_LATENCY, state, 60)
            ratio = present(
                value(sidecar.metrics(), "enginewright_latency_ratio", check="class-latency")
            )
            assert (ratio > 2) is (state == "failed")
            if state == "failed":
                assert verdict.reason is Reason.SLOWER_THAN_BENCHMARK
