"""One model and new runtime images: which one it is planned with, when it moves, and when it keeps its own."""

from dataclasses import replace
from typing import Any, Final

import pytest
from enginewright.manifests.labels import PROMOTE, ROLLBACK
from enginewright.observed.moves import move_view
from enginewright.plan.fleet.turns import fleet_state
from enginewright.plan.types import FleetConfig
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Published
from enginewright_contract.signature import PublishedSignature, TensorText
from enginewright_contract.verdict import Check

from tests.support.plan_objects import (
    CPU_IMAGE,
    OTHER,
    RTX_IMAGE,
    SECOND,
    Json,
    image_facts,
    publish_model,
    verdict,
)
from tests.support.plan_world import World

NEW: Final = "registry.example/cpu:2"
NEWER: Final = "registry.example/cpu:3"
# what the new image prepares is another artefact
MOVED: Final = SECOND
BAD: Final[Json] = {"uri": "https://models.example/bad.onnx"}


class Member(World):
    """A model of a fleet, which waits for its turn unless it has one."""

    def __init__(
        self, prepared: Published | None = None, gpus: Json | None = None, **spec: Any
    ) -> None:
        super().__init__(**spec)
        self.turn = False
        if gpus is not None:
            self.has_gpus(**gpus)
        self.settle().job_succeeds(prepared).all_available().jobs_are_cleaned_away()

    def upgrade(self, image: str = NEW, **facts: Any) -> "Member":
        like = image_facts("cpu", "1.32.0").model_copy(update=facts)
        self.new_runtime_image(image, like=like)
        return self

    def moves(self) -> "Member":
        self.turn = True
        return self.settle()

    @property
    def record(self) -> Json:
        record: Json = self.status["images"]
        return record

    def state(self) -> tuple[str, str]:
        return self.record["state"], self.record.get("reason", "")

    def serving_images(self) -> set[str]:
        templates = [
            serving_deployment["spec"]["template"]["spec"]
            for serving_deployment in self.serving_deployments()
        ]
        return {item["image"] for spec in templates for item in spec["containers"]}


def refuse_image() -> Member:
    member = Member().upgrade().moves()
    member.job_fails(Reason.UNSUPPORTED_OPERATOR)
    return member


def test_a_model_that_waits_is_planned_with_the_image_that_it_has() -> None:
    member = Member()
    before, revision = member.serving_images(), member.status["revision"]
    member.upgrade()
    assert member.state() == ("Waiting", "")
    assert member.record["target"] == [{"variant": "cpu", "image": NEW}]
    assert member.conditions()["Ready"] == ("True", "Serving")
    assert (member.serving_images(), member.status["revision"]) == (before, revision)
    assert not member.running_jobs()


def test_the_move_is_recorded_before_anything_is_created_for_it() -> None:
    member = Member().upgrade()
    member.turn = True
    assert member.pass_once()
    assert member.state() == ("Moving", "")
    assert not member.running_jobs()
    member.turn = False  # it has begun
    assert member.pass_once()
    assert len(member.running_jobs()) == 1


def test_it_moves_and_has_moved_once_it_serves_with_all_its_pods() -> None:
    member = Member().upgrade().moves()
    member.turn = False
    member.job_succeeds(MOVED)
    assert member.state() == ("Moving", "")
    member.all_available()
    assert member.state() == ("Moved", "")
    assert member.record["image"] == NEW
    assert member.serving_images() == {NEW}
    assert member.conditions()["Ready"] == ("True", "Serving")


def test_first_deployments_take_the_new_image_without_a_turn() -> None:
    world = World()
    world.new_runtime_image(NEW, like=image_facts("cpu"))
    world.settle().job_succeeds().all_available()
    assert world.status["images"]["image"] == NEW


def test_a_spec_that_changes_meanwhile_is_rolled_out_with_the_image_that_it_has() -> None:
    member = Member().upgrade()
    member.edit(source=OTHER)
    assert member.state() == ("Waiting", "RollingOut")
    assert member.job()["spec"]["template"]["spec"]["containers"][0]["image"] == CPU_IMAGE
    member.moves()
    assert member.state() == ("Waiting", "RollingOut"), "one after the other"
    member.turn = False
    member.job_succeeds(SECOND).all_available()
    assert member.serving_images() == {CPU_IMAGE}
    assert member.state() == ("Waiting", "")


def test_a_spec_that_fails_with_the_old_image_may_need_the_new_one() -> None:
    member = Member().upgrade()
    member.edit(source=OTHER).job_fails(Reason.OPSET_UNSUPPORTED)
    assert member.conditions()["Ready"] == ("False", "OpsetUnsupported")
    assert member.state() == ("Waiting", "")
    member.moves().job_succeeds(MOVED).all_available()
    assert member.state() == ("Moved", "")


def test_a_spec_that_fails_with_both_is_no_failure_of_the_new_image() -> None:
    member = Member().upgrade()
    member.edit(source=BAD).job_fails(Reason.OPSET_UNSUPPORTED)
    member.moves().job_fails(Reason.OPSET_UNSUPPORTED)
    assert member.state() == ("Kept", "OpsetUnsupported")
    assert failures_of_images(member) == 0
    member.turn = False
    member.edit(source=OTHER).job_succeeds(SECOND).all_available()
    assert member.state() == ("Waiting", "")


def test_model_that_the_image_cannot_prepare_keeps_its_own() -> None:
    member = refuse_image()
    assert member.state() == ("Kept", "UnsupportedOperator")
    assert member.record["message"]
    assert failures_of_images(member) == 1
    assert member.event_reasons().count("ImageKept") == 1
    assert member.conditions()["Ready"] == ("True", "Serving")
    assert member.serving_images() == {CPU_IMAGE}
    assert not member.running_jobs()


UNJUDGED: Final = "3 of 84 indices of axis 1 (4, 7, 9) of output 'dets' do not vary enough for INT8"
ACCEPTED: Final[Json] = {"outputs": [{"name": "dets", "acceptUnjudged": True}]}


# event: Operator | a new image's proof does not judge parts of what a model serves | the model with its own image | an
#   Event `ImageKept` with the parts; it moves once its spec shows or accepts them
def test_model_that_a_new_proof_does_not_judge_keeps_its_image_until_that_is_accepted() -> None:
    member = Member(precision="INT8").upgrade().moves()
    member.job_fails(Reason.PARITY_UNKNOWN, "quantize", UNJUDGED)
    assert member.state() == ("Kept", "ParityUnknown")
    assert UNJUDGED in member.record["message"]
    (kept,) = [event for event in member.events if event.reason == "ImageKept"]
    assert UNJUDGED in kept.message
    assert member.conditions()["Ready"] == ("True", "Serving")
    assert member.serving_images() == {CPU_IMAGE}
    assert not member.later(days=2).running_jobs()
    member.edit(parity=ACCEPTED).job_succeeds(SECOND).all_available()
    assert member.state() == ("Moving", "")
    member.job_succeeds(publish_model("e" * 64)).all_available()
    assert (member.state(), member.serving_images()) == (("Moved", ""), {NEW})


def test_a_failure_that_can_pass_is_none() -> None:
    member = Member().upgrade().moves()
    member.job_fails(Reason.STORE_UNAVAILABLE)
    assert member.state() == ("Moving", "")


# decisions of users, and what becomes of it later


CANARY: Final[Json] = {"canary": {"replicas": 1, "hold": "1m"}}


def with_a_canary(**spec: Any) -> Member:
    member = Member(rollout=CANARY, replicas=2, **spec).upgrade().moves().job_succeeds(MOVED)
    assert member.canaries()
    return member


def failures_of_images(member: Member) -> int:
    """Return for how many failures of the new image the fleet counts this model."""
    assert member.model
    view = move_view(member.model)
    assert view
    return fleet_state([view], member.config.images, FleetConfig()).failures


def going_back() -> tuple[Member, str, str]:
    """Return a model that has moved, then failed its proofs and goes back; the revisions before and after the move."""
    member = with_a_canary()
    old = member.status["active"]["revision"]
    member.canary_available().later(seconds=61).all_available()
    new = member.status["active"]["revision"]
    assert member.state() == ("Moved", "")
    (deployment,) = member.serving_deployments()
    name = deployment["metadata"]["name"]
    member.partly_available(name, 0)
    for index in range(2):
        member.verdicts[f"{name}-{index:05}"] = verdict(failed={Check.GOLDEN: Reason.PARITY_FAILED})
    return member.settle().canary_available(), old, new


def fails_after_the_promotion() -> tuple[Member, str, str]:
    """Return that model once it has gone back."""
    member, old, new = going_back()
    return member.all_available().job_succeeds(), old, new  # what the image before prepares


def test_a_revision_that_fails_after_its_promotion_keeps_the_image_before() -> None:
    member, old, new = fails_after_the_promotion()
    assert old != new
    assert member.status["active"]["revision"] == old
    assert member.state() == ("Kept", "ParityFailed")
    assert member.record["revision"] == new
    assert member.serving_images() == {CPU_IMAGE}
    assert failures_of_images(member) == 1
    assert member.event_reasons().count("ImageKept") == 1
    assert member.conditions()["Ready"] == ("True", "Serving")
    for _ in range(3):
        member.later(hours=30).operator_restarts()
        assert member.state() == ("Kept", "ParityFailed")
        assert not member.canaries()
        assert member.serving_images() == {CPU_IMAGE}
    assert member.rolled_back == ["ParityFailed"]


@pytest.mark.parametrize("event", ["a third spec", "an obstacle"])
def test_events_while_it_goes_back_start_no_move(event: str) -> None:
    member, old, new = going_back()
    if event == "a third spec":
        member.edit(source=OTHER).all_available()
    else:
        images, member.images = member.images, {}
        member.settle().all_available()
        member.images = images
        member.settle()
    assert member.status["active"]["revision"] == old
    assert member.state() == ("Kept", "ParityFailed")
    assert member.record["revision"] == new
    assert failures_of_images(member) == 1


def test_user_rollback_after_the_move_keeps_the_image_before() -> None:
    member = Member().upgrade().moves().job_succeeds(MOVED).all_available()
    member.annotate(ROLLBACK, member.status["revision"]).all_available()
    assert member.state() == ("Kept", "RolledBackByUser")
    member.annotate(ROLLBACK, None)
    assert member.state() == ("Kept", "RolledBackByUser")
    assert member.serving_images() == {CPU_IMAGE}


def test_user_rollback_to_another_spec_keeps_the_image_before() -> None:
    member = with_a_canary()
    old = member.status["active"]["revision"]
    member.canary_available().later(seconds=61).all_available()
    member.edit(source=OTHER).job_succeeds(publish_model("e" * 64))
    member.canary_available().later(seconds=61).all_available()
    rejected = member.status["active"]["revision"]
    member.annotate(ROLLBACK, f"{rejected} {old}").all_available()
    assert member.state() == ("Kept", "RolledBackByUser")
    member.job_succeeds(publish_model("d" * 64)).annotate(ROLLBACK, None).later(hours=30)
    assert not member.canaries()
    assert member.status["active"]["revision"] == old
    assert member.conditions()["RolledBack"] == ("True", "RolledBackByUser")
    assert member.rolled_back == ["RolledBackByUser"]
    member.annotate(PROMOTE, member.status["lastFailure"]["revision"])
    assert member.state() == ("Moving", "")
    assert member.all_available().status["active"]["revision"] == rejected


@pytest.mark.parametrize("by_user", [False, True])
def test_kept_image_is_known_without_the_status(by_user: bool) -> None:
    member = with_a_canary()
    if by_user:
        member.annotate(ROLLBACK, member.status["target"]["revision"]).annotate(ROLLBACK, None)
    else:
        member = make_rejected_canary()
    state, revision = member.state(), member.record["revision"]
    member.status = {}
    member.settle()
    assert (member.state(), member.record["revision"]) == (state, revision)
    assert failures_of_images(member) == 1
    member.job_succeeds()
    assert not member.canaries()
    assert member.state() == state
    assert member.conditions()["Ready"] == ("True", "Serving")


def make_rejected_canary() -> Member:
    member = reject_canary(with_a_canary())
    assert member.state() == ("Kept", "ParityFailed")
    assert member.conditions()["Ready"] == ("True", "Serving")
    assert (member.canaries(), member.serving_images()) == ([], {CPU_IMAGE})
    return member


def reject_canary(member: Member) -> Member:
    member.canary_available()
    for pod in member.canary_pods():
        member.verdicts[pod["metadata"]["name"]] = verdict(
            failed={Check.GOLDEN: Reason.PARITY_FAILED}
        )
    return member.settle()


def test_that_a_spec_fails_with_both_images_is_known_without_the_status() -> None:
    member = Member(rollout=CANARY, replicas=2).upgrade()
    reject_canary(member.edit(source=OTHER).job_succeeds(SECOND))
    member.moves()
    reject_canary(member.job_succeeds(publish_model("e" * 64)))
    assert member.state() == ("Kept", "ParityFailed")
    assert failures_of_images(member) == 0
    revision = member.record["revision"]
    member.jobs_are_cleaned_away().status = {}
    for event in (member.operator_restarts, lambda: member.job_succeeds(SECOND)):
        event()
        assert (member.state(), member.record["revision"]) == (("Kept", "ParityFailed"), revision)
    assert failures_of_images(member) == 0


def test_a_failure_after_the_promotion_counts_without_the_status() -> None:
    member, _, new = fails_after_the_promotion()
    member.status = {}
    member.settle()
    assert (member.state(), member.record["revision"]) == (("Kept", "ParityFailed"), new)
    assert failures_of_images(member) == 1


@pytest.mark.parametrize("lost", [False, True])
def test_promoted_revision_moves_without_a_turn(lost: bool) -> None:
    member = make_rejected_canary()
    member.turn = False
    member.annotate(PROMOTE, member.record["revision"])
    if lost:
        member.status = {}
        member.settle().job_succeeds()
    assert member.state() == ("Moving", "")
    assert member.status["target"]["phase"] == "Promoting"
    assert member.all_available().state() == ("Moved", "")
    assert member.serving_images() == {NEW}
    assert failures_of_images(member) == 0


def test_promoted_revision_that_fails_again_is_kept_again() -> None:
    member = make_rejected_canary()
    member.annotate(PROMOTE, member.record["revision"])
    member.annotate(ROLLBACK, member.status["target"]["revision"])
    assert member.state() == ("Kept", "RolledBackByUser")
    assert failures_of_images(member) == 1


@pytest.mark.parametrize("decision", ["of another revision", "that is rolled back as well"])
def test_other_promotions_change_nothing(decision: str) -> None:
    member = make_rejected_canary()
    revision = member.record["revision"]
    if decision == "of another revision":
        member.annotate(PROMOTE, member.status["active"]["revision"])
    else:
        member.annotate(ROLLBACK, revision).annotate(PROMOTE, revision)
    assert member.state() == ("Kept", "ParityFailed")


def test_promotion_does_not_repeat_a_permanent_failure() -> None:
    member = make_rejected_canary()
    revision = member.record["revision"]
    member.jobs_are_cleaned_away().annotate(PROMOTE, revision)
    member.job_fails(Reason.UNSUPPORTED_OPERATOR)
    assert member.state() == ("Kept", "UnsupportedOperator")
    assert not member.running_jobs()


def describe(result: Published, name: str) -> Published:
    signature = PublishedSignature.of(
        [TensorText.read(f"{name}:FP32[-1,3]")], [TensorText.read("y:FP32[-1,10]")]
    )
    return result.model_copy(update={"signature": signature})


def with_another_signature() -> Member:
    """Return a model whose input the new image calls otherwise."""
    member = Member(describe(publish_model(), "x"), rollout=CANARY, replicas=2).upgrade().moves()
    return member.job_succeeds(describe(MOVED, "pixels"))


def test_a_change_of_the_signature_is_kept_out_until_it_is_allowed() -> None:
    member = with_another_signature()
    assert member.state() == ("Kept", "SignatureChanged")
    member.annotate(PROMOTE, member.record["revision"])
    assert member.state() == ("Kept", "SignatureChanged"), "to promote is not to allow it"
    member.annotate(PROMOTE, None)
    member.edit(rollout={**member.spec["rollout"], "allowSignatureChange": True})
    assert member.state() == ("Moving", "")
    assert member.status["target"]["phase"] == "Verifying"
    member.canary_available().later(seconds=61).all_available()
    assert member.state() == ("Moved", "")


def test_an_image_without_the_backend_is_not_moved_to() -> None:
    member = Member().upgrade(backends={}).moves()
    assert member.state() == ("Kept", "BackendNotAllowed")
    assert member.conditions()["Ready"] == ("True", "Serving")


def test_kept_image_is_tried_again_with_another_spec() -> None:
    member = refuse_image()
    member.edit(source=OTHER)
    assert member.state() == ("Waiting", "RollingOut")
    member.job_succeeds(SECOND).all_available()
    assert member.state() == ("Moving", "")
    member.job_succeeds(publish_model("e" * 64)).all_available()
    assert member.state() == ("Moved", "")


def test_an_image_that_is_changed_again_is_waited_for_again() -> None:
    member = Member().upgrade().moves()
    member.turn = False
    member.upgrade(NEWER)
    assert member.state() == ("Waiting", "")
    assert not member.running_jobs()


def test_going_back_to_the_image_that_serves_needs_no_turn() -> None:
    member = Member().upgrade().moves()
    member.turn = False
    member.new_runtime_image(CPU_IMAGE)
    assert member.state() == ("Moved", "")
    assert not member.running_jobs()


# what serves until the engines are built


NEW_RTX: Final = "registry.example/rtx:2"


def bridge(**spec: Any) -> Member:
    """Return a model whose engine is built while an interim serves, and of which both images are new."""
    member = Member(gpus={}, build={"interim": "CPU"}, **spec)
    assert member.status["serving"]["classes"][0]["interim"]
    return both_new(member)


def both_new(member: Member) -> Member:
    rtx = member.images[RTX_IMAGE].model_copy(update={"ort_version": "1.32.0"})
    new = image_facts("cpu", "1.32.0")
    member.images = {**member.images, NEW: new, NEW_RTX: rtx}
    member.config = replace(
        member.config, images={**member.config.images, "cpu": NEW, "rtx": NEW_RTX}
    )
    return member.settle()


def build_images(member: Member) -> set[str]:
    return {entry["spec"]["build"]["image"] for entry in member.all("InferenceEngine")}


def test_an_engine_for_which_an_interim_serves_is_built_with_its_image_until_its_turn() -> None:
    member = bridge()
    assert member.state() == ("Waiting", "RollingOut")
    assert {item["variant"] for item in member.record["target"]} == {"cpu", "rtx"}
    assert (member.serving_images(), build_images(member)) == ({CPU_IMAGE}, {RTX_IMAGE})
    assert member.conditions()["Ready"] == ("True", "ServingInterim")
    member.moves()
    assert member.state() == ("Waiting", "RollingOut"), "the engine first"
    member.turn = False
    member.engine_built().all_available()
    assert member.state() == ("Waiting", "")
    assert member.serving_images() == {RTX_IMAGE}


def test_the_engine_is_built_with_its_image_also_if_the_status_is_lost() -> None:
    member = bridge()
    member.the("InferenceModel")["status"] = {}
    member.settle()
    assert {item["variant"] for item in member.record["target"]} == {"cpu", "rtx"}
    assert (member.serving_images(), build_images(member)) == ({CPU_IMAGE}, {RTX_IMAGE})


def test_an_interim_and_its_engine_move_as_one() -> None:
    member = bridge()
    member.engine_fails(Reason.BUILD_FAILED)
    assert member.state() == ("Waiting", ""), "the new image may be the remedy"
    member.moves()
    member.turn = False
    member.job_succeeds(MOVED).all_available()
    assert member.serving_images() == {NEW}
    assert member.state() == ("Moving", ""), "the interim has moved, the engine has not"
    assert build_images(member) == {RTX_IMAGE, NEW_RTX}
    member.engine_built().all_available()
    assert member.state() == ("Moved", "")
    assert member.serving_images() == {NEW_RTX}
    assert {item["image"] for item in member.record["current"]} == {NEW, NEW_RTX}


def test_interim_without_a_successor_is_reported_to_serve() -> None:
    member = Member(gpus={}, build={"interim": "CPU"})
    del member.images[CPU_IMAGE]
    member.image_failures = {CPU_IMAGE: "no registry"}
    member.settle()
    assert member.conditions()["Available"][0] == "True"
    assert "no other interim serves on cpu: cannot probe" in member.message()


# what cannot move


def test_an_image_that_cannot_be_probed_is_waited_for() -> None:
    member = Member()
    member.image_failures = {NEW: "no registry"}
    member.new_runtime_image(NEW)
    member.moves()
    assert member.state() == ("Waiting", "ImageProbeFailed")
    assert member.conditions()["Ready"] == ("True", "Serving")


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"replicas": 0}, "ScaledToZero"), ({"rollout": {"paused": True}}, "Suspended")],
)
def test_a_model_that_would_not_finish_does_not_begin(change: Json, reason: str) -> None:
    member = Member().upgrade()
    member.edit(**change)
    member.moves()
    assert member.state() == ("Waiting", reason)


def test_a_model_scaled_to_zero_gives_its_turn_back() -> None:
    member = Member().upgrade().moves()
    member.edit(replicas=0)
    assert member.state() == ("Waiting", "ScaledToZero")


def test_without_facts_of_the_old_image_nothing_changes() -> None:
    member = Member()
    before = member.the("Deployment")
    member.upgrade()
    del member.images[CPU_IMAGE]
    member.settle()
    assert member.the("Deployment") == before
    assert member.conditions()["Ready"] == ("True", "Serving")
    assert member.conditions()["Validated"] == ("Unknown", "ProbingImage")
    assert member.state() == ("Waiting", ""), "the new image may be the remedy"
