"""A move to other images that its user pauses: running Jobs end, none starts, and it resumes where it stopped."""

from dataclasses import replace
from typing import Final

import pytest
from enginewright.plan.engines.engine import plan_engine
from enginewright_contract.reasons import Reason

from tests.support.plan_objects import (
    CPU_IMAGE,
    OTHER,
    RTX_IMAGE,
    Json,
    gpu_node,
    image_facts,
    publish_model,
)
from tests.support.plan_world import World, conditions_of
from tests.unit.test_plan_moves import CANARY, MOVED, NEW, Member

NEW_RTX: Final = "registry.example/rtx:2"


def pause(world: World) -> World:
    return world.edit(rollout={**world.spec["rollout"], "paused": True})


def resume(world: World) -> World:
    return world.edit(rollout={**world.spec["rollout"], "paused": False})


def moves(world: World) -> tuple[str, str]:
    images = world.status["images"]
    return images["state"], images.get("reason", "")


def with_an_engine() -> World:
    world = World().has_gpus(aheadOfTime=False)
    world.images[RTX_IMAGE] = world.images[RTX_IMAGE].model_copy(update={"pipeline": "5" * 64})
    world.nodes.append(gpu_node("gpu-1"))
    return world.settle().job_succeeds().engine_built().all_available().jobs_are_cleaned_away()


def on_a_gpu() -> World:
    """Return a model that serves with an engine, and whose move to another image was begun."""
    world = with_an_engine()
    facts: Json = {"backends": {"tensorrt-rtx": "1.8.0.1"}}
    like = image_facts("rtx", "1.32.0").model_copy(update=facts)
    return world.new_runtime_image(NEW_RTX, "rtx", like=like)


def newest_engine(world: World) -> Json:
    name = world.status["engines"][0]["name"]
    return world.get("InferenceEngine", name)


# event: Operator | a user pauses a model that moves to another runtime image | the model with its
#   image; running Jobs end, no other one starts, and it goes on once it is resumed | Ready `Suspended`
def test_a_move_that_is_paused_before_its_job_starts_none() -> None:
    member = Member().upgrade()
    member.turn = True
    member.pass_once()
    assert member.state() == ("Moving", "")
    pause(member).later(hours=1)
    assert member.state() == ("Moving", "Suspended")
    assert not member.running_jobs()
    assert member.conditions()["Ready"] == ("False", "Suspended")
    assert member.conditions()["Stalled"] == ("True", "Suspended")
    assert member.conditions()["Available"] == ("True", "Serving")
    resume(member).job_succeeds(MOVED).all_available()
    assert member.state() == ("Moved", "")


def test_a_job_that_runs_ends() -> None:
    member = Member().upgrade().moves()
    (job,) = member.running_jobs()
    pause(member)
    assert member.running_jobs() == [job]
    assert member.conditions()["Ready"] == ("False", "Preparing")
    member.job_succeeds(MOVED)
    assert member.status["target"]["phase"] == "Held"
    assert member.conditions()["Ready"] == ("False", "Suspended")
    assert resume(member).all_available().status["images"]["state"] == "Moved"


def test_a_job_that_fails_is_repeated_once_the_move_is_resumed() -> None:
    member = Member().upgrade().moves()
    pause(member).job_fails(Reason.STORE_UNAVAILABLE).later(hours=2)
    assert not member.running_jobs()
    assert member.state() == ("Moving", "Suspended")
    resume(member)
    assert member.status["preparation"]["attempt"] == 2
    assert len(member.running_jobs()) == 1
    assert member.job_succeeds(MOVED).all_available().status["images"]["state"] == "Moved"


@pytest.mark.parametrize("waited", [0, 2])
def test_failed_move_is_suspended_too(waited: int) -> None:
    member = Member().upgrade().moves().job_fails(Reason.STORE_UNAVAILABLE)
    assert member.conditions()["Ready"] == ("False", "StoreUnavailable")
    pause(member).later(hours=waited)
    assert member.conditions()["Ready"] == ("False", "Suspended")
    assert member.conditions()["Stalled"] == ("True", "Suspended")
    assert member.conditions()["Validated"] == ("False", "StoreUnavailable")
    assert "the last attempt failed" in member.message()
    assert member.status["preparation"]["failure"]["reason"] == "StoreUnavailable"


def test_a_job_that_is_refused_keeps_the_image() -> None:
    member = Member().upgrade().moves()
    pause(member).job_fails(Reason.UNSUPPORTED_OPERATOR)
    assert member.state() == ("Kept", "UnsupportedOperator")


def test_engines_are_requested_once_the_move_is_resumed() -> None:
    world = on_a_gpu()
    before = [entry["spec"] for entry in world.all("InferenceEngine")]
    pause(world).job_succeeds(MOVED).later(hours=1)
    assert [entry["spec"] for entry in world.all("InferenceEngine")] == before
    assert moves(world) == ("Moving", "Suspended")
    assert world.conditions()["Ready"] == ("False", "Suspended")
    assert world.conditions()["EnginesReady"] == ("False", "Suspended")
    resume(world).misses().succeeds("engine", nodes_accelerated=415).all_available()
    assert moves(world) == ("Moved", "")


def test_a_lookup_that_runs_ends_and_no_build_follows() -> None:
    world = on_a_gpu().job_succeeds(MOVED)
    pause(world).misses().later(hours=1)
    assert not world.running_jobs()
    assert conditions_of(newest_engine(world))["Ready"] == ("False", "Suspended")
    assert world.conditions()["Ready"] == ("False", "Suspended")
    resume(world).succeeds("engine", nodes_accelerated=415).all_available()
    assert moves(world) == ("Moved", "")


def test_a_build_that_runs_ends_and_is_repeated_once_the_move_is_resumed() -> None:
    world = on_a_gpu().job_succeeds(MOVED).misses().stage_runs("build", "engine")
    (job,) = world.running_jobs()
    assert pause(world).running_jobs() == [job]
    assert world.conditions()["Ready"] == ("False", "Building")
    world.job_fails(Reason.DRIVER_MISSING, of="engine").later(hours=2)
    assert not world.running_jobs()
    assert world.status["engines"][0]["suspended"]
    resume(world).succeeds("engine", nodes_accelerated=415).all_available()
    assert moves(world) == ("Moved", "")


def test_an_engine_is_not_suspended_for_a_model_that_is_resumed_during_an_obstacle() -> None:
    world = on_a_gpu().job_succeeds(MOVED)
    pause(world).misses().later(hours=1)
    world.classes = []
    assert world.settle().status["engines"][0]["suspended"]
    resume(world)
    assert world.conditions()["Validated"] == ("False", "NoAcceleratorClass")
    assert not world.status["engines"][0].get("suspended")
    assert conditions_of(newest_engine(world))["Ready"][1] != "Suspended"


@pytest.mark.parametrize(("suspended", "expected"), [([True, True], 0), ([True, False], 1)])
def test_an_engine_that_another_model_needs_is_built(suspended: list[bool], expected: int) -> None:
    world = on_a_gpu().job_succeeds(MOVED)
    pause(world).misses()
    facts = world.build_facts(newest_engine(world))
    (reference,) = facts.references
    references = [reference.model_copy(update={"suspended": item}) for item in suspended]
    plan = plan_engine(replace(facts, references=tuple(references)))
    assert len(plan.apply) == expected


def test_serving_revision_is_repaired_meanwhile() -> None:
    """The artefact that is lost is the same with both images."""
    member = Member()
    same = {"pipeline": "5" * 64}
    own = member.record["image"]
    member.images[own] = member.images[own].model_copy(update=same)
    member.settle().job_succeeds().all_available().jobs_are_cleaned_away()
    member.new_runtime_image(NEW, like=member.images[own])
    member.turn = True
    member.pass_once()
    assert member.state() == ("Moving", "")
    pause(member).later(hours=3)
    assert not member.running_jobs()
    member.rolling(0).new_pod_fails(Reason.ARTIFACT_MISSING, "fetch-artifact")
    assert len(member.running_jobs()) == 1


def loses_its_artefact(world: World) -> World:
    return world.later(hours=3).rolling(0).new_pod_fails(Reason.ARTIFACT_MISSING, "fetch-artifact")


def image_of_job(world: World) -> str:
    (job,) = world.running_jobs()
    image: str = job["spec"]["template"]["spec"]["containers"][0]["image"]
    return image


def test_an_artefact_that_only_its_own_image_prepares_is_repaired_meanwhile() -> None:
    member = Member().upgrade()
    member.turn = True
    member.pass_once()
    loses_its_artefact(pause(member))
    assert image_of_job(member) == CPU_IMAGE
    assert member.conditions()["Ready"] == ("False", "Preparing")
    assert member.conditions()["Stalled"] == ("False", "Preparing")
    assert member.status["preparation"]["job"] == member.running_jobs()[0]["metadata"]["name"]
    member.job_succeeds().all_available()
    assert not member.later(hours=1).running_jobs()
    assert member.state() == ("Moving", "Suspended")
    assert member.conditions()["Ready"] == ("False", "Suspended")
    assert member.conditions()["Available"] == ("True", "Serving")
    resume(member).job_succeeds(MOVED).all_available()
    assert member.state() == ("Moved", "")


def test_a_repair_that_fails_is_repeated_and_does_not_refuse_the_image() -> None:
    member = Member().upgrade()
    member.turn = True
    member.pass_once()
    loses_its_artefact(pause(member)).job_fails(Reason.STORE_UNAVAILABLE)
    assert member.conditions()["Ready"] == ("False", "StoreUnavailable")
    assert image_of_job(member.later(hours=1)) == CPU_IMAGE
    member.job_fails(Reason.SOURCE_CHANGED)
    assert member.conditions()["Stalled"] == ("True", "SourceChanged")
    assert member.state() == ("Moving", "Suspended")


def test_job_of_the_move_ends_before_a_repair() -> None:
    member = Member().upgrade().moves()
    (job,) = member.running_jobs()
    assert loses_its_artefact(pause(member)).running_jobs() == [job]
    loses_its_artefact(member.job_succeeds(MOVED))
    assert image_of_job(member) == CPU_IMAGE
    assert member.status["target"]["phase"] == "Held"


def test_serving_revision_is_repaired_beside_a_canary() -> None:
    member = Member(rollout=CANARY, replicas=2).upgrade().moves().job_succeeds(MOVED)
    pause(member.canary_available()).jobs_are_cleaned_away()
    target, canary = member.status["target"], member.canary_pods()
    assert image_of_job(loses_its_artefact(member)) == CPU_IMAGE
    assert (member.status["target"], member.canary_pods()) == (target, canary)
    member.job_succeeds()
    member.all_available()
    assert not member.later(hours=1).running_jobs()
    assert (member.status["target"], member.canary_pods()) == (target, canary)
    assert member.conditions()["Available"] == ("True", "Serving")


def test_failure_of_serving_pods_is_not_hidden() -> None:
    member = Member().upgrade()
    member.turn = True
    member.pass_once()
    pause(member).rolling(0).new_pod_fails(Reason.STORE_UNAVAILABLE, "fetch-artifact")
    assert member.conditions()["Ready"] == ("False", "Suspended")
    assert f"pods of revision {member.status['applied']['revision']} fail" in member.message()


@pytest.mark.parametrize("prepared", [False, True])
def test_an_engine_that_only_its_own_image_loads_is_built_again_meanwhile(prepared: bool) -> None:
    world = on_a_gpu()
    (serves,) = [entry["metadata"]["name"] for entry in world.all("InferenceEngine")]
    if prepared:
        pause(world).job_succeeds(MOVED)
    else:
        pause(world).job_fails(Reason.STORE_UNAVAILABLE).later(hours=2)
    world.remove("InferenceEngine", serves)
    world.settle()
    assert newest_engine(world)["metadata"]["name"] == serves
    assert conditions_of(newest_engine(world))["Ready"] == ("False", "LookingUp")
    assert world.conditions()["Ready"] == ("False", "LookingUp")
    world.misses().succeeds("engine").later(hours=1)
    assert not world.running_jobs()
    assert moves(world) == ("Moving", "Suspended")


def test_the_engine_that_serves_is_built_again_meanwhile() -> None:
    """It is the same with both images."""
    world = with_an_engine()
    world.turn = False
    world.new_runtime_image(NEW_RTX, "rtx", like=world.images[RTX_IMAGE])
    world.turn = True
    world.pass_once()
    assert moves(pause(world)) == ("Moving", "Suspended")
    world.remove("InferenceEngine", newest_engine(world)["metadata"]["name"])
    world.settle()
    assert conditions_of(newest_engine(world))["Ready"] == ("False", "LookingUp")
    assert len(world.running_jobs()) == 1


@pytest.mark.parametrize("has_canary", [False, True])
def test_a_spec_that_is_edited_while_its_move_is_paused_is_prepared(has_canary: bool) -> None:
    member = Member(rollout=CANARY, replicas=2).upgrade()
    member.turn = True
    member.pass_once()
    if has_canary:
        member.settle().job_succeeds(MOVED).canary_available()
    pause(member).edit(source=OTHER)
    assert len(member.running_jobs()) == 1
    member.job_succeeds(publish_model("d" * 64)).later(hours=1)
    assert member.status["target"]["phase"] == "Held"
    assert member.status["target"]["revision"] == member.status["revision"]
    assert member.conditions()["Ready"] == ("False", "Suspended")
    assert member.state() == ("Moving", "Suspended")
    resume(member).canary_available().later(seconds=61).all_available()
    assert member.state() == ("Moved", "")
