"""How a new revision advances: the transitions between the phases of `TargetPhase`.

A function of the phase in the status and of what is observed, so that an operator that restarts or misses
events continues. docs/rollouts.md draws the transitions.
"""

from dataclasses import dataclass
from typing import Final, Literal

from enginewright.api.inference_model_status import TargetPhase

COMPARED: Final = (TargetPhase.VERIFYING, TargetPhase.ANALYZING)  # phases with a canary to compare

Analyzed = Literal["passed", "failed", "inconclusive"]


@dataclass(frozen=True)
class Seen:
    """What decides the next phase of a revision that neither serves nor was rejected."""

    held: bool = False  # nothing of it may start: paused, or its signature breaks clients
    direct: bool = False  # its pods replace the serving ones without a canary
    available: bool = False  # every pod of the canary, by the verdict of its sidecar too
    analysis: Analyzed = "inconclusive"  # of canary and serving pods
    shadowed: bool = True  # enough answers to clients' requests were compared, or none are to be
    held_long_enough: bool = False  # for `canary.hold`, since the step began
    steps: int = 1  # of the canary


@dataclass(frozen=True)
class Stage:
    """A phase, and its step."""

    phase: TargetPhase
    step: int = 0  # of ANALYZING, from 1


def advance(before: Stage | None, seen: Seen) -> Stage:
    """Return the phase of the target from now on; `before` is None for a new target."""
    if before is not None and before.phase is TargetPhase.PROMOTING and not seen.held:
        return before
    if before is None or before.phase in (TargetPhase.HELD, TargetPhase.PROMOTING):
        return _begin(seen)
    if seen.direct:  # by a user, or because nothing serves any more
        return Stage(TargetPhase.PROMOTING) if not seen.held else before
    if before.phase is TargetPhase.VERIFYING:
        return Stage(TargetPhase.ANALYZING, 1) if _may_get_requests(seen) else before
    return _next_step(before, seen)


def _begin(seen: Seen) -> Stage:
    if seen.held:
        return Stage(TargetPhase.HELD)
    return Stage(TargetPhase.PROMOTING if seen.direct else TargetPhase.VERIFYING)


def _may_get_requests(seen: Seen) -> bool:
    """Return whether canary pods may get requests: what is measured without them shows no regression.

    A model too slow to show that within `hold`, or with too few clients, gets them all the same.
    """
    shown = seen.analysis == "passed" and seen.shadowed
    may = seen.available and not seen.held and seen.analysis != "failed"
    return may and (shown or seen.held_long_enough)


def _next_step(before: Stage, seen: Seen) -> Stage:
    """Return the next step once this one has lasted and is conclusive; a pause keeps it."""
    if seen.held or not (seen.available and seen.held_long_enough and seen.analysis == "passed"):
        return before
    if before.step < seen.steps:
        return Stage(TargetPhase.ANALYZING, before.step + 1)
    return Stage(TargetPhase.PROMOTING)
