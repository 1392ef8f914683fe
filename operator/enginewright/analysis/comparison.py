"""Whether a new revision may replace the serving one, by what their sidecars have measured."""

from collections.abc import Sequence
from dataclasses import dataclass

from enginewright_contract.measurements import Measurements

from enginewright.analysis.answers import compare_answers
from enginewright.analysis.latency import compare_latency
from enginewright.analysis.memory import compare_memory
from enginewright.analysis.result import AnalysisLimits, AnalysisResult, join_results
from enginewright.analysis.shadow import compare_shadow
from enginewright.analysis.shares import compare_shares


@dataclass(frozen=True)
class RevisionComparison:
    """What is compared, and with which result."""

    stable: tuple[Measurements, ...]  # of the pods of the serving revision
    canary: tuple[Measurements, ...]  # of those of the new one
    limits: AnalysisLimits
    result: AnalysisResult | None = None  # once it is made

    def is_of(self, other: "RevisionComparison") -> bool:
        """Return whether both compare the same objects, which are immutable, within the same limits."""
        return self.limits == other.limits and all(
            len(mine) == len(theirs)
            and all(one is another for one, another in zip(mine, theirs, strict=True))
            for mine, theirs in ((self.stable, other.stable), (self.canary, other.canary))
        )


def compare(
    stable: Sequence[Measurements], canary: Sequence[Measurements], limits: AnalysisLimits
) -> AnalysisResult:
    """Compare the pods of the serving revision with those of the new one.

    It may be called at every poll: the error probabilities hold for all calls together.
    """
    return join_results(
        (
            compare_shares(stable, canary, limits),
            compare_answers(canary, limits),
            compare_shadow(stable, canary, limits),
            compare_latency(stable, canary, limits),
            compare_memory(stable, canary, limits),
        )
    )
