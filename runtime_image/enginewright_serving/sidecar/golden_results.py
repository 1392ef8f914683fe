"""Whether the outputs of one server process agree, from its golden inferences. Pure."""

from collections.abc import Set as AbstractSet
from typing import Final

from enginewright_contract.manifest import Manifest
from enginewright_contract.reasons import Reason
from enginewright_contract.unjudged import Unjudged, list_accepted
from enginewright_runtime.core.logs import format_count

from enginewright_serving.sidecar.checks import CheckResult
from enginewright_serving.sidecar.golden import ProbeResult

_FAILURES: Final = 2  # consecutive golden inferences that fail until the check fails
_ALL_VARY: Final = (
    "no output of the golden samples can be compared: every output differs between runs of the source model, and the"
    " distribution of its values is unknown"
)


class GoldenResults:
    """The last result of each golden sample."""

    def __init__(self, manifest: Manifest, samples: int) -> None:
        self._manifest = manifest
        self._samples = samples
        self.unjudged = Unjudged.of_artefact(manifest)
        self._accepted = list_accepted(manifest.recipe)
        self._last: dict[str, ProbeResult] = {}  # by sample
        self._paired: dict[str, ProbeResult] = {}  # likewise, in a batch with other inputs
        self._failing = 0  # in a row that the server could not run

    def add(self, result: ProbeResult) -> CheckResult | None:
        """Record a result; return that of the check, or None if this one proves nothing."""
        if not result.paired:
            self._failing = self._failing + 1 if result.fails else 0
        if result.not_run is None:
            (self._paired if result.paired else self._last)[result.sample] = result
            return self._outcome()
        if result.reason is not None and self._failing >= _FAILURES:
            return CheckResult.as_failed(result.reason, result.not_run)
        return None

    @property
    def proven(self) -> AbstractSet[str]:
        """Samples whose last outputs agreed."""
        return {name for name, result in self._last.items() if result.wrong is None}

    @property
    def max_abs_error(self) -> float | None:
        """Largest absolute error in the samples' last outputs, to two digits."""
        errors = [result.error for result in self._last.values() if result.error is not None]
        return float(f"{max(errors):.1e}") if errors else None

    def _outcome(self) -> CheckResult:
        results = (*self._last.values(), *self._paired.values())
        wrong = next((result.wrong for result in results if result.wrong), None)
        if wrong is not None:
            return CheckResult.as_failed(Reason.PARITY_FAILED, wrong)
        if len(self._last) < self._samples:
            return CheckResult.as_unknown("not all golden samples have run yet")
        empty = frozenset.intersection(*(result.empty for result in self._last.values()))
        blank = _describe_empty(empty)
        nothing = not any(result.compared for result in self._last.values())
        if nothing and not self._accepts_all(empty):
            return CheckResult.as_unknown(blank or _ALL_VARY, Reason.NOTHING_COMPARED)
        right = f"{format_count(self._samples, 'golden sample')} passed"
        spread = [output.name for output in self._manifest.varying or () if output.spreads]
        if spread:
            right += f"; compared in distribution: {', '.join(spread)}"
        accepted = empty & self._accepted
        # in a lower precision, or alone, an output that nothing judges leaves parity unknown, though it is accepted
        unproven = bool(accepted) and (nothing or self._manifest.precision is not None)
        if accepted:
            blank += f"; spec.parity.outputs accepts that of {_quote(accepted)}"
        unjudged = self.unjudged.cause
        if unjudged or unproven:  # it stays ok: nothing is known to be wrong
            said = "; ".join(filter(None, (right, unjudged, blank)))
            return CheckResult("ok", Reason.PARITY_UNKNOWN, said)
        if blank:  # it stays ok: clients get the other outputs, which agree
            return CheckResult("ok", Reason.NOTHING_COMPARED, f"{right}; {blank}")
        return CheckResult.as_ok(right)

    def _accepts_all(self, empty: frozenset[str]) -> bool:
        """Return whether all that was not compared are these outputs, and the spec accepts them."""
        varies = any(not output.spreads for output in self._manifest.varying or ())
        return bool(empty) and empty <= self._accepted and not varies


def _describe_empty(names: AbstractSet[str]) -> str:
    """Return that these outputs had no finite element in any sample, "" without any."""
    return (
        f"no element of output {_quote(names)} was compared: no golden sample has a finite one"
        if names
        else ""
    )


def _quote(names: AbstractSet[str]) -> str:
    return ", ".join(map(repr, sorted(names)))
