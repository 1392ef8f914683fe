"""Canaries: when they get requests, are promoted, or are rejected."""

import copy
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import pytest
from enginewright.kube.errors import Forbidden
from enginewright.manifests.labels import (
    CANARY,
    CLASS,
    COMPONENT,
    PROMOTE,
    REVISION,
    ROLLBACK,
    SERVE,
)
from enginewright.manifests.outcome import RevisionOutcome
from enginewright_contract.keys import sha256_text
from enginewright_contract.measurements import Counts, Measurements
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Published
from enginewright_contract.signature import PublishedSignature, TensorText
from enginewright_contract.task import ServeTask
from enginewright_contract.verdict import Check, Verdict

from tests.support.fake_kube import timestamp
from tests.support.optional import present
from tests.support.plan_objects import (
    OTHER,
    SECOND,
    Json,
    accelerator_class,
    publish_model,
    verdict,
)
from tests.support.plan_world import World, serving
from tests.support.simulation import NO_DEVICE, runs, unschedulable

CANARY_SPEC: Final[Json] = {"replicas": 1, "hold": "1m"}
FIRST: Final[Json] = {"uri": "https://models.example/resnet.onnx"}
THIRD: Final[Json] = {"uri": "https://models.example/third.onnx"}


def serve(strategy: str = "Surge", replicas: int = 2, **canary: Any) -> World:
    rollout = {"strategy": strategy, "canary": {**CANARY_SPEC, **canary}}
    return serving(rollout=rollout, replicas=replicas)


def update(world: World) -> World:
    return world.edit(source=OTHER).job_succeeds(SECOND)


def analysing() -> World:
    return update(serve()).canary_available()


def revision(obj: Json) -> str:
    return str(obj["metadata"]["labels"][REVISION])


def find_revisions(world: World) -> set[str]:
    return {revision(serving_deployment) for serving_deployment in world.serving_deployments()}


def components(world: World) -> list[str]:
    return [pod["metadata"]["labels"][COMPONENT] for pod in world.canary_pods()]


def outcome_of(world: World, name: str) -> RevisionOutcome | None:
    stored = world.get("ControllerRevision", f"resnet-{name}")
    return RevisionOutcome.read(stored["metadata"]["annotations"])


def phase(world: World) -> str | None:
    target = world.status.get("target")
    return target["phase"] if target else None


# from verification to promotion


def test_a_new_revision_is_verified_beside_the_serving_one_without_requests() -> None:
    world = serve()
    old = world.status["revision"]
    before = world.the("Deployment")["spec"]
    update(world)
    (canary,) = world.canaries()
    new = world.status["revision"]
    assert (revision(canary), canary["spec"]["replicas"]) == (new, 1)
    (stable,) = world.serving_deployments()
    assert stable["spec"] == before
    template = canary["spec"]["template"]["metadata"]["labels"]
    assert template[COMPONENT] == CANARY, "which no Service selects"
    assert canary["spec"]["selector"]["matchLabels"].items() <= template.items()
    assert phase(world) == "Verifying"
    assert world.conditions()["Ready"] == ("False", "VerifyingCanary")
    assert world.conditions()["Reconciling"][0] == "True"
    assert world.status["active"]["revision"] == old == world.status["serving"]["revision"]
    assert world.status["summary"]["revision"] == f"{old} → {new}"


def test_its_sidecars_compare_answers_with_the_prepared_model_that_serves() -> None:
    world = serve()
    key = world.status["serving"]["preparedKey"]
    update(world)
    spec = world.canaries()[0]["spec"]["template"]["spec"]
    tasks = {
        item["name"]: ServeTask.model_validate_json(item["env"][0]["value"])
        for item in (*spec["initContainers"], *spec["containers"])
    }
    assert tasks["fetch-artifact"].stable_key == tasks["sidecar"].stable_key == key
    assert tasks["server"].stable_key is None
    world.canary_available().later(seconds=61)
    stable = world.serving_deployments()[0]["spec"]["template"]["spec"]
    assert key not in str(stable), "what serves needs no other"


def test_verified_pods_get_requests_and_replace_the_others_only_after_the_hold() -> None:
    world = analysing()
    old, new = world.status["active"]["revision"], world.status["revision"]
    assert components(world) == [SERVE]
    assert phase(world) == "Analyzing"
    assert world.conditions()["Ready"] == ("False", "Analyzing")
    assert find_revisions(world) == {old}
    assert world.last
    assert world.last.requeue_after
    assert phase(world.later(seconds=59)) == "Analyzing"
    assert phase(world.later(seconds=2)) == "Promoting"
    assert find_revisions(world) == {new}
    assert components(world) == [SERVE], "they serve until others have replaced them"
    world.all_available()
    assert not world.canaries()
    assert phase(world) is None
    assert world.status["active"]["revision"] == new
    assert world.conditions()["Ready"] == ("True", "Serving")
    outcome = present(outcome_of(world, new))
    assert outcome.state == "Promoted"


def test_a_pod_that_replaces_a_canary_is_verified_again() -> None:
    world = analysing()
    (pod,) = world.canary_pods()
    name = world.canaries()[0]["metadata"]["name"]
    world.remove("Pod", pod["metadata"]["name"])
    world.serving_pod(name, index=7)
    world.settle()
    assert components(world) == [CANARY]
    world.remove("Pod", f"{name}-00007")
    world.later(seconds=90)
    assert phase(world) == "Analyzing", "not without its pods"
    world.canary_available()
    assert components(world) == [SERVE]
    assert phase(world) == "Analyzing", "the hold counts from when its pods were ready"
    assert phase(world.later(seconds=61)) == "Promoting"


def test_a_serving_pod_that_is_replaced_during_the_analysis_neither_fails_nor_stops_it() -> None:
    world = analysing()
    (canary,) = world.canary_pods()
    deployment = world.serving_deployments()[0]["metadata"]["name"]
    begin = world.now.timestamp() - 4000
    # of both revisions, before the pod was replaced
    incident = tuple(
        Counts(at=begin + 40 * n, responses={"200": 180 * n, "500": min(20 * n, 500)})
        for n in range(100)
    )
    through_it: Json = {"counts": incident, "responses": {"200": 18_000, "500": 500}}
    world.measures(f"{deployment}-00000", **through_it)
    world.measures(canary["metadata"]["name"], **through_it)
    world.remove("Pod", f"{deployment}-00001")
    world.serving_pod(deployment, index=7, ready=True)
    del world.measurements[f"{deployment}-00001"]
    started = world.now.timestamp() - 1000
    world.measures(f"{deployment}-00007", since=started, responses={"200": 30_000})
    world.settle()
    assert world.conditions()["RolledBack"][0] == "False"
    assert phase(world) == "Analyzing"
    assert phase(world.later(seconds=61)) == "Promoting"


def test_steps_raise_the_share_and_each_is_held() -> None:
    world = update(serve(replicas=4, steps=["50%"])).canary_available()
    assert [canary["spec"]["replicas"] for canary in world.canaries()] == [1]
    world.later(seconds=61)
    assert world.status["target"]["step"] == 2
    assert [canary["spec"]["replicas"] for canary in world.canaries()] == [4]
    assert phase(world.later(seconds=61)) == "Analyzing", "its further pods are not ready"
    world.canary_available()
    assert phase(world.later(seconds=61)) == "Promoting"


# rejection


# event: Rollouts | a new revision crashes beside the serving one | the serving revision, untouched |
#   `RolledBack` and an Event with the reason; `status.lastFailure`
def test_crashing_canary_is_rejected() -> None:
    world = analysing()
    old, new = world.status["active"]["revision"], world.status["revision"]
    (stable,) = world.serving_deployments()
    generation = stable["metadata"]["generation"]
    world.crash(world.canaries()[0]["metadata"]["name"], Reason.BACKEND_CRASHED, index=0)
    world.settle()
    assert not world.canaries()
    assert world.the("Deployment")["metadata"]["generation"] == generation
    assert world.conditions()["RolledBack"] == ("True", "BackendCrashed")
    assert world.conditions()["Ready"] == ("False", "BackendCrashed")
    assert world.conditions()["Stalled"][0] == "True"
    assert world.conditions()["Available"][0] == "True"
    failure = world.status["lastFailure"]
    assert (failure["revision"], failure["reason"]) == (new, "BackendCrashed")
    assert (failure["stage"], failure["exitCode"]) == ("server", 65)
    assert world.events[-1].type == "Warning"
    assert f"revision {old} keeps serving" in world.events[-1].message
    outcome = present(outcome_of(world, new))
    assert outcome.state == "Rejected"
    assert world.rolled_back == ["BackendCrashed"], "it is counted once"


def test_part_of_an_output_that_fails_at_startup_is_named_and_rejects_the_canary() -> None:
    part = "output 'dets' differs in index 4 of axis 1: RMS error 0.3, 150% of what the samples move it by"
    world = update(serve())
    old = world.status["active"]["revision"]
    (canary,) = world.canaries()
    world.crash(canary["metadata"]["name"], Reason.PARITY_FAILED, message=part, index=0)
    world.settle()
    assert world.conditions()["RolledBack"] == ("True", "ParityFailed")
    assert (world.canaries(), find_revisions(world)) == ([], {old})
    assert part in world.status["lastFailure"]["message"]
    assert part in world.message()


def reject_canary() -> World:
    world = analysing()
    world.crash(world.canaries()[0]["metadata"]["name"], Reason.BACKEND_CRASHED, index=0)
    return world.settle()


def test_a_canary_without_its_secret_waits_for_it() -> None:
    world = analysing()
    old, new = world.status["active"]["revision"], world.status["revision"]
    (canary,) = world.canaries()
    world.crash(canary["metadata"]["name"], Reason.SECRET_UNUSABLE, index=0, restarts=7)
    world.later(hours=1)
    assert [revision(entry) for entry in world.canaries()] == [new]
    assert find_revisions(world) == {old}
    assert world.conditions()["RolledBack"][0] == "False"
    assert world.conditions()["Ready"] == ("False", "SecretUnusable")


@pytest.mark.parametrize("event", ["restart", "status lost", "scaled", "a day"])
def test_a_rejected_revision_is_not_tried_again_while_the_spec_stays(event: str) -> None:
    world = reject_canary()
    match event:
        case "restart":
            world.operator_restarts()
        case "status lost":
            active = world.status["serving"]
            world.status = {"serving": active, "prepared": world.status["prepared"]}
            world.settle()
        case "scaled":
            world.edit(replicas=3).all_available()
        case _:
            world.later(hours=25)
    assert not world.canaries()
    assert world.conditions()["RolledBack"] == ("True", "BackendCrashed")


def test_an_edit_gives_a_new_revision_its_chance_and_ends_the_rejection() -> None:
    world = reject_canary()
    bad = world.status["revision"]
    world.edit(source=THIRD).job_succeeds(publish_model(sha256_text("third"), sha256_text("3")))
    assert world.conditions()["RolledBack"][0] == "False"
    assert phase(world) == "Verifying"
    outcome = present(outcome_of(world, bad))
    assert outcome.state == "Superseded"
    world.canary_available().later(seconds=61)
    world.all_available()
    assert "lastFailure" not in world.status


@pytest.mark.parametrize(
    ("check", "reason"),
    [(Check.PLACEMENT, Reason.NODE_FALLBACK), (Check.GOLDEN, Reason.PARITY_FAILED)],
)
@pytest.mark.parametrize("when", ["before requests", "under requests", "promoted"])
def test_failed_verdict_rejects_the_canary(check: Check, reason: Reason, when: str) -> None:
    world = update(serve())
    old = world.status["active"]["revision"]
    (canary,) = world.canaries()
    if when == "before requests":
        world.serving_pod(canary["metadata"]["name"])
    else:
        world.canary_available()
    if when == "promoted":
        world.later(seconds=61)
        assert find_revisions(world) != {old}
    for pod in world.canary_pods():
        world.verdicts[pod["metadata"]["name"]] = verdict(failed={check: reason})
    world.settle()
    assert world.conditions()["RolledBack"] == ("True", reason)
    assert not world.canaries()
    assert find_revisions(world) == {old}


@pytest.mark.parametrize("when", ["before requests", "under requests"])
@pytest.mark.parametrize(
    "fallback",
    [{"policy": "Forbid"}, {"policy": "Allow"}, {"policy": "Budget", "maxNodeShare": "100%"}],
)
def test_missing_provider_rejects_under_forbid(fallback: Json, when: str) -> None:
    world = serving(rollout={"canary": CANARY_SPEC}, replicas=2, fallback=fallback)
    old = world.status["active"]["revision"]
    update(world)
    (canary,) = world.canaries()
    if when == "before requests":
        world.serving_pod(canary["metadata"]["name"])
    else:
        world.canary_available()
    lacks = verdict(failed={Check.PROVIDER: Reason.PROVIDER_MISSING})
    for pod in world.canary_pods():
        world.verdicts[pod["metadata"]["name"]] = lacks
    world.settle()
    if fallback["policy"] == "Forbid":
        assert world.conditions()["RolledBack"] == ("True", "ProviderMissing")
        return
    assert world.conditions()["RolledBack"][0] == "False"
    world.canary_available().later(seconds=61).all_available()
    assert world.status["active"]["revision"] != old
    for pod in world.all("Pod"):
        world.verdicts[pod["metadata"]["name"]] = lacks
    assert world.settle().conditions()["Ready"] == ("True", "Serving")


def test_wrong_answers_are_not_left_to_another_backend() -> None:
    spec = {"fallback": {"policy": "Allow"}, "rollout": {"canary": CANARY_SPEC}, "replicas": 2}
    world = World(accelerator_class("x", "openvino", "cpu"), **spec).settle()
    world.job_succeeds().all_available()
    update(world)
    (canary,) = world.canaries()
    name = canary["metadata"]["name"]
    world.serving_pod(name, ready=True)
    world.measures(f"{name}-00000", golden_ok=500, golden_wrong=40)
    world.settle()
    assert world.conditions()["RolledBack"] == ("True", "ParityFailed")


def test_steps_that_are_removed_end_with_the_first() -> None:
    world = update(serve(replicas=4, steps=["50%"])).canary_available().later(seconds=61)
    assert world.status["target"]["step"] == 2
    world.edit(rollout={"canary": CANARY_SPEC})
    assert [canary["spec"]["replicas"] for canary in world.canaries()] == [1]


def test_one_crash_is_no_failure() -> None:
    world = analysing()
    world.crash(
        world.canaries()[0]["metadata"]["name"], Reason.BACKEND_CRASHED, restarts=1, index=0
    )
    world.settle()
    assert phase(world) == "Analyzing"


def test_requests_that_crash_both_revisions_are_not_the_new_ones_fault() -> None:
    world = analysing()
    (stable,) = world.serving_deployments()
    world.later(seconds=1)
    world.crash(stable["metadata"]["name"], Reason.BACKEND_CRASHED, restarts=1)
    world.crash(world.canaries()[0]["metadata"]["name"], Reason.BACKEND_CRASHED, index=0)
    world.settle()
    assert phase(world) == "Analyzing"


def test_with_on_failure_pause_its_pods_stay_without_requests() -> None:
    world = serve()
    world.edit(rollout={**world.spec["rollout"], "onFailure": "Pause"})
    update(world).canary_available()
    name = world.canaries()[0]["metadata"]["name"]
    world.crash(name, Reason.BACKEND_CRASHED, index=0)
    world.settle()
    assert [canary["metadata"]["name"] for canary in world.canaries()] == [name]
    assert components(world) == [CANARY]
    assert world.conditions()["Stalled"][0] == "True"


# signatures


def describing(result: Published, *inputs: str) -> Published:
    signature = PublishedSignature.of(
        map(TensorText.read, inputs), [TensorText.read("y:FP32[-1,10]")]
    )
    return result.model_copy(update={"signature": signature})


def with_signature(*inputs: str) -> World:
    world = World(rollout={"canary": CANARY_SPEC}, replicas=2).settle()
    world.job_succeeds(describing(publish_model(), "x:FP32[-1,3]")).all_available()
    return world.edit(source=OTHER).job_succeeds(describing(SECOND, *inputs))


# event: Rollouts | a new revision renames an input | the serving revision | `SignatureChanged` with the
#   difference, until `rollout.allowSignatureChange`
def test_a_signature_that_breaks_clients_is_held_until_it_is_allowed() -> None:
    world = with_signature("pixels:FP32[-1,3]")
    old = world.status["active"]["revision"]
    assert phase(world) == "Held"
    assert world.conditions()["Stalled"] == ("True", "SignatureChanged")
    assert "x is now called pixels" in world.message()
    assert not world.canaries()
    assert find_revisions(world) == {old}
    assert [item["name"] for item in world.status["active"]["signature"]["inputs"]] == ["x"]
    assert [item["name"] for item in world.status["target"]["signature"]["inputs"]] == ["pixels"]
    world.annotate(PROMOTE, world.status["revision"])
    assert phase(world) == "Held", "to promote is not to allow it"
    world.annotate(PROMOTE, None)
    world.edit(rollout={**world.spec["rollout"], "allowSignatureChange": True})
    assert phase(world) == "Verifying"


def test_a_wider_signature_is_reported() -> None:
    world = with_signature("x:FP32[-1,-1]")
    assert phase(world) == "Verifying"
    assert "clients may use more: input x" in world.message()


# comparison


# event: Rollouts | a new revision is slower than the serving one | the serving revision | `RolledBack` with
#   `SlowerThanStable` and the ratio; if golden inferences show it, no client's request was slow
@pytest.mark.parametrize("when", ["before requests", "under requests", "promoted"])
def test_a_slower_revision_is_rejected(when: str) -> None:
    world = update(serve()) if when == "before requests" else analysing()
    old = world.status["active"]["revision"]
    if when == "promoted":
        world.later(seconds=61)
        assert phase(world) == "Promoting"
    (canary,) = world.canaries()
    name = f"{canary['metadata']['name']}-00000"
    if when == "before requests":
        world.serving_pod(canary["metadata"]["name"], ready=True)
    world.measures(name, ratio=300)
    world.settle()
    if when == "before requests":
        assert components(world) in ([], [CANARY])
    assert world.conditions()["RolledBack"] == ("True", "SlowerThanStable")
    assert world.status["lastFailure"]["stage"] == "analysis"
    assert not world.canaries()
    assert find_revisions(world) == {old}


def test_too_few_measurements_are_waited_for() -> None:
    world = analysing()
    for pod in world.all("Pod"):
        world.measurements[pod["metadata"]["name"]] = Measurements(
            model="resnet", revision="", since=world.now.timestamp()
        )
    world.later(hours=1)
    assert phase(world) == "Analyzing"
    assert "latency" in world.status["target"]["message"]
    assert not any(item.isdigit() for item in world.status["target"]["message"])


def test_each_class_is_compared_with_itself() -> None:
    """One class is ten times as fast, and has more of the serving pods than of the canary's."""
    rollout, classes = (
        {"canary": CANARY_SPEC},
        [{"class": "a", "replicas": 4}, {"class": "b", "replicas": 1}],
    )
    world = World("a", "b", rollout=rollout, accelerators=classes).settle()
    world.job_succeeds().all_available()
    update(world).canary_available()
    for pod in world.all("Pod"):
        if pod["metadata"]["labels"].get(CLASS) == "b":
            world.measures(pod["metadata"]["name"], ratio=10)
    assert phase(world.settle()) == "Analyzing"
    assert phase(world.later(seconds=61)) == "Promoting"


def test_measurements_that_cannot_be_read_keep_no_user_from_deciding() -> None:
    world = analysing()
    for pod in world.canary_pods():
        del world.measurements[pod["metadata"]["name"]]
    world.later(hours=1)
    assert phase(world) == "Analyzing"
    world.annotate(ROLLBACK, world.status["revision"])
    assert world.conditions()["RolledBack"][0] == "True"


def test_sidecars_that_do_not_respond_are_named() -> None:
    world = update(serve()).canary_available()
    world.measurements.clear()
    world.silent = {pod["metadata"]["name"] for pod in world.all("Pod")}
    world.later(minutes=5)
    assert world.conditions()["Ready"] == ("False", "SidecarUnreachable")
    assert "port 8081" in world.message()


def canary_falls_silent(world: World) -> str:
    """Have the canary's verdict expire: the operator does not reach its sidecar, the kubelet does."""
    (pod,) = world.canary_pods()
    name = str(pod["metadata"]["name"])
    del world.verdicts[name]
    world.silent = {name}
    world.settle()
    return name


@pytest.mark.parametrize("before", ["Verifying", "Analyzing"])
def test_canary_whose_verdict_is_unknown_goes_no_further(before: str) -> None:
    world = update(serve())
    world.complete(world.canaries()[0]["metadata"]["name"])
    if before == "Analyzing":
        world.settle()
    name = canary_falls_silent(world)
    world.later(hours=1)
    assert phase(world) == before
    assert before == "Analyzing" or components(world) == [CANARY]
    assert world.conditions()["Ready"] == ("False", "SidecarUnreachable")
    world.silent.clear()
    assert phase(world.later(seconds=5)) == before, "it has responded, but not validly"
    world.verdicts[name] = verdict()
    assert phase(world.settle().later(seconds=61)) == "Promoting"


LOST_DRIVER: Final = {
    Check.PROVIDER: Reason.DRIVER_MISSING,
    Check.PLACEMENT: Reason.DRIVER_MISSING,
}


def canary_says(world: World, said: Verdict) -> World:
    """Have the sidecars of a canary that stays admitted find this."""
    for pod in world.canary_pods():
        world.verdicts[pod["metadata"]["name"]] = said.model_copy(
            update={"ready": True, "admitted": True}
        )
    return world.settle()


@pytest.mark.parametrize(
    ("before", "failed", "reason"),
    [
        ("Verifying", LOST_DRIVER, "DriverMissing"),
        ("Analyzing", LOST_DRIVER, "DriverMissing"),
        ("Verifying", {Check.VERSIONS: Reason.PROCESSOR_MISMATCH}, "ProcessorMismatch"),
    ],
)
def test_canary_on_an_unfit_node_goes_no_further(
    before: str, failed: dict[Check, Reason], reason: str
) -> None:
    world = update(serve())
    world.complete(world.canaries()[0]["metadata"]["name"])
    if before == "Analyzing":
        world.settle()
    canary_says(world, verdict(failed=failed))
    assert phase(world.later(hours=1)) == before
    assert world.status["target"]["reason"] == reason
    assert world.conditions()["Ready"] == ("False", reason)
    assert world.conditions()["RolledBack"][0] == "False", "another node may have it"
    canary_says(world, verdict())
    assert phase(world.later(seconds=61)) == "Promoting"


@pytest.mark.parametrize(
    "fallback", [{"policy": "Allow"}, {"policy": "Budget", "maxNodeShare": "100%"}]
)
def test_a_canary_that_lost_its_provider_under_requests_is_rejected(fallback: Json) -> None:
    world = update(serving(rollout={"canary": CANARY_SPEC}, replicas=2, fallback=fallback))
    world.canary_available()
    assert phase(world) == "Analyzing"
    canary_says(world, verdict(failed={Check.PROVIDER: Reason.SESSION_REPLACED}))
    assert world.conditions()["RolledBack"] == ("True", "SessionReplaced")
    assert not world.canaries()


def test_a_canary_that_crashed_once_and_runs_again_goes_on() -> None:
    world = analysing()
    (pod,) = world.canary_pods()
    last = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": timestamp(world.now)}
    pod["status"]["containerStatuses"][0]["lastState"] = {"terminated": last}
    assert phase(world.later(seconds=61)) == "Promoting"


def test_silent_canary_is_named_before_missing_measurements() -> None:
    world = analysing()
    (pod,) = world.canary_pods()
    world.measures(pod["metadata"]["name"], latencies=())
    world.settle()
    assert world.status["target"]["message"].startswith("latency: ")
    canary_falls_silent(world)
    assert world.status["target"]["reason"] == "SidecarUnreachable"


def test_serving_pods_that_do_not_respond_do_not_stop_a_canary() -> None:
    world = analysing()
    stable = world.serving_deployments()[0]["metadata"]["name"]
    world.silent = {f"{stable}-00000"}
    del world.verdicts[f"{stable}-00000"]
    assert phase(world.later(seconds=61)) == "Promoting"


def test_a_canary_waits_for_its_verdict_after_a_restart_of_the_operator() -> None:
    world = analysing()
    measured, verdicts = dict(world.measurements), dict(world.verdicts)
    world.operator_restarts()
    world.measurements = measured
    world.later(seconds=61)
    assert phase(world) == "Analyzing"
    world.verdicts = verdicts
    assert phase(world.settle()) == "Promoting"


def test_interrupted_rollback_is_counted_once() -> None:
    world = analysing()
    world.crash(world.canaries()[0]["metadata"]["name"], Reason.BACKEND_CRASHED, index=0)
    world.kube.refused_after = 1  # after the outcome, before the status
    world.settle()
    assert world.rolled_back == ["BackendCrashed"]


def test_a_serving_revision_that_measures_nothing_is_no_obstacle() -> None:
    world = analysing()
    for serving_deployment in world.serving_deployments():
        for index in range(2):
            world.measurements[f"{serving_deployment['metadata']['name']}-{index:05}"] = None
    assert phase(world.later(seconds=61)) == "Promoting"


def test_a_way_out_of_an_outage_needs_nothing_to_compare_with() -> None:
    world = analysing()
    (stable,) = world.serving_deployments()
    world.partly_available(stable["metadata"]["name"], 0)
    assert phase(world.later(seconds=30)) == "Analyzing", "a moment is no outage"
    assert phase(world.later(seconds=40)) == "Promoting"


@pytest.mark.parametrize("pods", [0, 2])
def test_serving_pods_that_merely_start_are_waited_for(pods: int) -> None:
    world = analysing()
    (stable,) = world.serving_deployments()
    name = stable["metadata"]["name"]
    for pod in world.pods_of("deployment", name):
        world.remove("Pod", pod["metadata"]["name"])
    initialized = {"type": "Initialized", "status": "True"}
    initialized["lastTransitionTime"] = timestamp(world.now + timedelta(seconds=10))
    for index in range(pods):
        starting = world.serving_pod(name, index=index)
        starting["status"]["conditions"].append(initialized)
    assert phase(world.later(minutes=5)) == "Analyzing"
    for pod in world.pods_of("deployment", name):  # it was ready meanwhile
        pod["status"] = runs(timestamp(world.now), ready=False)
        pod["status"]["conditions"].append(initialized)
    assert phase(world.later(seconds=61)) == ("Promoting" if pods else "Analyzing")


# capacity


def test_canary_without_a_device_waits_and_says_so() -> None:
    world = update(serve()).canary_unschedulable()
    assert world.conditions()["Ready"] == ("False", "CapacityBlocked")
    assert world.conditions()["Reconciling"][0] == "True"
    assert "Insufficient nvidia.com/gpu" in world.message()
    (canary,) = world.canaries()
    stuck = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
    world.set_status(canary, {"observedGeneration": 1, "replicas": 1, "conditions": [stuck]})
    world.later(hours=2)
    assert phase(world) == "Verifying", "a lack of devices is not its fault"
    assert world.conditions()["Available"][0] == "True"


def test_event_names_the_basis_of_a_promotion() -> None:
    world = analysing().later(seconds=101)
    assert phase(world) == "Promoting"
    (event,) = [intent for intent in world.events if intent.reason == "Promoted"]
    assert world.status["revision"] in event.message
    assert "golden inferences" in event.message
    world.later(seconds=30).all_available()
    assert [intent.reason for intent in world.events].count("Promoted") == 1


def cannot_start(world: World, why: str) -> None:
    """Have the Deployment's next pod not be scheduled, or not be created."""
    (stable,) = world.serving_deployments()
    if why == "quota":
        refused = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate"}
        stable["status"] |= {
            "observedGeneration": stable["metadata"]["generation"],
            "updatedReplicas": 0,
            "conditions": [{**refused, "message": "exceeded quota: gpus"}],
        }
    else:
        name, reported = stable["metadata"]["name"], {"conditions": [unschedulable(NO_DEVICE)]}
        waiting = world.serving_pod(name, index=7, status=reported)
        waiting["spec"], waiting["status"]["phase"] = {}, "Pending"
    world.settle()


@pytest.mark.parametrize("why", ["device", "quota"])
def test_a_canary_makes_way_for_the_pods_that_replace_the_serving_ones(why: str) -> None:
    """In a cluster with a device to spare, not with two."""
    world = analysing().later(seconds=101)
    assert phase(world) == "Promoting"
    assert world.canaries()
    (stable,) = world.serving_deployments()
    before = stable["spec"]
    cannot_start(world, why)
    assert not world.canaries()
    assert world.the("Deployment")["spec"] == before, "what serves stays"
    assert phase(world) == "Promoting"
    world.all_available()
    assert world.conditions()["Ready"] == ("True", "Serving")


def test_in_place_a_canary_makes_no_way() -> None:
    """The pod that is to replace one gets its device once that has ended, and nothing else serves meanwhile."""
    world = update(serve("InPlace")).all_available().canary_available().later(seconds=61)
    assert phase(world) == "Promoting"
    (stable,) = world.serving_deployments()
    world.partly_available(stable["metadata"]["name"], 0)
    cannot_start(world, "device")
    assert components(world) == [SERVE]


def test_a_canary_that_serves_alone_makes_no_way() -> None:
    world = analysing()
    (stable,) = world.serving_deployments()
    world.partly_available(stable["metadata"]["name"], 0)
    world.later(seconds=101)
    assert phase(world) == "Promoting"
    cannot_start(world, "device")
    assert components(world) == [SERVE]


def test_in_place_the_canary_takes_a_device_of_the_serving_pods() -> None:
    world = update(serve("InPlace"))
    old = world.status["active"]["revision"]
    assert sorted(world.replicas().values()) == [1, 1]
    world.all_available().canary_available().later(seconds=61)
    assert phase(world) == "Promoting"
    (stable,) = world.serving_deployments()
    assert stable["spec"]["replicas"] == 1
    assert stable["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    world.all_available()
    assert list(world.replicas().values()) == [2]
    world.all_available()
    assert world.conditions()["Ready"] == ("True", "Serving")
    assert world.status["active"]["revision"] != old


def test_in_place_a_rejected_canary_gives_its_device_back() -> None:
    world = update(serve("InPlace")).all_available().canary_available()
    world.crash(world.canaries()[0]["metadata"]["name"], Reason.BACKEND_CRASHED, index=0)
    world.settle()
    assert list(world.replicas().values()) == [2]


@pytest.mark.parametrize(("strategy", "replicas"), [("InPlace", 1), ("Recreate", 2)])
def test_no_canary_without_a_spare_device_but_a_way_back(strategy: str, replicas: int) -> None:
    world = update(serve(strategy, replicas))
    old, new = world.status["active"]["revision"], world.status["revision"]
    assert not world.canaries()
    assert find_revisions(world) == {new}
    world.rolling(available=0).new_pod_fails(Reason.BACKEND_CRASHED)
    assert find_revisions(world) == {old}
    assert world.conditions()["RolledBack"] == ("True", "BackendCrashed")


def test_in_place_instead_of_a_canary_that_finds_no_device() -> None:
    world = update(serve(replicas=1)).canary_unschedulable()
    world.edit(rollout={**world.spec["rollout"], "strategy": "InPlace"})
    assert not world.canaries(), "it would take the device that the new pod needs"
    assert list(world.replicas().values()) == [1]
    world.all_available()
    assert world.conditions()["Ready"] == ("True", "Serving")


# what happens in the middle


def test_a_third_spec_takes_the_canarys_place() -> None:
    world = analysing()
    old, second = world.status["active"]["revision"], world.status["revision"]
    world.edit(source=THIRD)
    assert not world.canaries(), "the second one is not requested any more"
    world.job_succeeds(publish_model(sha256_text("third"), sha256_text("3")))
    (canary,) = world.canaries()
    assert revision(canary) == world.status["revision"] != second
    assert phase(world) == "Verifying"
    assert find_revisions(world) == {old}


@pytest.mark.parametrize("before", [analysing, reject_canary])
def test_a_revert_ends_the_canary_and_its_rejection(before: Callable[[], World]) -> None:
    world = before().edit(source=FIRST)
    assert not world.canaries()
    assert phase(world) is None
    assert world.conditions()["Ready"] == ("True", "Serving")
    assert world.conditions()["RolledBack"][0] == "False"


def test_a_third_spec_during_the_promotion_starts_from_the_last_good_revision() -> None:
    world = analysing().later(seconds=61)
    old = world.status["active"]["revision"]
    world.edit(source=THIRD)
    assert find_revisions(world) == {old}


def test_scaling_concerns_the_serving_pods() -> None:
    world = analysing().edit(replicas=5)
    (stable,) = world.serving_deployments()
    (canary,) = world.canaries()
    assert (stable["spec"]["replicas"], canary["spec"]["replicas"]) == (5, 1)
    assert phase(world) == "Analyzing"


def test_a_pause_keeps_the_canary_where_it_is() -> None:
    world = analysing()
    world.edit(rollout={**world.spec["rollout"], "paused": True}).later(hours=1)
    assert phase(world) == "Analyzing"
    assert len(world.canaries()) == 1
    world.edit(rollout={**world.spec["rollout"], "paused": False})
    assert phase(world) == "Promoting"


def test_a_pause_before_it_starts_holds_it() -> None:
    world = serve()
    world.edit(rollout={**world.spec["rollout"], "paused": True})
    update(world)
    assert phase(world) == "Held"
    assert not world.canaries()
    assert world.conditions()["Stalled"] == ("True", "Suspended")


def test_a_restart_of_the_operator_changes_nothing() -> None:
    for world in (update(serve()), analysing(), analysing().later(seconds=61)):
        before = (world.status, world.replicas(), components(world))
        world.operator_restarts()
        assert (world.status, world.replicas(), components(world)) == before


def test_a_restart_gives_no_requests_before_measurements_are_known() -> None:
    world = update(serve())
    world.complete(world.canaries()[0]["metadata"]["name"])
    world.measurements.clear()
    world.later(hours=1)
    assert phase(world) == "Verifying", "its sidecar may have found that it is slow"
    assert components(world) == [CANARY]


def test_promotion_goes_on_without_its_status() -> None:
    world = analysing()
    before = copy.deepcopy(world.status)
    world.later(seconds=61)
    new = find_revisions(world)
    world.status = before
    world.operator_restarts()
    assert phase(world) == "Promoting"
    assert find_revisions(world) == new, "its pods do not restart twice"


def test_in_place_no_serving_pod_ends_before_the_canary_is_there() -> None:
    world = serve("InPlace")
    before = world.replicas()["resnet-cpu"]
    world.kube.refuses["apply", "Deployment"] = Forbidden("exceeded quota", code=403)
    update(world)
    assert not world.canaries()
    assert world.replicas() == {"resnet-cpu": before}
    world.kube.refuses.clear()
    world.later(minutes=1)
    (canary,) = world.canaries()
    lent = canary["spec"]["replicas"]
    assert lent > 0
    assert world.replicas()["resnet-cpu"] == before - lent


def test_while_an_obstacle_lasts_the_canary_goes_on() -> None:
    world = analysing()
    world.images, images = {}, world.images
    world.settle()
    assert len(world.canaries()) == 1
    world.images = images
    world.settle()
    assert phase(world) == "Analyzing"


# users


@pytest.mark.parametrize("silent", [False, True])
def test_a_user_promotes_it_without_the_rest_of_the_analysis(silent: bool) -> None:
    world = analysing()
    if silent:
        canary_falls_silent(world)
    world.annotate(PROMOTE, world.status["revision"])
    assert phase(world) == "Promoting"
    world.all_available()
    assert world.conditions()["Ready"] == ("True", "Serving")


def test_a_user_promotes_a_rejected_one() -> None:
    world = reject_canary()
    world.annotate(PROMOTE, world.status["revision"])
    assert world.conditions()["RolledBack"][0] == "False"
    assert find_revisions(world) == {world.status["revision"]}


def test_a_user_rejects_it() -> None:
    world = analysing()
    world.annotate(ROLLBACK, world.status["revision"])
    assert not world.canaries()
    assert world.conditions()["RolledBack"] == ("True", "RolledBackByUser")
    world.annotate(ROLLBACK, None)
    assert world.conditions()["RolledBack"][0] == "True", "until the spec changes"


@pytest.mark.parametrize(("hours", "expected"), [(0, "Promoting"), (25, "Verifying")])
def test_recent_revision_needs_no_analysis(hours: int, expected: str) -> None:
    world = analysing().later(seconds=61).all_available().later(hours=hours)
    world.edit(source=FIRST)
    assert phase(world) == expected
    assert bool(world.canaries()) is (expected == "Verifying")
