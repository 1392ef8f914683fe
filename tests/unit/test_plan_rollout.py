"""Rolling out: serving pods stay until those that replace them are available."""

import copy
from typing import Any

import pytest
from enginewright.kube.errors import Transient
from enginewright.manifests.snapshot import Revision, Snapshot
from enginewright.plan.plan import plan
from enginewright.plan.rollout import pod_counts
from enginewright_contract.reasons import Reason
from enginewright_contract.verdict import Check, FallbackVerdict

from tests.support.plan_objects import OTHER, SECOND, accelerator_class, verdict
from tests.support.plan_world import World, serving
from tests.support.simulation import report_end


def two_classes(*names: str, **spec: Any) -> World:
    accelerators = [{"class": name} for name in names]
    world = World("big", "cpu", "small", accelerators=accelerators, **spec)
    return world.settle().job_succeeds()


def revision(obj: dict[str, Any]) -> str:
    return str(obj["metadata"]["labels"]["enginewright.dev/revision"])


@pytest.mark.parametrize("name", ["count_desired", "progress_of"])
def test_counts_and_progress_are_computed_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    find = getattr(pod_counts, name)

    def count_call(*args: Any) -> Any:
        calls.append(args)
        return find(*args)

    facts = serving().facts()
    monkeypatch.setattr(pod_counts, name, count_call)
    plan(facts)
    assert len(calls) == 1


# the first one


def test_snapshot_comes_before_its_objects() -> None:
    world = World().settle()
    before = {"PersistentVolumeClaim", "Job", "Pod"}
    world.job_succeeds()
    made = [child["kind"] for child in world.children() if child["kind"] not in before]
    assert made == ["ControllerRevision", "Service", "PodDisruptionBudget", "Deployment"]
    assert world.last
    kinds = [entry["kind"] for entry in world.last.apply]
    assert kinds == ["Service", "PodDisruptionBudget", "Deployment"], "what is kept never changes"


def test_nothing_is_said_to_serve_before_it_does() -> None:
    world = World(replicas=2).settle().job_succeeds()
    assert "serving" not in world.status
    revision = f"→ {world.status['revision']}"
    assert world.status["summary"] == {"revision": revision, "stage": "Promoting"}
    world.all_available()
    assert world.status["serving"]["revision"] == world.status["revision"]
    assert world.status["serving"]["modelDigest"] == "d" * 64
    assert world.status["summary"] == {
        "backend": "cpu",
        "placement": "100% cpu",
        "classes": "cpu 2/2",
        "p99": "12ms",
        "revision": world.status["revision"],
    }


def test_the_scale_subresource_gets_count_and_selector() -> None:
    world = two_classes("big", "small", replicas=6).all_available()
    assert world.status["replicas"] == 6
    (pod_labels,) = {
        tuple(sorted(entry["spec"]["template"]["metadata"]["labels"].items()))
        for entry in world.all("Deployment")
        if entry["metadata"]["name"] == "resnet-big"
    }
    selector = dict(part.split("=") for part in world.status["selector"].split(","))
    assert selector.items() <= dict(pod_labels).items()


def test_a_deployment_that_its_controller_has_not_seen_yet_is_not_complete() -> None:
    world = serving()
    world.edit(podTemplate={"labels": {"team": "vision"}})
    deployment = world.the("Deployment")
    assert deployment["status"]["observedGeneration"] < deployment["metadata"]["generation"]
    assert world.conditions()["Ready"] == ("False", "RollingOut")
    assert world.message().startswith(f"revision {world.status['revision']}, pods ready: cpu 0/2")


def test_update_is_not_given_up_for_an_earlier_failure() -> None:
    world = serving().edit(source=OTHER).job_succeeds(SECOND).rolling(available=2, stuck=True)
    assert world.conditions()["Stalled"] == ("True", "RolloutFailed")
    assert world.conditions()["RolledBack"] == ("True", "RolloutFailed")
    world.edit(podTemplate={"resources": {"limits": {"memory": "8Gi"}}})
    assert world.conditions()["Reconciling"] == ("True", "RollingOut")


# scaling


def test_a_class_may_have_a_count_of_its_own() -> None:
    world = World(
        "big",
        "small",
        replicas=2,
        accelerators=[{"class": "big", "replicas": 0}, {"class": "small"}],
    )
    world.settle().job_succeeds()
    assert world.replicas() == {"resnet-big": 0, "resnet-small": 2}
    world.all_available()
    assert world.conditions()["Ready"] == ("True", "Serving")
    assert world.status["summary"]["classes"] == "big 0/0, small 2/2"


@pytest.mark.parametrize("paused", [True, False])
def test_scaling_works_while_an_update_is_paused_or_refused(paused: bool) -> None:
    world = serving().edit(rollout={"paused": paused})
    template = copy.deepcopy(world.the("Deployment")["spec"]["template"])
    world.edit(source=OTHER)
    if paused:
        world.job_succeeds(SECOND)
    else:
        world.job_fails(Reason.DIGEST_MISMATCH, "fetch")
    assert world.edit(replicas=4).replicas() == {"resnet-cpu": 4}
    assert world.the("Deployment")["spec"]["template"] == template


# updates


def test_an_update_replaces_within_one_deployment() -> None:
    world = serving()
    old = world.status["serving"]["revision"]
    world.edit(source=OTHER)
    assert revision(world.the("Deployment")) == old, "nothing happens before it is prepared"
    world.job_succeeds(SECOND)
    new = world.status["revision"]
    deployment = world.the("Deployment")
    assert revision(deployment) == new != old
    assert deployment["spec"]["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 0},
    }
    assert world.status["serving"]["revision"] == old
    assert world.status["summary"]["revision"] == f"{old} → {new}"
    world.rolling(available=2)
    assert world.status["serving"]["revision"] == old
    world.all_available()
    assert world.status["serving"]["revision"] == new
    assert world.status["serving"]["preparedKey"] == "b" * 64


# event: Rollouts | an update is refused, cannot be built or fails | the previous revision | its
#   reason, "revision … keeps serving"
def test_failed_update_says_why() -> None:
    world = serving().edit(source=OTHER).job_succeeds(SECOND).rolling(available=2)
    world.new_pod_fails(Reason.PROVIDER_MISSING, message="no CUDA here")
    old = world.status["serving"]["revision"]
    new = world.status["revision"]
    assert world.message() == (
        f"revision {new} was rejected: no CUDA here; revision {old} keeps serving"
    )
    assert "no CUDA here" in world.events[-1].message
    assert world.events[-1].type == "Warning"


def test_reverting_or_pausing_in_the_middle_goes_back_to_the_serving_revision() -> None:
    world = serving()
    before = world.the("Deployment")["spec"]
    world.edit(source=OTHER).job_succeeds(SECOND).rolling(available=2)
    world.edit(source={"uri": "https://models.example/resnet.onnx"})
    assert world.the("Deployment")["spec"] == before
    assert world.all_available().conditions()["Ready"] == ("True", "Serving")
    world.edit(source=OTHER).rolling(available=2).edit(rollout={"paused": True})
    assert world.the("Deployment")["spec"] == before
    world.all_available().edit(rollout={"paused": False})
    assert revision(world.the("Deployment")) == world.status["revision"]


def test_a_lost_deployment_is_rebuilt_while_an_update_is_refused() -> None:
    world = serving()
    before = world.the("Deployment")["spec"]
    world.edit(source=OTHER).job_fails(Reason.INVALID_MODEL)
    world.remove("Deployment", "resnet-cpu")
    world.settle()
    assert world.the("Deployment")["spec"] == before


def test_pods_on_their_way_out_explain_nothing() -> None:
    world = serving()
    deployment = world.the("Deployment")
    killed = {"containerStatuses": [report_end("server", code=143)]}
    leaving = world.serving_pod("resnet-cpu", index=50, status=killed)
    leaving["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:30Z"
    world.serving_pod("resnet-cpu", index=51, status={**killed, "phase": "Failed"})
    deployment["status"]["availableReplicas"] = 1
    world.settle()
    assert world.conditions()["Ready"] == ("False", "Progressing")


def test_a_rollout_that_waits_for_a_node_says_so() -> None:
    world = World().settle().job_succeeds()
    unscheduled = {
        "type": "PodScheduled",
        "status": "False",
        "message": "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.",
    }
    world.serving_pod("resnet-cpu", status={"phase": "Pending", "conditions": [unscheduled]})
    world.settle()
    assert "Insufficient nvidia.com/gpu" in world.message()
    assert world.conditions()["Reconciling"] == ("True", "CapacityBlocked")


# what serves in part

THIRD = {"uri": "https://models.example/third.onnx"}


def partly(strategy: str = "Recreate") -> tuple[World, str, str]:
    """Return an update of which one pod of two serves, of the previous revision none; and both."""
    world = serving(rollout={"strategy": strategy})
    old = world.status["revision"]
    world.edit(source=OTHER).job_succeeds(SECOND).partly_available("resnet-cpu", 1)
    return world, old, world.status["revision"]


@pytest.mark.parametrize("strategy", ["Recreate", "Surge"])
def test_serving_revision_is_that_of_ready_pods(strategy: str) -> None:
    world, old, new = partly(strategy)
    assert world.status["serving"]["revision"] == new
    assert world.status["serving"]["lastRolledOut"] == old
    assert world.status["summary"]["classes"] == "cpu 1/2"
    assert world.conditions()["Ready"] == ("False", "RollingOut")
    assert old not in world.message()
    assert world.conditions()["ParityVerified"] == ("True", "GoldenMatches")
    assert world.conditions()["PlacementVerified"] == ("True", "PromiseKept")
    world.edit(source=THIRD)
    assert f"revision {new} keeps serving" in world.message()
    assert world.edit(source=OTHER).all_available().status["serving"]["revision"] == new
    assert "lastRolledOut" not in world.status["serving"]


def test_proofs_are_about_the_partly_serving_revision() -> None:
    world, _, _ = partly()
    elsewhere = FallbackVerdict(active=True, nodes_total=105, nodes_elsewhere=50, broken=True)
    said = verdict(fallback=elsewhere, failed={Check.PLACEMENT: Reason.NODE_FALLBACK})
    world.verdicts = {"resnet-cpu-00000": said}  # of the pod that is ready
    world.settle()
    kinds = ("Ready", "PlacementVerified", "FallbackActive")
    reported = [world.conditions()[kind] for kind in kinds]
    assert reported == [(status, "NodeFallback") for status in ("False", "False", "True")]
    before = world.status
    assert world.operator_restarts().status == before


def test_last_good_revision_serves_again() -> None:
    world, old, _ = partly("Surge")
    for pod in world.all("Pod"):
        pod["metadata"]["labels"]["enginewright.dev/revision"] = old
    assert world.settle().status["serving"]["revision"] == old
    assert "lastRolledOut" not in world.status["serving"]


# event: Rollouts | under `Recreate`, an update of which some pods serve is paused, or the spec
#   edited again | the update, until the next one is prepared; the previous revision once no pod of
#   the update is ready | Ready with the reason
@pytest.mark.parametrize("how", ["paused", "prepared", "paused, prepared", "refused"])
def test_recreate_ends_no_pods_that_serve_for_a_revision_without_any(how: str) -> None:
    world, old, new = partly()
    if how.startswith("paused"):
        world.edit(rollout={"strategy": "Recreate", "paused": True})
    if how != "paused":
        world.edit(source=THIRD)
    if how == "refused":
        world.job_fails(Reason.INVALID_MODEL)
    assert revision(world.the("Deployment")) == new
    world.partly_available("resnet-cpu", 0)
    assert revision(world.the("Deployment")) == old
    assert world.all_available().status["serving"]["revision"] == old


def test_recreate_does_not_go_back_from_pods_that_serve_after_a_write_was_refused() -> None:
    world = serving(rollout={"strategy": "Recreate"})
    world.edit(source=OTHER).job_succeeds(SECOND)
    new = world.status["revision"]
    for pod in world.pods_of("deployment", "resnet-cpu"):
        world.remove("Pod", pod["metadata"]["name"])
    world.crash("resnet-cpu", Reason.BACKEND_CRASHED)
    world.kube.refused_after = 1  # once the rejection is recorded
    with pytest.raises(Transient):
        world.pass_once()
    world.partly_available("resnet-cpu", 1)
    assert revision(world.the("Deployment")) == new
    assert world.conditions()["Ready"] == ("False", "RollingOut")
    world.crash("resnet-cpu", Reason.BACKEND_CRASHED, index=0)
    assert revision(world.settle().the("Deployment")) != new


def test_surge_goes_back_beside_serving_pods() -> None:
    world, old, new = partly("Surge")
    world.edit(source=THIRD).job_fails(Reason.INVALID_MODEL)
    assert revision(world.the("Deployment")) == old
    assert f"revision {new} keeps serving" in world.message()


# classes


def test_a_class_that_is_wanted_no_more_goes_when_the_others_serve() -> None:
    world = two_classes("big", "small").all_available()
    world.edit(accelerators=[{"class": "cpu"}])
    assert sorted(world.replicas()) == ["resnet-big", "resnet-cpu", "resnet-small"]
    assert world.status["summary"]["classes"] == "big 1/1, small 1/1"
    world.all_available()
    assert sorted(world.replicas()) == ["resnet-cpu"]
    budgets = [entry["metadata"]["name"] for entry in world.all("PodDisruptionBudget")]
    assert budgets == ["resnet-cpu"]
    assert world.conditions()["Ready"] == ("True", "Serving")


def test_changed_device_is_a_new_revision() -> None:
    world = serving()
    before = world.status["revision"]
    world.classes = [accelerator_class("cpu", resourceName="example.com/tpu")]
    world.settle()
    assert world.status["revision"] != before
    (server,) = world.the("Deployment")["spec"]["template"]["spec"]["containers"]
    assert server["resources"]["limits"] == {"example.com/tpu": "1"}


# history


def test_the_newest_five_revisions_and_the_serving_one_are_kept() -> None:
    world = serving()
    old = world.status["serving"]["revision"]
    for count in range(8):
        world.edit(podTemplate={"labels": {"try": str(count)}})
    kept = {revision(entry): entry["revision"] for entry in world.all("ControllerRevision")}
    assert sorted(kept.values()) == [1, 5, 6, 7, 8, 9]
    assert kept[old] == 1
    assert kept[world.status["revision"]] == 9


def test_a_snapshot_reads_back_as_itself() -> None:
    world = serving(
        podTemplate={
            "resources": {"requests": {"cpu": 2, "memory": "1Gi"}},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {"x": [1, {"y": None}]}},
        }
    )
    kept = world.the("ControllerRevision")
    read = Revision.read(kept)
    assert read.name == read.snapshot.revision() == revision(kept)
    assert read.templates["cpu"] == world.the("Deployment")["spec"]["template"]


def test_a_field_that_a_later_version_adds_changes_no_revision() -> None:
    class Newer(Snapshot):
        added_later: str | None = None

    kept = serving().the("ControllerRevision")
    assert Newer.model_validate(kept["data"]).revision() == revision(kept)


def test_unreadable_snapshot_keeps_the_deployment() -> None:
    world = serving()
    before = copy.deepcopy(world.the("Deployment"))
    serves = world.status["serving"]
    world.the("ControllerRevision")["data"] = {"of": "another version"}
    world.edit(backends=["openvino"])
    assert world.the("Deployment") == before
    assert world.status["serving"]["revision"] == serves["revision"]


@pytest.mark.parametrize(
    "data",
    [
        {"templates": {"other": {"spec": {}}}},
        {"templates": {"cpu": {}}},
        {"templates": None},
        {"templates": []},
        {"classes": []},
        {"classes": None},
        None,
        [],
        "text",
        7,
    ],
)
def test_a_revision_that_somebody_damaged_takes_nothing_away(data: Any) -> None:
    world = serving()
    before = copy.deepcopy(world.the("Deployment"))
    stored = world.the("ControllerRevision")
    stored["data"] = {**stored["data"], **data} if isinstance(data, dict) else data
    world.settle()
    assert world.the("Deployment") == before
    world.new_runtime_image()
    assert world.settle().the("Deployment") == before


# events


def test_every_change_has_one_event() -> None:
    world = serving()
    assert world.event_reasons() == ["Preparing", "RollingOut", "Serving"]
    world.settle().later(hours=1)
    assert world.event_reasons() == ["Preparing", "RollingOut", "Serving"]
    world.edit(source=OTHER).job_fails(Reason.DIGEST_MISMATCH, "fetch", "other digest")
    assert world.event_reasons()[3:] == ["Preparing", "DigestMismatch"]
    assert [event.type for event in world.events] == ["Normal"] * 4 + ["Warning"]
