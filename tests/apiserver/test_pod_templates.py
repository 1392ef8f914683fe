"""Pod Security "restricted" admits Jobs and pods with every field that a model may set."""

import json
from dataclasses import replace
from typing import Any, Final

import pytest
from enginewright.api.pods import JobTemplate
from enginewright.manifests.artifact_images import ImageRepository
from enginewright.manifests.probe_job import probe_job

from tests.e2e.harness import Namespace
from tests.support.plan_objects import CPU_IMAGE, make_object, publish_model
from tests.support.plan_world import World

pytestmark = pytest.mark.apiserver

TERMS: Final = [{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["a"]}]}]
JOBS: Final[dict[str, Any]] = {
    "labels": {"team": "vision", "kueue.x-k8s.io/queue-name": "builds"},
    "annotations": {"note": "hello"},
    "nodeSelector": {"pool": "a"},
    "tolerations": [{"key": "builds", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": TERMS}
        }
    },
    "imagePullSecrets": [{"name": "mine"}],
    "runtimeClassName": "placed",
    "priorityClassName": "placed",
}


PODS: Final[dict[str, Any]] = {
    **JOBS,
    "labels": {"team": "vision"},
    "resources": {"requests": {"cpu": 1}, "limits": {"cpu": 1, "memory": "1Gi"}},
    "env": [
        {"name": "OMP_NUM_THREADS", "value": "4"},
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "a"}}},
    ],
    "topologySpreadConstraints": [
        {"topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "minDomains": 2},
        {"topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"},
    ],
    "volumes": [
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "config", "configMap": {"name": "config"}},
        {"name": "node", "downwardAPI": {"items": []}},
    ],
    "volumeMounts": [
        {"name": "data", "mountPath": "/data", "readOnly": True},
        {"name": "config", "mountPath": "/etc/config", "subPath": "a"},
        {"name": "node", "mountPath": "/tmp/node"},
    ],
    "securityContext": {"runAsUser": 1000, "fsGroup": 2000, "supplementalGroups": [3000]},
    "containerSecurityContext": {"readOnlyRootFilesystem": False, "runAsGroup": 1000},
}
SERVING: Final[dict[str, Any]] = {
    "startupTimeout": "1h",
    "terminationGracePeriod": "5m",
    "sidecar": {"env": [{"name": "A", "value": "b"}], "resources": {"limits": {"cpu": "1"}}},
}


@pytest.fixture
def restricted(namespace: Namespace) -> Namespace:
    """A namespace that admits restricted pods only, and the classes that are named above."""
    label = "pod-security.kubernetes.io/enforce=restricted"
    namespace.kubectl("label", "namespace", namespace.name, label)
    classes: list[dict[str, Any]] = [
        {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "runc"},
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1},
        {"apiVersion": "v1", "kind": "ServiceAccount"},
    ]
    for device_class in classes:
        name = "default" if device_class["kind"] == "ServiceAccount" else "placed"
        body = json.dumps({**device_class, "metadata": {"name": name}})
        namespace.kubectl("apply", "--server-side", "--filename", "-", stdin=body)
    return namespace


def _create(namespace: Namespace, obj: dict[str, Any]) -> dict[str, Any]:
    metadata = {**obj["metadata"], "namespace": namespace.name}
    for field in ("ownerReferences", "resourceVersion"):
        metadata.pop(field, None)
    body = json.dumps({**obj, "metadata": metadata})
    create = ("create", "--dry-run=server", "--validate=strict", "--output", "json")
    created: dict[str, Any] = json.loads(namespace.kubectl(*create, "--filename", "-", stdin=body))
    return created


def admit(namespace: Namespace, obj: dict[str, Any]) -> dict[str, Any]:
    """Have the API server admit an object, and return the pod of its template, admitted too."""
    template = obj["spec"]["template"]
    metadata = {**template["metadata"], "name": "x"}
    _create(namespace, obj)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
    return _create(namespace, pod)


def test_jobs_with_every_field_are_admitted(restricted: Namespace) -> None:
    probe = probe_job(
        restricted.name,
        CPU_IMAGE,
        1,
        pull_policy="Always",
        image_pull_secrets=(),
        template=JobTemplate.model_validate(JOBS),
    )
    engine = World.of_engine()
    engine.spec["podTemplate"] = JOBS
    look = engine.settle().job()
    build = engine.misses().job()
    prepare = World(build={"podTemplate": JOBS}).settle().job()
    for entry in (probe, prepare, look, build):
        pod = admit(restricted, entry)
        assert pod["spec"]["nodeSelector"]["pool"] == "a"
        assert pod["spec"]["priorityClassName"] == pod["spec"]["runtimeClassName"] == "placed"


@pytest.mark.parametrize("openshift", [False, True])
def test_serving_pods_with_every_field_are_admitted(restricted: Namespace, openshift: bool) -> None:
    world = World(
        podTemplate=PODS,
        serving=SERVING,
        build={"podTemplate": JOBS},
        rollout={"progressTimeout": "2h"},
    )
    images = ImageRepository("registry.example.com/images", "registry")
    store = replace(world.config.store, images=images)
    world.config = replace(world.config, openshift=openshift, store=store)
    _create(restricted, make_object("InferenceModel", "all", spec=world.spec))
    admit(restricted, world.settle().job())
    reference = f"{images.repository}@sha256:{'1' * 64}"
    result = publish_model().model_copy(update={"image": reference})
    pod = admit(restricted, world.job_succeeds(result).the("Deployment"))
    (mounted,) = [item["image"] for item in pod["spec"]["volumes"] if "image" in item]
    assert mounted == {"reference": reference, "pullPolicy": "IfNotPresent"}, "with nothing added"
    assert pod["spec"]["securityContext"]["runAsUser"] == 1000
    assert pod["spec"]["terminationGracePeriodSeconds"] == 300
    assert pod["metadata"]["labels"]["team"] == "vision"
