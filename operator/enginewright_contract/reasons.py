"""Why a model is not served: one row a reason, with all that the product knows about it.

Reasons are an interface: conditions, Events, metrics and alerts carry them. What is decided by a reason
is decided by its facets: whether a Job or a pod is tried again, whether a revision is rejected, whether
another backend is. A new reason is a row here, and no code lists reasons to decide such things.
"""

from dataclasses import dataclass
from enum import Enum, IntEnum, StrEnum
from typing import Final, Self


class ExitCode(IntEnum):
    """Exit codes of a stage, after sysexits.h; `podFailurePolicy` acts on them."""

    OK = 0
    PERMANENT = 65  # EX_DATAERR: the same input fails again, so the Job fails at once
    INTERNAL = 70  # EX_SOFTWARE: a bug in Enginewright; retried, since its cause is unknown
    TRANSIENT = 75  # EX_TEMPFAIL: network, memory, store: retried with backoff


class Fault(Enum):
    """Who is at fault, and has something to mend; docs/reference/reasons.md shows the values."""

    SOURCE = "source"  # what spec.source names has changed, or cannot be reached
    MODEL = "model"  # what was exported
    SPEC = "spec"  # fields of the resources and the files that they name, except the model
    USER = "user"  # objects that the spec refers to, such as a Secret
    BACKEND = "backend"  # its libraries and engines: not for the model, or not for the device
    REVISION = "revision"  # what serves breaks a promise, or is worse than what served before
    LOAD = "load"  # a process ends at what it is asked to do: by the model, the backend or clients
    NODE = "node"  # its driver, device or resources: another node of the class may do
    ARTIFACT = "artefact"  # lost or damaged in the store: it is made again
    STORE = "store"  # or the volume under a pod's folder
    PRODUCT = "Enginewright"


class Repeats(Enum):
    """Whether the same input fails again."""

    EVERYWHERE = "in every pod on every node, so that one failure says enough"
    AGAIN = "in the same place; on another node, perhaps not"
    PERHAPS = "no Job is retried, but the machine may have been busy"
    MOSTLY = "retries rarely succeed unless something is changed"
    UNTIL_ROOM = "retries succeed once the cluster has room, which no field of the spec gives it"
    NO = "retries succeed once the cause is gone"


_PERMANENT: Final = frozenset({Repeats.EVERYWHERE, Repeats.AGAIN, Repeats.PERHAPS})


@dataclass(frozen=True)
class Facets:
    """What is decided by a reason; none has a default."""

    fault: Fault
    repeats: Repeats
    placement: bool  # whether it is why nodes run elsewhere than promised
    other_backend: bool  # whether another backend may not fail so: with policy Allow, it is tried


@dataclass(frozen=True)
class Row:
    """One reason."""

    name: str
    facets: Facets
    remedy: str


class Reason(StrEnum):
    """Failure reasons, common to stages, serving pods, conditions and metrics.

    Of several reasons of placement the first is the one to fix first, as no other remedy helps before: first the
    image, then the node, then the device, then the model.
    """

    facets: Facets
    remedy: str

    def __new__(cls, row: Row | str) -> Self:
        """Return the member of a row; `Reason(name)` does not come here."""
        if isinstance(row, str):
            raise TypeError(f"reason {row} has no row")
        self = str.__new__(cls, row.name)
        self._value_ = row.name
        self.facets, self.remedy = row.facets, row.remedy
        return self

    SOURCE_UNREACHABLE = Row(
        "SourceUnreachable",
        Facets(Fault.SOURCE, Repeats.NO, placement=False, other_backend=False),
        "check spec.source.uri, the credentials in spec.source.secretRef and that pods of this namespace reach the source",
    )
    SOURCE_REFUSED = Row(
        "SourceRefused",  # pods could read there what their owners cannot
        Facets(Fault.SPEC, Repeats.EVERYWHERE, placement=False, other_backend=False),
        "name a source that is, and redirects, neither to link-local addresses and metadata services nor to networks that the administrator lists in the chart's sources.refusedNetworks",
    )
    DIGEST_MISMATCH = Row(
        "DigestMismatch",
        Facets(Fault.SOURCE, Repeats.EVERYWHERE, placement=False, other_backend=False),
        "set spec.source.sha256 to the digest of the intended file, or restore that file",
    )
    SOURCE_CHANGED = Row(
        "SourceChanged",  # the content differs from what was fetched first
        Facets(Fault.SOURCE, Repeats.EVERYWHERE, placement=False, other_backend=False),
        'restore the file, or accept the new content: kubectl annotate inferencemodel NAME enginewright.dev/refresh="$(date)" --overwrite',
    )
    MODEL_TOO_LARGE = Row(
        "ModelTooLarge",
        Facets(Fault.MODEL, Repeats.EVERYWHERE, placement=False, other_backend=False),
        "save the weights as external data: a protobuf file is limited to 2 GiB",
    )
    INVALID_MODEL = Row(
        "InvalidModel",
        Facets(Fault.MODEL, Repeats.EVERYWHERE, placement=False, other_backend=False),
        "export the model again and check it with onnx.checker.check_model(path, full_check=True)",
    )
    EXTERNAL_DATA_MISSING = Row(
        "ExternalDataMissing",
        Facets(Fault.MODEL, Repeats.EVERYWHERE, placement=False, other_backend=False),
        "put every external data file, complete, into the model's folder",
    )
    IR_VERSION_UNSUPPORTED = Row(
        "IRVersionUnsupported",
        Facets(Fault.BACKEND, Repeats.EVERYWHERE, placement=False, other_backend=True),
        "save the model with an ir_version that the runtime image supports, or use a newer runtime image",
    )
    OPSET_UNSUPPORTED = Row(
        "OpsetUnsupported",
        Facets(Fault.BACKEND, Repeats.EVERYWHERE, placement=False, other_backend=True),
        "export with an opset that the runtime image supports, or use a runtime image with a newer ONNX Runtime",
    )
    CUSTOM_DOMAIN_UNSUPPORTED = Row(
        "CustomDomainUnsupported",
        Facets(Fault.MODEL, Repeats.EVERYWHERE, placement=False, other_backend=False),
        "export without operators of this domain: the runtime image has no library that registers them",
    )
    SHAPE_PROFILE_INVALID = Row(
        "ShapeProfileInvalid",
        Facets(Fault.SPEC, Repeats.EVERYWHERE, placement=False, other_backend=False),
        "correct the input's entry in spec.shapes so that it fits the model",
    )
    SHAPE_PROFILE_MISSING = Row(
        "ShapeProfileMissing",
        Facets(Fault.SPEC, Repeats.EVERYWHERE, placement=False, other_backend=True),
        "add the input to spec.shapes with min, opt and max",
    )
    CONVERSION_FAILED = Row(
        "ConversionFailed",
        Facets(Fault.MODEL, Repeats.EVERYWHERE, placement=False, other_backend=False),
        "export with an opset that the runtime image loads, or omit spec.targetOpset",
    )
    QUANTIZATION_FAILED = Row(
        "QuantizationFailed",
        Facets(Fault.SPEC, Repeats.EVERYWHERE, placement=False, other_backend=False),
        "see the most sensitive nodes in the report; provide more representative spec.quantization.calibration, or choose another spec.precision",
    )
    CALIBRATION_TOO_SMALL = Row(
        "CalibrationTooSmall",  # a warning: too few samples to trust the ranges
        Facets(Fault.SPEC, Repeats.EVERYWHERE, placement=False, other_backend=False),
        "provide at least 500 samples, as varied as the requests will be",
    )
    CALIBRATION_INVALID = Row(
        "CalibrationInvalid",
        Facets(Fault.SPEC, Repeats.EVERYWHERE, placement=False, other_backend=False),
        "save one array per input with numpy.savez, named as the input, with samples along the first axis",
    )
    EXTENSION_FAILED = Row(
        "ExtensionFailed",
        Facets(Fault.SPEC, Repeats.EVERYWHERE, placement=False, other_backend=False),
        "build the library for this image's ONNX Runtime or TensorRT, and set its sha256 in spec.extensions",
    )
    EMBEDDINGS_INVALID = Row(
        "EmbeddingsInvalid",
        Facets(Fault.SPEC, Repeats.EVERYWHERE, placement=False, other_backend=False),
        "correct spec.serving.embeddings so that it fits the model and its steps, or remove it",
    )
    PARITY_FAILED = Row(
        "ParityFailed",
        Facets(Fault.REVISION, Repeats.AGAIN, placement=False, other_backend=True),
        "compare the outputs with those of the exporting framework; widen spec.parity only if the drift is acceptable",
    )
    NOTHING_COMPARED = Row(
        "NothingCompared",  # all outputs are empty or not finite, or vary and their distribution is not known
        Facets(Fault.MODEL, Repeats.EVERYWHERE, placement=False, other_backend=False),
        "if outputs are empty, NaN or infinite in all golden samples, set spec.parity.samples to inputs for which they have finite elements; otherwise export with at least one output that is the same in every run: take random numbers as an input, or leave them out",
    )
    PARITY_UNKNOWN = Row(
        "ParityUnknown",  # nothing is wrong, but the samples do not show some parts of an output
        Facets(Fault.SPEC, Repeats.EVERYWHERE, placement=False, other_backend=False),
        "set spec.parity.samples, or spec.quantization.calibration, to real inputs in which these parts vary, two or more of one size; or remove spec.precision; or accept them by acceptUnjudged in spec.parity.outputs",
    )
    VERSION_MISMATCH = Row(
        "VersionMismatch",
        Facets(Fault.BACKEND, Repeats.AGAIN, placement=True, other_backend=False),
        "delete the pod; if it persists, rebuild the runtime image from its lock",
    )
    SESSION_REPLACED = Row(
        "SessionReplaced",  # the session is not the one that was admitted
        Facets(Fault.BACKEND, Repeats.AGAIN, placement=True, other_backend=False),
        "delete the pod, and find in its log why the provider failed",
    )
    PROVIDER_MISSING = Row(
        "ProviderMissing",  # not in the image, or its libraries are not
        Facets(Fault.BACKEND, Repeats.AGAIN, placement=True, other_backend=True),
        "use a runtime image and a node that have this execution provider, or choose another backend in spec.backends",
    )
    DRIVER_MISSING = Row(
        "DriverMissing",
        Facets(Fault.NODE, Repeats.NO, placement=True, other_backend=True),
        "run on a node whose NVIDIA driver is mounted into pods (container toolkit, and spec.podTemplate.runtimeClassName where the cluster requires one)",
    )
    DRIVER_TOO_OLD = Row(
        "DriverTooOld",
        Facets(Fault.NODE, Repeats.AGAIN, placement=True, other_backend=True),
        "update the NVIDIA driver of the node, or use a runtime image built for its CUDA version",
    )
    ENGINE_CORRUPT = Row(
        "EngineCorrupt",
        Facets(Fault.ARTIFACT, Repeats.AGAIN, placement=True, other_backend=False),
        "delete the InferenceEngine and its folder in the store; it is rebuilt",
    )
    ENGINE_VERSION_MISMATCH = Row(
        "EngineVersionMismatch",  # of another version of the backend
        Facets(Fault.BACKEND, Repeats.EVERYWHERE, placement=True, other_backend=True),
        "serve with the runtime image that built the engine, or delete the InferenceEngine to have it rebuilt",
    )
    ENGINE_INCOMPATIBLE = Row(
        "EngineIncompatible",  # of another compute capability
        Facets(Fault.BACKEND, Repeats.AGAIN, placement=True, other_backend=True),
        "correct spec.computeCapability of the AcceleratorClass; the engine is rebuilt",
    )
    PROVIDER_REFUSED = Row(
        "ProviderRefused",  # present, but not for this device, precision or option
        Facets(Fault.BACKEND, Repeats.AGAIN, placement=True, other_backend=True),
        "see in the pod's log what the provider rejects, correct the accelerator class, or choose another backend in spec.backends",
    )
    UNSUPPORTED_OPERATOR = Row(
        "UnsupportedOperator",
        Facets(Fault.BACKEND, Repeats.EVERYWHERE, placement=True, other_backend=True),
        "replace the operators when exporting, or choose a backend in spec.backends that implements them",
    )
    BACKEND_FALLBACK = Row(
        "BackendFallback",
        Facets(Fault.REVISION, Repeats.AGAIN, placement=True, other_backend=False),
        "see why the preferred backend does not serve, or put the one that does first in spec.backends",
    )
    FALLBACK_OVER_BUDGET = Row(
        "FallbackOverBudget",
        Facets(Fault.REVISION, Repeats.EVERYWHERE, placement=True, other_backend=False),
        "replace the operators that fall back, or raise the shares in spec.fallback",
    )
    NODE_FALLBACK = Row(
        "NodeFallback",
        Facets(Fault.REVISION, Repeats.EVERYWHERE, placement=True, other_backend=False),
        "choose a backend in spec.backends that supports these operators, replace them when exporting, or allow a share in spec.fallback",
    )
    OUT_OF_PROFILE = Row(
        "OutOfProfile",  # requests with sizes outside the shape profiles: each gets a 400, and is counted
        Facets(Fault.SPEC, Repeats.AGAIN, placement=False, other_backend=False),
        "add profiles with these sizes to spec.shapes, or have clients send others",
    )
    PROCESSOR_MISMATCH = Row(
        "ProcessorMismatch",  # INT8 products differ from where the model was verified
        Facets(Fault.NODE, Repeats.AGAIN, placement=False, other_backend=False),
        "serve on processors like the one that the model was verified on: list the instruction sets that all nodes of the AcceleratorClass have in its spec.cpuFeatures, or narrow its nodeSelector",
    )
    BUILD_FAILED = Row(
        "BuildFailed",
        Facets(Fault.BACKEND, Repeats.EVERYWHERE, placement=False, other_backend=True),
        "read the builder's errors in the Job's log; replace the operators that it rejects, or choose another backend in spec.backends",
    )
    BUILD_OUT_OF_MEMORY = Row(
        "BuildOutOfMemory",
        Facets(Fault.LOAD, Repeats.MOSTLY, placement=False, other_backend=False),
        "raise spec.build.resources.limits.memory, or spec.build.workspace for device memory",
    )
    PRECISION_UNSUPPORTED = Row(
        "PrecisionUnsupported",
        Facets(Fault.BACKEND, Repeats.EVERYWHERE, placement=False, other_backend=True),
        "choose an accelerator class whose compute capability supports this precision, or export in another",
    )
    CAPACITY_BLOCKED = Row(
        "CapacityBlocked",
        Facets(Fault.NODE, Repeats.NO, placement=False, other_backend=False),
        "free a device of this class, add a node, or set aheadOfTime on the AcceleratorClass where the backend builds without a device",
    )
    BACKEND_CRASHED = Row(
        "BackendCrashed",
        Facets(Fault.LOAD, Repeats.PERHAPS, placement=False, other_backend=True),
        "choose another backend in spec.backends; the pod's log has the native library's last output",
    )
    SLOWER_THAN_BASELINE = Row(
        "SlowerThanBaseline",
        Facets(Fault.NODE, Repeats.AGAIN, placement=False, other_backend=False),
        "check the node for other load, a throttled device or a CPU limit, and move the pod",
    )
    SLOWER_THAN_BENCHMARK = Row(
        "SlowerThanBenchmark",
        Facets(Fault.NODE, Repeats.AGAIN, placement=False, other_backend=False),
        "check the node for a throttled device, another MIG profile than the class's or other load, and move the pod",
    )
    SLOWER_THAN_STABLE = Row(
        "SlowerThanStable",  # the new revision, than the serving one
        Facets(Fault.REVISION, Repeats.AGAIN, placement=False, other_backend=False),
        "compare precision, backend and placement of the two revisions; raise maxLatencyRatio in spec.rollout.analysis if it may be slower",
    )
    TOO_MANY_ERRORS = Row(
        "TooManyErrors",
        Facets(Fault.REVISION, Repeats.AGAIN, placement=False, other_backend=False),
        "read the server's log",
    )
    REQUESTS_REJECTED = Row(
        "RequestsRejected",  # with 4xx, which the serving revision answers
        Facets(Fault.REVISION, Repeats.AGAIN, placement=False, other_backend=False),
        "keep names, data types and shapes of the inputs, or change the clients first: see in the server's log what it rejects",
    )
    MEMORY_GROWTH = Row(
        "MemoryGrowth",
        Facets(Fault.REVISION, Repeats.AGAIN, placement=False, other_backend=False),
        "find the leak, such as in a library of spec.extensions; raise maxMemoryGrowth in spec.rollout.analysis if the growth is expected",
    )
    ANSWERS_CHANGED = Row(
        "AnswersChanged",
        Facets(Fault.REVISION, Repeats.AGAIN, placement=False, other_backend=False),
        "compare the two models on your own samples; raise maxOutputDifference in spec.rollout.analysis if the change is intended",
    )
    SERVER_DOWN = Row(
        "ServerDown",
        Facets(Fault.LOAD, Repeats.PERHAPS, placement=False, other_backend=False),
        "read the server's log and its last termination message",
    )
    DEVICE_LOST = Row(
        "DeviceLost",  # every run fails with an error of the device
        Facets(Fault.NODE, Repeats.NO, placement=False, other_backend=False),
        "the server restarts automatically; if it recurs, look for Xid in the node's kernel log, then drain the node and reset or replace the device",
    )
    RUNS_FAIL = Row(
        "RunsFail",  # every run fails, also with inputs that are known to be valid
        Facets(Fault.BACKEND, Repeats.NO, placement=False, other_backend=False),
        "the server restarts automatically; if it recurs, read its log and correct what fails, such as a library of spec.extensions",
    )
    ARTIFACT_MISSING = Row(
        "ArtifactMissing",
        Facets(Fault.ARTIFACT, Repeats.NO, placement=False, other_backend=False),
        "no action needed: it is prepared again",
    )
    ARTIFACT_CORRUPT = Row(
        "ArtifactCorrupt",
        Facets(Fault.ARTIFACT, Repeats.AGAIN, placement=False, other_backend=False),
        "delete the artefact from the store; it is prepared again",
    )
    STORE_UNAVAILABLE = Row(
        "StoreUnavailable",
        Facets(Fault.STORE, Repeats.NO, placement=False, other_backend=False),
        "check that the store's volume is bound and writable, or that its bucket can be reached",
    )
    STORE_SHARED = Row(
        "StoreShared",  # by several clusters, so that nothing may be removed
        Facets(Fault.STORE, Repeats.AGAIN, placement=False, other_backend=False),
        "give each cluster a PATH of its own in store.bucket.uri, or set store.gc.dryRun; of one that is gone: enginewright store release STORE CLUSTER",
    )
    STORAGE_FULL = Row(
        "StorageFull",  # of the store's volume, or of the node's disk
        Facets(Fault.STORE, Repeats.UNTIL_ROOM, placement=False, other_backend=False),
        "enlarge the store's PersistentVolumeClaim or delete unneeded artefacts from it; for a pod's folder, give the node more ephemeral storage, or the pod a higher limit for it; Jobs are tried again by themselves",
    )
    OUT_OF_MEMORY = Row(
        "OutOfMemory",
        Facets(Fault.LOAD, Repeats.MOSTLY, placement=False, other_backend=False),
        "raise spec.podTemplate.resources.limits.memory",
    )
    TIMEOUT = Row(
        "Timeout",
        Facets(Fault.SPEC, Repeats.PERHAPS, placement=False, other_backend=False),
        "raise spec.build.timeout, or find out why the stage is slow from its pod's log",
    )
    SECRET_UNUSABLE = Row(
        "SecretUnusable",  # of spec.serving: missing or without valid content
        Facets(Fault.USER, Repeats.NO, placement=False, other_backend=False),
        "create or correct the Secret that the message names, in the model's namespace; the pod starts when its container restarts next",
    )
    POD_NOT_STARTED = Row(
        "PodNotStarted",  # an image, a Secret or a volume is missing
        Facets(Fault.USER, Repeats.NO, placement=False, other_backend=False),
        "correct what the message names; kubectl describe pod shows more",
    )
    EVICTED = Row(
        "Evicted",  # by the kubelet, which lacked disk or memory, or found a limit exceeded
        Facets(Fault.NODE, Repeats.UNTIL_ROOM, placement=False, other_backend=False),
        "raise spec.podTemplate.resources.requests and limits for ephemeral-storage or memory, whichever is named, so that a node with enough is chosen",
    )
    INTERNAL_ERROR = Row(
        "InternalError",
        Facets(Fault.PRODUCT, Repeats.MOSTLY, placement=False, other_backend=False),
        "report this with the pod's log",
    )

    @property
    def lacks_resources(self) -> bool:
        """Return whether memory or disk ran out, which says nothing about the model."""
        is_lack = self.facets.repeats in (Repeats.MOSTLY, Repeats.UNTIL_ROOM)
        return is_lack and self.facets.fault is not Fault.PRODUCT


# Why a live server cannot run the model, the most specific reason first
NOTHING_RUNS: Final = (Reason.DEVICE_LOST, Reason.RUNS_FAIL)


_NAMES: Final = frozenset(Reason)


def reason_named(name: str) -> Reason | None:
    """Return the reason of this name, or None if it is the operator's own or another release's."""
    return Reason(name) if name in _NAMES else None


def has_fault(name: str, *faults: Fault) -> bool:
    """Return whether this is the name of a reason with one of these faults."""
    reason = reason_named(name)
    return reason is not None and reason.facets.fault in faults


def exit_code(reason: Reason | None) -> ExitCode:
    """Return the exit code of a stage that failed with `reason`, or succeeded without one."""
    if reason is None:
        return ExitCode.OK
    if reason.facets.fault is Fault.PRODUCT:
        return ExitCode.INTERNAL
    return ExitCode.PERMANENT if reason.facets.repeats in _PERMANENT else ExitCode.TRANSIENT
