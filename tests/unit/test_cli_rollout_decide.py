"""What `enginewright rollback` and `promote` decide: carried out in the world that plans are tested in."""

from datetime import UTC, datetime
from typing import Any

import pytest
from enginewright.api.inference_model import InferenceModel
from enginewright.manifests.labels import PROMOTE, ROLLBACK
from enginewright.observed.revisions import RevisionView
from enginewright_cli.reporting import Refused
from enginewright_cli.rollout.decide import Decision, age, promote, rollback
from enginewright_cli.rollout.gitops import reverting

from tests.support.plan_objects import OTHER, SECOND, publish_model
from tests.support.plan_world import World, serving
from tests.unit.test_plan_moves import make_rejected_canary, with_another_signature

CANARY = {"canary": {"replicas": 1, "hold": "1m"}}
THIRD = {"uri": "https://models.example/third.onnx"}
Fields = dict[str, Any]
PAUSED = ("spec", "rollout", "paused")


def observe(world: World) -> tuple[InferenceModel, tuple[RevisionView, ...]]:
    facts = world.facts()
    return facts.model, facts.revisions


def back(world: World, to: str | None = None) -> Decision:
    return rollback(*observe(world), to, world.now)


def carry_out(world: World, decision: Decision) -> World:
    annotations = world.subject["metadata"]["annotations"]
    for name, value in decision.annotations.items():
        annotations.pop(name, None)
        if value is not None:
            annotations[name] = value
    return world.settle().all_available()


def active(world: World) -> str:
    return str(world.status["active"]["revision"])


def third(world: World) -> World:
    return world.edit(source=THIRD).job_succeeds(publish_model("c" * 64, "f" * 64))


@pytest.fixture
def two() -> tuple[World, str, str]:
    world = serving()
    first = active(world)
    world.edit(source=OTHER).job_succeeds(SECOND).all_available()
    return world, first, active(world)


def test_the_active_one_goes_back_to_the_one_before(two: tuple[World, str, str]) -> None:
    world, first, second = two
    decision = back(world)
    assert decision.annotations == {ROLLBACK: f"{second} {first}", PROMOTE: None}
    assert active(carry_out(world, decision)) == first
    # nothing is left to go back to
    with pytest.raises(Refused, match=f"no earlier good revision.*{second} .Rejected"):
        back(world)


def test_twice_goes_back_twice(two: tuple[World, str, str]) -> None:
    world, first, second = two
    third(world.later(minutes=1)).all_available()
    newest = active(world)
    assert active(carry_out(world.later(minutes=1), back(world))) == second
    decision = back(world)
    assert decision.annotations[ROLLBACK] == f"{newest} {first}"
    assert active(carry_out(world, decision)) == first


def test_a_canary_is_rejected_and_the_active_one_stays(two: tuple[World, str, str]) -> None:
    world, _, second = two
    third(world.edit(rollout=CANARY))
    canary = world.status["target"]["revision"]
    decision = back(world)
    assert decision.annotations == {ROLLBACK: canary, PROMOTE: None}
    carry_out(world, decision)
    assert (active(world), world.canaries()) == (second, [])


def test_a_revision_is_named(two: tuple[World, str, str]) -> None:
    world, first, second = two
    third(world).all_available()
    newest = active(world)
    decision = back(world, first)
    assert decision.annotations[ROLLBACK] == f"{newest} {first}"
    assert active(carry_out(world, decision)) == first
    for to, said in (
        (first, "is the active one"),
        (newest, "is the one to be rolled back"),
        ("0123456789", "is unknown; known revisions: "),
    ):
        with pytest.raises(Refused, match=said):
            back(world, to)
    with pytest.raises(Refused) as listed:
        back(world, "0123456789")
    for item in (first, second, newest, "Promoted", "Rejected", "model dddddddddddd", "cpu:1"):
        assert item in str(listed.value)


def test_one_that_failed_may_be_named_and_is_reported(two: tuple[World, str, str]) -> None:
    world, first, second = two
    carry_out(world, back(world))
    third(world).all_available()
    decision = back(world, second)
    assert any(
        f"revision {second} failed earlier: RolledBackByUser" in note for note in decision.notes
    )
    assert active(carry_out(world, decision)) == second
    assert active(world) != first


def test_spec_is_not_judged_while_preparing(two: tuple[World, str, str]) -> None:
    world, first, second = two
    world.edit(source=THIRD)
    decision = back(world)
    assert (decision.annotations[ROLLBACK], decision.notes) == (f"{second} {first}", ())
    assert active(carry_out(world, decision)) == first


def test_nothing_to_roll_back() -> None:
    with pytest.raises(Refused, match="no revision serves"):
        back(World().settle())
    with pytest.raises(Refused, match="no earlier good revision"):
        back(World().settle().job_succeeds())
    with pytest.raises(Refused, match="no earlier good revision"):
        back(serving())


def test_the_operator_must_have_seen_the_spec(two: tuple[World, str, str]) -> None:
    world, *_ = two
    world.subject["metadata"]["generation"] += 1
    with pytest.raises(Refused, match="has not seen the latest spec"):
        back(world)
    with pytest.raises(Refused, match="has not seen the latest spec"):
        promote(*observe(world))


def test_a_canary_is_promoted(two: tuple[World, str, str]) -> None:
    world, *_ = two
    third(world.edit(rollout=CANARY))
    canary = world.status["target"]["revision"]
    decision = promote(*observe(world))
    assert (decision.annotations, decision.notes) == ({PROMOTE: canary, ROLLBACK: None}, ())
    assert active(carry_out(world, decision)) == canary


def test_a_rejection_is_lifted(two: tuple[World, str, str]) -> None:
    world, _, second = two
    carry_out(world, back(world))
    decision = promote(*observe(world))
    assert decision.annotations == {PROMOTE: second, ROLLBACK: None}
    assert active(carry_out(world, decision)) == second
    with pytest.raises(Refused, match=f"revision {second} serves"):
        promote(*observe(world))


def test_a_promotion_while_paused_says_so(two: tuple[World, str, str]) -> None:
    world, *_ = two
    third(world.edit(rollout={**CANARY, "paused": True}))
    assert world.status["target"]["phase"] == "Held"
    decision = promote(*observe(world))
    assert any("`enginewright resume`" in note for note in decision.notes)


def test_a_signature_that_breaks_clients_is_never_promoted(two: tuple[World, str, str]) -> None:
    world, *_ = two
    third(world.edit(rollout={**CANARY, "paused": True}))
    world.status["target"] |= {"reason": "SignatureChanged", "message": "input x is gone"}
    with pytest.raises(Refused, match=r"input x is gone.*spec.rollout.allowSignatureChange: true"):
        promote(*observe(world))


@pytest.mark.parametrize(
    ("seconds", "text"), [(-5, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (172800, "2d")]
)
def test_ages(seconds: int, text: str) -> None:
    now = datetime.fromtimestamp(1_800_000_000 + seconds, UTC)
    assert age("2027-01-15T08:00:00Z", now) == text
    assert age("", now) == "?"


def make_managed(manager: str, fields: dict[str, Any], **more: str) -> dict[str, Any]:
    return {"manager": manager, "fieldsV1": fields, **more}


SPEC: Fields = {"f:spec": {"f:source": {}}}
EXACT: Fields = {"f:spec": {"f:rollout": {"f:paused": {}}}}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([make_managed("kubectl", EXACT), make_managed("enginewright-cli", EXACT)], ""),
        ([make_managed("argocd-controller", SPEC)], "Argo CD (argocd-controller)"),
        (
            [make_managed("helm-controller", SPEC), make_managed("kustomize-controller", EXACT)],
            "Flux (kustomize-controller)",
        ),
        ([make_managed("argocd-controller", {"f:metadata": {"f:labels": {}}})], ""),
        ([make_managed("argocd-controller", EXACT, subresource="status")], ""),
        ([], ""),
    ],
)
def test_owner_of_a_change_is_named(fields: list[dict[str, Any]], message: str) -> None:
    assert reverting(fields, PAUSED) == message


def test_kept_image_is_promoted() -> None:
    member = make_rejected_canary()
    revision = member.record["revision"]
    decision = promote(*observe(member))
    assert decision.annotations == {PROMOTE: revision, ROLLBACK: None}
    assert active(carry_out(member, decision)) == revision


def test_a_signature_for_which_a_model_keeps_its_image_is_never_promoted() -> None:
    member = with_another_signature()
    with pytest.raises(Refused, match="allowSignatureChange"):
        promote(*observe(member))
