"""Judges type, shape and, where known, distribution of outputs that differ between runs. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from enginewright_contract.manifest import VaryingOutput

from enginewright_runtime.proof.parity.measuring import Mismatch, form_fault
from enginewright_runtime.proof.parity.spread import DistributionTest, Repetition
from enginewright_runtime.proof.parity.tolerances import Tolerance
from enginewright_runtime.proof.parity.values import Array


@dataclass(frozen=True)
class _Form:
    golden: Array
    shape: tuple[int | None, ...]
    dtype: str | None


class Trial:
    """Judges runs of a model on one sample, until all its varying outputs are judged."""

    def __init__(
        self, forms: Mapping[str, _Form], distributions: Mapping[str, DistributionTest]
    ) -> None:
        self._forms = forms
        self._distributions = distributions
        self._waiting = list(forms)
        self.faults: dict[str, Mismatch] = {}  # by output

    @property
    def runs(self) -> dict[str, int]:
        """Number of runs compared by distribution, by output; without those judged only by form."""
        return {name: test.runs for name, test in self._distributions.items()}

    def take(self, outputs: Mapping[str, Array]) -> bool:
        """Judge one run; return whether another one is needed."""
        self._waiting = [name for name in self._waiting if self._needs_more(name, outputs[name])]
        return bool(self._waiting)

    def _needs_more(self, name: str, array: Array) -> bool:
        form = self._forms[name]
        if fault := form_fault(form.golden, array, form.dtype, form.shape):
            self.faults[name] = fault
            return False
        test = self._distributions.get(name)
        if test is None or test.take(array):
            return test is not None
        if test.wrong is not None:
            self.faults[name] = Mismatch("distribution", test.wrong)
        return False


class VaryingOutputs:
    """The varying outputs of one model and their distributions."""

    def __init__(
        self,
        varying: Iterable[VaryingOutput],
        dtypes: Mapping[str, str],
        allowed: Callable[[str, Array], Tolerance],
        *,
        repeated: bool = False,
    ) -> None:
        """Take the outputs that differ between runs of the source, and their types as the model declares them.

        `allowed` returns the tolerance of an output, given its golden array. `repeated` tells
        whether each sample is judged repeatedly, so that constant values are detected across trials
        and a trial needs no second run for that.
        """
        self._spreads = {
            output.name: {spread.sample: spread for spread in output.spreads} for output in varying
        }
        self._dtypes = dtypes
        self._allowed = allowed
        self._repetitions: dict[tuple[str, str], Repetition] | None = {} if repeated else None

    def __contains__(self, output: object) -> bool:
        return output in self._spreads

    def trial(self, sample: str, golden: Mapping[str, Array], *, form_only: bool = False) -> Trial:
        """Return a trial of a sample; with `form_only`, distributions are ignored."""
        forms = {}
        distributions = {}
        for name, array in golden.items():
            if name not in self._spreads:
                continue
            dtype = self._dtypes.get(name)
            spread = self._spreads[name].get(sample)
            shape = spread.shape if spread else (None,) * array.ndim
            forms[name] = _Form(array, shape, dtype)
            if spread is not None and spread.ranges and not form_only:
                distributions[name] = DistributionTest(
                    spread,
                    array,
                    self._allowed(name, array),
                    dtype,
                    self._repetition(sample, name),
                )
        return Trial(forms, distributions)

    def _repetition(self, sample: str, name: str) -> Repetition | None:
        if self._repetitions is None:
            return None
        return self._repetitions.setdefault((sample, name), Repetition())
