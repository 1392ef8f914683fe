"""Counts that an autoscaler takes over, on a real API server, which decides by managed fields.

The autoscaler itself is played: it scales a Deployment by its subresource.
"""

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from enginewright.manifests.field_managers import FIELD_MANAGER, HANDOVER_MANAGER
from enginewright.observed.deployments import count_managers

from tests.apiserver.world import MODEL, World, set_up
from tests.e2e.harness import Namespace, eventually
from tests.support.operator_process import OperatorProcess

pytestmark = pytest.mark.apiserver

NAME: Final = f"{MODEL}-cpu"
AUTOSCALING: Final = {"minReplicas": 2, "maxReplicas": 9}
SELECTOR: Final = f"enginewright.dev/model={MODEL}"


class Autoscaled(World):
    """A model whose autoscaling is turned on and off, and its operator with the chart's rights."""

    def start_operator(self) -> OperatorProcess:
        return self.operator(with_chart_rights=True)

    def edit(self, **spec: Any) -> None:
        self.user.patch("im", MODEL, {"spec": spec})

    def turn(self, *, on: bool) -> None:
        self.edit(serving={"autoscaling": AUTOSCALING if on else None})

    def scale(self, count: int) -> None:
        """Scale the Deployment as an autoscaler does."""
        self.user.kubectl("scale", "deployment", NAME, f"--replicas={count}")

    def deployment(self) -> dict[str, Any]:
        return self.user.get("deployment", NAME)

    def count(self) -> int:
        return int(self.deployment()["spec"]["replicas"])

    def owners(self) -> set[str]:
        return set(count_managers(self.deployment()["metadata"]))

    def autoscalers(self) -> list[dict[str, Any]]:
        return self.user.items("hpa", SELECTOR)

    def wait_autoscaler(self) -> dict[str, Any]:
        (autoscaler,) = eventually(self.autoscalers, 20, "an autoscaler", interval=0.1)
        return dict(autoscaler)

    def version(self) -> str:
        return str(self.deployment()["metadata"]["resourceVersion"])

    def counts(self, since: str) -> list[int]:
        """Return every count that the Deployment has had after a version, also for a moment."""
        query = f"watch=true&resourceVersion={since}&timeoutSeconds=1"
        place = f"/apis/apps/v1/namespaces/{self.user.name}/deployments"
        events = self.user.kubectl("get", "--raw", f"{place}?{query}").splitlines()
        counts = [int(json.loads(event)["object"]["spec"]["replicas"]) for event in events]
        return [count for count, _ in itertools.groupby(counts)]

    def serve_five(self, operator: OperatorProcess) -> None:
        """Bring a model up with five pods."""
        self.bring_up(operator)
        self.edit(replicas=5, rollout={"canary": {"replicas": 0}})
        eventually(lambda: self.count() == 5, 20, interval=0.1)
        self.serve()
        operator.wait_quiet()


@pytest.fixture
def world(new_namespace: Callable[[], Namespace], tmp_path: Path) -> Iterator[Autoscaled]:
    with set_up(Autoscaled, new_namespace, tmp_path) as world:
        yield world


def test_a_live_count_is_handed_over_and_taken_back(world: Autoscaled) -> None:
    with world.start_operator() as operator:
        world.serve_five(operator)
        start, revision = world.version(), world.user.get("im", MODEL)["status"]["revision"]

        world.turn(on=True)
        spec = world.wait_autoscaler()["spec"]
        assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 9)
        assert spec["scaleTargetRef"]["name"] == NAME
        assert world.counts(start) == [5]
        assert world.owners() == {HANDOVER_MANAGER}

        world.user.patch("hpa", NAME, {"spec": {"maxReplicas": 3}})
        eventually(lambda: world.wait_autoscaler()["spec"]["maxReplicas"] == 9, 20, interval=0.1)

        world.scale(7)
        world.serve()
        operator.wait_quiet()
        assert world.owners() == {"kubectl"}
        status = world.user.get("im", MODEL)["status"]
        assert status["summary"]["classes"] == "cpu 7/7"
        assert status["revision"] == revision

        world.edit(podTemplate={"labels": {"team": "a"}})
        world.user.wait_condition(MODEL, "Ready", "False", "RollingOut", 20)
        world.serve()
        assert world.counts(start) == [5, 7]

        world.turn(on=False)
        eventually(lambda: world.count() == 5, 20, "the spec's count", interval=0.1)
        assert world.autoscalers() == []
        assert world.counts(start) == [5, 7, 5]
        assert FIELD_MANAGER in world.owners()


def test_a_count_is_kept_until_the_autoscaler_is_gone_without_an_operator_too(
    world: Autoscaled,
) -> None:
    with world.start_operator() as operator:
        world.serve_five(operator)
        world.turn(on=True)
        world.wait_autoscaler()
        world.scale(7)
        world.serve()
        start = world.version()
    world.user.delete("hpa", NAME)
    with world.start_operator() as operator:
        operator.wait_ready()
        world.wait_autoscaler()
        operator.wait_quiet()
        assert world.count() == 7
    world.turn(on=False)
    world.user.delete("hpa", NAME)
    with world.start_operator() as operator:
        operator.wait_ready()
        eventually(lambda: world.count() == 5, 20, "the spec's count", interval=0.1)
        operator.wait_quiet()
        assert world.autoscalers() == []
        assert world.counts(start) == [5]


def test_metrics_that_kubernetes_refuses_are_reported(world: Autoscaled) -> None:
    with world.start_operator() as operator:
        world.serve_five(operator)
        world.edit(serving={"autoscaling": {**AUTOSCALING, "metrics": [{"type": "Speed"}]}})
        assert "Speed" in world.wait_event("ApplyFailed")
        assert world.count() == 5
        queue = {
            "type": "Pods",
            "pods": {
                "metric": {"name": "enginewright_queue_depth"},
                "target": {"type": "AverageValue", "averageValue": "1500m"},
            },
        }
        world.edit(serving={"autoscaling": {**AUTOSCALING, "metrics": [queue, queue]}})
        assert len(world.wait_autoscaler()["spec"]["metrics"]) == 2
        operator.wait_quiet()
