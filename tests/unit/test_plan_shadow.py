"""When serving pods send copies of requests to a canary, to which pods, and what a rollout makes of it."""

from typing import Any

import pytest
from enginewright.manifests.labels import COMPONENT, PROMOTE, SERVE, TRACK
from enginewright_contract.measurements import ShadowComparison, ShadowOutput
from enginewright_contract.shadow import SHADOW_ANNOTATION, ShadowOrder, read_order
from enginewright_contract.task import TASK_VARIABLE, ServeTask

from tests.support.plan_objects import OTHER, SECOND, Json
from tests.support.plan_world import World, serving

CANARY: Json = {"replicas": 1, "hold": "5m", "shadow": "10%", "minSamples": 40}


def verifying(*, earlier: bool = False, **canary: Any) -> World:
    """Have a canary whose pods are ready, and whose golden inferences show no regression.

    `earlier`: what serves was created by a version whose pods have no token for copies.
    """
    world = serving(rollout={"canary": {**CANARY, **canary}}, replicas=2)
    if earlier:
        forget_token(world)
    world.edit(source=OTHER).job_succeeds(SECOND)
    return world.canary_available()


def forget_token(world: World) -> None:
    for stored in world.all("ControllerRevision"):
        for template in stored["data"]["templates"].values():
            for container in template["spec"]["containers"]:
                for variable in container["env"]:
                    task = ServeTask.model_validate_json(variable["value"])
                    without = task.model_copy(update={"shadow_token": None})
                    variable["value"] = without.to_json()
        world.kube.count_change(stored)
    world.settle().all_available()


def phase(world: World) -> str | None:
    target = world.status.get("target")
    return target["phase"] if target else None


def message(world: World) -> str:
    return str(world.status["target"]["message"])


def pods(world: World, *, canary: bool) -> list[Json]:
    return [
        pod
        for pod in world.all("Pod")
        if COMPONENT in pod["metadata"]["labels"]
        and (TRACK in pod["metadata"]["labels"]) is canary
        and "deployment" in pod["metadata"]["labels"]
    ]


def annotations(world: World, *, canary: bool = False) -> list[str | None]:
    return [
        (pod["metadata"].get("annotations") or {}).get(SHADOW_ANNOTATION)
        for pod in pods(world, canary=canary)
    ]


def order(world: World) -> ShadowOrder:
    first, second = annotations(world)
    assert first == second
    shadow = read_order(first or "")
    assert shadow is not None
    return shadow


def read_tokens(world: World) -> set[str | None]:
    """Return the tokens by which the servers of the canary's pods know copies."""
    return {
        ServeTask.model_validate_json(variable["value"]).shadow_token
        for deployment in world.all("Deployment")
        if TRACK in deployment["spec"]["template"]["metadata"]["labels"]
        for container in deployment["spec"]["template"]["spec"]["containers"]
        for variable in container["env"]
        if variable["name"] == TASK_VARIABLE
    }


def compare(world: World, compared: int, *, revision: str = "", **fields: Any) -> World:
    """Have the first serving pod's sidecar report a comparison."""
    new = revision or world.status["revision"]
    for pod in world.all("Pod"):
        name = pod["metadata"]["name"]
        if (current := world.measurements.get(name)) is None:
            continue
        is_canary = TRACK in pod["metadata"]["labels"]
        world.measurements[name] = current.model_copy(
            update={"revision": new if is_canary else world.status["active"]["revision"]}
        )
    name = pods(world, canary=False)[0]["metadata"]["name"]
    shadow = ShadowComparison(revision=new, compared=compared, **fields)
    measured = world.measurements[name]
    assert measured is not None
    world.measurements[name] = measured.model_copy(update={"shadow": shadow})
    return world.settle()


def test_serving_pods_are_to_send_a_share_to_the_canarys_ready_pods() -> None:
    world = verifying()
    assert phase(world) == "Verifying"
    assert "shadow" in message(world)
    assert not any(item.isdigit() for item in message(world)), "it would change at every poll"
    shadow = order(world)
    (canary,) = pods(world, canary=True)
    assert shadow.addresses == (canary["status"]["podIP"],)
    assert (shadow.share, shadow.revision) == (0.1, world.status["revision"])
    assert shadow.token in read_tokens(world), "the canary's server takes it for a copy"
    assert shadow.until == world.now.timestamp() + 120
    assert annotations(world, canary=True) == [None]


def test_the_order_is_renewed_while_the_canary_is_verified() -> None:
    world = verifying()
    first = order(world)
    assert order(world.later(seconds=30)) == first
    later = order(world.later(seconds=40))
    assert later.until > first.until


def test_without_the_field_no_pod_is_annotated() -> None:
    world = verifying(shadow=None)
    assert phase(world) == "Analyzing"
    assert annotations(world) == [None, None]


def test_nothing_is_sent_to_pods_that_are_not_ready() -> None:
    world = serving(rollout={"canary": CANARY}, replicas=2)
    world.edit(source=OTHER).job_succeeds(SECOND)
    (canary,) = world.canaries()
    world.serving_pod(canary["metadata"]["name"])
    world.settle()
    assert phase(world) == "Verifying"
    assert annotations(world) == [None, None]


def test_with_enough_answers_the_canary_gets_requests_and_no_more_copies() -> None:
    world = compare(verifying(), 39)
    assert phase(world) == "Verifying"
    compare(world, 40)
    assert phase(world) == "Analyzing"
    assert annotations(world) == ["", ""]
    labels = [pod["metadata"]["labels"][COMPONENT] for pod in pods(world, canary=True)]
    assert labels == [SERVE]


def test_answers_of_another_canary_do_not_count() -> None:
    assert phase(compare(verifying(), 1000, revision="older")) == "Verifying"


def test_without_enough_requests_it_goes_on_after_the_hold() -> None:
    world = verifying()
    assert phase(world.later(seconds=290)) == "Verifying"
    assert phase(world.later(seconds=20)) == "Analyzing"
    assert annotations(world) == ["", ""]


# event: Rollouts | the new revision answers otherwise than the serving one, or not at all, requests that
#   `canary.shadow` sends it too | the serving revision; no client gets the new revision's answers | `RolledBack` with
#   `AnswersChanged` above `maxOutputDifference`, or with `TooManyErrors`
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"failed": 30}, "TooManyErrors"),
        (
            {"outputs": (ShadowOutput(name="y", answers=5, worst=0.5, mean=0.5),)},
            "AnswersChanged",
        ),
    ],
)
def test_failure_is_found_before_requests(fields: dict[str, Any], reason: str) -> None:
    world = verifying()
    world.edit(rollout={**world.spec["rollout"], "analysis": {"maxOutputDifference": "0.1"}})
    compare(world, 5, **fields)
    assert world.conditions()["RolledBack"] == ("True", reason)
    assert not world.canaries()
    assert annotations(world) == ["", ""]


@pytest.mark.parametrize("ends", ["paused", "promoted", "reverted"])
def test_whatever_ends_the_verification_ends_the_copies(ends: str) -> None:
    world = verifying()
    assert order(world).addresses
    match ends:
        case "paused":
            world.edit(rollout={**world.spec["rollout"], "paused": True})
        case "promoted":
            world.annotate(PROMOTE, world.status["revision"])
        case _:
            world.edit(source={"uri": "https://models.example/resnet.onnx"})
    assert annotations(world) == ["", ""]


def test_a_revision_of_an_earlier_version_is_updated_without_and_says_so() -> None:
    world = verifying(earlier=True)
    assert phase(world) == "Analyzing"
    assert "canary.shadow has no effect" in message(world)
    assert annotations(world) == [None, None]
