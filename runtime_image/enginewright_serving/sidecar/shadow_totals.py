"""How a canary's answers to clients' requests have differed so far, in a bounded number of figures. Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from enginewright_contract.measurements import (
    OUTPUTS,
    DropReason,
    OutputChange,
    ShadowComparison,
    ShadowOutput,
)


@dataclass(slots=True)
class _Totals:
    answers: int = 0
    max_abs: float | None = None
    worst: float | None = None
    relative: float = 0.0  # mean, since a sum may overflow
    relatives: int = 0
    top1: float = 0.0  # mean
    top1s: int = 0
    incomparable: int = 0
    resized: int = 0

    def add(self, change: OutputChange) -> None:
        self.answers += 1
        if change.max_abs is not None:
            self.max_abs = max(self.max_abs or 0.0, change.max_abs)
        if change.resized:
            self.resized += 1
        elif change.relative is None:
            self.incomparable += 1
        else:
            self.worst = max(self.worst or 0.0, change.relative)
            self.relatives += 1
            self.relative += (change.relative - self.relative) / self.relatives
        if change.top1 is not None:
            self.top1s += 1
            self.top1 += (change.top1 - self.top1) / self.top1s

    def document(self, name: str) -> ShadowOutput:
        return ShadowOutput(
            name=name,
            answers=self.answers,
            max_abs=self.max_abs,
            worst=self.worst,
            mean=self.relative if self.relatives else None,
            top1=min(self.top1, 1.0) if self.top1s else None,
            incomparable=self.incomparable,
            resized=self.resized,
        )


class ShadowTotals:
    """The comparison with one canary."""

    def __init__(self, revision: str) -> None:
        self.revision = revision
        self.rejected = 0
        self.failed = 0
        self.dropped: Counter[DropReason] = Counter()
        self._compared = 0
        self._outputs: dict[str, _Totals] = {}

    def add(self, changes: Iterable[OutputChange]) -> None:
        """Add how the outputs of one answer differ."""
        self._compared += 1
        for change in changes:
            self._outputs.setdefault(change.name, _Totals()).add(change)

    @property
    def document(self) -> ShadowComparison:
        """Return everything so far."""
        outputs = [output.document(name) for name, output in self._outputs.items()]
        outputs.sort(key=lambda output: (output.incomparable, output.worst or 0.0), reverse=True)
        return ShadowComparison(
            revision=self.revision,
            compared=self._compared,
            rejected=self.rejected,
            failed=self.failed,
            dropped=self.dropped.total(),
            dropped_by={reason: count for reason, count in self.dropped.items() if count},
            outputs=tuple(sorted(outputs[:OUTPUTS], key=lambda output: output.name)),
        )
