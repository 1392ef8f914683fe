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


@pytest.mark.parametrize("times", [2, 3])
def test_pods_that_are_evicted_again_and_again_reject_a_revision(times: int) -> None:
    world = verify()
    name = world.canaries()[0]["metadata"]["name"]
    for index in range(times):
        pod = world.serving_pod(name, index=index)
        world.later(minutes=5)
        world.evict(pod)
        world.settle()
    rejected = ("True", "Evicted") if times > 2 else ("False", "Serving")
    assert world.conditions()["RolledBack"] == rejected
    if times > 2:
        assert "raise spec.podTemplate.resources" in world.condition("RolledBack")["message"]


# event: Rollouts | a node that lacks disk evicts all pods of an update at once | the previous revision | other pods of the
#   update take their place
def test_pods_that_are_evicted_at_once_count_as_one() -> None:
    world = verify()
    name = world.canaries()[0]["metadata"]["name"]
    evicted = [world.serving_pod(name, index=index) for index in range(4)]
    world.later(minutes=5)
    for pod in evicted:
        world.evict(pod)
    world.serving_pod(name, index=5)
    assert world.settle().conditions()["RolledBack"][0] == "False"


def test_evictions_do_not_reject_a_revision_of_which_other_pods_are_ready() -> None:
    world = replace_directly()
    name = world.serving_deployments()[0]["metadata"]["name"]
    world.serving_pod(name, index=5, ready=True)
    for index in range(3):
        world.evict(world.serving_pod(name, index=index))
        world.later(minutes=5)
    assert world.conditions()["RolledBack"][0] == "False"


# event: Rollouts | the node of an update's pods is NotReady for longer than `rollout.progressTimeout` | the previous revision,
#   on other nodes | Ready `NodeNotReady` names the node; once it is Ready, the pods have the timeout to become ready
@pytest.mark.parametrize("update", [verify, replace_directly, promote])
def test_pods_on_a_node_that_is_down_are_not_late_and_the_node_is_named(
    update: Callable[[], World],
) -> None:
    world = update()
    (deployment,) = world.canaries() if update is verify else world.serving_deployments()
    pod = world.serving_pod(deployment["metadata"]["name"], index=91)
    pod["spec"] = {"nodeName": "node-2"}
    world.node_goes_down("node-2").later(**LONG)
    assert world.conditions()["Ready"] == ("False", "NodeNotReady")
    assert world.conditions()["RolledBack"][0] == "False"
    assert "node node-2 is NotReady" in world.message()
    world.node_comes_back("node-2").later(minutes=9)
    assert world.conditions()["RolledBack"][0] == "False"
    assert "NotReady" not in world.message()
    world.later(minutes=1)
    assert world.conditions()["RolledBack"] == ("True", "RolloutFailed")


def test_serving_pods_on_a_node_that_is_down_name_it() -> None:
    world = serving()
    world._set_counts(world.the("Deployment"), replicas=2, updatedReplicas=2, unavailableReplicas=2)
    world.node_goes_down()
    assert world.conditions()["Ready"] == ("False", "NodeNotReady")
    assert ("Warning", "NodeNotReady") in [(event.type, event.reason) for event in world.events]


# event: Rollouts | no scheduler looks at an update's pods, as the one that they name does not run | the previous revision | after
#   a minute Ready `CapacityBlocked` names the scheduler
@pytest.mark.parametrize("scheduler", ["", "volcano"])
def test_pods_at_which_no_scheduler_looks_say_so_and_do_not_hold_the_fleets_turn(
    scheduler: str,
) -> None:
    world = serving(rollout=WITH_CANARY).new_runtime_image(like=image_facts("cpu"))
    world.job_succeeds()
    world.leave_pod_ignored(world.canaries()[0]["metadata"]["name"], scheduler=scheduler)
    world.settle()
    assert world.conditions()["Ready"] == ("False", "VerifyingCanary"), "it may look at it yet"
    world.later(minutes=1)
    assert world.conditions()["Ready"] == ("False", "CapacityBlocked")
    assert f"scheduler {scheduler}".strip() in world.message()
    assert "reason" not in world.status["images"]
    world.later(**LONG)
    assert world.status["images"]["reason"] == "CapacityBlocked"
    assert "has not looked at a pod" in world.status["images"]["message"]


def test_a_pod_that_itself_names_its_node_has_the_timeout_from_its_creation() -> None:
    world = verify()
    pod = world.serving_pod(world.canaries()[0]["metadata"]["name"], index=0)
    world.set_status(pod, {"phase": "Running"})
    world.later(minutes=9)
    assert world.conditions()["RolledBack"][0] == "False"
    world.later(minutes=1)
    assert world.conditions()["RolledBack"] == ("True", "RolloutFailed")


def test_a_rollout_that_goes_well_writes_no_warning() -> None:
    world = promote().all_available()
    assert {"VerifyingCanary", "Analyzing", "Serving"} <= set(world.event_reasons())
    assert {event.type for event in world.events} == {"Normal"}


def test_reason_and_message_are_of_the_same_pod() -> None:
    world = serving(rollout={"canary": {"replicas": 2}}).new_runtime_image(like=image_facts("cpu"))
    world.job_succeeds()
    name = world.canaries()[0]["metadata"]["name"]
    server = {"name": "server", "image": "x:1", "state": {"waiting": {"reason": "ErrImagePull"}}}
    pulls = world.serving_pod(name, index=0)
    world.set_status(pulls, {**pulls["status"], "containerStatuses": [server]})
    world.waiting_pod(name, index=1)
    world.settle()
    assert "cannot pull the image x:1" in world.message()
    assert world.conditions()["Ready"] == ("False", "VerifyingCanary")
    pulls["status"]["conditions"] = [has_node(timestamp(world.now + timedelta(minutes=5)))]
    world.later(**LONG)
    assert world.status["images"]["reason"] == "CapacityBlocked"
    assert "Insufficient nvidia.com/gpu" in world.status["images"]["message"]


def test_what_forbade_the_pods_of_an_earlier_canary_is_not_said_of_the_next() -> None:
    world = verify().pods_are_refused(QUOTA)
    world.edit(serving={"batching": {"maxSize": 8}})
    (canary,) = world.canaries()
    assert canary["metadata"]["labels"][REVISION] == world.status["target"]["revision"]
    assert QUOTA in str(canary["status"]), "its controller has not looked yet"
    assert world.conditions()["Ready"] == ("False", "VerifyingCanary")
    assert "quota" not in world.message()
