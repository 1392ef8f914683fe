"""Which restarts of containers speak against a revision: crashes of the operator's containers, of late, of pods that are not ready."""

from datetime import timedelta

import pytest
from enginewright.manifests.labels import PROMOTE, REVISION
from enginewright_contract.reasons import Reason

from tests.support.fake_kube import timestamp
from tests.support.plan_objects import OTHER, SECOND
from tests.support.plan_world import World, serving
from tests.support.simulation import report_crash


def promote() -> tuple[World, str]:
    """Return a model after an update, and the revision before it."""
    world = serving(rollout={"canary": {"replicas": 1, "hold": "10m"}})
    old = world.status["revision"]
    world.edit(source=OTHER).job_succeeds(SECOND).canary_available()
    world.later(minutes=11).later(minutes=11).all_available().later(hours=5)
    assert world.conditions()["Ready"] == ("True", "Serving")
    return world, old


def crash_all(world: World, *, ran: timedelta, restarts: int = 3) -> World:
    """Have the server of every serving pod crash after it `ran` as long."""
    (deployment,) = world.serving_deployments()
    name = deployment["metadata"]["name"]
    for index in range(2):
        status = report_crash("server", Reason.BACKEND_CRASHED, timestamp(world.now), "", restarts)
        (container,) = status["containerStatuses"]
        container["lastState"]["terminated"]["startedAt"] = timestamp(world.now - ran)
        world.serving_pod(name, index=index, status=status)
    return world.settle()


def restart_all(world: World, container: str, *, ago: timedelta) -> World:
    for pod in world.pods_of("deployment", world.serving_deployments()[0]["metadata"]["name"]):
        world.has_restarted(pod, container, ago=ago)
    return world.settle()


# event: Rollouts | every pod has restarted several times since the promotion, but is ready, or only a mesh's proxy in it has |
#   all pods | nothing
@pytest.mark.parametrize(
    ("container", "ago"),
    [("server", 0), ("server", 4), ("istio-proxy", 0), ("istio-proxy", 4)],
)
def test_restarts_of_pods_that_are_ready_start_no_trial(container: str, ago: int) -> None:
    world, _ = promote()
    restart_all(world, container, ago=timedelta(hours=ago))
    assert not world.canaries()
    assert world.conditions()["Ready"] == ("True", "Serving")


@pytest.mark.parametrize("container", ["server", "istio-proxy"])
def test_restarts_of_a_canary_that_is_ready_do_not_reject_it(container: str) -> None:
    world = serving(rollout={"canary": {"replicas": 1, "hold": "24h"}})
    world.edit(source=OTHER).job_succeeds(SECOND).canary_available().later(hours=8)
    (pod,) = world.canary_pods()
    ago = timedelta(hours=5 if container == "server" else 0)
    world.has_restarted(pod, container, ago=ago)
    world.settle()
    assert world.conditions()["RolledBack"][0] == "False"
    assert world.canaries()


# event: Rollouts | the nodes of an update's pods restart at once | the previous revision | the update goes on
@pytest.mark.parametrize("reason", ["ContainerStatusUnknown", "Unknown"])  # containerd's
def test_two_nodes_that_restart_at_once_reject_no_revision(reason: str) -> None:
    world = serving(rollout={"canary": {"replicas": 2, "hold": "24h"}})
    world.edit(source=OTHER).job_succeeds(SECOND).canary_available()
    for index, pod in enumerate(world.canary_pods()):
        world.start_again_with_node(pod, f"node-{index + 1}", reason)
    assert world.settle().conditions()["RolledBack"][0] == "False"
    assert world.conditions()["Ready"] == ("False", "Analyzing")
    for pod in world.canary_pods():
        (ready, _) = pod["status"]["conditions"]
        ready["status"] = "True"
        world.kube.count_change(pod)
    assert world.settle().conditions()["RolledBack"][0] == "False"


# event: Rollouts | an update's pod crashes again and again on one of several nodes, for what that node lacks | the previous
#   revision | the update is rejected once another node lacks it too, or after `rollout.progressTimeout`
def test_crashes_that_one_node_causes_count_once() -> None:
    world = serving(rollout={"canary": {"replicas": 2}}).edit(source=OTHER).job_succeeds(SECOND)
    name = world.canaries()[0]["metadata"]["name"]
    world.crash(name, Reason.DRIVER_MISSING, index=0, restarts=5)
    assert world.settle().conditions()["RolledBack"][0] == "False"
    assert world.conditions()["Ready"] == ("False", "DriverMissing")
    world.crash(name, Reason.DRIVER_MISSING, index=1, node="node-2", restarts=0)
    assert world.settle().conditions()["RolledBack"] == ("True", "DriverMissing")


def test_a_canary_that_crashes_again_and_again_is_rejected_while_it_is_ready() -> None:
    world = serving(rollout={"canary": {"replicas": 1, "hold": "24h"}})
    world.edit(source=OTHER).job_succeeds(SECOND).canary_available().later(hours=8)
    (pod,) = world.canary_pods()
    world.has_restarted(pod, "server", ago=timedelta(minutes=5))
    assert world.settle().conditions()["RolledBack"] == ("True", "OutOfMemory")


def test_one_more_crash_after_old_restarts_starts_no_trial() -> None:
    world, _ = promote()
    assert not crash_all(world, ran=timedelta(hours=4), restarts=7).canaries()


def test_a_trial_outlasts_the_interval_of_the_crashes() -> None:
    world, old = promote()
    crash_all(world, ran=timedelta(minutes=25)).canary_available()
    world.later(minutes=12)
    assert world.conditions()["RolledBack"][0] == "False", "it may crash too, after the hold"
    world.later(minutes=14)
    assert world.conditions()["RolledBack"] == ("True", "BackendCrashed")
    assert world.serving_deployments()[0]["metadata"]["labels"][REVISION] == old


def test_a_trial_goes_on_while_pods_are_ready_between_crashes_and_ends_once_they_stop() -> None:
    world, _ = promote()
    crash_all(world, ran=timedelta(minutes=5))
    trial = world.canaries()
    assert trial
    (deployment,) = world.serving_deployments()
    for pod in world.pods_of("deployment", deployment["metadata"]["name"]):
        (server,) = pod["status"]["containerStatuses"]
        server["state"] = {"running": {}}
        pod["status"]["conditions"].append({"type": "Ready", "status": "True"})
    world.settle()
    assert world.canaries() == trial
    assert world.last
    assert world.last.requeue_after
    world.later(hours=1)
    assert not world.canaries()
    assert world.conditions()["RolledBack"][0] == "False"


# event: Rollouts | the first revision's pods crash for a day | nothing; its devices are free | Ready and Stalled with the
#   failure, which says so; the next spec, or `enginewright promote`, starts pods again
@pytest.mark.parametrize("ends", ["an edit", "a user promotes it"])
def test_a_first_revision_that_crashes_for_a_day_gives_its_device_back(ends: str) -> None:
    world = World(replicas=1).settle().job_succeeds()
    (deployment,) = world.serving_deployments()
    name, revision = deployment["metadata"]["name"], world.status["revision"]
    world.crash(name, Reason.BACKEND_CRASHED, restarts=20)
    world.settle().later(hours=23)
    assert world.replicas() == {name: 1}
    world.later(hours=1)
    assert world.replicas() == {name: 0}
    for pod in world.pods_of("deployment", name):
        world.remove("Pod", pod["metadata"]["name"])
    for _ in range(2):
        assert world.settle().conditions()["Stalled"] == ("True", "BackendCrashed")
        assert "left their devices" in world.message()
        assert world.conditions()["RolledBack"][0] == "False"
        assert world.operator_restarts().replicas() == {name: 0}
        world.later(days=3)
    if ends == "an edit":
        world.edit(source=OTHER)
        assert world.replicas() == {name: 0}, "while the next one is prepared"
        world.job_succeeds(SECOND)
    else:
        world.annotate(PROMOTE, revision)
    assert world.replicas() == {name: 1}
    assert world.all_available().conditions()["Ready"] == ("True", "Serving")


def test_a_first_revision_keeps_its_device_while_others_are_at_fault() -> None:
    world = World(replicas=1).settle().job_succeeds()
    world.crash("resnet-cpu", Reason.SECRET_UNUSABLE, restarts=20)
    assert world.settle().later(days=3).replicas() == {"resnet-cpu": 1}


def test_a_proxy_that_crashes_is_named_and_rejects_nothing_before_the_timeout() -> None:
    world = serving(rollout={"canary": {"replicas": 1}}).edit(source=OTHER).job_succeeds(SECOND)
    name = world.canaries()[0]["metadata"]["name"]
    world.crash(name, Reason.INTERNAL_ERROR, "istio-proxy", index=0, restarts=5)
    world.settle()
    assert "istio-proxy" in world.message()
    assert world.conditions()["RolledBack"][0] == "False"
    world.later(minutes=11)
    assert world.conditions()["RolledBack"] == ("True", "RolloutFailed")
    assert "istio-proxy" in world.condition("RolledBack")["message"]
