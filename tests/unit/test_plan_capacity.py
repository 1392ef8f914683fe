"""Pods that wait: for a node, which may come late, or for the API server to allow them; and until when they have to start."""

from collections.abc import Callable
from datetime import timedelta
from typing import Final

import pytest
from enginewright.manifests.labels import REVISION
from enginewright.observed.pods import pod_view
from enginewright_contract.reasons import Reason

from tests.support.fake_kube import timestamp
from tests.support.plan_objects import OTHER, SECOND, Json, image_facts
from tests.support.plan_world import World, serving
from tests.support.simulation import PROGRESS_DEADLINE, has_node, runs

WITH_CANARY: Final[Json] = {"canary": {"replicas": 1, "hold": "1m"}}
LONG: Final[Json] = {"minutes": 11}  # longer than pods may take to start


def verify() -> World:
    """Return a model of which an update has a canary."""
    return serving(rollout=WITH_CANARY).edit(source=OTHER).job_succeeds(SECOND)


def replace_directly() -> World:
    return serving().edit(source=OTHER).job_succeeds(SECOND)


def promote() -> World:
    world = verify().canary_available().later(seconds=61).later(seconds=61)
    assert world.status["target"]["phase"] == "Promoting"
    return world


def waits(world: World) -> World:
    """Have no node take the pods of the update."""
    world.canary_unschedulable()
    return world if world.canaries() else world.update_unschedulable()


# event: Rollouts | no node takes an update's pods, for longer than `rollout.progressTimeout`; then one does | the previous
#   revision | Ready `CapacityBlocked`, Reconciling; once a pod has its node it has the timeout to become ready
@pytest.mark.parametrize("update", [verify, replace_directly, promote])
def test_a_pod_that_gets_its_node_late_has_the_whole_timeout_from_then_on(
    update: Callable[[], World],
) -> None:
    world = waits(update()).later(**LONG)
    for _ in range(2):
        assert world.conditions()["Ready"] == ("False", "CapacityBlocked")
        assert world.conditions()["Reconciling"][0] == "True"
        assert world.conditions()["RolledBack"][0] == "False"
        assert "Insufficient nvidia.com/gpu" in world.message()
        world.later(hours=5)
    revision = world.status["revision"]
    world.nodes_take_pods()
    assert world.conditions()["RolledBack"][0] == "False"
    assert world.conditions()["Stalled"][0] == "False"
    assert world.status["target"]["revision"] == revision
    assert world.last
    assert world.last.requeue_after
    assert world.last.requeue_after <= PROGRESS_DEADLINE.total_seconds()
    world.later(minutes=9)
    assert world.conditions()["RolledBack"][0] == "False"
    world.later(minutes=1)
    assert world.conditions()["RolledBack"] == ("True", "RolloutFailed")


@pytest.mark.parametrize("update", [verify, replace_directly])
def test_a_scheduled_pod_is_given_up_although_another_one_waits(
    update: Callable[[], World],
) -> None:
    world = update()
    (deployment, *_) = [*world.canaries(), *world.serving_deployments()]
    name = deployment["metadata"]["name"]
    world.serving_pod(name, index=91)
    world.waiting_pod(name)
    world.later(**LONG)
    assert world.conditions()["RolledBack"] == ("True", "RolloutFailed")


def test_a_pod_that_was_ready_has_the_timeout_from_when_it_became_unready() -> None:
    world = verify().edit(rollout={"canary": {"replicas": 1, "hold": "24h"}})
    world.canary_available().later(hours=2)
    world.serving_pod(world.canaries()[0]["metadata"]["name"], index=0, ready=False)
    world.later(minutes=9)
    assert world.conditions()["RolledBack"][0] == "False"
    world.later(**LONG)
    assert world.conditions()["RolledBack"] == ("True", "RolloutFailed")


@pytest.mark.parametrize("initialized", ["False", "True"])
def test_a_pod_that_starts_again_on_its_node_has_the_timeout_from_when_it_became_unready(
    initialized: str,
) -> None:
    world = verify().edit(rollout={"canary": {"replicas": 1, "hold": "24h"}})
    world.canary_available().later(hours=2)
    (pod,) = world.canary_pods()
    since = pod_view(pod).scheduled_at
    ended = runs(timestamp(world.now), ready=False)
    world.now += timedelta(seconds=30)
    begins = {
        "type": "Initialized",
        "status": initialized,
        "lastTransitionTime": timestamp(world.now),
    }
    conditions = [*ended["conditions"], begins, has_node(since)]
    world.set_status(pod, {**pod["status"], **ended, "conditions": conditions})
    assert world.settle().conditions()["RolledBack"][0] == "False"
    world.later(**LONG)
    assert world.conditions()["RolledBack"] == ("True", "RolloutFailed")


def test_a_first_rollout_that_waits_for_a_node_is_not_given_up() -> None:
    world = World(replicas=2).settle().job_succeeds().update_unschedulable().later(hours=5)
    assert world.conditions()["Ready"] == ("False", "CapacityBlocked")
    assert world.conditions()["Reconciling"][0] == "True"
    assert "CapacityBlocked" in world.event_reasons()
    world.nodes_take_pods().later(minutes=9)
    assert world.conditions()["Ready"] == ("False", "RollingOut")
    world.later(minutes=1)
    assert world.conditions()["Stalled"] == ("True", "RolloutFailed")


def test_serving_pods_that_lost_their_node_wait_without_a_deadline() -> None:
    world = serving()
    world.partly_available("resnet-cpu", 1)
    world.waiting_pod("resnet-cpu", index=1)
    world.later(hours=5)
    assert world.conditions()["Ready"] == ("False", "CapacityBlocked")
    assert world.conditions()["Reconciling"][0] == "True"


# event: Rollouts | a model that waits for its first device is edited | nothing; the pods before the edit end, and do not
#   take the device | Ready `CapacityBlocked`
def test_superseded_pods_that_wait_end_where_nothing_has_served() -> None:
    world = World(replicas=1).settle().job_succeeds().update_unschedulable()
    (superseded,) = world.waiting_pods()
    world.edit(serving={"batching": {"maxSize": 8}})
    world.update_unschedulable().later(minutes=1)
    (waiting,) = world.waiting_pods()
    assert superseded["metadata"]["labels"][REVISION] != waiting["metadata"]["labels"][REVISION]
    assert waiting["metadata"]["labels"][REVISION] == world.status["revision"]
    (deployment,) = world.serving_deployments()
    assert deployment["spec"]["strategy"]["type"] == "RollingUpdate", "as the spec says"
    world.nodes_take_pods().all_available()
    assert world.conditions()["Ready"] == ("True", "Serving")


def test_an_image_is_not_kept_for_a_lack_of_devices() -> None:
    world = serving(rollout=WITH_CANARY).new_runtime_image(like=image_facts("cpu"))
    world.job_succeeds().canary_unschedulable().later(**LONG)
    world.nodes_take_pods()
    assert world.status["images"]["state"] == "Moving"
    world.canary_available().later(seconds=61).later(seconds=61).all_available()
    assert world.status["images"]["state"] == "Moved"


QUOTA: Final = "exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, used: 2, limited: 2"


# event: Rollouts | a quota, Pod Security or a LimitRange forbids an update's canary | the previous revision | Ready
#   `FailedCreate` with the API server's words, a Warning Event; it goes on once the pods are allowed
def test_refused_pods_of_a_canary_are_reported_in_the_api_servers_words() -> None:
    world = verify().pods_are_refused(f'pods "resnet-cpu-canary---x" is forbidden: {QUOTA}')
    assert world.conditions()["Ready"] == ("False", "FailedCreate")
    assert QUOTA in world.message()
    assert "resnet-cpu-canary---x" not in world.message()
    assert world.status["target"]["reason"] == "FailedCreate"
    assert [(event.type, event.reason) for event in world.events][-1] == ("Warning", "FailedCreate")
    world.later(hours=5)
    assert world.conditions()["Ready"] == ("False", "FailedCreate")
    assert world.conditions()["RolledBack"][0] == "False"
    world.canary_available()
    assert world.conditions()["Ready"] == ("False", "VerifyingCanary")


def test_a_late_pod_is_not_given_up_while_another_one_reports_a_fault_of_the_store() -> None:
    world = verify()
    name = world.canaries()[0]["metadata"]["name"]
    world.serving_pod(name)
    world.later(minutes=9)
    world.crash(name, Reason.STORE_UNAVAILABLE, "fetch-artifact", restarts=0)
    world.later(hours=1)
    assert world.conditions()["RolledBack"][0] == "False"


@pytest.mark.parametrize("evictions", [2, 3])
def test_pods_that_are_evicted_again_and_again_reject_a_revision(evictions: int) -> None:
    world = verify()
    name = world.canaries()[0]["metadata"]["name"]
    for index in range(evictions):
        evicted = {"phase": "Failed", "reason": "Evicted", "message": "it wrote too much"}
        world.serving_pod(name, index=index, status=evicted)
        world.later(minutes=5)
    rejected = ("True", "Evicted") if evictions > 2 else ("False", "Serving")
    assert world.conditions()["RolledBack"] == rejected


def test_evictions_do_not_reject_a_revision_of_which_other_pods_are_ready() -> None:
    world = replace_directly()
    name = world.serving_deployments()[0]["metadata"]["name"]
    world.serving_pod(name, index=5, ready=True)
    evicted = {"phase": "Failed", "reason": "Evicted", "message": "it wrote too much"}
    for index in range(3):
        world.serving_pod(name, index=index, status=evicted)
    assert world.settle().conditions()["RolledBack"][0] == "False"
