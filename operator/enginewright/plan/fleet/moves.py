"""A model's move to other runtime images or edited AcceleratorClasses: what it is planned with, and how far it has come.

A model that serves uses what it has of these until it is its turn: then it is prepared, built and rolled out with what
the installation has. If that fails, or its user pauses it, it keeps its own. The move is recorded in its status before
anything is created for it. What its user promotes needs no turn, nor does an edit of a class that it waits for: nothing
that serves is at risk.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from enginewright.api.conditions import ConditionType, StatusReason, find_condition
from enginewright.api.inference_model import InferenceModel, InferenceModelSpec
from enginewright.api.inference_model_status import (
    MoveState,
    RejectedBackend,
    RolloutFailure,
    RuntimeImages,
    TargetPhase,
)
from enginewright.api.scalars import whole_second
from enginewright.manifests.deployment import progress_seconds
from enginewright.manifests.labels import COMPONENT, PROMOTE, SERVE
from enginewright.manifests.snapshot import Snapshot
from enginewright.observed.pods import PodView
from enginewright.plan.fleet.inputs import (
    carries,
    differing,
    find_current,
    has_classes,
    hold,
    images_in,
    list_configured,
    list_installed,
    read_target,
    record_inputs,
)
from enginewright.plan.history.outcomes import (
    active_snapshot,
    find_rejection,
    find_serving,
    rejection_by_user,
    rejections_of,
)
from enginewright.plan.history.spec_hash import keeps_processes, processes_removed, spec_hash
from enginewright.plan.report.conditions import ModelState
from enginewright.plan.resolve.images import not_probed
from enginewright.plan.resolve.resolve import Target, resolve
from enginewright.plan.rollout.pod_counts import asks_for_pods
from enginewright.plan.types import Facts, Obstacle
from enginewright.plan.waits import Wait, waits_for_node

# Reasons of engines that come of themselves.
_AT_WORK = frozenset({StatusReason.BUILDING, StatusReason.LOOKING_UP})
# Obstacles about images that the model has, which a move may remove.
_OF_IMAGES = frozenset({StatusReason.PROBING_IMAGE, StatusReason.IMAGE_PROBE_FAILED})


@dataclass(frozen=True)
class _Why:
    """A word for programs and a sentence."""

    reason: str
    message: str
    revision: str = ""  # that fails or is held


@dataclass(frozen=True)
class Move:
    """The move of one model, as it is when a plan begins."""

    facts: Facts  # with the images and classes to plan with
    configured: Facts  # with those that the installation has
    held: Facts  # with those that the model has
    current: Mapping[str, str]  # what the model has
    target: Mapping[str, str]  # what the installation has instead
    state: MoveState

    @classmethod
    def of(cls, facts: Facts) -> "Move":
        """Return the move, and with it what the plan uses."""
        current = find_current(facts, find_serving(facts))
        target = differing(list_configured(list_installed(facts.config), facts.classes), current)
        held = facts.having(hold(facts, current))
        state = _state(facts, current, target)
        plans_with = held if state in (MoveState.WAITING, MoveState.KEPT) else facts
        return cls(plans_with, facts, held, current, target, state)

    def after(self, state: ModelState, rejected: Iterable[RejectedBackend]) -> RuntimeImages | None:
        """Return the record for the status after what was planned, if anything has served; `rejected` holds from now on."""
        facts, serving = self.configured, state.rollout.serving
        snapshot = active_snapshot(facts, serving)
        if snapshot is None:
            return facts.model.status.images if serving else None
        current = find_current(facts, serving)
        if self.state is MoveState.MOVING and _is_rolled_out(state):
            current |= self.target
        target = differing(list_configured(list_installed(facts.config), facts.classes), current)
        record = RuntimeImages(image=snapshot.classes[0].image, state=MoveState.MOVED)
        record = record_inputs(record, current, target)
        if not target:
            return record
        if why := self._why_failed_since(state, target):
            return self._keep_images(record, why)
        if self.state is MoveState.MOVING and target == self.target:
            return self._moving(record, state, rejected)
        still = self.state is MoveState.KEPT and target == self.target
        return (self._still_kept(record) if still else None) or self._waiting(record, state)

    def _still_kept(self, record: RuntimeImages) -> RuntimeImages | None:
        """Return the record of a model that has kept its images until now, unless nothing says why."""
        if before := self.configured.model.status.images:
            return before.model_copy(update={"image": record.image})
        rejection = _rejection(self.configured, self.current, self.target)
        return self._keep_images(record, _of_rejection(rejection)) if rejection else None

    def _moving(
        self, record: RuntimeImages, state: ModelState, rejected: Iterable[RejectedBackend]
    ) -> RuntimeImages:
        facts = self.configured
        before = facts.model.status.images
        if why := self._failure(state, rejected):
            return self._keep_images(record, why)
        if state.obstacle and state.obstacle.stalled:  # the images are not its cause
            return _waits(record, _Why(state.obstacle.reason, state.obstacle.message))
        wait, since = _find_wait(facts.model, state), before.waits_since if before else None
        since = (since or whole_second(facts.now)) if wait else None
        left = seconds_to_give_way(facts, since)
        held = wait if left is not None and left <= 0 else None
        return record.model_copy(
            update={
                "state": MoveState.MOVING,
                "reason": held.reason if held else "",
                "message": held.message if held else "",
                "waits_since": since,
            }
        )

    def _keep_images(self, record: RuntimeImages, why: _Why) -> RuntimeImages:
        """Return the record of a model that keeps its images."""
        return record.model_copy(
            update={
                "state": MoveState.KEPT,
                "spec_hash": spec_hash(self.configured.model.spec),
                "reason": why.reason,
                "message": why.message,
                "revision": why.revision,
            }
        )

    def _why_failed_since(self, state: ModelState, target: Mapping[str, str]) -> _Why | None:
        """Return why a revision that has any of the target was rejected after it had moved, if one was."""
        facts, before = self.configured, find_serving(self.configured)
        if self.state is not MoveState.MOVED or before is None:
            return None
        # the recorded one also if the spec requests another revision by now, or it is not known which
        recorded = find_rejection(facts, before.last_complete)
        rejection = recorded or state.rollout.rejection
        if rejection is None:
            return None
        kept, current = facts.kept.get(rejection.revision), find_current(facts, before)
        has_any = kept is not None and carries(facts, kept.snapshot, target, current)
        return _of_rejection(rejection) if has_any else None

    def _failure(self, state: ModelState, rejected: Iterable[RejectedBackend]) -> _Why | None:
        if state.obstacle:
            alone = state.obstacle.stalled and isinstance(resolve(self.held), Target)
            return _Why(state.obstacle.reason, state.obstacle.message) if alone else None
        serving, before = state.rollout.serving, self.configured.model.status.rejected_backends
        new = [backend for backend in rejected if backend.inputs_hash and backend not in before]
        if new:  # of others than its own backend the next one is tried
            own = (backend for backend in new if serving and backend.backend == serving.backend)
            return next((_Why(backend.reason, backend.message) for backend in own), None)
        target, changed = state.rollout.target, StatusReason.SIGNATURE_CHANGED
        if target and target.phase is TargetPhase.HELD and target.reason == changed:
            return _Why(target.reason, target.message, target.revision)
        return _lasting(state)

    def _waiting(self, record: RuntimeImages, state: ModelState) -> RuntimeImages:
        if why := self._why_not(record, state):
            return _waits(record, why)
        if self.configured.may_move or self._is_needed or self._is_asked_for:
            return record.model_copy(update={"state": MoveState.MOVING})
        return _waits(record, _Why("", ""))

    def _why_not(self, record: RuntimeImages, state: ModelState) -> _Why | None:
        """Return why the model could not move now, although it were its turn."""
        facts = self.configured
        if why := _not_probed(facts, read_target(record)) or _why_paused(facts.model.spec):
            return why
        if _has_no_pods(facts.model):
            return _Why(StatusReason.SCALED_TO_ZERO, "it has no pods that would prove the image")
        # with another image it would have less capacity, and only its user can give it more pods
        serving, requested = state.rollout.serving, state.rollout.requested
        removed = processes_removed(facts, serving, requested)
        if removed and record.target:
            return _Why(removed.reason, removed.message)
        return None if _is_rolled_out(state) or self._is_needed else self._why_not_yet(state)

    @property
    def _is_needed(self) -> bool:
        """Return whether something of the model waits for a node that an edited class may let it have."""
        return has_classes(self.target) and _waits_for_node(self.configured)

    @property
    def _is_asked_for(self) -> bool:
        """Return whether a user promotes a revision that has any of what the installation has instead."""
        facts = self.configured
        promoted = [kept for name, kept in facts.kept.items() if _is_promoted(facts, name)]
        return any(carries(facts, one.snapshot, self.target, self.current) for one in promoted)

    def _why_not_yet(self, state: ModelState) -> _Why | None:
        """Return why a spec that is not rolled out must be first, unless the new images may be its remedy."""
        obstacle = state.obstacle
        failed = obstacle and (obstacle.stalled or obstacle.reason in _OF_IMAGES)
        if not failed and not _lasting(state):
            message = "its spec is being rolled out with what the model has"
            return _Why(StatusReason.ROLLING_OUT, message)
        resolved = resolve(self.configured)
        return _Why(resolved.reason, resolved.message) if isinstance(resolved, Obstacle) else None


def _state(facts: Facts, current: Mapping[str, str], target: Mapping[str, str]) -> MoveState:
    model, record = facts.model, facts.model.status.images
    if not target:
        return MoveState.MOVED
    if record is None:
        return MoveState.KEPT if _rejection(facts, current, target) else MoveState.WAITING
    if read_target(record) != target:
        return MoveState.WAITING
    if record.state is MoveState.KEPT and (
        record.spec_hash != spec_hash(model.spec) or _is_allowed(facts, record)
    ):
        return MoveState.WAITING
    if record.state is MoveState.MOVING and (
        _not_probed(facts, target)
        or _why_paused(model.spec)
        or _has_no_pods(model)
        or (images_in(target) and keeps_processes(facts))
    ):
        return MoveState.WAITING
    return record.state


def _rejection(
    facts: Facts, current: Mapping[str, str], target: Mapping[str, str]
) -> RolloutFailure | None:
    """Return why the current spec was rejected with any of the target, if a lost status does not say so."""

    def matches(snapshot: Snapshot) -> bool:
        return carries(facts, snapshot, target, current)

    rejections = rejections_of(facts, matches)
    return next((one for one in rejections if not _is_promoted(facts, one.revision)), None)


def _is_promoted(facts: Facts, revision: str) -> bool:
    insists = facts.model.metadata.annotations.get(PROMOTE) == revision
    return insists and rejection_by_user(facts, revision) is None


def _is_allowed(facts: Facts, kept: RuntimeImages) -> bool:
    """Return whether a user has decided since that the revision for which it is kept is rolled out."""
    if not kept.revision:
        return False
    if kept.reason == StatusReason.SIGNATURE_CHANGED:
        return facts.model.spec.rollout.allow_signature_change
    return _is_promoted(facts, kept.revision)


def _why_paused(spec: InferenceModelSpec) -> _Why | None:
    if not spec.rollout.paused:
        return None
    return _Why(StatusReason.SUSPENDED, "spec.rollout.paused is true")


def seconds_to_give_way(facts: Facts, since: datetime | None) -> float | None:
    """Return in how many seconds a move that waits `since` then gives its turn to others, if it waits."""
    if since is None:
        return None
    return progress_seconds(facts.model) - (facts.now - since).total_seconds()


def _find_wait(model: InferenceModel, state: ModelState) -> Wait | None:
    """Return why a move cannot go on now: its writes, its Jobs, its builds or its pods wait, or fail and are retried."""
    ready = find_condition(model.status.conditions, ConditionType.READY)
    if ready and ready.reason == StatusReason.APPLY_FAILED:
        return Wait(ready.reason, ready.message)
    outcome, engines, brought = state.outcome, state.engines, state.rollout.bring_up
    if outcome and outcome.prepared is None:
        if outcome.failure:
            return Wait(outcome.failure.reason, outcome.failure.sentence)
        reason = outcome.wait.reason if outcome.wait else ""
        return Wait(reason or StatusReason.PREPARING, outcome.message) if outcome.wait else None
    if engines and not engines.complete:
        return Wait(engines.reason, engines.message) if engines.reason not in _AT_WORK else None
    return brought.failures.outside if brought else None


def _builds(facts: Facts) -> list[PodView]:
    """Return the pods of builds that wait for a node."""
    pods = (pod for own in facts.engine_pods.values() for pod in own)
    return [pod for pod in pods if waits_for_node(pod)]


def _waits_for_node(facts: Facts) -> bool:
    """Return whether a build or a canary finds no node, or pods of a model of which none serves."""
    serves = any(deployment.available for deployment in facts.deployments)
    pods = (
        pod for pod in facts.pods if pod.is_canary or (pod.label(COMPONENT) == SERVE and not serves)
    )
    return bool(_builds(facts)) or any(map(waits_for_node, pods))


def _not_probed(facts: Facts, target: Mapping[str, str]) -> _Why | None:
    images = images_in(target).values()
    obstacle = next(filter(None, (not_probed(facts, image) for image in images)), None)
    return _Why(obstacle.reason, obstacle.message) if obstacle else None


def _has_no_pods(model: InferenceModel) -> bool:
    serving = model.status.serving
    names = [device_class.class_name for device_class in serving.classes] if serving else []
    return not asks_for_pods(model.spec, names)


def _is_rolled_out(state: ModelState) -> bool:
    """Return whether the revision that was planned serves with all its pods, and is no interim."""
    serving, requested = state.rollout.serving, state.rollout.requested
    if state.interim:
        return False
    return serving is not None and requested is not None and serving.last_complete == requested


def _lasting(state: ModelState) -> _Why | None:
    rejection = state.rollout.rejection
    if rejection and not _is_of_choice(state, rejection):
        return _of_rejection(rejection)
    for item in (state.outcome, state.engines):
        if item and (failure := item.failure) and failure.lasting:
            return _Why(failure.reason, failure.sentence)
    return None


def _is_of_choice(state: ModelState, rejection: RolloutFailure) -> bool:
    """Return whether the backends are rejected that a benchmark chose: the engines' revision, tried next, decides."""
    by_user = rejection.reason == StatusReason.ROLLED_BACK_BY_USER
    return state.chooses and rejection.revision == state.rollout.requested and not by_user


def _of_rejection(rejection: RolloutFailure) -> _Why:
    return _Why(rejection.reason, rejection.message, rejection.revision)


def _waits(record: RuntimeImages, why: _Why) -> RuntimeImages:
    update = {"state": MoveState.WAITING, "reason": why.reason, "message": why.message}
    return record.model_copy(update=update)
