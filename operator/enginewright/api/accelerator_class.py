"""AcceleratorClass: a kind of device that one engine fits, as an administrator describes it."""

from enum import StrEnum
from typing import Annotated, ClassVar, TypeAlias

from enginewright_contract.processors import Feature
from pydantic import ConfigDict, Field

from enginewright.api.base import ApiModel, ObjectMeta
from enginewright.api.conditions import Condition
from enginewright.api.devices import DeviceRequest
from enginewright.api.markers import (
    ATOMIC,
    INT32,
    INT64,
    ValidationRule,
    map_list,
    rules,
    short_name,
)
from enginewright.api.pods import Tolerations
from enginewright.api.scalars import Labels


class Backend(StrEnum):
    """How a class of accelerator runs a model."""

    TENSORRT = "tensorrt"
    TENSORRT_RTX = "tensorrt-rtx"
    CUDA = "cuda"
    OPENVINO = "openvino"
    CPU = "cpu"


Backends: TypeAlias = Annotated[
    tuple[
        Annotated[
            Backend,
            Field(description="One of tensorrt, tensorrt-rtx, cuda, openvino, cpu."),
        ],
        ...,
    ],
    Field(min_length=1, max_length=5),
    ATOMIC,
    ValidationRule(
        "self.all(x, self.exists_one(y, x == y))",
        "name each backend once, the preferred one first",
    ),
]


class AcceleratorClassSpec(ApiModel):
    """Which nodes belong to the class, what pods request from them, and which backends may run there."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ValidationRule(
                "!has(self.aheadOfTime) || !self.aheadOfTime || has(self.computeCapability)",
                "aheadOfTime builds for a compute capability without a device: write"
                ' computeCapability, such as "8.9", or set aheadOfTime to false',
                field_path=".aheadOfTime",
            ),
            ValidationRule(
                "!has(self.resourceName) || !has(self.device)",
                "pods request a device either as resourceName, of a device plugin, or as device, of Dynamic"
                " Resource Allocation: remove one of them",
                field_path=".device",
            ),
        )
    )

    node_selector: Annotated[
        Labels,
        ValidationRule(
            "size(self) >= 1",
            "write at least one label of the nodes, such as kubernetes.io/os: linux",
        ),
    ]
    """Labels of the nodes that belong to the class, such as nvidia.com/gpu.product: NVIDIA-L4."""

    resource_name: Annotated[
        str | None,
        Field(max_length=253),
        ValidationRule(
            "self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$')",
            "write an extended resource as DOMAIN/NAME, such as nvidia.com/gpu or nvidia.com/mig-1g.10gb",
        ),
    ] = None
    """Extended resource of which each pod requests one, such as nvidia.com/gpu; absent: none, as on CPUs."""

    device: DeviceRequest | None = None
    """Device that each pod requests by Dynamic Resource Allocation (resource.k8s.io/v1) instead of resourceName."""

    tolerations: Tolerations = ()
    """Taints of these nodes that pods of the class tolerate."""

    compute_capability: Annotated[
        str | None,
        Field(max_length=8),
        ValidationRule(
            "self.matches('^[0-9]{1,2}[.][0-9]{1,2}$')",
            'write the compute capability as MAJOR.MINOR in quotes, such as "8.9"',
        ),
    ] = None
    """CUDA compute capability of the devices, in quotes, such as "8.9"."""

    cpu_features: Annotated[
        tuple[
            Annotated[
                Feature, Field(description="One of AVX2, AVX512, VNNI, AMX, ASIMDDP, I8MM, SVE.")
            ],
            ...,
        ]
        | None,
        Field(max_length=7),
        ATOMIC,
        ValidationRule("self.all(x, self.exists_one(y, x == y))", "name each instruction set once"),
    ] = None
    """Instruction sets that every node of a class of CPUs has, such as AVX512 and VNNI; absent: only those that nodeSelector requires by labels of Node Feature Discovery are assumed."""

    backends: Backends
    """Backends that may run on the class, the preferred one first."""

    ahead_of_time: bool = False
    """Whether engines are built for the compute capability without a device of the class."""


class AcceleratorClassStatus(ApiModel):
    """Observed state of the class; written by the operator."""

    observed_generation: Annotated[int, INT64] = 0
    """metadata.generation that this status reflects; older: not yet reconciled; -1: never."""

    nodes: Annotated[int, INT32] = 0
    """How many nodes match the selector."""

    conditions: Annotated[tuple[Condition, ...], Field(max_length=32), map_list("type")] = ()
    """Statements about the class: Ready and why."""


class AcceleratorClass(ApiModel):
    """A kind of device that one engine fits: a GPU product, a MIG profile, or plain CPUs."""

    model_config = ConfigDict(
        json_schema_extra=short_name("a class's name is part of other objects' names")
    )

    kind: ClassVar[str] = "AcceleratorClass"
    plural: ClassVar[str] = "acceleratorclasses"

    metadata: ObjectMeta
    spec: AcceleratorClassSpec
    """Which nodes belong to the class, what pods request from them, and which backends may run there."""

    status: AcceleratorClassStatus = AcceleratorClassStatus()
    """Observed state of the class; written by the operator."""
