"""The common subset of a pod's fields, with the names and structure of Kubernetes."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import ConfigDict, Field

from enginewright.api.base import ApiModel
from enginewright.api.markers import ATOMIC, INT32, INT64, ValidationRule, map_list, rules
from enginewright.api.scalars import DnsLabel, FreeForm, Labels, ObjectName, Quantity

OUR_VOLUMES: Final = ("artifact", "podinfo", "store", "tmp")
VOLUME_KINDS: Final = (
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
)
# Nothing can be mounted below these: they are read-only, or belong to the kernel.
_OUR_FOLDERS: Final = ("artifact", "dev", "podinfo", "proc", "store", "sys")
_SYSTEM_FOLDERS: Final = ("bin", "etc", "lib", "lib64", "opt", "sbin", "tmp", "usr", "var")

_OURS = ValidationRule(
    "self.all(k, !k.startsWith('enginewright.dev/'))",
    "names below enginewright.dev/ belong to the operator: choose another prefix",
)

ResourceQuantity: TypeAlias = Annotated[
    Quantity, Field(description="A quantity, such as 2, 500m or 4Gi.")
]
Quantities: TypeAlias = Annotated[Mapping[str, ResourceQuantity], Field(max_length=8)]


def _within_limit(name: str) -> str:
    """Return CEL: the request of `name` is at most its limit, or one of them is not a quantity."""
    request, limit = (f"string(self.{side}['{name}'])" for side in ("requests", "limits"))
    return (
        f"!('{name}' in self.requests && '{name}' in self.limits)"
        f" || !isQuantity({request}) || !isQuantity({limit})"
        f" || quantity({request}).compareTo(quantity({limit})) <= 0"
    )


class Resources(ApiModel):
    """Compute resources, as in a container."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            *(
                ValidationRule(
                    f"!has(self.requests) || !has(self.limits) || {_within_limit(name)}",
                    f"the request for {name} must not exceed its limit: lower the request or raise the limit",
                )
                for name in ("cpu", "memory", "ephemeral-storage")
            )
        )
    )

    requests: Quantities = Field(default_factory=dict)
    """What the scheduler reserves, by resource, such as cpu: "2" or memory: 4Gi."""

    limits: Quantities = Field(default_factory=dict)
    """What may be used at most, by resource, such as memory: 8Gi."""


class Toleration(ApiModel):
    """Lets pods onto nodes with a matching taint, as in a pod."""

    key: Annotated[str, Field(max_length=316)] = ""
    """Key of the taint; empty with operator Exists matches every taint."""

    operator: Literal["Exists", "Equal"] | None = None
    """How the taint's value is compared: Equal (when absent) or Exists, which takes no value."""

    value: Annotated[str, Field(max_length=63)] = ""
    """Value of the taint, with operator Equal."""

    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint; absent: every effect."""

    toleration_seconds: Annotated[int, INT64] | None = None
    """With effect NoExecute: for how many seconds the taint is tolerated; absent: forever."""


Tolerations: TypeAlias = Annotated[tuple[Toleration, ...], Field(max_length=32), ATOMIC]


class LocalObjectReference(ApiModel):
    """Names an object in the same namespace."""

    name: ObjectName
    """Name of the object."""


_Annotations: TypeAlias = Annotated[
    Mapping[str, Annotated[str, Field(max_length=4096, description="Value of the annotation.")]],
    Field(max_length=64),
    ValidationRule(
        "self.all(k, !format.qualifiedName().validate(k).hasValue())",
        "write annotation names as Kubernetes has them: note or example.com/note",
    ),
    _OURS,
]
_PullSecrets: TypeAlias = Annotated[tuple[LocalObjectReference, ...], Field(max_length=16), ATOMIC]


class SecurityContext(ApiModel):
    """Identity of the processes. They never run as root."""

    run_as_user: Annotated[int, Field(ge=1), INT64] | None = None
    """UID of the processes; absent: 65532, or the one that the cluster assigns if the chart has openshift: true."""

    run_as_group: Annotated[int, Field(ge=1), INT64] | None = None
    """GID of the processes; absent: likewise."""

    se_linux_options: FreeForm | None = None
    """As in `kubectl explain pod.spec.securityContext.seLinuxOptions`."""

    seccomp_profile: FreeForm | None = None
    """As in `kubectl explain pod.spec.securityContext.seccompProfile`; absent: RuntimeDefault."""

    app_armor_profile: FreeForm | None = None
    """As in `kubectl explain pod.spec.securityContext.appArmorProfile`."""


class PodSecurityContext(SecurityContext):
    """Identity of a pod's processes and group of its volumes."""

    fs_group: Annotated[int, Field(ge=1), INT64] | None = None
    """GID that owns the volumes; absent: likewise."""

    fs_group_change_policy: Literal["OnRootMismatch", "Always"] | None = None
    """When ownership of a volume's files is changed to that group: OnRootMismatch (when absent) or Always."""

    supplemental_groups: Annotated[
        tuple[Annotated[int, INT64, Field(description="A GID.")], ...],
        Field(max_length=32),
        ATOMIC,
    ] = ()
    """GIDs of further groups, such as that of a shared file system."""


class ContainerSecurityContext(SecurityContext):
    """Overrides for the containers of a pod; they cannot grant privileges."""

    read_only_root_filesystem: bool | None = None
    """Whether the root filesystem is read-only; absent: it is."""


class EnvironmentVariable(ApiModel):
    """A variable of a container's environment."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ValidationRule(
                "!has(self.value) || !has(self.valueFrom)",
                "write value or valueFrom, not both",
            )
        )
    )

    name: Annotated[
        str,
        Field(min_length=1, max_length=253),
        ValidationRule(
            "self.matches('^[-._a-zA-Z][-._a-zA-Z0-9]*$')",
            "write the name of a variable: letters, digits, '_', '-' and '.', not beginning with a digit",
        ),
        ValidationRule(
            "!self.startsWith('ENGINEWRIGHT_')",
            "variables that begin with ENGINEWRIGHT_ belong to the operator: choose another name",
        ),
    ]
    """Name of the variable."""

    value: Annotated[str, Field(max_length=8192)] | None = None
    """Its value; $(NAME) refers to a variable defined before it."""

    value_from: FreeForm | None = None
    """Where its value comes from, as in `kubectl explain pod.spec.containers.env.valueFrom`."""


Environment: TypeAlias = Annotated[
    tuple[EnvironmentVariable, ...], Field(max_length=64), map_list("name")
]


class TopologySpread(ApiModel):
    """How pods spread over topology domains; the operator sets which pods are counted."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ValidationRule(
                "!has(self.minDomains) || self.whenUnsatisfiable == 'DoNotSchedule'",
                "minDomains requires whenUnsatisfiable: DoNotSchedule",
            )
        )
    )

    max_skew: Annotated[int, Field(ge=1), INT32] = 1
    """By how many pods two topology domains may differ."""

    topology_key: Annotated[str, Field(min_length=1, max_length=316)]
    """Node label whose values are the topology domains, such as topology.kubernetes.io/zone."""

    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"]
    """What happens to a pod that no node satisfies: DoNotSchedule or ScheduleAnyway."""

    min_domains: Annotated[int, Field(ge=1), INT32] | None = None
    """Minimum number of topology domains, also where fewer have nodes."""

    node_affinity_policy: Literal["Honor", "Ignore"] | None = None
    """Whether nodes that do not match the pod's nodeSelector and affinity are excluded: Honor (when absent) or, to include them, Ignore."""

    node_taints_policy: Literal["Honor", "Ignore"] | None = None
    """Whether nodes with taints that the pod does not tolerate are excluded: Honor or, to include them, Ignore (when absent)."""


class Volume(ApiModel):
    """A volume of the kinds that the restricted Pod Security Standard allows."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ValidationRule(
                f"[{', '.join(f'has(self.{kind})' for kind in VOLUME_KINDS)}].exists_one(x, x)",
                f"write exactly one of {', '.join(VOLUME_KINDS)}",
            )
        )
    )

    name: Annotated[
        DnsLabel,
        ValidationRule(
            f"!(self in {list(OUR_VOLUMES)}) && !self.startsWith('enginewright-')",
            f"{', '.join(OUR_VOLUMES)} and names that begin with enginewright- belong to the operator: choose another name",
        ),
    ]
    """Name of the volume."""

    config_map: FreeForm | None = None
    """As in `kubectl explain pod.spec.volumes.configMap`."""

    csi: FreeForm | None = None
    """As in `kubectl explain pod.spec.volumes.csi`."""

    downward_api: Annotated[FreeForm | None, Field(alias="downwardAPI")] = None
    """As in `kubectl explain pod.spec.volumes.downwardAPI`."""

    empty_dir: FreeForm | None = None
    """As in `kubectl explain pod.spec.volumes.emptyDir`."""

    ephemeral: FreeForm | None = None
    """As in `kubectl explain pod.spec.volumes.ephemeral`."""

    persistent_volume_claim: FreeForm | None = None
    """As in `kubectl explain pod.spec.volumes.persistentVolumeClaim`."""

    projected: FreeForm | None = None
    """As in `kubectl explain pod.spec.volumes.projected`."""

    secret: FreeForm | None = None
    """As in `kubectl explain pod.spec.volumes.secret`."""


class VolumeMount(ApiModel):
    """Where a volume is mounted in the serving container."""

    name: DnsLabel
    """Name of one of the volumes."""

    mount_path: Annotated[
        str,
        Field(min_length=1, max_length=1024),
        ValidationRule(
            "self.matches('^/[^:]*$') && !self.matches('/[.]{1,2}(/|$)') && !self.matches('//')",
            "write an absolute path without ':', '.', '..' and empty components",
        ),
        ValidationRule(
            f"!self.matches('^/({'|'.join((*_OUR_FOLDERS, *_SYSTEM_FOLDERS))})?/?$')"
            f" && !self.matches('^/({'|'.join(_OUR_FOLDERS)})/')",
            "this path is reserved for the operator or the image: choose another one, such as /data",
        ),
    ]
    """Path in the container, such as /data."""

    sub_path: Annotated[str, Field(max_length=1024)] = ""
    """Path inside the volume; empty: its root."""

    read_only: bool = False
    """Whether the volume is mounted read-only."""


class JobTemplate(ApiModel):
    """Where the Jobs run and what is added to them; it does not affect what they produce."""

    labels: Annotated[Labels, _OURS] = Field(default_factory=dict)
    """Labels added to the Jobs and their pods, such as kueue.x-k8s.io/queue-name; those of Kueue are added only to the Jobs."""

    annotations: _Annotations = Field(default_factory=dict)
    """Annotations added to the Jobs and their pods."""

    node_selector: Labels = Field(default_factory=dict)
    """Labels that a node must have, besides those of the accelerator class for Jobs that need its nodes."""

    tolerations: Tolerations = ()
    """Taints that the pods tolerate, besides those of the accelerator class for Jobs that need its nodes."""

    affinity: FreeForm | None = None
    """Affinity of the pods, as in `kubectl explain pod.spec.affinity`."""

    image_pull_secrets: _PullSecrets = ()
    """Secrets of this namespace with which the runtime image is pulled, besides spec.podTemplate.imagePullSecrets."""

    runtime_class_name: ObjectName | None = None
    """RuntimeClass of the pods; absent: that of spec.podTemplate for builds on a device, else none."""

    priority_class_name: ObjectName | None = None
    """PriorityClass of the pods; absent: that of the chart, with which they give way to serving pods."""

    security_context: PodSecurityContext = PodSecurityContext()
    """Identity of the pods' processes; the serving pods must be able to read the files that they write."""


DEFAULT_JOB_TEMPLATE: Final = JobTemplate()


class PodTemplate(ApiModel):
    """Fields added to the pods that serve the model."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ValidationRule(
                "!has(self.volumeMounts) || self.volumeMounts.all(m,"
                " has(self.volumes) && self.volumes.exists(v, v.name == m.name))",
                "name one of podTemplate.volumes in each volumeMount",
                field_path=".volumeMounts",
            )
        )
    )

    labels: Annotated[Labels, _OURS] = Field(default_factory=dict)
    """Labels added to the pods. Names below enginewright.dev/ are reserved."""

    annotations: _Annotations = Field(default_factory=dict)
    """Annotations added to the pods."""

    resources: Resources = Resources()
    """Compute resources of the serving container; absent: requests of 250m CPU and 256Mi. One device of the class is added."""

    node_selector: Labels = Field(default_factory=dict)
    """Labels that a node must have, besides those that the accelerator class requires."""

    tolerations: Tolerations = ()
    """Taints that the pods tolerate, besides those of the accelerator class."""

    affinity: FreeForm | None = None
    """Affinity of the pods, as in `kubectl explain pod.spec.affinity`."""

    service_account_name: ObjectName | None = None
    """Service account of the pods and of the Job that fetches the model. Absent: the namespace's default, and no token is mounted."""

    image_pull_secrets: _PullSecrets = ()
    """Secrets of this namespace with which the runtime image is pulled, also for the Jobs."""

    runtime_class_name: ObjectName | None = None
    """RuntimeClass of the pods, such as nvidia."""

    priority_class_name: ObjectName | None = None
    """PriorityClass of the pods."""

    env: Environment = ()
    """Environment of the serving container. Names that begin with ENGINEWRIGHT_ are reserved."""

    topology_spread_constraints: Annotated[
        tuple[TopologySpread, ...],
        Field(max_length=8),
        map_list("topologyKey", "whenUnsatisfiable"),
    ] = ()
    """How the pods of one class and revision spread, without labelSelector; absent: over nodes, if possible."""

    volumes: Annotated[tuple[Volume, ...], Field(max_length=16), map_list("name")] = ()
    """Further volumes of the pods, of the types that Pod Security restricted allows. The names artifact, podinfo, store and tmp are reserved."""

    volume_mounts: Annotated[
        tuple[VolumeMount, ...], Field(max_length=16), map_list("mountPath")
    ] = ()
    """Where the serving container mounts them. Paths below /artifact, /store, /podinfo, /dev, /proc, /sys and folders of the image are rejected."""

    security_context: PodSecurityContext = PodSecurityContext()
    """Identity of the pods' processes."""

    container_security_context: ContainerSecurityContext = ContainerSecurityContext()
    """Overrides for the containers of the pods."""
