"""Whether a new revision may replace the serving one, from what their sidecars have measured."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from enginewright_contract.measurements import Measurements

from enginewright.analysis.answers import compare_answers
from enginewright.analysis.latency import compare_latency
from enginewright.analysis.memory import compare_memory
from enginewright.analysis.result import AnalysisLimits, AnalysisResult, joined
from enginewright.analysis.shadow import compare_shadow
from enginewright.analysis.shares import compare_shares

Comparison: TypeAlias = Callable[
    [Sequence[Measurements], Sequence[Measurements], AnalysisLimits], AnalysisResult
]


def compare(
    stable: Sequence[Measurements], canary: Sequence[Measurements], limits: AnalysisLimits
) -> AnalysisResult:
    """Compare the pods of the serving revision, `stable`, with those of the new one, `canary`.

    It may be called at every poll: the error probabilities hold for all calls together.
    """
    return joined(
        (
            compare_shares(stable, canary, limits),
            compare_answers(canary, limits),
            compare_shadow(stable, canary, limits),
            compare_latency(stable, canary, limits),
            compare_memory(stable, canary, limits),
        )
    )
