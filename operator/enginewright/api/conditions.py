"""Conditions: what a resource's owner reads first, and what tools wait for.

Types follow kstatus (Ready, Reconciling, Stalled) plus our own. lastTransitionTime changes only with
the status, and messages contain nothing volatile (no times, uids, pod names), so that an unchanged
state gives an identical status.
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
    """What a condition is about; docs/conditions.md shows the comments."""

    READY = "Ready"  # the current spec serves, with all its pods
    RECONCILING = "Reconciling"  # the operator is working, or waits to retry
    STALLED = "Stalled"  # no progress until a user changes something; the message says what
    AVAILABLE = "Available"  # at least one pod is ready, perhaps of an older revision
    VALIDATED = "Validated"  # the current spec's model is valid, supported by the runtime image, and in the store
    ENGINES_READY = "EnginesReady"  # every engine that the current spec needs is built, or its backend needs none
    PARITY_VERIFIED = "ParityVerified"  # serving pods return the golden outputs
    PLACEMENT_VERIFIED = "PlacementVerified"  # nodes run where `spec.fallback` promises, as ONNX Runtime reports for the live session
    ROLLED_BACK = "RolledBack"  # the current spec's revision failed, and the last good one serves; normally False
    FALLBACK_ACTIVE = "FallbackActive"  # nodes run elsewhere than on the chosen backend, beyond the budget; normally False
    ROUTE_ACCEPTED = "RouteAccepted"  # every gateway of `spec.serving.route` has accepted the HTTPRoute; absent without that field


class StatusReason(StrEnum):
    """Reasons set by the operator; failures found by a stage have `contract.reasons.Reason`.

    docs/reference/reasons.md shows the comments.
    """

    PROGRESSING = "Progressing"  # the current revision waits for further pods
    PROBING_IMAGE = "ProbingImage"  # the runtime image's versions and backends are being determined
    IMAGE_PROBE_FAILED = "ImageProbeFailed"  # the runtime image cannot be probed: see the message
    PREPARING = "Preparing"  # a prepare Job runs, or is about to
    SHARED_PREPARATION = "SharedPreparation"  # another model's Job prepares the same
    PREPARED = "Prepared"  # the model is in the store
    CLAIM_NOT_FOUND = "ClaimNotFound"  # a PersistentVolumeClaim that pods mount does not exist
    CLAIM_NOT_BOUND = "ClaimNotBound"  # a PersistentVolumeClaim that pods mount has no volume yet
    ROLLING_OUT = "RollingOut"  # pods of a new revision start
    FAILED_CREATE = "FailedCreate"  # the API server rejects the pods of a Deployment or a Job
    ROLLOUT_FAILED = (
        "RolloutFailed"  # a new pod had its node for rollout.progressTimeout and was not ready
    )
    SERVING = "Serving"  # the current spec serves with all its pods, or at least one pod is ready
    SERVING_INTERIM = "ServingInterim"  # the spec serves without engines until they are built
    INTERIM_ENDED = "InterimEnded"  # an Event: engines serve in place of an interim
    BACKEND_CHOSEN = "BackendChosen"  # an Event: a backend is chosen by spec.build.choose: Fastest
    NOTHING_SERVES = "NothingServes"  # no pod is ready
    SUSPENDED = "Suspended"  # the rollout is paused
    VERIFYING_CANARY = "VerifyingCanary"  # a new revision is verified before it gets requests
    ANALYZING = "Analyzing"  # a new revision gets requests and is compared with the serving one
    SIGNATURE_CHANGED = "SignatureChanged"  # a new revision breaks clients by its inputs or outputs
    ROLLED_BACK_BY_USER = "RolledBackByUser"  # a user requested it by an annotation
    PROMOTED = "Promoted"  # an Event: a new revision replaces the serving one, by what was compared
    IMAGE_KEPT = "ImageKept"  # an Event: the model does not run right with a new runtime image or an edited class, and keeps what it has
    PROCESSES_REMOVED = "ProcessesRemoved"  # the spec requests a revision of an earlier release with several server processes in each pod, which no spec can request any more: the Event says how many replicas replace them
    FLEET_STOPPED = (
        "FleetStopped"  # an Event: too many models do not run right with a new image or class
    )
    REFRESHED = "Refreshed"  # an Event: a refresh of the source has finished
    EDIT_UNDONE = "EditUndone"  # an Event: an edit of an object was reverted
    GATEWAY_API_MISSING = "GatewayAPIMissing"  # the cluster has no HTTPRoutes for a route
    DEVICE_CLAIMS_MISSING = "DeviceClaimsMissing"  # a class's pods claim their device, and the cluster has no resource.k8s.io/v1
    ROUTE_ACCEPTED = "RouteAccepted"  # every gateway has accepted the model's HTTPRoute
    ROUTE_REJECTED = "RouteRejected"  # a gateway refuses the HTTPRoute: see the message
    SCALED_TO_ZERO = "ScaledToZero"  # the spec requests no pods, or none has started since
    INVALID_SPEC = "InvalidSpec"  # unreadable, or an engine's key does not match its recipe
    APPLY_FAILED = "ApplyFailed"  # the API server rejects an object
    NO_ACCELERATOR_CLASS = "NoAcceleratorClass"  # the cluster has no AcceleratorClass
    AMBIGUOUS_ACCELERATOR_CLASS = "AmbiguousAcceleratorClass"  # several, and the model names none
    UNKNOWN_ACCELERATOR_CLASS = "UnknownAcceleratorClass"  # the model names a missing class
    BACKEND_NOT_ALLOWED = "BackendNotAllowed"  # a class, its devices or the images lack the backend
    STORE_NOT_SHARED = "StoreNotShared"  # several nodes need a store that is ReadWriteMany
    NOT_YET_VERIFIED = "NotYetVerified"  # no result yet
    BUILDING = "Building"  # an engine is built
    LOOKING_UP = "LookingUp"  # an engine is looked for in the store
    QUEUED = "Queued"  # a Job waits for its turn or a queue, or its pod for a node
    BUILT = "Built"  # the engines are built
    NOT_REQUESTED = "NotRequested"  # no model's spec needs the engine; it is built once one does
    ENGINE_REMOVED = "EngineRemoved"  # an Event: unneeded for store.gc.unusedFor
    COLLECTION_FAILED = "CollectionFailed"  # an Event: the collection of a store has failed
    COLLECTION_BLOCKED = "CollectionBlocked"  # an Event: what the store's namespace needs is not known, so nothing is removed
    STORE_OVER_LIMIT = "StoreOverLimit"  # an Event: what is needed is larger than store.gc.maxSize
    IMAGE_NOT_PUSHED = "ImageNotPushed"  # an Event: an artefact has no OCI image in store.images.repository, so that pods read it from the store
    NO_ENGINE_NEEDED = "NoEngineNeeded"  # the backend uses no engines
    VERIFYING = "Verifying"  # the sidecars have not finished their checks
    SIDECAR_UNREACHABLE = "SidecarUnreachable"  # a sidecar has not responded for five minutes
    GOLDEN_MATCHES = "GoldenMatches"  # all golden outputs are right
    PROMISE_KEPT = "PromiseKept"  # nodes run where spec.fallback promises
    PROMISE_BROKEN = "PromiseBroken"  # they do not, and no other reason is known
    WITHIN_BUDGET = "WithinBudget"  # nodes run elsewhere, within the budget
    NO_FALLBACK = "NoFallback"  # all nodes run on the chosen backend
    NODES_FOUND = "NodesFound"  # nodes match the class
    NO_MATCHING_NODE = "NoMatchingNode"  # no node matches the class
    OVERLAPPING_CLASS = "OverlappingClass"  # another class requests the same resource on a node
    MIXED_DEVICES = "MixedDevices"  # a class's nodes have different GPU products or sizes
    NODE_NOT_READY = "NodeNotReady"  # the node of a pod is NotReady: see the message
    FEATURE_MISSING = "FeatureMissing"  # a node lacks an instruction set of the class's cpuFeatures


class WantedCondition(ApiModel):
    """A condition as decided now, before it is compared with the previously reported one."""

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
    """One condition of the resource, in the standard form of Kubernetes."""

    observed_generation: Annotated[int, INT64] = 0
    """metadata.generation of the resource when this was decided."""

    last_transition_time: datetime
    """When `status` last changed."""


def find_condition(conditions: Iterable[Condition], kind: str) -> Condition | None:
    """Return the condition of a type, once it has been reported."""
    return next((condition for condition in conditions if condition.type == kind), None)


def has_changed(before: Condition | None, now: Condition) -> bool:
    """Return whether a condition's status or reason has changed."""
    return before is None or (before.status, before.reason) != (now.status, now.reason)


def merge_conditions(
    old: Iterable[Condition],
    decided: Iterable[WantedCondition],
    *,
    generation: int,
    now: datetime,
) -> tuple[Condition, ...]:
    """Return `decided` in its order; a transition time (`now`, in whole seconds) changes only with the status."""
    before = {condition.type: condition for condition in old}
    moment = now.replace(microsecond=0)
    merged = []
    for condition in decided:
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
