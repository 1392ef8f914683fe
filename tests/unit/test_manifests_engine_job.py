"""The Jobs of engines: a device for the stages that use it, time that starts on a node, no model."""

from typing import Any, Final

import pytest
from enginewright.manifests.names import engine_job_name, lookup_job_name
from enginewright_contract.reasons import ExitCode
from enginewright_contract.task import ENGINE_STAGES, LOOKUP_STAGE

from tests.support.plan_objects import ENGINE, GPU_IMAGE, NAMESPACE, RESOURCE
from tests.support.plan_world import World

LABELS: Final = {
    "app.kubernetes.io/managed-by": "enginewright",
    "enginewright.dev/engine": ENGINE,
    "enginewright.dev/class": "l4",
}
RICH: Final[dict[str, Any]] = {
    "resources": {"requests": {"cpu": 2, "memory": "4Gi"}, "limits": {"memory": "8Gi"}},
    "tolerations": [{"key": RESOURCE, "operator": "Exists"}],
    "runtimeClassName": "nvidia",
    "imagePullSecrets": [{"name": "registry"}, {"name": "registry"}],
    "timeoutSeconds": 7200,
}


def lookup(**world: Any) -> dict[str, Any]:
    return World.of_engine(**world).settle().job()


def build(**world: Any) -> dict[str, Any]:
    return World.of_engine(**world).settle().misses().job()


def ahead(**world: Any) -> dict[str, Any]:
    return World.of_engine(ahead_of_time=True, **world).settle().job()


def pod(job: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = job["spec"]["template"]["spec"]
    return spec


def stages(job: dict[str, Any]) -> dict[str, dict[str, Any]]:
    spec = pod(job)
    return {item["name"]: item for item in (*spec["initContainers"], *spec["containers"])}


def devices(job: dict[str, Any]) -> list[str]:
    variables = {
        name: stage.get("resources", {}).get("limits", {}).get(RESOURCE)
        for name, stage in stages(job).items()
    }
    assert set(variables.values()) <= {None, "1"}
    return [name for name, count in variables.items() if count]


@pytest.mark.parametrize(
    ("job", "component"),
    [(lookup(), "engine-lookup"), (build(), "engine"), (ahead(), "engine")],
)
def test_it_belongs_to_the_engine_and_to_no_model(job: dict[str, Any], component: str) -> None:
    metadata = job["metadata"]
    assert metadata["namespace"] == NAMESPACE
    assert metadata["labels"] == {**LABELS, "enginewright.dev/component": component}
    assert job["spec"]["template"]["metadata"]["labels"] == metadata["labels"]
    assert metadata["ownerReferences"] == [
        {
            "apiVersion": "enginewright.dev/v1alpha1",
            "kind": "InferenceEngine",
            "name": ENGINE,
            "uid": "engine-1",
            "controller": True,
        }
    ]
    assert len(metadata["name"]) <= 63


def test_stages_run_in_order_in_the_image_of_the_engine() -> None:
    assert list(stages(build())) == list(ENGINE_STAGES)
    assert [item["name"] for item in pod(build())["containers"]] == ["publish-engine"]
    for name, stage in stages(build()).items():
        assert stage["command"] == ["enginewright-runtime", "stage", name]
        assert stage["image"] == GPU_IMAGE
    assert list(stages(lookup())) == [LOOKUP_STAGE]


def test_a_device_is_asked_for_by_the_stages_that_use_it_and_by_no_look() -> None:
    assert devices(build()) == ["build", "verify", "benchmark"]
    assert devices(lookup()) == []
    assert devices(ahead()) == []


def test_resources_are_the_models_with_the_device_added() -> None:
    resources = stages(build(**RICH))["build"]["resources"]
    assert resources == {
        "requests": {"cpu": 2, "memory": "4Gi"},
        "limits": {"memory": "8Gi", RESOURCE: "1"},
    }
    assert stages(build(**RICH))["publish-engine"]["resources"]["limits"] == {"memory": "8Gi"}


def test_the_build_runs_on_a_node_of_its_class_and_the_look_anywhere() -> None:
    spec = pod(build(**RICH))
    assert spec["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-L4"}
    assert spec["tolerations"] == [{"key": RESOURCE, "operator": "Exists"}]
    assert spec["runtimeClassName"] == "nvidia"
    assert not {"nodeSelector", "tolerations", "runtimeClassName"} & pod(lookup(**RICH)).keys()
    anywhere = pod(ahead(nodeSelector={}))
    assert not {"nodeSelector", "tolerations", "runtimeClassName"} & anywhere.keys()


@pytest.mark.parametrize(("job", "seconds"), [(build(**RICH), 7200), (lookup(), 600)])
def test_deadline_starts_on_a_node(job: dict[str, Any], seconds: int) -> None:
    assert pod(job)["activeDeadlineSeconds"] == seconds
    assert "activeDeadlineSeconds" not in job["spec"]


def test_the_build_can_be_asked_how_far_it_is() -> None:
    ports = {name: stage.get("ports") for name, stage in stages(build()).items()}
    assert ports.pop("build") == [{"name": "progress", "containerPort": 8081, "protocol": "TCP"}]
    assert set(ports.values()) == {None}


@pytest.mark.parametrize("job", [lookup(), build(), ahead()])
def test_the_store_is_written_and_the_work_shared(job: dict[str, Any]) -> None:
    volumes = {item["name"]: item for item in pod(job)["volumes"]}
    assert volumes["store"]["persistentVolumeClaim"] == {"claimName": "enginewright-store"}
    assert volumes["work"] == {"name": "work", "emptyDir": {}}
    for stage in stages(job).values():
        paths = {one["mountPath"]: one.get("readOnly", False) for one in stage["volumeMounts"]}
        assert paths == {"/tmp": False, "/work": False, "/store": False}


@pytest.mark.parametrize("job", [lookup(), build()])
def test_exit_codes_decide_about_retries(job: dict[str, Any]) -> None:
    spec = job["spec"]
    ignored, failed = spec["podFailurePolicy"]["rules"]
    assert ignored["action"] == "Ignore"
    assert ignored["onPodConditions"][0]["type"] == "DisruptionTarget"
    assert failed["action"] == "FailJob"
    assert failed["onExitCodes"] == {"operator": "In", "values": [int(ExitCode.PERMANENT)]}
    assert spec["backoffLimit"] == 2
    assert spec["ttlSecondsAfterFinished"] == 24 * 3600


def test_pull_secrets_are_named_once() -> None:
    assert pod(build(**RICH))["imagePullSecrets"] == [{"name": "registry"}]
    assert pod(lookup(**RICH))["imagePullSecrets"] == [{"name": "registry"}]


def test_a_long_name_of_an_engine_leaves_room_for_the_attempt() -> None:
    engine = "tensorrt-rtx-" + "c" * 50
    names = {
        made(engine, build_hash, attempt)
        for made in (engine_job_name, lookup_job_name)
        for build_hash in ("a" * 64, "b" * 64)
        for attempt in (1, 2, 11)
    }
    assert len(names) == 12
    assert all(len(name) <= 63 for name in names)
