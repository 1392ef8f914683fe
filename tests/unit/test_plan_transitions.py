"""Every transition between the phases of a new revision, and that there are no others."""

from dataclasses import replace
from itertools import product
from typing import Final

import pytest
from enginewright.api.inference_model_status import TargetPhase
from enginewright.plan.rollout.canary.transitions import Seen, Stage, advance

HELD: Final = Stage(TargetPhase.HELD)
VERIFYING: Final = Stage(TargetPhase.VERIFYING)
FIRST: Final = Stage(TargetPhase.ANALYZING, 1)
SECOND: Final = Stage(TargetPhase.ANALYZING, 2)
PROMOTING: Final = Stage(TargetPhase.PROMOTING)
PHASES: Final = (None, HELD, VERIFYING, FIRST, SECOND, PROMOTING)

NOTHING: Final = Seen()
GOOD: Final = Seen(available=True, analysis="passed", held_long_enough=True)

TABLE: Final[list[tuple[str, Stage | None, Seen, Stage]]] = [
    # what happens, the phase before, what is seen, the phase after
    ("a new revision", None, NOTHING, VERIFYING),
    ("a new revision without a canary", None, Seen(direct=True), PROMOTING),
    ("a new revision that is held", None, Seen(held=True), HELD),
    ("one that is held and needs no canary", None, Seen(held=True, direct=True), HELD),
    ("still held", HELD, Seen(held=True), HELD),
    ("no longer held", HELD, NOTHING, VERIFYING),
    ("no longer held, without a canary", HELD, Seen(direct=True), PROMOTING),
    ("its pods start", VERIFYING, NOTHING, VERIFYING),
    ("its pods are ready, nothing is measured", VERIFYING, Seen(available=True), VERIFYING),
    ("its proofs pass", VERIFYING, Seen(available=True, analysis="passed"), FIRST),
    ("too slow to measure", VERIFYING, Seen(available=True, held_long_enough=True), FIRST),
    (
        "too few of its answers are compared",
        VERIFYING,
        replace(GOOD, shadowed=False, held_long_enough=False),
        VERIFYING,
    ),
    ("too few until the hold is over", VERIFYING, replace(GOOD, shadowed=False), FIRST),
    ("its answers are compared no more", FIRST, replace(GOOD, shadowed=False), PROMOTING),
    ("paused while it is verified", VERIFYING, replace(GOOD, held=True), VERIFYING),
    ("promoted by a user while it is verified", VERIFYING, Seen(direct=True), PROMOTING),
    ("it has not lasted", FIRST, replace(GOOD, held_long_enough=False), FIRST),
    ("too few samples", FIRST, replace(GOOD, analysis="inconclusive"), FIRST),
    ("a pod is not available", FIRST, replace(GOOD, available=False), FIRST),
    ("paused while it is analysed", FIRST, replace(GOOD, held=True), FIRST),
    ("it passes", FIRST, GOOD, PROMOTING),
    ("it passes the first of two steps", FIRST, replace(GOOD, steps=2), SECOND),
    ("it passes the last step", SECOND, replace(GOOD, steps=2), PROMOTING),
    ("steps are taken away", SECOND, GOOD, PROMOTING),
    ("promoted by a user while it is analysed", FIRST, Seen(direct=True), PROMOTING),
    ("promoted by a user while it is paused", FIRST, Seen(direct=True, held=True), FIRST),
    ("its pods replace the others", PROMOTING, NOTHING, PROMOTING),
    ("a canary is not needed any more", PROMOTING, Seen(direct=True), PROMOTING),
    ("paused while it is promoted", PROMOTING, Seen(held=True), HELD),
]


@pytest.mark.parametrize(
    ("before", "seen", "after"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_transition(before: Stage | None, seen: Seen, after: Stage) -> None:
    assert advance(before, seen) == after


def every_sight() -> list[Seen]:
    flags = product([False, True], repeat=5)
    return [
        Seen(held=held, direct=direct, available=available, analysis=analysis, shadowed=shadowed, held_long_enough=long, steps=2)
        for held, direct, available, shadowed, long in flags
        for analysis in ("passed", "inconclusive")
    ]  # fmt: skip


@pytest.mark.parametrize("before", PHASES)
def test_nothing_gets_requests_or_is_promoted_while_it_is_held(before: Stage | None) -> None:
    for seen in every_sight():
        after = advance(before, replace(seen, held=True))
        assert after in (before, HELD)


@pytest.mark.parametrize("before", PHASES)
def test_only_available_pods_get_requests(before: Stage | None) -> None:
    for seen in every_sight():
        after = advance(before, replace(seen, available=False, direct=False))
        assert after in (before, HELD, VERIFYING)


@pytest.mark.parametrize("before", PHASES)
def test_a_canary_is_promoted_only_after_it_passed_for_long_enough(before: Stage | None) -> None:
    for seen in every_sight():
        after = advance(before, replace(seen, direct=False))
        if after == PROMOTING and before != PROMOTING:
            assert before in (FIRST, SECOND)
            assert (seen.available, seen.analysis, seen.held_long_enough) == (True, "passed", True)


def test_no_step_is_skipped() -> None:
    for seen in every_sight():
        assert advance(VERIFYING, replace(seen, direct=False)) in (VERIFYING, FIRST)
        assert advance(FIRST, replace(seen, direct=False)) in (FIRST, SECOND)
