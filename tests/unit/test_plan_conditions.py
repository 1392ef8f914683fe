"""The truth table of docs/reference/condition-states.md, row by row, and what holds in every one of them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from enginewright.manifests.labels import ROLLBACK
from enginewright.plan.types import Leader
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Published
from enginewright_contract.signature import PublishedSignature, TensorText
from enginewright_contract.verdict import Check, FallbackVerdict

from tests.support.plan_objects import (
    CPU_IMAGE,
    MODEL,
    OTHER,
    SECOND,
    publish_model,
    verdict,
)
from tests.support.plan_world import World, serving
from tests.support.simulation import NO_DEVICE, report_end

TABLE: Final = Path(__file__).parents[2] / "docs/reference/condition-states.md"
COLUMNS: Final = (
    "Ready",
    "Reconciling",
    "Stalled",
    "Available",
    "Validated",
    "EnginesReady",
    "RolledBack",
    "ParityVerified",
    "PlacementVerified",
    "FallbackActive",
)
PARTLY: Final = FallbackVerdict(
    active=False,
    message="3 of 105 nodes run on CPUExecutionProvider",
    nodes_total=105,
    nodes_elsewhere=3,
    compute_share=0.02,
)
WHOLLY: Final = FallbackVerdict(
    active=True,
    kind="NodeFallback",
    reason=Reason.PROVIDER_MISSING,
    message="105 of 105 nodes run on CPUExecutionProvider",
    nodes_total=105,
    nodes_elsewhere=105,
    compute_share=1.0,
)


def table() -> dict[str, dict[str, str]]:
    rows: dict[str, dict[str, str]] = {}
    columns: list[str] | None = None
    for line in TABLE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            columns = None
        elif cells[0] == "State":
            columns = cells[1:]
        elif columns and not set(cells[0]) <= set("-"):
            rows[cells[0]] = dict(zip(columns, cells[1:], strict=True))
    return rows


def silence(world: World, *pods: str) -> World:
    """Have the verdicts of `pods`, or of all, expire."""
    world.silent = set(pods or world.verdicts)
    world.verdicts = {
        name: said for name, said in world.verdicts.items() if name not in world.silent
    }
    return world.settle()


QUOTA: Final = "exceeded quota: gpus, requested: pods=1"


def refuse_pods(world: World) -> World:
    condition = {
        "type": "ReplicaFailure",
        "status": "True",
        "reason": "FailedCreate",
        "message": f'pods "resnet-cpu-7c9d6f8b4c-x2x9k" is forbidden: {QUOTA}',
    }
    for deployment in world.all("Deployment"):
        deployment["status"]["conditions"].append(condition)
    return world.settle()


def updating() -> World:
    return serving().edit(source=OTHER).job_succeeds(SECOND)


def start_without_probe() -> World:
    world = World()
    world.images = {}
    return world.settle()


def next_job_runs() -> World:
    world = World().settle().job_fails(Reason.SOURCE_UNREACHABLE, "fetch").later(minutes=1)
    assert world.job()["metadata"]["name"].endswith("-2")
    return world


def missing(world: World, available: int) -> World:
    """Have serving pods be gone, as after the loss of a node."""
    for deployment in world.all("Deployment"):
        deployment["status"] |= {
            "readyReplicas": available,
            "availableReplicas": available,
            "unavailableReplicas": 2 - available,
        }
    return world.settle()


def crashing() -> World:
    world = serving()
    name = world.the("Deployment")["metadata"]["name"]
    ended = report_end("server", code=139)["state"]
    state = {"name": "server", "ready": False, "state": {}, "lastState": ended}
    world.serving_pod(name, index=0, status={"containerStatuses": [state]})
    return missing(world, 1)


def artefact_gone() -> World:
    world = serving()
    world.now = world.now.replace(hour=13)
    missing(world, 1)
    return world.new_pod_fails(Reason.ARTIFACT_MISSING, "fetch-artifact")


def pause_update() -> World:
    world = serving().edit(rollout={"paused": True})
    return world.edit(source=OTHER).job_succeeds(publish_model(key="b" * 64))


CANARY: Final = {"canary": {"replicas": 1, "hold": "1m"}}


def verifying() -> World:
    return serving(rollout=CANARY).edit(source=OTHER).job_succeeds(SECOND)


def analyzing() -> World:
    return verifying().canary_available()


def canary_crashes() -> World:
    world = analyzing()
    world.crash(world.canaries()[0]["metadata"]["name"], Reason.BACKEND_CRASHED, index=0)
    return world.settle()


def promote_in_vain() -> World:
    """Have a sidecar refuse a pod of a revision that is being promoted after its canary."""
    world = analyzing().later(seconds=61)
    for pod in world.canary_pods():
        wrong = verdict(failed={Check.GOLDEN: Reason.PARITY_FAILED})
        world.verdicts[pod["metadata"]["name"]] = wrong
    return world.settle()


def roll_back_by_user() -> World:
    world = analyzing()
    return world.annotate(ROLLBACK, world.status["revision"])


def not_rolled_back() -> World:
    world = serving()
    return world.annotate(ROLLBACK, world.status["revision"])


def describing(result: Published, tensor: str) -> Published:
    signature = PublishedSignature.of([TensorText.read(tensor)], [TensorText.read("y:FP32[-1,10]")])
    return result.model_copy(update={"signature": signature})


def breaks_clients() -> World:
    world = World(replicas=2).settle().job_succeeds(describing(publish_model(), "x:FP32[-1,3]"))
    world.all_available().edit(source=OTHER)
    return world.job_succeeds(describing(SECOND, "pixels:FP32[-1,3]"))


def class_deleted() -> World:
    world = serving(accelerators=[{"class": "cpu"}])
    world.classes = []
    return world.settle()


def update_fails() -> World:
    return updating().rolling(available=2).new_pod_fails(Reason.PROVIDER_MISSING)


def building(**spec: object) -> World:
    return World(**spec).has_gpus().settle().job_succeeds()


def interim() -> World:
    return building(build={"interim": "CPU"}).all_available()


def no_device() -> World:
    world = World().has_gpus(aheadOfTime=False).settle().job_succeeds()
    return world.misses().unschedulable(NO_DEVICE, "engine")


def driver_missing() -> World:
    world = building().engine_built().rolling(0)
    return world.new_pod_fails(Reason.DRIVER_MISSING)


def next_backend() -> World:
    """Have the first backend of two fail to build an engine, under Allow."""
    return building(fallback={"policy": "Allow"}).engine_fails(Reason.BUILD_FAILED)


def hold_back() -> World:
    world = World().settle().job_succeeds().rolling(0)
    broken = WHOLLY.model_copy(update={"broken": True, "reason": Reason.NODE_FALLBACK})
    return world.sidecars_say(
        verdict(fallback=broken, failed={Check.PLACEMENT: Reason.NODE_FALLBACK})
    )


def promise_breaks() -> World:
    broken = WHOLLY.model_copy(update={"broken": True, "reason": Reason.SESSION_REPLACED})
    wrong = {Check.PLACEMENT: Reason.SESSION_REPLACED}
    return serving().sidecars_say(verdict(fallback=broken, failed=wrong))


def follows() -> World:
    world = World()
    world.leader = Leader("another", has_fetched=False)
    return world.settle()


def canary_on_a_node_that_is_down() -> World:
    world = verifying()
    pod = world.serving_pod(world.canaries()[0]["metadata"]["name"])
    pod["spec"] = {"nodeName": "node-2"}
    return world.node_goes_down("node-2")


STATES: Final[dict[str, Callable[[], World]]] = {
    "the runtime image is being probed": start_without_probe,
    "the spec cannot be acted on": lambda: World(backends=["openvino"]).settle(),
    "first preparation": lambda: World().settle().stage_runs("validate"),
    "another model's Job prepares the same": follows,
    "a stage failed, its Job retries": lambda: (
        World().settle().pod_fails(Reason.SOURCE_UNREACHABLE, "fetch")
    ),
    "a transient failure, the next Job waits": lambda: (
        World().settle().job_fails(Reason.SOURCE_UNREACHABLE, "fetch")
    ),
    "a transient failure, the next Job runs": next_job_runs,
    "refused, nothing serves": lambda: World().settle().job_fails(Reason.DIGEST_MISMATCH, "fetch"),
    "refused, samples do not judge parts of an output": lambda: (
        World(precision="INT8").settle().job_fails(Reason.PARITY_UNKNOWN, "quantize")
    ),
    "first rollout": lambda: World().settle().job_succeeds(),
    "first rollout, its pods fail": lambda: (
        World().settle().job_succeeds().rolling(0).new_pod_fails(Reason.PROVIDER_MISSING)
    ),
    "first rollout, given up": lambda: (
        World()
        .settle()
        .job_succeeds()
        .rolling(0, stuck=True)
        .new_pod_fails(Reason.PROVIDER_MISSING)
    ),
    "first rollout, no device for its pods": lambda: (
        World().settle().job_succeeds().update_unschedulable().later(hours=1)
    ),
    "serving": serving,
    "serving, pods missing": lambda: missing(serving(), 1),
    "serving, no pod left": lambda: missing(serving(), 0),
    "serving, a pod crashes": crashing,
    "serving, the artefact is gone": artefact_gone,
    "serving, its class is deleted": class_deleted,
    "update, its model is prepared": lambda: serving().edit(source=OTHER),
    "update, rolling out": lambda: updating().rolling(available=2),
    "update, only a part of it serves": lambda: updating().partly_available("resnet-cpu", 1),
    "update refused, the old revision serves": lambda: (
        serving().edit(source=OTHER).job_fails(Reason.DIGEST_MISMATCH, "fetch")
    ),
    "update cannot be acted on, the old revision serves": lambda: serving().edit(
        backends=["openvino"]
    ),
    "update, its pods fail, the old revision serves": update_fails,
    "update given up, the old revision serves": lambda: (
        update_fails().rolling(available=2, stuck=True).new_pod_fails(Reason.PROVIDER_MISSING)
    ),
    "update given up without a reason": lambda: updating().rolling(available=2, stuck=True),
    "update, the API server refuses its pods": lambda: refuse_pods(updating().rolling(available=2)),
    "update, its canary is verified": verifying,
    "update, no device for its canary": lambda: verifying().canary_unschedulable(),
    "update, the node of its canary is NotReady": canary_on_a_node_that_is_down,
    "update, the API server refuses its canary": lambda: verifying().pods_are_refused(QUOTA),
    "update, its canary gets requests": analyzing,
    "update, promoted after its canary": lambda: analyzing().later(seconds=61),
    "update, its canary crashes": canary_crashes,
    "update, rolled back while it is promoted": promote_in_vain,
    "update, rolled back by a user": roll_back_by_user,
    "a user's rollback finds no earlier revision": not_rolled_back,
    "update, its signature breaks clients": breaks_clients,
    "paused, an update is held back": pause_update,
    "paused, a canary stays as it is": lambda: analyzing().edit(rollout={**CANARY, "paused": True}),
    "paused, nothing to hold back": lambda: serving().edit(rollout={"paused": True}),
    "paused before anything served": lambda: (
        World(rollout={"paused": True}).settle().job_succeeds()
    ),
    "an engine is built": lambda: building().stage_runs("build", "engine"),
    "an engine is built, its interim starts": lambda: building(build={"interim": "CPU"}).stage_runs(
        "build", "engine"
    ),
    "an engine is built, its interim serves": lambda: interim().stage_runs("build", "engine"),
    "an engine cannot be built, its interim serves": lambda: interim().engine_fails(
        Reason.BUILD_FAILED
    ),
    "no device is free to build on": no_device,
    "an engine cannot be built": lambda: building().engine_fails(Reason.BUILD_FAILED),
    "an engine leaves out nodes, which is forbidden": lambda: building().engine_built(
        accelerated=100, elsewhere=["det (Det)"]
    ),
    "the engine is built, its pods lack the driver": driver_missing,
    "the engine serves": lambda: building().engine_built().all_available(),
    "the first backend fails, the next is prepared": next_backend,
    "first rollout, held back by its checks": hold_back,
    "serving, some nodes elsewhere, within the budget": lambda: (
        World(fallback={"policy": "Budget", "maxNodeShare": "5%"}, replicas=2)
        .settle()
        .job_succeeds()
        .all_available()
        .sidecars_say(verdict(fallback=PARTLY))
    ),
    "serving with a fallback that is allowed": lambda: (
        World(fallback={"policy": "Allow"}, replicas=2)
        .settle()
        .job_succeeds()
        .all_available()
        .sidecars_say(verdict(fallback=WHOLLY, failed={Check.PROVIDER: Reason.PROVIDER_MISSING}))
    ),
    "serving, the promise is broken": promise_breaks,
    "serving, a sidecar sees wrong answers": lambda: serving().sidecars_say(
        verdict(failed={Check.GOLDEN: Reason.PARITY_FAILED})
    ),
    "serving, samples do not judge parts of an output": lambda: serving().sidecars_say(
        verdict(unproven={Check.GOLDEN: Reason.PARITY_UNKNOWN})
    ),
    "serving, the sidecars do not answer": lambda: silence(serving()),
    "scaled to zero": lambda: serving().edit(replicas=0).all_available(),
}


def test_every_row_has_a_state_and_every_state_a_row() -> None:
    assert list(table()) == list(STATES)


@pytest.mark.parametrize("state", STATES)
def test_conditions_are_those_of_the_table(state: str) -> None:
    world = STATES[state]()
    reported = world.conditions()
    assert tuple(reported) == COLUMNS
    row = table()[state]
    for kind, pair in reported.items():
        assert " ".join(pair) == row[kind] or pair[0] == row[kind], kind
    assert [reported[kind][0] for kind in COLUMNS[:3]].count("True") == 1
    assert len({reported[kind][1] for kind in COLUMNS[:3]}) == 1
    assert world.status["observedGeneration"] == world.generation
    pods = [pod["metadata"]["name"] for pod in world.all("Pod")]
    for condition in world.status["conditions"]:
        message = condition["message"]
        assert condition["observedGeneration"] == world.generation
        assert message or (condition["type"] != "Ready" and condition["status"] != "True")
        assert not any(pod in message for pod in pods)
        assert not re.search(r"\d\d:\d\d|uid-\d", message), "it would change by itself"
        assert MODEL not in message, "kubectl shows the model's name beside it"
    before = world.status
    world.verdicts = {}
    world.settle()
    assert world.status == before, "a restarted operator writes the same"


@pytest.mark.parametrize(
    ("strategy", "replicas", "ends"),
    [("Recreate", 2, True), ("InPlace", 1, True), ("InPlace", 2, False), ("Surge", 1, False)],
)
def test_a_revision_whose_pods_end_first_is_not_said_to_keep_serving(
    strategy: str, replicas: int, *, ends: bool
) -> None:
    world = serving(replicas=replicas, rollout={"strategy": strategy})
    old = world.status["revision"]
    world.edit(source=OTHER)
    assert f"revision {old} keeps serving" in world.message(), "while the next one is prepared"
    world.job_succeeds(SECOND)
    assert (f"the pods of revision {old} end first" in world.message()) == ends
    assert (f"revision {old} keeps serving" in world.message()) != ends


@pytest.mark.parametrize("state", ["rejected", "verified"])
def test_an_update_does_not_hide_what_the_serving_revision_lacks(state: str) -> None:
    world = verifying() if state == "verified" else canary_crashes()
    before = world.conditions()["Ready"]
    world.edit(replicas=6)
    deployment = world.the("Deployment") if state == "rejected" else world.serving_deployments()[0]
    condition = {"type": "ReplicaFailure", "status": "True", "message": QUOTA}
    world._set_counts(deployment, replicas=2, readyReplicas=2, conditions=[condition])
    assert world.settle().conditions()["Ready"] == before
    assert "pods ready: cpu 0/6: cannot create pods of class cpu: exceeded quota" in world.message()


def two_pods() -> tuple[World, list[str]]:
    """A model whose pods differ in their baselines, as they do."""
    world = serving()
    names = sorted(world.verdicts)
    assert len(names) == 2
    slow = {names[0]: verdict(p99=0.034), names[1]: verdict(p99=0.012)}
    world.verdicts = dict(slow)
    world.settle()
    assert world.status["summary"]["p99"] == "34ms"
    return world, names


@pytest.mark.parametrize("asked", [0, 1])
def test_the_first_pod_polled_after_a_restart_does_not_speak_for_all(asked: int) -> None:
    world, names = two_pods()
    before = world.status
    world.verdicts = {names[asked]: world.verdicts[names[asked]]}
    world.settle()
    assert world.status == before


@pytest.mark.parametrize("asked", [0, 1])
def test_a_known_fallback_is_not_written_again_by_each_pod(asked: int) -> None:
    """Figures of one pod would be written, and those of both right after."""
    world = serving()
    names = sorted(world.verdicts)
    active = FallbackVerdict(active=True, kind="NodeFallback", message="1 of 9", nodes_total=9)
    world.verdicts = {
        name: verdict(fallback=active, p99=p99)
        for name, p99 in zip(names, (0.034, 0.012), strict=True)
    }
    before = world.settle().status
    assert world.condition("FallbackActive")["status"] == "True"
    world.verdicts = {names[asked]: world.verdicts[names[asked]]}
    world.settle()
    assert world.status == before


# fault: Reports | after a restart of the operator the first pod's verdict speaks for all | the
#   status stands until every pod has answered | at the restart
def test_ready_pods_do_not_hide_a_failed_one() -> None:
    """After a restart the pod that answers wrongly, and is not ready for it, may be asked last."""
    world, names = two_pods()
    wrong = verdict(failed={Check.GOLDEN: Reason.PARITY_FAILED})
    wrong = wrong.model_copy(update={"admitted": True})
    (pod,) = [entry for entry in world.all("Pod") if entry["metadata"]["name"] == names[1]]
    pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    world.verdicts[names[1]] = wrong
    before = world.settle().status
    assert world.condition("ParityVerified")["status"] == "False"
    world.verdicts = {names[0]: world.verdicts[names[0]]}
    world.settle()
    assert world.status == before
    world.verdicts[names[1]] = verdict()
    world.settle()
    assert world.condition("ParityVerified")["status"] == "True"


# fault: Reports | the operator cannot reach sidecars (a NetworkPolicy)
def test_expired_verdict_proves_nothing() -> None:
    world, names = two_pods()
    silence(world, names[0])
    placement = world.condition("PlacementVerified")
    assert (placement["status"], placement["reason"]) == ("Unknown", "SidecarUnreachable")
    assert placement["message"].startswith(
        "the sidecars of 1 of 2 pods have not responded to the operator"
    )
    assert world.condition("Ready")["status"] == "True", "it serves: Kubernetes' own probes say so"
    reported = world.status
    world.settle()
    assert world.status == reported, "said once"
    world.silent.clear()
    world.verdicts = {name: verdict() for name in names}
    world.settle()
    assert world.condition("PlacementVerified")["status"] == "True"


def test_bad_news_from_one_pod_does_not_wait_for_the_others() -> None:
    world, names = two_pods()
    wrong = verdict(failed={Check.GOLDEN: Reason.PARITY_FAILED})
    world.verdicts = {names[1]: wrong.model_copy(update={"admitted": True})}
    world.settle()
    assert world.condition("ParityVerified")["status"] == "False"


def test_a_failure_that_is_tried_again_says_so_once() -> None:
    world = World().settle().job_fails(Reason.STORE_UNAVAILABLE, "fetch", "the disk is full")
    assert world.message() == "the disk is full; retrying"


def test_pods_that_the_api_server_refuses_are_reported_in_its_own_sentence() -> None:
    world = refuse_pods(World(replicas=2).settle().job_succeeds().rolling(available=0))
    assert world.conditions()["Ready"] == ("False", "FailedCreate")
    assert world.message() == f"cannot create pods of class cpu: {QUOTA}"
    assert world.events[-1].type == "Warning"


def test_refused_update_names_the_serving_revision() -> None:
    world = serving()
    revision = world.status["serving"]["revision"]
    world.edit(source=OTHER).job_fails(Reason.DIGEST_MISMATCH, "fetch", "other digest")
    assert world.message() == f"other digest; revision {revision} keeps serving"
    assert world.condition("Validated")["message"] == "other digest"


def test_a_transition_time_moves_only_when_a_status_flips() -> None:
    world = World().settle()
    begun = world.condition("Ready")["lastTransitionTime"]
    world.now = world.now.replace(hour=13)
    world.job_succeeds()
    assert world.condition("Ready")["reason"] == "RollingOut"
    assert world.condition("Ready")["lastTransitionTime"] == begun
    assert world.condition("Validated")["lastTransitionTime"] == "2026-11-21T13:00:00Z"


def test_an_image_that_cannot_be_asked_stalls_with_the_reason() -> None:
    world = World()
    world.images = {}
    world.image_failures = {CPU_IMAGE: "exec format error"}
    world.settle()
    assert world.conditions()["Stalled"] == ("True", "ImageProbeFailed")
    assert "exec format error" in world.condition("Stalled")["message"]
