"""Writes that the API server refuses, for a while or for ever: what serves is scaled, repaired and rolled back nonetheless.

In any order of refusals and events; and once nothing is refused any more, the rest follows without another event.
"""

from typing import Any, Final

import pytest
from enginewright.controller.refused_writes import LONGEST_WAIT
from enginewright.kube.errors import Forbidden
from enginewright.manifests.labels import REVISION
from enginewright.manifests.outcome import RevisionOutcome
from enginewright_contract.reasons import Reason
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from typing_extensions import override

from tests.support.effort import examples
from tests.support.fake_kube import timestamp
from tests.support.many_models import SOURCE, ManyModels
from tests.support.plan_objects import SECOND
from tests.support.plan_world import conditions_of

NAME: Final = "a"
QUOTA: Final = "exceeded quota: q, requested: count/jobs.batch=1"
ROUTE: Final = {"route": {"parentRefs": [{"name": "gateway"}]}}
OTHER: Final = {"uri": "https://models.example/other.onnx"}
REFUSED: Final = st.sampled_from(
    [
        ("apply", "Job"),
        ("apply", "HTTPRoute"),
        ("apply", "Service"),
        ("apply", "PodDisruptionBudget"),
        ("apply", "ControllerRevision"),
        ("create", "ControllerRevision"),
        ("delete", "Job"),
        ("delete", "HTTPRoute"),
    ]
)
SOURCES: Final = st.sampled_from([{"uri": SOURCE}, OTHER])


def refuse(world: ManyModels, *writes: tuple[str, str]) -> None:
    for verb, kind in writes:
        world.kube.refuses[verb, kind] = Forbidden(f"{kind}: {QUOTA}", code=403)


def serve(**spec: Any) -> ManyModels:
    world = ManyModels()
    world.apply(NAME, replicas=2, **spec)
    world.job_succeeds()
    return world.all_available()


def serve_with_canary() -> ManyModels:
    return serve(rollout={"canary": {"replicas": 1}})


def edit(world: ManyModels, **spec: Any) -> None:
    world.kube.put({**world.model(NAME), "spec": {**world.model(NAME)["spec"], **spec}})
    world.settle()


def remove(world: ManyModels, kind: str) -> None:
    """Have another client delete the objects of a kind that serve."""
    for obj in world.serving_deployments() if kind == "Deployment" else world.all(kind):
        world.remove(kind, obj["metadata"]["name"])
    world.settle()


# event: Operator | a quota or a webhook refuses an update's Job | the previous revision, which is scaled, repaired and
#   rolled back | `ApplyFailed` with the Job, the API server's words and what goes on; it is tried again within 2 minutes
def test_refused_job_holds_up_the_update_alone() -> None:
    world = serve()
    refuse(world, ("apply", "Job"))
    edit(world, source=OTHER)
    for count in (1, 8, 0, 3):
        edit(world, replicas=count)
        assert world.replicas() == {"a-cpu": count}
    for kind in ("Deployment", "Service", "PodDisruptionBudget"):
        remove(world, kind)
        assert len(world.all(kind)) == 1
    assert world.ready(NAME) == ("False", "ApplyFailed")
    message = world.message(NAME)
    assert message.startswith("the preparation waits for Job a-prepare-")
    assert QUOTA in message
    assert "scaling, repair and rollback go on" in message
    world.kube.refuses.clear()
    world.wait(seconds=LONGEST_WAIT.total_seconds())
    world.job_succeeds(SECOND)
    world.all_available()
    assert world.ready(NAME) == ("True", "Serving")


# event: Rollouts | the API server refuses a model's HTTPRoute | all; a crashed canary is removed | `RouteAccepted` False
#   with `ApplyFailed`, and its words in Ready
def test_refused_route_leaves_a_crashed_canary_to_be_removed() -> None:
    world = serve_with_canary()
    edit(world, source=OTHER)
    world.job_succeeds(SECOND)
    (canary,) = world.canaries()
    refuse(world, ("apply", "HTTPRoute"))
    edit(world, serving=ROUTE)
    assert "the route waits for HTTPRoute a" in world.message(NAME)
    assert conditions_of(world.model(NAME))["RouteAccepted"] == ("False", "ApplyFailed")
    world.crash(canary["metadata"]["name"], Reason.BACKEND_CRASHED)
    world.settle()
    assert not world.canaries()
    assert world.ready(NAME) == ("False", "BackendCrashed")
    assert "the route waits for HTTPRoute a" in world.message(NAME)


def test_serving_model_without_its_service_is_not_ready() -> None:
    world = serve()
    changed = {
        item["type"]: item["lastTransitionTime"] for item in world.status(NAME)["conditions"]
    }
    refuse(world, ("apply", "Service"))
    world.wait(minutes=1)
    remove(world, "Service")
    assert world.ready(NAME) == ("False", "ApplyFailed")
    passes = world.passes[NAME]
    world.wait(hours=1)
    assert world.passes[NAME] - passes < 40, "nothing but the attempts"
    (ready,) = [item for item in world.status(NAME)["conditions"] if item["type"] == "Ready"]
    assert changed["Ready"] < ready["lastTransitionTime"] < timestamp(world.now)
    world.kube.refuses.clear()
    world.wait(seconds=LONGEST_WAIT.total_seconds())
    assert world.ready(NAME) == ("True", "Serving")


def test_refused_revision_leaves_what_serves_to_be_scaled_and_repaired() -> None:
    world = serve()
    before = world.status(NAME)["revision"]
    refuse(world, ("create", "ControllerRevision"))
    edit(world, source=OTHER, replicas=4)
    world.job_succeeds(SECOND)
    for count in (1, 6):
        edit(world, replicas=count)
        assert world.replicas() == {"a-cpu": count}
    for kind in ("Deployment", "Service", "PodDisruptionBudget"):
        remove(world, kind)
        assert len(world.all(kind)) == 1
    (deployment,) = world.serving_deployments()
    assert deployment["metadata"]["labels"][REVISION] == before
    assert world.replicas() == {"a-cpu": 6}
    assert world.ready(NAME) == ("False", "ApplyFailed")
    assert "the update waits for ControllerRevision" in world.message(NAME)
    assert "scaling, repair and rollback go on" in world.message(NAME)
    world.kube.refuses.clear()
    world.wait(seconds=LONGEST_WAIT.total_seconds())
    (deployment,) = world.serving_deployments()
    assert deployment["metadata"]["labels"][REVISION] == world.status(NAME)["revision"] != before


def list_recorded(world: ManyModels) -> list[str]:
    """Return what is recorded of the revisions that were rejected."""
    revisions = world.all("ControllerRevision")
    outcomes = (RevisionOutcome.read(one["metadata"]["annotations"]) for one in revisions)
    return [one.reason for one in outcomes if one and one.state == "Rejected"]


@pytest.mark.parametrize("canary", [0, 1])
def test_revision_whose_rejection_cannot_be_recorded_stays_rejected(canary: int) -> None:
    world = serve(rollout={"canary": {"replicas": canary}})
    before = world.status(NAME)["active"]["revision"]
    edit(world, source=OTHER)
    world.job_succeeds(SECOND)
    refuse(world, ("apply", "ControllerRevision"))
    for deployment in world.canaries() or world.serving_deployments():
        world.crash(deployment["metadata"]["name"], Reason.BACKEND_CRASHED)
    world.settle()
    world.all_available()
    passes = world.passes[NAME]
    world.wait(hours=1)
    assert world.passes[NAME] - passes < 40, "nothing but the attempts"
    world.restart().settle()
    assert world.replicas() == {"a-cpu": 2}, "no canary"
    (deployment,) = world.serving_deployments()
    assert deployment["metadata"]["labels"][REVISION] == before
    assert world.ready(NAME) == ("False", "BackendCrashed")
    assert "what is recorded in it waits for ControllerRevision" in world.message(NAME)
    assert not list_recorded(world)
    world.kube.refuses.clear()
    world.wait(seconds=LONGEST_WAIT.total_seconds())
    assert list_recorded(world) == ["BackendCrashed"]


# event: Jobs | a Job that is deleted stays, by a finalizer | the previous revision, which is scaled | Ready names the Job
def test_deleted_job_that_keeps_its_name_holds_up_what_needs_it_alone() -> None:
    world = serve()
    edit(world, source=OTHER)
    job = world.job()
    job["metadata"] |= {
        "deletionTimestamp": timestamp(world.now),
        "finalizers": ["foregroundDeletion"],
    }
    world.kube.count_change(job)
    edit(world, replicas=6)
    assert world.replicas() == {"a-cpu": 6}
    world.wait(minutes=5)
    assert f"Job {job['metadata']['name']}" in world.message(NAME)
    assert "still being deleted" in world.message(NAME)


class Refusals(RuleBasedStateMachine):
    """One model, what others do to it and its objects, and what the API server refuses."""

    @initialize(canary=st.booleans())
    def start(self, canary: bool) -> None:
        self.world = serve_with_canary() if canary else serve()

    @rule(write=REFUSED)
    def is_refused(self, write: tuple[str, str]) -> None:
        refuse(self.world, write)

    @precondition(lambda self: self.world.kube.refuses)
    @rule(which=st.integers(0, 9))
    def is_allowed(self, which: int) -> None:
        writes = sorted(self.world.kube.refuses)
        del self.world.kube.refuses[writes[which % len(writes)]]
        self.world.wait(seconds=LONGEST_WAIT.total_seconds())  # no event says so

    @rule(count=st.integers(0, 9))
    def is_scaled(self, count: int) -> None:
        edit(self.world, replicas=count)

    @rule(source=SOURCES)
    def is_updated(self, source: dict[str, str]) -> None:
        edit(self.world, source=source)

    @rule(serving=st.sampled_from([{}, ROUTE]))
    def gets_or_loses_its_route(self, serving: dict[str, Any]) -> None:
        edit(self.world, serving=serving)

    @rule(kind=st.sampled_from(["Deployment", "Service", "PodDisruptionBudget", "HTTPRoute"]))
    def is_damaged(self, kind: str) -> None:
        remove(self.world, kind)

    @precondition(lambda self: self.world.running_jobs())
    @rule()
    def is_prepared(self) -> None:
        self.world.job_succeeds(SECOND)

    @precondition(lambda self: self.world.canaries())
    @rule()
    def canary_crashes(self) -> None:
        for canary in self.world.canaries():
            self.world.crash(canary["metadata"]["name"], Reason.BACKEND_CRASHED)
        self.world.settle()
        assert not self.world.canaries(), "it is rolled back"

    @rule()
    def pods_are_ready(self) -> None:
        self.world.all_available()

    @rule(seconds=st.sampled_from([1, 30, 600]))
    def time_passes(self, seconds: int) -> None:
        self.world.wait(seconds=seconds)

    @invariant()
    def what_serves_is_as_asked_for(self) -> None:
        (deployment,) = self.world.serving_deployments()
        assert deployment["spec"]["replicas"] == self.world.model(NAME)["spec"]["replicas"]
        for kind in ("Service", "PodDisruptionBudget"):
            assert ("apply", kind) in self.world.kube.refuses or self._is_there(kind)

    @override
    def teardown(self) -> None:
        """Have nothing refused any more, and nothing else happen: what was held up is made."""
        self.world.kube.refuses.clear()
        self.world.wait(seconds=LONGEST_WAIT.total_seconds())
        for condition in self.world.status(NAME)["conditions"]:
            assert condition["reason"] != "ApplyFailed"
            assert QUOTA not in condition["message"]
        assert self._is_there("HTTPRoute") == bool(self.world.model(NAME)["spec"].get("serving"))

    def _is_there(self, kind: str) -> bool:
        return any(obj["metadata"]["name"].startswith(NAME) for obj in self.world.all(kind))


def test_in_any_order_what_serves_is_kept_and_the_rest_follows() -> None:
    limits = settings(
        max_examples=examples(60),
        stateful_step_count=20,
        deadline=None,
        derandomize=True,  # the same runs for everybody
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Refusals, settings=limits)
