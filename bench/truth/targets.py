"""What the proof of outputs must reach, checked at each run."""

from dataclasses import dataclass
from typing import Final

from bench.truth.comparators import OURS, PEERS, PRECISIONS
from bench.truth.results import SIZES, TUNED, Results

_SMALL, _MIDDLE, _LARGE = SIZES
# sizes of lies that must be found, by precision
SIZES_FOUND: Final[dict[str, tuple[str, ...]]] = {
    "FP32": (_MIDDLE, _LARGE),
    "FP16": (_MIDDLE, _LARGE),
    "BF16": (_MIDDLE, _LARGE),
    "INT8": (_LARGE,),
    "FP8": (_LARGE,),
}
UNKNOWN: Final = 0.05  # of the parts, on natural inputs


@dataclass(frozen=True)
class Outcome:
    """A target, what was measured, and whether that keeps it."""

    what: str
    bound: str
    measured: str
    kept: bool


def judge(results: Results) -> list[Outcome]:
    """Return all outcomes."""
    outcomes = []
    for precision in PRECISIONS:
        sizes = SIZES_FOUND[precision]
        ours = results.count(OURS, precision, *sizes)
        if not ours.told:
            continue
        least = f"{SIZES[sizes[0]][0]:.0%} of the spread and more"
        missed = ours.told - ours.detected - ours.unknown
        outcomes.append(
            Outcome(
                f"{precision}: lies of {least} that are accepted",
                "0",
                f"{missed} of {ours.told:,} ({ours.detected / ours.told:.1%} found,"
                f" {ours.unknown / ours.told:.1%} unknown)",
                not missed,
            )
        )
        alarms = results.alarms_of(OURS, precision)
        if alarms is not None:
            outcomes.append(
                Outcome(
                    f"{precision}: honest artefacts that fail",
                    "0",
                    f"{alarms.alarms} of {alarms.honest}",
                    not alarms.alarms,
                )
            )
        counts = results.unknown[precision]
        share = counts["unknown"] / counts["parts"] if counts["parts"] else 0.0
        outcomes.append(
            Outcome(
                f"{precision}: parts of honest artefacts that are not judged",
                f"≤ {UNKNOWN:.0%}",
                f"{share:.1%} of {counts['parts']:,}",
                share <= UNKNOWN,
            )
        )
        outcomes += _compare(results, precision, sizes)
    return outcomes


def _compare(results: Results, precision: str, sizes: tuple[str, ...]) -> list[Outcome]:
    """Return whether we find more than each peer that has no more false alarms."""
    ours = results.count(OURS, precision, *sizes)
    outcomes = []
    for peer in PEERS:
        theirs = results.count(f"{peer}{TUNED}", precision, *sizes)
        if theirs.told:
            outcomes.append(
                Outcome(
                    f"{precision}: found, over {peer} with as few false alarms",
                    "more, or all",
                    f"{ours.detected / ours.told:.1%}, {theirs.detected / theirs.told:.1%}",
                    ours.detected > theirs.detected or ours.detected == ours.told,
                )
            )
    return outcomes


def list_misses(results: Results) -> list[str]:
    """Return the targets that are missed, in words."""
    return [
        f"MISSED {outcome.what}: {outcome.measured}, target {outcome.bound}"
        for outcome in judge(results)
        if not outcome.kept
    ]
