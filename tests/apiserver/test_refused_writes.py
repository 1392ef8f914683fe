"""An update whose Job a quota refuses, on a real API server: all else goes on, and it follows once the quota is gone."""

import time
from typing import Any, Final

import pytest

from tests.apiserver.world import MODEL, World
from tests.e2e.harness import eventually

pytestmark = pytest.mark.apiserver

QUOTA: Final = {"count/jobs.batch": "0"}
UPDATE: Final = {"spec": {"source": {"uri": "https://example.com/other.onnx"}}}
DEPLOYMENT: Final = f"{MODEL}-cpu"
ATTEMPTS: Final = 8  # in half a minute: after 1 s, 2 s, 4 s, 8 s and 16 s


def forbid_jobs(world: World) -> None:
    """Have a quota for Jobs, as its controller, which does not run here, would keep it."""
    quota: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "jobs"},
        "spec": {"hard": QUOTA},
    }
    world.user.apply(quota)
    world.user.patch("resourcequota", "jobs", {"status": {"hard": QUOTA, "used": QUOTA}}, "status")


def wait_replicas(world: World, count: int) -> None:
    def is_scaled() -> bool:
        return bool(world.user.get("deployment", DEPLOYMENT)["spec"]["replicas"] == count)

    eventually(is_scaled, 20, f"{count} replicas", interval=0.1)


def test_quota_for_jobs_holds_up_the_update_alone(world: World) -> None:
    with world.operator() as operator:
        world.bring_up(operator)
        operator.wait_quiet()
        forbid_jobs(world)
        before = operator.total("rest_client_requests_total", code="403")
        started = time.monotonic()
        world.user.patch("im", MODEL, UPDATE)
        assert "exceeded quota: jobs" in world.wait_event("ApplyFailed")
        refused = world.user.wait_condition(MODEL, "Ready", "False", "ApplyFailed", 20)
        assert refused["message"].startswith("the preparation waits for Job m-prepare-")
        assert "scaling, repair and rollback go on" in refused["message"]
        for count in (3, 2, 1):
            world.user.kubectl("scale", "im", MODEL, f"--replicas={count}")
            wait_replicas(world, count)
        for kind, name in (("deployment", DEPLOYMENT), ("service", MODEL), ("pdb", DEPLOYMENT)):
            world.user.delete(kind, name)
            eventually(lambda: world.user.get(kind, name), 20, f"{kind} {name}", interval=0.1)  # noqa: B023 - called at once
        attempts = operator.total("rest_client_requests_total", code="403") - before
        assert 1 <= attempts <= ATTEMPTS + (time.monotonic() - started) / 30
        assert len(world.jobs("prepare")) == 1
        world.user.delete("resourcequota", "jobs")
        eventually(lambda: len(world.jobs("prepare")) == 2, 150, "the update's Job", interval=0.2)
