"""HTTPRoutes with the Gateway API's own CRD, and without it. No gateway runs: the tests write what one reports."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.apiserver.world import MODEL, World, set_up
from tests.e2e.harness import Namespace, eventually
from tests.support.gateway_api import http_routes_crd
from tests.support.operator_process import OperatorProcess

pytestmark = pytest.mark.apiserver

CRD: Final = "httproutes.gateway.networking.k8s.io"
ROUTE: Final[dict[str, Any]] = {
    "parentRefs": [{"name": "public", "namespace": "infra", "sectionName": "https"}],
    "hostnames": ["models.example.com", "*.models.example.com"],
}
# looks for a kind that the cluster lacks every second
OFTEN: Final = """
from enginewright.controller import informer
informer.LACKING = 1.0
from enginewright.main import main
main()
"""


class Routed(World):
    """A model with and without a route, and its operator with the chart's rights."""

    def start_operator(self, program: tuple[str, ...] = ()) -> OperatorProcess:
        return self.operator(with_chart_rights=True, program=program)

    def install(self) -> None:
        self.user.kubectl("apply", "--server-side", "--filename", str(http_routes_crd()))
        self.user.wait_established(CRD)

    def uninstall(self) -> None:
        self.user.kubectl("delete", "crd", CRD, "--ignore-not-found")

    def turn(self, *, on: bool) -> None:
        route = {"serving": {"route": ROUTE if on else None}}
        self.user.patch("im", MODEL, {"spec": route})

    def routes(self) -> list[dict[str, Any]]:
        return self.user.items(CRD)

    def wait_route(self) -> dict[str, Any]:
        (route,) = eventually(self.routes, 20, "a route", interval=0.1)
        return dict(route)

    def services(self) -> list[str]:
        return [entry["metadata"]["name"] for entry in self.user.items("services")]

    def gateway_says(self, **statuses: tuple[str, str]) -> None:
        """Report as the controller of the gateway: status and reason by type of condition."""
        conditions = [
            {
                "type": kind,
                "status": status,
                "reason": reason,
                "message": "the listener allows no routes from this namespace",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
            for kind, (status, reason) in statuses.items()
        ]
        parent = {
            "parentRef": ROUTE["parentRefs"][0],
            "controllerName": "example.com/gateway",
            "conditions": conditions,
        }
        self.user.patch(CRD, MODEL, {"status": {"parents": [parent]}}, "status")

    def wait_accepted(self, status: str, reason: str) -> None:
        self.user.wait_condition(MODEL, "RouteAccepted", status, reason, 20)


@pytest.fixture
def world(new_namespace: Callable[[], Namespace], tmp_path: Path) -> Iterator[Routed]:
    with set_up(Routed, new_namespace, tmp_path) as world:
        yield world
    world.uninstall()


def test_a_route_as_the_gateway_api_has_it_from_its_creation_to_its_end(world: Routed) -> None:
    world.install()
    with world.start_operator() as operator:
        world.bring_up(operator)
        assert world.routes() == []
        world.turn(on=True)
        route = world.wait_route()
        world.wait_accepted("Unknown", "NotYetVerified")
        (owner,) = route["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"]) == ("InferenceModel", MODEL)
        (rule,) = route["spec"]["rules"]
        assert [item["weight"] for item in rule["backendRefs"]] == [10_000, 0]
        assert sorted(world.services()) == sorted(item["name"] for item in rule["backendRefs"])

        operator.wait_quiet()
        world.user.patch(CRD, MODEL, {"spec": {"hostnames": ["evil.example.com"]}})
        eventually(
            lambda: world.wait_route()["spec"]["hostnames"] == ROUTE["hostnames"], 20, interval=0.1
        )
        assert "spec.hostnames" in world.wait_event("EditUndone")
        world.user.delete(CRD, MODEL)
        world.wait_route()

        world.gateway_says(
            Accepted=("False", "NotAllowedByListeners"), ResolvedRefs=("True", "ResolvedRefs")
        )
        world.wait_accepted("False", "RouteRejected")
        assert "NotAllowedByListeners" in world.wait_event("RouteRejected")
        assert world.user.condition(MODEL, "Ready")["status"] == "True"
        world.gateway_says(Accepted=("True", "Accepted"), ResolvedRefs=("True", "ResolvedRefs"))
        world.wait_accepted("True", "RouteAccepted")

        operator.wait_quiet()
        world.turn(on=False)
        eventually(lambda: world.services() == [MODEL], 20, "one Service", interval=0.1)
        assert world.routes() == []
        operator.wait_quiet()


def test_a_model_serves_without_the_gateway_api_and_gets_its_route_once_it_is_installed(
    world: Routed,
) -> None:
    world.uninstall()
    with world.start_operator(("-c", OFTEN)) as operator:
        world.bring_up(operator)
        world.turn(on=True)
        world.user.wait_condition(MODEL, "Ready", "False", "GatewayAPIMissing", 20)
        assert world.user.condition(MODEL, "Available")["status"] == "True"
        assert world.services() == [MODEL]
        operator.wait_quiet()
        world.install()
        world.wait_route()
        world.user.wait_condition(MODEL, "Ready", "True", "Serving", 20)
        world.user.delete(CRD, MODEL)
        world.wait_route()


def test_the_gateway_api_may_be_removed_from_under_a_route(world: Routed) -> None:
    world.install()
    with world.start_operator() as operator:
        world.bring_up(operator)
        world.turn(on=True)
        world.wait_route()
    world.uninstall()
    with world.start_operator() as operator:
        operator.wait_ready()
        world.user.wait_condition(MODEL, "Ready", "False", "GatewayAPIMissing", 20)
        world.turn(on=False)
        world.user.wait_condition(MODEL, "Ready", "True", "Serving", 20)
        eventually(lambda: world.services() == [MODEL], 20, "one Service", interval=0.1)
        operator.wait_quiet()
