"""Conditions: what a resource's owner reads first, and what tools wait for.

Types follow kstatus (Ready, Reconciling, Stalled) plus our own. A condition's time moves only when
its status flips, and messages hold nothing that changes by itself (no times, uids, pod names), so
that a status which means the same is the same.
"""

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from enginewright.api.base import ApiModel
from enginewright.api.markers import INT64

ConditionStatus: TypeAlias = Literal["True", "False", "Unknown"]


class ConditionType(StrEnum):
    """What a condition is about."""

    READY = "Ready"  # what the spec asks for serves, whole
    RECONCILING = "Reconciling"  # the operator is at work on it
    STALLED = "Stalled"  # nothing happens until somebody changes something
    AVAILABLE = "Available"  # something good serves, not necessarily the newest
    VALIDATED = "Validated"  # the model is valid and the runtime image supports it
    ENGINES_READY = "EnginesReady"
    PARITY_VERIFIED = "ParityVerified"
    PLACEMENT_VERIFIED = "PlacementVerified"
    FALLBACK_ACTIVE = "FallbackActive"
    ROLLED_BACK = "RolledBack"


class StatusReason(StrEnum):
    """Reasons of the operator's own; failures found by a stage have `contract.reasons.Reason`."""

    PROGRESSING = "Progressing"
    PROBING_IMAGE = "ProbingImage"
    IMAGE_PROBE_FAILED = "ImageProbeFailed"
    PREPARING = "Preparing"
    PREPARED = "Prepared"
    CLAIM_NOT_FOUND = "ClaimNotFound"
    CLAIM_NOT_BOUND = "ClaimNotBound"
    ROLLING_OUT = "RollingOut"
    FAILED_CREATE = "FailedCreate"
    ROLLOUT_FAILED = "RolloutFailed"
    SERVING = "Serving"
    NOTHING_SERVES = "NothingServes"
    SUSPENDED = "Suspended"
    REFRESHED = "Refreshed"
    EDIT_UNDONE = "EditUndone"
    SCALED_TO_ZERO = "ScaledToZero"
    UNSUPPORTED_FIELD = "UnsupportedField"
    INVALID_SPEC = "InvalidSpec"
    APPLY_FAILED = "ApplyFailed"
    NO_ACCELERATOR_CLASS = "NoAcceleratorClass"
    AMBIGUOUS_ACCELERATOR_CLASS = "AmbiguousAcceleratorClass"
    UNKNOWN_ACCELERATOR_CLASS = "UnknownAcceleratorClass"
    BACKEND_NOT_ALLOWED = "BackendNotAllowed"
    STORE_NOT_SHARED = "StoreNotShared"
    NOT_YET_VERIFIED = "NotYetVerified"
    BUILDING = "Building"
    LOOKING_UP = "LookingUp"
    QUEUED = "Queued"
    BUILT = "Built"
    NO_ENGINE_NEEDED = "NoEngineNeeded"
    VERIFYING = "Verifying"
    SIDECAR_UNREACHABLE = "SidecarUnreachable"
    GOLDEN_MATCHES = "GoldenMatches"
    PROMISE_KEPT = "PromiseKept"
    PROMISE_BROKEN = "PromiseBroken"
    WITHIN_BUDGET = "WithinBudget"
    NO_FALLBACK = "NoFallback"
    NODES_FOUND = "NodesFound"
    NO_MATCHING_NODE = "NoMatchingNode"
    OVERLAPPING_CLASS = "OverlappingClass"
    MIXED_DEVICES = "MixedDevices"
    FEATURE_MISSING = "FeatureMissing"


class WantedCondition(ApiModel):
    """A condition as decided now, before it is compared with what was told before."""

    type: Annotated[str, Field(max_length=316)]
    """What the condition is about, such as Ready or Stalled."""

    status: ConditionStatus
    """True, False or Unknown."""

    reason: Annotated[
        str,
        Field(min_length=1, max_length=1024, pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"),
    ]
    """Why, as one word for programs, such as DigestMismatch."""

    message: Annotated[str, Field(max_length=32768)]
    """Why, as a sentence for people, with the remedy where there is one."""


class Condition(WantedCondition):
    """One statement about the resource, in the form that all Kubernetes tools read."""

    observed_generation: Annotated[int, INT64] = 0
    """metadata.generation of the resource when this was decided."""

    last_transition_time: datetime
    """When `status` last flipped."""


def merge_conditions(
    old: Iterable[Condition],
    wanted: Iterable[WantedCondition],
    *,
    generation: int,
    now: datetime,
) -> tuple[Condition, ...]:
    """Return `wanted` in its order, with times that move only where a status flipped.

    Conditions of `old` that are wanted no more are left out. `now` is timezone-aware and is cut to
    seconds, the resolution of the API.
    """
    before = {condition.type: condition for condition in old}
    moment = now.replace(microsecond=0)
    merged = []
    for condition in wanted:
        previous = before.get(condition.type)
        kept = previous is not None and previous.status == condition.status
        merged.append(
            Condition(
                type=condition.type,
                status=condition.status,
                reason=condition.reason,
                message=condition.message,
                observed_generation=generation,
                last_transition_time=previous.last_transition_time if previous and kept else moment,
            )
        )
    return tuple(merged)
