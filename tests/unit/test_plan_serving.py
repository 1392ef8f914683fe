"""Serving pods are never taken away: sequences of events with what must still serve after each."""

import copy
from dataclasses import replace
from typing import Any

import pytest
from enginewright.manifests import pod_options, serving_pod
from enginewright.manifests.labels import REVISION
from enginewright_contract.reasons import Reason
from enginewright_contract.verdict import Check

from tests.support.plan_objects import (
    OTHER,
    SECOND,
    accelerator_class,
    gpu_node,
    image_facts,
    publish_model,
    verdict,
)
from tests.support.plan_world import World, serving


def templates(world: World) -> dict[str, Any]:
    return {
        entry["metadata"]["name"]: copy.deepcopy(entry["spec"]["template"])
        for entry in world.all("Deployment")
    }


# moving to other classes


def on_big(**spec: Any) -> World:
    world = World("big", "small", **{"accelerators": [{"class": "big", "replicas": 8}], **spec})
    return world.settle().job_succeeds().all_available()


def test_a_class_that_is_named_again_keeps_its_pods_until_it_serves_again() -> None:
    world = World("big", "small", accelerators=[{"class": "big"}], replicas=4)
    world.settle().job_succeeds()
    world.edit(accelerators=[{"class": "small"}]).edit(source=OTHER)
    world.complete("resnet-big")
    world.edit(accelerators=[{"class": "big"}, {"class": "small", "replicas": 1}])
    world.complete("resnet-small")
    assert world.settle().replicas()["resnet-big"] == 4
    world.job_succeeds(SECOND)
    assert world.all_available().replicas() == {"resnet-big": 4, "resnet-small": 1}
    assert world.edit(accelerators=[{"class": "small"}]).all_available().replicas() == {
        "resnet-small": 4
    }


def half_moved() -> World:
    world = on_big(accelerators=[{"class": "big"}], replicas=4)
    world.edit(accelerators=[{"class": "small"}], source=OTHER).job_succeeds(SECOND)
    return world.partly_available("resnet-small", 2)


def test_a_move_that_is_paused_is_taken_back_whole() -> None:
    world = half_moved().edit(rollout={"paused": True})
    world.complete("resnet-big")
    assert world.settle().replicas() == {"resnet-big": 4}


def test_a_half_moved_class_goes_when_the_next_source_cannot_be_prepared() -> None:
    world = half_moved().edit(source={"uri": "https://models.example/third.onnx"})
    world.job_fails(Reason.INVALID_MODEL).complete("resnet-big")
    assert world.settle().replicas() == {"resnet-big": 4}


def test_a_class_keeps_the_pods_that_another_one_is_to_have_while_that_is_prepared() -> None:
    world = on_big(accelerators=[{"class": "big"}], replicas=4)
    world.edit(source=OTHER)
    world.edit(accelerators=[{"class": "big", "replicas": 1}, {"class": "small"}])
    assert world.replicas() == {"resnet-big": 4}
    assert world.edit(replicas=2).replicas() == {"resnet-big": 3}, "as many as are asked for in all"
    world.job_succeeds(SECOND).all_available()
    assert world.replicas() == {"resnet-big": 1, "resnet-small": 2}


# event: Classes | the model moves to another class | the old class, until the new one is
#   available | Ready `RollingOut`, pods of both classes
def test_a_class_that_is_replaced_keeps_its_count_until_it_is() -> None:
    world = on_big()
    world.edit(accelerators=[{"class": "small"}], source=OTHER)
    assert world.replicas() == {"resnet-big": 8}, "while the model is prepared"
    world.job_succeeds(SECOND)
    assert world.replicas() == {"resnet-big": 8, "resnet-small": 1}, "while the new one starts"
    world.complete("resnet-small")
    assert world.settle().replicas() == {"resnet-small": 1}


# event: Classes | a second class shares `replicas` | the first class; one of its pods goes for
#   each new one beyond its share | Ready `RollingOut`, pods of both classes
def test_class_that_shares_its_count_keeps_its_pods_meanwhile() -> None:
    world = on_big(accelerators=[{"class": "big"}], replicas=4)
    assert world.replicas() == {"resnet-big": 4}
    world.edit(accelerators=[{"class": "big"}, {"class": "small"}])
    assert world.replicas() == {"resnet-big": 4, "resnet-small": 2}
    world.all_available()
    assert world.replicas() == {"resnet-big": 2, "resnet-small": 2}


def test_pods_of_an_incomplete_first_rollout_are_kept() -> None:
    world = World("big", "small", accelerators=[{"class": "big"}], replicas=8)
    world.settle().job_succeeds().partly_available("resnet-big", 7)
    assert "serving" not in world.status
    world.edit(accelerators=[{"class": "big"}, {"class": "small"}])
    assert world.replicas() == {"resnet-big": 7, "resnet-small": 4}
    world.partly_available("resnet-small", 3)
    assert world.replicas() == {"resnet-big": 5, "resnet-small": 4}


@pytest.mark.parametrize(("replicas", "big"), [(8, 4), (2, 2), (0, 0)])
def test_a_model_that_moves_is_scaled(replicas: int, big: int) -> None:
    world = on_big(accelerators=[{"class": "big"}], replicas=4)
    world.edit(accelerators=[{"class": "big"}, {"class": "small"}])
    world.edit(replicas=replicas)
    assert world.replicas()["resnet-big"] == big


@pytest.mark.parametrize(
    ("nowhere", "scales"),
    [({"class": "nosuch"}, (8, 2)), ({"class": "nosuch", "replicas": 3}, (8, 2, 1))],
)
def test_unknown_class_takes_no_replicas(nowhere: dict[str, Any], scales: tuple[int, ...]) -> None:
    world = on_big(accelerators=[{"class": "big"}], replicas=4)
    world.edit(accelerators=[{"class": "big"}, nowhere])
    assert world.conditions()["Ready"][1] == "UnknownAcceleratorClass"
    for replicas in scales:
        assert world.edit(replicas=replicas).replicas() == {"resnet-big": replicas}


def test_another_order_of_the_classes_changes_nothing() -> None:
    classes = [{"class": "big"}, {"class": "small"}]
    world = on_big(accelerators=classes, replicas=3)
    before = templates(world)
    world.edit(accelerators=classes[::-1])
    assert world.replicas() == {"resnet-big": 2, "resnet-small": 2}, "until the other one is there"
    assert templates(world) == before
    world.complete("resnet-small")
    assert world.settle().replicas() == {"resnet-big": 1, "resnet-small": 2}


def test_a_move_that_was_given_up_takes_nothing_from_the_class_that_serves() -> None:
    world = on_big()
    world.edit(accelerators=[{"class": "small"}])
    world.partly_available("resnet-big", 7)
    world.edit(accelerators=[{"class": "big", "replicas": 8}], source=OTHER)
    world.complete("resnet-small")
    assert world.settle().replicas()["resnet-big"] == 8


def test_scaling_down_is_the_users_own() -> None:
    world = serving(replicas=4).edit(source=OTHER).job_succeeds(SECOND).rolling(available=4)
    assert world.edit(replicas=1).replicas() == {"resnet-cpu": 1}


# scale


# event: Classes | an autoscaler scales a model of several classes
def test_scale_is_the_total_over_classes_without_a_count_of_their_own() -> None:
    three = [{"class": "a"}, {"class": "b"}, {"class": "fixed", "replicas": 2}]
    world = World("a", "b", "fixed", accelerators=three, replicas=5)
    world.settle().job_succeeds().all_available()
    assert world.replicas() == {"resnet-a": 3, "resnet-b": 2, "resnet-fixed": 2}
    assert world.status["replicas"] == 5, "what an autoscaler compares its own count with"
    selector = world.status["selector"]
    assert "enginewright.dev/class notin (fixed)" in selector
    assert world.edit(replicas=1).replicas() == {"resnet-a": 1, "resnet-b": 1, "resnet-fixed": 2}
    assert world.edit(replicas=0).replicas() == {"resnet-a": 0, "resnet-b": 0, "resnet-fixed": 2}


def test_the_scale_status_counts_pods_that_are_there() -> None:
    world = serving()
    world.edit(replicas=6)
    assert world.status["replicas"] == 2
    world.all_available()
    assert world.status["replicas"] == 6


# at 0 replicas

THIRD = {"uri": "https://models.example/third.onnx"}


def find_revisions(world: World) -> set[str]:
    return {
        serving_deployment["metadata"]["labels"][REVISION]
        for serving_deployment in world.serving_deployments()
    }


def failing_at_zero() -> tuple[World, str, str]:
    """Return a model scaled to 0 during its update, with the revision that served and the new one."""
    world = serving()
    old = world.status["revision"]
    world.edit(source=OTHER).job_succeeds(SECOND).rolling(available=2)
    world.edit(replicas=0).all_available()
    return world, old, world.status["revision"]


# event: Rollouts | a model is scaled to 0 and back, and its update then fails | the revision that served last
#   | `RolledBack` with the pods' reason
def test_serving_revision_is_remembered_at_zero() -> None:
    world, old, new = failing_at_zero()
    assert world.conditions()["Ready"] == ("True", "ScaledToZero")
    assert world.status["serving"]["revision"] == old
    assert find_revisions(world.edit(replicas=2)) == {new}, "what is asked for is tried"
    world.rolling(available=0).new_pod_fails(Reason.BACKEND_CRASHED)
    assert world.conditions()["Ready"] == ("False", "BackendCrashed")
    assert world.conditions()["RolledBack"] == ("True", "BackendCrashed")
    assert find_revisions(world) == {old}
    world.edit(source=THIRD)
    assert find_revisions(world) == {old}
    assert find_revisions(world.job_fails(Reason.INVALID_MODEL)) == {old}
    assert world.all_available().conditions()["Available"] == ("True", "Serving")


def test_an_update_that_serves_after_zero_is_the_last_good_revision() -> None:
    world, _, new = failing_at_zero()
    assert world.edit(replicas=2).all_available().status["serving"]["revision"] == new
    assert find_revisions(world.edit(source=THIRD).job_fails(Reason.INVALID_MODEL)) == {new}


@pytest.mark.parametrize("paused", [True, False])
def test_revision_before_zero_comes_back(paused: bool) -> None:
    world, old, new = failing_at_zero()
    world.edit(source=THIRD)
    if paused:
        world.job_succeeds(publish_model("c" * 64)).edit(rollout={"paused": True})
    else:
        world.job_fails(Reason.INVALID_MODEL)
    assert old not in find_revisions(world), "nothing is gone back to without pods"
    assert find_revisions(world.edit(replicas=2)) == {old}
    assert world.all_available().status["serving"]["revision"] == old != new


def test_autoscaling_to_zero_and_back_changes_nothing() -> None:
    world = serving()
    before = world.status["serving"]
    world.edit(replicas=0).all_available()
    assert world.status["serving"]["revision"] == before["revision"]
    assert world.edit(replicas=2).all_available().status["serving"] == before


def test_a_model_that_begins_at_zero_serves_once_it_has_pods() -> None:
    world = serving(replicas=0)
    assert world.conditions()["Ready"] == ("True", "ScaledToZero")
    assert "serving" not in world.status
    first = world.status["revision"]
    world.edit(source=OTHER).job_succeeds(SECOND).all_available()
    assert "serving" not in world.status
    assert find_revisions(world) == {world.status["revision"]} != {first}
    world.edit(source=THIRD, replicas=2).job_fails(Reason.INVALID_MODEL).all_available()
    assert find_revisions(world) == {world.status["serving"]["revision"]} != {first}


def test_status_of_an_earlier_version_without_pods() -> None:
    world = serving(replicas=0)
    revision = world.status["revision"]
    keys = {"preparedKey": "a" * 64, "modelDigest": "d" * 64}
    world.status["serving"] = {"revision": revision, **keys, "backend": "cpu", "unproven": True}
    assert "serving" not in world.settle().status
    assert world.edit(replicas=2).all_available().status["serving"]["revision"] == revision


# policy Allow


def on_gpu(**spec: Any) -> World:
    world = World(
        fallback={"policy": "Allow"}, backends=["tensorrt-rtx", "cuda"], replicas=2, **spec
    ).has_gpus()
    return world.settle().job_succeeds().engine_built().settle()


def crash(
    world: World, index: int, node_name: str, restarts: int = 0, deployment: str = ""
) -> World:
    """Have a server crash without a driver, on its node and that many times before."""
    name = deployment or world.the("Deployment")["metadata"]["name"]
    world.crash(name, Reason.DRIVER_MISSING, index=index, node=node_name, restarts=restarts)
    return world.settle()


# event: Rollouts | a serving pod crashes, with `fallback.policy: Allow` | the same backend |
#   Ready with the pod's reason
def test_a_crash_of_one_pod_rejects_no_backend_that_serves() -> None:
    world = on_gpu().all_available()
    (deployment,) = world.all("Deployment")
    deployment["status"]["availableReplicas"] = 1
    crash(crash(world, 0, "node-1", 9), 1, "node-2", 9)
    assert "rejectedBackends" not in world.status
    assert world.status["serving"]["backend"] == "tensorrt-rtx"


def test_two_failures_on_one_node_reject_no_backend() -> None:
    world = crash(on_gpu(), 0, "node-1", 1)
    assert "rejectedBackends" not in world.status


# event: Rollouts | a backend fails on several nodes, with `Allow` | the next backend; the first is rolled out again, beside
#   what serves, when spec, image or class change or its user asks and, where nodes were at fault, when a node joins |
#   `status.rejectedBackends`, `FallbackActive`
@pytest.mark.parametrize(
    "failures", [[(0, "node-1", 0), (1, "node-2", 0)], [(0, "node-1", 2)]], ids=["nodes", "times"]
)
def test_repeated_failures_reject_the_backend(failures: list[tuple[int, str, int]]) -> None:
    world = on_gpu()
    for failure in failures:
        crash(world, *failure)
    (rejected,) = world.status["rejectedBackends"]
    assert (rejected["backend"], rejected["reason"]) == ("tensorrt-rtx", "DriverMissing")


def refuse_pod(reason: Reason, *, ready: int = 0, nodes: int = 2) -> World:
    """Return a first rollout of openvino, of which `ready` pods serve and a sidecar refuses another."""
    world = World(
        accelerator_class("cpus", "openvino", "cpu"),
        fallback={"policy": "Allow"},
        replicas=ready + 1,
    )
    world.nodes = world.nodes[:nodes]
    world.settle().job_succeeds().rolling(0)
    (deployment,) = world.serving_deployments()
    for index in range(ready):
        world.serving_pod(deployment["metadata"]["name"], index=index, ready=True)
    (pod,) = (entry for entry in world.all("Pod") if entry["metadata"]["name"].endswith("-00090"))
    world.verdicts[pod["metadata"]["name"]] = verdict("openvino", failed={Check.GOLDEN: reason})
    return world.settle()


# event: Rollouts | a sidecar refuses a pod of a revision that never served for what other pods
#   would find as well, with `Allow` | the next backend | `status.rejectedBackends`,
#   `FallbackActive`
@pytest.mark.parametrize(
    ("reason", "nodes"), [(Reason.PARITY_FAILED, 2), (Reason.DRIVER_TOO_OLD, 1)]
)
def test_one_refusal_that_would_repeat_rejects_a_backend(reason: Reason, nodes: int) -> None:
    world = refuse_pod(reason, nodes=nodes)
    (rejected,) = world.status["rejectedBackends"]
    assert (rejected["backend"], rejected["reason"]) == ("openvino", reason)
    world.job_succeeds(SECOND).all_available()
    assert world.status["serving"]["backend"] == "cpu"


@pytest.mark.parametrize(
    ("reason", "ready", "nodes"),
    [
        pytest.param(Reason.DRIVER_TOO_OLD, 0, 2, id="of a node"),
        pytest.param(Reason.DRIVER_MISSING, 0, 1, id="transient"),
        pytest.param(Reason.PARITY_FAILED, 1, 2, id="of a revision that serves"),
    ],
)
def test_local_refusal_rejects_no_backend(reason: Reason, ready: int, nodes: int) -> None:
    world = refuse_pod(reason, ready=ready, nodes=nodes)
    assert "rejectedBackends" not in world.status
    assert world.conditions()["Ready"] == ("False", reason)


# event: Rollouts | a backend fails on several nodes, with `Allow`
def test_a_rejected_backend_is_tried_again_with_another_image() -> None:
    world = crash(on_gpu(), 0, "node-1", 2)
    world.job_succeeds(SECOND).all_available()
    assert world.status["serving"]["backend"] == "cuda"
    assert world.later(days=3).status["rejectedBackends"]
    world.images["registry.example/rtx:2"] = world.images[world.config.images["rtx"]]
    images = {**world.config.images, "rtx": "registry.example/rtx:2"}
    world.config = replace(world.config, images=images)
    world.settle()
    assert "inputsHash" not in world.status["rejectedBackends"][0]
    assert world.status["serving"]["backend"] == "cuda", "what serves does so meanwhile"


def test_devices_that_differ_are_a_matter_of_one_backend() -> None:
    world = World(fallback={"policy": "Allow"}, backends=["tensorrt-rtx", "cuda"]).has_gpus(
        nodeSelector={"pool": "gpus"}, aheadOfTime=False
    )
    products = {"a": "NVIDIA-L4", "b": "NVIDIA-L40S"}
    world.nodes = [gpu_node(name, product, pool="gpus") for name, product in products.items()]
    world.settle().job_succeeds().all_available()
    assert world.status["serving"]["backend"] == "cuda"


# what is outside the spec


# event: Classes | a new AcceleratorClass | all pods, on their class | nothing
def test_new_class_stalls_no_model() -> None:
    world = serving()
    world.classes = [*world.classes, accelerator_class("a-newer-one")]
    world.settle()
    assert world.conditions()["Ready"] == ("True", "Serving")
    world.edit(source=OTHER).job_succeeds(SECOND).all_available()
    assert world.conditions()["Ready"] == ("True", "Serving")
    assert list(world.replicas()) == ["resnet-cpu"]


def test_deleted_class_is_not_chosen() -> None:
    world = serving()
    world.classes = [accelerator_class("next")]
    world.settle().all_available()
    assert list(world.replicas()) == ["resnet-next"]


# event: Classes | a class, an image or the store fails during a rollout | both revisions, as far
#   as the rollout has come | Ready with the reason
@pytest.mark.parametrize("strategy", ["Surge", "Recreate"])
@pytest.mark.parametrize("obstacle", ["class", "image", "store"])
def test_an_obstacle_outside_the_spec_reverts_nothing(obstacle: str, strategy: str) -> None:
    world = (
        serving(rollout={"strategy": strategy})
        .edit(source=OTHER)
        .job_succeeds(SECOND)
        .rolling(available=2)
    )
    before = templates(world)
    if obstacle == "class":
        world.classes = []
    if obstacle == "image":
        world.new_runtime_image()
    if obstacle == "store":
        world.get("PersistentVolumeClaim", "enginewright-store")["spec"]["accessModes"] = [
            "ReadWriteOnce"
        ]
    world.settle()
    assert world.conditions()["Ready"][0] == "False"
    assert templates(world) == before
    assert world.edit(replicas=3).replicas() == {"resnet-cpu": 3}, "an autoscaler goes on"
    assert templates(world) == before


def test_going_back_is_not_undone_by_an_obstacle() -> None:
    world = on_big()
    world.edit(accelerators=[{"class": "small"}]).all_available()
    world.edit(accelerators=[{"class": "big", "replicas": 8}])
    world.partly_available("resnet-big", 6)
    world.new_runtime_image()
    assert world.settle().replicas()["resnet-big"] == 8


def test_a_lost_artefact_reverts_nothing_that_is_rolling_out() -> None:
    world = serving().edit(source=OTHER).job_succeeds(SECOND).rolling(available=2)
    before = templates(world)
    world.new_pod_fails(Reason.ARTIFACT_MISSING, "fetch-artifact")
    assert world.conditions()["Ready"][0] == "False"
    assert templates(world) == before


# what restarts pods


# event: Sources | another operator version, pull secrets or pull policy | all pods; the next
#   revision gets the new settings | nothing
def test_a_newer_operator_restarts_no_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    world = serving()
    before, revisions = templates(world), world.all("ControllerRevision")
    monkeypatch.setattr(pod_options, "GRACE_SECONDS", 99)
    monkeypatch.setattr(serving_pod, "pod_security", lambda *_, **__: {"runAsNonRoot": True})
    world.settle()
    assert templates(world) == before
    assert world.all("ControllerRevision") == revisions
    world.edit(podTemplate={"labels": {"a": "b"}})
    (new,) = templates(world).values()
    assert new["spec"]["terminationGracePeriodSeconds"] == 99, "a new revision takes all of it"


# event: Classes | `rollout.strategy` is edited | all pods | nothing
def test_another_strategy_restarts_no_pods() -> None:
    world = serving()
    before = templates(world)
    world.edit(rollout={"strategy": "Recreate"})
    assert templates(world) == before
    assert world.the("Deployment")["spec"]["strategy"] == {"type": "Recreate"}
    world.all_available()
    assert world.conditions()["Ready"] == ("True", "Serving")


def test_a_revision_that_an_earlier_version_kept_is_not_written_again() -> None:
    world = serving()
    kept = world.the("ControllerRevision")
    del kept["data"]["promise"]
    kept["data"]["removed_since"] = 1
    before = copy.deepcopy(kept)
    world.settle()
    assert world.the("ControllerRevision") == before
    assert world.conditions()["Ready"] == ("True", "Serving")


# event: Sources | another runtime image in the chart | the old revision on its image, until the
#   new one is probed, it is the [model's turn](../fleet.md) and, unless both make the same
#   artefacts, the model is prepared for it; under `Recreate` always, so that a Job shows that the
#   image can be pulled before pods go | `status.images` Waiting; then Ready `Preparing`,
#   "revision … keeps serving"
def test_an_image_that_is_not_probed_yet_takes_nothing_away() -> None:
    world = serving()
    before = templates(world)
    world.new_runtime_image()
    world.settle()
    assert world.conditions()["Ready"] == ("True", "Serving")
    images = world.status["images"]
    assert (images["state"], images["reason"]) == ("Waiting", "ProbingImage")
    assert templates(world) == before
    world.images["registry.example/cpu:2"] = image_facts("cpu", "1.32.0")
    world.settle()
    assert world.conditions()["Ready"] == ("False", "Preparing")
    assert templates(world) == before, "while it is prepared for the new image"


def test_an_artefact_that_was_lost_is_prepared_to_the_end() -> None:
    world = serving().later(hours=24).jobs_are_cleaned_away()
    name = world.the("Deployment")["metadata"]["name"]
    world.partly_available(name, 1).crash(name, Reason.ARTIFACT_MISSING, "fetch-artifact", index=1)
    (job,) = world.settle().running_jobs()
    for pod in world.all("Pod"):
        if pod["metadata"]["name"].endswith("-00001"):  # the one that found it gone
            world.remove("Pod", pod["metadata"]["name"])
    world.serving_pod(name, index=2)
    assert world.settle().running_jobs() == [job]
