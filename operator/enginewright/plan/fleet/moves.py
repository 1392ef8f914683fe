"""A model's move to other runtime images or edited AcceleratorClasses: what it is planned with, and how far it has come.

A model that serves uses what it has of these until it is its turn: then it is prepared, built and rolled out with what
the installation has. If that fails, it keeps its own. The move is recorded in its status before anything is created
for it. An edit of a class that a model waits for needs no turn: nothing that serves is at risk.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from enginewright_contract.reasons import Reason

from enginewright.api.conditions import StatusReason
from enginewright.api.inference_model import InferenceModel, InferenceModelSpec
from enginewright.api.inference_model_status import (
    MoveState,
    RejectedBackend,
    RolloutFailure,
    RuntimeImages,
    TargetPhase,
)
from enginewright.manifests.labels import COMPONENT, PROMOTE, SERVE
from enginewright.manifests.snapshot import Snapshot
from enginewright.observed.pods import PodView
from enginewright.observed.revisions import RevisionView
from enginewright.plan.fleet.inputs import (
    carries,
    differing,
    find_current,
    has_classes,
    hold,
    images_in,
    list_configured,
    read_target,
    record_inputs,
)
from enginewright.plan.fleet.model_images import active_snapshot
from enginewright.plan.history.outcomes import (
    find_rejection,
    find_serving,
    has_served_for_spec,
    rejection_by_user,
    rejections_of,
)
from enginewright.plan.history.spec_hash import keeps_processes, processes_removed, spec_hash
from enginewright.plan.report.conditions import ModelState
from enginewright.plan.resolve.images import not_probed
from enginewright.plan.resolve.resolve import Target, resolve
from enginewright.plan.rollout.deadlines import seconds_to_next, waits_for_node, waits_too_long
from enginewright.plan.rollout.failures import STAGE
from enginewright.plan.rollout.pod_counts import asks_for_pods
from enginewright.plan.types import Facts, FleetConfig, Obstacle

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
        target = differing(list_configured(facts.config.images, facts.classes), current)
        inputs = hold(facts, current)
        held = facts.having(inputs)
        state = _state(facts, current, target)
        plans_with = held if state in (MoveState.WAITING, MoveState.KEPT) else facts
        record, spec = facts.model.status.images, facts.model.spec
        is_unchanged = record is not None and record.spec_hash == spec_hash(spec)
        if state is MoveState.MOVING and _why_paused(spec) and is_unchanged:
            plans_with = replace(facts, paused_with=inputs)
        return cls(plans_with, facts, held, current, target, state)

    def after(self, state: ModelState, rejected: Iterable[RejectedBackend]) -> RuntimeImages | None:
        """Return the record for the status after what was planned, if anything has served; `rejected` holds from now on."""
        facts, serving = self.configured, state.rollout.serving
        snapshot = active_snapshot(facts.deployments, facts.revisions, serving)
        if snapshot is None:
            return facts.model.status.images if serving else None
        current = find_current(facts, serving)
        if self.state is MoveState.MOVING and _is_rolled_out(state):
            current |= self.target
        target = differing(list_configured(facts.config.images, facts.classes), current)
        record = RuntimeImages(image=snapshot.classes[0].image, state=MoveState.MOVED)
        record = record_inputs(record, current, target)
        if not target:
            return record
        if target == self.target:
            record = self._again(record)
        if why := self._why_failed_since(state, target):
            return self._keep_images(record, why, fails_anyway=False)
        if self.state is MoveState.MOVING and target == self.target:
            return self._moving(record, state, rejected)
        still = self.state is MoveState.KEPT and target == self.target
        return (self._still_kept(record) if still else None) or self._waiting(record, state)

    @property
    def due(self) -> float | None:
        """Return in how many seconds the pod of a build that waits for a node has waited for too long, if one does."""
        if self.state is not MoveState.MOVING:
            return None
        return seconds_to_next(self.facts, _builds(self.facts))

    def _again(self, record: RuntimeImages) -> RuntimeImages:
        """Return the record; of a model that was kept and is tried again, with that."""
        facts, before = self.configured, self.configured.model.status.images
        if before is None:
            failed = next(_rejections(facts, self.current, self.target), None)
            fails_anyway = failed is not None and not _has_served(facts, failed)
            update = {"retried": failed is not None, "fails_anyway": fails_anyway}
            return record.model_copy(update=update)
        if read_target(before) != self.target:
            return record
        # a spec that did not serve anyway is tried for the first time once another one does
        begins = (
            before.state is MoveState.KEPT
            and self.state is not MoveState.KEPT
            and (not before.fails_anyway or _is_allowed(facts.model, facts.revisions, before))
        )
        if not (before.retried or begins):
            return record
        return record.model_copy(update={"retried": True, "fails_anyway": before.fails_anyway})

    def _still_kept(self, record: RuntimeImages) -> RuntimeImages | None:
        """Return the record of a model that has kept its images until now, unless nothing says why."""
        if before := self.configured.model.status.images:
            return before.model_copy(update={"image": record.image})
        rejection = _rejection(self.configured, self.current, self.target)
        if rejection is None:
            return None
        fails_anyway = not _has_served(self.configured, rejection)
        return self._keep_images(record, _of_rejection(rejection), fails_anyway=fails_anyway)

    def _moving(
        self, record: RuntimeImages, state: ModelState, rejected: Iterable[RejectedBackend]
    ) -> RuntimeImages:
        facts = self.configured
        before = facts.model.status.images
        began_with = before.spec_hash if before else ""
        if why := self._failure(state, rejected):
            return self._keep_images(
                record, why, fails_anyway=spec_hash(facts.model.spec) != began_with
            )
        if state.obstacle and state.obstacle.stalled:  # the images are not its cause
            return _waits(record, _Why(state.obstacle.reason, state.obstacle.message))
        held = _why_paused(facts.model.spec) or _why_blocked(facts, state)
        return record.model_copy(
            update={
                "state": MoveState.MOVING,
                "spec_hash": began_with,
                "reason": held.reason if held else "",
                "message": held.message if held else "",
            }
        )

    def _keep_images(
        self, record: RuntimeImages, why: _Why, *, fails_anyway: bool
    ) -> RuntimeImages:
        """Return the record of a model that keeps its images: their failure, even if another spec fails now."""
        failed_before = record.retried and not record.fails_anyway
        return record.model_copy(
            update={
                "state": MoveState.KEPT,
                "spec_hash": spec_hash(self.configured.model.spec),
                "reason": why.reason,
                "message": why.message,
                "revision": why.revision,
                "fails_anyway": fails_anyway and not failed_before,
                "retried": False,
            }
        )

    def _why_failed_since(self, state: ModelState, target: Mapping[str, str]) -> _Why | None:
        """Return why a revision that has any of the target was rejected after it had moved, if one was."""
        facts, before = self.configured, find_serving(self.configured)
        if self.state is not MoveState.MOVED or before is None:
            return None
        # the recorded one also if the spec requests another revision by now, or it is not known which
        recorded = find_rejection(facts.revisions, before.last_complete)
        rejection = recorded or state.rollout.rejection
        if rejection is None:
            return None
        kept = (
            revision.kept for revision in facts.revisions if revision.revision == rejection.revision
        )
        current = find_current(facts, before)
        has_any = any(carries(one.snapshot, target, current) for one in kept if one)
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
        if not (self.configured.may_move or self._is_needed):
            turn = _turn(self.configured.config.fleet) if record.retried else _Why("", "")
            return _waits(record, turn)
        serves = spec_hash(self.configured.model.spec) if _is_rolled_out(state) else ""
        return record.model_copy(update={"state": MoveState.MOVING, "spec_hash": serves})

    def _why_not(self, record: RuntimeImages, state: ModelState) -> _Why | None:
        """Return why the model could not move now, although it were its turn."""
        facts = self.configured
        if why := _not_probed(facts, read_target(record)) or _why_paused(facts.model.spec):
            return why
        if _has_no_pods(facts.model):
            return _Why(StatusReason.SCALED_TO_ZERO, "it has no pods that would prove the image")
        # with another image it would have less capacity, and only its user can give it more pods
        serving, requested = state.rollout.serving, state.rollout.requested
        removed = processes_removed(facts.model, facts.revisions, serving, requested)
        if removed and record.target:
            return _Why(removed.reason, removed.message)
        return None if _is_rolled_out(state) or self._is_needed else self._why_not_yet(state)

    @property
    def _is_needed(self) -> bool:
        """Return whether something of the model waits for a node that an edited class may let it have."""
        return has_classes(self.target) and _waits_for_node(self.configured)

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
        record.spec_hash != spec_hash(model.spec) or _is_allowed(model, facts.revisions, record)
    ):
        return MoveState.WAITING
    if record.state is MoveState.MOVING and (
        _not_probed(facts, target)
        or _has_no_pods(model)
        or (images_in(target) and keeps_processes(model, facts.revisions))
    ):
        return MoveState.WAITING
    return record.state


def _rejections(
    facts: Facts, current: Mapping[str, str], target: Mapping[str, str]
) -> Iterator[RolloutFailure]:
    """Yield why the current spec was rejected with any of the target."""

    def matches(snapshot: Snapshot) -> bool:
        return carries(snapshot, target, current)

    yield from rejections_of(facts.model, facts.revisions, matches)


def _rejection(
    facts: Facts, current: Mapping[str, str], target: Mapping[str, str]
) -> RolloutFailure | None:
    """Return why the current spec was rejected with any of the target, if a lost status does not say so."""
    model, revisions = facts.model, facts.revisions
    rejections = _rejections(facts, current, target)
    return next(
        (one for one in rejections if not _is_promoted(model, revisions, one.revision)), None
    )


def _has_served(facts: Facts, rejection: RolloutFailure) -> bool:
    """Return whether the current spec has served: with what it had before, or with what was rejected."""
    before = find_serving(facts)
    with_current = before is not None and has_served_for_spec(
        facts.model, facts.revisions, before.last_complete
    )
    return with_current or rejection.stage == STAGE


def _is_promoted(model: InferenceModel, revisions: Collection[RevisionView], revision: str) -> bool:
    insists = model.metadata.annotations.get(PROMOTE) == revision
    return insists and rejection_by_user(model, revisions, revision) is None


def _turn(fleet: FleetConfig) -> _Why:
    if fleet.paused:
        return _Why(StatusReason.FLEET_PAUSED, "fleet.paused of the chart's values is true")
    message = f"no more than {fleet.limit} models move at the same time (fleet.limit)"
    return _Why(StatusReason.FLEET_LIMIT, message)


def _is_allowed(
    model: InferenceModel, revisions: Collection[RevisionView], kept: RuntimeImages
) -> bool:
    """Return whether a user has decided since that the revision for which it is kept is rolled out."""
    if not kept.revision:
        return False
    if kept.reason == StatusReason.SIGNATURE_CHANGED:
        return model.spec.rollout.allow_signature_change
    return _is_promoted(model, revisions, kept.revision)


def _why_paused(spec: InferenceModelSpec) -> _Why | None:
    if not spec.rollout.paused:
        return None
    return _Why(StatusReason.SUSPENDED, "spec.rollout.paused is true")


def _why_blocked(facts: Facts, state: ModelState) -> _Why | None:
    """Return what a move waits for, if its pods, or those of its builds, have waited for too long to be scheduled or allowed."""
    failures = state.rollout.bring_up.failures if state.rollout.bring_up else None
    if failures and failures.blocked:
        return _Why(failures.blocked.reason, failures.blocked.message)
    builds_wait = any(waits_too_long(facts, pod) for pod in _builds(facts))
    if builds_wait and state.engines and state.engines.reason == Reason.CAPACITY_BLOCKED:
        return _Why(state.engines.reason, state.engines.message)
    return None


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
