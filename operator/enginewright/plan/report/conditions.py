"""The truth table from a model's state to its conditions, documented in docs/reference/condition-states.md."""

from dataclasses import dataclass, replace
from typing import Final

from enginewright_contract.images import DEVICE_BACKENDS
from enginewright_contract.reasons import Reason, Repeats, reason_named

from enginewright.api.conditions import ConditionType, StatusReason, WantedCondition
from enginewright.api.inference_model_status import TargetPhase, TargetRevision
from enginewright.plan.attempts import describe_retry, is_stalled
from enginewright.plan.engines.interim import Interim
from enginewright.plan.engines.status import describe_engine
from enginewright.plan.engines.wanted import Engines
from enginewright.plan.pods import misses_artefact
from enginewright.plan.prepare.prepare import PrepareOutcome
from enginewright.plan.rollout.pod_counts import RolloutProgress
from enginewright.plan.rollout.proofs import Proofs, Statement
from enginewright.plan.rollout.rollout import RolloutPlan
from enginewright.plan.types import Obstacle

# Obstacles of what serves: without its route, no client reaches it. Others prevent further revisions, Jobs or engines.
_OF_WHAT_SERVES: Final = StatusReason.GATEWAY_API_MISSING
# Reasons of engines that are on their way.
_AT_WORK: Final = frozenset({StatusReason.BUILDING, StatusReason.LOOKING_UP, StatusReason.QUEUED})
_NOT_YET: Final = Statement("Unknown", StatusReason.NOT_YET_VERIFIED, "no pod serves yet")
_NOT_VALIDATED: Final = Statement(
    "Unknown",
    StatusReason.NOT_YET_VERIFIED,
    "the model of this spec has not been validated yet",
)


@dataclass(frozen=True)
class ReadyState(Statement):
    """Why a model is ready, progressing or stalled."""

    stalled: bool = False


@dataclass(frozen=True)
class ModelState:
    """The state of a model, from which its conditions are derived."""

    obstacle: Obstacle | None
    outcome: PrepareOutcome | None
    engines: Engines | None
    rollout: RolloutPlan
    proofs: Proofs | None  # once a serving pod was polled
    interim: Interim | None = None  # until the engines are built
    waits: str = ""  # for the contents of an image, before a backend can be chosen
    chooses: bool = False  # a benchmark chose backends of the wanted revision, in place of engines
    store_loss: str = ""  # of a revision's earlier store, as a sentence
    route: Statement | None = None  # whether gateways take it, if the model asks for one
    unchanged: bool = False  # the applied revision is what the spec requested

    @property
    def prevented(self) -> Obstacle | None:
        """Return what prevents only what is to follow what the spec requested, which has served with all its pods."""
        obstacle, rollout = self.obstacle, self.rollout
        if obstacle is None or obstacle.reason == _OF_WHAT_SERVES or not self.unchanged:
            return None
        has_served = rollout.serving and rollout.serving.last_complete == rollout.applied
        return obstacle if has_served and not (rollout.rejection or rollout.target) else None


def conditions(state: ModelState) -> tuple[WantedCondition, ...]:
    """Return the conditions, in their order: all, and that of a route if there is to be one."""
    ready = _ready_state(state)
    if ready.status != "True" and state.store_loss:
        ready = replace(ready, message=f"{ready.message}; {state.store_loss}")
    statements = {
        ConditionType.READY: ready,
        ConditionType.RECONCILING: _while(ready.status != "True" and not ready.stalled, ready),
        ConditionType.STALLED: _while(ready.stalled, ready),
        ConditionType.AVAILABLE: _available(state.rollout),
        ConditionType.VALIDATED: _judge_validation(state.outcome, state.prevented),
        ConditionType.ENGINES_READY: _engines_ready(state.outcome, state.engines),
        ConditionType.ROLLED_BACK: _judge_rollback(state.rollout),
        ConditionType.PARITY_VERIFIED: _parity(state),
        ConditionType.PLACEMENT_VERIFIED: _placement(state),
        ConditionType.FALLBACK_ACTIVE: state.proofs.fallback if state.proofs else _NOT_YET,
    }
    if state.route:
        statements[ConditionType.ROUTE_ACCEPTED] = state.route
    return tuple(
        WantedCondition(
            type=kind, status=statement.status, reason=statement.reason, message=statement.message
        )
        for kind, statement in statements.items()
    )


def _while(is_so: bool, ready: ReadyState) -> Statement:
    """Return a statement with the reason of Ready, and with its message while it is true."""
    return Statement("True" if is_so else "False", ready.reason, ready.message if is_so else "")


def _ready_state(state: ModelState) -> ReadyState:
    serves = "" if state.prevented else _serves(state.rollout)
    if state.interim:
        return _with_interim(state, state.interim)
    if ready := _not_prepared(state, serves) or _not_promoted(state.rollout, serves):
        return ready
    progress = state.rollout.progress
    if progress is None and state.waits:
        return ReadyState("False", StatusReason.PROBING_IMAGE, state.waits)
    if progress is None:
        return ReadyState("False", StatusReason.ROLLING_OUT, "starting the first revision")
    if progress.complete:
        return _complete(state, progress)
    return _rolling_out(state, progress, serves)


def _not_promoted(rollout: RolloutPlan, serves: str) -> ReadyState | None:
    """Return why the wanted revision neither serves nor replaces the serving one, if so."""
    if rejection := rollout.rejection:
        text = f"revision {rejection.revision} was rejected: {rejection.message}{serves}"
        text += _describe_trouble(rollout)
        return ReadyState("False", rejection.reason, text, stalled=True)
    target = rollout.target
    if target is None or target.phase is TargetPhase.PROMOTING:
        return None
    if target.reason == StatusReason.SCALED_TO_ZERO:  # as the user asks for no pods
        return None
    return _describe_canary(target, serves + _describe_trouble(rollout))


def _describe_canary(target: TargetRevision, serves: str) -> ReadyState:
    name = f"revision {target.revision}"
    if target.phase is TargetPhase.HELD:
        message = f"{name} waits: {target.message}{serves}"
        return ReadyState("False", target.reason, message, stalled=True)
    if target.phase is TargetPhase.VERIFYING:
        reason, doing = StatusReason.VERIFYING_CANARY, "is verified before it gets requests"
    else:
        reason, doing = StatusReason.ANALYZING, "gets requests and is compared with the serving one"
    more = "; ".join(filter(None, (target.message, target.answers)))
    message = f"{name} {doing}" + (f": {more}" if more else "") + serves
    # no user decides about answers but by a command
    stalled = target.reason == Reason.ANSWERS_CHANGED
    return ReadyState("False", target.reason or reason, message, stalled=stalled)


def _judge_rollback(rollout: RolloutPlan) -> Statement:
    rejection, serving, ignored = rollout.rejection, rollout.serving, rollout.ignored_rollback
    if rejection is None or rollout.applied == rollout.requested:
        if ignored:
            return Statement("False", StatusReason.ROLLED_BACK_BY_USER, ignored)
        reason = StatusReason.SERVING if serving else StatusReason.NOT_YET_VERIFIED
        return Statement("False", reason, "")
    back = f"; revision {rollout.applied} is restored" if rollout.applied else ""
    message = f"revision {rejection.revision}: {rejection.message}{back}"
    return Statement("True", rejection.reason, message + (f"; {ignored}" if ignored else ""))


def _not_prepared(state: ModelState, serves: str) -> ReadyState | None:
    """Return what is not prepared or built yet, if anything, or why nothing can be."""
    if (obstacle := state.obstacle) and not state.prevented:
        return ReadyState("False", obstacle.reason, obstacle.message + serves, obstacle.stalled)
    if state.prevented:
        return None
    outcome, engines = state.outcome, state.engines
    if outcome and outcome.failure:
        failure, message = outcome.failure, outcome.failure.sentence + serves
        if not failure.lasting:
            doing = f"retrying: {outcome.message}" if outcome.message else describe_retry(failure)
            message += f"; {doing}"
        return ReadyState("False", failure.reason, message, stalled=is_stalled(failure))
    if outcome is None or outcome.prepared is None:
        message = f"preparing the model: {outcome.message if outcome else 'starting'}{serves}"
        reason = outcome.wait.reason if outcome and outcome.wait else ""
        return ReadyState("False", reason or StatusReason.PREPARING, message)
    if engines and not engines.complete:
        return _engines_missing(engines, serves)
    return None


def _engines_missing(engines: Engines, serves: str) -> ReadyState:
    if failure := engines.failure:
        return ReadyState("False", failure.reason, failure.sentence + serves, failure.lasting)
    return ReadyState("False", engines.reason, engines.message + serves)


def _with_interim(state: ModelState, interim: Interim) -> ReadyState:
    """Return the state of a model whose first engines are not built: whether an interim serves, or why not."""
    rollout, progress = state.rollout, state.rollout.progress
    serves = _serves(rollout)
    if state.engines is None or interim.why_not:
        built = _not_prepared(state, serves)
        assert built is not None  # noqa: S101 - there is one only while engines are missing
        other = "other " if _is_bridged(rollout) else ""
        why = f"; no {other}interim serves on {interim.backend}: {interim.why_not}"
        return replace(built, message=built.message + why)
    name = f"revision {rollout.requested} on {interim.backend}"
    built = _engines_missing(state.engines, "")
    if rejection := rollout.rejection:
        text = f"; its interim, {name}, was rejected: {rejection.message}{serves}"
    elif progress and progress.complete and rollout.desired == 0:
        return _complete(state, progress)
    elif progress is None or not progress.complete or rollout.target:
        text = f"; its interim, {name}, {_interim_waits(rollout)}{serves}"
    elif (proofs := state.proofs) and (broken := proofs.broken):
        text = f"; its interim, {name}, serves, but {broken.message}"
        built = replace(built, reason=broken.reason) if built.reason in _AT_WORK else built
    elif built.reason in _AT_WORK:
        message = f"{name}, {progress.message}, until the engines are built: {built.message}"
        return ReadyState("True", StatusReason.SERVING_INTERIM, message)
    else:
        text = f"; its interim, {name}, keeps serving"
        if built.reason == Reason.CAPACITY_BLOCKED and interim.backend in DEVICE_BACKENDS:
            text += ", and spec.build.interim: CPU would leave its device to the build"
    return replace(built, message=built.message + text)


def _is_bridged(rollout: RolloutPlan) -> bool:
    """Return whether an interim serves now."""
    classes = rollout.serving.classes if rollout.serving else ()
    return rollout.ready_replicas > 0 and any(device_class.interim for device_class in classes)


def _interim_waits(rollout: RolloutPlan) -> str:
    if (target := rollout.target) and target.phase is not TargetPhase.PROMOTING:
        doing = "waits" if target.phase is TargetPhase.HELD else "is verified"
        return f"{doing}: {target.message}" if target.message else doing
    progress = rollout.progress
    if progress is None:
        return "is started"
    why = _find_trouble(progress)
    return f"fails: {why}" if why else f"is started: {progress.message}"


def _find_trouble(progress: RolloutProgress) -> str:
    """Return why pods are not ready, or not created, as a sentence, if that is known."""
    if progress.failure:
        return progress.failure.finding.message
    waits = progress.refused or progress.waits
    return waits.message if waits else ""


def _describe_trouble(rollout: RolloutPlan) -> str:
    """Return text to append while an update comes first: what the revision that serves lacks, as after scaling."""
    progress = rollout.progress
    if progress is None or progress.complete or rollout.applied == rollout.requested:
        return ""
    why = _find_trouble(progress)
    return (
        f"; revision {rollout.applied}, {progress.message.partition(';')[0]}: {why}" if why else ""
    )


def _complete(state: ModelState, progress: RolloutProgress) -> ReadyState:
    rollout = state.rollout
    if rollout.desired == 0:
        target, message = rollout.target, "scaled to 0 replicas"
        if target and target.reason == StatusReason.SCALED_TO_ZERO:
            message += f"; revision {target.revision} waits: {target.message}"
        return ReadyState("True", StatusReason.SCALED_TO_ZERO, message)
    if state.proofs and (broken := state.proofs.broken):
        return ReadyState("False", broken.reason, broken.message)
    message = f"revision {rollout.applied}, {progress.message}"
    return ReadyState("True", StatusReason.SERVING, message)


def _rolling_out(state: ModelState, progress: RolloutProgress, serves: str) -> ReadyState:
    rollout = state.rollout
    # What the spec requests has been rebuilt by now: pods read it when they start next.
    is_mended = rollout.applied == rollout.requested and not state.store_loss
    failure = progress.failure
    if failure and not (is_mended and misses_artefact(failure)):
        reason, message = failure.reason, failure.finding.message + serves
        return ReadyState("False", reason, message, _is_permanent(rollout, progress, reason))
    serving = rollout.serving
    steady = serving is not None and serving.last_complete == rollout.applied
    # proofs refer to the serving revision, or else to the applied one
    proofs = state.proofs if serving is None or serving.revision == rollout.applied else None
    if not steady and proofs and (broken := proofs.broken):
        is_permanent = _is_permanent(rollout, progress, broken.reason)
        return ReadyState("False", broken.reason, broken.message, is_permanent)
    message = f"revision {rollout.applied}, {progress.message}{serves}"
    if progress.stuck:
        return ReadyState("False", StatusReason.ROLLOUT_FAILED, message, stalled=True)
    if refused := progress.refused:
        return ReadyState("False", refused.reason, f"{refused.message}{serves}")
    if progress.waits and progress.waits.reason:
        return ReadyState("False", progress.waits.reason, message)
    progressing = StatusReason.PROGRESSING if steady else StatusReason.ROLLING_OUT
    return ReadyState("False", progressing, message)


def _is_permanent(rollout: RolloutPlan, progress: RolloutProgress, reason: str) -> bool:
    """Return whether the progress deadline has passed, or every other pod would fail alike."""
    failure = reason_named(reason)
    is_the_same = failure is not None and failure.facets.repeats is Repeats.EVERYWHERE
    return progress.stuck or (is_the_same and reason not in rollout.left_to_others)


def _serves(rollout: RolloutPlan) -> str:
    """Return text to append: the revision that keeps serving, if it is another one."""
    serving = rollout.serving
    if serving is None or rollout.ready_replicas == 0 or serving.revision == rollout.requested:
        return ""
    if rollout.interrupts and serving.revision != rollout.applied:
        return f"; the pods of revision {serving.revision} end first, and until others are ready none serve"
    return f"; revision {serving.revision} keeps serving"


def _available(rollout: RolloutPlan) -> Statement:
    if rollout.ready_replicas > 0:
        return Statement("True", StatusReason.SERVING, "at least one pod is ready")
    return Statement("False", StatusReason.NOTHING_SERVES, "no pod is ready")


def _judge_validation(outcome: PrepareOutcome | None, prevented: Obstacle | None) -> Statement:
    if prevented:
        statement = Statement("Unknown", prevented.reason, prevented.message)
        return replace(statement, status="False") if prevented.stalled else statement
    if outcome is None:
        return _NOT_VALIDATED
    if outcome.failure:
        return Statement("False", outcome.failure.reason, outcome.failure.sentence)
    if prepared := outcome.prepared:
        versions = f"opset {prepared.opset}, IR version {prepared.ir_version}"
        changes = f"; {prepared.changes}" if prepared.changes else ""
        message = f"{versions}, {prepared.nodes} nodes{changes}"
        return Statement("True", StatusReason.PREPARED, message)
    return Statement("Unknown", StatusReason.PREPARING, "the model is not validated yet")


def _engines_ready(outcome: PrepareOutcome | None, engines: Engines | None) -> Statement:
    if outcome is None:
        return _NOT_VALIDATED
    if engines is None:
        message = "engines are built once the model is prepared"
        return Statement("Unknown", StatusReason.NOT_YET_VERIFIED, message)
    if not engines.needed:
        message = "the backend runs the prepared model without an engine"
        return Statement("True", StatusReason.NO_ENGINE_NEEDED, message)
    failure = engines.failure
    if failure and not failure.placement:
        return Statement("False", failure.reason, failure.sentence)
    if engines.complete or failure:
        built = (f"{describe_engine(fact)}, sha256 {fact.sha256[:12]}" for fact in engines.facts)
        return Statement("True", StatusReason.BUILT, "; ".join(built))
    return Statement("False", engines.reason, engines.message)


def _parity(state: ModelState) -> Statement:
    failure = _failure(state)
    if failure and failure.reason == Reason.PARITY_FAILED:
        return failure
    if failure and failure.reason == Reason.PARITY_UNKNOWN:
        return replace(failure, status="Unknown")
    return state.proofs.parity if state.proofs else _NOT_YET


def _placement(state: ModelState) -> Statement:
    failure = _failure(state)
    if failure and (reason := reason_named(failure.reason)) and reason.facets.placement:
        return failure
    return state.proofs.placement if state.proofs else _NOT_YET


def _failure(state: ModelState) -> Statement | None:
    """Return why the first revision cannot serve, if so, unless pods are ready: these have verdicts."""
    if state.rollout.ready_replicas:
        return None
    if state.outcome and (failure := state.outcome.failure):
        return Statement("False", failure.reason, failure.sentence)
    if state.engines and (broken := state.engines.failure) and broken.placement:
        return Statement("False", broken.reason, broken.sentence)
    progress = state.rollout.progress
    if progress and (failed := progress.failure):
        return Statement("False", failed.reason, failed.finding.message)
    return None
