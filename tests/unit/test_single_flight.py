"""One prepare Job for all models that are to be prepared alike, whichever leads and however it ends."""

from datetime import timedelta
from typing import Any

import pytest
from enginewright.controller.routing import ModelKey
from enginewright.kube.errors import Transient
from enginewright.manifests.field_managers import FIELD_MANAGER
from enginewright.manifests.labels import SHARED_PREPARATION
from enginewright_contract.reasons import Reason

from tests.support.many_models import SOURCE, ManyModels
from tests.support.plan_objects import NAMESPACE, SECOND, Json, image_facts, publish_model
from tests.support.plan_world import serving

FOLLOWS = ("False", "SharedPreparation")
NAMES = ("a", "b", "c")


@pytest.fixture
def world() -> ManyModels:
    return ManyModels().apply(*NAMES)


def job(world: ManyModels) -> str:
    (result,) = world.running_jobs()
    return str(result["metadata"]["name"])


# event: Jobs | several models of a namespace are to be prepared alike | what each serves | Ready `SharedPreparation`,
#   the model whose Job prepares them all
def test_one_prepares_and_all_are_prepared(world: ManyModels) -> None:
    assert world.leading() == ["a"]
    assert [world.ready(name) for name in NAMES] == [("False", "Preparing"), FOLLOWS, FOLLOWS]
    assert world.message("b") == ("preparing the model: InferenceModel a prepares the same model")
    world.job_succeeds()
    assert world.list_prepared() == list(NAMES)
    assert len(world.prepare_jobs()) == 1
    prepared = [world.status(name)["prepared"] for name in NAMES]
    assert prepared[0] == prepared[1] == prepared[2]
    assert all("preparation" not in world.status(name) for name in NAMES)
    sources = [world.status(name)["source"] for name in NAMES]
    assert sources[0]["pins"] == sources[1]["pins"] == sources[2]["pins"]
    assert [entry["metadata"]["name"] for entry in world.all("Deployment")] == [
        "a-cpu",
        "b-cpu",
        "c-cpu",
    ]


def test_a_hundred_models_cost_one_job_and_few_requests() -> None:
    names = [f"m{number:03}" for number in range(100)]
    world = ManyModels()
    world.apply(*names)
    assert len(world.prepare_jobs()) == 1
    # the claim, the Job and a status for each model
    assert world.kube.calls["apply"] == 2
    assert world.kube.calls["apply_status"] == len(names)
    world.kube.calls.clear()
    for stage in ("fetch", "validate", "convert", "golden", "quantize", "publish"):
        world.stage_runs(stage)
    assert world.kube.calls["apply_status"] == 5, "no model but the leader says which stage runs"
    world.passes.clear()
    world.job_succeeds()
    assert world.list_prepared() == names
    assert len(world.prepare_jobs()) == 1
    assert world.kube.calls["get"] == world.kube.calls["list"] == 0


def test_a_single_model_is_as_ever() -> None:
    world = ManyModels().apply("a")
    writes = world.kube.writes
    assert writes == 3, "claim, Job and status"
    assert world.ready("a") == ("False", "Preparing")
    world.resync()
    assert world.kube.writes == writes


@pytest.mark.parametrize(
    "spec",
    [
        {"source": {"uri": SOURCE, "secretRef": {"name": "keys"}}},
        {"source": {"uri": f"{SOURCE}?another"}},
        {"source": {"uri": SOURCE, "sha256": "a" * 64}},
        {"build": {"timeout": "2h"}},
        {"build": {"resources": {"limits": {"memory": "8Gi"}}}},
        {"build": {"podTemplate": {"nodeSelector": {"pool": "jobs"}}}},
        {"build": {"podTemplate": {"labels": {"kueue.x-k8s.io/queue-name": "team"}}}},
        {"podTemplate": {"serviceAccountName": "reader"}},
        {"podTemplate": {"labels": {"azure.workload.identity/use": "true"}}},
        {"parity": {"rtol": "0.1"}},
    ],
)
def test_jobs_that_may_end_differently_are_not_shared(spec: Json) -> None:
    world = ManyModels().apply("a").apply("b", **spec)
    assert world.leading() == ["a", "b"]
    assert "SharedPreparation" not in world.ready("b")


@pytest.mark.parametrize(
    "spec",
    [{"replicas": 3}, {"podTemplate": {"labels": {"team": "b"}}}, {"serving": {"maxQueue": 9}}],
)
def test_models_that_only_serve_differently_share_one(spec: Json) -> None:
    world = ManyModels().apply("a").apply("b", **spec)
    assert world.leading() == ["a"]
    world.job_succeeds()
    assert world.list_prepared() == ["a", "b"]


# what ends the lead


def test_a_permanent_failure_is_shared(world: ManyModels) -> None:
    world.job_fails(Reason.INVALID_MODEL, message="not a model")
    assert [world.ready(name) for name in NAMES] == [("False", "InvalidModel")] * 3
    assert len({world.message(name) for name in NAMES}) == 1
    assert "not a model" in world.message("c")
    failures = [world.status(name)["preparation"]["failure"] for name in NAMES]
    assert failures[0] == failures[1] == failures[2]
    assert failures[0]["lasting"]
    assert len(world.prepare_jobs()) == 1
    world.restart().after(days=1)
    world.jobs_are_cleaned_away().resync()
    assert world.prepare_jobs() == [], "it is not repeated"
    # the usual means: each on its own
    world.apply("b", build={"timeout": "2h"})
    assert world.leading() == ["b"]
    world.job_succeeds()
    assert world.list_prepared() == ["b"]
    world.delete("c").apply("c")
    assert world.leading() == ["c"], "a model that is applied again is tried again"


def test_a_transient_failure_is_retried_by_the_leader_alone(world: ManyModels) -> None:
    world.job_fails(Reason.SOURCE_UNREACHABLE, "fetch", "no answer")
    assert world.leading() == []
    assert world.ready("a") == ("False", "SourceUnreachable")
    assert [world.ready(item) for item in "bc"] == [FOLLOWS, FOLLOWS]
    assert "its last attempt failed: no answer" in world.message("b")
    world.restart().settle()
    assert world.leading() == []
    world.after(minutes=1)
    assert world.leading() == ["a"]
    world.job_succeeds()
    assert world.list_prepared() == list(NAMES)


@pytest.mark.parametrize("event", ["deleted", "edited", "being deleted"])
def test_the_next_one_takes_over_at_once(world: ManyModels, event: str) -> None:
    match event:
        case "deleted":
            world.delete("a")
        case "edited":
            world.apply("a", source={"uri": "https://models.example/other.onnx"})
        case _:
            world.model("a")["metadata"]["deletionTimestamp"] = world.at()
            world.kube.count_change(world.model("a"))
            world.remove("Job", job(world))
            world.settle()
    assert "b" in world.leading()
    assert world.ready("c") == FOLLOWS
    assert "InferenceModel b prepares" in world.message("c")
    world.job_succeeds(of=next(item for item in map(_name, world.running_jobs()) if item[0] == "b"))
    assert {"b", "c"} <= set(world.list_prepared())


def _name(obj: Json) -> str:
    return str(obj["metadata"]["name"])


def test_the_next_one_takes_over_while_a_leader_waits_for_its_retry(world: ManyModels) -> None:
    world.job_fails(Reason.SOURCE_UNREACHABLE, "fetch")
    world.delete("a")
    assert world.leading() == ["b"]


def test_suspended_job_holds_up_no_other(world: ManyModels) -> None:
    first = world.job()
    first["spec"]["suspend"] = True
    world.kube.count_change(first)
    world.settle()
    assert world.leading() == ["a", "b"]
    world.job_succeeds(of=next(item for item in map(_name, world.running_jobs()) if item[0] == "b"))
    assert world.list_prepared() == ["b", "c"]


def test_a_job_in_a_queue_keeps_its_place() -> None:
    template = {"labels": {"kueue.x-k8s.io/queue-name": "team"}}
    world = ManyModels().apply(*NAMES, build={"podTemplate": template})
    first = world.job()
    first["spec"]["suspend"] = True
    world.kube.count_change(first)
    world.settle()
    assert world.leading() == ["a"]
    assert world.ready("a") == ("False", "Queued")
    assert world.ready("b") == FOLLOWS


def test_leader_with_a_refused_job_holds_up_no_other() -> None:
    world = ManyModels().refuse_jobs_of("a")
    for name in ("a", "b"):
        world.put(name)
    world.settle()
    assert world.leading() == ["b"]
    assert world.ready("a") == FOLLOWS
    world.job_succeeds()
    assert world.list_prepared() == ["a", "b"]


# at the same moment, and after a restart


def test_two_that_are_planned_at_the_same_moment_make_one_job() -> None:
    """The second one is planned while the API server creates the first one's Job."""
    world = ManyModels()
    for name in ("a", "b"):
        world.put(name)
    world.watch()

    def meanwhile(obj: Json) -> None:
        if obj["kind"] == "Job":
            world.kube.rewrite = lambda _obj: None
            world.reconcile(ModelKey(NAMESPACE, "b"))

    world.kube.rewrite = meanwhile
    world.reconcile(ModelKey(NAMESPACE, "a"))
    assert world.ready("b") == FOLLOWS
    assert world.leading() == ["a"]
    world.settle().job_succeeds()
    assert world.list_prepared() == ["a", "b"]


def test_possibly_created_job_holds_others_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The API server creates it, and its response is lost."""
    world = ManyModels()
    for name in ("a", "b"):
        world.put(name)
    world.watch()
    apply = world.kube.apply

    async def lose(obj: Json, *, force: bool = True, manager: str = FIELD_MANAGER) -> Json:
        stored = await apply(obj, force=force, manager=manager)
        if obj["kind"] == "Job":
            raise Transient("timed out", code=504)
        return stored

    with monkeypatch.context() as patch:
        patch.setattr(world.kube, "apply", lose)
        world.reconcile(ModelKey(NAMESPACE, "a"))
    world.reconcile(ModelKey(NAMESPACE, "b"))
    world.settle()
    assert world.leading() == ["a"]
    assert len(world.prepare_jobs()) == 1


def test_failing_writes_hold_others_back_for_minutes_only() -> None:
    late = Transient("the webhook does not answer", code=500)
    world = ManyModels().refuse_jobs_of("a", late)
    for name in ("a", "b"):
        world.put(name)
    world.watch()
    for minutes in (0, 1, 6):
        world.now += timedelta(minutes=minutes)
        world.reconcile(ModelKey(NAMESPACE, "a"))
        world.reconcile(ModelKey(NAMESPACE, "b"))
        assert world.leading() == ([] if minutes < 6 else ["b"])


@pytest.mark.parametrize("killed_after", range(1, 12))
def test_wherever_the_operator_is_killed_there_is_one_job(killed_after: int) -> None:
    world = ManyModels()
    for name in NAMES:
        world.put(name)
    world.kube.refused_after = killed_after
    world.settle()
    world.kube.refused_after = None
    world.errors.clear()
    world.restart().settle()
    assert len(world.leading()) == 1
    world.job_succeeds()
    assert world.list_prepared() == list(NAMES)
    assert len(world.prepare_jobs()) == 1


def test_a_job_that_no_status_names_yet_leads() -> None:
    """The operator was killed between creating a Job and recording it, and others are planned first."""
    world = ManyModels().apply("b", "c")
    assert world.leading() == ["b"]
    world.model("b")["status"] = {}
    world.kube.count_change(world.model("b"))
    world.put("a")
    world.restart().settle()
    assert world.leading() == ["b"]
    world.job_succeeds()
    assert world.list_prepared() == ["a", "b", "c"]


def test_job_that_ended_unseen_is_shared(
    world: ManyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that follow are planned before the leader has read its Job."""
    name = world.job()["metadata"]["name"]
    with monkeypatch.context() as patch:
        patch.setattr(world, "pass_once", lambda: False)
        world.job_succeeds()
    world.restart()
    for item in ("c", "b"):
        world.reconcile(ModelKey(NAMESPACE, item))
    assert len(world.prepare_jobs()) == 1
    world.settle()
    assert world.list_prepared() == list(NAMES)
    assert [_name(prepare_job) for prepare_job in world.prepare_jobs()] == [name]


def test_a_leader_that_is_not_read_any_more_is_waited_for_only_so_long(world: ManyModels) -> None:
    """Such as one of another version: its Job ends, and its status never says so."""
    world.model("a")["spec"]["replicas"] = "many"
    world.kube.count_change(world.model("a"))
    world.job_succeeds()
    assert world.list_prepared() == []
    world.after(minutes=4)
    assert world.leading() == []
    world.after(minutes=2)
    assert world.leading() == ["b"]
    world.job_succeeds()
    assert world.list_prepared() == ["b", "c"]


# content that changes


def test_a_model_applied_later_reads_the_source_again(world: ManyModels) -> None:
    world.stage_runs("validate")
    world.apply("d", "e")
    assert world.leading() == ["a"]
    assert "read again afterwards" in world.message("d")
    world.job_succeeds()
    assert world.list_prepared() == ["a", "b", "c"]
    assert world.leading() == ["d"]
    assert "InferenceModel d prepares the same model" in world.message("e")
    world.job_succeeds(SECOND)
    keys = {item: world.status(item)["prepared"]["key"][0] for item in ("a", "c", "d", "e")}
    assert keys == {"a": "a", "c": "a", "d": "b", "e": "b"}


def test_content_known_by_its_digest_is_taken_over_at_any_time() -> None:
    source = {"uri": SOURCE, "sha256": "a" * 64}
    world = ManyModels().apply("a", source=source).stage_runs("quantize")
    world.apply("b", source=source).job_succeeds()
    assert world.list_prepared() == ["a", "b"]
    assert len(world.prepare_jobs()) == 1


def test_samples_without_a_digest_may_change_too() -> None:
    spec: dict[str, Any] = {
        "source": {"uri": SOURCE, "sha256": "a" * 64},
        "parity": {"samples": {"uri": "https://models.example/golden.npz"}},
    }
    world = ManyModels().apply("a", **spec).stage_runs("quantize")
    world.apply("b", **spec).job_succeeds()
    assert world.list_prepared() == ["a"]
    assert world.leading() == ["b"]


def test_a_failure_from_before_is_not_shared(world: ManyModels) -> None:
    world.stage_runs("validate")
    world.apply("d")
    world.job_fails(Reason.INVALID_MODEL)
    assert world.leading() == ["d"], "the source may be another by now"
    assert world.ready("c") == ("False", "InvalidModel")


def test_one_that_waits_follows_the_retry_which_reads_again(world: ManyModels) -> None:
    world.stage_runs("validate")
    world.apply("d")
    world.job_fails(Reason.STORE_UNAVAILABLE, "validate")
    world.after(minutes=1)
    assert world.leading() == ["a"]
    world.job_succeeds()
    assert world.list_prepared() == ["a", "b", "c", "d"]


def test_rebuild_of_a_serving_model_waits_for_no_other(world: ManyModels) -> None:
    world.job_succeeds()
    assert world.list_prepared() == list(NAMES)
    world.all_available().after(hours=1)
    world.rolling(0).new_pod_fails(Reason.ARTIFACT_MISSING, "fetch-artifact")
    assert world.leading() == list(NAMES)
    for name in [_name(running_job) for running_job in world.running_jobs()]:
        world.job_succeeds(publish_model(), of=name)
    assert world.list_prepared() == list(NAMES)
    assert world.leading() == []


@pytest.mark.parametrize("event", ["deleted", "unreadable", "refused"])
def test_untaken_turn_holds_up_no_other(event: str) -> None:
    """A newer model lets it go first, before what happens to it is known."""
    world = ManyModels().apply("a", "b")
    world.put("d")
    world.remove("InferenceModel", "a")
    world.watch()
    world.reconcile(ModelKey(NAMESPACE, "d"))
    assert "InferenceModel b prepares" in world.message("d")
    match event:
        case "deleted":
            world.remove("InferenceModel", "b")
        case "unreadable":
            world.model("b")["spec"]["replicas"] = "many"
            world.kube.count_change(world.model("b"))
        case _:
            world.refuse_jobs_of("b")
    world.settle()
    assert world.leading() == ["d"]


def test_paused_leader_gives_way() -> None:
    world = serving()
    world.new_runtime_image(like=image_facts("cpu", "1.32.0"))
    assert world.status["preparation"]["sharedHash"]
    world.job_fails(Reason.SOURCE_UNREACHABLE, "fetch")
    world.edit(rollout={"paused": True})
    assert world.conditions()["Ready"][1] == "Serving"
    assert world.status["images"]["reason"] == "Suspended"
    assert "sharedHash" not in world.status.get("preparation", {}), "no other waits for its retry"
    world.edit(rollout=None).later(minutes=1)
    shared = world.job()["metadata"]["annotations"][SHARED_PREPARATION]
    assert world.status["preparation"]["sharedHash"] == shared


def test_a_new_model_follows_the_one_that_took_over(world: ManyModels) -> None:
    first = world.job()
    first["spec"]["suspend"] = True
    world.kube.count_change(first)
    world.apply("d").settle()
    assert world.leading() == ["a", "b"]
    assert "InferenceModel b prepares" in world.message("d")
