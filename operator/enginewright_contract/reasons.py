"""Why a model is not served: the reasons, each with its remedy.

Reasons are an interface: conditions, Events, metrics and alerts carry them. A reason also decides
what the Job controller does next, through the exit code of the stage that found it.
"""

from enum import IntEnum, StrEnum
from typing import Final


class ExitCode(IntEnum):
    """Exit codes of a stage, after sysexits.h; `podFailurePolicy` acts on them."""

    OK = 0
    PERMANENT = 65  # EX_DATAERR: the same input fails again, so the Job fails at once
    INTERNAL = 70  # EX_SOFTWARE: a bug in Enginewright; retried, since its cause is unknown
    TRANSIENT = 75  # EX_TEMPFAIL: network, memory, store: retried with backoff


class Reason(StrEnum):
    """Failure reasons, common to stages, serving pods, conditions and metrics."""

    SOURCE_UNREACHABLE = "SourceUnreachable"
    DIGEST_MISMATCH = "DigestMismatch"
    SOURCE_CHANGED = "SourceChanged"  # the content differs from what was fetched first
    INVALID_MODEL = "InvalidModel"
    OPSET_UNSUPPORTED = "OpsetUnsupported"
    IR_VERSION_UNSUPPORTED = "IRVersionUnsupported"
    UNSUPPORTED_OPERATOR = "UnsupportedOperator"
    CUSTOM_DOMAIN_UNSUPPORTED = "CustomDomainUnsupported"
    EXTERNAL_DATA_MISSING = "ExternalDataMissing"
    MODEL_TOO_LARGE = "ModelTooLarge"
    SHAPE_PROFILE_MISSING = "ShapeProfileMissing"
    SHAPE_PROFILE_INVALID = "ShapeProfileInvalid"
    CONVERSION_FAILED = "ConversionFailed"
    QUANTIZATION_FAILED = "QuantizationFailed"
    CALIBRATION_TOO_SMALL = "CalibrationTooSmall"  # a warning: too few samples to trust the ranges
    CALIBRATION_INVALID = "CalibrationInvalid"
    EXTENSION_FAILED = "ExtensionFailed"
    PARITY_FAILED = "ParityFailed"
    NOTHING_COMPARED = "NothingCompared"  # all outputs vary, their distribution is not known
    BACKEND_CRASHED = "BackendCrashed"
    PROVIDER_MISSING = "ProviderMissing"  # not in the image, or its libraries are not
    PROVIDER_REFUSED = "ProviderRefused"  # present, but not for this device, precision or option
    DRIVER_MISSING = "DriverMissing"
    DRIVER_TOO_OLD = "DriverTooOld"
    NODE_FALLBACK = "NodeFallback"
    BACKEND_FALLBACK = "BackendFallback"
    FALLBACK_OVER_BUDGET = "FallbackOverBudget"
    OUT_OF_PROFILE = "OutOfProfile"  # requests with sizes outside the shape profiles: each gets a 400, and is counted
    SESSION_REPLACED = "SessionReplaced"  # the session is not the one that was admitted
    VERSION_MISMATCH = "VersionMismatch"
    PROCESSOR_MISMATCH = (
        "ProcessorMismatch"  # INT8 products differ from where the model was verified
    )
    BUILD_FAILED = "BuildFailed"
    BUILD_OUT_OF_MEMORY = "BuildOutOfMemory"
    PRECISION_UNSUPPORTED = "PrecisionUnsupported"
    ENGINE_CORRUPT = "EngineCorrupt"
    ENGINE_INCOMPATIBLE = "EngineIncompatible"  # of another compute capability
    ENGINE_VERSION_MISMATCH = "EngineVersionMismatch"  # of another version of the backend
    CAPACITY_BLOCKED = "CapacityBlocked"
    SLOWER_THAN_BASELINE = "SlowerThanBaseline"
    SLOWER_THAN_BENCHMARK = "SlowerThanBenchmark"
    SLOWER_THAN_STABLE = "SlowerThanStable"  # the new revision, than the serving one
    TOO_MANY_ERRORS = "TooManyErrors"
    REQUESTS_REJECTED = "RequestsRejected"  # with 4xx, which the serving revision answers
    MEMORY_GROWTH = "MemoryGrowth"
    ANSWERS_CHANGED = "AnswersChanged"
    SERVER_DOWN = "ServerDown"
    DEVICE_LOST = "DeviceLost"  # every run fails with an error of the device
    RUNS_FAIL = "RunsFail"  # every run fails, also with inputs that are known to be valid
    ARTIFACT_MISSING = "ArtifactMissing"
    ARTIFACT_CORRUPT = "ArtifactCorrupt"
    STORE_UNAVAILABLE = "StoreUnavailable"
    STORE_SHARED = "StoreShared"  # by several clusters, so that nothing may be removed
    STORAGE_FULL = "StorageFull"  # of the store's volume, or of the node's disk
    OUT_OF_MEMORY = "OutOfMemory"
    TIMEOUT = "Timeout"
    SECRET_UNUSABLE = "SecretUnusable"  # noqa: S105 - of spec.serving: missing or without valid content
    POD_NOT_STARTED = "PodNotStarted"  # an image, a Secret or a volume is missing
    EVICTED = "Evicted"  # by the kubelet, which lacked disk or memory, or found a limit exceeded
    INTERNAL_ERROR = "InternalError"


# Why a live server cannot run the model, the most specific reason first
NOTHING_RUNS: Final = (Reason.DEVICE_LOST, Reason.RUNS_FAIL)

REMEDIES: Final[dict[Reason, str]] = {
    Reason.SOURCE_UNREACHABLE: (
        "check spec.source.uri, the credentials in spec.source.secretRef and that pods of this"
        " namespace reach the source"
    ),
    Reason.DIGEST_MISMATCH: (
        "set spec.source.sha256 to the digest of the intended file, or restore that file"
    ),
    Reason.SOURCE_CHANGED: (
        "restore the file, or accept the new content: kubectl annotate"
        ' inferencemodel NAME enginewright.dev/refresh="$(date)" --overwrite'
    ),
    Reason.INVALID_MODEL: "export the model again and check it with onnx.checker.check_model(path, full_check=True)",
    Reason.OPSET_UNSUPPORTED: (
        "export with an opset that the runtime image supports, or use a runtime image with a newer ONNX Runtime"
    ),
    Reason.IR_VERSION_UNSUPPORTED: (
        "save the model with an ir_version that the runtime image supports, or use a newer runtime image"
    ),
    Reason.UNSUPPORTED_OPERATOR: (
        "replace the operators when exporting, or choose a backend in spec.backends that implements them"
    ),
    Reason.CUSTOM_DOMAIN_UNSUPPORTED: "export without operators of this domain: the runtime image has no library that registers them",
    Reason.EXTERNAL_DATA_MISSING: "put every external data file, complete, into the model's folder",
    Reason.MODEL_TOO_LARGE: "save the weights as external data: a protobuf file is limited to 2 GiB",
    Reason.SHAPE_PROFILE_MISSING: "add the input to spec.shapes with min, opt and max",
    Reason.SHAPE_PROFILE_INVALID: "correct the input's entry in spec.shapes so that it fits the model",
    Reason.CONVERSION_FAILED: (
        "export with an opset that the runtime image loads, or omit spec.targetOpset"
    ),
    Reason.QUANTIZATION_FAILED: (
        "see the most sensitive nodes in the report; provide more representative"
        " spec.quantization.calibration, or choose another spec.precision"
    ),
    Reason.CALIBRATION_TOO_SMALL: "provide at least 500 samples, as varied as the requests will be",
    Reason.CALIBRATION_INVALID: (
        "save one array per input with numpy.savez, named as the input, with samples along the first axis"
    ),
    Reason.EXTENSION_FAILED: (
        "build the library for this image's ONNX Runtime or TensorRT, and set its sha256 in spec.extensions"
    ),
    Reason.PARITY_FAILED: "compare the outputs with those of the exporting framework; widen spec.parity only if the drift is acceptable",
    Reason.NOTHING_COMPARED: "export with at least one output that is the same in every run: take random numbers as an input, or leave them out",
    Reason.BACKEND_CRASHED: "choose another backend in spec.backends; the pod's log has the native library's last output",
    Reason.PROVIDER_MISSING: "use a runtime image and a node that have this execution provider, or choose another backend in spec.backends",
    Reason.PROVIDER_REFUSED: "see in the pod's log what the provider rejects, correct the accelerator class, or choose another backend in spec.backends",
    Reason.DRIVER_MISSING: (
        "run on a node whose NVIDIA driver is mounted into pods (container toolkit, and"
        " spec.podTemplate.runtimeClassName where the cluster requires one)"
    ),
    Reason.DRIVER_TOO_OLD: "update the NVIDIA driver of the node, or use a runtime image built for its CUDA version",
    Reason.NODE_FALLBACK: (
        "choose a backend in spec.backends that supports these operators, replace them when exporting,"
        " or allow a share in spec.fallback"
    ),
    Reason.BACKEND_FALLBACK: "see why the preferred backend does not serve, or put the one that does first in spec.backends",
    Reason.FALLBACK_OVER_BUDGET: "replace the operators that fall back, or raise the shares in spec.fallback",
    Reason.OUT_OF_PROFILE: (
        "add profiles with these sizes to spec.shapes, or have clients send others"
    ),
    Reason.SESSION_REPLACED: "delete the pod, and find in its log why the provider failed",
    Reason.VERSION_MISMATCH: "delete the pod; if it persists, rebuild the runtime image from its lock",
    Reason.PROCESSOR_MISMATCH: (
        "serve on processors like the one that the model was verified on: list the instruction sets that all nodes"
        " of the AcceleratorClass have in its spec.cpuFeatures, or narrow its nodeSelector"
    ),
    Reason.BUILD_FAILED: "read the builder's errors in the Job's log; replace the operators that it rejects, or choose another backend in spec.backends",
    Reason.BUILD_OUT_OF_MEMORY: "raise spec.build.resources.limits.memory, or spec.build.workspace for device memory",
    Reason.PRECISION_UNSUPPORTED: "choose an accelerator class whose compute capability supports this precision, or export in another",
    Reason.ENGINE_CORRUPT: "delete the InferenceEngine and its folder in the store; it is rebuilt",
    Reason.ENGINE_INCOMPATIBLE: "correct spec.computeCapability of the AcceleratorClass; the engine is rebuilt",
    Reason.ENGINE_VERSION_MISMATCH: "serve with the runtime image that built the engine, or delete the InferenceEngine to have it rebuilt",
    Reason.CAPACITY_BLOCKED: (
        "free a device of this class, add a node, or set aheadOfTime on the AcceleratorClass where"
        " the backend builds without a device"
    ),
    Reason.SLOWER_THAN_BASELINE: "check the node for other load, a throttled device or a CPU limit, and move the pod",
    Reason.SLOWER_THAN_BENCHMARK: "check the node for a throttled device, another MIG profile than the class's or other load, and move the pod",
    Reason.SLOWER_THAN_STABLE: "compare precision, backend and placement of the two revisions; raise maxLatencyRatio in spec.rollout.analysis if it may be slower",
    Reason.TOO_MANY_ERRORS: "read the server's log",
    Reason.REQUESTS_REJECTED: "keep names, data types and shapes of the inputs, or change the clients first: see in the server's log what it rejects",
    Reason.MEMORY_GROWTH: "find the leak, such as in a library of spec.extensions; raise maxMemoryGrowth in spec.rollout.analysis if the growth is expected",
    Reason.ANSWERS_CHANGED: "compare the two models on your own samples; raise maxOutputDifference in spec.rollout.analysis if the change is intended",
    Reason.SERVER_DOWN: "read the server's log and its last termination message",
    Reason.DEVICE_LOST: (
        "the server restarts automatically; if it recurs, look for Xid in the node's kernel log,"
        " then drain the node and reset or replace the device"
    ),
    Reason.RUNS_FAIL: (
        "the server restarts automatically; if it recurs, read its log and correct what fails,"
        " such as a library of spec.extensions"
    ),
    Reason.ARTIFACT_MISSING: "no action needed: it is prepared again",
    Reason.ARTIFACT_CORRUPT: "delete the artefact from the store; it is prepared again",
    Reason.STORE_UNAVAILABLE: (
        "check that the store's volume is bound and writable, or that its bucket can be reached"
    ),
    Reason.STORE_SHARED: (
        "give each cluster a PATH of its own in store.bucket.uri, or set store.gc.dryRun; of one that is gone:"
        " enginewright store release STORE CLUSTER"
    ),
    Reason.STORAGE_FULL: (
        "enlarge the store's PersistentVolumeClaim or delete unneeded artefacts from it; for a pod's folder,"
        " give the node more ephemeral storage, or the pod a higher limit for it"
    ),
    Reason.OUT_OF_MEMORY: "raise spec.podTemplate.resources.limits.memory",
    Reason.TIMEOUT: "raise spec.build.timeout, or find out why the stage is slow from its pod's log",
    Reason.SECRET_UNUSABLE: (
        "create or correct the Secret that the message names, in the model's namespace; the pod starts when its"
        " container restarts next"
    ),
    Reason.POD_NOT_STARTED: "correct what the message names; kubectl describe pod shows more",
    Reason.EVICTED: (
        "raise spec.build.resources.requests and limits for ephemeral-storage or memory, whichever is named,"
        " so that a node with enough is chosen"
    ),
    Reason.INTERNAL_ERROR: "report this with the pod's log",
}

_TRANSIENT: Final = frozenset(
    {
        Reason.SOURCE_UNREACHABLE,
        Reason.STORE_UNAVAILABLE,
        Reason.STORAGE_FULL,  # another node may have more, or the volume is enlarged
        Reason.OUT_OF_MEMORY,
        Reason.ARTIFACT_MISSING,
        Reason.BUILD_OUT_OF_MEMORY,
        Reason.DRIVER_MISSING,  # another node may have it, or this one is repaired
        Reason.CAPACITY_BLOCKED,
        Reason.SECRET_UNUSABLE,
        Reason.POD_NOT_STARTED,
        Reason.DEVICE_LOST,  # likewise
        Reason.RUNS_FAIL,
        Reason.EVICTED,
    }
)


# Transient or internal ones that rarely succeed on retry unless somebody changes something
RARELY_TRANSIENT: Final = frozenset(
    {
        Reason.OUT_OF_MEMORY,
        Reason.BUILD_OUT_OF_MEMORY,
        Reason.INTERNAL_ERROR,
        Reason.EVICTED,
        Reason.STORAGE_FULL,
    }
)

# Found by a serving pod but caused by model, backend or image: every other pod would find the same
SAME_IN_EVERY_POD: Final = frozenset(
    {
        Reason.INVALID_MODEL,
        Reason.OPSET_UNSUPPORTED,
        Reason.IR_VERSION_UNSUPPORTED,
        Reason.UNSUPPORTED_OPERATOR,
        Reason.CUSTOM_DOMAIN_UNSUPPORTED,
        Reason.EXTERNAL_DATA_MISSING,
        Reason.EXTENSION_FAILED,
        Reason.NOTHING_COMPARED,
        Reason.NODE_FALLBACK,
        Reason.FALLBACK_OVER_BUDGET,
    }
)


def exit_code(reason: Reason | None) -> ExitCode:
    """Return the exit code of a stage that failed with `reason`; None: it succeeded."""
    if reason is None:
        return ExitCode.OK
    if reason is Reason.INTERNAL_ERROR:
        return ExitCode.INTERNAL
    return ExitCode.TRANSIENT if reason in _TRANSIENT else ExitCode.PERMANENT
