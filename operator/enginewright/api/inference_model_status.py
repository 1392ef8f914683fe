"""What the operator reports about an InferenceModel.

What serves now and what is being brought up are separate, so that a failed update never hides that
the old revision serves on. Nothing here changes by itself: live figures are metrics.
"""

from datetime import datetime
from typing import Annotated, TypeAlias

from pydantic import Field

from enginewright.api.base import ApiModel
from enginewright.api.conditions import Condition
from enginewright.api.job_failure import JobFailure
from enginewright.api.markers import ATOMIC, INT32, INT64, map_list
from enginewright.contract.base import LIST_LENGTH, Digest, Text

Count: TypeAlias = Annotated[int, INT32]


class Preparation(ApiModel):
    """The preparation in progress."""

    inputs_hash: Digest
    """Hash of everything in the spec and of the runtime image that decides how the model is prepared."""

    job: Annotated[str, Field(max_length=253)] = ""
    """Name of the Job that prepares it."""

    stage: Text = ""
    """Stage that runs or ran last: fetch, validate, convert, golden, quantize or publish."""

    attempt: Count = 0
    """Number of the Job for these inputs, from 1."""

    failure: JobFailure | None = None
    """The last failure for these inputs; absent: none."""


class Prepared(ApiModel):
    """The prepared model for the current spec: validated, with golden inputs and outputs, in the store."""

    inputs_hash: Digest
    """Hash of everything in the spec and of the runtime image that decided how it was prepared."""

    key: Digest
    """Key of the artefact in the store: prepared/KEY/."""

    model_digest: Digest
    """sha256 over the model file and its external data."""

    opset: Count
    """Opset of ai.onnx that the prepared model has."""

    ir_version: Count
    """IR version that the prepared model has."""

    nodes: Annotated[int, INT64]
    """How many nodes the prepared model has, those of subgraphs included."""

    size_bytes: Annotated[int, INT64]
    """Size of the artefact in bytes."""

    precision: Text | None = None
    """Precision that the model was given; absent: its own."""

    changes: Text | None = None
    """Summary of the changes to the source model; absent: none."""

    golden_output_bytes: Annotated[int, INT64] | None = None
    """Size in bytes of the outputs of the largest golden sample, which the sidecar holds; absent: not known."""


class Pin(ApiModel):
    """The content that an address is pinned to."""

    name: Annotated[str, Field(max_length=63)]
    """What the address holds: model, samples or calibration."""

    uri: Annotated[str, Field(max_length=4096)]
    """The address."""

    sha256: Digest = ""
    """Digest that the spec gives; empty: none."""

    digest: Digest
    """sha256 over what was fetched; of a model, over the model file and its external data."""


class FetchedSource(ApiModel):
    """The content that the addresses of one spec are pinned to."""

    pins: Annotated[tuple[Pin, ...], Field(max_length=8), map_list("name")] = ()
    """The content that the addresses of the spec are pinned to."""

    refresh: Text = ""
    """Refresh that fetched it; empty: it was the first fetch."""


class SourceState(FetchedSource):
    """What was fetched from where. The same content is prepared until a refresh is requested."""

    refreshes: Count = 0
    """How many refreshes have ended."""

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
    """A candidate that was tried and does not serve, so that policy Allow goes on to the next one."""

    backend: Text
    """Backend that was tried."""

    inputs_hash: Digest = ""
    """Hash of what it was tried with: it is a candidate again when that changes. Empty: it is one again."""

    reason: Annotated[str, Field(max_length=1024)]
    """Why it does not serve, as one word for programs, such as DriverMissing."""

    message: Annotated[str, Field(max_length=32768)] = ""
    """Why, as a sentence for people."""

    revision: Text = ""
    """Short hash of the revision whose pods failed; empty: it failed before it had any."""

    failures: Count = 0
    """How many times in a row its pods failed, trials included; 0: trying again on nodes would change nothing."""

    retry_at: datetime | None = None
    """When it is tried again, in pods of its own beside what serves, or earlier when a node joins; absent: when its inputs change."""

    tried_since: datetime | None = None
    """When the trial that is under way began; absent: none is."""

    prepared: Prepared | None = None
    """The prepared model that is in the store for this backend; absent: none."""


class EngineReference(ApiModel):
    """The engine of one class."""

    class_name: Annotated[str, Field(max_length=63, alias="class")]
    """AcceleratorClass that it is built for."""

    name: Annotated[str, Field(max_length=253)]
    """Name of the InferenceEngine: `kubectl describe ieng NAME`."""

    freed_at: datetime | None = None
    """When the class's pods yielded their device to the build, as rollout.strategy Recreate allows; absent: they are there."""

    freed_for_job: Annotated[str, Field(max_length=253)] = ""
    """Job of the build to which they yield or, without freedAt, did in vain: they do so once for each."""

    freed_on: Annotated[
        tuple[Annotated[str, Field(max_length=253, description="Name of a node.")], ...],
        Field(max_length=LIST_LENGTH),
        ATOMIC,
    ] = ()
    """Nodes on which they had a device: a build elsewhere keeps none of them away."""

    device_used: bool = False
    """Whether the build has begun since, on one of these nodes."""


class ServingClass(ApiModel):
    """One class of accelerator that serves."""

    class_name: Annotated[str, Field(max_length=63, alias="class")]
    """Name of the AcceleratorClass."""

    backend: Text
    """Backend that serves on it."""

    replicas: Count = 0
    """How many pods are wanted."""

    ready_replicas: Count = 0
    """How many pods are ready."""


class ServingState(ApiModel):
    """What serves now; it may be an older revision than the one wanted."""

    revision: Text
    """Short hash of the revision that serves."""

    prepared_key: Digest
    """Key of the prepared model that serves."""

    prepared: Prepared | None = None
    """The prepared model of the last revision that rolled out; absent: it is `status.prepared`."""

    model_digest: Digest
    """sha256 over the model file and its external data."""

    backend: Text
    """Backend that serves; of the first class, where classes differ."""

    last_rolled_out: Text = ""
    """Short hash of the last revision that rolled out with all its pods, which is gone back to; empty: the one that serves."""

    unproven: bool = False
    """Of a status that an earlier version wrote: it was rolled out at 0 replicas, and has never served."""

    classes: Annotated[tuple[ServingClass, ...], Field(max_length=16), map_list("class")] = ()
    """The classes of accelerator that serve."""

    @property
    def last_good(self) -> str:
        """Return the last revision that rolled out with all its pods."""
        return self.last_rolled_out or self.revision


class AppliedState(ApiModel):
    """The revision that the Deployments are to run, whether or not they do yet."""

    revision: Text
    """Short hash of the revision."""

    spec_hash: Digest = ""
    """Hash of the spec that requested it, replica counts excluded; empty: it is kept because the requested one is not available."""


class ModelSummary(ApiModel):
    """One-string fields for `kubectl get`, which cannot compute them."""

    backend: Text = ""
    """Backends that serve, such as openvino."""

    placement: Text = ""
    """Share of the compute time that runs on the chosen backend, such as "97% TensorRT"."""

    classes: Text = ""
    """Ready and wanted pods of each class, such as "a100-80gb 2/2, l4 3/4"."""

    p99: Text = ""
    """99th percentile of the baseline latency, such as 12ms."""

    revision: Text = ""
    """Revision that serves and, during an update, the one that is to replace it."""


class InferenceModelStatus(ApiModel):
    """Observed state; written by the operator."""

    observed_generation: Annotated[int, INT64] = 0
    """metadata.generation that this status is about; older: not yet reconciled."""

    replicas: Count = 0
    """How many pods there are on the classes that share spec.replicas."""

    selector: Annotated[str, Field(max_length=2048)] = ""
    """Label selector of those pods, for autoscalers."""

    accelerator_class: Annotated[str, Field(max_length=63)] = ""
    """Class that was chosen because the spec names none; it is kept while it exists."""

    revision: Text = ""
    """Short hash of the revision that is wanted: model, runtime image and serving options."""

    conditions: Annotated[tuple[Condition, ...], Field(max_length=32), map_list("type")] = ()
    """Statements about the resource: Ready, Reconciling, Stalled, Available and more."""

    preparation: Preparation | None = None
    """The preparation in progress; absent: none."""

    prepared: Prepared | None = None
    """The prepared model for the current spec; absent: not there yet."""

    source: SourceState | None = None
    """What was fetched from where; absent: nothing yet."""

    engines: Annotated[tuple[EngineReference, ...], Field(max_length=16), map_list("class")] = ()
    """The engines that the current spec needs; empty: its backend needs none, or they are not known yet."""

    rejected_backends: Annotated[
        tuple[RejectedBackend, ...], Field(max_length=5), map_list("backend")
    ] = ()
    """Candidates that were tried and do not serve, with policy Allow: after failures on two nodes, or three of one pod. They are tried again when the spec, the image or the class changes and, where nodes were at fault, when a node joins and after 1 h, 2 h and so on up to 24 h."""

    serving: ServingState | None = None
    """What serves now; absent: nothing."""

    applied: AppliedState | None = None
    """What is rolling out or has been; absent: nothing yet."""

    summary: ModelSummary = ModelSummary()
    """One-string fields for `kubectl get`."""
