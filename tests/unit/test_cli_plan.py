"""`enginewright plan` without a cluster: its predictions come true in the world that plans are tested in."""

from typing import Any

import pytest
from enginewright.manifests.engine_job import ENGINE_COMPONENT
from enginewright.manifests.labels import REQUESTED_BY
from enginewright.plan.resolve.resolve import Target, resolve
from enginewright_cli.plan.cluster_state import ClusterState, facts, live_model
from enginewright_cli.plan.forecast import forecast
from enginewright_cli.plan.gather import gather
from enginewright_cli.plan.manifest import Applied
from enginewright_cli.plan.result import (
    ClassPlan,
    Difference,
    Forecast,
    Forecasts,
    PlanStep,
    Refusal,
)
from enginewright_cli.preflight.schema import descriptions
from enginewright_contract.keys import compute_prepared_key
from enginewright_contract.reasons import Reason
from enginewright_contract.task import ENGINE_STAGES, PREPARE_STAGES

from tests.support.plan_objects import (
    DIGEST,
    GPU_IMAGE,
    MODEL,
    NAMESPACE,
    RTX_IMAGE,
    make_object,
    publish_model,
)
from tests.support.plan_world import World

API = "enginewright.dev/v1alpha1"
ENGINE = "InferenceEngine"
SOURCE = {"uri": "https://models.example/resnet.onnx"}
PINNED = {**SOURCE, "sha256": DIGEST}


def manifest(spec: dict[str, Any], name: str = MODEL) -> dict[str, Any]:
    return make_object("InferenceModel", name, NAMESPACE, spec=spec)


def around(world: World, *, exists: bool) -> ClusterState:
    """Return what a cluster like this world would be gathered as."""
    config, store = world.config, world.config.store
    objects: list[dict[str, Any]] = [*world.children(), *world.nodes]
    for device_class in world.classes:
        body = device_class.model_dump(mode="json", by_alias=True, exclude_none=True)
        objects.append({"apiVersion": API, "kind": "AcceleratorClass", **body})
    if exists:
        identity = world.facts().model.metadata
        metadata = {"uid": identity.uid, "generation": identity.generation}
        live = manifest(world.spec)
        live["metadata"] |= metadata
        objects.append({**live, "status": world.status})
    return ClusterState(
        namespace=config.namespace,
        config={
            "images": dict(config.images),
            "imagePullPolicy": config.image_pull_policy,
            "imagePullSecrets": list(config.image_pull_secrets),
            "store": {"claim": store.claim, "size": store.size, "accessMode": store.access_mode},
            "jobs": {"meshInjection": True},  # as in the world
        },
        images=world.images,
        objects=tuple(objects),
    )


def forecast_of(
    world: World, spec: dict[str, Any] | None = None, *, exists: bool = True
) -> Forecast:
    """Return what applying a spec, the world's own if none is given, would do."""
    cluster = around(world, exists=exists)
    applied = Applied(manifest(world.spec if spec is None else spec), ())
    return forecast_in(cluster, applied)


def forecast_in(cluster: ClusterState, applied: Applied) -> Forecast:
    live = live_model(cluster, NAMESPACE, MODEL)
    return forecast(facts(applied, (), cluster, NAMESPACE), live, nodes_known=True)


def steps(plan: Forecast, kind: str) -> list[PlanStep]:
    return [step for step in plan.steps if step.kind == kind]


def actions(plan: Forecast) -> list[str]:
    return [f"{step.action} {step.kind}" for step in plan.steps]


def key_of(world: World) -> str:
    target = resolve(world.facts())
    assert isinstance(target, Target)
    return compute_prepared_key(DIGEST, target.recipe, {})


def serving(**spec: Any) -> World:
    """Return a world in which the model serves."""
    world = World(source=PINNED, **spec).settle()
    return world.job_succeeds(publish_model(key_of(world))).all_available()


def test_a_new_model_and_the_jobs_that_are_then_made() -> None:
    world = World(replicas=2)
    plan = forecast_of(world, exists=False)
    assert (plan.exists, plan.verdict) == (False, "changes")
    assert actions(plan) == ["make PersistentVolumeClaim", "make Job", "make Deployment"]
    (job,) = steps(plan, "Job")
    assert (job.stages, job.key) == (PREPARE_STAGES, None)
    assert (plan.backend, plan.policy) == ("cpu", "Forbid")
    assert [
        (device_class.name, device_class.replicas, device_class.trouble)
        for device_class in plan.classes
    ] == [("cpu", 2, "")]
    assert plan.revision is None
    assert steps(plan, "Deployment")[0].message == "2 pods"
    world.settle()
    assert world.job()["metadata"]["name"] == job.name
    world.job_succeeds()
    assert world.the("Deployment")["metadata"]["name"] == steps(plan, "Deployment")[0].name


@pytest.mark.parametrize(
    "data",
    [
        {"parity": {"samples": {"uri": "https://models.example/samples.npz"}}},
        {"processing": {"before": [{"uri": "https://models.example/tokenizer.onnx"}]}},
    ],
)
def test_data_that_may_change_leaves_the_key_open(data: dict[str, Any]) -> None:
    plan = forecast_of(World(source=PINNED, **data), exists=False)
    assert steps(plan, "Job")[0].key is None
    assert plan.revision is None


def test_nothing_changes_where_all_of_it_serves() -> None:
    plan = forecast_of(serving())
    assert plan.verdict == "unchanged"
    assert actions(plan) == ["reuse Prepared", "keep Deployment"]
    assert (plan.spec, plan.rollout) == ((), ())
    assert plan.revision == plan.serving


def test_more_replicas_are_no_new_revision() -> None:
    world = serving()
    plan = forecast_of(world, {**world.spec, "replicas": 3})
    assert plan.verdict == "changes"
    assert actions(plan) == ["reuse Prepared", "change Deployment"]
    assert steps(plan, "Deployment")[0].message == "1 → 3 pods"
    assert plan.revision == plan.serving
    assert [difference.model_dump() for difference in plan.spec] == [
        {"field": "spec.replicas", "before": "1", "after": "3"}
    ]


def test_another_opset_is_another_prepared_model_and_revision() -> None:
    world = serving()
    rollout = {**world.spec["rollout"], "strategy": "Recreate"}
    plan = forecast_of(world, {**world.spec, "targetOpset": 18, "rollout": rollout})
    assert actions(plan) == ["make Job", "change Deployment"]
    assert {difference.field for difference in plan.spec} == {
        "spec.targetOpset",
        "spec.rollout.strategy",
    }
    assert {difference.field for difference in plan.rollout} == {"prepared model"}
    assert (plan.serving, plan.strategy) == (world.status["serving"]["revision"], "Recreate")
    (job,) = steps(plan, "Job")
    world.edit(targetOpset=18, rollout={"strategy": "Recreate"})
    assert world.job()["metadata"]["name"] == job.name
    world.job_succeeds(publish_model(str(job.key)))
    assert world.status["revision"] == plan.revision
    assert steps(plan, "Deployment")[0].message == (f"revision {plan.serving} → {plan.revision}")


def test_a_new_revision_is_tried_beside_the_serving_one() -> None:
    world = serving(rollout={"canary": {"replicas": 1}})
    plan = forecast_of(world, {**world.spec, "targetOpset": 18})
    assert actions(plan) == ["make Job", "keep Deployment", "make Deployment"]
    assert "to replace the serving ones once they pass" in steps(plan, "Deployment")[1].message


def test_paused_rollout_holds() -> None:
    world = serving()
    plan = forecast_of(world, {**world.spec, "targetOpset": 18, "rollout": {"paused": True}})
    assert actions(plan) == ["make Job", "keep Deployment"]
    assert "paused keeps" in steps(plan, "Deployment")[0].message
    new = World(source=PINNED, rollout={"paused": True})
    assert actions(forecast_of(new, exists=False))[-1] == "wait Deployment"


def test_a_job_that_runs_is_waited_for() -> None:
    world = World().settle().stage_runs("golden")
    plan = forecast_of(world)
    (job,) = steps(plan, "Job")
    assert (job.action, job.message) == ("wait", "golden (4/6)")
    assert plan.verdict == "changes"
    edited = forecast_of(world, {**world.spec, "targetOpset": 18})
    assert "delete Job" in actions(edited)


def test_a_failure_that_lasts_is_reported_again() -> None:
    world = World().settle().job_fails(Reason.INVALID_MODEL, message="no graph")
    plan = forecast_of(world)
    assert plan.verdict == "refused"
    assert [(refusal.reason, refusal.message) for refusal in plan.refusals] == [
        ("InvalidModel", "no graph")
    ]
    assert actions(plan)[-1] == "refuse Job"
    assert forecast_of(world, {**world.spec, "targetOpset": 18}).verdict == "changes"


def test_an_engine_on_a_device_is_looked_for_first() -> None:
    world = World(source=PINNED).has_gpus(aheadOfTime=False)
    plan = forecast_of(world, exists=False)
    assert actions(plan)[2:] == [
        "make InferenceEngine",
        "make Job",
        "make Job",
        "make Deployment",
    ]
    (engine,) = steps(plan, "InferenceEngine")
    _, lookup, build = steps(plan, "Job")
    assert (lookup.stages, build.stages) == (("lookup",), ENGINE_STAGES)
    assert build.message.endswith("requests one nvidia.com/gpu")
    (prepare, *_) = steps(plan, "Job")
    world.settle().job_succeeds(publish_model(str(prepare.key)))
    made = world.the("InferenceEngine")
    assert (made["metadata"]["name"], made["spec"]["key"]) == (engine.name, engine.key)
    world.engine_built()
    assert world.status["revision"] == plan.revision


def test_an_engine_ahead_of_time_takes_no_device_and_is_made_once() -> None:
    world = World(source=PINNED).has_gpus()
    first = forecast_of(world, exists=False)
    job = steps(first, "Job")[-1]
    assert (job.stages, job.message) == (ENGINE_STAGES, "requests no device")
    world.settle().job_succeeds(publish_model(str(steps(first, "Job")[0].key)))
    assert [step.action for step in steps(forecast_of(world), "InferenceEngine")] == ["wait"]
    world.engine_built()
    other = forecast_of(world, {**world.spec, "replicas": 4})
    assert [step.action for step in steps(other, "InferenceEngine")] == ["reuse"]


def with_engine_wanted() -> World:
    world = World(source=PINNED).has_gpus()
    (prepare, *_) = steps(forecast_of(world, exists=False), "Job")
    return world.settle().job_succeeds(publish_model(str(prepare.key)))


async def forecast_of_edit(world: World, build: dict[str, Any]) -> Forecast:
    """Forecast from what is gathered from the API server."""
    applied = Applied(manifest({**world.spec, "build": build}), ())
    gathered = await gather(world.kube, [(NAMESPACE, applied)])
    cluster = around(world, exists=False)
    rest = [
        object_ for object_ in cluster.objects if object_["kind"] in {"AcceleratorClass", "Node"}
    ]
    cluster = cluster.model_copy(update={"objects": (*rest, *gathered.objects)})
    return forecast_in(cluster, applied)


@pytest.mark.parametrize(("runs", "action"), [(True, "wait"), (False, "change")])
async def test_a_build_that_runs_goes_on_whatever_is_edited(runs: bool, action: str) -> None:
    world = with_engine_wanted()
    if runs:
        world.stage_runs("build", ENGINE_COMPONENT)
    plan = await forecast_of_edit(world, {"timeout": "2h"})
    assert [step.action for step in steps(plan, ENGINE)] == [action]
    world.edit(build={"timeout": "2h"})
    timeout = world.the(ENGINE)["spec"]["build"]["timeoutSeconds"]
    assert timeout == (3600 if runs else 7200)


@pytest.mark.parametrize(
    ("status", "action"),
    [("names it", "wait"), ("names another", "change"), ("deleted", "change")],
)
async def test_shared_engine_is_built_as_its_requester_says(status: str, action: str) -> None:
    world = with_engine_wanted()
    engine = world.the(ENGINE)
    engine["metadata"]["annotations"][REQUESTED_BY] = "other"
    if status != "deleted":
        name = engine["metadata"]["name"] if status == "names it" else "another-engine"
        other = manifest({"source": PINNED}, "other")
        world.kube.put({**other, "status": {"engines": [{"class": "l4", "name": name}]}})
    plan = await forecast_of_edit(world, {"timeout": "2h"})
    assert [step.action for step in steps(plan, ENGINE)] == [action]


def test_without_a_digest_engines_have_no_names_yet() -> None:
    plan = forecast_of(World().has_gpus(), exists=False)
    (engine,) = steps(plan, "InferenceEngine")
    assert (engine.name, engine.key, engine.class_name) == (None, None, "l4")
    assert plan.revision is None


def test_an_engine_that_breaks_the_promise_is_refused() -> None:
    world = World(source=PINNED).has_gpus().settle()
    world.job_succeeds(publish_model(key_of(world))).engine_built(
        accelerated=100, elsewhere=["a (If)"]
    )
    plan = forecast_of(world)
    assert plan.verdict == "refused"
    assert plan.refusals[0].reason == "NodeFallback"
    assert "a (If)" in plan.refusals[0].message
    assert not steps(plan, "Deployment")
    fallback = {"policy": "Budget", "maxNodeShare": "5%"}
    assert forecast_of(world, {**world.spec, "fallback": fallback}).verdict == "changes"


def test_an_engine_that_cannot_be_built_is_refused() -> None:
    world = World(source=PINNED).has_gpus().settle()
    world.job_succeeds(publish_model(key_of(world))).engine_fails(Reason.BUILD_FAILED)
    plan = forecast_of(world)
    assert (plan.verdict, plan.refusals[0].reason) == ("refused", "BuildFailed")
    assert steps(plan, "InferenceEngine")[0].action == "refuse"


@pytest.mark.parametrize(
    ("interim", "gpus", "action", "wording"),
    [
        ("CPU", {}, "make", "serves on backend cpu until its engine is built"),
        ("CUDA", {"aheadOfTime": False}, "wait", "once the build for l4 has its device"),
    ],
)
def test_interim_is_a_step(interim: str, gpus: dict[str, Any], action: str, wording: str) -> None:
    world = World(source=PINNED, build={"interim": interim}).has_gpus(**gpus)
    deployments = steps(forecast_of(world, exists=False), "Deployment")
    assert [(deployment.action, deployment.class_name) for deployment in deployments] == [
        (action, "l4"),
        ("make", "l4"),
    ]
    assert wording in deployments[0].message
    world = World(source=PINNED).has_gpus(**gpus)
    assert len(steps(forecast_of(world, exists=False), "Deployment")) == 1


def test_backends_are_compared_when_the_engine_is_built_and_the_chosen_one_is_kept() -> None:
    spec = {"backends": ["tensorrt-rtx", "cpu"], "build": {"choose": "Fastest"}}
    world = World(source=PINNED, **spec).has_gpus(
        aheadOfTime=False, backends=["tensorrt-rtx", "cpu"]
    )
    rtx = world.images[RTX_IMAGE]
    backends = {**rtx.backends, "cpu": "1.31.1"}
    world.images = {**world.images, RTX_IMAGE: rtx.model_copy(update={"backends": backends})}
    assert steps(forecast_of(world, exists=False), "Job")[-1].message.endswith(
        "; compares it with cpu"
    )
    measured = [
        {"backend": "tensorrt-rtx", "p50Microseconds": 300},
        {"backend": "cpu", "p50Microseconds": 200},
    ]
    world.settle().job_succeeds().engine_built(backends=measured).all_available()
    assert forecast_of(world).verdict == "unchanged"


@pytest.mark.parametrize(
    ("spec", "reason", "wording"),
    [
        ({"accelerators": [{"class": "l5"}]}, "UnknownAcceleratorClass", "the cluster has cpu"),
        ({"backends": ["tensorrt"]}, "BackendNotAllowed", "does not run on the class cpu"),
        ({"precision": "BF16", "backends": ["cpu"]}, "PrecisionUnsupported", "cannot run BF16"),
    ],
)
def test_unresolvable_spec_is_refused(spec: dict[str, Any], reason: str, wording: str) -> None:
    plan = forecast_of(World(**spec), exists=False)
    assert plan.verdict == "refused"
    assert (plan.refusals[0].reason, plan.refusals[0].lasting) == (reason, True)
    assert wording in plan.refusals[0].message
    assert plan.steps == ()


@pytest.mark.parametrize("lacks", [{"ResourceClaimTemplate"}, set()])
async def test_a_cluster_without_device_claims_is_noticed(lacks: set[str]) -> None:
    world = serving()
    world.kube.lacks = lacks
    gathered = await gather(world.kube, [(NAMESPACE, Applied(manifest(world.spec), ()))])
    assert gathered.has_device_claims == (not lacks)


@pytest.mark.parametrize(("lacks", "verdict"), [({"HTTPRoute"}, "refused"), (set(), "unchanged")])
async def test_route_needs_the_gateway_api(lacks: set[str], verdict: str) -> None:
    world = serving()
    world.kube.lacks = lacks
    spec = {**world.spec, "serving": {"route": {"parentRefs": [{"name": "public"}]}}}
    applied = Applied(manifest(spec), ())
    gathered = await gather(world.kube, [(NAMESPACE, applied)])
    cluster = around(world, exists=True).model_copy(update={"has_routes": gathered.has_routes})
    plan = forecast_in(cluster, applied)
    assert plan.verdict == verdict
    reasons = [refusal.reason for refusal in plan.refusals]
    assert reasons == (["GatewayAPIMissing"] if lacks else [])


def test_unprobed_image_is_waited_for() -> None:
    world = World()
    world.images = {}
    plan = forecast_of(world, exists=False)
    assert (plan.verdict, plan.refusals[0].reason) == ("waits", "ProbingImage")
    assert not plan.refusals[0].lasting


def test_a_class_without_nodes_is_reported() -> None:
    world = World(source=PINNED).has_gpus()
    (accelerator,) = forecast_of(world, exists=False).classes
    assert (accelerator.resource, accelerator.compute_capability) == ("nvidia.com/gpu", "8.9")
    assert accelerator.trouble.startswith("no node has the labels of spec.nodeSelector")


def test_a_class_that_serves_no_more_is_deleted_once_another_does() -> None:
    world = serving()
    other = world.classes[0].model_copy(
        update={"metadata": world.classes[0].metadata.model_copy(update={"name": "big"})}
    )
    world.classes.append(other)
    plan = forecast_of(world, {**world.spec, "accelerators": [{"class": "big"}]})
    assert actions(plan)[-2:] == ["make Deployment", "delete Deployment"]


def test_an_engine_of_tensorrt_is_whole_or_none_and_the_plan_says_so() -> None:
    """Budget or not: ONNX Runtime's TensorRT provider loads no engine of a part."""
    budget = {"policy": "Budget", "maxNodeShare": "10%"}
    world = World(source=PINNED, fallback=budget).has_gpus(aheadOfTime=False, backends=["tensorrt"])
    world.images[GPU_IMAGE] = world.images[GPU_IMAGE].model_copy(
        update={"backends": {"tensorrt": "10.13.3"}}
    )
    (step,) = [
        plan_step
        for plan_step in forecast_of(world, exists=False).steps
        if plan_step.kind == ENGINE
    ]
    assert step.message.startswith(
        "must contain the whole model, whatever spec.fallback allows: ONNX"
    )
    rtx = World(source=PINNED, fallback=budget).has_gpus()
    (step,) = [
        plan_step for plan_step in forecast_of(rtx, exists=False).steps if plan_step.kind == ENGINE
    ]
    assert step.message == ""


def test_every_field_of_the_json_is_described() -> None:
    for model in (Forecast, Forecasts, PlanStep, ClassPlan, Refusal, Difference):
        assert descriptions(model).keys() == model.model_fields.keys()


def test_a_refresh_that_an_apply_would_begin_is_foreseen() -> None:
    world = serving()
    edited = manifest(world.spec)
    edited["metadata"]["annotations"] = {"enginewright.dev/refresh": "1"}
    plan = forecast_in(around(world, exists=True), Applied(edited, ()))
    (job,) = steps(plan, "Job")
    assert (plan.verdict, job.action) == ("changes", "make")
    assert job.message.startswith("fetches the sources again while the old revision serves")
    world.annotate("enginewright.dev/refresh", "1")
    assert world.job()["metadata"]["name"] == job.name
