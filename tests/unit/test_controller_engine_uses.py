"""Who uses an engine, as its own controller records it: from the cache, in few writes, without waking models."""

from datetime import datetime, timedelta

import pytest
from enginewright.controller.cache import ObjectCache
from enginewright.controller.engine_uses import SETTLE, EngineUses, SettledUsers
from enginewright.controller.routing import EngineKey
from enginewright.kube.resources import CONTROLLER_REVISIONS, INFERENCE_MODELS
from enginewright.manifests.labels import MODEL as MODEL_LABEL
from enginewright.manifests.labels import REQUESTED_BY, REVISION

from tests.support.controller_world import World
from tests.support.fake_kube import START
from tests.support.plan_objects import (
    ENGINE,
    NAMESPACE,
    PREPARED_KEY,
    Json,
    engine_spec,
    make_object,
)

KEY = EngineKey(NAMESPACE, ENGINE)


def model(name: str, *engines: str, namespace: str = NAMESPACE) -> Json:
    spec = {"source": {"uri": f"https://models.example/{name}.onnx"}}
    references = [
        {"class": f"l4-{number}", "name": engine} for number, engine in enumerate(engines)
    ]
    status = {"engines": references}
    return make_object("InferenceModel", name, namespace, spec=spec, status=status)


def revision(of: str, name: str, engine_key: str) -> Json:
    a_class = {"name": "l4", "backend": "tensorrt", "image": "gpu:1", "engine_key": engine_key}
    data = {
        "prepared_key": PREPARED_KEY,
        "model_digest": "d" * 64,
        "classes": [a_class],
        "max_queue": 256,
        "store_claim": "store",
    }
    labels = {MODEL_LABEL: of, REVISION: name}
    return make_object(
        "ControllerRevision", f"{of}-{name}", NAMESPACE, labels=labels, revision=1, data=data
    )


@pytest.fixture
def world() -> World:
    """Return a world with an engine that is built, and that a model has requested."""
    world = World()
    engine = make_object("InferenceEngine", ENGINE, NAMESPACE, spec=engine_spec())
    world.put(engine)
    world.settle().succeeds("engine-lookup", cached=True)
    engine = world.the("InferenceEngine")
    engine["metadata"]["annotations"] = {REQUESTED_BY: "model-0"}
    world.put(engine)
    world.used.clear()
    return world


def users(world: World) -> tuple[int, list[str]]:
    recorded = world.the("InferenceEngine")["status"]["users"]
    return recorded["count"], recorded.get("models", [])


def status_writes(world: World) -> int:
    return int(world.kube.calls["apply_status"])


def test_the_count_and_the_first_five_names_are_recorded(world: World) -> None:
    assert users(world) == (0, [])
    for number in range(7):
        world.put(model(f"model-{number}", ENGINE))
    world.put(model("another", "tensorrt-l4-another"))
    world.put(model("model-0", ENGINE, namespace="elsewhere"))
    world.settle()
    assert users(world) == (7, [f"model-{number}" for number in range(5)])


def test_a_stored_revision_keeps_its_model_a_user(world: World) -> None:
    world.put(model("model-0"))
    stored = world.put(revision("model-0", "old", engine_spec()["key"]))
    world.settle()
    assert users(world) == (1, ["model-0"])
    world.remove("ControllerRevision", stored["metadata"]["name"])
    world.now += SETTLE
    world.settle()
    assert users(world) == (0, [])


# event: Jobs | a hundred models that share an engine are applied at once | the engine, as before | `status.users` of
#   the InferenceEngine, complete within ten seconds
def test_a_hundred_models_that_are_applied_at_once_are_two_writes(world: World) -> None:
    before = status_writes(world)
    for number in range(100):
        world.put(model(f"model-{number}", ENGINE))
        world.settle()
    assert users(world)[0] == 1, "the first one is recorded at once"
    world.now += SETTLE
    world.settle()
    assert users(world)[0] == 100
    assert status_writes(world) == before + 2
    calls = world.kube.calls.total()
    world.restart()
    world.settle()
    assert world.kube.calls.total() == calls


async def test_a_change_that_waits_is_looked_at_again(world: World) -> None:
    world.put(model("model-0", ENGINE))
    world.settle()
    world.put(model("model-1", ENGINE))
    world.now += timedelta(seconds=4)
    result = await world.engines.reconcile(KEY)
    assert result.requeue_after == pytest.approx(6)


def test_the_time_of_the_last_use_is_to_the_hour_while_there_is_a_user(world: World) -> None:
    assert "lastUsed" not in world.the("InferenceEngine")["status"]
    world.put(model("model-0", ENGINE))
    world.settle()
    first = last_used(world)
    assert first == world.now
    before = status_writes(world)
    for _ in range(6):
        world.now += timedelta(minutes=9)
        world.settle()
    assert (last_used(world), status_writes(world)) == (first, before)
    world.now += timedelta(minutes=6)
    world.settle()
    assert (last_used(world), status_writes(world)) == (world.now, before + 1)
    world.now += timedelta(minutes=20)
    gone = world.now
    world.remove("InferenceModel", "model-0")
    world.settle()
    assert (last_used(world), users(world)) == (gone, (0, []))
    world.now += timedelta(days=9)
    before = status_writes(world)
    world.settle()
    assert (last_used(world), status_writes(world)) == (gone, before)


def last_used(world: World) -> datetime:
    return datetime.fromisoformat(world.the("InferenceEngine")["status"]["lastUsed"])


async def test_the_hour_is_looked_at_without_an_event(world: World) -> None:
    world.put(model("model-0", ENGINE))
    world.settle()
    world.now += timedelta(minutes=40)
    assert (await world.engines.reconcile(KEY)).requeue_after == pytest.approx(20 * 60)
    world.now += SETTLE
    world.remove("InferenceModel", "model-0")
    world.watch()
    await world.engines.reconcile(KEY)
    assert (await world.engines.reconcile(KEY)).requeue_after == pytest.approx(30 * 86400)


def test_users_are_kept_when_the_build_changes(world: World) -> None:
    engine = world.the("InferenceEngine")
    del engine["status"]["engine"]
    world.put(engine)
    world.put(model("model-0", ENGINE))
    world.settle()
    engine = world.the("InferenceEngine")
    engine["spec"]["build"]["timeoutSeconds"] = 60
    before = last_used(world)
    world.put(engine)
    world.settle()
    assert (last_used(world), users(world)) == (before, (1, ["model-0"]))


def change(of: Json, part: str, **fields: str) -> Json:
    return {**of, part: {**of[part], **fields}}


OTHER = "tensorrt-l4-other"
LABELS = {MODEL_LABEL: "model-0", REVISION: "deleted"}


@pytest.mark.parametrize(
    ("event", "queued"),
    [
        (model("model-0", ENGINE, OTHER), [OTHER]),
        (revision("model-0", "new", "f" * 64), [OTHER]),
        (make_object("Deployment", "model-0-l4", NAMESPACE, labels=LABELS, spec={}), [OTHER]),
        (change(model("model-0", ENGINE), "metadata", deletionTimestamp=str(START)), [ENGINE]),
        (change(model("model-0", ENGINE), "status", revision="new"), []),
    ],
    ids=["a reference", "a revision", "no known revision", "a deletion that begins", "no engine"],
)
def test_only_engines_with_changed_users_are_queued(
    world: World, event: Json, queued: list[str]
) -> None:
    other = {**engine_spec(), "key": "f" * 64}
    world.put(make_object("InferenceEngine", OTHER, NAMESPACE, spec=other))
    world.put(model("model-0", ENGINE))
    world.used.clear()
    world.put(event)
    assert world.used == queued


def store_revision(owner: str, version: int) -> Json:
    stored = revision(owner, "r", "f" * 64)
    stored["metadata"] |= {"name": "one", "uid": "one", "resourceVersion": str(version)}
    return stored


def test_children_that_change_hands_count_for_the_new_owner() -> None:
    cache = ObjectCache()
    uses = EngineUses(cache, lambda _namespace, _name: None)
    for number, name in enumerate(("a", "b"), 1):
        seen = model(name)
        seen["metadata"] |= {"uid": name, "resourceVersion": str(number)}
        cache.observe(INFERENCE_MODELS, seen)
    for number, owner in enumerate(("a", "b"), 3):
        cache.observe(CONTROLLER_REVISIONS, store_revision(owner, number))
    keys = {use.model: use.keys for use in uses.of_namespace(NAMESPACE)}
    assert keys == {"a": frozenset(), "b": frozenset({"f" * 64})}
    cache.observe(CONTROLLER_REVISIONS, store_revision("b", 5), deleted=True)
    assert not any(use.keys for use in uses.of_namespace(NAMESPACE))
    assert not list(uses.of_namespace("elsewhere"))


def test_the_first_user_is_reported_at_once_and_the_last_one_waits() -> None:
    settled = SettledUsers()
    assert settled.of(KEY, (), START)[0] == ()
    assert settled.of(KEY, ("a",), START)[0] == ("a",)
    soon = START + timedelta(seconds=4)
    assert settled.of(KEY, (), soon)[0] == ("a",)
    assert settled.of(KEY, (), soon)[1] == pytest.approx(6)
    assert settled.of(KEY, (), START + SETTLE)[0] == ()
    settled.forget(KEY)
    assert settled.of(KEY, ("b", "c"), soon)[0] == ("b", "c")


def test_a_clock_that_was_set_back_delays_nothing() -> None:
    settled = SettledUsers()
    settled.of(KEY, ("a",), START)
    settled.of(KEY, ("a", "b"), START + SETTLE)
    assert settled.of(KEY, ("a",), START - timedelta(days=1))[0] == ("a",)
