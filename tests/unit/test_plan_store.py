"""A store in a bucket: which pods reach it, with which identity, and that nothing changes for claims."""

import re
from dataclasses import replace
from typing import Any, Final

import pytest
from enginewright.manifests.snapshot import Snapshot
from enginewright.manifests.store_access import StoreAccess, StoreBucket
from enginewright.plan.types import StoreConfig
from enginewright_contract.reasons import Reason
from enginewright_contract.task import (
    ENGINE_STAGES,
    PREPARE_STAGES,
    REFUSED_NETWORKS_VARIABLE,
    TASK_VARIABLE,
    PrepareTask,
)
from typing_extensions import override

from tests.support.plan_objects import NAMESPACE, Json
from tests.support.plan_world import CONFIG, World, serving

URI: Final = f"s3://models/team/{NAMESPACE}"
VARIABLE: Final = {"name": "ENGINEWRIGHT_STORE", "value": URI}
MOUNT: Final = {"name": "store", "mountPath": "/store-credentials", "readOnly": True}
VOLUME: Final = {"name": "store", "secret": {"secretName": "store-keys", "optional": True}}
SECRET: Final = StoreBucket(uri="s3://models/team/", secret="store-keys")
PINNED: Final = "de774aaefb"  # computed before buckets existed
IDENTITY: Final = StoreBucket(uri="az://models", account="store-user")


def of_bucket(world: World, bucket: StoreBucket) -> World:
    world.config = replace(world.config, store=replace(world.config.store, bucket=bucket))
    return world


def pod(obj: dict[str, Any]) -> dict[str, Any]:
    template: dict[str, Any] = obj["spec"]["template"]
    return template


def containers(obj: dict[str, Any]) -> dict[str, dict[str, Any]]:
    spec = pod(obj)["spec"]
    return {item["name"]: item for item in (*spec["initContainers"], *spec["containers"])}


def claims(obj: dict[str, Any]) -> list[str]:
    volumes = pod(obj)["spec"]["volumes"]
    return [volume["name"] for volume in volumes if "persistentVolumeClaim" in volume]


def test_each_stage_of_a_job_has_address_and_secret_and_no_claim() -> None:
    world = of_bucket(World(), SECRET).settle()
    engine = of_bucket(World.of_engine(), SECRET).settle()
    jobs = (
        (world.job(), PREPARE_STAGES),
        (engine.job(), ("lookup",)),
        (engine.misses().job(), ENGINE_STAGES),
    )
    for job, stages in jobs:
        assert claims(job) == []
        assert VOLUME in pod(job)["spec"]["volumes"]
        assert containers(job).keys() == set(stages)
        for container in containers(job).values():
            assert VARIABLE in container["env"]
            assert MOUNT in container["volumeMounts"]
    assert world.all("PersistentVolumeClaim") == []


def test_a_serving_pod_fetches_from_the_bucket_and_its_server_has_no_credentials() -> None:
    world = of_bucket(World(), SECRET).settle().job_succeeds()
    (deployment,) = world.serving_deployments()
    assert claims(deployment) == []
    assert VOLUME in pod(deployment)["spec"]["volumes"]
    by_name = containers(deployment)
    assert VARIABLE in by_name["fetch-artifact"]["env"]
    assert MOUNT in by_name["fetch-artifact"]["volumeMounts"]
    for name in ("server", "sidecar"):
        assert VARIABLE not in by_name[name]["env"]
        assert MOUNT not in by_name[name]["volumeMounts"]


def with_node_cache(world: World) -> World:
    store = replace(world.config.store, node_cache="cache.home.svc:8080")
    world.config = replace(world.config, store=store)
    return world


def test_a_serving_pod_alone_reads_through_the_cache_of_its_node() -> None:
    world = with_node_cache(of_bucket(World(), SECRET)).settle()
    jobs = [world.job()]
    (deployment,) = world.job_succeeds().serving_deployments()
    cached = {"name": "ENGINEWRIGHT_CACHE", "value": "cache.home.svc:8080"}
    for obj in (*jobs, deployment):
        for name, container in containers(obj).items():
            assert (cached in container["env"]) is (name == "fetch-artifact")


def test_pods_that_mount_a_claim_have_no_other_cache() -> None:
    (deployment,) = with_node_cache(World()).settle().job_succeeds().serving_deployments()
    assert "ENGINEWRIGHT_CACHE" not in str(deployment)


def test_a_cache_makes_no_revision_and_restarts_no_pod() -> None:
    world = of_bucket(World(), SECRET).settle().job_succeeds().all_available()
    (before,) = world.serving_deployments()
    (after,) = with_node_cache(world).settle().serving_deployments()
    assert pod(after) == pod(before)
    fresh = with_node_cache(of_bucket(World(), SECRET)).settle().job_succeeds()
    assert fresh.status["revision"] == world.status["revision"]


def test_without_a_secret_pods_have_the_service_account_and_its_label() -> None:
    prepared = of_bucket(World(), IDENTITY).settle()
    jobs = [prepared.job(), of_bucket(World.of_engine(), IDENTITY).settle().job()]
    (deployment,) = prepared.job_succeeds().serving_deployments()
    for entry in (*jobs, deployment):
        assert pod(entry)["spec"]["serviceAccountName"] == "store-user"
        assert pod(entry)["metadata"]["labels"]["azure.workload.identity/use"] == "true"
        assert "store" not in [volume["name"] for volume in pod(entry)["spec"]["volumes"]]


def test_a_models_own_service_account_wins() -> None:
    world = of_bucket(World(podTemplate={"serviceAccountName": "own"}), IDENTITY).settle()
    (deployment,) = world.job_succeeds().serving_deployments()
    assert pod(deployment)["spec"]["serviceAccountName"] == "own"


def test_nodes_share_a_bucket_whatever_the_claim_would_be() -> None:
    world = World()
    only_one = StoreConfig("enginewright-store", "20Gi", "ReadWriteOnce", None)
    world.config = replace(world.config, store=only_one)
    assert world.settle().conditions()["Ready"][1] == "StoreNotShared"
    assert of_bucket(world, SECRET).settle().conditions()["Ready"][1] == "Preparing"


# event: Operator | the store moves from claims to a bucket | the previous revision, until the new one's artefact is
#   there, unless `rollout.strategy` is `Recreate` | Ready `RollingOut`, then `Preparing`
def test_moved_store_is_filled_again() -> None:
    world = serving()
    before = world.status["revision"]
    of_bucket(world, SECRET).settle()
    world.later(hours=1).rolling(0).new_pod_fails(Reason.ARTIFACT_MISSING, "fetch-artifact")
    job = world.job()
    assert VARIABLE in containers(job)["publish"]["env"]
    assert world.status["serving"]["revision"] == before
    world.job_succeeds().all_available()
    assert world.status["serving"]["revision"] == world.status["revision"] != before


class SharedStore(StoreConfig):
    """A store as earlier releases could have it: several namespaces have one part of a bucket."""

    @override
    def access(self, namespace: str) -> StoreAccess:
        return super().access("_research")


SHARED = "s3://models/team/_research"


def places(deployment: Json) -> set[str]:
    return {
        item["value"]
        for container in pod(deployment)["spec"]["initContainers"]
        for item in container.get("env", ())
        if item["name"] == "ENGINEWRIGHT_STORE"
    }


def serving_from_a_shared_part() -> World:
    world = of_bucket(World().has_gpus(), SECRET)
    own = world.config
    world.config = replace(own, store=SharedStore(**vars(own.store)))
    world.settle().job_succeeds().engine_built().all_available()
    assert places(world.serving_deployments()[0]) == {SHARED}
    world.config = own
    return world


# event: Rollouts | several namespaces shared a part of the bucket in an earlier release, which has no groups any more |
#   all pods, from the shared part, until those of a revision that reads the namespace's own part are ready | Ready
#   `RollingOut`; what was copied is not prepared or built again
def test_shared_store_serves_on() -> None:
    world = serving_from_a_shared_part()
    revision, (before,) = world.status["revision"], world.serving_deployments()
    jobs = {entry["metadata"]["name"] for entry in world.all("Job")}
    world.settle()
    assert world.status["serving"]["revision"] == revision != world.status["revision"]
    assert {entry["metadata"]["name"] for entry in world.all("Job")} == jobs, (
        "nothing is built again"
    )
    (after,) = world.serving_deployments()
    assert after["spec"]["replicas"] == before["spec"]["replicas"]
    assert after["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    # where artefacts were imported into the namespace's own part, its pods find them
    world.all_available()
    assert world.status["serving"]["revision"] == world.status["revision"] != revision
    assert {entry["metadata"]["name"] for entry in world.all("Job")} == jobs
    (moved,) = world.serving_deployments()
    assert places(moved) == {f"s3://models/team/{NAMESPACE}"}


def test_uncopied_artefact_is_prepared_again_while_it_serves() -> None:
    world = serving_from_a_shared_part()
    revision = world.status["revision"]
    world.settle().later(hours=1).rolling(0).new_pod_fails(
        Reason.ARTIFACT_MISSING, "fetch-artifact"
    )
    world.job_fails(Reason.ARTIFACT_MISSING, "build", of="engine")
    prepares = containers(world.job("prepare"))["publish"]
    own = f"s3://models/team/{NAMESPACE}"
    assert {"name": "ENGINEWRIGHT_STORE", "value": own} in prepares["env"]
    assert world.status["serving"]["revision"] == revision
    world.later(minutes=5).job_succeeds(of="prepare").engine_built().all_available()
    assert world.status["serving"]["revision"] == world.status["revision"] != revision


def test_a_claim_leaves_no_trace_of_buckets() -> None:
    """Keys, revisions and pods of stores in claims are as they were before buckets existed."""
    world = serving()
    snapshot = Snapshot(
        prepared_key="a" * 64,
        model_digest="b" * 64,
        classes=({"name": "cpu", "backend": "cpu", "image": "example.com/cpu:1"},),
        max_queue=256,
        store_claim="enginewright-store",
    )
    assert snapshot.revision() == PINNED
    assert CONFIG.store.access(NAMESPACE).env() == ()
    (deployment,) = world.serving_deployments()
    assert claims(deployment) == ["store"]


def start_compiling() -> World:
    """Return a world whose model is prepared, and whose engine is being built."""
    return World().has_gpus().settle().job_succeeds()


@pytest.mark.parametrize("serves", [True, False])
def test_moved_store_of_an_engine_is_filled_again(serves: bool) -> None:
    world = start_compiling()
    if serves:
        world.engine_built().all_available()
    before = world.status.get("serving", {}).get("revision")
    of_bucket(world, SECRET).settle()
    if not serves:
        world.engine_built()
    world.later(hours=1).rolling(0).new_pod_fails(Reason.ARTIFACT_MISSING, "fetch-artifact")
    assert world.status.get("serving", {}).get("revision") == before
    world.job_fails(Reason.ARTIFACT_MISSING, "build", of="engine")
    assert VARIABLE in containers(world.job("prepare"))["publish"]["env"]
    world.later(minutes=5).job_succeeds(of="prepare").engine_built().all_available()
    assert world.status["serving"]["revision"] == world.status["revision"] != before


@pytest.mark.parametrize("reason", [Reason.ARTIFACT_MISSING, Reason.ARTIFACT_CORRUPT])
def test_the_build_that_lacked_its_model_begins_anew_once_that_is_prepared(reason: Reason) -> None:
    world = start_compiling().later(hours=1).job_fails(reason, "build", of="engine")
    assert world.all("InferenceEngine") == []
    world.later(minutes=5).job_succeeds(of="prepare")
    (job,) = world.running_jobs()
    assert containers(job).keys() == set(ENGINE_STAGES)
    world.later(hours=9)
    assert len([item for item in world.made if "prepare" in item]) == 2


def test_an_engine_that_vanished_while_it_was_built_has_no_model_prepared() -> None:
    world = start_compiling().later(hours=1)
    world.job_fails(Reason.ARTIFACT_MISSING, "publish-engine", of="engine")
    assert [item for item in world.made if "prepare" in item] == world.made[:1]


def with_stable_on_a_claim(world: World) -> World:
    """Return the world after its move to a bucket, whose canary is verified beside what serves."""
    of_bucket(world, SECRET).settle()
    assert world.status["serving"]["revision"] != world.status["revision"]
    return world.later(hours=1)


def test_loss_in_an_earlier_store_is_reported() -> None:
    world = with_stable_on_a_claim(serving(rollout={"canary": {"replicas": 1}}))
    made, stable = list(world.made), world.status["serving"]["revision"]
    world.new_pod_fails(Reason.ARTIFACT_MISSING, "fetch-artifact")
    assert world.running_jobs() == []
    assert world.made == made
    assert f"revision {stable} reads an earlier store, claim enginewright-store" in world.message()
    world.config = CONFIG
    assert world.settle().running_jobs() != [], "it is the current store again"


def test_an_engine_that_an_earlier_store_has_lost_stays_in_the_current_one() -> None:
    world = start_compiling().engine_built().all_available()
    world.edit(rollout={**world.spec["rollout"], "canary": {"replicas": 1}})
    engine = with_stable_on_a_claim(world).the("InferenceEngine")["metadata"]["uid"]
    world.new_pod_fails(Reason.ARTIFACT_MISSING, "fetch-artifact")
    assert world.the("InferenceEngine")["metadata"]["uid"] == engine
    assert "reads an earlier store" in world.message()


def test_loss_in_a_bucket_is_prepared_again() -> None:
    world = of_bucket(World(rollout={"canary": {"replicas": 1}}), SECRET).settle().job_succeeds()
    world.all_available()
    of_bucket(world, SECRET.model_copy(update={"secret": "others"})).settle().later(hours=1)
    assert world.new_pod_fails(Reason.ARTIFACT_MISSING, "fetch-artifact").running_jobs() != []


@pytest.mark.parametrize("uri", ["s3://models", "gs://models", "az://account.example/models"])
def test_servers_and_sidecars_do_not_get_the_identity_of_the_store(uri: str) -> None:
    bucket = StoreBucket(uri=uri, account="store-user")
    (deployment,) = of_bucket(World(), bucket).settle().job_succeeds().serving_deployments()
    annotations = pod(deployment)["metadata"]["annotations"]
    assert annotations == {
        "azure.workload.identity/skip-containers": "server;sidecar",
        "eks.amazonaws.com/skip-containers": "server,sidecar",
    }
    for annotation in annotations.values():
        assert {*re.split("[,;]", annotation), "fetch-artifact"} == containers(deployment).keys()


def test_other_pods_have_no_annotations_about_identities() -> None:
    own = World(podTemplate={"serviceAccountName": "own", "annotations": {"a": "b"}})
    for world in (of_bucket(own, IDENTITY), of_bucket(World(), SECRET), World()):
        (deployment,) = world.settle().job_succeeds().serving_deployments()
        assert pod(deployment)["metadata"]["annotations"] in ({}, {"a": "b"})


def test_a_models_annotations_win() -> None:
    chosen = {"eks.amazonaws.com/skip-containers": "sidecar"}
    world = of_bucket(World(podTemplate={"annotations": chosen}), IDENTITY).settle()
    (deployment,) = world.job_succeeds().serving_deployments()
    assert pod(deployment)["metadata"]["annotations"].items() >= chosen.items()


def tasks(job: dict[str, Any]) -> list[PrepareTask]:
    variables = [
        variable for container in containers(job).values() for variable in container["env"]
    ]
    values = [item["value"] for item in variables if item["name"] == TASK_VARIABLE]
    return [PrepareTask.model_validate_json(value) for value in values]


@pytest.mark.parametrize("template", [{}, {"serviceAccountName": "store-user"}])
def test_a_source_is_not_read_with_the_identity_of_the_store(template: dict[str, str]) -> None:
    lent = tasks(of_bucket(World(podTemplate=template), IDENTITY).settle().job())
    assert len(lent) == len(PREPARE_STAGES)
    assert all(task.anonymous_sources for task in lent)


def test_only_fetch_is_told_which_networks_are_refused() -> None:
    world = World()
    world.config = replace(world.config, refused_networks=("10.0.0.0/8", "fc00::/7"))
    told = {
        name: item["value"]
        for name, container in containers(world.settle().job()).items()
        for item in container["env"]
        if item["name"] == REFUSED_NETWORKS_VARIABLE
    }
    assert told == {"fetch": "10.0.0.0/8,fc00::/7"}
    assert REFUSED_NETWORKS_VARIABLE not in str(World().settle().job())


def test_a_source_is_read_with_the_pods_own_identity() -> None:
    own = of_bucket(World(podTemplate={"serviceAccountName": "own"}), IDENTITY)
    for world in (own, of_bucket(World(), SECRET), World()):
        for task in tasks(world.settle().job()):
            assert task.anonymous_sources is None
