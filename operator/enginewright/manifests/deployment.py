"""The Deployment that serves one revision on one accelerator class."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from enginewright_contract.shadow import SHADOW_ANNOTATION
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
    TASK_VARIABLE,
    TLS_PATH,
    TOKENS_PATH,
    ServeTask,
)
from enginewright_contract.verdict import RELEASE_ANNOTATION
from pydantic_core import from_json, to_json

from enginewright.api.inference_model import InferenceModel
from enginewright.api.scalars import duration
from enginewright.manifests.device_claim import (
    claim_template,
    pod_claims,
    template_name,
    with_claim,
)
from enginewright.manifests.labels import (
    CANARY,
    CLASS,
    COMPONENT,
    REVISION,
    SERVE,
    TRACK,
    of_model,
    serving_selector,
)
from enginewright.manifests.names import canary_name
from enginewright.manifests.owner import owned_metadata
from enginewright.manifests.placement import ARCHITECTURE, chooses_architecture
from enginewright.manifests.pod_options import STARTUP_SECONDS
from enginewright.manifests.pods import TMP_VOLUME, container, pod_security, pull_secrets
from enginewright.manifests.snapshot import ClassSnapshot, Revision, Snapshot
from enginewright.manifests.store_access import StoreAccess

SERVER: Final = "server"  # name of the container
POD_INFO: Final = "podinfo"  # name of the volume with the pod's annotations
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
_STRATEGIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "Surge": {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 0},
    },
    "InPlace": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
    "Recreate": {"type": "Recreate"},
}
_ANNOTATIONS: Final = [  # that the sidecar reads
    {"path": path, "fieldRef": {"fieldPath": f"metadata.annotations['{annotation}']"}}
    for path, annotation in ((RELEASE_FILE, RELEASE_ANNOTATION), (SHADOW_FILE, SHADOW_ANNOTATION))
]


@dataclass(frozen=True)
class PodDefaults:
    """The chart's settings for all pods; they do not affect what the pods run."""

    pull_policy: str
    pull_secrets: tuple[str, ...]
    assigned_ids: bool = False  # whether the cluster assigns user and groups
    node_cache: str | None = None  # HOST:PORT of what keeps files of a bucket; None: there is none
    architectures: Mapping[str, str] = field(
        default_factory=dict
    )  # of the nodes of a class, by its name


def serving_deployment(
    model: InferenceModel, revision: Revision, accelerator: str, *, name: str, replicas: int | None
) -> dict[str, Any]:
    """Return the Deployment of `revision` for one of its classes; without `replicas`, if None."""
    served = model.metadata.name
    labels = {**of_model(served, SERVE), CLASS: accelerator, REVISION: revision.name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": owned_metadata(model, name, labels),
        "spec": {
            **({} if replicas is None else {"replicas": replicas}),
            "progressDeadlineSeconds": progress_seconds(model),
            "revisionHistoryLimit": 2,  # ControllerRevisions are the history
            "strategy": _STRATEGIES[model.spec.rollout.strategy],
            "selector": {"matchLabels": serving_selector(served, accelerator)},
            "template": revision.templates[accelerator],
        },
    }


def claim_templates(
    model: InferenceModel, revision: Revision, accelerator: str
) -> Iterator[dict[str, Any]]:
    """Yield what the pods of `revision` need on one of its classes before their Deployment is there."""
    for each in revision.snapshot.classes:
        if each.name == accelerator and each.device is not None:
            # of all classes with this request: no label names one of them
            yield claim_template(model, of_model(model.metadata.name), each.device)


def canary_deployment(
    model: InferenceModel,
    revision: Revision,
    accelerator: str,
    *,
    replicas: int,
    stable_key: str | None,
) -> dict[str, Any]:
    """Return the Deployment that runs `revision` beside the serving one of one of its classes.

    No Service selects its pods until each of them gets the component of serving pods, which is not
    part of the selector. `stable_key` is the prepared model that serves, with whose golden outputs
    their sidecars compare answers; None: none.
    """
    name = canary_name(model.metadata.name, accelerator)
    found = _beside(
        serving_deployment(model, revision, accelerator, name=name, replicas=replicas),
        labels={COMPONENT: CANARY, TRACK: CANARY},
        selector={TRACK: CANARY},
    )
    template = found["spec"]["template"]
    first = [_comparing(each, stable_key) for each in template["spec"]["initContainers"]]
    template["spec"] = {**template["spec"], "initContainers": first}
    return found


def _comparing(container: Mapping[str, Any], stable_key: str | None) -> dict[str, Any]:
    """Return a container whose task names the prepared model that serves."""

    def with_key(variable: Mapping[str, Any]) -> dict[str, Any]:
        if variable["name"] != TASK_VARIABLE:
            return dict(variable)
        return {**variable, "value": _with_stable_key(variable["value"], stable_key)}

    return {**container, "env": [with_key(each) for each in container["env"]]}


def _with_stable_key(task: str, stable_key: str | None) -> str:
    """Return a task with the key, written as a `ServeTask` is, and with the fields that only other releases have.

    Without these, an upgrade would restart the canaries of their revisions, and change what they do.
    """
    if stable_key is None:
        return task
    fields: dict[str, Any] = {}
    for name, value in from_json(task).items():
        if name == "backend":  # which follows it
            fields["stable_key"] = stable_key
        fields[name] = value
    return to_json(fields).decode()


def _beside(
    serving: dict[str, Any],
    *,
    labels: Mapping[str, str],
    selector: Mapping[str, str],
) -> dict[str, Any]:
    """Return a Deployment with other labels, whose pods preempt nobody: they do not serve yet.

    `selector` replaces the component in the serving Deployment's selector.
    """
    metadata, spec = serving["metadata"], serving["spec"]
    template = spec["template"]
    pod_labels = {**template["metadata"]["labels"], **labels}
    selected = {
        key: each for key, each in spec["selector"]["matchLabels"].items() if key != COMPONENT
    }
    pod_spec = {
        name: each for name, each in template["spec"].items() if name != "priorityClassName"
    }
    return {
        **serving,
        "metadata": {**metadata, "labels": {**metadata["labels"], **labels}},
        "spec": {
            **spec,
            "strategy": _STRATEGIES["Recreate"],
            "selector": {"matchLabels": {**selected, **selector}},
            "template": {
                "metadata": {**template["metadata"], "labels": pod_labels},
                "spec": pod_spec,
            },
        },
    }


def pod_templates(
    model: str, revision: str, snapshot: Snapshot, defaults: PodDefaults
) -> dict[str, dict[str, Any]]:
    """Return the pod template of each class of a revision."""
    return {
        each.name: _pod_template(model, revision, snapshot, each, defaults)
        for each in snapshot.classes
    }


def _pod_template(
    model: str,
    revision: str,
    snapshot: Snapshot,
    accelerator: ClassSnapshot,
    defaults: PodDefaults,
) -> dict[str, Any]:
    selector = serving_selector(model, accelerator.name)
    labels = {**of_model(model, SERVE), CLASS: accelerator.name}
    template = snapshot.pod_template
    store, mounted = snapshot.store, accelerator.artifact_image
    task = ServeTask(
        model=model,
        revision=revision,
        prepared_key=snapshot.prepared_key,
        engine_key=accelerator.engine_key,
        backend=accelerator.backend,
        compute_capability=accelerator.compute_capability,
        **snapshot.options(),
        auth=snapshot.auth_secret is not None,
        tls=snapshot.tls_secret is not None,
        promise=snapshot.promise,
        drain_seconds=None
        if snapshot.termination_seconds is None
        else snapshot.termination_seconds - _AFTER_DRAIN_SECONDS,
    ).to_json()
    if snapshot.processes > 1:  # which only the images of earlier releases know
        task = to_json({**from_json(task), "processes": snapshot.processes}).decode()
    resources = _resources(template.get("resources") or _DEFAULT_RESOURCES, accelerator)
    fetch = container(
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
        resources=_without_devices(template.get("resources") or {}) or _DEFAULT_RESOURCES,
        env=(*store.env(), *_cache_env(store, defaults)),
    )
    server = container(
        SERVER,
        accelerator.image,
        ("enginewright-runtime", "serve"),
        pull_policy=defaults.pull_policy,
        task=task,
        mounts=[
            {"name": "artifact", "mountPath": ARTIFACT_PATH, "readOnly": True},
            *_token_mounts(snapshot),
            *_certificate_mounts(snapshot),
            *(template.get("volumeMounts") or ()),
        ],
        resources=resources,
        env=template.get("env") or (),
    )
    server["ports"] = [{"name": "http", "containerPort": HTTP_PORT, "protocol": "TCP"}]
    tls = snapshot.tls_secret is not None
    server["startupProbe"] = _probe(
        LIVE_PATH,
        period=2,
        failures=snapshot.startup // 2,
        tls=tls,
    )
    server["readinessProbe"] = _probe(READY_PATH, period=2, failures=2, tls=tls)
    server["livenessProbe"] = _probe(LIVE_PATH, period=10, failures=6, tls=tls)
    sidecar = _sidecar(snapshot, accelerator, task, defaults)
    account = template.get("serviceAccountName")
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
                *(each["name"] for each in template.get("imagePullSecrets") or ()),
            ]
        ),
        "nodeSelector": _node_selector(template, accelerator, defaults),
        "tolerations": [*accelerator.tolerations, *(template.get("tolerations") or ())],
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                **each,
                "labelSelector": {"matchLabels": dict(selector)},
                "matchLabelKeys": ["pod-template-hash"],
            }
            for each in template.get("topologySpreadConstraints") or (_OVER_NODES,)
        ],
        "initContainers": [fetch, sidecar],
        "containers": [server],
        "volumes": [
            TMP_VOLUME,
            {"name": "artifact", "emptyDir": {}},
            {"name": POD_INFO, "downwardAPI": {"items": _ANNOTATIONS}},
            *store.volumes(read_only=True),
            *(mounted.volumes() if mounted else ()),
            *_secret_volumes(snapshot),
            *(template.get("volumes") or ()),
        ],
    }
    if own := template.get("containerSecurityContext"):
        for each in (fetch, sidecar, server):
            each["securityContext"] = {**each["securityContext"], **own}
    for name in ("runtimeClassName", "priorityClassName", "affinity"):
        if template.get(name):
            spec[name] = template[name]
    if named := store.account(account):
        spec["serviceAccountName"] = named
    if accelerator.device is not None:
        kind = InferenceModel.kind
        spec["resourceClaims"] = pod_claims(template_name(kind, model, accelerator.device))
    return {
        "metadata": {
            "labels": {
                **store.labels(),
                **(template.get("labels") or {}),
                **labels,
                REVISION: revision,
            },
            "annotations": {**store.annotations(account), **(template.get("annotations") or {})},
        },
        "spec": spec,
    }


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


def _token_mounts(snapshot: Snapshot) -> list[dict[str, Any]]:
    if snapshot.auth_secret is None:
        return []
    return [{"name": _TOKENS, "mountPath": TOKENS_PATH, "readOnly": True}]


def _certificate_mounts(snapshot: Snapshot) -> list[dict[str, Any]]:
    if snapshot.tls_secret is None:
        return []
    return [{"name": _TLS, "mountPath": TLS_PATH, "readOnly": True}]


def _secret_volumes(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return the volumes of the Secrets in spec.serving.

    They are optional, so that the server reports a missing one instead of a pod that never starts.
    """
    secrets = {_TOKENS: snapshot.auth_secret, _TLS: snapshot.tls_secret}
    return [
        {"name": volume, "secret": {"secretName": secret, "optional": True}}
        for volume, secret in secrets.items()
        if secret is not None
    ]


def _sidecar(
    snapshot: Snapshot, accelerator: ClassSnapshot, task: str, defaults: PodDefaults
) -> dict[str, Any]:
    """Return the native sidecar: it starts before the server and ends after it.

    The pod is ready only if it is, so that an unverified server gets no requests.
    """
    built = container(
        SIDECAR,
        accelerator.image,
        ("enginewright-runtime", "sidecar"),
        pull_policy=defaults.pull_policy,
        task=task,
        mounts=[
            {"name": "artifact", "mountPath": ARTIFACT_PATH, "readOnly": True},
            {"name": POD_INFO, "mountPath": POD_INFO_PATH, "readOnly": True},
            *_token_mounts(snapshot),  # for copies of requests, which canaries answer
        ],
        resources=dict(snapshot.sidecar_resources) or _sidecar_resources(snapshot),
        env=snapshot.sidecar_env,
    )
    built["restartPolicy"] = "Always"
    built["ports"] = [{"name": SIDECAR, "containerPort": SIDECAR_PORT, "protocol": "TCP"}]
    built["readinessProbe"] = _probe("/readyz", period=2, failures=2, port=SIDECAR)
    built["livenessProbe"] = _probe("/healthz", period=10, failures=6, port=SIDECAR)
    return built


def sidecar_memory(output_bytes: int | None) -> int:
    """Return the sidecar's memory limit in bytes.

    Args:
        output_bytes: of the largest golden sample; None: not known. The sidecar holds one response,
            and a second one if the model's outputs vary; the golden outputs it reads from the file.
    """
    needed = _SIDECAR_OWN + 2 * (output_bytes or 0)
    return max(_SIDECAR_MIN, -(-needed // _SIDECAR_STEP) * _SIDECAR_STEP)


def _sidecar_resources(snapshot: Snapshot) -> dict[str, Any]:
    limit = sidecar_memory(snapshot.golden_output_bytes)
    request = limit - _SIDECAR_UNUSED
    return {
        "requests": {"cpu": "10m", "memory": f"{request // _MIB}Mi"},
        "limits": {"memory": f"{limit // _MIB}Mi"},
    }


def progress_seconds(model: InferenceModel) -> int:
    """Return progressDeadlineSeconds: at least as long as a pod may take to start."""
    requested, startup = model.spec.rollout.progress_timeout, model.spec.serving.startup_timeout
    minimum = int(duration(startup).total_seconds()) if startup else STARTUP_SECONDS
    if requested:
        return max(int(duration(requested).total_seconds()), minimum)
    return max(STARTUP_SECONDS, minimum)


def _without_devices(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the resources without extended ones, which have a domain in their names."""
    sides = {
        side: {name: each for name, each in (wanted.get(side) or {}).items() if "/" not in name}
        for side in ("requests", "limits")
    }
    return {side: each for side, each in sides.items() if each}


def _resources(wanted: Mapping[str, Any], accelerator: ClassSnapshot) -> dict[str, Any]:
    """Add one device of the class: a claim, or an extended resource, which is set as a limit."""
    if accelerator.device is not None:
        return with_claim(wanted)
    if accelerator.resource_name is None:
        return dict(wanted)
    limits = {**(wanted.get("limits") or {}), accelerator.resource_name: "1"}
    return {**wanted, "limits": limits}


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
