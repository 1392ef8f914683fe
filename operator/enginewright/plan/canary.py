"""Bringing up a new revision beside the one that serves, until it replaces it or is rejected.

Its pods get requests only after their sidecars' proofs have passed and golden inferences show no
regression; they replace the serving ones only after they have kept passing for `canary.hold`.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import ceil
from typing import Any, Final

from enginewright.analysis.result import AnalysisResult
from enginewright.api.conditions import StatusReason
from enginewright.api.inference_model_status import RolloutFailure, TargetPhase, TargetRevision
from enginewright.api.scalars import duration, share, whole_second
from enginewright.manifests.deployment import canary_deployment
from enginewright.manifests.labels import (
    CANARY,
    CLASS,
    COMPONENT,
    PROMOTE,
    REVISION,
    SERVE,
    TRACK,
)
from enginewright.manifests.snapshot import Revision
from enginewright.observed.deployments import DeploymentView
from enginewright.observed.pods import PodView
from enginewright.plan import shadow
from enginewright.plan.autoscaling import live_counts
from enginewright.plan.comparison import are_measured, compared, failure, have_started, waits_for
from enginewright.plan.failures import PodFailures, pod_failures, pods_of
from enginewright.plan.outcomes import (
    recorded_rejection,
    rejection_by_user,
    rejection_of_spec_by_user,
    was_proven,
)
from enginewright.plan.pods import serving_pods
from enginewright.plan.regression import regression, trial_counts
from enginewright.plan.replicas import asks_for_pods, replicas_by_class
from enginewright.plan.signature import SignatureChange, compare
from enginewright.plan.transitions import COMPARED, Seen, Stage, advance
from enginewright.plan.types import Facts, MetadataIntent, ObjectRef

INTERVAL: Final = 5.0  # seconds between two looks at measurements

_LONG_AGO: Final = datetime.fromtimestamp(0, UTC)
_SHOWN: Final = 5  # differences of signatures in a message


@dataclass(frozen=True)
class Wait:
    """What a revision waits for: a word for programs and a sentence."""

    reason: str
    message: str


_WITHOUT_PODS: Final = Wait(
    StatusReason.SCALED_TO_ZERO,
    "it is verified beside the serving revision once a pod of that is ready",
)


@dataclass(frozen=True)
class BringUp:
    """What becomes of the revision that the spec requests."""

    revision: Revision
    promotes: bool  # its pods replace the serving ones
    rolled_out: bool = False  # all serving pods are its now
    target: TargetRevision | None = None  # None: it serves, or was rejected
    rejection: RolloutFailure | None = None  # why it was
    replaces: bool = False  # a revision that has served with all its pods
    failures: PodFailures = field(default_factory=PodFailures)  # of its pods
    canaries: Mapping[str, int] = field(default_factory=dict)  # pods of its canary by class
    canary: Revision | None = None  # that its canary runs; None: `revision`
    stable_key: str | None = None  # of the prepared model that serves
    labels: tuple[
        MetadataIntent, ...
    ] = ()  # that have the Service select the canary's pods, or not
    shadow: tuple[MetadataIntent, ...] = ()  # that have serving pods send it copies, or stop it
    requeue_after: float | None = None  # seconds
    promoted_for: str = ""  # what its analysis has compared, if it is promoted from now on

    def deployments(self, facts: Facts) -> Iterator[dict[str, Any]]:
        """Yield the canary's Deployments."""
        for name, count in self.canaries.items():
            yield canary_deployment(
                facts.model,
                self.canary or self.revision,
                name,
                replicas=count,
                stable_key=self.stable_key,
            )


def bring_up(
    facts: Facts,
    wanted: Revision,
    stable: Revision | None,
    deployments: Collection[DeploymentView],
    *,
    spec_hash: str,
    rolled_out: bool,
    left_to_others: Collection[str] = (),
    restores: bool = False,
) -> BringUp:
    """Return what becomes of `wanted` now.

    Args:
        facts: the model and its cluster.
        wanted: the revision that the spec requests.
        stable: the last one that was rolled out with all its pods, or the one to which a user rolls
            that one back; None: there is none.
        deployments: that serve, one of each class.
        spec_hash: of the spec.
        rolled_out: whether all serving pods are of `wanted`.
        left_to_others: reasons for which another backend is tried instead of a rollback.
        restores: whether `wanted` was rolled out with all its pods, and `stable` is restored.
    """
    if rolled_out or (stable is not None and stable.name == wanted.name):
        ended = tuple(shadow.orders(facts, stable, ""))
        return BringUp(wanted, promotes=True, rolled_out=rolled_out, shadow=ended)
    before = facts.model.status.target
    before = before if before and before.revision == wanted.name else None
    since = before.since if before else whole_second(facts.now)
    failures = pod_failures(
        facts,
        wanted.name,
        [each for each in (*facts.canaries, *deployments) if each.revision == wanted.name],
        stable=stable.name if stable else "",
        since=since,
    )
    analysis = _analysis(facts, wanted, stable, before)
    rejection = None
    if stable is not None:
        rejection = rejection_of_spec_by_user(facts, wanted.name, stable.name) or _rejection(
            facts, wanted.name, failures, left_to_others, analysis
        )
    if rejection is not None:
        return _rejected(facts, wanted, stable, rejection, failures, restores=restores)
    planned = _pods(facts, wanted, deployments, before.step if before else 0)
    known = _stage(facts, wanted.name, before, deployments)
    direct = stable is None or _skips_analysis(facts, wanted.name)
    may_wait = not direct and _was_not_promoted(known)
    has_no_pods = may_wait and _has_no_pods(facts, wanted, deployments)
    starts = may_wait and not has_no_pods and _starts(facts, wanted, stable, before, deployments)
    awaits_pods = has_no_pods or starts
    no_pods = _WITHOUT_PODS if awaits_pods else None
    held = _why_held(facts, wanted, stable)
    had_canary = known is not None and known.phase in COMPARED  # what holds it comes after pods
    wait = (no_pods or held) if had_canary else (held or no_pods)
    shadowed = shadow.is_compared(facts, stable, wanted.name)
    left = _left(facts, wanted.name, since)
    measured = _compared(facts, wanted, stable)
    direct = direct or not planned
    stage = advance(
        known,
        Seen(
            held=wait is not None,
            direct=direct,
            available=_is_available(facts, wanted.name, planned),
            analysis=analysis.state,
            shadowed=shadowed,
            held_long_enough=left <= 0 and are_measured(facts, measured),
            steps=1 + len(facts.model.spec.rollout.canary.steps),
        ),
    )
    assert stage is not None  # noqa: S101 - only what serves or is rejected has none
    if awaits_pods:
        canaries = {}
    elif stage.phase in COMPARED:
        canaries = _pods(facts, wanted, deployments, stage.step)
    else:
        promoting = stage.phase is TargetPhase.PROMOTING
        canaries = _ready_canaries(facts, wanted.name) if promoting else {}
    mirrors = stage.phase is TargetPhase.VERIFYING and wait is None
    is_new = before is None or (before.phase, before.step) != (stage.phase, stage.step)
    silent = sum(pod.name in facts.silent for pod in measured)
    wait = wait or _waits_for(stage, failures, analysis, shadowed=shadowed, silent=silent)
    target = TargetRevision(
        revision=wanted.name,
        phase=stage.phase,
        step=stage.step,
        since=whole_second(facts.now) if is_new else since,
        spec_hash=spec_hash,
        reason=wait.reason if wait else "",
        message="; ".join(
            filter(
                None,
                (
                    wait.message if wait else _widened(wanted, stable),
                    shadow.unavailable(facts, stable) if stage.phase in COMPARED else "",
                ),
            )
        ),
        signature=wanted.signature,
    )
    return BringUp(
        wanted,
        promotes=stage.phase is TargetPhase.PROMOTING,
        replaces=stable is not None,
        target=target,
        failures=failures,
        canaries=canaries,
        stable_key=stable.snapshot.prepared_key if stable else None,
        labels=tuple(_labels(facts, wanted.name if _is_behind_service(facts, stage) else "")),
        shadow=tuple(shadow.orders(facts, stable, wanted.name if mirrors else "")),
        requeue_after=_requeue_after(stage, left, has_no_pods=has_no_pods, starts=starts),
        promoted_for="" if direct else _promoted_for(known, stage, analysis),
    )


def look_back(
    facts: Facts,
    active: Revision,
    previous: Revision | None,
    deployments: Collection[DeploymentView],
) -> BringUp:
    """Return what becomes of the active revision, to which `previous` is better if only that passes now."""
    insists = facts.model.metadata.annotations.get(PROMOTE) == active.name
    found = None if previous is None or insists else regression(facts, active.name)
    if previous is None or found is None:
        return BringUp(active, promotes=True)
    classes = {each.name for each in previous.snapshot.classes}
    counts = trial_counts(deployments, classes)
    passes = bool(counts) and _is_available(facts, previous.name, counts)
    left = _left(facts, previous.name, _LONG_AGO) if passes and found.under_requests else 0.0
    if passes and left <= 0:
        return _rejected(facts, active, previous, found.failure, PodFailures(), restores=True)
    return BringUp(
        active,
        promotes=True,
        canaries=counts,
        canary=previous,
        labels=tuple(_labels(facts, previous.name if found.under_requests else "")),
        requeue_after=left if left > 0 else None,
    )


def _stage(
    facts: Facts,
    wanted: str,
    before: TargetRevision | None,
    deployments: Iterable[DeploymentView],
) -> Stage | None:
    """Return the stage in the status: of an analysed revision that serving Deployments have, promotion.

    The status may not have been written after them, or was lost since.
    """
    applied = any(each.revision == wanted for each in deployments)
    if before is None:
        is_lost = facts.model.status.applied is None
        return Stage(TargetPhase.PROMOTING) if is_lost and applied else None
    if applied and before.phase is TargetPhase.ANALYZING:
        return Stage(TargetPhase.PROMOTING)
    return Stage(before.phase, before.step)


def _promoted_for(known: Stage | None, stage: Stage, analysis: AnalysisResult) -> str:
    """Return what a promotion from now on is based on; empty: none is."""
    passes = known is not None and known.phase is TargetPhase.ANALYZING
    if not passes or stage.phase is not TargetPhase.PROMOTING:
        return ""
    return analysis.basis or "no serving pod has measurements to compare with"


def _was_not_promoted(known: Stage | None) -> bool:
    return known is None or known.phase is not TargetPhase.PROMOTING


def _has_no_pods(facts: Facts, wanted: Revision, deployments: Iterable[DeploymentView]) -> bool:
    """Return whether its classes serve with no pods: none are requested, or were until now on those."""
    spec = facts.model.spec
    names = [each.name for each in wanted.snapshot.classes]
    counts = _served_classes(wanted, deployments)
    if not counts or not asks_for_pods(spec, names):
        return bool(counts)
    # pods that only classes on which nothing serves yet are to have come with the revision
    asked = replicas_by_class(spec, [each.class_name for each in spec.accelerators] or names)
    return not any(counts.values()) and any(asked.get(name) for name in counts)


def _starts(
    facts: Facts,
    wanted: Revision,
    stable: Revision | None,
    before: TargetRevision | None,
    deployments: Iterable[DeploymentView],
) -> bool:
    """Return whether the serving revision has pods again, none of which has started yet."""
    if stable is None or before is None or before.reason != StatusReason.SCALED_TO_ZERO:
        return False
    is_scaled_up = any(_served_classes(wanted, deployments).values())
    return is_scaled_up and not have_started(facts, serving_pods(facts.pods, stable.name))


def _served_classes(wanted: Revision, deployments: Iterable[DeploymentView]) -> dict[str, int]:
    """Return how many pods serve, or are to, on each class of a revision on which anything does."""
    names = {each.name for each in wanted.snapshot.classes}
    return {
        each.accelerator_class: each.desired
        for each in deployments
        if each.accelerator_class in names
    }


def _analysis(
    facts: Facts, wanted: Revision, stable: Revision | None, before: TargetRevision | None
) -> AnalysisResult:
    """Return the comparison with the serving pods, from when the canary's pods run until they are replaced."""
    mine = _canary_pods(facts, wanted.name)
    if stable is None or before is None or not any(pod.ready for pod in mine):
        return AnalysisResult("inconclusive")
    serving = serving_pods(facts.pods, stable.name)
    return compared(facts, serving, mine, first=before.phase is TargetPhase.VERIFYING)


def _compared(facts: Facts, wanted: Revision, stable: Revision | None) -> list[PodView]:
    """Return the pods whose measurements are compared."""
    serving = serving_pods(facts.pods, stable.name) if stable else ()
    return [*_canary_pods(facts, wanted.name), *serving]


def _requeue_after(stage: Stage, left: float, *, has_no_pods: bool, starts: bool) -> float | None:
    """Return when to look again: at the measurements, at pods that start, or at the end of the hold."""
    if starts:
        return INTERVAL
    if has_no_pods or stage.phase not in COMPARED:
        return None
    return min(INTERVAL, left) if left > 0 else INTERVAL


def stop_canary(facts: Facts, keep: Collection[str]) -> Iterator[ObjectRef]:
    """Yield the canary's Deployments, except those of the classes in `keep`."""
    for each in facts.canaries:
        if each.accelerator_class not in keep:
            yield ObjectRef("apps/v1", "Deployment", each.namespace, each.name)


def _rejected(
    facts: Facts,
    wanted: Revision,
    stable: Revision | None,
    rejection: RolloutFailure,
    failures: PodFailures,
    *,
    restores: bool = False,
) -> BringUp:
    """Return that a revision is rejected; with `onFailure: Pause` its pods stay, without requests.

    Those that a user rolls back do not. If a revision that was active is rejected, a pod of the one
    that it `restores` gets requests until that is whole.
    """
    if restores and stable is not None:
        blocked = _makes_way(facts, stable.name)
        mine = [each for each in facts.canaries if each.revision == stable.name]
        return BringUp(
            wanted,
            promotes=False,
            rejection=rejection,
            canaries={
                each.accelerator_class: each.desired
                for each in mine
                if each.accelerator_class not in blocked
            },
            canary=stable,
            labels=tuple(_labels(facts, stable.name)),
        )
    by_user = rejection.reason == StatusReason.ROLLED_BACK_BY_USER
    pauses = facts.model.spec.rollout.on_failure == "Pause" and not by_user
    kept = [each for each in facts.canaries if pauses and each.revision == wanted.name]
    return BringUp(
        wanted,
        promotes=False,
        rejection=rejection,
        failures=failures,
        canaries={each.accelerator_class: each.desired for each in kept},
        stable_key=stable.snapshot.prepared_key if stable else None,
        labels=tuple(_labels(facts, "")),
        shadow=tuple(shadow.orders(facts, stable, "")),
    )


def _rejection(
    facts: Facts,
    revision: str,
    failures: PodFailures,
    left_to_others: Collection[str],
    analysis: AnalysisResult,
) -> RolloutFailure | None:
    """Return why the revision is not rolled out: for an earlier failure, by a user, or for one found now."""
    if by_user := rejection_by_user(facts, revision):
        return by_user
    if facts.model.metadata.annotations.get(PROMOTE) == revision:
        return None
    if known := recorded_rejection(facts, revision):
        return known
    found = failures.lasting
    if found is not None and found.reason in left_to_others:
        return None
    found = found or failure(revision, analysis)
    if found is None:
        return None
    recreates = facts.model.spec.rollout.strategy == "Recreate"
    # some of its pods serve: going back would stop them first
    return None if recreates and any(pod.ready for pod in pods_of(facts, revision)) else found


def _widened(wanted: Revision, stable: Revision | None) -> str:
    """Return what more clients may send or get, as a sentence; empty: nothing."""
    compatible = _differences(wanted, stable).compatible
    return f"clients may use more: {'; '.join(compatible[:_SHOWN])}" if compatible else ""


def _skips_analysis(facts: Facts, revision: str) -> bool:
    rollout = facts.model.spec.rollout
    return (
        rollout.strategy == "Recreate"
        or not rollout.canary.replicas
        or facts.model.metadata.annotations.get(PROMOTE) == revision
        or was_proven(facts, revision)
    )


def _why_held(facts: Facts, wanted: Revision, stable: Revision | None) -> Wait | None:
    rollout = facts.model.spec.rollout
    if rollout.paused:
        return Wait(StatusReason.SUSPENDED, "spec.rollout.paused is true")
    if stable is None or rollout.allow_signature_change:
        return None
    breaking = _differences(wanted, stable).breaking
    if not breaking:
        return None
    more = f" and {len(breaking) - _SHOWN} more" if len(breaking) > _SHOWN else ""
    message = (
        f"it breaks clients of revision {stable.name}: {'; '.join(breaking[:_SHOWN])}{more}; restore"
        " them, or allow it with rollout.allowSignatureChange: true"
    )
    return Wait(StatusReason.SIGNATURE_CHANGED, message)


def _differences(wanted: Revision, stable: Revision | None) -> SignatureChange:
    if stable is None or stable.signature is None or wanted.signature is None:
        return SignatureChange()
    return compare(stable.signature, wanted.signature)


def _waits_for(
    stage: Stage,
    failures: PodFailures,
    analysis: AnalysisResult,
    *,
    shadowed: bool,
    silent: int,
) -> Wait | None:
    # while it is promoted, Ready reports failures
    if failures.first is not None and stage.phase in COMPARED:
        return Wait(failures.first.reason, failures.first.finding.message)
    if failures.waits_for:
        return Wait(failures.reason, failures.waits_for)
    if stage.phase in COMPARED and (text := waits_for(analysis)):
        return Wait("", text)
    if stage.phase in COMPARED and silent:
        text = (
            f"the sidecars of {silent} pods have not responded to the operator for five minutes:"
            " check that they run and that no NetworkPolicy blocks its access to port 8081"
        )
        return Wait(StatusReason.SIDECAR_UNREACHABLE, text)
    if stage.phase is TargetPhase.VERIFYING and not shadowed:
        return Wait("", shadow.WAITS)
    return None


def _pods(
    facts: Facts, wanted: Revision, deployments: Iterable[DeploymentView], step: int
) -> dict[str, int]:
    """Return the canary's pods by class at a step: none on classes on which nothing serves yet.

    In place, they take devices of serving pods, of which one stays, and none of those that an
    autoscaler scales.
    """
    spec = facts.model.spec
    serving = {each.accelerator_class: each for each in deployments}
    names = [each.name for each in wanted.snapshot.classes]
    counts = replicas_by_class(spec, [each.class_name for each in spec.accelerators] or names)
    live = live_counts(facts, counts, serving)
    in_place = spec.rollout.strategy == "InPlace"
    found = {}
    for name in names:
        if in_place and name in live:
            continue
        total = live.get(name, counts.get(name, 0))
        most = total - 1 if in_place else total
        count = min(_first_or_share(facts, total, step), most)
        if name in serving and count > 0:
            found[name] = count
    return found


def _first_or_share(facts: Facts, total: int, step: int) -> int:
    """Return the canary's pods beside `total` serving ones, or of them if the strategy is InPlace."""
    canary = facts.model.spec.rollout.canary
    if step <= 1 or not canary.replicas or not canary.steps:
        return canary.replicas
    wanted = share(canary.steps[min(step, len(canary.steps) + 1) - 2]) or 0.0
    if facts.model.spec.rollout.strategy == "InPlace":
        return ceil(total * wanted)
    return total if wanted >= 0.5 else ceil(total * wanted / (1 - wanted))


def _is_available(facts: Facts, revision: str, planned: Mapping[str, int]) -> bool:
    """Return whether every pod that the canary should have is ready, as the pods themselves show."""
    settled = {
        each.accelerator_class
        for each in facts.canaries
        if each.revision == revision and each.is_current
    }
    ready = Counter(pod.label(CLASS) for pod in _canary_pods(facts, revision) if pod.ready)
    return all(name in settled and ready[name] >= count for name, count in planned.items())


def _canary_pods(facts: Facts, revision: str) -> list[PodView]:
    return [pod for pod in pods_of(facts, revision) if pod.label(TRACK) == CANARY]


def step_end(since: datetime, pods: Iterable[PodView], hold: str) -> datetime:
    """Return when a step that began at `since` may end: once the canary's pods have passed for `hold`."""
    ready = [
        datetime.fromisoformat(pod.ready_changed) for pod in pods if pod.ready and pod.ready_changed
    ]
    return max([since, *ready]) + duration(hold)


def _ready_canaries(facts: Facts, revision: str) -> dict[str, int]:
    """Return the canaries with pods that may serve until others have replaced them.

    One that waits for a device would take it from those, and where they wait, it may make way for them.
    """
    mine = _canary_pods(facts, revision)
    ready = {pod.label(CLASS) for pod in mine if pod.ready or _serves(pod)}
    may_stay = ready - _makes_way(facts, revision)
    return {
        each.accelerator_class: each.desired
        for each in facts.canaries
        if each.revision == revision and each.accelerator_class in may_stay
    }


def _makes_way(facts: Facts, revision: str) -> set[str]:
    """Return the classes whose canary leaves its devices to the pods of `revision` that will stay.

    Those cannot start, perhaps because of it, and without it as many pods serve as are asked for. In
    place they get the devices of pods that end.
    """
    if facts.model.spec.rollout.strategy == "InPlace":
        return set()
    unschedulable = {
        pod.label(CLASS)
        for pod in pods_of(facts, revision)
        if pod.label(TRACK) != CANARY and pod.unschedulable
    }
    lacking = {
        each.accelerator_class
        for each in facts.deployments
        if each.revision == revision and each.refused
    }
    return (unschedulable | lacking) - lacks_serving(facts)


def lacks_serving(facts: Facts) -> set[str]:
    """Return the classes on which fewer pods serve than are asked for, without those of canaries."""
    ready = Counter(
        pod.label(CLASS)
        for pod in facts.pods
        if pod.label(COMPONENT) == SERVE
        and pod.label(TRACK) != CANARY
        and pod.ready
        and not pod.leaving
    )
    return {
        each.accelerator_class
        for each in facts.deployments
        if ready[each.accelerator_class] < each.desired
    }


def covering_canaries(facts: Facts, applied: str) -> set[str]:
    """Return the classes whose canary runs the revision that is applied, and serves while too few others do.

    A rollback after the promotion, whose trial is the only pod that serves, so outlives an edit, an
    obstacle and a lost status.
    """
    lacking = lacks_serving(facts)
    serving = {pod.label(CLASS) for pod in _canary_pods(facts, applied) if _serves(pod)}
    return {
        each.accelerator_class
        for each in facts.canaries
        if each.revision == applied and each.accelerator_class in serving & lacking
    }


def _left(facts: Facts, revision: str, since: datetime) -> float:
    """Return for how many seconds the canary's pods must keep passing until this step may end."""
    hold = facts.model.spec.rollout.canary.hold
    left = step_end(since, _canary_pods(facts, revision), hold) - facts.now
    return min(left, duration(hold)).total_seconds()  # the clock may have been set back


def _is_behind_service(facts: Facts, stage: Stage) -> bool:
    """Return whether the model's Service selects the canary's pods: with a route, once it is promoted."""
    if stage.phase is TargetPhase.ANALYZING:
        return facts.model.spec.serving.route is None
    return stage.phase is TargetPhase.PROMOTING


def _labels(facts: Facts, revision: str) -> Iterator[MetadataIntent]:
    """Yield what has the model's Service select the ready canary pods of `revision`, and no others."""
    for pod in facts.pods:
        if pod.label(TRACK) != CANARY or pod.leaving:
            continue
        gets_requests = pod.label(REVISION) == revision and (pod.ready or _serves(pod))
        component = SERVE if gets_requests else CANARY
        if pod.label(COMPONENT) != component:
            yield MetadataIntent(
                "v1", "Pod", pod.namespace, pod.name, pod.uid, labels={COMPONENT: component}
            )


def _serves(pod: PodView) -> bool:
    return pod.label(COMPONENT) == SERVE
