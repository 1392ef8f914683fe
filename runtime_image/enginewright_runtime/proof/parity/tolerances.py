"""Tolerances of outputs: a table by precision, which the user can override.

Derivation: one rounding has an error of half a unit in the last place: 2^-24 of a value in FP32,
2^-11 in FP16, 2^-8 in BF16 (IEEE 754-2019, table 3.5; Intel's bfloat16 white paper), 2^-4 in FP8
E4M3 (OCP 8-bit floating point specification 1.0, section 4); with INT8, 1/254 of a tensor's range.
Over n such steps the error grows with about the square root of n, and n is in the hundreds. So the
tolerances for elements are about 10 times those of PyTorch's `torch.testing.assert_close` for one
operator (1e-3 for float16, 1.6e-2 for bfloat16). With INT8 and FP8 single elements are not
meaningful, and the direction of the output as a vector decides: with noise of relative size e,
cosine = 1 / sqrt(1 + e^2). INT8 costs about 2% per layer, FP8 about 4%, so 50 layers cost about 13%
and 26%: a cosine of 0.99 and 0.97. Quantization that broke real models gave 0.76 to 0.94, valid
quantization 0.97 to 0.9999.

FP32 is looser than rounding requires, since backends use different algorithms, and some models
quantize their activations at run time. But in no row may the top class be one whose expected score
is below the highest by more than the tolerance, and the direction may change only as much as such
errors change it: noise of 2% of the output is a cosine of 0.9998.

`part` bounds the error of each part of an output, relative to what the samples move it by: FP16 costs
0.2% to 1% of that in real detectors, recognizers and encoders, INT8 3% to 40%, and a fault all of it
(`make bench-truth`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from enginewright_contract.task import OutputTolerance, Recipe


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The tolerance of one output, for each sample separately.

    An element agrees within `rtol * |expected| + max(atol, scale * largest)`, `largest` being the
    largest finite magnitude of the expected output.
    """

    rtol: float
    atol: float = (
        1e-6  # negligible for outputs near 1; for outputs near zero, as of a detector on noise
    )
    scale: float = 0.0
    outliers: float = 0.0  # share of the elements that may exceed that
    outlier_size: float = 0.0  # by at most this share of `largest`
    unequal: float = 0.01  # share of integers, booleans and strings that may differ
    cosine: float | None = None  # minimum for the output as one vector
    top1: float | None = None  # minimum share of rows with the same top class
    tie: float = 0.0  # difference of two scores, at most `scale` of the largest, that is none
    zero_atol: float = 0.0  # absolute tolerance of an output that is expected to be zero
    cosine_floor: float = 1e-6  # the cosine is checked if the largest magnitude is above this
    part: float | None = None  # largest RMS error of a part relative to its spread, see `parts`
    negligible: float = (
        0.0  # RMS error of a part that is no fault, of the RMS of the output, at most `atol`
    )
    rounds: bool = True  # whether what rounding costs excuses an error of a part
    across_samples: bool = False  # `largest` is over all samples, as quantization ranges are
    label: str = "FP32"  # for messages: a precision, or the field that sets it
    all_numbers: bool = False  # `rtol` and `atol` apply to integers too, instead of `unequal`
    fills: bool = True  # whether what a mask leaves counts as no value, see `fills`


# Below this, errors of the default `atol`, which are allowed, lower the cosine below FP32's minimum.
_COSINE_FLOOR: Final = 1e-4
_NEGLIGIBLE: Final = (
    1e-4  # below FP32, as a probability of one in a million beside a thousand others
)
# By precision of the artefact, from tightest to loosest.
DEFAULTS: Final[dict[str, Tolerance]] = {
    "FP32": Tolerance(
        rtol=0.01,
        scale=0.01,
        outliers=0.01,
        outlier_size=0.1,
        cosine=0.9998,
        top1=1.0,
        zero_atol=1e-6,
        cosine_floor=_COSINE_FLOOR,
        part=0.15,
    ),
    "FP16": Tolerance(
        rtol=0.02,
        scale=0.02,
        outliers=0.01,
        outlier_size=0.25,
        cosine=0.999,
        top1=0.99,
        zero_atol=1e-3,
        label="FP16",
        part=0.15,
        negligible=_NEGLIGIBLE,
    ),
    "BF16": Tolerance(
        rtol=0.05,
        scale=0.05,
        outliers=0.02,
        outlier_size=0.5,
        unequal=0.05,
        cosine=0.99,
        top1=0.97,
        zero_atol=1e-2,
        label="BF16",
        part=0.15,
        negligible=_NEGLIGIBLE,
    ),
    "INT8": Tolerance(
        rtol=0.1,
        scale=0.1,
        outliers=0.05,
        outlier_size=1.0,
        unequal=0.05,
        cosine=0.98,
        top1=0.95,
        zero_atol=2e-2,
        across_samples=True,
        label="INT8",
        part=0.5,
        negligible=_NEGLIGIBLE,
    ),
    "FP8": Tolerance(
        rtol=0.1,
        scale=0.1,
        outliers=0.1,
        outlier_size=1.0,
        unequal=0.05,
        cosine=0.97,
        top1=0.95,
        zero_atol=2e-2,
        across_samples=True,
        label="FP8",
        part=0.5,
        negligible=_NEGLIGIBLE,
    ),
}
# For a converted model in the same precision on the same provider, and for its inner tensors: another
# order of summation costs about 1e-6 of the largest value, a change of semantics more.
ROUNDING: Final = Tolerance(
    rtol=1e-3,
    scale=1e-3,
    outliers=1e-3,
    outlier_size=0.01,
    cosine=0.99999,
    top1=1.0,
    zero_atol=1e-6,
    cosine_floor=_COSINE_FLOOR,
    part=0.05,
    rounds=False,
    label="FP32 rounding",
)
_ORDER: Final = tuple(DEFAULTS)
_OF_TYPE: Final = {"float16": "FP16", "bfloat16": "BF16"}  # for outputs of a lower precision


@dataclass(frozen=True, slots=True)
class Tolerances:
    """The tolerances of all outputs of one model."""

    precision: str = "FP32"  # of the artefact, a key of `DEFAULTS`
    rtol: float | None = None  # the user's; without it and `atol`, `precision` decides
    atol: float | None = None
    outputs: Mapping[str, OutputTolerance] = field(default_factory=dict)  # the user's, by name
    rounding: bool = False  # whether FP32 outputs may differ only by `ROUNDING`

    @classmethod
    def of(cls, recipe: Recipe, precision: str | None = None) -> Self:
        """Return a recipe's tolerances for an artefact of `precision`, or in that of the source."""
        return cls(
            precision=precision or "FP32",
            rtol=recipe.rtol,
            atol=recipe.atol,
            outputs={output.name: output for output in recipe.outputs},
        )

    @property
    def across_samples(self) -> bool:
        """Whether errors are relative to the largest magnitude over all samples."""
        return DEFAULTS[self.precision].across_samples

    def of_output(self, name: str, dtype: str) -> Tolerance:
        """Return the tolerance of output `name` with elements of `dtype` (NumPy's name)."""
        own = self.outputs.get(name)
        if own is not None and (own.rtol is not None or own.atol is not None):
            return _make_declared(
                own.rtol, own.atol, f"spec.parity.outputs, {name}", all_numbers=True
            )
        if self.rtol is not None or self.atol is not None:
            return _make_declared(self.rtol, self.atol, "spec.parity", all_numbers=False)
        by_type = "FP8" if dtype.startswith("float8") else _OF_TYPE.get(dtype, "FP32")
        loosest = max(self.precision, by_type, key=_ORDER.index)
        return ROUNDING if self.rounding and loosest == "FP32" else DEFAULTS[loosest]


def _make_declared(
    rtol: float | None, atol: float | None, label: str, *, all_numbers: bool
) -> Tolerance:
    """Return a tolerance that every element must keep, since the user set it explicitly."""
    return Tolerance(
        rtol=rtol or 0.0,
        atol=atol or 0.0,
        label=label,
        all_numbers=all_numbers,
        fills=False,
    )
