"""Whose turn it is: which models may move to new runtime images and edited classes now, and which may create a Job.

Models move in turn, up to a limit. One that cannot go on gives its turn away until it does. A model whose label
`enginewright.dev/rollout-order` is `first` moves before all others, one with `last` after them.

Jobs that prepare models and build engines are created in the order in which the models and InferenceEngines were. One
whose namespace is full lets others pass. What serves and was lost from the store is rebuilt without a turn.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from enginewright.api.conditions import StatusReason
from enginewright.api.inference_model_status import MoveState
from enginewright.observed.moves import MoveView
from enginewright.plan.fleet.inputs import differing
from enginewright.plan.types import FleetConfig, JobLimits

ModelName: TypeAlias = tuple[str, str]  # namespace, name


class Halt(StrEnum):
    """Why no further model begins to move."""

    PAUSED = "Paused"
    TOO_MANY_FAILURES = "TooManyFailures"


@dataclass(frozen=True)
class FleetState:
    """How far all models have come."""

    models: Mapping[MoveState, int]  # how many are in each state
    permitted: frozenset[ModelName] = frozenset()  # to begin
    failures: int = 0  # models that the new inputs have failed
    halt: Halt | None = None


def fleet_state(
    moves: Iterable[MoveView],
    configured: Mapping[str, str],
    config: FleetConfig,
    granted: Collection[ModelName] = (),
    settled: int = 0,
) -> FleetState:
    """Return the state of the fleet.

    `moves` are of all models that serve and are not `settled`, of which only the number counts. `configured` is
    what the installation has of images and classes. Models in `granted` were permitted, and their statuses may not
    show it yet.
    """
    states = {(view.namespace, view.name): (view, _state(view, configured)) for view in moves}
    # also towards others, as before these were configured: until it is planned again
    moving = {
        name
        for name, (move, state) in states.items()
        if (move.state == MoveState.MOVING and not _is_held(move, configured))
        or (state is MoveState.WAITING and name in granted)
    }
    kept = (move for move, state in states.values() if state is MoveState.KEPT)
    failures = sum(not move.fails_anyway for move in kept)
    halt = Halt.PAUSED if config.paused else None
    if failures >= config.max_failures:
        halt = halt or Halt.TOO_MANY_FAILURES
    waiting = [
        move
        for name, (move, state) in states.items()
        if state is MoveState.WAITING and name not in moving and not _is_held(move, configured)
    ]
    # the next rank begins when no model of this one moves or may move, now or once its image is probed
    probing = [
        move
        for move, state in states.values()
        if state is MoveState.WAITING and move.reason == StatusReason.PROBING_IMAGE
    ]
    begun = [states[name][0] for name in moving]
    rank = min((view.rank for view in (*waiting, *probing, *begun)), default=0)
    ready = [view for view in waiting if _target(view, configured) == view.target]
    turns = [] if halt else _by_name(view for view in ready if view.rank == rank)
    free = max(0, config.limit - len(moving))
    return FleetState(
        models=Counter(state for _, state in states.values()) + Counter({MoveState.MOVED: settled}),
        permitted=frozenset({*granted, *turns[:free]}),
        failures=failures,
        halt=halt,
    )


def is_settled(move: MoveView, configured: Mapping[str, str]) -> bool:
    """Return whether a model has what the installation has, and its status says so."""
    return move.state != MoveState.MOVING and not _target(move, configured)


def _state(move: MoveView, configured: Mapping[str, str]) -> MoveState:
    target = _target(move, configured)
    if not target:
        return MoveState.MOVED
    return MoveState(move.state) if target == move.target else MoveState.WAITING


def _by_name(moves: Iterable[MoveView]) -> list[ModelName]:
    return sorted((move.namespace, move.name) for move in moves)


def _is_held(move: MoveView, configured: Mapping[str, str]) -> bool:
    """Return whether a model does not go on to these for now, even if it is its turn."""
    return bool(move.reason) and _target(move, configured) == move.target


def _target(move: MoveView, configured: Mapping[str, str]) -> dict[str, str]:
    return differing(configured, move.current)


class JobOwner(NamedTuple):
    """A model or an InferenceEngine; they are in the order of their turns."""

    created: str  # RFC 3339
    namespace: str
    kind: str
    name: str


def turns(
    waiting: Iterable[JobOwner], running: Mapping[str, int], limits: JobLimits
) -> dict[JobOwner, str]:
    """Return why each owner that waits for a Job creates none now, or ""; `running` Jobs are counted by namespace."""
    taken = Counter(running)
    reasons = {}
    for owner in sorted(waiting):
        reasons[owner] = _full(owner.namespace, taken, limits)
        if not reasons[owner]:
            taken[owner.namespace] += 1
    return reasons


def _full(namespace: str, taken: Counter[str], limits: JobLimits) -> str:
    if limits.total and taken.total() >= limits.total:
        return f"waits for its turn: at most {limits.total} Jobs run at the same time (jobs.limit)"
    if limits.per_namespace and taken[namespace] >= limits.per_namespace:
        return (
            f"waits for its turn: at most {limits.per_namespace} Jobs of namespace {namespace} run at"
            " the same time (jobs.namespaceLimit)"
        )
    return ""
