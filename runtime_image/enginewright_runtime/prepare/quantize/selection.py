"""Chooses a precision by measured time. Pure: measurements and proofs are made elsewhere."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from typing_extensions import override

# From most to least exact: of two that are equally fast the more exact one is chosen.
_ORDER: Final = ("FP32", "FP16", "BF16", "INT8", "FP8")
_MIN_GAIN: Final = 0.05  # of the time; less is not worth any accuracy
_MIN_WON: Final = 0.75  # of the rounds


@dataclass(frozen=True)
class Times:
    """Seconds per run, one figure per round; compared models share their rounds."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Return the median."""
        return float(np.median(self.rounds))

    @property
    def quartiles(self) -> tuple[float, float]:
        """Return the first and the third quartile."""
        low, high = np.quantile(self.rounds, (0.25, 0.75))
        return float(low), float(high)

    @override
    def __str__(self) -> str:
        low, high = self.quartiles
        return f"{self.median * 1e3:.3g} ms ({low * 1e3:.3g} to {high * 1e3:.3g})"


@dataclass(frozen=True)
class TriedPrecision:
    """A precision that was tried."""

    precision: str
    refused: str | None = None  # why it cannot serve, unless parity holds
    times: Times | None = None


@dataclass(frozen=True)
class Selection:
    """The chosen precision, and the reasons."""

    precision: str | None  # unless it is the model's own
    reasons: Mapping[str, str]  # a sentence for each precision that was tried


def select(own: Times | None, candidates: Sequence[TriedPrecision]) -> Selection:
    """Return the fastest precision whose parity holds, if it is faster by more than the noise."""
    best: TriedPrecision | None = None
    reasons: dict[str, str] = {}
    for candidate in sorted(candidates, key=lambda precision: _ORDER.index(precision.precision)):
        rival = best.times if best else own
        if candidate.refused is not None:
            reasons[candidate.precision] = f"rejected: {candidate.refused}{_faster(own, candidate)}"
        elif candidate.times is None or rival is None or own is None:
            reasons[candidate.precision] = "not measured"
        elif is_faster(candidate.times, rival):
            if best is not None:
                reasons[best.precision] = f"slower than {candidate.precision}: {best.times}"
            reasons[candidate.precision] = f"{candidate.times} instead of {own}"
            best = candidate
        else:
            than = best.precision if best else "the model's own precision"
            reasons[candidate.precision] = f"no faster than {than}: {candidate.times}, {rival}"
    return Selection(best.precision if best else None, reasons)


def is_faster(times: Times, rival: Times) -> bool:
    """Tell whether a difference is more than noise.

    Rounds of both are interleaved and compared in pairs, since other load on the machine affects
    both alike. Of two equally fast models, one wins three quarters of 21 rounds in 1 of 25
    measurements (sign test).
    """
    pairs = list(zip(times.rounds, rival.rounds, strict=True))
    won = sum(one < other for one, other in pairs) / len(pairs)
    gain = float(np.median([one / other for one, other in pairs]))
    return gain <= 1 - _MIN_GAIN and won >= _MIN_WON


def _faster(own: Times | None, candidate: TriedPrecision) -> str:
    if own is None or candidate.times is None or not is_faster(candidate.times, own):
        return ""
    return f"; it would have been faster, {candidate.times} instead of {own}"
