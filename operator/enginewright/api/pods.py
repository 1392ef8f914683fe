"""The usual subset of a pod's fields, in Kubernetes' own shapes."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import ConfigDict, Field

from enginewright.api.base import ApiModel
from enginewright.api.markers import ATOMIC, INT64, Rule, rules
from enginewright.api.scalars import FreeForm, Labels, ObjectName, Quantity

_OURS = Rule(
    "self.all(k, !k.startsWith('enginewright.dev/'))",
    "names below enginewright.dev/ belong to the operator: choose another prefix",
)

ResourceQuantity: TypeAlias = Annotated[
    Quantity, Field(description="A quantity, such as 2, 500m or 4Gi.")
]
Quantities: TypeAlias = Annotated[Mapping[str, ResourceQuantity], Field(max_length=8)]


def _within_limit(name: str) -> str:
    """Return CEL: the request of `name` is at most its limit, or one of them is no quantity."""
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
                Rule(
                    f"!has(self.requests) || !has(self.limits) || {_within_limit(name)}",
                    f"the request for {name} must not exceed its limit: lower the request or raise the limit",
                )
                for name in ("cpu", "memory", "ephemeral-storage")
            )
        )
    )

    requests: Quantities = Field(default_factory=dict)
    """What the scheduler sets aside, by resource, such as cpu: "2" or memory: 4Gi."""

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
    """With effect NoExecute: for how many seconds the taint is tolerated; absent: for ever."""


Tolerations: TypeAlias = Annotated[tuple[Toleration, ...], Field(max_length=32), ATOMIC]


class LocalObjectReference(ApiModel):
    """Names an object in the same namespace."""

    name: ObjectName
    """Name of the object."""


_Annotations: TypeAlias = Annotated[
    Mapping[str, Annotated[str, Field(max_length=4096, description="Value of the annotation.")]],
    Field(max_length=64),
    Rule(
        "self.all(k, !format.qualifiedName().validate(k).hasValue())",
        "write annotation names as Kubernetes has them: note or example.com/note",
    ),
    _OURS,
]
_PullSecrets: TypeAlias = Annotated[tuple[LocalObjectReference, ...], Field(max_length=16), ATOMIC]


class JobTemplate(ApiModel):
    """Where the Jobs run and what is added to them; it decides nothing of what they make."""

    labels: Annotated[Labels, _OURS] = Field(default_factory=dict)
    """Labels added to the Jobs and their pods, such as kueue.x-k8s.io/queue-name; Kueue's stand on the Jobs alone."""

    annotations: _Annotations = Field(default_factory=dict)
    """Annotations added to the Jobs and their pods."""

    node_selector: Labels = Field(default_factory=dict)
    """Labels that a node must have, besides those that the accelerator class asks for where a Job needs its nodes."""

    tolerations: Tolerations = ()
    """Taints that the pods tolerate, besides those of the accelerator class where a Job needs its nodes."""

    affinity: FreeForm | None = None
    """Affinity of the pods, as in `kubectl explain pod.spec.affinity`."""

    image_pull_secrets: _PullSecrets = ()
    """Secrets of this namespace with which the runtime image is pulled, besides spec.podTemplate.imagePullSecrets."""

    runtime_class_name: ObjectName | None = None
    """RuntimeClass of the pods; absent: for builds on a device that of spec.podTemplate, else none."""

    priority_class_name: ObjectName | None = None
    """PriorityClass of the pods."""


ANYWHERE: Final = JobTemplate()


class PodTemplate(ApiModel):
    """What is added to the pods that serve the model."""

    labels: Annotated[Labels, _OURS] = Field(default_factory=dict)
    """Labels added to the pods."""

    annotations: _Annotations = Field(default_factory=dict)
    """Annotations added to the pods."""

    resources: Resources = Resources()
    """Compute resources of the serving container. Its limit of memory bounds the model that fits."""

    node_selector: Labels = Field(default_factory=dict)
    """Labels that a node must have, besides those that the accelerator class asks for."""

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
