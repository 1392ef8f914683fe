"""What the operator reports about an InferenceModel.

What serves now and what is being rolled out are separate, so that a failed update never hides that
the old revision still serves. No live measurements: those are metrics.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, TypeAlias

from enginewright_contract.base import LIST_LENGTH, Digest, Text
from pydantic import Field

from enginewright.api.base import ApiModel
from enginewright.api.conditions import Condition
from enginewright.api.job_failure import JobFailure
from enginewright.api.markers import ATOMIC, INT32, INT64, map_list

Count: TypeAlias = Annotated[int, INT32]


class Preparation(ApiModel):
    """The preparation in progress."""

    inputs_hash: Digest
    """Hash of everything in the spec and of the runtime image that decides how the model is prepared."""

    job: Annotated[str, Field(max_length=253)] = ""
    """Name of the Job that prepares it."""

    stage: Text = ""
    """Current or last stage: fetch, validate, convert, golden, quantize or publish."""

    attempt: Count = 0
    """Number of the Job for these inputs, from 1."""

    failure: JobFailure | None = None
    """The last failure for these inputs; absent: none."""

    shared_hash: Digest = ""
    """Hash of all that models of a namespace must have in common for one Job to prepare them; empty: it is not shared."""

    leader: Annotated[str, Field(max_length=253)] = ""
    """InferenceModel whose Job prepares the same, and whose result or permanent failure this model takes over; empty: none."""


class TensorSignature(ApiModel):
    """One input or output of a model."""

    name: Text
    """Its name."""

    dtype: Text
    """Its type as in the Open Inference Protocol, such as FP32."""

    shape: Annotated[
        tuple[Annotated[Text, Field(description="A size, a range such as 1..32, or -1.")], ...],
        Field(max_length=16),
        ATOMIC,
    ] = ()
    """Its dimensions: the size, the range of sizes that `spec.shapes` or an engine accepts, or -1: any."""


class ModelSignature(ApiModel):
    """The inputs and outputs that clients see."""

    digest: Digest
    """sha256 over all inputs and outputs, in any order."""

    inputs: Annotated[tuple[TensorSignature, ...], Field(max_length=64), ATOMIC] = ()
    """The inputs; empty, with the outputs: there are too many to list."""

    outputs: Annotated[tuple[TensorSignature, ...], Field(max_length=64), ATOMIC] = ()
    """The outputs."""


class Prepared(ApiModel):
    """The prepared model for the current spec: validated, with golden inputs and outputs, in the store."""

    inputs_hash: Digest
    """Hash of everything in the spec and of the runtime image that decided how it was prepared."""

    key: Digest
    """Key of the artefact in the store: prepared/KEY/."""

    model_digest: Digest
    """sha256 over the model file and its external data."""

    opset: Count
    """Opset of ai.onnx of the prepared model."""

    ir_version: Count
    """IR version of the prepared model."""

    nodes: Annotated[int, INT64]
    """How many nodes the prepared model has, including those in subgraphs."""

    size_bytes: Annotated[int, INT64]
    """Size of the artefact in bytes."""

    precision: Text | None = None
    """Precision that the model was converted to; absent: the source's own."""

    changes: Text | None = None
    """Summary of the changes to the source model; absent: none."""

    golden_output_bytes: Annotated[int, INT64] | None = None
    """Size in bytes of the outputs of the largest golden sample, which the sidecar holds; absent: not known."""

    signature: ModelSignature | None = None
    """Inputs and outputs; absent: not known."""

    image: Text | None = None
    """Its OCI image, REPOSITORY@DIGEST, which serving pods mount; absent: there is none."""

    image_failure: Text = ""
    """Why it has no image in store.images.repository; empty: it has, or none is wanted."""

    record_hash: Digest = ""
    """Hash of everything that decided what its Job did and whether it succeeded; empty: the spec does not say by digest what all of the content is."""


class Pin(ApiModel):
    """The content that an address is pinned to."""

    name: Annotated[str, Field(max_length=63)]
    """What the address holds: model, samples, calibration, or a step of processing, such as before-0."""

    uri: Annotated[str, Field(max_length=4096)]
    """The address."""

    sha256: Digest = ""
    """Digest in the spec; empty: none."""

    digest: Digest
    """sha256 over what was fetched; of a model, over the model file and its external data."""


class FetchedSource(ApiModel):
    """The content that the addresses of one spec are pinned to."""

    pins: Annotated[tuple[Pin, ...], Field(max_length=8), map_list("name")] = ()
    """The content that the addresses of the spec are pinned to."""

    refresh: Text = ""
    """Refresh that fetched it; empty: the first fetch."""


class SourceState(FetchedSource):
    """Fetched content and its addresses. The same content is prepared until a refresh is requested."""

    refreshes: Count = 0
    """How many refreshes have finished."""

    earlier: Annotated[tuple[FetchedSource, ...], Field(max_length=8), ATOMIC] = ()
    """The same of the spec's previous addresses, the latest first."""

    requested: Text = ""
    """Last value of the annotation enginewright.dev/refresh that was acted on."""

    looked_at: datetime | None = None
    """When the addresses were last checked."""

    refreshing: Preparation | None = None
    """The refresh in progress, in the background; absent: none."""

    failure: JobFailure | None = None
    """Why the last refresh failed; the previously fetched content is kept. Absent: it did not."""


class RejectedBackend(ApiModel):
    """A candidate that was tried and does not serve, so that policy Allow proceeds to the next one."""

    backend: Text
    """Backend that was tried."""

    inputs_hash: Digest = ""
    """Hash of everything it was tried with: when that changes, it is a candidate again. Empty: it is one."""

    reason: Annotated[str, Field(max_length=1024)]
    """Why it does not serve, as one word for programs, such as DriverMissing."""

    message: Annotated[str, Field(max_length=32768)] = ""
    """Why, as a sentence for people."""

    revision: Text = ""
    """Short hash of the revision whose pods failed; empty: it failed before it had any."""

    rejected_at: datetime | None = None
    """When it was rejected: if the failure may depend on nodes, a node that joins later makes it a candidate again."""

    nodes: Count | None = None
    """How many nodes of its classes there were when it was rejected: more of them, as where labels are set after a node has joined, make it a candidate again too. Absent: not known."""

    retry: Text = ""
    """Value of the annotation enginewright.dev/retry at that time: another one makes it a candidate again."""

    prepared: Prepared | None = None
    """The prepared model in the store for this backend; absent: none."""


class EngineReference(ApiModel):
    """The engine of one class."""

    class_name: Annotated[str, Field(max_length=63, alias="class")]
    """AcceleratorClass that it is built for."""

    name: Annotated[str, Field(max_length=253)]
    """Name of the InferenceEngine: `kubectl describe ieng NAME`."""

    freed_at: datetime | None = None
    """When the class's pods yielded their device to the build, as rollout.strategy Recreate allows; absent: they have not."""

    freed_for_job: Annotated[str, Field(max_length=253)] = ""
    """Job of the build that they yield to or, without freedAt, yielded to without effect: they yield once per Job."""

    freed_on: Annotated[
        tuple[Annotated[str, Field(max_length=253, description="Name of a node.")], ...],
        Field(max_length=LIST_LENGTH),
        ATOMIC,
    ] = ()
    """Nodes on which they had a device: a build on another node does not keep them stopped."""

    device_used: bool = False
    """Whether the build has since started on one of these nodes."""

    lost: bool = False
    """Whether the serving revision needs it and the store has lost it: it is built again regardless of limits on Jobs."""


class BackendChoice(ApiModel):
    """Which backend is to serve on a class, by spec.build.choose: Fastest."""

    class_name: Annotated[str, Field(max_length=63, alias="class")]
    """Name of the AcceleratorClass."""

    backend: Text
    """Backend that is to serve on it."""

    engine_backend: Text
    """Backend of the class's engine, with which it was compared."""

    message: Annotated[str, Field(max_length=32768)]
    """Why, with the medians that were measured, such as "cuda: 2.1 ms, tensorrt: 3 ms"."""


class ServingClass(ApiModel):
    """One class of accelerator that serves."""

    class_name: Annotated[str, Field(max_length=63, alias="class")]
    """Name of the AcceleratorClass."""

    backend: Text
    """Backend that serves on it."""

    interim: bool = False
    """Whether that serves only until the first engine for the class is built, as spec.build.interim requests."""

    replicas: Count = 0
    """How many pods are desired."""

    ready_replicas: Count = 0
    """How many pods are ready."""


class ServingState(ApiModel):
    """The revision that serves now; it may be older than the desired one."""

    revision: Text
    """Short hash of the revision that serves."""

    prepared_key: Digest
    """Key of the prepared model that serves."""

    prepared: Prepared | None = None
    """The prepared model of the last revision that was rolled out; absent: `status.prepared`."""

    model_digest: Digest
    """sha256 over the model file and its external data."""

    backend: Text
    """Backend that serves; that of the first class if they differ."""

    last_rolled_out: Text = ""
    """Short hash of the last revision that was rolled out with all its pods, to which a failed rollout returns; empty: the one that serves."""

    unproven: bool = False
    """Written by earlier versions: the revision was rolled out at 0 replicas and has never served."""

    classes: Annotated[tuple[ServingClass, ...], Field(max_length=16), map_list("class")] = ()
    """The classes of accelerator that serve."""

    @property
    def last_complete(self) -> str:
        """Return the last revision that was rolled out with all its pods."""
        return self.last_rolled_out or self.revision


class AppliedState(ApiModel):
    """The revision that the Deployments specify, whether or not it runs yet."""

    revision: Text
    """Short hash of the revision."""

    spec_hash: Digest = ""
    """Hash of the spec that requested it, replica counts excluded; empty: it is kept while the requested one is not available."""


class ActiveRevision(ApiModel):
    """The last revision that was rolled out with all its pods, to which a failed rollout returns."""

    revision: Text
    """Short hash of the revision."""

    signature: ModelSignature | None = None
    """Its inputs and outputs; absent: not known."""


class TargetPhase(StrEnum):
    """How far a new revision has come; docs/rollouts.md draws the transitions."""

    HELD = "Held"  # nothing is started: paused, or its signature breaks clients
    VERIFYING = "Verifying"  # canary pods run without requests until their proofs pass
    ANALYZING = "Analyzing"  # canary pods get requests and are compared with the serving ones
    PROMOTING = "Promoting"  # its pods replace the serving ones


class TargetRevision(ApiModel):
    """The revision that is being brought up."""

    revision: Text
    """Short hash of the revision."""

    phase: TargetPhase
    """Held, Verifying, Analyzing or Promoting."""

    step: Count = 0
    """Step of the canary, from 1; 0: it gets no requests yet."""

    since: datetime
    """When this step of this phase began."""

    spec_hash: Digest = ""
    """Hash of the spec that requested it, replica counts and rollout settings excluded."""

    reason: Annotated[str, Field(max_length=1024)] = ""
    """What it waits for, as one word for programs, such as CapacityBlocked; empty: nothing but time."""

    message: Annotated[str, Field(max_length=32768)] = ""
    """What it waits for, as a sentence for people."""

    answers: Annotated[str, Field(max_length=32768)] = ""
    """By how much its answers differ from the serving revision's, as a sentence for people; empty: none were compared."""

    signature: ModelSignature | None = None
    """Its inputs and outputs; absent: not known."""


class RolloutFailure(ApiModel):
    """Why the last new revision that failed was not rolled out."""

    revision: Text
    """Short hash of the revision."""

    stage: Text = ""
    """Where it failed: a stage of a Job, a container of its pods, or analysis."""

    reason: Annotated[str, Field(max_length=1024)]
    """Why, as one word for programs, such as SlowerThanBaseline."""

    message: Annotated[str, Field(max_length=32768)] = ""
    """Why, as a sentence for people."""

    exit_code: Count = 0
    """Exit code of the container; 0: it did not end."""


class VariantImage(ApiModel):
    """The runtime image of one variant."""

    variant: Annotated[str, Field(max_length=63)]
    """cpu, openvino, gpu or rtx."""

    image: Annotated[str, Field(max_length=512)]
    """Its reference."""


VariantImages: TypeAlias = Annotated[
    tuple[VariantImage, ...], Field(max_length=8), map_list("variant")
]


class UsedClass(ApiModel):
    """An AcceleratorClass as the model uses it."""

    class_name: Annotated[str, Field(max_length=63, alias="class")]
    """Its name."""

    spec: Annotated[str, Field(max_length=32768)]
    """Its spec, as JSON, that the model uses until it has moved."""

    target: Annotated[str, Field(max_length=32768)] = ""
    """Its spec now; empty: the same."""


class UsedSetting(ApiModel):
    """A value of the chart that restarts pods, as the model uses it."""

    name: Annotated[str, Field(max_length=63)]
    """store or productLabels."""

    value: Annotated[str, Field(max_length=8192)]
    """What the model uses until it has moved: a claim, a bucket as JSON, or the labels as JSON."""

    target: Annotated[str, Field(max_length=8192)] = ""
    """What the chart has now; empty: the same."""


class MoveState(StrEnum):
    """How far a model has come with the runtime images that the installation names, and its AcceleratorClasses; docs/fleet.md."""

    MOVED = "Moved"  # it uses them
    MOVING = "Moving"  # it is prepared, built and rolled out with them
    WAITING = "Waiting"  # for its turn, or for `reason`
    KEPT = "Kept"  # it does not run right with them and stays with those it has


class RuntimeImages(ApiModel):
    """The runtime images and AcceleratorClasses of a model that serves, and its move to others."""

    image: Annotated[str, Field(max_length=512)]
    """Image of the active revision."""

    state: MoveState
    """Moved, Moving, Waiting or Kept."""

    current: VariantImages = ()
    """Images that the model uses until it has moved: of the active revision's backends, of the rejected ones and, with spec.build.interim, of the interim and of the engines that are built."""

    target: VariantImages = ()
    """Images that the installation names instead of these; empty: the same."""

    classes: Annotated[tuple[UsedClass, ...], Field(max_length=64), map_list("class")] = ()
    """AcceleratorClasses of the active revision, as the model uses them and as they are now."""

    settings: Annotated[tuple[UsedSetting, ...], Field(max_length=8), map_list("name")] = ()
    """Values of the chart that restart pods, as the model uses them and as they are now."""

    spec_hash: Digest = ""
    """With Kept, hash of the spec that does not run right."""

    reason: Annotated[str, Field(max_length=1024)] = ""
    """With Waiting and Kept, why, as one word for programs; empty: it waits for its turn. With Moving, why others take its turn: what it has waited for for longer than rollout.progressTimeout, such as CapacityBlocked, FailedCreate or StorageFull."""

    message: Annotated[str, Field(max_length=32768)] = ""
    """The same as a sentence for people."""

    waits_since: datetime | None = None
    """With Moving, since when its Jobs, builds or pods cannot go on; absent: they do."""

    revision: Text = ""
    """With Kept, short hash of the revision that was rejected or is held: `enginewright promote` or rollout.allowSignatureChange allow it; empty: none was."""


class ModelSummary(ApiModel):
    """One-string fields for `kubectl get`, which cannot compute them."""

    backend: Text = ""
    """Backends that serve, such as openvino."""

    placement: Text = ""
    """Share of the compute time that runs on the chosen backend, such as "97% tensorrt"; while a lower-ranked one serves,
    0% of the requested one."""

    classes: Text = ""
    """Ready and desired pods of each class, such as "a100-80gb 2/2, l4 3/4"."""

    p99: Text = ""
    """99th percentile of the baseline latency, such as 12ms."""

    revision: Text = ""
    """Revision that serves and, during an update, the one that replaces it."""

    stage: Text = ""
    """Stage of what is under way, such as validate, build 40% or Analyzing 2; empty: nothing is."""

    choice: Text = ""
    """Medians of the backends that were compared, such as "cuda: 2.1 ms, tensorrt: 3 ms"."""


class InferenceModelStatus(ApiModel):
    """Observed state; written by the operator."""

    observed_generation: Annotated[int, INT64] = 0
    """metadata.generation that this status reflects; older: not yet reconciled; -1: never."""

    replicas: Count = 0
    """How many pods there are on the classes that share spec.replicas."""

    selector: Annotated[str, Field(max_length=2048)] = ""
    """Label selector of those pods, for autoscalers."""

    accelerator_class: Annotated[str, Field(max_length=63)] = ""
    """Class that was chosen because the spec names none; kept as long as it exists."""

    revision: Text = ""
    """Short hash of the desired revision: model, runtime image and serving options."""

    conditions: Annotated[tuple[Condition, ...], Field(max_length=32), map_list("type")] = ()
    """Statements about the resource: Ready, Reconciling, Stalled, Available and more."""

    preparation: Preparation | None = None
    """The preparation in progress; absent: none."""

    prepared: Prepared | None = None
    """The prepared model for the current spec; absent: not available yet."""

    source: SourceState | None = None
    """Fetched content and its addresses; absent: nothing was fetched yet."""

    engines: Annotated[tuple[EngineReference, ...], Field(max_length=16), map_list("class")] = ()
    """The engines that the current spec needs; empty: its backend needs none, or they are not known yet."""

    choices: Annotated[tuple[BackendChoice, ...], Field(max_length=16), map_list("class")] = ()
    """The backends chosen by spec.build.choose: Fastest; empty: no engine is built yet, or the spec asks for none."""

    failed_choice: RolloutFailure | None = None
    """Why the revision with the fastest backends failed: the engines serve instead, and it is not tried again; absent: it has not."""

    rejected_backends: Annotated[
        tuple[RejectedBackend, ...], Field(max_length=5), map_list("backend")
    ] = ()
    """Candidates that were tried and do not serve, with policy Allow: after failures on two nodes, or three of one pod. They are tried again, as any other rollout, when the spec, the image or the class changes, when the annotation enginewright.dev/retry does and, if the failure may depend on nodes, when a node joins."""

    serving: ServingState | None = None
    """The revision that serves now; absent: none."""

    applied: AppliedState | None = None
    """The revision that is being or was rolled out; absent: none yet."""

    active: ActiveRevision | None = None
    """The last revision that was rolled out with all its pods; absent: none yet."""

    target: TargetRevision | None = None
    """The revision that is being brought up; absent: none."""

    images: RuntimeImages | None = None
    """The runtime images and AcceleratorClasses, and the move to others; absent: nothing has served yet."""

    last_failure: RolloutFailure | None = None
    """Why the last new revision failed; absent: none has since the last success."""

    summary: ModelSummary = ModelSummary()
    """One-string fields for `kubectl get`."""
