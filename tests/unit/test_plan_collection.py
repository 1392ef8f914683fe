"""When a store is collected, the Job's task, how it ended, and when none may begin."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from enginewright.manifests.collection_outcome import CollectionOutcome
from enginewright.manifests.store_access import StoreBucket
from enginewright.observed.collections import collection_view
from enginewright.observed.pods import JOB_NAME, pod_view
from enginewright.plan.store.collection import (
    Blocked,
    CollectionFacts,
    CollectionSteps,
    NeededKeys,
    Unreadable,
    collection,
    plan_collection,
)
from enginewright.plan.types import CollectionConfig, Config
from enginewright_contract.collection import MOST_KEPT, Collected, CollectTask
from enginewright_contract.keys import sha256_text
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Finding, StageReport
from enginewright_contract.task import STORE_VARIABLE, TASK_VARIABLE

from tests.support.fake_kube import timestamp
from tests.support.plan_objects import (
    COLLECTED,
    CPU_IMAGE,
    NAMESPACE,
    Json,
    image_facts,
    make_object,
)
from tests.support.plan_world import CONFIG
from tests.support.simulation import beside_proxy

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
KEYS = frozenset(sha256_text(str(number)) for number in range(3))


def config(bucket: StoreBucket | None = None, **gc: Any) -> Config:
    return replace(
        CONFIG,
        store=replace(CONFIG.store, bucket=bucket, gc=CollectionConfig(**gc)),
        openshift=True,
    )


def facts(*jobs: Json, pods: tuple[Json, ...] = (), **changes: Any) -> CollectionFacts:
    gc = changes.pop("gc", {})
    base = CollectionFacts(
        namespace=NAMESPACE,
        config=config(**gc),
        now=NOW,
        since=NOW - timedelta(days=2),
        has_store=True,
        image=image_facts("cpu"),
        jobs=tuple(map(collection_view, jobs)),
        pods=tuple(map(pod_view, pods)),
    )
    return replace(base, **changes)


def job(
    name: str = "collect-1",
    ended: str = "",
    at: datetime = NOW,
    outcome: CollectionOutcome | None = None,
    max_bytes: int | None = None,
) -> Json:
    """Return a Job, which runs unless it has `ended` with Complete or Failed."""
    task = CollectTask(job=name, keep=(), as_of=NOW, min_age_seconds=7200, max_bytes=max_bytes)
    container = {"name": "collect", "env": [{"name": TASK_VARIABLE, "value": task.to_json()}]}
    condition = {"type": ended, "status": "True", "lastTransitionTime": timestamp(at)}
    obj = make_object(
        "Job",
        name,
        NAMESPACE,
        spec={"template": {"spec": {"containers": [container]}}},
        status={"conditions": [condition]} if ended else {},
    )
    obj["metadata"] |= {"uid": name, "creationTimestamp": timestamp(at)}
    if outcome:
        obj["metadata"]["annotations"] = outcome.annotations()
    return obj


def pod(report: StageReport, of: str = "collect-1") -> Json:
    code = 0 if report.ok else 3
    ended = {"exitCode": code, "message": report.termination_message()}
    status = {
        "phase": "Succeeded" if report.ok else "Failed",
        "containerStatuses": [{"name": "collect", "state": {"terminated": ended}}],
    }
    return make_object("Pod", f"{of}-x", NAMESPACE, labels={JOB_NAME: of}, status=status)


SUCCESS = CollectionOutcome(collected=COLLECTED)
FAILURE = CollectionOutcome(failure="the store was not collected: why")


def end_job(name: str = "collect-1", at: datetime = NOW, collected: Collected = COLLECTED) -> Json:
    return job(name, "Complete", at, CollectionOutcome(collected=collected))


def test_the_next_one_is_due_after_the_last_ones_end() -> None:
    plan = plan_collection(facts(end_job(at=NOW - 23 * HOUR)))
    assert (plan.starts, plan.requeue_after) == ("", 3600)
    ended = NOW - 24 * HOUR
    plan = plan_collection(facts(end_job(at=ended)))
    assert plan.starts == f"collect-{NOW.timestamp():.0f}"
    assert plan.delete == (), "its result is shown until there is another"


def test_after_a_failure_one_is_due_in_an_hour() -> None:
    failed = job("collect-2", "Failed", NOW - timedelta(minutes=50), FAILURE)
    plan = plan_collection(facts(end_job(at=NOW - 25 * HOUR), failed))
    assert (plan.starts, plan.requeue_after) == ("", 600)
    assert plan.delete == (), "the last result stays"
    often = plan_collection(facts(failed, gc={"interval": timedelta(minutes=5)}))
    assert often.starts


def test_one_at_a_time() -> None:
    running = job(at=NOW - timedelta(days=9))
    assert plan_collection(facts(running)) == CollectionSteps()
    assert (
        plan_collection(facts(end_job("collect-0", NOW - 99 * HOUR), running)) == CollectionSteps()
    )


def test_the_first_ones_are_spread_over_the_interval_and_a_restart_starts_none() -> None:
    names = [f"team-{number}" for number in range(200)]
    waits = [plan_collection(facts(namespace=name, since=NOW)).requeue_after or 0 for name in names]
    assert all(0 < wait <= 24 * 3600 for wait in waits)
    hours = {int(wait // 3600) for wait in waits}
    assert len(hours) > 20, "of 24"
    later = [
        plan_collection(facts(namespace=name, since=NOW + HOUR, now=NOW + HOUR)).requeue_after or 0
        for name in names
    ]
    same = [
        (wait - 3600) % 86400 == pytest.approx(again % 86400)
        for wait, again in zip(waits, later, strict=True)
    ]
    assert all(same), "the time of the day is the namespace's own"


def test_it_waits_for_a_store_and_for_the_image() -> None:
    assert plan_collection(facts(has_store=False)) == CollectionSteps(exists=False)
    waits = plan_collection(facts(image=None))
    assert (waits.starts, waits.requeue_after) == ("", 60)


EMPTY = COLLECTED.model_copy(update={"artifacts": 5, "bytes_after": 0})


def test_a_bucket_is_collected_until_nothing_is_left_in_it() -> None:
    before = NOW - 25 * HOUR
    assert plan_collection(facts(end_job(at=before), has_store=False)).starts
    for days, goes_on in ((14, True), (16, False)):
        since = CollectionOutcome(collected=EMPTY, empty_since=NOW - timedelta(days=days))
        last = job("collect-1", "Complete", before, since)
        plan = plan_collection(facts(last, has_store=False))
        assert (bool(plan.starts), plan.exists) == (goes_on, goes_on)
    failed = job("collect-2", "Failed", before, FAILURE)
    assert plan_collection(facts(end_job(at=before - HOUR), failed, has_store=False)).starts
    assert not plan_collection(facts(failed, has_store=False)).exists


def test_since_when_there_is_no_artefact_is_carried_on() -> None:
    report = StageReport(stage="collect", ok=True, collected=EMPTY)
    now_empty = job("collect-2", "Complete")
    (ended,) = plan_collection(facts(end_job(), now_empty, pods=(pod(report, "collect-2"),))).ended
    assert ended.outcome.empty_since == NOW
    since = CollectionOutcome(collected=EMPTY, empty_since=NOW - 9 * HOUR)
    earlier = job("collect-1", "Complete", NOW - HOUR, since)
    (ended,) = plan_collection(facts(earlier, now_empty, pods=(pod(report, "collect-2"),))).ended
    assert ended.outcome.empty_since == NOW - 9 * HOUR
    filled = StageReport(stage="collect", ok=True, collected=COLLECTED)
    (ended,) = plan_collection(facts(earlier, now_empty, pods=(pod(filled, "collect-2"),))).ended
    assert ended.outcome.empty_since is None


def test_switching_off_ends_the_job() -> None:
    plan = plan_collection(facts(job(), end_job("collect-0"), gc={"enabled": False}))
    assert [ref.name for ref in plan.delete] == ["collect-1"]
    assert not plan.starts
    assert plan_collection(facts(gc={"enabled": False})) == CollectionSteps(exists=False)


def test_of_earlier_ones_the_last_and_the_last_that_succeeded_stay() -> None:
    jobs = (
        end_job("collect-1", NOW - 9 * HOUR),
        end_job("collect-2", NOW - 8 * HOUR),
        job("collect-3", "Failed", NOW - 7 * HOUR, FAILURE),
        job("collect-4", "Failed", NOW - timedelta(minutes=1), FAILURE),
    )
    plan = plan_collection(facts(*reversed(jobs)))
    assert [ref.name for ref in plan.delete] == ["collect-1", "collect-3"]


def test_its_report_is_recorded() -> None:
    report = StageReport(stage="collect", ok=True, collected=COLLECTED)
    (ended,) = plan_collection(facts(job(ended="Complete"), pods=(pod(report),))).ended
    assert ended.outcome == SUCCESS
    assert ended.event is None
    intent = ended.record()
    assert (intent.name, intent.uid) == ("collect-1", "collect-1")
    assert CollectionOutcome.read(intent.annotations) == SUCCESS


def test_a_proxy_that_goes_on_after_the_stage_keeps_no_collection_from_ending() -> None:
    report = StageReport(stage="collect", ok=True, collected=COLLECTED)
    beside = beside_proxy(pod(report)["status"], "istio-proxy")
    (ended,) = plan_collection(facts(job(), pods=({**pod(report), "status": beside},))).ended
    assert ended.outcome.collected == COLLECTED
    later = NOW + timedelta(hours=4)
    for how in ("", "Failed"):
        over = job(ended=how, outcome=ended.outcome)
        assert plan_collection(facts(over, now=later)).starts == "", "not before the interval"


def test_once_recorded_its_pod_is_not_needed() -> None:
    assert plan_collection(facts(end_job())).ended == ()


@pytest.mark.parametrize(
    ("needed", "limit", "reported"), [(4000, 3999, True), (4000, 4000, False), (4000, None, False)]
)
def test_need_above_the_limit_is_an_event(needed: int, limit: int | None, reported: bool) -> None:
    collected = COLLECTED.model_copy(update={"needed_bytes": needed})
    report = StageReport(stage="collect", ok=True, collected=collected)
    ended = job(ended="Complete", max_bytes=limit)
    (recorded,) = plan_collection(facts(ended, pods=(pod(report),))).ended
    assert recorded.outcome.limit_bytes == limit
    assert (recorded.event is not None) == reported
    if recorded.event:
        assert recorded.event.reason == "StoreOverLimit"
        assert "4.0 kB of the store are needed, and 4.0 kB are allowed" in recorded.event.message


def test_a_failure_is_recorded_with_its_reason() -> None:
    finding = Finding(reason=Reason.STORE_UNAVAILABLE, cause="the bucket does not respond")
    report = StageReport(stage="collect", ok=False, failure=finding)
    (ended,) = plan_collection(facts(job(ended="Failed"), pods=(pod(report),))).ended
    assert ended.outcome.collected is None
    assert ended.event is not None
    assert (ended.event.type, ended.event.reason) == ("Warning", "CollectionFailed")
    assert "not collected: the bucket does not respond" in ended.event.message


@pytest.mark.parametrize("kind", ["Complete", "Failed"])
def test_a_job_without_a_report_has_failed(kind: str) -> None:
    (ended,) = plan_collection(facts(job(ended=kind))).ended
    assert ended.outcome.failure.startswith("the store was not collected: its pod was deleted") == (
        kind == "Complete"
    )
    assert ended.outcome.collected is None


def plan_job(**changes: Any) -> Json:
    needed = changes.pop("needed", NeededKeys(KEYS))
    max_size = changes.pop("max_size", None)
    made_job = collection(facts(**changes), "collect-1", needed, NOW, max_size)
    assert not isinstance(made_job, Blocked)
    return made_job


def task_of(made_job: Json) -> CollectTask:
    task = collection_view(made_job).task
    assert task is not None
    return task


def test_task_has_the_needed_keys_and_the_settings() -> None:
    task = task_of(plan_job())
    assert task.keep == tuple(sorted(key[:16] for key in KEYS))
    assert task.as_of == NOW
    assert (task.max_age_seconds, task.max_bytes, task.dry_run) == (30 * 86400, None, False)
    gc = {"unused_for": None, "max_size": 5, "dry_run": True}
    task = task_of(plan_job(gc=gc))
    assert (task.max_age_seconds, task.max_bytes, task.dry_run) == (None, 5, True)
    assert task_of(plan_job(gc=gc, max_size="1Ki")).max_bytes == 1024, "the namespace's own limit"


def test_the_job_ends_and_is_kept_until_the_next_one() -> None:
    spec = plan_job()["spec"]
    assert spec["activeDeadlineSeconds"] == 4 * 3600
    assert spec["ttlSecondsAfterFinished"] > 2 * 86400
    pod_spec = spec["template"]["spec"]
    (container,) = pod_spec["containers"]
    assert container["image"] == CPU_IMAGE
    assert container["command"] == ["enginewright-runtime", "stage", "collect"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod_spec["imagePullSecrets"] == [{"name": "registry"}]
    assert "runAsUser" not in pod_spec["securityContext"]
    claims = [
        item["persistentVolumeClaim"]
        for item in pod_spec["volumes"]
        if "persistentVolumeClaim" in item
    ]
    assert claims == [{"claimName": "enginewright-store"}]


def test_any_image_collects_where_there_is_none_for_cpus() -> None:
    only_gpu = replace(config(), images={"gpu": "registry.example/gpu:1"})
    spec = plan_job(config=only_gpu)["spec"]["template"]["spec"]
    assert spec["containers"][0]["image"] == "registry.example/gpu:1"


def test_a_bucket_is_reached_as_by_other_jobs() -> None:
    bucket = StoreBucket(uri="az://a/c", secret="keys", account="store")
    spec = plan_job(gc={"bucket": bucket})["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    env = {item["name"]: item["value"] for item in container["env"]}
    assert env[STORE_VARIABLE] == f"az://a/c/{NAMESPACE}"
    assert spec["serviceAccountName"] == "store"
    assert {"secretName": "keys", "optional": True} in [
        item.get("secret") for item in spec["volumes"]
    ]


def block(needed: NeededKeys, max_size: str | None = None) -> str:
    decision = collection(facts(), "collect-1", needed, NOW, max_size)
    assert isinstance(decision, Blocked)
    return decision.message


def test_nothing_begins_while_needs_are_unknown() -> None:
    objects = [
        Unreadable(make_object("InferenceModel", f"m{number}", NAMESPACE), "spec: wrong")
        for number in range(5)
    ]
    message = block(NeededKeys(KEYS, tuple(objects)))
    assert "InferenceModel m0: spec: wrong; InferenceModel m1" in message
    assert "and 2 more; update the CRDs" in message


def test_none_begins_with_more_keys_than_a_task_holds() -> None:
    keys = frozenset(sha256_text(str(number)) for number in range(MOST_KEPT + 1))
    assert "distribute the models over several namespaces" in block(NeededKeys(keys))
    assert (
        len(task_of(plan_job(needed=NeededKeys(frozenset(list(keys)[:MOST_KEPT])))).keep)
        == MOST_KEPT
    )


def test_none_begins_with_a_limit_that_cannot_be_read() -> None:
    message = block(NeededKeys(KEYS), "50 gigabytes")
    assert "enginewright.dev/store-max-size is '50 gigabytes': write a size such as 50Gi" in message
