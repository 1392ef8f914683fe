"""All models and new runtime images: whose turn it is, never more than the limit, and when it ends."""

import copy
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest
from enginewright.api.inference_model_status import MoveState
from enginewright.controller.cache import ObjectCache
from enginewright.controller.fleet import Fleet, FleetCollector
from enginewright.controller.routing import ModelKey
from enginewright.kube.resources import ACCELERATOR_CLASSES, INFERENCE_MODELS
from enginewright.manifests.labels import PROMOTE, ROLLOUT_ORDER
from enginewright.observed.moves import MoveView, move_view
from enginewright.plan.fleet.inputs import describe_class, list_configured
from enginewright.plan.fleet.turns import FleetState, Halt, fleet_state
from enginewright.plan.types import FleetConfig
from enginewright_contract.reasons import Reason
from prometheus_client import CollectorRegistry

from tests.support.effort import examples
from tests.support.optional import present
from tests.support.plan_objects import (
    CPU_IMAGE,
    Json,
    accelerator_class,
    image_facts,
    publish_model,
)
from tests.unit.test_plan_moves import CANARY, MOVED, NEW, NEWER, Member, reject_canary

OLD: Final = {"cpu": CPU_IMAGE}
IMAGES: Final = {"cpu": NEW}


def view(name: str, state: str = "Waiting", **changes: Any) -> MoveView:
    target = {} if state == "Moved" else IMAGES
    current = IMAGES if state == "Moved" else OLD
    made = MoveView("shop", name, 1, current, target, state, "")
    return replace(made, **changes)


def permit(*moves: MoveView, granted: Iterable[str] = (), **config: Any) -> str:
    state = fleet_state(moves, IMAGES, FleetConfig(**config), {("shop", name) for name in granted})
    return "".join(sorted(name for _, name in state.permitted))


FIRST: Final[Json] = {"rank": 0}
LAST: Final[Json] = {"rank": 2}
REASON: Final[Json] = {"reason": "Suspended"}
PROBING: Final[Json] = {"reason": "ProbingImage"}
NOT_PROBED: Final[Json] = {"reason": "ImageProbeFailed"}
BEFORE: Final[Json] = {"target": {"cpu": NEWER}}  # of images that are no longer configured


@pytest.mark.parametrize(
    ("moves", "expected"),
    [
        ([], ""),
        ([view("a"), view("b"), view("c")], "ab"),
        ([view("c"), view("b"), view("a", "Moved")], "bc"),
        ([view("a"), view("b", "Moving"), view("c")], "a"),
        ([view("a"), view("b", "Moving"), view("c", "Moving")], ""),
        ([view("a"), view("b", "Kept"), view("c", "Kept"), view("d")], "ad"),
        ([view("a", **REASON), view("b"), view("c")], "bc"),
        # one that its user pauses hands its turn on
        ([view("a", "Moving", **REASON), view("b", "Moving"), view("c")], "c"),
        ([view("a", "Moving", **REASON, **FIRST), view("b"), view("c")], "bc"),
        ([view("a", "Moving", **REASON, **BEFORE), view("b"), view("c")], "b"),
        # canary models first, and others only once they have moved
        ([view("a"), view("b"), view("c", **FIRST)], "c"),
        ([view("a"), view("b"), view("c", "Moving", **FIRST)], ""),
        ([view("a"), view("b"), view("c", "Moved", **FIRST)], "ab"),
        ([view("a"), view("b"), view("c", "Kept", **FIRST)], "ab"),
        ([view("a"), view("b"), view("c", **FIRST, **REASON)], "ab"),
        # the statuses show one after the other that the image was probed
        ([view("a"), view("b"), view("c", **FIRST, **PROBING)], ""),
        ([view("a", **PROBING), view("b"), view("c")], "bc"),
        ([view("a"), view("b"), view("c", **FIRST, **NOT_PROBED)], "ab"),
        ([view("a"), view("b", **LAST), view("c", **LAST)], "a"),
        ([view("b", **LAST), view("c", **LAST), view("d", **LAST)], "bc"),
        # states of earlier images
        ([view("a", **BEFORE), view("b")], "b"),
        ([view("a", "Kept", **BEFORE), view("b")], "b"),
        ([view("a", "Moving", **BEFORE), view("b"), view("c")], "b"),
        ([view("a", **BEFORE, **FIRST), view("b")], ""),
        ([view("a", **BEFORE, **FIRST, **REASON), view("b")], ""),
    ],
)
def test_turns(moves: list[MoveView], expected: str) -> None:
    assert permit(*moves, limit=2) == expected
    assert permit(*reversed(moves), limit=2) == expected


@pytest.mark.parametrize(
    ("granted", "moves", "expected"),
    [
        ("c", [view("a"), view("b"), view("c")], "ac"),
        ("ab", [view("a"), view("b"), view("c")], "ab"),
        ("a", [view("a", "Moving"), view("b"), view("c")], "ab"),
        ("ab", [view("a", "Moved"), view("b", "Kept"), view("c")], "abc"),
    ],
)
def test_granted_turn_counts_at_once(granted: str, moves: list[MoveView], expected: str) -> None:
    assert permit(*moves, granted=granted, limit=2) == expected


def test_it_ends_after_too_many_failures_that_the_image_has_caused() -> None:
    moves = [view("a", "Kept"), view("b", "Kept", fails_anyway=True), view("c"), view("d")]
    assert permit(*moves, max_failures=2) == "cd"
    assert permit(*moves, max_failures=1) == ""
    halted = fleet_state(moves, IMAGES, FleetConfig(max_failures=1))
    assert (halted.failures, halted.halt) == (1, Halt.TOO_MANY_FAILURES)
    another = fleet_state(moves, {"cpu": NEWER}, FleetConfig(max_failures=1))
    assert (another.failures, another.halt) == (0, None), "with another image it begins again"


def test_no_model_begins_while_paused() -> None:
    moves = [view("a", "Moving"), view("b")]
    assert permit(*moves, view("c"), paused=True) == ""
    state = fleet_state(moves, IMAGES, FleetConfig(paused=True))
    assert state.halt is Halt.PAUSED
    assert state.models == {MoveState.MOVING: 1, MoveState.WAITING: 1}


def test_a_variant_that_is_not_configured_any_more_is_no_move() -> None:
    moves = [view("a", current={"gpu": "g:1"}, target={})]
    assert fleet_state(moves, IMAGES, FleetConfig()).models == {MoveState.MOVED: 1}


@pytest.mark.parametrize("order", [None, "first", "last", "nonsense"])
def test_the_order_is_a_label_of_the_model(order: str | None) -> None:
    labels = {} if order is None else {ROLLOUT_ORDER: order}
    model = make_model("m", "Waiting", labels)
    move = present(move_view(model))
    assert move.rank == {"first": 0, "last": 2}.get(order or "", 1)


@pytest.mark.parametrize("change", [{"status": {}}, {"status": None}, {"deletionTimestamp": "now"}])
def test_unserved_or_deleted_model_is_not_counted(change: Json) -> None:
    model = make_model("m", "Waiting")
    if "status" in change:
        model["status"] = change["status"]
    else:
        model["metadata"] |= change
    assert move_view(model) is None


# the controller


def make_model(
    name: str, state: str, labels: Mapping[str, str] | None = None, version: int = 1
) -> Json:
    target = [] if state == "Moved" else [{"variant": "cpu", "image": NEW}]
    image = NEW if state == "Moved" else CPU_IMAGE
    images = {"image": image, "state": state, "current": [{"variant": "cpu", "image": image}]}
    return {
        "metadata": {
            "namespace": "shop",
            "name": name,
            "uid": f"{name}-uid",
            "labels": dict(labels or {}),
            "resourceVersion": str(version),
        },
        "spec": {},
        "status": {"images": {**images, "target": target}},
    }


@dataclass
class Process:
    """One process of the operator: its cache, its fleet, and what these ask for."""

    config: FleetConfig = field(default_factory=FleetConfig)
    images: Mapping[str, str] = field(default_factory=lambda: IMAGES)
    queued: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cache = ObjectCache()
        self.fleet = Fleet(
            self.cache,
            self.images,
            self.config,
            queue=lambda key: self.queued.append(key.name),
            stopped=self.stopped.append,
        )

    def sees(self, *models: Json) -> "Process":
        for model in models:
            self.cache.observe(INFERENCE_MODELS, model)
        return self

    def takes_turn(self, name: str) -> bool:
        return self.fleet.takes_turn(ModelKey("shop", name))

    def note_planned(self, name: str) -> list[str]:
        """Return the models that are queued once a model was planned."""
        self.queued.clear()
        self.fleet.on_planned(ModelKey("shop", name))
        return self.queued


def test_the_next_one_is_queued_when_a_turn_becomes_free() -> None:
    process = Process(FleetConfig(limit=1)).sees(
        make_model("a", "Waiting"), make_model("b", "Waiting")
    )
    assert process.takes_turn("a")
    assert not process.takes_turn("b")
    process.sees(make_model("a", "Moving", version=2))
    assert process.note_planned("a") == []
    process.sees(make_model("a", "Moved", version=3))
    assert process.note_planned("a") == ["b"]
    assert process.takes_turn("b")


def test_a_turn_is_kept_until_the_model_was_planned() -> None:
    """A label may put another model first while the status of this one is written."""
    process = Process(FleetConfig(limit=1)).sees(
        make_model("b", "Waiting"), make_model("c", "Waiting")
    )
    assert process.takes_turn("b")
    process.sees(make_model("a", "Waiting", {ROLLOUT_ORDER: "first"}))
    assert not process.takes_turn("a")
    assert process.takes_turn("b"), "a retry"
    assert process.note_planned("b") == ["a"], "it did not begin"


def test_a_deleted_model_gives_its_turn_back() -> None:
    process = Process(FleetConfig(limit=1)).sees(
        make_model("a", "Moving"), make_model("b", "Waiting")
    )
    assert not process.takes_turn("b")
    process.cache.observe(INFERENCE_MODELS, make_model("a", "Moving", version=2), deleted=True)
    assert process.note_planned("a") == ["b"]


def test_it_says_once_that_it_has_stopped_and_where_to_find_the_failures() -> None:
    process = Process(FleetConfig(max_failures=2)).sees(
        make_model("a", "Kept"), make_model("b", "Kept"), make_model("c", "Waiting")
    )
    process.note_planned("a")
    process.note_planned("b")
    (message,) = process.stopped
    for part in ("2 models", "Kept", "fleet.maxFailures"):
        assert part in message
    assert not process.takes_turn("c")


def test_edit_of_a_class_is_a_target_once_it_is_seen() -> None:
    model = make_model("a", "Moved")
    used = accelerator_class("cpu")
    model["status"]["images"]["classes"] = [{"class": "cpu", "spec": describe_class(used.spec)}]
    process = Process().sees(model)
    edited = accelerator_class("cpu", tolerations=[{"operator": "Exists"}])
    seen: Json = {}
    for version, device_class in enumerate((used, edited, used), start=1):
        metadata = {"name": "cpu", "uid": "class-cpu", "resourceVersion": str(version)}
        spec = device_class.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
        seen = {"kind": "AcceleratorClass", "metadata": metadata, "spec": spec}
        process.cache.observe(ACCELERATOR_CLASSES, seen)
        expected = MoveState.MOVED if device_class is used else MoveState.WAITING
        assert process.fleet.state.models == {expected: 1}
    before = process.fleet.state
    metadata = {**seen["metadata"], "resourceVersion": "9"}
    status = {"nodes": 3}
    process.cache.observe(ACCELERATOR_CLASSES, {**seen, "metadata": metadata, "status": status})
    assert process.fleet.state is before, "its status says nothing"


def test_unrelated_change_computes_nothing_again() -> None:
    process = Process().sees(*(make_model(f"m{number}", "Moved") for number in range(200)))
    before = process.fleet.state
    changed = make_model("m7", "Moved", version=2)
    changed["status"]["replicas"] = 5
    assert process.sees(changed).fleet.state is before
    assert process.sees(make_model("m8", "Waiting", version=2)).fleet.state is not before


def test_metrics_of_the_leader_count_the_models() -> None:
    registry, process = CollectorRegistry(), Process(FleetConfig(max_failures=1))
    leads = [False]
    FleetCollector(process.fleet, registry, leads=lambda: leads[0])
    process.sees(make_model("a", "Kept"), make_model("b", "Moved"), make_model("c", "Moved"))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"enginewright_fleet_{name}", labels)

    assert value("models", state="Kept") is None
    leads[0] = True
    counts = [value("models", state=state) for state in MoveState]
    assert counts == [2, 0, 0, 1]
    assert value("halted", reason="TooManyFailures") == 1
    assert value("halted", reason="Paused") == 0


# 200 models


class Installation:
    """The API server with 200 models, and one process of the operator with eight workers.

    A worker reads, plans and then writes a model's status; others run meanwhile, models change, and the process may end
    at any point: a request that was sent then may still be executed.
    """

    MODELS = 200
    WORKERS = 8

    def __init__(self, seed: int, limit: int, max_failures: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - the same runs for everybody
        self.config = FleetConfig(limit, max_failures)
        self.image, self.images = NEW, 2
        self.version = 1
        self._moving: set[str] = set()
        self.most = 0  # that moved at the same time
        self.objects: dict[str, Json] = {}
        for number in range(self.MODELS):
            order = {0: "first", 1: "last"}.get(number % 20)
            labels = {ROLLOUT_ORDER: order} if order else {}
            self._store(make_model(f"m{number:03}", "Waiting", labels))
        self.start()

    def start(self) -> None:
        """Start a process that has listed everything."""
        self.process = Process(self.config, {"cpu": self.image})
        self.process.sees(*self.objects.values())
        self.queue: dict[str, None] = dict.fromkeys(self.objects)
        self.running: dict[str, Json] = {}  # what each worker is about to write

    def restart(self) -> None:
        for name, next_model in self.running.items():
            if name in self.objects and self.random.random() < 0.5:
                self._store({**self.objects[name], "status": next_model["status"]})
        self.start()

    def configure(self, **changes: Any) -> None:
        self.config = replace(self.config, **changes)
        self.restart()

    def step(self) -> None:
        """Have one worker take a model, or end with one."""
        if self.running and (len(self.running) == self.WORKERS or self.random.random() < 0.5):
            self._end(self.random.choice(sorted(self.running)))
        elif free := [item for item in self.queue if item not in self.running]:
            del self.queue[free[0]]
            self._begin(free[0])

    def _begin(self, name: str) -> None:
        if name not in self.objects:
            self._note_planned(name)
            return
        turn = self.process.takes_turn(name)
        next_model = copy.deepcopy(self.objects[name])
        images = next_model["status"]["images"]
        target = [{"variant": "cpu", "image": self.image}]
        if images["current"] == target:
            images |= {"state": "Moved", "target": []}
        elif images["target"] != target or images["state"] in ("Moved", "Waiting"):
            moves = turn and not images.get("reason")
            images |= {"state": "Moving" if moves else "Waiting", "target": target}
        self.running[name] = next_model

    def _end(self, name: str) -> None:
        next_model = self.running.pop(name)
        if self.random.random() < 0.05:  # the write fails
            self.queue[name] = None
            return
        current = self.objects.get(name)
        if current is not None and current["status"] != next_model["status"]:
            self._store({**current, "status": next_model["status"]})
            self.process.sees(self.objects[name])
            self.queue[name] = None
        self._note_planned(name)

    def _note_planned(self, name: str) -> None:
        self.queue |= dict.fromkeys(self.process.note_planned(name))

    def ends(self, name: str, state: str) -> None:
        """Have a model that moves serve with the new image, or fail."""
        model = copy.deepcopy(self.objects[name])
        images = model["status"]["images"]
        images |= {"state": state}
        if state == "Moved":
            images |= {"current": images["target"], "target": []}
        self._change(model)

    def retries(self, name: str) -> None:
        model = copy.deepcopy(self.objects[name])
        model["status"]["images"] |= {"state": "Waiting"}
        self._change(model)

    def changes(self, name: str) -> None:
        """Have a user relabel a model, pause it, let it go on, promote it, or delete it."""
        model = copy.deepcopy(self.objects[name])
        what = self.random.randrange(4)
        if what == 0:
            model["metadata"]["labels"] = {ROLLOUT_ORDER: self.random.choice(["first", "last", ""])}
        elif what == 1 and self.random.random() < 0.1:
            del self.objects[name]
            self._moving.discard(name)
            self.process.cache.observe(INFERENCE_MODELS, model, deleted=True)
            self.queue[name] = None
            return
        elif model["status"]["images"]["state"] == "Kept":
            self.retries(name)
            return
        elif model["status"]["images"]["state"] == "Waiting":
            model["status"]["images"]["reason"] = "Suspended" if what == 2 else ""
        self._change(model)

    def _change(self, model: Json) -> None:
        name = model["metadata"]["name"]
        self._store(model)
        self.process.sees(self.objects[name])
        self.queue[name] = None

    def _store(self, model: Json) -> None:
        self.version += 1
        metadata = {**model["metadata"], "resourceVersion": str(self.version)}
        self.objects[metadata["name"]] = {**model, "metadata": metadata}
        moves = model["status"]["images"]["state"] == "Moving"
        (self._moving.add if moves else self._moving.discard)(metadata["name"])
        self.most = max(self.most, len(self._moving))

    def moving(self) -> list[str]:
        return sorted(self._moving)

    def states(self) -> Counter[str]:
        return Counter(object_["status"]["images"]["state"] for object_ in self.objects.values())


@pytest.mark.parametrize(("seed", "limit"), [(1, 1), (2, 2), (3, 5)])
def test_never_more_than_the_limit_move_whatever_happens(seed: int, limit: int) -> None:
    fleet = Installation(seed, limit, max_failures=1000)
    chance = fleet.random
    for _ in range(examples(3000)):
        event, moving = chance.random(), fleet.moving()
        if event < 0.2 and moving:
            name = chance.choice(moving)
            if name not in fleet.running:
                fleet.ends(name, "Kept" if chance.random() < 0.1 else "Moved")
        elif event < 0.5:
            name = chance.choice(sorted(fleet.objects))
            if name not in fleet.running:
                fleet.changes(name)
        elif event < 0.502:
            fleet.restart()
        elif event < 0.505:
            fleet.images += 1
            fleet.image = f"registry.example/cpu:{fleet.images}"
            fleet.restart()
        elif event < 0.508:
            fleet.configure(paused=not fleet.config.paused)
        for _ in range(4):
            fleet.step()
            assert fleet.most <= limit
    assert fleet.most == limit, "it is used"


def test_all_models_move_in_their_order() -> None:
    fleet = Installation(seed=4, limit=2, max_failures=3)
    begun: list[str] = []
    for _ in range(20_000):
        moving = fleet.moving()
        begun += [item for item in moving if item not in begun]
        if moving and fleet.random.random() < 0.3 and moving[0] not in fleet.running:
            fleet.ends(moving[0], "Moved")
        fleet.step()
        if fleet.states() == {"Moved": fleet.MODELS}:
            break
    assert fleet.states() == {"Moved": fleet.MODELS}
    numbers = [int(item[1:]) for item in begun]
    ranks = [{0: 0, 1: 2}.get(number % 20, 1) for number in numbers]
    assert ranks == sorted(ranks)
    assert fleet.most == 2


def test_bad_image_stops_after_max_failures() -> None:
    fleet = Installation(seed=5, limit=2, max_failures=3)
    begun: set[str] = set()
    for _ in range(3000):
        for name in fleet.moving():
            begun.add(name)
            if name not in fleet.running:
                fleet.ends(name, "Kept")
        fleet.step()
    while fleet.moving() or fleet.states()["Kept"] < len(begun):
        for name in fleet.moving():
            if name not in fleet.running:
                fleet.ends(name, "Kept")
        fleet.step()
    assert 3 <= fleet.states()["Kept"] <= 4
    assert fleet.states()["Moving"] == 0
    fleet.configure(max_failures=5)
    for _ in range(3000):
        fleet.step()
    assert fleet.states()["Moving"] == 2


# with plans


class Members:
    """A few models with their clusters, planned in turn."""

    def __init__(self, count: int, limit: int = 1, first: str = "", **spec: Any) -> None:
        self.members = {f"m{number}": Member(**spec) for number in range(count)}
        self.config = FleetConfig(limit=limit, max_failures=2)
        if first:
            model = self.members[first].model
            assert model
            model["metadata"]["labels"] = {ROLLOUT_ORDER: "first"}

    def state(self) -> FleetState:
        views = []
        for name, member in self.members.items():
            assert member.model
            move = present(move_view(member.model))
            views.append(replace(move, name=name))
        installation = next(iter(self.members.values()))
        configured = list_configured(installation.config.images, installation.classes)
        return fleet_state(views, configured, self.config)

    def upgrade(self, image: str = NEW) -> "Members":
        for member in self.members.values():
            member.upgrade(image)
        return self.settle()

    def edit_class(self, *tolerated: str) -> "Members":
        tolerations = [{"key": key, "operator": "Exists"} for key in tolerated]
        for member in self.members.values():
            member.classes = [accelerator_class("cpu", tolerations=tolerations)]
        return self.settle()

    def move_without_jobs(self, image: str) -> "Members":
        for member in self.members.values():
            member.config = replace(member.config, images={**member.config.images, "cpu": image})
        return self.settle()

    def goes_on(self, name: str) -> None:
        """Have what a member rolls out pass its proofs."""
        self.members[name].canary_available().later(seconds=61).all_available()
        self.settle()

    def settle(self) -> "Members":
        changed = True
        while changed:
            changed = False
            for name, member in self.members.items():
                member.turn = ("shop", name) in self.state().permitted
                changed |= member.pass_once()
                assert self.state().models[MoveState.MOVING] <= self.config.limit
        return self

    def moving(self) -> list[str]:
        return [name for name, member in self.members.items() if member.state()[0] == "Moving"]

    def states(self) -> list[str]:
        return [member.state()[0] for member in self.members.values()]

    def running(self) -> list[str]:
        return [name for name, member in self.members.items() if member.running_jobs()]


def test_models_are_prepared_and_rolled_out_one_after_the_other() -> None:
    fleet = Members(4, first="m2").upgrade()
    begun = []
    while moving := fleet.moving():
        assert fleet.running() == moving
        begun += moving
        fleet.members[moving[0]].job_succeeds(publish_model("e" * 64)).all_available()
        fleet.settle()
    assert begun == ["m2", "m0", "m1", "m3"]
    assert fleet.states() == ["Moved"] * 4


def test_models_that_the_image_fails_keep_theirs_and_stop_the_others_until_another_image() -> None:
    fleet = Members(4, limit=2).upgrade()
    assert fleet.moving() == ["m0", "m1"]
    for name in ("m0", "m1"):
        fleet.members[name].job_fails(Reason.UNSUPPORTED_OPERATOR)
    fleet.settle()
    assert fleet.states() == ["Kept", "Kept", "Waiting", "Waiting"]
    assert not fleet.running()
    for member in fleet.members.values():
        assert member.conditions()["Ready"] == ("True", "Serving")
        assert member.serving_images() == {CPU_IMAGE}
    fleet.upgrade(NEWER)
    assert fleet.moving() == fleet.running() == ["m0", "m1"]


def halt_fleet(limit: int) -> Members:
    """Return a fleet of which two models' canaries, as many as it allows, were rejected with the new image."""
    fleet = Members(4, rollout=CANARY, replicas=2).upgrade()
    for name in ("m0", "m1"):
        reject_canary(fleet.members[name].job_succeeds(MOVED))
        fleet.settle()
    assert fleet.states() == ["Kept", "Kept", "Waiting", "Waiting"]
    fleet.config = replace(fleet.config, limit=limit)
    return fleet


def promote(member: Member) -> Member:
    member.annotate(PROMOTE, member.record["revision"])
    return member


# event: Operator | as many models as `fleet.maxFailures` keep their image, and one is promoted | all
#   models; this one moves at once, and others as far as the limit allows | `kubectl get im -o wide`, `status.images`
def test_promotion_needs_no_turn_and_fewer_failures_have_others_begin() -> None:
    fleet = halt_fleet(limit=1)
    fleet.config = replace(fleet.config, max_failures=1)
    promote(fleet.members["m1"])
    assert fleet.settle().states() == ["Kept", "Moving", "Waiting", "Waiting"]
    assert (fleet.state().failures, fleet.state().halt) == (1, Halt.TOO_MANY_FAILURES)
    promote(fleet.members["m0"]).all_available()
    fleet.members["m1"].all_available()
    assert fleet.settle().states() == ["Moved", "Moved", "Moving", "Waiting"]


def test_an_image_like_the_one_before_moves_without_jobs() -> None:
    same = {"pipeline": "5" * 64}
    fleet = Members(2)
    for member in fleet.members.values():
        member.images[CPU_IMAGE] = image_facts("cpu").model_copy(update=same)
        member.settle().job_succeeds().all_available().jobs_are_cleaned_away()
        member.new_runtime_image(NEW, like=member.images[CPU_IMAGE])
    fleet.settle()
    for name in ("m0", "m1"):
        assert fleet.moving() == [name]
        assert not fleet.running()
        fleet.members[name].all_available()
        fleet.settle()
    assert fleet.states() == ["Moved", "Moved"]


def test_edit_of_a_class_moves_no_model_while_the_fleet_is_paused_and_then_all_in_turn() -> None:
    fleet = Members(3, rollout=CANARY, replicas=2)
    fleet.config = replace(fleet.config, paused=True)
    fleet.edit_class("dedicated")
    assert fleet.states() == ["Waiting"] * 3
    assert not any(member.canaries() for member in fleet.members.values())
    fleet.config = replace(fleet.config, paused=False)
    fleet.settle()
    for name in fleet.members:
        assert fleet.moving() == [name]
        fleet.goes_on(name)
    assert fleet.states() == ["Moved"] * 3


def change_at_random(fleet: Members, chance: random.Random) -> None:
    """Have an administrator or a user change something, or a rollout go on."""
    event, name = chance.randrange(5), chance.choice(sorted(fleet.members))
    if event == 0:
        fleet.edit_class(*chance.sample(["a", "b"], chance.randrange(3)))
    elif event == 1:
        fleet.move_without_jobs(chance.choice([CPU_IMAGE, NEW, NEWER]))
    elif event == 2:
        fleet.config = replace(fleet.config, paused=not fleet.config.paused)
    elif event == 3:
        batching = {"maxSize": chance.randrange(2, 9)}
        fleet.members[name].edit(serving={"batching": batching}, rollout=CANARY)
    else:
        fleet.goes_on(name)


@pytest.mark.parametrize("seed", range(2))
def test_classes_images_and_specs_that_change_in_any_order_reach_all_models(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - the same runs for everybody
    fleet = Members(3, limit=2, rollout=CANARY, replicas=2)
    same = {"pipeline": "5" * 64}
    for member in fleet.members.values():
        like = image_facts("cpu").model_copy(update=same)
        member.images |= dict.fromkeys((CPU_IMAGE, NEW, NEWER), like)
        member.settle().job_succeeds().all_available().jobs_are_cleaned_away()
    fleet.settle()
    for _ in range(examples(100)):
        before = set(fleet.moving())
        change_at_random(fleet, chance)
        if fleet.config.paused:
            assert set(fleet.settle().moving()) <= before
    fleet.config = replace(fleet.config, paused=False)
    fleet.edit_class("last").move_without_jobs(NEWER)
    for _ in range(4):
        for name in fleet.members:
            fleet.goes_on(name)
    assert fleet.states() == ["Moved"] * 3
    for member in fleet.members.values():
        (template,) = (item["spec"]["template"]["spec"] for item in member.serving_deployments())
        assert [item["key"] for item in template["tolerations"]] == ["last"]
        assert member.serving_images() == {NEWER}
