"""In no order of events does a plan take available pods away that the user still asks for."""

import contextlib
from typing import Any, Final

from enginewright.contract.reasons import Reason
from enginewright.plan.replicas import fixed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.plan_objects import accelerator_class, image_facts, published
from tests.support.plan_world import World

NAMES: Final = ("a", "b", "c")
CLASSES: Final = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from([None, None, 1, 3])),
    min_size=1,
    max_size=3,
    unique_by=lambda each: each[0],
)
EVENTS: Final = st.one_of(
    st.tuples(st.just("scale"), st.integers(0, 9)),
    st.tuples(st.just("move"), CLASSES),
    st.tuples(st.just("source"), st.sampled_from("xyz")),
    st.tuples(st.just("pause"), st.booleans()),
    st.tuples(st.just("job"), st.booleans()),
    st.tuples(st.just("pods"), st.tuples(st.sampled_from(NAMES), st.integers(0, 9))),
    st.tuples(st.just("complete"), st.sampled_from(NAMES)),
    st.tuples(st.just("image"), st.sampled_from(["unknown", "known"])),
    st.tuples(st.just("class"), st.sampled_from(NAMES)),
    st.tuples(st.just("restart"), st.none()),
)


class Cluster:
    """A model, and what its users and its cluster may do to it."""

    def __init__(self) -> None:
        self.world = World(*NAMES, accelerators=[{"class": "a"}], replicas=4)
        self.world.settle().job_succeeds()
        self.images = 1

    def does(self, event: tuple[str, Any]) -> None:
        kind, value = event
        getattr(self, f"_{kind}")(value)

    def available(self) -> dict[str, int]:
        """Return the pods that serve, without those that are on their way out already."""
        return {
            each["metadata"]["name"]: min(
                int((each.get("status") or {}).get("availableReplicas") or 0),
                int(each["spec"]["replicas"]),
            )
            for each in self.world.all("Deployment")
        }

    def asked(self) -> int:
        """Return the pods that the user asks for where there are any: the total, and counts of classes."""
        spec = self.world.facts().model.spec
        own = fixed(spec)
        names = [each.class_name for each in spec.accelerators]
        there = self.available()
        counted = sum(count for name, count in own.items() if f"resnet-{name}" in there)
        return counted + (spec.replicas if set(names) - own.keys() else 0)

    def _scale(self, count: int) -> None:
        self.world.edit(replicas=count)

    def _move(self, classes: list[tuple[str, int | None]]) -> None:
        wanted = [
            {"class": name, **({} if own is None else {"replicas": own})} for name, own in classes
        ]
        self.world.edit(accelerators=wanted)

    def _source(self, name: str) -> None:
        self.world.edit(source={"uri": f"https://models.example/{name}.onnx"})

    def _pause(self, paused: bool) -> None:
        self.world.edit(rollout={"paused": paused})

    def _job(self, well: bool) -> None:
        with contextlib.suppress(ValueError):  # none runs
            name = self.world.job()["metadata"]["name"]
            if well:
                self.world.job_succeeds(published((name.encode().hex() * 8)[-64:]))
            else:
                self.world.job_fails(Reason.INVALID_MODEL)

    def _pods(self, value: tuple[str, int]) -> None:
        name, count = value
        found = self.world.objects.get(("Deployment", f"resnet-{name}"))
        if found is None:
            return
        self.world.count_pods(found, min(count, found["spec"]["replicas"]))

    def _complete(self, name: str) -> None:
        if ("Deployment", f"resnet-{name}") in self.world.objects:
            self.world.complete(f"resnet-{name}")

    def _image(self, state: str) -> None:
        self.images += 1
        image = f"registry.example/cpu:{self.images}"
        self.world.new_runtime_image(image)
        if state == "known":
            self.world.images[image] = image_facts("cpu")
        self.world.settle()

    def _class(self, name: str) -> None:
        known = [each for each in self.world.classes if each.metadata.name != name]
        gone = len(known) < len(self.world.classes)
        self.world.classes = known if gone else [*known, accelerator_class(name)]
        self.world.settle()

    def _restart(self, _: None) -> None:
        self.world.operator_restarts()


@settings(
    max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(st.lists(EVENTS, max_size=10))
def test_available_pods_that_are_asked_for_stay(events: list[tuple[str, Any]]) -> None:
    cluster = Cluster()
    for event in events:
        before = cluster.available()
        cluster.does(event)
        if event[0] in ("pods", "complete"):
            before = cluster.available()  # what the cluster has come to, before the plan sees it
        cluster.world.settle()
        counts = {
            each["metadata"]["name"]: each["spec"]["replicas"]
            for each in cluster.world.all("Deployment")
        }
        kept = sum(min(count, counts.get(name, 0)) for name, count in before.items())
        assert kept >= min(sum(before.values()), cluster.asked()), (before, counts)
