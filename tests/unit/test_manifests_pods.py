"""What every pod of ours must have: the restricted Pod Security Standard, its task, its volumes."""

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from enginewright.manifests.probe_job import probe_job
from enginewright_contract import task as contract
from enginewright_contract.reasons import ExitCode
from enginewright_contract.serving_options import AccessLogTask, TracingTask
from enginewright_contract.shadow import SHADOW_ANNOTATION, shadow_token
from enginewright_contract.task import PREPARE_STAGES, PrepareTask, ServeTask
from enginewright_contract.verdict import RELEASE_ANNOTATION, TIMES_ANNOTATION

from tests.support.plan_objects import CPU_IMAGE, accelerator_class, publish_model
from tests.support.plan_world import World

RICH: Final[dict[str, Any]] = {
    "source": {"uri": "pvc://models/m.onnx", "secretRef": {"name": "token"}},
    "parity": {
        "samples": {"uri": "pvc://golden/g.npz", "secretRef": {"name": "samples-token"}},
    },
    "quantization": {
        "calibration": {
            "uri": "pvc://calibration/c.npz",
            "secretRef": {"name": "calibration-token"},
        },
    },
    "extensions": [
        {"uri": "pvc://libraries/a.so", "sha256": "a" * 64, "type": "CustomOperators"},
        {"uri": "pvc://libraries/b.so", "sha256": "b" * 64, "type": "CustomOperators"},
    ],
    "processing": {
        "before": [{"uri": "pvc://steps/a.onnx", "secretRef": {"name": "step-token"}}],
        "after": [{"uri": "pvc://steps/b.onnx"}],
    },
    "podTemplate": {
        "labels": {"team": "vision", "app.kubernetes.io/managed-by": "me"},
        "annotations": {"note": "hello"},
        "resources": {"requests": {"cpu": 2}, "limits": {"memory": "4Gi"}},
        "nodeSelector": {"zone": "a", "kubernetes.io/os": "windows"},
        "tolerations": [{"key": "mine", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"x": "y"}},
        "serviceAccountName": "model",
        "imagePullSecrets": [{"name": "mine"}, {"name": "registry"}],
        "runtimeClassName": "nvidia",
        "priorityClassName": "high",
    },
}


def prepare_pod(**spec: Any) -> dict[str, Any]:
    pod: dict[str, Any] = World(**spec).settle().job()["spec"]["template"]
    return pod


def serving_pod(**spec: Any) -> dict[str, Any]:
    world = World(**spec)
    world.classes = [
        accelerator_class(
            "cpu",
            resourceName="example.com/tpu",
            tolerations=[{"key": "tpu", "operator": "Exists", "effect": "NoSchedule"}],
        )
    ]
    pod: dict[str, Any] = world.settle().job_succeeds().the("Deployment")["spec"]["template"]
    return pod


def probe_pod() -> dict[str, Any]:
    job = probe_job(
        "enginewright", CPU_IMAGE, 1, pull_policy="Always", image_pull_secrets=("registry",)
    )
    pod: dict[str, Any] = job["spec"]["template"]
    return pod


def engine_pod(*, look: bool = False, **world: Any) -> dict[str, Any]:
    engine = World.of_engine(**world).settle()
    pod: dict[str, Any] = (engine if look else engine.misses()).job()["spec"]["template"]
    return pod


PODS: Final[dict[str, Callable[[], dict[str, Any]]]] = {
    "prepare": prepare_pod,
    "prepare, rich": lambda: prepare_pod(**RICH),
    "serve": serving_pod,
    "serve, rich": lambda: serving_pod(**RICH),
    "probe": probe_pod,
    "engine": engine_pod,
    "engine-lookup": lambda: engine_pod(look=True),
}


def containers(pod: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from pod["spec"].get("initContainers", ())
    yield from pod["spec"]["containers"]


def container(pod: dict[str, Any], name: str) -> dict[str, Any]:
    return next(entry for entry in containers(pod) if entry["name"] == name)


def mounts(of: dict[str, Any]) -> dict[str, bool]:
    return {item["mountPath"]: item.get("readOnly", False) for item in of["volumeMounts"]}


@pytest.mark.parametrize("kind", PODS)
def test_every_pod_meets_the_restricted_standard(kind: str) -> None:
    """As https://kubernetes.io/docs/concepts/security/pod-security-standards/ lists it."""
    pod = PODS[kind]()
    assert json.dumps(pod) == json.dumps(PODS[kind]()), "it is JSON and equal each time"
    spec = pod["spec"]
    security = spec["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["runAsUser"] == security["fsGroup"] == security["runAsGroup"] == 65532
    assert security["fsGroupChangePolicy"] == "OnRootMismatch"
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    for entry in containers(pod):
        context = entry["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["readOnlyRootFilesystem"] is True
        assert not any("hostPort" in port for port in entry.get("ports", ()))
        assert mounts(entry)["/tmp"] is False
        assert entry["terminationMessagePolicy"] == "File"
        assert entry["resources"]["requests"].keys() >= {"cpu"}
    kinds = {key for volume in spec["volumes"] for key in volume if key != "name"}
    assert kinds <= {"downwardAPI", "emptyDir", "persistentVolumeClaim", "secret"}
    mounted = {mount["name"] for entry in containers(pod) for mount in entry["volumeMounts"]}
    assert mounted == {volume["name"] for volume in spec["volumes"]}


@pytest.mark.parametrize("kind", ["prepare", "serve", "probe", "engine", "engine-lookup"])
def test_no_pod_mounts_a_token(kind: str) -> None:
    spec = PODS[kind]()["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in spec
    assert spec["enableServiceLinks"] is False


# prepare


def test_stages_run_in_order_and_publish_ends_the_pod() -> None:
    spec = prepare_pod()["spec"]
    assert [item["name"] for item in spec["initContainers"]] == list(PREPARE_STAGES[:-1])
    assert [item["name"] for item in spec["containers"]] == [PREPARE_STAGES[-1]]
    assert spec["restartPolicy"] == "Never"
    for entry in containers({"spec": spec}):
        assert entry["command"] == ["enginewright-runtime", "stage", entry["name"]]
        assert entry["image"] == CPU_IMAGE
        (variable,) = entry["env"]
        assert variable["name"] == contract.TASK_VARIABLE
        assert PrepareTask.model_validate_json(variable["value"]).source_uri.endswith(".onnx")


def test_every_stage_shares_the_work_and_writes_its_report() -> None:
    for entry in containers(prepare_pod(**RICH)):
        assert mounts(entry)[contract.WORK_PATH] is False
        assert mounts(entry)[contract.STORE_PATH] is False


def test_only_fetch_sees_the_source_and_its_secrets_and_changes_nothing_there() -> None:
    pod = prepare_pod(**RICH)
    theirs = {
        contract.SOURCE_PATH,
        contract.SAMPLES_PATH,
        contract.CREDENTIALS_PATH,
        contract.SAMPLES_CREDENTIALS_PATH,
        contract.CALIBRATION_PATH,
        contract.CALIBRATION_CREDENTIALS_PATH,
        f"{contract.EXTENSIONS_PATH}/libraries",
        f"{contract.PROCESSING_PATH}/steps",
        f"{contract.PROCESSING_CREDENTIALS_PATH}/before-0",
    }
    assert dict.fromkeys(theirs, True).items() <= mounts(container(pod, "fetch")).items()
    for stage in PREPARE_STAGES[1:]:
        assert not theirs & mounts(container(pod, stage)).keys()
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    claim = {"claimName": "models", "readOnly": True}
    assert volumes["source"]["persistentVolumeClaim"] == claim
    assert volumes["samples"]["persistentVolumeClaim"]["claimName"] == "golden"
    assert volumes["credentials"]["secret"]["secretName"] == "token"
    assert volumes["samples-credentials"]["secret"]["secretName"] == "samples-token"
    assert volumes["calibration"]["persistentVolumeClaim"]["claimName"] == "calibration"
    assert volumes["calibration-credentials"]["secret"]["secretName"] == "calibration-token"
    assert volumes["before-0-credentials"]["secret"]["secretName"] == "step-token"


def test_the_job_fetches_under_the_account_that_the_owner_names() -> None:
    pod = prepare_pod(
        podTemplate={
            "serviceAccountName": "reader",
            "labels": {"azure.workload.identity/use": "true", "team": "vision"},
        }
    )
    assert pod["spec"]["serviceAccountName"] == "reader"
    assert pod["spec"]["automountServiceAccountToken"] is True
    assert pod["metadata"]["labels"]["azure.workload.identity/use"] == "true"
    assert "team" not in pod["metadata"]["labels"]
    assert prepare_pod()["spec"]["automountServiceAccountToken"] is False


def test_a_source_on_the_web_needs_no_claim() -> None:
    names = {volume["name"] for volume in prepare_pod()["spec"]["volumes"]}
    assert names == {"tmp", "work", "store"}


def test_job_ends_on_permanent_failures_and_ignores_evictions() -> None:
    spec = World(build={"timeout": "1h30m"}).settle().job()["spec"]
    assert spec["template"]["spec"]["activeDeadlineSeconds"] == 5400
    assert "activeDeadlineSeconds" not in spec, "it would run while the pod waits for a node"
    assert spec["ttlSecondsAfterFinished"] > 0
    first, second = spec["podFailurePolicy"]["rules"]
    assert first["action"] == "Ignore"
    assert first["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert second["action"] == "FailJob"
    assert second["onExitCodes"] == {"operator": "In", "values": [int(ExitCode.PERMANENT)]}


def test_build_resources_apply_to_every_stage() -> None:
    resources = {"requests": {"cpu": "2"}, "limits": {"memory": "8Gi"}}
    for entry in containers(prepare_pod(build={"resources": resources})):
        assert entry["resources"] == resources


def test_jobs_pull_with_the_models_own_secrets_too() -> None:
    secrets = prepare_pod(**RICH)["spec"]["imagePullSecrets"]
    assert secrets == [{"name": "registry"}, {"name": "mine"}]


# serve


def test_the_server_reads_a_copy_that_was_checked_and_never_the_store() -> None:
    pod = serving_pod()
    fetch, sidecar, server = containers(pod)
    assert fetch["command"] == ["enginewright-runtime", "fetch-artifact"]
    assert mounts(fetch) == {
        "/tmp": False,
        contract.STORE_PATH: True,
        contract.ARTIFACT_PATH: False,
    }
    assert server["command"] == ["enginewright-runtime", "serve"]
    assert mounts(server) == {
        "/tmp": False,
        contract.ARTIFACT_PATH: True,
        contract.POD_INFO_PATH: True,
    }
    assert mounts(sidecar) == mounts(server) | {contract.POD_INFO_PATH: True}
    assert fetch["env"] == sidecar["env"] == server["env"]


def test_the_sidecar_starts_before_the_server_and_gates_the_pod() -> None:
    _, sidecar, server = containers(serving_pod())
    assert sidecar["command"] == ["enginewright-runtime", "sidecar"]
    assert sidecar["restartPolicy"] == "Always"
    assert "startupProbe" not in sidecar, "it would wait for a server that waits for it"
    assert sidecar["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "sidecar"}
    assert sidecar["ports"] == [
        {"name": "sidecar", "containerPort": contract.SIDECAR_PORT, "protocol": "TCP"}
    ]
    assert "restartPolicy" not in server


def test_sidecar_and_server_read_annotations_of_their_pod() -> None:
    pod = serving_pod()
    (volume,) = (item for item in pod["spec"]["volumes"] if "downwardAPI" in item)
    read = {
        contract.RELEASE_FILE: RELEASE_ANNOTATION,
        contract.SHADOW_FILE: SHADOW_ANNOTATION,
        contract.TIMES_FILE: TIMES_ANNOTATION,
    }
    assert volume["downwardAPI"]["items"] == [
        {"path": path, "fieldRef": {"fieldPath": f"metadata.annotations['{annotation}']"}}
        for path, annotation in read.items()
    ]
    assert not set(read.values()) & pod["metadata"]["annotations"].keys()


def sidecar_resources(output_bytes: int | None = None, **spec: Any) -> dict[str, Any]:
    made = publish_model().model_copy(update={"golden_output_bytes": output_bytes})
    world = World(**spec).settle().job_succeeds(made)
    _, sidecar, _ = containers(world.the("Deployment")["spec"]["template"])
    return dict(sidecar["resources"])


def test_the_sidecar_has_the_memory_that_its_largest_golden_sample_needs() -> None:
    usual = {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}}
    assert sidecar_resources() == sidecar_resources(1_000_000) == usual
    assert sidecar_resources(176_000_000) == {
        "requests": {"cpu": "10m", "memory": "320Mi"},
        "limits": {"memory": "512Mi"},
    }
    mine = {"requests": {"memory": "1Gi"}, "limits": {"cpu": "1", "memory": "2Gi"}}
    serving = {"sidecar": {"resources": mine}}
    assert sidecar_resources(176_000_000, serving=serving) == mine


def test_sizes_that_change_nothing_restart_no_pods() -> None:
    """Revisions from before the size was reported stay what they are, down to their data."""
    before, after, larger = (
        World()
        .settle()
        .job_succeeds(publish_model().model_copy(update={"golden_output_bytes": size}))
        for size in (None, 1_000_000, 176_000_000)
    )
    assert before.status["revision"] == after.status["revision"] != larger.status["revision"]
    assert before.the("ControllerRevision")["data"] == after.the("ControllerRevision")["data"]
    assert larger.the("ControllerRevision")["data"]["golden_output_bytes"] == 176_000_000


def test_task_names_the_artefact() -> None:
    batching = {"maxSize": 8, "maxDelay": "5ms"}
    serving = {"maxQueue": 7, "batching": batching, "requestTimeout": "10s"}
    serving["maxConcurrentRuns"] = 2
    serving["accessLog"] = {"sample": "2.5%", "failed": "All"}
    serving["tracing"] = {"endpoint": "http://collector:4318", "sample": "5%"}
    world = World(serving=serving).settle().job_succeeds()
    (variable,) = container(world.the("Deployment")["spec"]["template"], "server")["env"]
    assert ServeTask.model_validate_json(variable["value"]) == ServeTask(
        model="resnet",
        revision=world.status["revision"],
        prepared_key="a" * 64,
        backend="cpu",
        max_queue=7,
        batch_size=8,
        batch_delay_seconds=0.005,
        concurrent_runs=2,
        request_seconds=10.0,
        access_log=AccessLogTask(share=0.025, failed="All"),
        tracing=TracingTask(endpoint="http://collector:4318", share=0.05),
        shadow_token=shadow_token(world.the("InferenceModel")["metadata"]["uid"]),
    )


def test_the_tokens_of_clients_are_mounted_where_they_are_read() -> None:
    pod = serving_pod(serving={"auth": {"secretRef": {"name": "clients"}}})
    fetch, sidecar, server = containers(pod)
    for entry in (server, sidecar):
        assert mounts(entry)[contract.TOKENS_PATH] is True
        (task,) = [item for item in entry["env"] if item["name"] == contract.TASK_VARIABLE]
        assert ServeTask.model_validate_json(task["value"]).auth is True
        assert "clients" not in task["value"]
    assert contract.TOKENS_PATH not in mounts(fetch)
    (volume,) = [item for item in pod["spec"]["volumes"] if "secret" in item]
    assert volume["secret"] == {"secretName": "clients", "optional": True}, "the server reports it"


@pytest.mark.parametrize("field", ["auth", "tls"])
def test_another_secret_is_a_new_revision(field: str) -> None:
    names = [
        World(**spec).settle().job_succeeds().status["revision"]
        for spec in ({}, *({"serving": {field: {"secretRef": {"name": name}}}} for name in "ab"))
    ]
    assert len(set(names)) == 3


def test_with_tls_only_the_server_has_the_key_and_kubelets_probe_over_tls() -> None:
    pod = serving_pod(serving={"tls": {"secretRef": {"name": "certificate"}}})
    fetch, sidecar, server = containers(pod)
    assert mounts(server)[contract.TLS_PATH] is True
    assert contract.TLS_PATH not in mounts(sidecar) | mounts(fetch)
    for entry in (server, sidecar):
        (task,) = [item for item in entry["env"] if item["name"] == contract.TASK_VARIABLE]
        assert ServeTask.model_validate_json(task["value"]).tls is True
    (volume,) = [item for item in pod["spec"]["volumes"] if "secret" in item]
    assert volume["secret"] == {"secretName": "certificate", "optional": True}
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert server[name]["httpGet"]["scheme"] == "HTTPS"
    for name in ("readinessProbe", "livenessProbe"):
        assert "scheme" not in sidecar[name]["httpGet"], "its own port is for the operator"


def test_probes_ask_server_and_sidecar() -> None:
    server = container(serving_pod(), "server")
    assert server["ports"] == [
        {"name": "http", "containerPort": contract.HTTP_PORT, "protocol": "TCP"}
    ]
    assert server["readinessProbe"]["httpGet"] == {"path": "/v2/health/ready", "port": "http"}
    assert server["livenessProbe"]["httpGet"] == {"path": "/v2/health/live", "port": "http"}
    startup = server["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 300


def test_the_class_places_the_pod_and_the_template_adds_to_it() -> None:
    spec = serving_pod(**RICH)["spec"]
    assert spec["nodeSelector"] == {"zone": "a", "kubernetes.io/os": "linux"}, "the class wins"
    assert [item["key"] for item in spec["tolerations"]] == ["tpu", "mine"]
    assert spec["serviceAccountName"] == "model"
    assert spec["automountServiceAccountToken"] is True
    assert spec["runtimeClassName"] == "nvidia"
    assert spec["priorityClassName"] == "high"
    assert spec["affinity"] == {"nodeAffinity": {"x": "y"}}
    assert spec["imagePullSecrets"] == [{"name": "registry"}, {"name": "mine"}]
    assert container({"spec": spec}, "server")["resources"] == {
        "requests": {"cpu": 2},
        "limits": {"memory": "4Gi", "example.com/tpu": "1"},
    }


def test_only_the_server_takes_a_device() -> None:
    fetch, sidecar, server = containers(serving_pod())
    assert "example.com/tpu" not in sidecar["resources"]["limits"]
    assert "example.com/tpu" not in fetch["resources"].get("limits", {})
    assert server["resources"]["limits"]["example.com/tpu"] == "1"


def test_labels_of_the_user_never_replace_ours() -> None:
    metadata = serving_pod(**RICH)["metadata"]
    assert metadata["labels"]["team"] == "vision"
    assert metadata["labels"]["app.kubernetes.io/managed-by"] == "enginewright"
    assert metadata["annotations"] == {"note": "hello"}


def test_pods_spread_over_nodes() -> None:
    (spread,) = serving_pod()["spec"]["topologySpreadConstraints"]
    assert spread["topologyKey"] == "kubernetes.io/hostname"
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway"
    assert spread["labelSelector"]["matchLabels"]["enginewright.dev/class"] == "cpu"


# probe


def test_a_probe_is_found_again_by_its_image() -> None:
    job = probe_job("enginewright", CPU_IMAGE, 1, pull_policy="Always", image_pull_secrets=())
    other = probe_job(
        "enginewright", CPU_IMAGE + "0", 1, pull_policy="Always", image_pull_secrets=()
    )
    assert job["metadata"]["name"] != other["metadata"]["name"]
    assert job["metadata"]["namespace"] == "enginewright"
    (only,) = job["spec"]["template"]["spec"]["containers"]
    assert only["command"] == ["enginewright-runtime", "probe"]
    assert only["imagePullPolicy"] == "Always"
    label = "enginewright.dev/image"
    assert job["metadata"]["labels"][label] == job["spec"]["template"]["metadata"]["labels"][label]
