"""Why a model is not served, as an enum with a remedy each.

Reasons are an interface: conditions, Events, metrics and alerts carry them. A reason also decides
what the Job controller does next, through the exit code of the stage that found it.
"""

from enum import IntEnum, StrEnum
from typing import Final


class ExitCode(IntEnum):
    """Exit codes of a stage, after sysexits.h; `podFailurePolicy` acts on them."""

    OK = 0
    PERMANENT = 65  # EX_DATAERR: the same input fails again, so the Job fails at once
    INTERNAL = 70  # EX_SOFTWARE: a bug of ours; retried, since nothing is known about it
    TRANSIENT = 75  # EX_TEMPFAIL: network, memory, store: retried with backoff


class Reason(StrEnum):
    """Failure reasons, common to stages, serving pods, conditions and metrics."""

    SOURCE_UNREACHABLE = "SourceUnreachable"
    DIGEST_MISMATCH = "DigestMismatch"
    INVALID_MODEL = "InvalidModel"
    OPSET_UNSUPPORTED = "OpsetUnsupported"
    IR_VERSION_UNSUPPORTED = "IRVersionUnsupported"
    UNSUPPORTED_OPERATOR = "UnsupportedOperator"
    CUSTOM_DOMAIN_UNSUPPORTED = "CustomDomainUnsupported"
    EXTERNAL_DATA_MISSING = "ExternalDataMissing"
    MODEL_TOO_LARGE = "ModelTooLarge"
    SHAPE_PROFILE_MISSING = "ShapeProfileMissing"
    SHAPE_PROFILE_INVALID = "ShapeProfileInvalid"
    PARITY_FAILED = "ParityFailed"
    BACKEND_CRASHED = "BackendCrashed"
    PROVIDER_MISSING = "ProviderMissing"
    ARTIFACT_MISSING = "ArtifactMissing"
    ARTIFACT_CORRUPT = "ArtifactCorrupt"
    STORE_UNAVAILABLE = "StoreUnavailable"
    OUT_OF_MEMORY = "OutOfMemory"
    TIMEOUT = "Timeout"
    INTERNAL_ERROR = "InternalError"


REMEDIES: Final[dict[Reason, str]] = {
    Reason.SOURCE_UNREACHABLE: (
        "check spec.source.uri, the credentials in spec.source.secretRef and that pods of this"
        " namespace reach the source; it is tried again by itself"
    ),
    Reason.DIGEST_MISMATCH: (
        "set spec.source.sha256 to the digest of the file that you mean to serve, or restore that file"
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
    Reason.EXTERNAL_DATA_MISSING: "put every external data file, whole, beside the model, inside its folder",
    Reason.MODEL_TOO_LARGE: "save the weights as external data: one protobuf file ends at 2 GiB",
    Reason.SHAPE_PROFILE_MISSING: "add the input to spec.shapes with min, opt and max",
    Reason.SHAPE_PROFILE_INVALID: "correct the input's entry in spec.shapes so that it fits the model",
    Reason.PARITY_FAILED: "compare the outputs with those of the exporting framework; widen spec.parity only if the drift is acceptable",
    Reason.BACKEND_CRASHED: "choose another backend in spec.backends; the pod's log holds the native library's last words",
    Reason.PROVIDER_MISSING: "use the runtime image and the node that carry this execution provider, or choose another backend in spec.backends",
    Reason.ARTIFACT_MISSING: "nothing to do: it is prepared again",
    Reason.ARTIFACT_CORRUPT: "delete the artefact from the store; it is prepared again",
    Reason.STORE_UNAVAILABLE: "check that the store's volume is bound, writable and has space",
    Reason.OUT_OF_MEMORY: "raise spec.podTemplate.resources.limits.memory",
    Reason.TIMEOUT: "raise spec.build.timeout, or find out why the stage is slow from its pod's log",
    Reason.INTERNAL_ERROR: "report this with the pod's log",
}

_TRANSIENT: Final = frozenset(
    {
        Reason.SOURCE_UNREACHABLE,
        Reason.STORE_UNAVAILABLE,
        Reason.OUT_OF_MEMORY,
        Reason.ARTIFACT_MISSING,
    }
)


def exit_code(reason: Reason | None) -> ExitCode:
    """Return the exit code with which a stage that ends for `reason` must end."""
    if reason is None:
        return ExitCode.OK
    if reason is Reason.INTERNAL_ERROR:
        return ExitCode.INTERNAL
    return ExitCode.TRANSIENT if reason in _TRANSIENT else ExitCode.PERMANENT
