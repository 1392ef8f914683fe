"""Gives the model the precision that is asked for, or the fastest one that keeps parity: docs/precision.md.

What is made is proven before it is kept: on ONNX Runtime's CPU provider, and on the backend that is to
serve where that needs no device.
"""

import logging
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from enginewright.contract.images import DEVICE_BACKENDS
from enginewright.contract.manifest import MODEL_NAME, Change, NodeCost, OutputParity
from enginewright.contract.precisions import supported
from enginewright.contract.reasons import Reason
from enginewright.contract.report import Finding, StageReport, name_nodes
from enginewright.contract.task import Precision, PrepareTask, Recipe

from enginewright_runtime.core.failure import SessionError, StageFailure
from enginewright_runtime.core.handoff import (
    CALIBRATION_FOLDER,
    GOLDEN_FOLDER,
    QUANTIZED_FOLDER,
    Converted,
    Golden,
    Quantized,
)
from enginewright_runtime.core.isolation import Call, Limits
from enginewright_runtime.core.limits import memory_of_child
from enginewright_runtime.core.logs import counted
from enginewright_runtime.core.ort_messages import plain
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.core.scratch import scratch
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.prepare.quantize.calibration import ENOUGH
from enginewright_runtime.prepare.quantize.existing import existing
from enginewright_runtime.prepare.quantize.progress import logged
from enginewright_runtime.prepare.quantize.quantizer import (
    PREFIX,
    QuantizationRequest,
    QuantizedModel,
    quantize,
)
from enginewright_runtime.prepare.quantize.saturation import saturable
from enginewright_runtime.prepare.quantize.selection import Selection, Times, TriedPrecision, select
from enginewright_runtime.prepare.quantize.widening import ROUNDING, write_widened
from enginewright_runtime.proof import costs
from enginewright_runtime.proof.golden_run import INPUTS, GoldenFiles, JudgedRun
from enginewright_runtime.proof.latency import comparing
from enginewright_runtime.session import processor

_log: Final = logging.getLogger(__name__)
_CALIBRATED: Final = frozenset({"INT8", "FP8"})
_OWN: Final = "own"
_SECONDS: Final = 4 * 3600.0  # calibrating with very much data; a hang ends some time
_MOST_NODES: Final = 100  # kept in a change and in a finding
_NAMED: Final = 3  # groups of nodes that a failure names


def run(task: PrepareTask, paths: Paths) -> StageReport:
    """Make the model that serves; leaves `Quantized`.

    Raises:
        StageFailure: PrecisionUnsupported, CalibrationInvalid; QuantizationFailed, naming the nodes
            that cost most accuracy; BackendCrashed, OutOfMemory, ModelTooLarge.
    """
    with scratch(paths.work, PREFIX):
        return _Quantization(task.recipe, paths.work).run()


@dataclass
class _Notes:
    """What the report will say."""

    warnings: list[Finding] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def warn(self, reason: Reason, cause: str, nodes: tuple[str, ...] = ()) -> None:
        self.warnings.append(
            Finding(
                severity="warning",
                reason=reason,
                cause=cause,
                nodes=nodes[:_MOST_NODES],
                node_count=len(nodes),
            )
        )


class _Quantization:
    """One run of the stage."""

    def __init__(self, recipe: Recipe, work: Path) -> None:
        self._recipe = recipe
        self._work = work
        self._converted = Converted.pick_up(work)
        self._golden = Golden.pick_up(work)
        self._source = work / self._converted.folder / MODEL_NAME
        self._notes = _Notes()

    def run(self) -> StageReport:
        wanted = self._recipe.precision
        if wanted is not None:
            return self._asked(wanted)
        if not self._recipe.allowed_precisions:
            return self._keep(None, "the model keeps its own precision")
        return self._automatic()

    # a precision that is asked for

    def _asked(self, wanted: Precision) -> StageReport:
        have = existing(graphs.parse(self._source))
        if refused := have.refuses(wanted):
            raise StageFailure(
                Reason.PRECISION_UNSUPPORTED,
                f"spec.precision is {wanted}, and {refused}",
                nodes=have.quantized[:_MOST_NODES],
                remedy="export the model in FP32, or leave spec.precision out to serve it as it is",
            )
        if have.precision == wanted:
            return self._keep(wanted, f"the model is {wanted} already and is served as it is")
        if refused := supported(wanted, None, self._recipe.backend):
            raise StageFailure(
                Reason.PRECISION_UNSUPPORTED, f"spec.precision is {wanted}, and {refused}"
            )
        if refused := self._lacks_data(wanted):
            raise StageFailure(
                Reason.CALIBRATION_INVALID,
                f"spec.precision is {wanted}, and {refused}",
                remedy="add spec.quantization.calibration",
            )
        made = self._make(wanted)
        if not made.agrees:
            raise self._failed(wanted, made)
        if refused := self._fails_on_backend(wanted):
            raise StageFailure(Reason.QUANTIZATION_FAILED, f"the {wanted} model {refused}")
        return self._leave(wanted, made, "")

    def _lacks_data(self, wanted: Precision) -> str | None:
        """Return what the precision needs and is not there; None: nothing."""
        if wanted not in _CALIBRATED or self._calibration() is not None:
            return None
        if wanted == "INT8" and self._recipe.backend == "cpu":
            return None  # ranges are found while it runs
        return f"on backend {self._recipe.backend} it needs data to learn ranges from"

    def _failed(self, wanted: Precision, made: QuantizedModel) -> StageFailure:
        """Return the refusal, naming what costs most."""
        costs = [f"{name_nodes(list(cost.nodes))} ({cost.error:.2g})" for cost in made.costs]
        units = len(made.changed) + len(made.excluded)
        message = (
            f"the {wanted} model does not keep parity: {made.disagreement}; its error, 1 - cosine, is"
            f" {made.first_error:.2g}, and leaving out as many of its {counted(units, 'node')} as"
            " spec.quantization.maxExcludedShare allows does not suffice"
        )
        if costs:
            message += "; alone these cost most: "
        remedy = None
        if wanted not in _CALIBRATED:
            remedy = (
                "choose another spec.precision, or widen spec.parity if the drift is acceptable"
            )
            if self._recipe.samples_uri is None:
                # what is drawn may drive a model where real data never does
                remedy = f"give real data in spec.parity.samples, {remedy}"
        nodes = tuple(dict.fromkeys(label for cost in made.costs for label in cost.nodes))
        finding = Finding(
            reason=Reason.QUANTIZATION_FAILED,
            cause=f"{message}{', '.join(costs)}",
            remedy=remedy,
            nodes=nodes[:_MOST_NODES],
            node_count=len(nodes),
        )
        cause = f"{message}{', '.join(costs[:_NAMED])}"
        return StageFailure.of(
            finding.model_copy(update={"cause": cause}), (finding, *self._notes.warnings)
        )

    # automatic

    def _automatic(self) -> StageReport:
        allowed = self._recipe.allowed_precisions
        names = ", ".join(allowed)
        have = existing(graphs.parse(self._source))
        if have.precision != "FP32":
            return self._keep(None, f"the model is {have.precision} already and keeps that")
        if self._recipe.backend in DEVICE_BACKENDS:
            return self._keep(
                None,
                f"the model keeps its own precision: {names} would do, and which is fastest can be"
                " measured on a device alone; set spec.precision to have one",
            )
        made: dict[Precision, QuantizedModel] = {}
        refusals = {precision: self._try(precision, made) for precision in allowed}
        times = self._measure([each for each in made if self._out(each).exists()])
        choice = select(
            times.get(_OWN),
            [
                TriedPrecision(precision, refused, times.get(precision))
                for precision, refused in refusals.items()
            ],
        )
        return self._settle(choice, made, times)

    def _try(self, precision: Precision, made: dict[Precision, QuantizedModel]) -> str | None:
        """Make and prove a candidate; return why it cannot serve; None: it can."""
        if refused := supported(precision, None, self._recipe.backend):
            return refused
        if precision in _CALIBRATED and self._calibration() is None:
            return "there is no spec.quantization.calibration to learn ranges from"
        try:
            made[precision] = self._make(precision)
        except StageFailure as failure:
            if failure.reason not in {Reason.QUANTIZATION_FAILED, Reason.PRECISION_UNSUPPORTED}:
                raise
            return failure.cause
        if not made[precision].agrees:
            return f"parity fails: {made[precision].disagreement}"
        return self._fails_on_backend(precision)

    def _measure(self, precisions: list[Precision]) -> dict[str, Times]:
        """Return the times of the model as it is and of those in other precisions."""
        if not precisions:
            return {}
        models = {_OWN: self._source} | {each: self._out(each) / MODEL_NAME for each in precisions}
        _log.info("timing %s on backend %s", ", ".join(models), self._recipe.backend)
        results = comparing.compare(
            [
                comparing.BenchmarkCandidate(name, path, self._recipe.backend)
                for name, path in models.items()
            ],
            self._work / GOLDEN_FOLDER / INPUTS,
            usual_only=True,
        )
        times: dict[str, Times] = {}
        for result in results:
            if result.failure is not None:
                why = f"precisions could not be timed: {result.failure.cause}"
                self._notes.warn(Reason.QUANTIZATION_FAILED, why)
            else:
                times[result.candidate.name] = Times(result.usual_rounds)
        # a fast one is done sooner, and only rounds of the same load compare
        least = min((len(each.rounds) for each in times.values()), default=0)
        return {name: Times(each.rounds[:least]) for name, each in times.items()}

    def _settle(
        self, choice: Selection, made: dict[Precision, QuantizedModel], times: dict[str, Times]
    ) -> StageReport:
        self._notes.facts["chosen"] = choice.precision or _OWN
        self._notes.facts["reasons"] = dict(choice.reasons)
        self._notes.facts["seconds"] = {name: list(each.rounds) for name, each in times.items()}
        reasons = "; ".join(f"{name}: {why}" for name, why in choice.reasons.items())
        for precision, each in made.items():
            if precision == choice.precision:
                return self._leave(
                    precision, each, f"chosen of {len(choice.reasons) + 1}; {reasons}"
                )
        return self._keep(None, f"the model keeps its own precision; {reasons}")

    # what both do

    def _make(self, precision: Precision) -> QuantizedModel:
        """Make and prove a model.

        Raises:
            StageFailure: QuantizationFailed, PrecisionUnsupported, CalibrationInvalid and the like;
                ProcessorMismatch where this machine's processor cannot prove the form.
        """
        self._check_processor(precision)
        _log.info("quantising the model to %s", precision)
        progress = self._work / f"{PREFIX}progress"
        request = QuantizationRequest(
            precision=precision,
            source=self._source,
            golden=self._work / GOLDEN_FOLDER,
            calibration=self._calibration(),
            inputs=self._converted.inputs,
            recipe=self._recipe,
            out=self._out(precision),
            progress=progress,
            varying=self._golden.varying,
        )
        try:
            with logged(progress):
                limits = Limits(_SECONDS, memory_of_child())
                made = Call(quantize, f"making the model {precision}", limits).run(request)
        except SessionError as error:
            raise StageFailure(
                Reason.QUANTIZATION_FAILED,
                f"whether a model of {precision} keeps parity cannot be found out: ONNX Runtime's CPU"
                f" provider refuses it: {plain(str(error))}",
                remedy="leave spec.precision out, or export the model in it",
            ) from error
        self._notes.facts[precision] = made.model_dump(mode="json")
        self._warn_of(precision, made)
        return made

    def _check_processor(self, precision: Precision) -> None:
        """Refuse to prove a form that needs exact products where they saturate: the proof would speak of those."""
        here = processor.read()
        relies = precision == "INT8" and self._recipe.int8_products == "exact"
        if relies and here.exact_products is False:
            raise StageFailure(
                Reason.PROCESSOR_MISMATCH,
                "the INT8 form is for processors whose INT8 products are exact (VNNI, AMX, ARM), and they"
                f" saturate on this one: {here.described}",
                remedy="correct spec.cpuFeatures of the AcceleratorClass, or keep processors without VNNI out of it",
            )

    def _warn_of(self, precision: Precision, made: QuantizedModel) -> None:
        if 0 < made.samples < ENOUGH and precision in _CALIBRATED:
            self._notes.warn(
                Reason.CALIBRATION_TOO_SMALL,
                f"ranges were learnt from {counted(made.samples, 'sample')}: what requests have beyond"
                " what these show is cut off",
            )
        if made.excluded and made.agrees:
            self._notes.warn(
                Reason.QUANTIZATION_FAILED,
                f"{counted(len(made.excluded), 'node')} cost too much accuracy and stay as they were:"
                f" {name_nodes(list(made.excluded))}; the error, 1 - cosine, was {made.first_error:.2g}"
                f" and is {made.error:.2g}",
                made.excluded,
            )

    def _fails_on_backend(self, precision: Precision) -> str | None:
        """Return what is wrong on the backend that is to serve; None: nothing, or not known.

        Backend cpu is what every proof runs on; those with a device are proven there.
        """
        backend = self._recipe.backend
        if backend == "cpu" or backend in DEVICE_BACKENDS:
            return None
        outcome = JudgedRun(
            model=self._out(precision) / MODEL_NAME,
            backend=backend,
            files=GoldenFiles.of(self._work / GOLDEN_FOLDER),
            recipe=self._recipe,
            compared_with="source",
            precision=precision,
            varying=self._golden.varying,
        ).run()
        if failed := outcome.failed:
            return f"does not keep parity on backend {backend}: {failed.description}"
        return outcome.refusal

    def _calibration(self) -> Path | None:
        quantization = self._recipe.quantization
        if quantization is None or quantization.calibration is None:
            return None
        return self._work / CALIBRATION_FOLDER

    def _out(self, precision: Precision) -> Path:
        return self._work / f"{PREFIX}{precision.lower()}"

    # what is left

    def _keep(self, precision: Precision | None, message: str) -> StageReport:
        """Leave the converted model as the one that serves."""
        self._warn_of_saturation()
        kept = self._converted
        Quantized(
            folder=kept.folder,
            precision=precision,
            opset=kept.opset,
            ir_version=kept.ir_version,
            nodes=kept.nodes,
            node_costs=self._golden.node_costs,
            shape_nodes=kept.shape_nodes,
            changes=kept.changes,
            parity=self._golden.parity,
            warnings=tuple(self._notes.warnings),
        ).leave(self._work)
        return self._report(message)

    def _warn_of_saturation(self) -> None:
        """Say that what was quantised elsewhere gives other outputs on this kind of processor."""
        here = processor.read()
        if here.exact_products is not False or self._recipe.backend in DEVICE_BACKENDS:
            return
        if saturable(graphs.parse(self._source), self._source.parent, self._recipe.backend):
            self._notes.warn(
                Reason.PROCESSOR_MISMATCH,
                f"the model's INT8 products saturate on this processor, {here.described}: outputs differ from"
                " those on processors with VNNI; quantise it with weights of 7 bits (reduce_range)",
            )

    def _leave(self, precision: Precision, made: QuantizedModel, chosen: str) -> StageReport:
        """Leave a model that was made as the one that serves."""
        folder = self._work / QUANTIZED_FOLDER
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier try
        self._out(precision).rename(folder)
        changes = self._changes(precision, made)
        Quantized(
            folder=QUANTIZED_FOLDER,
            precision=precision,
            opset=made.opset,
            ir_version=made.ir_version,
            nodes=made.nodes,
            node_costs=self._costs(folder / MODEL_NAME),
            shape_nodes=made.shape_nodes,
            changes=(*self._converted.changes, *changes),
            parity=made.outputs,
            warnings=tuple(self._notes.warnings),
        ).leave(self._work)
        summary = "; ".join(change.message for change in changes)
        error = f"; {_worst(made.outputs)}" if made.outputs else ""
        return self._report(f"{summary}{error}{f'; {chosen}' if chosen else ''}")

    def _changes(self, precision: Precision, made: QuantizedModel) -> list[Change]:
        found = []
        if made.opset != made.source_opset:
            message = f"converted opset {made.source_opset} to {made.opset}, for {precision}"
            found.append(Change(kind="opset", message=message))
        count = len(made.changed)
        if precision not in _CALIBRATED:
            message = f"{counted(count, 'node')} in {precision}"
            kind = "precision"
        else:
            kind = "quantize"
            message = f"quantised {counted(count, 'node')} to {precision}{self._how(made)}"
        if made.excluded:
            message += f", left out {len(made.excluded)} for accuracy"
        if others := len(made.left) - len(made.excluded):
            why = "cannot be quantised" if precision in _CALIBRATED else "stay in FP32"
            message += f"; {others} more {why}"
        found.append(Change(kind=kind, message=message, nodes=made.changed[:_MOST_NODES]))
        return found

    def _how(self, made: QuantizedModel) -> str:
        quantization = self._recipe.quantization
        if quantization is None or quantization.calibration is None:
            return ", with ranges found while it runs"
        return f", with ranges of {counted(made.samples, 'sample')} ({quantization.calibration.method})"

    def _costs(self, model: Path) -> tuple[NodeCost, ...]:
        """Return what the nodes cost; where the model cannot be profiled, what they did before."""
        _log.info("profiling the model on backend cpu")
        inputs = self._work / GOLDEN_FOLDER / INPUTS
        try:
            if existing(graphs.parse(model)).precision != "BF16":
                return costs.measure(model, inputs, self._recipe)
            # ONNX Runtime's CPU provider has no such kernels
            out = model.with_name(f"{PREFIX}widened.onnx")
            Call(write_widened, "widening the model").run(model, out)
            return without_rounding(costs.measure(out, inputs, self._recipe))
        except (StageFailure, SessionError) as error:
            why = error.cause if isinstance(error, StageFailure) else plain(str(error))
            self._notes.warn(
                Reason.QUANTIZATION_FAILED,
                f"node costs are those before the change, since the model cannot be profiled: {why}",
            )
            return self._golden.node_costs

    def _report(self, message: str) -> StageReport:
        if self._notes.warnings:
            message += f"; {self._notes.warnings[0].cause}"
        return StageReport(
            stage="quantize",
            ok=True,
            message=message,
            findings=tuple(self._notes.warnings),
            facts=self._notes.facts,
        )


def without_rounding(measured: tuple[NodeCost, ...]) -> tuple[NodeCost, ...]:
    """Return costs without those of nodes that only the widened model has."""
    kept = [cost for cost in measured if ROUNDING not in cost.label]
    whole = sum(cost.share for cost in kept) or 1.0
    return tuple(cost.model_copy(update={"share": cost.share / whole}) for cost in kept)


def _worst(outputs: tuple[OutputParity, ...]) -> str:
    """Return the least agreement of all outputs, for people."""
    cosines = [output.cosine for output in outputs if output.cosine is not None]
    if cosines:
        return f"cosine to the source {min(cosines):.6f}"
    errors = [output.max_abs_error for output in outputs if output.max_abs_error is not None]
    return f"largest absolute error {max(errors):.3g}" if errors else "outputs agree"
