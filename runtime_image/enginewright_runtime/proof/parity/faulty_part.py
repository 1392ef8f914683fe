"""The worst part of an output, in the words of messages. Pure."""

import math
from dataclasses import dataclass

from enginewright_runtime.proof.parity.part_sums import WHOLE
from enginewright_runtime.proof.parity.tolerances import Tolerance


@dataclass(frozen=True, slots=True)
class FaultyPart:
    """The worst part of an output, of those that fail."""

    axis: int
    index: int
    failing: int  # parts of the axis that fail, or samples
    sample: str  # with the largest error, of those that are judged together
    error: float  # RMS
    spread: float  # or the scale of the row
    rounding: float  # RMS error that rounding makes
    names: int = 0  # of a part of names: how many
    samples: int = 0  # if samples were judged by the own scales of their rows: how many
    batched: bool = False  # likewise: whether any has several rows
    quiet: bool = False  # whether only samples were judged beside which others are loud

    @property
    def severity(self) -> float:
        """The error relative to the spread; infinite in a part that does not move."""
        return self.error / self.spread if self.spread else float("inf")

    def describe(self, allowed: Tolerance) -> str:
        """Return text that follows the output's name."""
        return f"differs {self._describe_place()}: {self._describe_error(allowed)}"

    def _describe_place(self) -> str:
        if self.samples:
            rows = "in most rows of" if self.batched else "as a whole in"
            return f"{rows} {self.failing} of {self.samples} samples, each by its own scale"
        if self.axis == WHOLE:
            return "as a whole, over all samples"
        more = f" and {self.failing - 1} more" if self.failing > 1 else ""
        samples = "the samples beside which others are loud" if self.quiet else "all samples"
        return f"in index {self.index} of axis {self.axis}{more}, over {samples}"

    def _describe_error(self, allowed: Tolerance) -> str:
        part = allowed.part or 0.0
        if self.names:
            wrong, moving, lost = (
                round(min(size, 1.0) ** 2 * self.names)
                for size in (self.error, self.spread, self.rounding)
            )
            return (
                f"{wrong} of {self.names} values are others, of which the samples move {moving};"
                f" allowed: {100 * part**2:.3g}% of those by {allowed.label};"
                f" rounding changes {lost if math.isfinite(self.rounding) else 'some'}"
            )
        moved = "its values vary by" if self.samples else "what the samples move it by"
        share = (
            f"{100 * self.error / self.spread:.3g}% of {moved}"
            if self.spread
            else "although the samples do not move it"
        )
        return (
            f"RMS error {self.error:.3g}, {share}; allowed: {100 * part:.3g}% by {allowed.label};"
            f" rounding costs {self.rounding:.3g} there"
        )
