"""Lowers a model's precision in a child process, and excludes costly nodes until the proof holds."""

import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from enginewright_contract.base import Message
from enginewright_contract.manifest import MODEL_NAME, OutputParity, TensorSpec, VaryingOutput
from enginewright_contract.reasons import Reason
from enginewright_contract.task import Recipe
from enginewright_contract.unjudged import Unjudged
from onnx import helper
from pydantic import Field

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.logs import format_count
from enginewright_runtime.core.time_limit import TimeLimit
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.raw.checker import checker_error
from enginewright_runtime.graph.raw.storage import save
from enginewright_runtime.graph.scoped.passes import PassResult, Situation
from enginewright_runtime.graph.scoped.shape_nodes import shape_nodes
from enginewright_runtime.prepare.convert.translating import TranslationError
from enginewright_runtime.prepare.quantize import calibration, progress, static
from enginewright_runtime.prepare.quantize.calibration import CalibrationData, Feeds
from enginewright_runtime.prepare.quantize.dynamic import DynamicQuantization
from enginewright_runtime.prepare.quantize.forms import Form, dynamic_form, form_of
from enginewright_runtime.prepare.quantize.halves import Halves
from enginewright_runtime.prepare.quantize.mixed import MixedQuantization
from enginewright_runtime.prepare.quantize.observing import limits, single_values
from enginewright_runtime.prepare.quantize.prove import MAX_CALIBRATION_SAMPLES, ParityProver, Proof
from enginewright_runtime.prepare.quantize.ranges import calibrate
from enginewright_runtime.prepare.quantize.searching import (
    FIRST_GROUPS,
    Budget,
    Exclusions,
    Group,
    TrialProof,
    search,
)
from enginewright_runtime.prepare.quantize.static import StaticQuantization
from enginewright_runtime.prepare.quantize.subject import PrecisionPass, SourceModel
from enginewright_runtime.prepare.quantize.widening import write_widened
from enginewright_runtime.proof.golden_run import INPUTS
from enginewright_runtime.proof.parity.parts import write_parts
from enginewright_runtime.proof.parity.tolerances import Tolerances
from enginewright_runtime.proof.rounding.formulas import INT8_LARGEST
from enginewright_runtime.proof.rounding.half_rules import HALVES
from enginewright_runtime.proof.rounding.measuring import write_emulated
from enginewright_runtime.session.arrays import read_arrays
from enginewright_runtime.session.operator_signatures import element_types
from enginewright_runtime.tensorrt.tensors import types

_log: Final = logging.getLogger(__name__)
PREFIX: Final = "quantize-"  # of temporary files and folders
TRIALS: Final = 64  # models built and proven to find the nodes to exclude
SECONDS: Final = 600.0  # of `TimeLimit`, for finding them
_PASSES: Final[tuple[type[PrecisionPass], ...]] = (Halves, StaticQuantization, DynamicQuantization)
_BASE: Final = f"{PREFIX}base.onnx"  # beside the source: converted to the precision's opset
_EMULATED: Final = f"{PREFIX}emulated.onnx"  # likewise: with the rounding of the precision
_WIDENED: Final = "widened.onnx"  # beside the candidate
_MAX_COSTS: Final = 10  # groups of nodes in the report
_LIMIT_SAMPLES: Final = 64  # of calibration data, from which the limits of values are taken
_DEFAULT_EXCLUDED_SHARE: Final = 0.25  # of the nodes
_BF16_OPSETS: Final = (22, 13)  # convolutions support it since 22, matrix products since 13
_TYPED_SCALES: Final = 19  # since which scales may be in half precision


class QuantizationRequest(Message):
    """The model to lower, and how."""

    precision: str  # FP16 | BF16 | FP8 | INT8
    source: Path  # the model in its own precision; its folder is writable
    golden: Path  # folder of the golden samples
    calibration: Path | None  # folder of the data, if there are any
    inputs: tuple[TensorSpec, ...]
    recipe: Recipe
    out: Path  # folder for the model; must not exist
    parts: Path  # file for what is expected of the parts of the golden outputs in this precision
    progress: Path  # file
    varying: tuple[VaryingOutput, ...] = ()  # outputs that differ from run to run of the source


class GroupCost(Message):
    """The cost of a few neighbouring nodes when only they are lowered."""

    nodes: tuple[str, ...]  # labels
    error: float  # 1 - cosine of the worst output


class QuantizedModel(Message):
    """The result of a request."""

    agrees: bool  # whether parity holds
    # the first output that disagrees; of the first proof if it agrees
    disagreement: str | None = None
    outputs: tuple[OutputParity, ...] = ()
    opset: int = 0
    ir_version: int = 0
    nodes: int = 0
    shape_nodes: tuple[str, ...] = ()  # labels of shape arithmetic
    source_opset: int = 0
    changed: tuple[str, ...] = ()  # labels of the lowered nodes
    left: dict[str, str] = Field(default_factory=dict)  # labels of unchanged nodes, to the reason
    excluded: tuple[str, ...] = ()  # of them, those that cost too much accuracy
    rest: tuple[str, ...] = ()  # labels of nodes in half precision beside the quantized ones
    # labels of the rest in single precision, to the reason
    single: dict[str, str] = Field(default_factory=dict)
    excluded_rest: tuple[str, ...] = ()  # of them, those that cost too much accuracy
    first_error: float = 0.0  # with no node excluded
    error: float = 0.0  # of the final model
    costs: tuple[GroupCost, ...] = ()  # costliest first, if parity failed at first
    trials: int = 0
    samples: int = 0  # of calibration data that were used
    given: int = 0  # of calibration data that were available


def quantize(request: QuantizationRequest) -> QuantizedModel:
    """Carry out a request; the model is in `out` if parity holds; raises SessionError if a model is refused."""
    return _Quantizer(request).run()


class _Quantizer:
    def __init__(self, request: QuantizationRequest) -> None:
        self._request = request
        self._recipe = request.recipe
        self._source = request.source
        self._out = request.out
        self._golden = request.golden
        self._rest = None if request.precision in HALVES else request.recipe.rest
        rest = f" with the rest in {self._rest}" if self._rest else ""
        self._kind = f"{request.precision}{rest}"  # for messages
        self._data = self._read_calibration()
        self._report(f"reading the model for {request.precision}")
        self._subject, self._source_opset = self._load()
        self._base = self._source
        if graphs.default_opset(self._subject.model) != self._source_opset:
            self._base = self._source.with_name(_BASE)
            save(self._subject.model, self._base)
        self._count = 0

    def run(self) -> QuantizedModel:
        how: PrecisionPass = self._pass()
        done = how.write(self._out)
        if not done.nodes:
            raise StageFailure(
                Reason.QUANTIZATION_FAILED,
                f"no node of the model can be {self._request.precision}{_why(done.kept)}",
                nodes=tuple(done.kept),
                remedy="omit spec.precision, or choose another",
            )
        prover = ParityProver(
            self._base,
            self._golden,
            Tolerances.of(self._recipe, self._request.precision),
            self._some(MAX_CALIBRATION_SAMPLES),
            self._request.varying,
            self._emulate(),
        )
        write_parts(self._request.parts, prover.golden_parts)
        self._report(f"proving the {self._request.precision} model")
        proof = first = self._prove(how, prover, self._out)
        rest = exclusions = Exclusions(frozenset())
        if not proof.agrees and isinstance(how, MixedQuantization):
            rest = self._search_rest(how.halves, prover)
            if rest.excluded:
                how = replace(how, single=rest.excluded)
                done, proof = self._write_again(how, prover)
        if not proof.agrees and rest.excluded is not None:
            exclusions = self._search(how, prover, done.units)
            if exclusions.excluded is not None:
                done, proof = self._write_again(how, prover, exclusions.excluded)
        if not proof.agrees:
            proof = self._take_as_rounding(how, prover) or proof
        (self._out / _WIDENED).unlink(missing_ok=True)
        if proof.agrees:
            self._check()
        return self._result((first, proof), exclusions, rest, done)

    def _write_again(
        self, how: PrecisionPass, prover: ParityProver, excluded: frozenset[int] = frozenset()
    ) -> tuple[PassResult, Proof]:
        shutil.rmtree(self._out)
        done = how.write(self._out, excluded)
        return done, self._prove(how, prover, self._out)

    def _search_rest(self, halves: Halves, prover: ParityProver) -> Exclusions:
        """Return the nodes to exclude from half precision so that it keeps parity by itself."""
        self._report(f"proving the model in {halves.half.name} alone")
        folder = self._out.with_name(f"{PREFIX}rest")
        try:
            done = halves.write(folder)
            agrees = self._prove(halves, prover, folder).agrees
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return Exclusions(frozenset()) if agrees else self._search(halves, prover, done.units)

    def _emulate(self) -> Path | None:
        self._report(f"emulating the rounding of {self._request.precision}")
        path = self._source.with_name(_EMULATED)
        precision = self._request.precision
        largest_weight = self._form().weights.high if precision == "INT8" else INT8_LARGEST
        why = write_emulated(self._base, precision, path, largest_weight, self._rest)
        if why is not None:
            _log.warning("rounding to %s cannot be emulated: %s", self._request.precision, why)
        return path if why is None else None

    def _take_as_rounding(self, how: PrecisionPass, prover: ParityProver) -> Proof | None:
        """Return the proof of the model without exclusions if it is no worse than rounding, and the samples judge all of it."""
        proof = self._prove(how, prover, self._out, as_rounding=True)
        unjudged = Unjudged.find(proof.outputs, self._recipe).cause
        return proof if proof.agrees and not unjudged else None

    @staticmethod
    def _prove(
        how: PrecisionPass, prover: ParityProver, folder: Path, *, as_rounding: bool = False
    ) -> Proof:
        path = folder / MODEL_NAME
        if how.widened:
            write_widened(path, folder / _WIDENED)
            path = folder / _WIDENED
        return prover.prove(path, how.proof_level, as_rounding=as_rounding)

    def _result(
        self,
        proofs: tuple[Proof, Proof],
        exclusions: Exclusions,
        rest: Exclusions,
        done: PassResult,
    ) -> QuantizedModel:
        first, proof = proofs
        model = graphs.parse(self._out / MODEL_NAME)
        return QuantizedModel(
            agrees=proof.agrees,
            disagreement=proof.disagreement or first.disagreement,
            outputs=proof.outputs,
            opset=graphs.default_opset(model) or 0,
            ir_version=model.ir_version,
            nodes=sum(1 for _ in graphs.walk_nodes(model)),
            shape_nodes=shape_nodes(model),
            source_opset=self._source_opset,
            changed=done.nodes,
            left=dict(done.kept),
            excluded=self._labels(exclusions),
            rest=done.rest,
            single=dict(done.single),
            excluded_rest=self._labels(rest),
            first_error=_finite(first.error),
            error=_finite(proof.error),
            costs=tuple(map(self._cost, (exclusions.groups or rest.groups)[:_MAX_COSTS])),
            trials=exclusions.trials + rest.trials,
            samples=self._data.samples if self._data else 0,
            given=self._data.given if self._data else 0,
        )

    def _labels(self, exclusions: Exclusions) -> tuple[str, ...]:
        return tuple(map(self._subject.label, sorted(exclusions.excluded or ())))

    def _cost(self, group: Group) -> GroupCost:
        labels = tuple(map(self._subject.label, group.units))
        return GroupCost(nodes=labels, error=_finite(group.error))

    def _read_calibration(self) -> CalibrationData | None:
        declared = self._recipe.quantization.calibration if self._recipe.quantization else None
        if self._request.calibration is None or declared is None:
            return None
        return calibration.read(
            self._request.calibration,
            self._request.inputs,
            limit=declared.samples,
            preprocessing=declared.preprocessing,
        )

    def _load(self) -> tuple[SourceModel, int]:
        own = graphs.default_opset(graphs.parse(self._source)) or 1
        refused = ""
        for needed in self._opsets():
            if own >= needed:
                return SourceModel.load(self._source), own
            newest = self._recipe.target_opset or self._recipe.max_opset
            if needed > newest:
                refused = f"{self._kind} needs opset {needed}, and"
                refused += (
                    f" spec.targetOpset is {newest}"
                    if self._recipe.target_opset is not None
                    else f" the runtime image loads at most {newest}"
                )
                continue
            try:
                return SourceModel.load(self._source, needed), own
            except TranslationError as error:
                refused = f"opset {own} cannot be converted to {needed}, which {self._kind} needs: {error}"
        raise StageFailure(
            Reason.PRECISION_UNSUPPORTED,
            refused,
            remedy="omit spec.targetOpset, or export with a later opset",
        )

    def _opsets(self) -> tuple[int, ...]:
        match self._request.precision:
            case "FP16":
                return (1,)
            case "BF16":
                return _BF16_OPSETS
            case _ if self._rest:
                return (max(self._form().opset, _TYPED_SCALES),)
            case _:
                return (self._form().opset,)

    def _form(self) -> Form:
        if self._data is None:
            return dynamic_form(self._recipe.int8_products)
        return form_of(self._request.precision, self._recipe.backend, self._recipe.int8_products)

    def _pass(self) -> PrecisionPass:
        precision = self._request.precision
        recipe = self._recipe.model_copy(update={"precision": precision})
        about = Situation(recipe, self._subject.model, {}, has_data=self._data is not None)
        kinds = sorted(_PASSES, key=lambda pass_: pass_.order)
        kind = next(item for item in kinds if item.needs.are_met(about))
        if kind is Halves:
            self._declare_types()
            largest = self._largest() if precision == "FP16" else {}
            return Halves(self._subject, HALVES[precision], largest)
        form, asked = self._form(), self._recipe.quantization
        per_channel = asked is None or asked.per_channel
        layers = static.find_layers(self._subject, form, per_channel=per_channel)
        if self._data is None:
            return DynamicQuantization(self._subject, layers, form)
        ranges = calibrate(
            self._base,
            layers.values(),
            self._data,
            asked.calibration.method if asked and asked.calibration else "MinMax",
            lambda share: self._report(f"calibrating: {share:.0%} of the runs"),
        )
        if self._rest is None:
            return StaticQuantization(self._subject, layers, ranges, form)
        self._declare_types()
        halves = Halves(self._subject, HALVES[self._rest], self._largest())
        return MixedQuantization(self._subject, layers, ranges, form, halves)

    def _declare_types(self) -> None:
        graph = self._subject.model.graph
        determined = element_types(self._subject.model)
        made = {name for node in graph.node for name in node.output if name}
        if made <= determined.keys():
            return
        self._report("asking ONNX Runtime for types")
        for name, kind in types(self._base).items():
            if name not in determined:
                graph.value_info.append(helper.make_tensor_value_info(name, kind.element, None))

    def _largest(self) -> dict[str, float]:
        self._report("looking for values that half precision cannot represent")
        names = single_values(self._subject.model)
        observed = limits(self._base, names, self._read_samples())
        return {name: value_limits.largest for name, value_limits in observed.items()}

    def _read_samples(self) -> Iterator[Feeds]:
        for feeds in read_arrays(self._golden / INPUTS).values():
            yield {
                name: array.astype(object) if array.dtype.kind in "US" else array
                for name, array in feeds.items()
            }
        yield from self._some(_LIMIT_SAMPLES)

    def _some(self, limit: int) -> Iterator[Feeds]:
        if self._data is None:
            return
        step = max(1, self._data.samples // limit)
        for index, feeds in enumerate(self._data):
            if index % step == 0 and index // step < limit:
                yield feeds

    def _search(self, how: PrecisionPass, prover: ParityProver, units: Sequence[int]) -> Exclusions:
        quantization = self._recipe.quantization
        share = _DEFAULT_EXCLUDED_SHARE if quantization is None else quantization.max_excluded_share
        allowed = int(len(units) * share)
        # if no node may be excluded, a few trials show where the error comes from
        trials = TRIALS if allowed else FIRST_GROUPS
        budget = Budget(trials, TimeLimit(SECONDS))

        def evaluate(excluded: frozenset[int]) -> TrialProof:
            self._report(
                f"looking for the nodes that cost most accuracy: trial {budget.used} of at"
                f" most {trials}"
            )
            self._count += 1
            folder = self._out.with_name(f"{PREFIX}trial-{self._count}")
            try:
                how.write(folder, excluded)
                proof = self._prove(how, prover, folder)
                return TrialProof(proof.agrees, proof.error)
            finally:
                shutil.rmtree(folder, ignore_errors=True)

        return search(units, evaluate, allowed, budget)

    def _check(self) -> None:
        result = self._out / MODEL_NAME
        if not checker_error(self._base, full=True) and (error := checker_error(result, full=True)):
            raise StageFailure(
                Reason.INTERNAL_ERROR,
                f"onnx.checker refuses the {self._request.precision} model: {error}",
            )

    def _report(self, doing: str) -> None:
        progress.write(self._request.progress, doing)


def _why(left: Mapping[str, str]) -> str:
    if not left:
        return ""
    first = next(iter(left))
    return f": {format_count(len(left), 'node')} could be, but for example {first}: {left[first]}"


def _finite(error: float) -> float:
    return min(error, 1e9)
