"""The pods that serve one revision on one accelerator class."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from enginewright_contract.shadow import SHADOW_ANNOTATION, shadow_token
from enginewright_contract.task import (
    ARTIFACT_PATH,
    CACHE_VARIABLE,
    FETCH_ARTIFACT,
    HTTP_PORT,
    LIVE_PATH,
    POD_INFO_PATH,
    READY_PATH,
    RELEASE_FILE,
    SHADOW_FILE,
    SIDECAR,
    SIDECAR_PORT,
    TIMES_FILE,
    TLS_PATH,
    TOKENS_PATH,
    ServeTask,
    task_text,
)
from enginewright_contract.verdict import RELEASE_ANNOTATION, TIMES_ANNOTATION
from pydantic import ValidationError
from pydantic_core import from_json, to_json

from enginewright.api.inference_model import InferenceModel
from enginewright.manifests.device_claim import pod_claims, template_name, with_claim
from enginewright.manifests.labels import CLASS, REVISION, SERVE, of_model, serving_selector
from enginewright.manifests.placement import ARCHITECTURE, chooses_architecture
from enginewright.manifests.pods import TMP_VOLUME, container, pod_security, pull_secrets
from enginewright.manifests.snapshot import ClassSnapshot, Snapshot
from enginewright.manifests.store_access import StoreAccess

SERVER: Final = "server"  # name of the container
_POD_INFO: Final = "podinfo"  # name of the volume with the pod's annotations
_TOKENS: Final = "enginewright-tokens"  # likewise, with the tokens of clients
_TLS: Final = "enginewright-tls"  # likewise, with certificate and key
_AFTER_DRAIN_SECONDS: Final = 15  # for the sidecar, and for a drain that ends late
_DEFAULT_RESOURCES: Final = {"requests": {"cpu": "250m", "memory": "256Mi"}}
_OVER_NODES: Final = {
    "topologyKey": "kubernetes.io/hostname",
    "whenUnsatisfiable": "ScheduleAnyway",
}
_MIB: Final = 1 << 20
_SIDECAR_MIN: Final = 256 * _MIB  # minimum of its memory limit
_SIDECAR_OWN: Final = 128 * _MIB  # for the process, and for comparing outputs in chunks
_SIDECAR_STEP: Final = 64 * _MIB
_SIDECAR_UNUSED: Final = 192 * _MIB  # of the limit, rarely used and therefore not requested
_ANNOTATIONS: Final = [  # that sidecar and server read
    {"path": path, "fieldRef": {"fieldPath": f"metadata.annotations['{annotation}']"}}
    for path, annotation in (
        (RELEASE_FILE, RELEASE_ANNOTATION),
        (SHADOW_FILE, SHADOW_ANNOTATION),
        (TIMES_FILE, TIMES_ANNOTATION),
    )
]


@dataclass(frozen=True)
class PodDefaults:
    """The chart's settings for all pods; they do not affect what the pods run."""

    pull_policy: str
    pull_secrets: tuple[str, ...]
    assigned_ids: bool = False  # whether the cluster assigns user and groups
    node_cache: str | None = None  # HOST:PORT of what keeps files of a bucket
    architectures: Mapping[str, str] = field(default_factory=dict)  # of a class' nodes, by its name


@dataclass(frozen=True)
class PodOwner:
    """The model whose pods they are."""

    name: str
    uid: str


def pod_templates(
    model: PodOwner, revision: str, snapshot: Snapshot, defaults: PodDefaults
) -> dict[str, dict[str, Any]]:
    """Return the pod template of each class of a revision."""
    return {
        device_class.name: _pod_template(model, revision, snapshot, device_class, defaults)
        for device_class in snapshot.classes
    }


def takes_shadow_orders(template: Mapping[str, Any]) -> bool:
    """Return whether pods of a template send copies of requests by the orders of this version of the operator."""
    variables = {
        variable["name"]: str(variable.get("value", ""))
        for container in template["spec"]["containers"]
        for variable in container.get("env") or ()
    }
    try:
        task = ServeTask.model_validate_json(task_text(variables))
    except ValidationError:
        return False
    return task.shadow_token is not None


def _pod_template(
    model: PodOwner,
    revision: str,
    snapshot: Snapshot,
    accelerator: ClassSnapshot,
    defaults: PodDefaults,
) -> dict[str, Any]:
    template, store, mounted = snapshot.pod_template, snapshot.store, accelerator.artifact_image
    account = template.get("serviceAccountName")
    labels = {**of_model(model.name, SERVE), CLASS: accelerator.name, REVISION: revision}
    task = _task(model, revision, snapshot, accelerator)
    spec: dict[str, Any] = {
        "automountServiceAccountToken": account is not None,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": snapshot.grace,
        "securityContext": pod_security(
            template.get("securityContext") or {}, assigned_ids=defaults.assigned_ids
        ),
        "imagePullSecrets": pull_secrets(
            [
                *defaults.pull_secrets,
                *((mounted.secret,) if mounted and mounted.secret else ()),
                *(item["name"] for item in template.get("imagePullSecrets") or ()),
            ]
        ),
        "nodeSelector": _node_selector(template, accelerator, defaults),
        "tolerations": [*accelerator.tolerations, *(template.get("tolerations") or ())],
        "topologySpreadConstraints": _spread(
            template, serving_selector(model.name, accelerator.name)
        ),
        **_containers(snapshot, accelerator, task, defaults),
        "volumes": _volumes(snapshot, accelerator),
    }
    for name in ("runtimeClassName", "priorityClassName", "affinity"):
        if template.get(name):
            spec[name] = template[name]
    if named := store.account(account):
        spec["serviceAccountName"] = named
    if accelerator.device is not None:
        kind = InferenceModel.kind
        spec["resourceClaims"] = pod_claims(template_name(kind, model.name, accelerator.device))
    return {
        "metadata": {
            "labels": {**store.labels(), **(template.get("labels") or {}), **labels},
            "annotations": {**store.annotations(account), **(template.get("annotations") or {})},
        },
        "spec": spec,
    }


def _task(model: PodOwner, revision: str, snapshot: Snapshot, accelerator: ClassSnapshot) -> str:
    seconds = snapshot.termination_seconds
    task = ServeTask(
        model=model.name,
        revision=revision,
        prepared_key=snapshot.prepared_key,
        engine_key=accelerator.engine_key,
        backend=accelerator.backend,
        compute_capability=accelerator.compute_capability,
        **snapshot.options(),
        auth=snapshot.auth_secret is not None,
        tls=snapshot.tls_secret is not None,
        promise=snapshot.promise,
        drain_seconds=None if seconds is None else seconds - _AFTER_DRAIN_SECONDS,
        shadow_token=shadow_token(model.uid),
    ).to_json()
    if snapshot.processes > 1:  # which only the images of earlier releases know
        return to_json({**from_json(task), "processes": snapshot.processes}).decode()
    return task


def _containers(
    snapshot: Snapshot, accelerator: ClassSnapshot, task: str, defaults: PodDefaults
) -> dict[str, Any]:
    fetch = _fetch(snapshot, accelerator, task, defaults)
    sidecar = _sidecar(snapshot, accelerator, task, defaults)
    server = _server(snapshot, accelerator, task, defaults)
    if own := snapshot.pod_template.get("containerSecurityContext"):
        for entry in (fetch, sidecar, server):
            entry["securityContext"] = {**entry["securityContext"], **own}
    return {"initContainers": [fetch, sidecar], "containers": [server]}


def _fetch(
    snapshot: Snapshot, accelerator: ClassSnapshot, task: str, defaults: PodDefaults
) -> dict[str, Any]:
    store, mounted = snapshot.store, accelerator.artifact_image
    resources = _without_devices(snapshot.pod_template.get("resources") or {})
    return container(
        FETCH_ARTIFACT,
        accelerator.image,
        ("enginewright-runtime", FETCH_ARTIFACT),
        pull_policy=defaults.pull_policy,
        task=task,
        mounts=[
            *store.mounts(read_only=True),
            *(mounted.mounts() if mounted else ()),
            {"name": "artifact", "mountPath": ARTIFACT_PATH},
        ],
        resources=resources or _DEFAULT_RESOURCES,
        env=(*store.env(), *_cache_env(store, defaults)),
    )


def _server(
    snapshot: Snapshot, accelerator: ClassSnapshot, task: str, defaults: PodDefaults
) -> dict[str, Any]:
    template = snapshot.pod_template
    server = container(
        SERVER,
        accelerator.image,
        ("enginewright-runtime", "serve"),
        pull_policy=defaults.pull_policy,
        task=task,
        mounts=[
            {"name": "artifact", "mountPath": ARTIFACT_PATH, "readOnly": True},
            {"name": _POD_INFO, "mountPath": POD_INFO_PATH, "readOnly": True},
            *_secret_mount(snapshot.auth_secret, _TOKENS, TOKENS_PATH),
            *_secret_mount(snapshot.tls_secret, _TLS, TLS_PATH),
            *(template.get("volumeMounts") or ()),
        ],
        resources=_resources(template.get("resources") or _DEFAULT_RESOURCES, accelerator),
        env=template.get("env") or (),
    )
    server["ports"] = [{"name": "http", "containerPort": HTTP_PORT, "protocol": "TCP"}]
    tls = snapshot.tls_secret is not None
    server["startupProbe"] = _probe(LIVE_PATH, period=1, failures=snapshot.startup, tls=tls)
    server["readinessProbe"] = _probe(READY_PATH, period=1, failures=3, tls=tls)
    server["livenessProbe"] = _probe(LIVE_PATH, period=10, failures=6, tls=tls)
    return server


def _spread(template: Mapping[str, Any], selector: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return how the pods of one revision are spread: over nodes, unless spec.podTemplate says."""
    return [
        {
            "maxSkew": 1,
            **entry,
            "labelSelector": {"matchLabels": dict(selector)},
            "matchLabelKeys": ["pod-template-hash"],
        }
        for entry in template.get("topologySpreadConstraints") or (_OVER_NODES,)
    ]


def _volumes(snapshot: Snapshot, accelerator: ClassSnapshot) -> list[dict[str, Any]]:
    mounted = accelerator.artifact_image
    return [
        TMP_VOLUME,
        {"name": "artifact", "emptyDir": {}},
        {"name": _POD_INFO, "downwardAPI": {"items": _ANNOTATIONS}},
        *snapshot.store.volumes(read_only=True),
        *(mounted.volumes() if mounted else ()),
        *_secret_volumes(snapshot),
        *(snapshot.pod_template.get("volumes") or ()),
    ]


def _node_selector(
    template: Mapping[str, Any], accelerator: ClassSnapshot, defaults: PodDefaults
) -> dict[str, str]:
    """Return the labels of the pods' nodes: a class may have nodes of more architectures than its image."""
    selector = {**(template.get("nodeSelector") or {}), **accelerator.node_selector}
    only = defaults.architectures.get(accelerator.name)
    if only and not chooses_architecture(selector, template.get("affinity")):
        selector[ARCHITECTURE] = only
    return selector


def _cache_env(store: StoreAccess, defaults: PodDefaults) -> list[dict[str, Any]]:
    """Return where files of artefacts are looked for first: pods that mount a volume read them there."""
    if store.bucket is None or defaults.node_cache is None:
        return []
    return [{"name": CACHE_VARIABLE, "value": defaults.node_cache}]


def _secret_mount(secret: str | None, volume: str, path: str) -> list[dict[str, Any]]:
    return [] if secret is None else [{"name": volume, "mountPath": path, "readOnly": True}]


def _secret_volumes(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return the volumes of the Secrets in spec.serving, optional, so that the server reports a missing one."""
    secrets = {_TOKENS: snapshot.auth_secret, _TLS: snapshot.tls_secret}
    return [
        {"name": volume, "secret": {"secretName": secret, "optional": True}}
        for volume, secret in secrets.items()
        if secret is not None
    ]


def _sidecar(
    snapshot: Snapshot, accelerator: ClassSnapshot, task: str, defaults: PodDefaults
) -> dict[str, Any]:
    """Return the native sidecar: it starts before the server and ends after it. The pod is ready only if it is."""
    built = container(
        SIDECAR,
        accelerator.image,
        ("enginewright-runtime", "sidecar"),
        pull_policy=defaults.pull_policy,
        task=task,
        mounts=[
            {"name": "artifact", "mountPath": ARTIFACT_PATH, "readOnly": True},
            {"name": _POD_INFO, "mountPath": POD_INFO_PATH, "readOnly": True},
            # for copies of requests, which canaries answer
            *_secret_mount(snapshot.auth_secret, _TOKENS, TOKENS_PATH),
        ],
        resources=dict(snapshot.sidecar_resources) or _sidecar_resources(snapshot),
        env=snapshot.sidecar_env,
    )
    built["restartPolicy"] = "Always"
    built["ports"] = [{"name": SIDECAR, "containerPort": SIDECAR_PORT, "protocol": "TCP"}]
    built["readinessProbe"] = _probe("/readyz", period=1, failures=3, port=SIDECAR)
    built["livenessProbe"] = _probe("/healthz", period=10, failures=6, port=SIDECAR)
    return built


def sidecar_memory(output_bytes: int | None) -> int:
    """Return the sidecar's memory limit in bytes: it holds up to two responses of `output_bytes`."""
    needed = _SIDECAR_OWN + 2 * (output_bytes or 0)
    return max(_SIDECAR_MIN, -(-needed // _SIDECAR_STEP) * _SIDECAR_STEP)


def _sidecar_resources(snapshot: Snapshot) -> dict[str, Any]:
    limit = sidecar_memory(snapshot.golden_output_bytes)
    request = limit - _SIDECAR_UNUSED
    return {
        "requests": {"cpu": "10m", "memory": f"{request // _MIB}Mi"},
        "limits": {"memory": f"{limit // _MIB}Mi"},
    }


def _without_devices(resources: Mapping[str, Any]) -> dict[str, Any]:
    """Return the resources without extended ones, which have a domain in their names."""
    sides = {
        side: {name: item for name, item in (resources.get(side) or {}).items() if "/" not in name}
        for side in ("requests", "limits")
    }
    return {side: entry for side, entry in sides.items() if entry}


def _resources(resources: Mapping[str, Any], accelerator: ClassSnapshot) -> dict[str, Any]:
    """Add one device of the class: a claim, or an extended resource, which is set as a limit."""
    if accelerator.device is not None:
        return with_claim(resources)
    if accelerator.resource_name is None:
        return dict(resources)
    limits = {**(resources.get("limits") or {}), accelerator.resource_name: "1"}
    return {**resources, "limits": limits}


def _probe(
    path: str, *, period: int, failures: int, port: str = "http", tls: bool = False
) -> dict[str, Any]:
    scheme = {"scheme": "HTTPS"} if tls else {}  # the kubelet verifies no certificate
    return {
        "httpGet": {"path": path, "port": port, **scheme},
        "periodSeconds": period,
        "failureThreshold": failures,
        "timeoutSeconds": 3,
    }
