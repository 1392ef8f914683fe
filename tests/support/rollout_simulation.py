"""Rates of verdicts over simulated rollouts, with looks while the measurements arrive."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from enginewright.analysis.comparison import compare
from enginewright.analysis.result import AnalysisLimits, State
from enginewright_contract.measurements import WINDOW, Measurements

from tests.support.rollout_load import Load, Noise, pod, seed_random, series, windows


def limits(min_samples: int = 100) -> AnalysisLimits:
    """Return the default limits, with a number of measurements."""
    return AnalysisLimits(
        max_latency_ratio=1.2,
        max_error_share=0.001,
        max_memory_growth=0.2,
        max_output_difference=None,
        min_top1_agreement=None,
        holds_answers=False,
        min_samples=min_samples,
    )


@dataclass(frozen=True)
class Scenario:
    """What differs between the two revisions."""

    ratios: Sequence[float] = (1.0,)  # of each series
    noise: Noise = field(default_factory=Noise)
    min_samples: int = 100
    most: int = 200  # measurements of each revision at the last look
    interval: float = 1.0  # seconds between two
    stalls: float = 0.0  # share of the new revision's measurements that take 100 times as long
    slow: Callable[[Random], float] | None = None  # multiplies each measurement of both revisions

    def looks(self) -> list[int]:
        """Return the measurements at each look, some between those that the analysis uses."""
        spread = {20, 30, 50, 80, 100, 150, 200, 400}
        return sorted(number for number in spread | {self.most} if number <= self.most)

    def count_failed(self, simulations: int) -> float:
        """Return the share of the simulations that fail at any look."""
        return sum(self._fails(seed_random(seed)) for seed in range(simulations)) / simulations

    def _fails(self, random: Random) -> bool:
        load = Load.of(random, self.noise)
        arms = [
            [
                windows(
                    random,
                    self.most,
                    load,
                    seconds=0.01 * ratio,
                    interval=self.interval,
                    stalls=stalls,
                    slow=self.slow,
                )
                for ratio in ratios
            ]
            for ratios, stalls in (((1.0,) * len(self.ratios), 0.0), (self.ratios, self.stalls))
        ]
        return any(self._state(arms, count) == "failed" for count in self.looks())

    def _state(self, arms: Sequence[Sequence[list[tuple[float, float]]]], count: int) -> State:
        pods: list[Measurements] = [
            pod(*(series(row[: count // WINDOW], str(name)) for name, row in enumerate(arm)))
            for arm in arms
        ]
        return compare([pods[0]], [pods[1]], limits(self.min_samples)).state


def either(ratio: float) -> Callable[[Random], float]:
    """Return two modes that are equally frequent."""
    return lambda random: ratio if random.random() < 0.5 else 1.0
