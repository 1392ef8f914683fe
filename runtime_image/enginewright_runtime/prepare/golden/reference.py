"""Golden inputs that the model accepts, and golden outputs: the source's, by the first way that works.

Outputs are those of ONNX Runtime's CPU provider, or, if it cannot run the source, of the samples,
of ONNX's reference implementation, or, with a warning, of the converted model itself.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final, Literal

from enginewright_contract.manifest import MODEL_NAME, OutputParity, VaryingOutput
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Finding
from enginewright_contract.task import Recipe

from enginewright_runtime.core import shared_results
from enginewright_runtime.core.digests import file_sha256
from enginewright_runtime.core.failure import SessionError, StageFailure
from enginewright_runtime.core.handoff import (
    CALIBRATION_FOLDER,
    GOLDEN_FOLDER,
    MODEL_FOLDER,
    SAMPLES_FILE,
    Converted,
    Validated,
)
from enginewright_runtime.core.isolation import Call, Limits
from enginewright_runtime.core.logs import format_bytes
from enginewright_runtime.core.ort_messages import plain
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.raw.storage import loadable
from enginewright_runtime.graph.scoped import tensorrt_operators
from enginewright_runtime.graph.shapes import points
from enginewright_runtime.prepare.golden.blank import Blank, count_blank
from enginewright_runtime.prepare.golden.calibration_samples import read_calibration
from enginewright_runtime.prepare.golden.redrawing import draw_others
from enginewright_runtime.prepare.quantize.existing import existing
from enginewright_runtime.prepare.quantize.saturation import find_reference
from enginewright_runtime.prepare.quantize.widening import emulate
from enginewright_runtime.proof.definition import try_definition
from enginewright_runtime.proof.golden_inputs import (
    IntegerRange,
    Sample,
    find_affordable,
    find_ranges,
    generate,
    read_samples,
    sum_bytes,
)
from enginewright_runtime.proof.golden_run import (
    EXPECTED,
    EXPECTED_OUTPUTS,
    INPUTS,
    OUTPUTS,
    run_reference,
)
from enginewright_runtime.proof.natural.choosing import NaturalInputs
from enginewright_runtime.proof.natural.drawing import (
    NO_SAMPLES,
    NaturalSamples,
    add_noise,
    draw_natural,
)
from enginewright_runtime.proof.natural.vocabulary import find_vocabularies
from enginewright_runtime.proof.parity.observing import merge
from enginewright_runtime.session.arrays import map_arrays, read_arrays, write_arrays

_log: Final = logging.getLogger(__name__)
PREFIX: Final = "golden-"  # of temporary files beside the models, removed at the end
EXACT: Final = f"{PREFIX}exact.onnx"
# fields of a recipe that affect the reference run and the comparison of outputs
_KEY_FIELDS: Final = {"max_ir_version", "rtol", "atol", "outputs"}
_GIVE_FINITE: Final = "set spec.parity.samples to inputs for which all elements are finite"

# Where the golden outputs come from; nothing proves a converted model that is compared with itself.
Origin = Literal["source", "standard", "definition", "emulation", "expected", "itself"]
ORIGIN_NAMES: Final[Mapping[Origin, str]] = {
    "source": "the source",
    "standard": "the source, with TensorRT's own operators as ONNX's",
    "definition": "the source, by ONNX's reference implementation",
    "emulation": "the source, with every result of its BF16 nodes rounded from single precision",
    "expected": EXPECTED_OUTPUTS,
    "itself": "itself",
}


@dataclass
class Reference:
    """What the golden files hold, and what was found while they were generated."""

    origin: Origin = "source"
    model: Path | None = None  # that ONNX Runtime's CPU provider ran; None if it ran none
    findings: list[Finding] = field(default_factory=list)
    parity: list[OutputParity] = field(default_factory=list)  # of a model that is its own source
    level: str | None = None  # of graph optimizations at which its outputs are correct
    lowered: str | None = None  # why not the highest, where ONNX Runtime refuses the model at that
    varying: tuple[VaryingOutput, ...] = ()  # outputs that differ from run to run of the source

    def warn(
        self, cause: str, reason: Reason = Reason.PARITY_FAILED, remedy: str | None = None
    ) -> None:
        """Add a warning to the findings."""
        self.findings.append(Finding(severity="warning", reason=reason, cause=cause, remedy=remedy))


def make(recipe: Recipe, work: Path) -> Reference:
    """Write inputs.npz, outputs.npz and, where the samples have outputs, expected.npz."""
    return _GoldenFiles(recipe, work).run()


def runnable(source: Path, recipe: Recipe) -> Path:
    """Return a path at which ONNX Runtime can load the source; a copy is named with `PREFIX`."""
    return loadable(source, source.with_name(f"{PREFIX}{MODEL_NAME}"), recipe.max_ir_version)


class _GoldenFiles:
    def __init__(self, recipe: Recipe, work: Path) -> None:
        self._recipe = recipe
        self._work = work
        self._validated = Validated.read(work)
        self._folder = work / GOLDEN_FOLDER
        self._source = work / MODEL_FOLDER / MODEL_NAME
        self._converted = work / Converted.read(work).folder / MODEL_NAME
        self._precision = existing(graphs.parse(self._source)).tolerance
        self._made = Reference()

    def run(self) -> Reference:
        if self._recipe.samples_uri is not None:
            self._read_samples()
        else:
            self._generate()
        return self._made

    def _read_samples(self) -> None:
        path = self._work / SAMPLES_FILE
        samples = read_samples(path, self._validated.inputs, self._validated.outputs)
        refused = self._make(samples)
        if refused:
            name, cause = next(iter(refused.items()))
            raise StageFailure(
                Reason.PARITY_FAILED,
                f"the model refuses sample {name!r} of spec.parity.samples: {cause}",
                remedy="correct the sample",
            )

    def _generate(self) -> None:
        """Generate inputs; if the model refuses the integers, try ranges more likely to be indices."""
        free = self._has_free_integers()
        integer_ranges = tuple(IntegerRange) if free else (IntegerRange.DIGITS,)
        refused: dict[str, str] = {}
        for integer_range in integer_ranges:
            samples = generate(self._validated.inputs, self._validated.profiles, integer_range)
            natural = self._draw_natural(integer_range)
            before = len(self._made.findings)
            refused = self._make_affordable(samples, natural)
            # with the last range, the smallest shapes suffice
            if not refused or (
                integer_range == integer_ranges[-1] and samples[0].name not in refused
            ):
                self._draw_again(samples, natural, frozenset(refused))
                if refused:
                    self._refuse_or_warn(samples, refused)
                return
            del self._made.findings[before:]
        raise StageFailure(
            Reason.PARITY_FAILED,
            "no golden inputs could be generated; ONNX Runtime refuses values from"
            f" {', '.join(integer_ranges)}: {next(iter(refused.values()))}",
            remedy=(
                'set a range for the inputs in spec.shapes (range: {low: "0", high: "1"}), and sizes if'
                " the model takes no batch of 1, or provide inputs in spec.parity.samples"
            ),
        )

    def _make_affordable(self, samples: list[Sample], natural: NaturalSamples) -> dict[str, str]:
        refused = self._make(samples, natural)
        inputs, profiles = self._validated.inputs, self._validated.profiles
        affordable = find_affordable(inputs, profiles)
        for corner, shapes in points(profiles).items():
            if corner not in affordable:
                size = format_bytes(sum_bytes(inputs, shapes))
                self._made.warn(f"the {corner} shapes ({size}) are not proven")
        return refused

    def _draw_again(
        self, samples: list[Sample], natural: NaturalSamples, refused: frozenset[str]
    ) -> None:
        """Where outputs show no number, draw other values, and keep those with which most outputs show some."""
        inputs, ranges = self._validated.inputs, find_ranges(self._validated.profiles)
        best, least = samples, self._count_blank()
        latest = samples
        others = draw_others(samples, inputs, ranges, self._vocabularies)
        for other in others if least > Blank() else ():
            latest = other
            self._made = Reference()
            blank = self._count_blank() if self._remake(other, natural, refused) else None
            if blank is not None and blank < least:
                best, least = other, blank
            if least == Blank():
                return
        if best is not latest:
            self._made = Reference()
            self._make_affordable(best, natural)

    def _remake(
        self, samples: list[Sample], natural: NaturalSamples, refused: frozenset[str]
    ) -> bool:
        """Run other values; return whether no more of them are refused."""
        try:
            return self._make_affordable(samples, natural).keys() <= refused
        except StageFailure as failure:
            _log.info("the model does not run with other values: %s", failure.cause)
            return False

    def _count_blank(self) -> Blank:
        dtypes = {spec.name: spec.dtype for spec in self._validated.outputs}
        corners = frozenset(points(self._validated.profiles))
        return count_blank(map_arrays(self._folder / OUTPUTS), dtypes, corners)

    def _draw_natural(self, integers: IntegerRange) -> NaturalSamples:
        inputs, profiles = self._validated.inputs, self._validated.profiles
        quantization = self._recipe.quantization
        if quantization is not None and quantization.calibration is not None:
            folder = self._work / CALIBRATION_FOLDER
            natural = read_calibration(folder, quantization.calibration, inputs, profiles)
        else:
            natural = draw_natural(inputs, profiles, self._vocabularies, integers)
        return add_noise(natural, inputs, profiles, integers)

    @cached_property
    def _vocabularies(self) -> dict[str, int]:
        return find_vocabularies(graphs.parse(self._source))

    def _refuse_or_warn(self, samples: list[Sample], refused: dict[str, str]) -> None:
        """Refuse declared sizes that fail; warn of default batch sizes, which are only assumed."""
        corner, cause = next(iter(refused.items()))
        inputs = next(sample.inputs for sample in samples if sample.name == corner)
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in inputs.items())
        if self._recipe.shapes:
            raise StageFailure(
                Reason.SHAPE_PROFILE_INVALID,
                f"the model fails with the {corner} shapes of spec.shapes ({shapes}): {cause}",
            )
        self._made.warn(f"the model fails with {shapes}, so batches may not work: {cause}")

    def _has_free_integers(self) -> bool:
        ranged = {profile.input for profile in self._validated.profiles if profile.low is not None}
        return any(
            spec.dtype.startswith(("int", "uint")) and spec.name not in ranged
            for spec in self._validated.inputs
        )

    def _make(self, samples: list[Sample], natural: NaturalSamples = NO_SAMPLES) -> dict[str, str]:
        self._write(samples, natural)
        changed = self._converted != self._source
        try:
            refused = self._run_reference(
                runnable(self._source, self._recipe), natural, of=self._source
            )
        except SessionError as error:
            cause = plain(str(error))
        except StageFailure as failure:
            # a crash in native code that is not used for serving
            if not changed or failure.reason is not Reason.BACKEND_CRASHED:
                raise
            cause = failure.cause
        else:
            if not changed or len(refused) < len(samples):
                if tensorrt_operators.uses(graphs.parse(self._source)):
                    self._made.origin = "standard"
                return refused
            cause = next(iter(refused.values()))
            self._write(samples, natural)
        refusal = f"ONNX Runtime's CPU provider cannot run the source: {cause}"
        if self._take_expected(samples):
            self._made.origin = "expected"
            self._made.warn(f"{refusal}; golden outputs are those of spec.parity.samples")
            return {}
        if not changed:
            return self._need_definition(samples, natural, refusal)
        return self._run_converted(samples, natural, refusal)

    def _write(self, samples: list[Sample], natural: NaturalSamples) -> None:
        written = (*samples, *natural.samples)
        write_arrays(self._folder / INPUTS, {sample.name: sample.inputs for sample in written})
        expected = {sample.name: sample.expected for sample in samples if sample.expected}
        if expected:
            write_arrays(self._folder / EXPECTED, expected)

    def _run_reference(
        self, model: Path, natural: NaturalSamples, of: Path | None = None
    ) -> dict[str, str]:
        """Run a model, or a copy `of` one, on the CPU provider; return errors of refused samples."""
        _log.info("running the golden samples on backend cpu")
        exact, level = find_reference(model, self._recipe, EXACT)
        self._made.model = exact
        inputs, expected = self._folder / INPUTS, self._folder / EXPECTED
        of_nature = NaturalInputs(tuple(sample.name for sample in natural.samples), natural.images)
        outcome = shared_results.run_shared(
            Call(run_reference, "running the golden inputs on backend cpu", Limits.of_model()),
            shared_results.ResultKey(
                model if of is None else of,
                self._recipe,
                {
                    "inputs": file_sha256(inputs).sha256,
                    "expected": file_sha256(expected).sha256 if expected.exists() else None,
                    "recipe": self._recipe.model_dump(mode="json", include=_KEY_FIELDS),
                    "level": level,
                    "natural": [of_nature.names, of_nature.images],
                },
                files=(inputs, self._folder / OUTPUTS),
            ),
            exact,
            self._folder,
            self._recipe,
            self._precision,
            of_nature,
            level,
        )
        if failed := outcome.failed:
            message = f"{failed.description} against {EXPECTED_OUTPUTS}"
            raise StageFailure(Reason.PARITY_FAILED, message)
        if self._converted in {self._source, model}:
            self._made.parity = list(outcome.parity)
            self._made.level, self._made.lowered = outcome.level, outcome.lowered
        self._made.varying = outcome.varying
        for text in outcome.not_finite:
            self._made.warn(text, remedy=_GIVE_FINITE)
        for text in outcome.warnings:
            self._made.warn(text)
        return dict(outcome.refused)

    def _take_expected(self, samples: list[Sample]) -> bool:
        # they replace the golden ones, if every sample has all of them
        outputs = {spec.name for spec in self._validated.outputs}
        if not all(outputs <= set(sample.expected) for sample in samples):
            return False
        (self._folder / EXPECTED).rename(self._folder / OUTPUTS)
        return True

    def _need_definition(
        self, samples: list[Sample], natural: NaturalSamples, refusal: str
    ) -> dict[str, str]:
        cause = self._run_definition(samples[0], self._folder)
        if cause is None:
            self._made.origin = "definition"
            self._made.warn(
                f"{refusal}; golden outputs are those of ONNX's reference implementation"
            )
            return {}
        refused = self._emulate(samples, natural)
        if refused is None or len(refused) == len(samples):
            raise StageFailure(
                Reason.UNSUPPORTED_OPERATOR,
                f"{refusal}; so there is nothing to compare backend {self._recipe.backend} with",
                remedy="provide inputs and the expected values of every output in spec.parity.samples",
            )
        self._made.origin = "emulation"
        self._made.warn(
            f"{refusal}, nor can ONNX's reference implementation ({cause}): golden outputs are those of"
            " the same graph in single precision, with each result rounded to BF16"
        )
        return refused

    def _emulate(self, samples: list[Sample], natural: NaturalSamples) -> dict[str, str] | None:
        """Run an emulated BF16 source on the CPU provider; None if it is not BF16, or does not run."""
        self._write(samples, natural)
        try:
            model = emulate(runnable(self._source, self._recipe), f"{PREFIX}emulated.onnx")
            return None if model is None else self._run_reference(model, natural)
        except SessionError as error:
            _log.info("the emulation of BF16 does not load: %s", plain(str(error)))
            return None

    def _run_converted(
        self, samples: list[Sample], natural: NaturalSamples, refusal: str
    ) -> dict[str, str]:
        refused = self._run_reference(self._converted, natural)
        kept = [sample for sample in samples if sample.name not in refused]
        if not kept:
            return refused
        scratch = self._work / f"{PREFIX}definition"
        scratch.mkdir(exist_ok=True)
        of_converted = self._made.varying
        cause = self._run_definition(kept[0], scratch)
        if cause is None:
            self._made.origin = "definition"
            self._made.varying = merge(self._made.varying, of_converted)
            outputs = read_arrays(self._folder / OUTPUTS) | read_arrays(scratch / OUTPUTS)
            write_arrays(self._folder / OUTPUTS, outputs)
            return refused
        self._made.origin = "itself"
        self._made.warn(
            f"{refusal}, nor can ONNX's reference implementation ({cause}): golden outputs are those of"
            " the converted model, so nothing proves that it is equivalent to the source; provide"
            " inputs and the expected values of every output in spec.parity.samples"
        )
        return refused

    def _run_definition(self, sample: Sample, folder: Path) -> str | None:
        outcome = try_definition(self._source, sample, folder)
        if not outcome.refused:
            self._made.varying = outcome.varying
        return outcome.refused.get(sample.name)
