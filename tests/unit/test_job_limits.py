"""Limits on Jobs: how many run, whose turn it is, and that a lost artefact of a serving model is rebuilt at once."""

from collections import Counter
from dataclasses import replace
from typing import Final

import pytest
from enginewright.api.inference_model_status import EngineReference
from enginewright.controller.routing import ModelKey
from enginewright.plan.engines.engine import plan_engine
from enginewright.plan.fleet.turns import JobOwner, turns
from enginewright.plan.types import JobLimits
from enginewright_contract.reasons import Reason
from hypothesis import given
from hypothesis import strategies as st

from tests.support.many_models import ManyModels
from tests.support.plan_objects import (
    NAMESPACE,
    OTHER,
    SECOND,
    Json,
    engine_spec,
    make_object,
    publish_model,
)
from tests.support.plan_world import CONFIG
from tests.support.plan_world import World as EngineWorld

QUEUED: Final = ("False", "Queued")
NAMES: Final = ("d", "c", "b", "a")  # in the order of their creation


def limit_jobs(total: int = 0, per_namespace: int = 0) -> ManyModels:
    return ManyModels(replace(CONFIG, job_limits=JobLimits(total, per_namespace)))


def different(world: ManyModels, *names: str) -> ManyModels:
    for name in names:
        world.apply(name, source={"uri": f"https://models.example/{name}.onnx"})
        world.now = world.now.replace(second=world.now.second + 1)
    return world


def job_of(world: ManyModels, owner: str) -> str:
    (job,) = [
        running_job for running_job in world.running_jobs() if world.owner(running_job) == owner
    ]
    return str(job["metadata"]["name"])


def succeed(world: ManyModels, owner: str) -> None:
    world.job_succeeds(publish_model(), of=job_of(world, owner))


# event: Jobs | as many Jobs run as `jobs.limit` or `jobs.namespaceLimit` allows | what serves | Ready `Queued` with the
#   limit; the Jobs of the others begin in order of creation
def test_jobs_wait_for_their_turns_in_order_of_creation() -> None:
    world = different(limit_jobs(2), *NAMES)
    assert world.leading() == ["c", "d"]
    assert [world.ready(item) for item in "ba"] == [QUEUED, QUEUED]
    assert world.message("b") == (
        "preparing the model: waits for its turn: at most 2 Jobs run at the same time (jobs.limit)"
    )
    succeed(world, "c")
    assert world.leading() == ["b", "d"]
    assert world.ready("a") == QUEUED
    world.job_fails(Reason.INVALID_MODEL, of=job_of(world, "d"))
    assert world.leading() == ["a", "b"]
    succeed(world, "a")
    succeed(world, "b")
    assert world.list_prepared() == ["a", "b", "c"]


def test_a_namespaces_limit_names_itself() -> None:
    world = different(limit_jobs(9, 1), "b", "a")
    assert world.leading() == ["b"]
    assert world.message("a").endswith(
        "at most 1 Jobs of namespace shop run at the same time (jobs.namespaceLimit)"
    )


def test_without_limits_nothing_waits() -> None:
    assert different(limit_jobs(), *NAMES).leading() == sorted(NAMES)


def test_place_in_the_queue_survives_a_restart() -> None:
    world = different(limit_jobs(1), "c", "b", "a")
    world.restart().settle()
    assert world.leading() == ["c"]
    assert [world.ready(item) for item in "ba"] == [QUEUED, QUEUED]
    succeed(world, "c")
    assert world.leading() == ["b"]


@pytest.mark.parametrize("event", ["deleted", "edited", "refused"])
def test_abandoned_turn_holds_up_no_other(event: str) -> None:
    world = different(limit_jobs(1), "c", "b", "a")
    match event:
        case "deleted":
            world.delete("b")
        case "edited":
            world.apply("b", accelerators=[{"class": "missing"}])
        case _:
            world.refuse_jobs_of("b")
    succeed(world, "c")
    assert world.leading() == ["a"]


def test_a_leader_that_ends_early_gives_its_turn_to_the_next() -> None:
    world = different(limit_jobs(1), "b", "a")
    world.delete("b")
    assert world.leading() == ["a"]


def test_a_retry_waits_for_its_turn_too() -> None:
    world = different(limit_jobs(1), "b", "a")
    world.job_fails(Reason.SOURCE_UNREACHABLE, "fetch", of=job_of(world, "b"))
    assert world.leading() == ["a"], "it runs while the other one waits"
    world.after(minutes=2)
    assert world.leading() == ["a"]
    assert world.ready("b") == QUEUED
    succeed(world, "a")
    assert world.leading() == ["b"]
    assert job_of(world, "b").endswith("-2")


def test_a_changed_spec_gives_its_own_jobs_place_up_and_asks_again() -> None:
    world = different(limit_jobs(1), "b", "a")
    world.apply("b", source={"uri": "https://models.example/other.onnx"})
    world.settle()
    assert world.leading() == ["b"], "created first, it is the first again"
    assert len(world.running_jobs()) == 1


def test_models_that_share_a_preparation_take_one_turn() -> None:
    world = limit_jobs(1).apply("a", "b", "c")
    assert world.leading() == ["a"]
    assert [world.ready(item)[1] for item in "bc"] == ["SharedPreparation"] * 2
    different(world, "e", "d")
    world.job_succeeds()
    assert world.list_prepared() == ["a", "b", "c"]
    assert world.leading() == ["e"]


def test_lost_artefact_of_a_serving_model_is_rebuilt_at_once() -> None:
    world = limit_jobs(1).apply("a")
    world.job_succeeds()
    world.all_available().after(hours=1)
    different(world, "b", "c")
    assert world.leading() == ["b"]
    world.rolling(0).new_pod_fails(Reason.ARTIFACT_MISSING, "fetch-artifact")
    assert world.leading() == ["a", "b"]
    succeed(world, "a")
    assert world.ready("c") == QUEUED


def engine(world: ManyModels, name: str) -> None:
    metadata_of = make_object("InferenceEngine", name, NAMESPACE, spec=engine_spec(), status={})
    metadata_of["metadata"]["annotations"] = {}
    world.kube.put(metadata_of)
    world.settle()
    world.now = world.now.replace(second=world.now.second + 1)


def engine_ready(world: ManyModels, name: str) -> tuple[str, str]:
    conditions = world.get("InferenceEngine", name)["status"]["conditions"]
    (ready,) = [condition for condition in conditions if condition["type"] == "Ready"]
    return ready["reason"], ready["message"]


def test_engines_and_models_take_turns() -> None:
    world = limit_jobs(1)
    engine(world, "e1")
    different(world, "a")
    engine(world, "e2")
    assert world.ready("a") == QUEUED
    assert engine_ready(world, "e2") == (
        "Queued",
        "waits for its turn: at most 1 Jobs run at the same time (jobs.limit)",
    )
    world.misses()
    order = []
    for _ in range(6):
        running = world.running_jobs()
        if not running:
            break
        assert len(running) == 1
        (job,) = running
        name, component = (
            job["metadata"]["name"],
            job["metadata"]["labels"]["enginewright.dev/component"],
        )
        order.append((world.owner(job), component))
        match component:
            case "prepare":
                world.job_succeeds(publish_model(), of=name)
            case "engine-lookup":
                world.misses(of=name)
            case _:
                world.succeeds(of=name)
    assert order == [
        ("a", "prepare"),
        ("e1", "engine"),
        ("e2", "engine-lookup"),
        ("e2", "engine"),
    ]
    assert [engine_ready(world, item)[0] for item in ("e1", "e2")] == ["Built", "Built"]


def test_an_engine_that_serves_and_was_lost_is_built_at_once() -> None:
    world = EngineWorld.of_engine()
    world.pass_once()
    facts = replace(world.build_facts(world.subject), jobs=(), job_limit="waits")
    queued = plan_engine(facts)
    assert queued.awaits_turn
    assert queued.apply == ()
    reference = EngineReference(class_name="l4", name="e", lost=True)
    built = plan_engine(replace(facts, references=(reference,)))
    assert [entry["kind"] for entry in built.apply] == ["Job"]
    assert not built.awaits_turn


def test_a_model_says_which_engine_its_serving_revision_has_lost() -> None:
    world = EngineWorld(replicas=1).has_gpus().settle().job_succeeds()
    world.succeeds("engine", nodes_accelerated=415).all_available()
    assert world.conditions()["Ready"] == ("True", "Serving")
    assert "lost" not in world.status["engines"][0]
    world.remove("InferenceEngine", world.the("InferenceEngine")["metadata"]["name"])
    world.settle()
    assert world.status["engines"][0]["lost"]
    world.succeeds("engine", nodes_accelerated=415)
    assert "lost" not in world.status["engines"][0]
    world.edit(source=OTHER).job_succeeds(SECOND)
    assert "lost" not in world.status["engines"][0], "an update is no loss"


def test_a_turn_is_taken_once_while_jobs_are_created() -> None:
    world = limit_jobs(1)
    for name in ("a", "b"):
        world.put(name, source={"uri": f"https://models.example/{name}.onnx"})
    world.watch()

    def meanwhile(obj: Json) -> None:
        if obj["kind"] == "Job":
            world.kube.rewrite = lambda _obj: None
            world.reconcile(ModelKey(NAMESPACE, "b"))

    world.kube.rewrite = meanwhile
    world.reconcile(ModelKey(NAMESPACE, "a"))
    assert world.leading() == ["a"]
    assert world.ready("b") == QUEUED


OWNERS: Final = st.builds(
    JobOwner,
    created=st.sampled_from(["1", "2", "3"]),
    namespace=st.sampled_from(["x", "y", "z"]),
    kind=st.sampled_from(["InferenceModel", "InferenceEngine"]),
    name=st.sampled_from("abcdef"),
)


@given(
    waiting=st.sets(OWNERS, max_size=12),
    running=st.dictionaries(st.sampled_from("xyz"), st.integers(0, 4)),
    limits=st.builds(JobLimits, st.integers(0, 5), st.integers(0, 3)),
)
def test_turns_fill_the_limits(
    waiting: set[JobOwner], running: dict[str, int], limits: JobLimits
) -> None:
    permitted = turns(waiting, running, limits)
    assert list(permitted) == sorted(waiting)
    begun = [key for key, why in permitted.items() if not why]
    before, after = Counter(running), Counter(running) + Counter(owner.namespace for owner in begun)
    if limits.total:
        assert after.total() <= max(limits.total, before.total())
    for name in "xyz":
        if limits.per_namespace:
            assert after[name] <= max(limits.per_namespace, before[name])
    for key, why in permitted.items():
        is_full = limits.total and after.total() >= limits.total
        own_full = limits.per_namespace and after[key.namespace] >= limits.per_namespace
        assert not why or is_full or own_full, "every wait has a reason"
    for owner in begun:
        earlier = [one for one in waiting if one < owner and one.namespace == owner.namespace]
        assert not any(permitted[one] for one in earlier), "in order"
