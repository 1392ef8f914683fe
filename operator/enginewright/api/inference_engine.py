"""InferenceEngine: a prepared model compiled for one class of accelerator.

No model owns it: two models with the same key share it, it outlives them as a cache, and it records
failures by key, so that a build that failed permanently is not repeated after its Job was deleted.
The model's reconciliation creates and reads it; its own controller runs the Job and writes the status.
"""

from datetime import datetime
from typing import Annotated, ClassVar, TypeAlias

from enginewright_contract.base import LIST_LENGTH, Digest, Text
from pydantic import ConfigDict, Field

from enginewright.api.accelerator_class import Backend, Backends
from enginewright.api.base import ApiModel, ObjectMeta
from enginewright.api.conditions import Condition
from enginewright.api.devices import DeviceRequest
from enginewright.api.inference_model_status import Prepared
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

Count: TypeAlias = Annotated[int, INT32]
Size: TypeAlias = Annotated[int, INT64]

_IMMUTABLE = ("key", "preparedKey", "class", "backend", "recipe")


class EngineRecipeSpec(ApiModel):
    """What decides the engine besides the prepared model, the class and the backend."""

    backend_version: Text
    """Version of the backend's library in the runtime image that builds."""

    ort_version: Text
    """Version of ONNX Runtime in that image."""

    cuda_major: Text | None = None
    """Major version of CUDA that the image's libraries are built for."""

    device: Text = ""
    """Product, memory, processor architecture and resource of the class's devices, as far as its nodeSelector names them; empty: it names no product."""

    compute_capability: Text | None = None
    """Compute capability that it is built for, such as 8.9; absent: that of the device it is built on."""

    ahead_of_time: bool = False
    """Whether it is built without a device."""

    workspace_bytes: Size | None = None
    """Device memory that the build may use, as requested; absent: the builder's own limit."""

    optimization_level: Annotated[int, INT32] | None = None
    """TensorRT's builder_optimization_level, as requested; absent: the builder's default."""


class EngineBuild(ApiModel):
    """How the Job runs; it does not affect the engine's content and may change until it is built."""

    image: Annotated[str, Field(max_length=1024)]
    """Runtime image that builds it."""

    timeout_seconds: Annotated[int, Field(ge=1), INT64]
    """How long its pod may run on a node; waiting for a free device does not count."""

    resources: Resources = Resources()
    """Compute resources of every stage."""

    resource_name: Annotated[str, Field(max_length=253)] | None = None
    """Extended resource of which the Job requests one; absent: none."""

    device: DeviceRequest | None = None
    """Device that the Job requests by Dynamic Resource Allocation; absent: none."""

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

    benchmark_backends: Backends | None = None
    """Other backends on which the Job measures the prepared model, to find the fastest; absent: none."""


class InferenceEngineSpec(ApiModel):
    """Which engine, and how it is built."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            *(
                ValidationRule(
                    f"self.{name} == oldSelf.{name}",
                    "its key identifies an engine: create another InferenceEngine instead",
                    field_path=f".{name}",
                )
                for name in _IMMUTABLE
            )
        )
    )

    key: Sha256
    """Key of the engine in the store, engines/KEY/: a sha256 over everything that decides its content."""

    prepared_key: Sha256
    """Key of the prepared model that it is built from, prepared/KEY/."""

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
    """What decides the engine besides the prepared model, the class and the backend."""

    build: EngineBuild
    """How the Job runs; it does not affect the engine's content."""

    pod_template: JobTemplate = JobTemplate()
    """Where its Jobs run and what is added to them; it may change until the engine is built."""

    architecture: Text = ""
    """Processor architecture of nodes for Jobs that do not need a node of the class, such as amd64: that of the image; empty: any."""


class EngineLatency(ApiModel):
    """How long one run of the engine takes with one set of sizes."""

    shapes: Text
    """Sizes that it was measured with: min, opt or max of the shape profiles, or the name of a golden sample."""

    p50_microseconds: Size
    """Median."""

    p99_microseconds: Size
    """99th percentile."""


class EngineBackend(ApiModel):
    """How long one run takes on a backend with the usual sizes, or why that cannot serve."""

    backend: Text
    """Backend: the engine's own, or one that runs the prepared model."""

    shapes: Text = ""
    """Sizes that it was measured with: opt of the shape profiles, or the name of a golden sample; empty: it is excluded."""

    p50_microseconds: Size | None = None
    """Median; absent: it is excluded."""

    p99_microseconds: Size | None = None
    """99th percentile; absent: it is excluded."""

    excluded: Text = ""
    """Why it cannot serve: it does not load, gives other outputs or runs only a part of the model; empty: it can."""


class EngineParity(ApiModel):
    """How far the engine's outputs are from those of a reference, over all golden samples."""

    compared_with: Text
    """The reference: prepared, or source if the prepared model has a lower precision than it."""

    max_abs_error: Text
    """Largest absolute difference, such as 1.2e-05."""

    max_rel_error: Text = ""
    """Largest relative difference; empty: there is none, as where the reference is 0."""

    unjudged: Text = ""
    """Parts of outputs that the golden samples do not judge and `spec.parity.outputs` does not accept; empty: there are none."""


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
    """Compute nodes of the prepared model, shape arithmetic excluded."""

    nodes_accelerated: Size
    """How many of them are inside the engine."""

    compute_billionths_elsewhere: Count | None = None
    """Billionths of the profiled compute time outside the engine; absent: not profiled."""

    compute_permille_elsewhere: Count | None = None
    """Written by earlier versions instead of computeBillionthsElsewhere: thousandths, rounded up."""

    @property
    def billionths_elsewhere(self) -> int | None:
        """Return the profiled compute time outside the engine, also of one built by an earlier version."""
        if (
            self.compute_billionths_elsewhere is None
            and self.compute_permille_elsewhere is not None
        ):
            return self.compute_permille_elsewhere * 1_000_000
        return self.compute_billionths_elsewhere

    elsewhere: Annotated[
        tuple[Annotated[Text, Field(description="A node: name (OpType).")], ...],
        Field(max_length=LIST_LENGTH),
        ATOMIC,
    ] = ()
    """The first nodes that are not in the engine."""

    workspace_bytes: Size | None = None
    """Device memory limit of the build that succeeded."""

    p99_microseconds: Size | None = None
    """99th percentile of its latency on a device of the class; absent: built without a device."""

    latencies: Annotated[tuple[EngineLatency, ...], Field(max_length=LIST_LENGTH), ATOMIC] = ()
    """Latencies on a device of the class, of every set of sizes that was measured; empty: built without a device."""

    backends: Annotated[tuple[EngineBackend, ...], Field(max_length=LIST_LENGTH), ATOMIC] = ()
    """Backends that were compared on that device, the engine's own first; empty: none were."""

    parity: EngineParity | None = None
    """Largest differences of its outputs, as verified on a device; absent: built without one, so that serving pods verify them."""

    cached: bool = False
    """Whether it was found in the store, so that no build was needed."""

    image: Text | None = None
    """Its OCI image, REPOSITORY@DIGEST, which serving pods mount; absent: there is none."""

    image_failure: Text = ""
    """Why it has no image in store.images.repository; empty: it has, or none is wanted."""


class EngineVersions(ApiModel):
    """Versions that the engine was built with, as the Job reported."""

    backend: Text = ""
    """Version of TensorRT or TensorRT-RTX."""

    ort: Text = ""
    """Version of ONNX Runtime."""

    cuda: Text = ""
    """Major version of CUDA that the image's libraries are built for."""

    driver: Text = ""
    """Version of NVIDIA's driver on the node; empty: built without a device."""


class EngineUsers(ApiModel):
    """The InferenceModels that use the engine: their spec needs it, or one of their stored revisions runs it."""

    count: Count
    """How many there are."""

    models: Annotated[
        tuple[Annotated[str, Field(max_length=253, description="Name of a model.")], ...],
        Field(max_length=5),
        ATOMIC,
    ] = ()
    """The first five, in alphabetical order."""


class EngineSummary(ApiModel):
    """One-string fields for `kubectl get`."""

    capability: Text = ""
    """Compute capabilities that it runs on or is built for, such as 8.9."""

    size: Text = ""
    """Size of the engine file, such as 3.5MB."""

    build: Text = ""
    """Time that the builder took, such as 12s."""

    nodes: Text = ""
    """Nodes inside the engine, of all compute nodes, such as 412/415."""


class InferenceEngineStatus(ApiModel):
    """Observed state; written by the operator."""

    observed_generation: Size = 0
    """metadata.generation that this status reflects; older: not yet reconciled; -1: never."""

    conditions: Annotated[tuple[Condition, ...], Field(max_length=32), map_list("type")] = ()
    """Statements about the engine: Ready, Reconciling, Stalled."""

    job: Annotated[str, Field(max_length=253)] = ""
    """Name of the current or last Job that builds it."""

    stage: Text = ""
    """Current or last stage: lookup, build, verify, benchmark, publish-engine."""

    percent: Count | None = None
    """How far the stage is, in percent, rounded down to tens; absent: not reported."""

    placed: bool = False
    """Whether the pod that builds it has a node."""

    attempt: Count = 0
    """Number of the Job for this build, from 1."""

    build_hash: Digest = ""
    """Hash of the spec.build that attempt and failure refer to."""

    failure: JobFailure | None = None
    """The last failure of this build; absent: none."""

    failed_builds: Annotated[
        tuple[Annotated[Digest, Field(description="A hash of spec.build.")], ...],
        Field(max_length=LIST_LENGTH),
        ATOMIC,
    ] = ()
    """Hashes of every spec.build that failed permanently and is not retried."""

    engine: EngineFacts | None = None
    """The engine; absent: not built yet."""

    versions: EngineVersions | None = None
    """Versions that the engine was built with; absent: not built yet, or found in the store without them."""

    prepared: Annotated[tuple[Prepared, ...], Field(max_length=4), ATOMIC] = ()
    """How its prepared model was prepared from content that is known by digest: a model that is applied again needs no Job for that."""

    users: EngineUsers | None = None
    """The InferenceModels that use it; absent: not known yet."""

    last_used: datetime | None = None
    """When a model last used it, to the hour while one does; absent: none has."""

    unused_since: datetime | None = None
    """Since when nothing needs it: no model, none of their revisions and no Job; absent: it is needed. It is removed store.gc.unusedFor later."""

    summary: EngineSummary = EngineSummary()
    """One-string fields for `kubectl get`."""


class InferenceEngine(ApiModel):
    """A prepared model compiled for one class of accelerator."""

    model_config = ConfigDict(
        json_schema_extra=short_name("an engine's name is a label of its Jobs")
    )

    kind: ClassVar[str] = "InferenceEngine"
    plural: ClassVar[str] = "inferenceengines"

    metadata: ObjectMeta
    spec: InferenceEngineSpec
    """Which engine, and how it is built."""

    status: InferenceEngineStatus = InferenceEngineStatus()
    """Observed state; written by the operator."""
