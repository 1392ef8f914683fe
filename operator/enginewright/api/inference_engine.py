"""InferenceEngine: a prepared model compiled for one class of accelerator, and the memory of it.

No model owns it: two models with the same key share it, it outlives them as cache, and it remembers
failures by key, so that a Job that has been cleaned away starts no loop of builds. A model's pass
makes it and reads it; its own controller runs the Job and writes the status.
"""

from typing import Annotated, ClassVar, TypeAlias

from pydantic import ConfigDict, Field

from enginewright.api.accelerator_class import Backend
from enginewright.api.base import ApiModel, ObjectMeta
from enginewright.api.conditions import Condition
from enginewright.api.job_failure import JobFailure
from enginewright.api.markers import (
    ATOMIC,
    INT32,
    INT64,
    ValidationRule,
    map_list,
    rules,
    short_name,
)
from enginewright.api.pods import JobTemplate, LocalObjectReference, Resources, Tolerations
from enginewright.api.scalars import DnsLabel, Labels, Sha256
from enginewright.contract.base import LIST_LENGTH, Digest, Text

Count: TypeAlias = Annotated[int, INT32]
Size: TypeAlias = Annotated[int, INT64]

_WHAT = ("key", "preparedKey", "class", "backend", "recipe")


class EngineRecipeSpec(ApiModel):
    """What decides the engine beside the prepared model, the class and the backend."""

    backend_version: Text
    """Version of the backend's library in the runtime image that builds."""

    ort_version: Text
    """Version of ONNX Runtime in that image."""

    cuda_major: Text | None = None
    """Major version of CUDA that the image's libraries are built for."""

    device: Text = ""
    """What the devices of the class are: product and resource; empty: the class's selector names no product."""

    compute_capability: Text | None = None
    """Compute capability that it is built for, such as 8.9; absent: that of the device it is built on."""

    ahead_of_time: bool = False
    """Whether it is built without a device."""

    workspace_bytes: Size | None = None
    """Device memory that the build may use, as requested; absent: the builder's own limit."""


class EngineBuild(ApiModel):
    """How the Job runs; it may change while there is no engine, and decides nothing of its content."""

    image: Annotated[str, Field(max_length=1024)]
    """Runtime image that builds."""

    timeout_seconds: Annotated[int, Field(ge=1), INT64]
    """How long its pod may run on a node; waiting for a free device does not count."""

    resources: Resources = Resources()
    """Compute resources of every stage."""

    resource_name: Annotated[str, Field(max_length=253)] | None = None
    """Extended resource of which the Job requests one; absent: none."""

    node_selector: Labels = Field(default_factory=dict)
    """Labels of the nodes that it may run on; empty: any."""

    tolerations: Tolerations = ()
    """Taints that the Job tolerates."""

    runtime_class_name: Annotated[str, Field(max_length=253)] | None = None
    """RuntimeClass of the pod, where devices require one."""

    image_pull_secrets: Annotated[
        tuple[LocalObjectReference, ...], Field(max_length=16), ATOMIC
    ] = ()
    """Secrets of this namespace for the image's registry."""


class InferenceEngineSpec(ApiModel):
    """Which engine, and how it is built."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            *(
                ValidationRule(
                    f"self.{name} == oldSelf.{name}",
                    "an engine is what its key says: make another InferenceEngine instead",
                    field_path=f".{name}",
                )
                for name in _WHAT
            )
        )
    )

    key: Sha256
    """Key of the engine in the store, engines/KEY/: a sha256 over all that decides its content."""

    prepared_key: Sha256
    """Key of the prepared model that it is made from, prepared/KEY/."""

    class_name: Annotated[DnsLabel, Field(alias="class")]
    """AcceleratorClass that it is built for."""

    backend: Annotated[
        Backend,
        ValidationRule(
            "self in ['tensorrt', 'tensorrt-rtx']",
            "only tensorrt and tensorrt-rtx run engines: name one of them",
        ),
    ]
    """Backend that runs it: tensorrt or tensorrt-rtx."""

    recipe: EngineRecipeSpec
    """What decides the engine beside the prepared model, the class and the backend."""

    build: EngineBuild
    """How the Job runs; it decides nothing of the engine's content."""

    pod_template: JobTemplate = JobTemplate()
    """Where its Jobs run and what is added to them; it may change while there is no engine."""

    architecture: Text = ""
    """Processor architecture of the nodes for Jobs that need none of the class, such as amd64: that of the image; empty: any."""


class EngineFacts(ApiModel):
    """The engine, as the Job that built it reported."""

    sha256: Digest
    """Digest of the engine file."""

    size_bytes: Size
    """Size of the engine file in bytes."""

    build_milliseconds: Size
    """Time that the builder took."""

    compute_capabilities: Annotated[
        tuple[Annotated[Text, Field(description="A compute capability, such as 8.9.")], ...],
        Field(max_length=LIST_LENGTH),
        ATOMIC,
    ] = ()
    """Compute capabilities that it runs on."""

    nodes_total: Size
    """Nodes of the prepared model that compute, shape arithmetic left out."""

    nodes_accelerated: Size
    """How many of them are inside the engine."""

    compute_billionths_elsewhere: Count | None = None
    """Billionths of the profiled compute time outside the engine; absent: not profiled."""

    compute_permille_elsewhere: Count | None = None
    """Of engines built by earlier versions, in place of computeBillionthsElsewhere: thousandths, rounded up."""

    elsewhere: Annotated[
        tuple[Annotated[Text, Field(description="A node: name (OpType).")], ...],
        Field(max_length=LIST_LENGTH),
        ATOMIC,
    ] = ()
    """The first nodes that are not in the engine."""

    workspace_bytes: Size | None = None
    """Device memory limit of the build that succeeded."""

    p99_microseconds: Size | None = None
    """99th percentile of its latency on a device of the class; absent: built without one."""

    cached: bool = False
    """Whether it was found in the store, so that no build was needed."""


class EngineSummary(ApiModel):
    """One-string fields for `kubectl get`."""

    capability: Text = ""
    """Compute capabilities that it runs on or is built for, such as 8.9."""

    size: Text = ""
    """Size of the engine file, such as 3.5MB."""

    build: Text = ""
    """Time that the builder took, such as 12s."""

    nodes: Text = ""
    """Nodes inside the engine, of all that compute, such as 412/415."""


class InferenceEngineStatus(ApiModel):
    """Observed state; written by the operator."""

    observed_generation: Size = 0
    """metadata.generation that this status is about; older: not yet reconciled."""

    conditions: Annotated[tuple[Condition, ...], Field(max_length=32), map_list("type")] = ()
    """Statements about the engine: Ready, Reconciling, Stalled."""

    job: Annotated[str, Field(max_length=253)] = ""
    """Name of the Job that builds it or built it last."""

    stage: Text = ""
    """Stage that runs or ran last: lookup, build, verify, benchmark, publish-engine."""

    percent: Count | None = None
    """How far the stage is, in percent, rounded down to tens; absent: not reported."""

    placed: bool = False
    """Whether the pod that builds it has a node."""

    attempt: Count = 0
    """Number of the Job for this build, from 1."""

    build_hash: Digest = ""
    """Hash of spec.build that attempt and failure are about."""

    failure: JobFailure | None = None
    """The last failure of this build; absent: none."""

    failed_builds: Annotated[
        tuple[Annotated[Digest, Field(description="A hash of spec.build.")], ...],
        Field(max_length=LIST_LENGTH),
        ATOMIC,
    ] = ()
    """Hashes of spec.build with which the build failed permanently, so that none is retried."""

    engine: EngineFacts | None = None
    """The engine; absent: not there yet."""

    summary: EngineSummary = EngineSummary()
    """One-string fields for `kubectl get`."""


class InferenceEngine(ApiModel):
    """A prepared model compiled for one class of accelerator."""

    model_config = ConfigDict(
        json_schema_extra=short_name("an engine is named in labels of its Jobs")
    )

    kind: ClassVar[str] = "InferenceEngine"
    plural: ClassVar[str] = "inferenceengines"

    metadata: ObjectMeta
    spec: InferenceEngineSpec
    """Which engine, and how it is built."""

    status: InferenceEngineStatus = InferenceEngineStatus()
    """Observed state; written by the operator."""
