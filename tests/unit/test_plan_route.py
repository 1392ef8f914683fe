"""A model's HTTPRoute: the canary's share in each phase, what gateways say, and clusters without the Gateway API."""

from typing import Any, Final

import pytest
from enginewright.manifests.labels import CANARY, COMPONENT, MODEL, SERVE, TRACK
from enginewright.manifests.route import WEIGHTS
from enginewright_contract.reasons import Reason

from tests.support.plan_objects import NAMESPACE, OTHER, SECOND, Json
from tests.support.plan_world import World, serving

GATEWAY: Final[Json] = {"name": "public", "namespace": "infra", "sectionName": "https"}
ROUTE: Final[Json] = {"parentRefs": [GATEWAY], "hostnames": ["models.example.com"]}
CANARY_SPEC: Final[Json] = {"replicas": 1, "hold": "1m"}


def serve_routed(strategy: str = "Surge", replicas: int = 4, **canary: Any) -> World:
    rollout = {"strategy": strategy, "canary": {**CANARY_SPEC, **canary}}
    return serving(rollout=rollout, replicas=replicas, serving={"route": ROUTE})


def update(world: World) -> World:
    return world.edit(source=OTHER).job_succeeds(SECOND)


def phase(world: World) -> str | None:
    target = world.status.get("target")
    return target["phase"] if target else None


def weights(world: World) -> tuple[int, int]:
    (rule,) = world.the("HTTPRoute")["spec"]["rules"]
    stable, canary = rule["backendRefs"]
    assert stable["weight"] + canary["weight"] == WEIGHTS
    return stable["weight"], canary["weight"]


def find_selected(world: World, service: str) -> set[str]:
    """Return the tracks of the pods that a Service selects."""
    selector = world.get("Service", service)["spec"]["selector"]
    labels = [pod["metadata"]["labels"] for pod in world.all("Pod")]
    return {label.get(TRACK, "stable") for label in labels if selector.items() <= label.items()}


def canary_service(world: World) -> str:
    (rule,) = world.the("HTTPRoute")["spec"]["rules"]
    return str(rule["backendRefs"][1]["name"])


def gateway_says(world: World, *conditions: tuple[str, str, str]) -> World:
    """Have the controller of the one gateway respond."""
    said = [
        {"type": kind, "status": status, "reason": reason, "message": f"{reason}!"}
        for kind, status, reason in conditions
    ]
    parent = {"parentRef": GATEWAY, "controllerName": "example.com/gateway", "conditions": said}
    world.the("HTTPRoute")["status"] = {"parents": [parent]}
    return world.settle()


def test_a_model_that_asks_for_none_has_no_route() -> None:
    world = serving()
    assert world.all("HTTPRoute") == []
    assert [entry["metadata"]["name"] for entry in world.all("Service")] == ["resnet"]
    assert "RouteAccepted" not in world.conditions()


def test_the_route_takes_inference_requests_of_its_gateways_and_hostnames() -> None:
    world = serve_routed()
    route = world.the("HTTPRoute")
    (parent,) = route["spec"]["parentRefs"]
    assert parent == {"group": "gateway.networking.k8s.io", "kind": "Gateway", **GATEWAY}
    assert route["spec"]["hostnames"] == ["models.example.com"]
    (rule,) = route["spec"]["rules"]
    assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": "/v2/models/resnet"}}]
    assert [item["name"] for item in rule["backendRefs"]] == ["resnet", canary_service(world)]
    assert route["metadata"]["ownerReferences"][0]["name"] == "resnet"
    assert weights(world) == (WEIGHTS, 0)


def test_the_canarys_service_has_a_name_of_no_models_service() -> None:
    name = canary_service(serve_routed())
    assert name != "resnet-canary"
    assert len(name) <= 63


# event: Rollouts | `spec.serving.route` is set or removed | the same pods, of the same revision | the
#   model's HTTPRoute; condition `RouteAccepted`
def test_a_route_is_added_and_removed_without_a_new_revision() -> None:
    world = serving()
    before = world.status["revision"]
    world.edit(serving={"route": ROUTE})
    assert weights(world) == (WEIGHTS, 0)
    world.edit(serving=None)
    assert world.all("HTTPRoute") == []
    assert [entry["metadata"]["name"] for entry in world.all("Service")] == ["resnet"]
    assert world.status["revision"] == before
    assert world.conditions()["Ready"] == ("True", "Serving")
    assert not world.canaries()


def test_service_and_route_change_to_tls_with_the_pods_that_speak_it() -> None:
    world = serve_routed()

    def ports() -> list[int]:
        (rule,) = world.the("HTTPRoute")["spec"]["rules"]
        names = [item["name"] for item in rule["backendRefs"]]
        opened = [world.get("Service", name)["spec"]["ports"][0]["port"] for name in names]
        assert opened == [item["port"] for item in rule["backendRefs"]]
        return opened

    assert ports() == [80, 80]
    world.edit(serving={"route": ROUTE, "tls": {"secretRef": {"name": "certificate"}}})
    assert phase(world) == "Verifying"
    assert ports() == [80, 443]
    world.canary_available()
    while phase(world) == "Analyzing":
        world.later(seconds=61)
    world.all_available()
    assert ports() == [443, 443]


def test_the_canary_gets_exact_shares_and_is_never_behind_the_models_service() -> None:
    world = update(serve_routed(steps=["5%", "12.5%"]))
    assert phase(world) == "Verifying"
    assert weights(world) == (WEIGHTS, 0)
    world.canary_available()
    seen = []
    while phase(world) == "Analyzing":
        seen.append(weights(world))
        assert find_selected(world, "resnet") == {"stable"}
        assert find_selected(world, canary_service(world)) == {CANARY}
        world.later(seconds=61)
        if phase(world) == "Analyzing":
            world.canary_available()
    assert seen == [(9500, 500), (9500, 500), (8750, 1250)]
    assert phase(world) == "Promoting"
    assert weights(world) == (WEIGHTS, 0)
    assert find_selected(world, "resnet") == {"stable", CANARY}, "it serves until it is replaced"
    world.all_available()
    assert world.conditions()["Ready"] == ("True", "Serving")
    assert weights(world) == (WEIGHTS, 0)
    assert not world.canaries()


@pytest.mark.parametrize(("steps", "canary"), [([], 2000), (["0.001%"], 1)], ids=["pods", "least"])
def test_share_without_steps_is_that_of_the_pods_and_never_none(
    steps: list[str], canary: int
) -> None:
    world = update(serve_routed(replicas=4, steps=steps)).canary_available()
    assert weights(world) == (WEIGHTS - canary, canary)


def test_in_place_some_pod_is_behind_the_service_at_every_moment() -> None:
    world = update(serve_routed("InPlace", replicas=2, steps=["50%"])).canary_available()
    assert find_selected(world, "resnet") == {"stable"}
    for _ in range(2):
        world.later(seconds=61).canary_available()
    assert phase(world) == "Promoting"
    assert find_selected(world, "resnet") == {"stable", CANARY}


def test_a_canary_without_a_ready_pod_gets_no_requests() -> None:
    world = update(serve_routed(steps=["50%"])).canary_available()
    assert weights(world) == (8000, 2000)
    for pod in world.canary_pods():
        world.remove("Pod", pod["metadata"]["name"])
    world.settle()
    assert phase(world) == "Analyzing"
    assert weights(world) == (WEIGHTS, 0)


@pytest.mark.parametrize("on_failure", ["Rollback", "Pause"])
def test_a_rejected_canary_gets_no_requests_from_the_same_pass_on(on_failure: str) -> None:
    world = serve_routed(steps=["50%"])
    world.edit(rollout={**world.spec["rollout"], "onFailure": on_failure})
    update(world).canary_available()
    assert weights(world)[1] > 0
    name = world.canaries()[0]["metadata"]["name"]
    world.crash(name, Reason.BACKEND_CRASHED, index=0)
    world.pass_once()
    assert weights(world) == (WEIGHTS, 0)
    assert world.last
    order = [entry["kind"] for entry in world.last.apply]
    assert order[-1] == "HTTPRoute", "what cannot be applied stops nothing else"
    world.settle()
    assert world.conditions()["RolledBack"] == ("True", "BackendCrashed")
    assert find_selected(world, "resnet") == {"stable"}


def test_another_edit_takes_the_canarys_requests_at_once() -> None:
    world = update(serve_routed(steps=["50%"])).canary_available()
    world.edit(source={"uri": "https://models.example/resnet.onnx"})
    assert weights(world) == (WEIGHTS, 0)
    assert world.conditions()["Ready"] == ("True", "Serving")


def test_a_route_added_in_the_middle_takes_the_canary_from_behind_the_service() -> None:
    world = serve_routed(steps=["5%"]).edit(serving=None)
    update(world).canary_available()
    assert find_selected(world, "resnet") == {"stable", CANARY}
    world.edit(serving={"route": ROUTE})
    assert find_selected(world, "resnet") == {"stable"}
    assert weights(world) == (9500, 500)
    world.edit(serving=None)
    assert find_selected(world, "resnet") == {"stable", CANARY}


def test_a_gateway_accepts_the_route() -> None:
    world = serve_routed()
    assert world.conditions()["RouteAccepted"] == ("Unknown", "NotYetVerified")
    gateway_says(world, ("Accepted", "True", "Accepted"), ("ResolvedRefs", "True", "ResolvedRefs"))
    assert world.conditions()["RouteAccepted"] == ("True", "RouteAccepted")
    assert "infra/public (https)" in world.condition("RouteAccepted")["message"]


# event: Rollouts | a gateway refuses a model's HTTPRoute | the pods, behind the model's Service |
#   condition `RouteAccepted` and an Event with the gateway's reason
@pytest.mark.parametrize(
    ("kind", "reason"),
    [("Accepted", "NotAllowedByListeners"), ("ResolvedRefs", "RefNotPermitted")],
)
def test_a_gateway_that_refuses_is_reported_and_the_pods_stay_ready(kind: str, reason: str) -> None:
    world = gateway_says(serve_routed(), ("Programmed", "False", "Other"), (kind, "False", reason))
    assert world.conditions()["RouteAccepted"] == ("False", "RouteRejected")
    message = world.condition("RouteAccepted")["message"]
    assert "infra/public (https)" in message
    assert reason in message
    assert world.conditions()["Ready"] == ("True", "Serving")
    reported = [event for event in world.events if event.reason == "RouteRejected"]
    assert [intent.type for intent in reported] == ["Warning"]
    assert reason in reported[0].message


# event: Rollouts | `spec.serving.route` is set in a cluster without the Gateway API | what serves, untouched |
#   Ready `GatewayAPIMissing`, until its CRDs are installed
def test_a_cluster_without_the_gateway_api_is_an_obstacle_and_serving_is_not_touched() -> None:
    world = serving()
    world.has_routes = False
    before = world.the("Deployment")["metadata"]["generation"]
    world.edit(serving={"route": ROUTE}, source=OTHER)
    assert world.conditions()["Ready"] == ("False", "GatewayAPIMissing")
    assert world.conditions()["Stalled"][0] == "True"
    assert world.conditions()["RouteAccepted"] == ("False", "GatewayAPIMissing")
    assert world.conditions()["Available"][0] == "True"
    assert world.the("Deployment")["metadata"]["generation"] == before
    assert world.all("HTTPRoute") == []
    world.has_routes = True
    world.settle().job_succeeds(SECOND).all_available()
    assert world.conditions()["Ready"] == ("True", "Serving")
    assert weights(world) == (WEIGHTS, 0)


def test_kinds_that_vanish_during_a_rollout_leave_the_canary_without_requests() -> None:
    world = update(serve_routed(steps=["5%"])).canary_available()
    world.kube.remove("HTTPRoute", NAMESPACE, "resnet")
    world.has_routes = False
    world.settle()
    assert find_selected(world, "resnet") == {"stable"}
    assert world.conditions()["Available"][0] == "True"


def test_canary_service_has_labels_of_its_own() -> None:
    world = serve_routed()
    labels = world.get("Service", canary_service(world))["metadata"]["labels"]
    assert labels[COMPONENT] != SERVE
    assert labels[MODEL] == "resnet"
