"""The status of an InferenceEngine: conditions, columns, Events. No live measurements."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from enginewright_contract.base import LIST_LENGTH
from enginewright_contract.budget import billionths
from enginewright_contract.report import PublishedBackend, PublishedEngine

from enginewright.api.conditions import (
    Condition,
    ConditionStatus,
    ConditionType,
    StatusReason,
    WantedCondition,
    find_condition,
    has_changed,
    merge_conditions,
)
from enginewright.api.inference_engine import (
    EngineBackend,
    EngineFacts,
    EngineLatency,
    EngineParity,
    EngineSummary,
    EngineVersions,
    InferenceEngine,
    InferenceEngineStatus,
)
from enginewright.api.job_failure import JobFailure
from enginewright.plan.quantities import format_duration, format_size
from enginewright.plan.types import EventIntent

LOOKING_UP: Final = "looking for the engine in the store"
_NORMAL: Final = frozenset(
    {
        StatusReason.BUILT,
        StatusReason.BUILDING,
        StatusReason.QUEUED,
        StatusReason.NOT_REQUESTED,
        StatusReason.SUSPENDED,
    }
)  # reasons of Normal Events


@dataclass(frozen=True)
class EngineState:
    """The state of an engine, from which its status is derived, and what to do."""

    status: InferenceEngineStatus  # conditions and summary are still the previous ones
    reason: str
    message: str
    ready: bool = False
    stalled: bool = False
    apply: tuple[dict[str, Any], ...] = ()
    end: str = ""  # name of a Job to delete that has not been replaced
    requeue_after: float | None = None
    awaits_turn: bool = False  # to create a Job

    @classmethod
    def from_engine(cls, status: InferenceEngineStatus, engine: EngineFacts) -> "EngineState":
        """Return the state of an engine that exists."""
        status = status.model_copy(update={"engine": engine})
        origin = "found in the store" if engine.cached else "built"
        return cls(status, StatusReason.BUILT, f"{origin}: {describe_engine(engine)}", ready=True)

    @classmethod
    def from_failure(cls, status: InferenceEngineStatus, failure: JobFailure) -> "EngineState":
        """Return the state after a permanent failure, which is recorded."""
        others = [build for build in status.failed_builds if build != status.build_hash]
        builds = (*others, status.build_hash)[-LIST_LENGTH:]
        status = status.model_copy(update={"failure": failure, "failed_builds": builds})
        return cls(status, failure.reason, failure.sentence, stalled=True)


def status_of(engine: InferenceEngine, state: EngineState, now: datetime) -> InferenceEngineStatus:
    """Return the complete status."""
    built = state.status.engine
    generation = engine.metadata.generation
    return state.status.model_copy(
        update={
            "observed_generation": generation,
            "conditions": merge_conditions(
                engine.status.conditions,
                _conditions(state),
                generation=generation,
                now=now.astimezone(UTC),
            ),
            "summary": _summary(engine, built),
        }
    )


def ready_events(engine: InferenceEngine, status: InferenceEngineStatus) -> tuple[EventIntent, ...]:
    """Return an Event if status or reason of Ready has changed, except that it is looked for: what is found has one."""
    before, now = map(ready_condition, (engine.status, status))
    if now is None or not has_changed(before, now) or now.reason == StatusReason.LOOKING_UP:
        return ()
    is_normal, is_ready = now.reason in _NORMAL, now.status == "True"
    kind = "Normal" if is_normal else "Warning"
    return (EventIntent(kind, now.reason, now.message, is_normal and not is_ready),)


def ready_condition(status: InferenceEngineStatus) -> Condition | None:
    """Return the condition Ready, once the engine has been reconciled."""
    return find_condition(status.conditions, ConditionType.READY)


def engine_facts(published: PublishedEngine) -> EngineFacts:
    """Return the facts that a Job reported, in the API's units."""
    share, p99 = published.compute_share_elsewhere, published.latency_p99
    return EngineFacts(
        sha256=published.sha256,
        size_bytes=published.size_bytes,
        build_milliseconds=round(published.build_seconds * 1e3),
        compute_capabilities=published.compute_capabilities,
        nodes_total=published.nodes_total,
        nodes_accelerated=published.nodes_accelerated,
        compute_billionths_elsewhere=None if share is None else billionths(share),
        elsewhere=published.elsewhere,
        workspace_bytes=published.workspace_bytes,
        p99_microseconds=None if p99 is None else round(p99 * 1e6),
        latencies=tuple(
            EngineLatency(
                shapes=latency.shapes,
                p50_microseconds=round(latency.p50 * 1e6),
                p99_microseconds=round(latency.p99 * 1e6),
            )
            for latency in published.latencies
        ),
        backends=tuple(map(_backend, published.backends)),
        parity=_parity(published),
        cached=published.cached,
        image=published.image,
        image_failure=published.image_failure or "",
    )


def _backend(compared: PublishedBackend) -> EngineBackend:
    return EngineBackend(
        backend=compared.backend,
        shapes=compared.shapes or "",
        p50_microseconds=None if compared.p50 is None else round(compared.p50 * 1e6),
        p99_microseconds=None if compared.p99 is None else round(compared.p99 * 1e6),
        excluded=compared.excluded or "",
    )


def engine_versions(published: PublishedEngine) -> EngineVersions | None:
    """Return the versions that a Job reported; Jobs of earlier versions report none."""
    return EngineVersions.model_validate(published.versions) if published.versions else None


def _parity(published: PublishedEngine) -> EngineParity | None:
    worst, relative = published.parity_max_abs_error, published.parity_max_rel_error
    if worst is None:
        return None
    return EngineParity(
        compared_with=published.parity_with,
        max_abs_error=f"{worst:.3g}",
        max_rel_error="" if relative is None else f"{relative:.3g}",
        unjudged=published.unjudged or "",
    )


def describe_engine(engine: EngineFacts) -> str:
    """Return size, devices, coverage and build time of an engine as text for conditions."""
    capabilities = ", ".join(engine.compute_capabilities)
    return (
        f"{format_size(engine.size_bytes)} for compute capability {capabilities},"
        f" {engine.nodes_accelerated} of {engine.nodes_total} nodes, built in"
        f" {format_duration(engine.build_milliseconds / 1e3)}"
    )


def _conditions(state: EngineState) -> tuple[WantedCondition, ...]:
    def condition(kind: ConditionType, *, is_so: bool) -> WantedCondition:
        status: ConditionStatus = "True" if is_so else "False"
        message = state.message if is_so or kind is ConditionType.READY else ""
        return WantedCondition(type=kind, status=status, reason=state.reason, message=message)

    return (
        condition(ConditionType.READY, is_so=state.ready),
        condition(ConditionType.RECONCILING, is_so=not state.ready and not state.stalled),
        condition(ConditionType.STALLED, is_so=state.stalled),
    )


def _summary(engine: InferenceEngine, built: EngineFacts | None) -> EngineSummary:
    if built is None:
        return EngineSummary(capability=engine.spec.recipe.compute_capability or "")
    return EngineSummary(
        capability=", ".join(built.compute_capabilities),
        size=format_size(built.size_bytes).replace(" ", ""),
        build=format_duration(built.build_milliseconds / 1e3),
        nodes=f"{built.nodes_accelerated}/{built.nodes_total}",
    )
