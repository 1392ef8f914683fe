"""How far an output may drift: one table by precision, in whose place the user may put numbers.

Where the figures come from. One rounding costs half a unit in the last place: 2^-24 of a value in
FP32, 2^-11 in FP16, 2^-8 in BF16 (IEEE 754-2019, table 3.5; Intel's bfloat16 white paper), 2^-4 in
FP8 E4M3 (OCP 8-bit floating point specification 1.0, section 4); with INT8, 1/254 of a tensor's
range. Through a network of n such steps the error grows with about the square root of n, and n is
in the hundreds. So what one operator is allowed by PyTorch's `torch.testing.assert_close` (1e-3 for
float16, 1.6e-2 for bfloat16) is multiplied here by about 10 for elements. Of INT8 and FP8 single
elements say little, and the direction of the whole output decides: with noise of relative size e,
cosine = 1 / sqrt(1 + e^2). INT8 costs some 2% a layer, FP8 some 4%, so 50 layers cost about 13% and
26%: a cosine of 0.99 and 0.97. Quantisations that had broken real models had 0.76 to 0.94, sound
ones 0.97 to 0.9999.

FP32 is looser than rounding asks for, since backends differ in algorithms and in the models that
quantise their own activations as they run. But a class may not win that is wanted lower than the best
by more than that, in no row, nor may the direction change by more than such errors change it: noise
of 2% of the output is a cosine of 0.9998.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from enginewright.contract.task import OutputTolerance, Recipe


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What one output is allowed, each sample for itself.

    An element agrees within `rtol * |wanted| + max(atol, scale * largest)`, `largest` being the
    largest finite magnitude that is wanted of the output.
    """

    rtol: float
    atol: float
    scale: float
    outliers: float  # share of the elements that may be outside that,
    outlier_size: float  # by at most this share of `largest`
    unequal: float  # share of integers, booleans and strings that may differ
    cosine: float | None = None  # least, of the output as one vector; None: not asked for
    top1: float | None = None  # least share of rows with the same best class; None: likewise
    zero: float = 0.0  # what an output may show that should be zero
    directed: float = 1e-6  # an output whose largest magnitude is not above this has no direction
    across_samples: bool = False  # `largest` is of all samples: steps are of a range
    label: str = "FP32"  # for messages: a precision, or who has set it
    all_numbers: bool = False  # `rtol` and `atol` hold for integers too, in place of `unequal`


# Precision of the artefact, from tightest to loosest. A text detector shown noise answers 1e-8: beside
# outputs near 1, `_ROUNDING` is nothing at all.
_ROUNDING: Final = 1e-6
# Below this, errors of `_ROUNDING` alone, which are allowed, turn an output by more than FP32 may be.
_DIRECTED: Final = 1e-4
DEFAULTS: Final[dict[str, Tolerance]] = {
    "FP32": Tolerance(
        rtol=0.01,
        atol=_ROUNDING,
        scale=0.01,
        outliers=0.01,
        outlier_size=0.1,
        unequal=0.01,
        cosine=0.9998,
        top1=1.0,
        zero=_ROUNDING,
        directed=_DIRECTED,
    ),
    "FP16": Tolerance(
        rtol=0.02,
        atol=_ROUNDING,
        scale=0.02,
        outliers=0.01,
        outlier_size=0.25,
        unequal=0.01,
        cosine=0.999,
        top1=0.99,
        zero=1e-3,
        label="FP16",
    ),
    "BF16": Tolerance(
        rtol=0.05,
        atol=_ROUNDING,
        scale=0.05,
        outliers=0.02,
        outlier_size=0.5,
        unequal=0.05,
        cosine=0.99,
        top1=0.97,
        zero=1e-2,
        label="BF16",
    ),
    "INT8": Tolerance(
        rtol=0.1,
        atol=_ROUNDING,
        scale=0.1,
        outliers=0.05,
        outlier_size=1.0,
        unequal=0.05,
        cosine=0.98,
        top1=0.95,
        zero=2e-2,
        across_samples=True,
        label="INT8",
    ),
    "FP8": Tolerance(
        rtol=0.1,
        atol=_ROUNDING,
        scale=0.1,
        outliers=0.1,
        outlier_size=1.0,
        unequal=0.05,
        cosine=0.97,
        top1=0.95,
        zero=2e-2,
        across_samples=True,
        label="FP8",
    ),
}
# Of a model that was changed and runs in the same precision on the same provider, and of tensors
# inside it: sums in another order cost about 1e-6 of the largest value, and a change of meaning more.
ROUNDING: Final = Tolerance(
    rtol=1e-3,
    atol=_ROUNDING,
    scale=1e-3,
    outliers=1e-3,
    outlier_size=0.01,
    unequal=0.01,
    cosine=0.99999,
    top1=1.0,
    zero=_ROUNDING,
    directed=_DIRECTED,
    label="FP32 rounding",
)
_ORDER: Final = tuple(DEFAULTS)
_OF_TYPE: Final = {"float16": "FP16", "bfloat16": "BF16"}  # outputs that are rounded to it anyway


@dataclass(frozen=True, slots=True)
class Tolerances:
    """What every output of one model is allowed."""

    precision: str = "FP32"  # of the artefact, a key of `DEFAULTS`
    rtol: float | None = None  # the user's; None, and `atol` None: by `precision`
    atol: float | None = None
    outputs: Mapping[str, OutputTolerance] = field(default_factory=dict)  # the user's, by name
    rounding: bool = False  # whether FP32 outputs may differ by no more than that

    @classmethod
    def of(cls, recipe: Recipe, precision: str | None = None, *, rounding: bool = False) -> Self:
        """Return what a recipe allows an artefact of `precision`; None: the source's own."""
        return cls(
            rounding=rounding,
            precision=precision or "FP32",
            rtol=recipe.rtol,
            atol=recipe.atol,
            outputs={each.name: each for each in recipe.outputs},
        )

    @property
    def across_samples(self) -> bool:
        """Whether errors may be measured by what all samples reach."""
        return DEFAULTS[self.precision].across_samples

    def of_output(self, name: str, dtype: str) -> Tolerance:
        """Return what the output `name` with elements of `dtype` (NumPy's word) is allowed."""
        own = self.outputs.get(name)
        if own is not None and (own.rtol is not None or own.atol is not None):
            return _declared(own.rtol, own.atol, f"spec.parity.outputs, {name}", all_numbers=True)
        if self.rtol is not None or self.atol is not None:
            return _declared(self.rtol, self.atol, "spec.parity", all_numbers=False)
        by_type = "FP8" if dtype.startswith("float8") else _OF_TYPE.get(dtype, "FP32")
        loosest = max(self.precision, by_type, key=_ORDER.index)
        return ROUNDING if self.rounding and loosest == "FP32" else DEFAULTS[loosest]


def _declared(
    rtol: float | None, atol: float | None, label: str, *, all_numbers: bool
) -> Tolerance:
    """Return a tolerance that every element has to keep: whoever states numbers means them."""
    return Tolerance(
        rtol=rtol or 0.0,
        atol=atol or 0.0,
        scale=0.0,
        outliers=0.0,
        outlier_size=0.0,
        unequal=DEFAULTS["FP32"].unequal,
        label=label,
        all_numbers=all_numbers,
    )
