"""Converts the model to the requested precision, or the fastest with proven parity: docs/precision.md."""

import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from enginewright_contract.images import DEVICE_BACKENDS
from enginewright_contract.manifest import MODEL_NAME, Change, NodeCost, OutputParity
from enginewright_contract.precisions import why_no_rest, why_unsupported
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Finding, StageReport, name_nodes
from enginewright_contract.task import Precision, PrepareTask, Recipe
from enginewright_contract.unjudged import Unjudged, list_accepted

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
from enginewright_runtime.core.logs import format_count
from enginewright_runtime.core.ort_messages import plain
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.core.scratch import scratch
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.prepare.quantize.calibration import ENOUGH
from enginewright_runtime.prepare.quantize.existing import existing
from enginewright_runtime.prepare.quantize.progress import log_progress
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
from enginewright_runtime.proof.parity.parts import PARTS
from enginewright_runtime.session import processor

_log: Final = logging.getLogger(__name__)
_CALIBRATED: Final = frozenset({"INT8", "FP8"})
_OWN: Final = "own"
_SECONDS: Final = 4 * 3600.0  # enough to calibrate with very large data; ends a hang
_MAX_NODES: Final = 100  # kept in a change and in a finding
_NAMED: Final = 3  # groups of nodes named in a failure


def run(task: PrepareTask, paths: Paths) -> StageReport:
    """Convert the model to the precision that serves; leaves `Quantized`."""
    with scratch(paths.work, PREFIX):
        return _Quantization(task.recipe, paths.work).run()


class _Quantization:
    def __init__(self, recipe: Recipe, work: Path) -> None:
        self._recipe = recipe
        self._work = work
        self._converted = Converted.read(work)
        self._golden = Golden.read(work)
        self._source = work / self._converted.folder / MODEL_NAME
        self._warnings: list[Finding] = []
        self._facts: dict[str, Any] = {}

    def run(self) -> StageReport:
        if self._recipe.precision is not None:
            return self._quantize_requested(self._recipe.precision)
        if not self._recipe.allowed_precisions:
            return self._keep(None, "the model keeps its own precision")
        return self._automatic()

    def _quantize_requested(self, precision: Precision) -> StageReport:
        have = existing(graphs.parse(self._source))
        if refused := have.refuses(precision):
            raise StageFailure(
                Reason.PRECISION_UNSUPPORTED,
                f"spec.precision is {precision}, and {refused}",
                nodes=have.quantized[:_MAX_NODES],
                remedy="export the model in FP32, or omit spec.precision to serve it unchanged",
            )
        self._check_rest(have.precision)
        if have.precision == precision:
            return self._keep(
                precision, f"the model is already {precision} and is served unchanged"
            )
        if refused := why_unsupported(precision, None, self._recipe.backend):
            raise StageFailure(
                Reason.PRECISION_UNSUPPORTED, f"spec.precision is {precision}, and {refused}"
            )
        if refused := self._lacks_data(precision):
            raise StageFailure(
                Reason.CALIBRATION_INVALID,
                f"spec.precision is {precision}, and {refused}",
                remedy="add spec.quantization.calibration",
            )
        made = self._make(precision)
        if not made.agrees:
            raise self._describe_failure(precision, made)
        if blank := self._find_blank(made):
            raise StageFailure(Reason.NOTHING_COMPARED, f"the {precision} model {blank}")
        if unknown := self._find_unjudged(made, precision):
            raise StageFailure(
                Reason.PARITY_UNKNOWN, f"spec.precision is {precision}, and its {unknown}"
            )
        if refused := self._fails_on_backend(precision):
            raise StageFailure(Reason.QUANTIZATION_FAILED, f"the {precision} model {refused}")
        return self._leave(precision, made, "")

    def _check_rest(self, own: str) -> None:
        """Refuse another precision of what is not quantized where the model, of its `own` precision, cannot get it."""
        rest, remedy = self._recipe.rest, "remove spec.quantization.rest"
        refused = why_no_rest(rest, self._recipe.backend)
        if rest and own == self._recipe.precision:
            refused = f"the model is already {own}"
            remedy += " to serve it unchanged, or export the model in FP32"
        if refused:
            raise StageFailure(
                Reason.PRECISION_UNSUPPORTED,
                f"spec.quantization.rest is {rest}, and {refused}",
                remedy=remedy,
            )

    def _find_unjudged(self, made: QuantizedModel, precision: Precision) -> str | None:
        cause = Unjudged.find(made.outputs, self._recipe, precision).cause
        return f"parity is not known: {cause}" if cause else None

    def _lacks_data(self, precision: Precision) -> str | None:
        if precision not in _CALIBRATED or self._calibration() is not None:
            return None
        if precision == "INT8" and self._recipe.backend == "cpu":
            return None  # ranges are computed at run time
        return f"on backend {self._recipe.backend} it needs calibration data"

    def _describe_failure(self, precision: Precision, made: QuantizedModel) -> StageFailure:
        costs = [f"{name_nodes(list(cost.nodes))} ({cost.error:.2g})" for cost in made.costs]
        units = len(made.changed) + len(made.excluded)
        message = (
            f"the {precision} model does not keep parity: {made.disagreement}; its error, 1 - cosine, is"
            f" {made.first_error:.2g}, and excluding as many of its {format_count(units, 'node')} as"
            " spec.quantization.maxExcludedShare allows does not suffice"
        )
        if costs:
            message += "; alone these cost most: "
        remedy = None
        if precision not in _CALIBRATED:
            remedy = (
                "choose another spec.precision, or widen spec.parity if the drift is acceptable"
            )
            if self._recipe.samples_uri is None:
                # generated inputs may cause values that real data never causes
                remedy = f"provide real data in spec.parity.samples, {remedy}"
        nodes = tuple(dict.fromkeys(label for cost in made.costs for label in cost.nodes))
        finding = Finding(
            reason=Reason.QUANTIZATION_FAILED,
            cause=f"{message}{', '.join(costs)}",
            remedy=remedy,
            nodes=nodes[:_MAX_NODES],
            node_count=len(nodes),
        )
        cause = f"{message}{', '.join(costs[:_NAMED])}"
        return StageFailure.of(
            finding.model_copy(update={"cause": cause}), (finding, *self._warnings)
        )

    def _automatic(self) -> StageReport:
        allowed = self._recipe.allowed_precisions
        names = ", ".join(allowed)
        have = existing(graphs.parse(self._source))
        if have.precision != "FP32":
            return self._keep(None, f"the model is already {have.precision} and keeps it")
        if self._recipe.backend in DEVICE_BACKENDS:
            return self._keep(
                None,
                f"the model keeps its own precision: {names} are allowed, but which is fastest can"
                " only be measured on a device; set spec.precision to choose one",
            )
        made: dict[Precision, QuantizedModel] = {}
        refusals = {precision: self._try(precision, made) for precision in allowed}
        times = self._measure([item for item in made if self._out(item).exists()])
        choice = select(
            times.get(_OWN),
            [
                TriedPrecision(precision, refused, times.get(precision))
                for precision, refused in refusals.items()
            ],
        )
        return self._settle(choice, made, times)

    def _try(self, precision: Precision, made: dict[Precision, QuantizedModel]) -> str | None:
        if refused := why_unsupported(precision, None, self._recipe.backend):
            return refused
        if precision in _CALIBRATED and self._calibration() is None:
            return "it needs spec.quantization.calibration"
        try:
            made[precision] = self._make(precision)
        except StageFailure as failure:
            if failure.reason not in {Reason.QUANTIZATION_FAILED, Reason.PRECISION_UNSUPPORTED}:
                raise
            return failure.cause
        if not made[precision].agrees:
            return f"parity fails: {made[precision].disagreement}"
        return (
            self._find_blank(made[precision])
            or self._find_unjudged(made[precision], precision)
            or self._fails_on_backend(precision)
        )

    def _measure(self, precisions: list[Precision]) -> dict[str, Times]:
        if not precisions:
            return {}
        models = {_OWN: self._source} | {
            precision: self._out(precision) / MODEL_NAME for precision in precisions
        }
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
                self._warn(Reason.QUANTIZATION_FAILED, why)
            else:
                times[result.candidate.name] = Times(result.usual_rounds)
        # faster models may have fewer rounds, and only rounds under the same load are comparable
        least = min((len(item.rounds) for item in times.values()), default=0)
        return {name: Times(item.rounds[:least]) for name, item in times.items()}

    def _settle(
        self, choice: Selection, made: dict[Precision, QuantizedModel], times: dict[str, Times]
    ) -> StageReport:
        self._facts["chosen"] = choice.precision or _OWN
        self._facts["reasons"] = dict(choice.reasons)
        self._facts["seconds"] = {name: list(item.rounds) for name, item in times.items()}
        reasons = "; ".join(f"{name}: {why}" for name, why in choice.reasons.items())
        for precision, model in made.items():
            if precision == choice.precision:
                return self._leave(
                    precision, model, f"chosen of {len(choice.reasons) + 1}; {reasons}"
                )
        return self._keep(None, f"the model keeps its own precision; {reasons}")

    def _make(self, precision: Precision) -> QuantizedModel:
        self._check_processor(precision)
        _log.info("quantizing the model to %s", precision)
        progress = self._work / f"{PREFIX}progress"
        request = QuantizationRequest(
            precision=precision,
            source=self._source,
            golden=self._work / GOLDEN_FOLDER,
            calibration=self._calibration(),
            inputs=self._converted.inputs,
            recipe=self._recipe,
            out=self._out(precision),
            parts=self._parts(precision),
            progress=progress,
            varying=self._golden.varying,
        )
        try:
            with log_progress(progress):
                limits = Limits.of_model(_SECONDS)
                made = Call(quantize, f"converting the model to {precision}", limits).run(request)
        except SessionError as error:
            raise StageFailure(
                Reason.QUANTIZATION_FAILED,
                f"parity of the {precision} model cannot be proven: ONNX Runtime's CPU provider"
                f" refuses it: {plain(str(error))}",
                remedy="omit spec.precision, or export the model in it",
            ) from error
        self._facts[precision] = made.model_dump(mode="json")
        self._warn_of(precision, made)
        return made

    def _check_processor(self, precision: Precision) -> None:
        """Refuse to prove a form that needs exact products if they saturate on this processor."""
        here = processor.read()
        relies = precision == "INT8" and self._recipe.int8_products == "exact"
        if relies and here.exact_products is False:
            raise StageFailure(
                Reason.PROCESSOR_MISMATCH,
                "the INT8 form is for processors whose INT8 products are exact (VNNI, AMX, ARM), but"
                f" they saturate on this one: {here.described}",
                remedy="correct spec.cpuFeatures of the AcceleratorClass, or exclude processors"
                " without VNNI from it",
            )

    def _warn_of(self, precision: Precision, made: QuantizedModel) -> None:
        if 0 < made.samples < ENOUGH and precision in _CALIBRATED:
            self._warn(
                Reason.CALIBRATION_TOO_SMALL,
                f"ranges were calibrated with {format_count(made.samples, 'sample')}: values of requests"
                " beyond these ranges are clipped",
            )
        self._warn_of_excluded(
            made, made.excluded, "are not quantized" if made.rest else "stay unchanged"
        )
        self._warn_of_excluded(made, made.excluded_rest, "stay in FP32")

    def _warn_of_excluded(self, made: QuantizedModel, excluded: tuple[str, ...], fate: str) -> None:
        if excluded and made.agrees:
            self._warn(
                Reason.QUANTIZATION_FAILED,
                f"{format_count(len(excluded), 'node')} cost too much accuracy and {fate}:"
                f" {name_nodes(list(excluded))}; the error, 1 - cosine, was {made.first_error:.2g}"
                f" and is {made.error:.2g}",
                excluded,
            )

    def _find_blank(self, made: QuantizedModel) -> str | None:
        """Return why a candidate's parity is unknown: an output of which no element could be compared, unless that is accepted."""
        # outputs that vary and have no distribution are not compared anywhere
        compared = {output.name for output in made.outputs}
        compared |= {output.name for output in self._golden.varying} | list_accepted(self._recipe)
        blank = [spec.name for spec in self._converted.outputs if spec.name not in compared]
        if not blank:
            return None
        return (
            f"cannot be compared in output {', '.join(map(repr, blank))}: no golden sample has a finite"
            " element of it"
        )

    def _fails_on_backend(self, precision: Precision) -> str | None:
        """Return why the candidate fails on the backend that is to serve; devices prove it elsewhere."""
        backend = self._recipe.backend
        if backend == "cpu" or backend in DEVICE_BACKENDS:
            return None
        outcome = JudgedRun(
            model=self._out(precision) / MODEL_NAME,
            backend=backend,
            files=replace(GoldenFiles.of(self._work / GOLDEN_FOLDER), parts=self._parts(precision)),
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

    def _parts(self, precision: Precision) -> Path:
        return self._work / f"{PREFIX}{precision.lower()}-{PARTS}"

    def _keep(self, precision: Precision | None, message: str) -> StageReport:
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
            warnings=tuple(self._warnings),
        ).write(self._work)
        return self._report(message)

    def _warn_of_saturation(self) -> None:
        """Warn that an already quantized model has different outputs on this kind of processor."""
        here = processor.read()
        if here.exact_products is not False or self._recipe.backend in DEVICE_BACKENDS:
            return
        if saturable(graphs.parse(self._source), self._source.parent, self._recipe.backend):
            self._warn(
                Reason.PROCESSOR_MISMATCH,
                f"the model's INT8 products saturate on this processor, {here.described}: outputs"
                " differ from those on processors with VNNI; quantize it with 7-bit weights"
                " (reduce_range)",
            )

    def _leave(self, precision: Precision, made: QuantizedModel, chosen: str) -> StageReport:
        folder = self._work / QUANTIZED_FOLDER
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier attempt
        self._out(precision).rename(folder)
        self._parts(precision).replace(self._work / GOLDEN_FOLDER / PARTS)
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
            warnings=tuple(self._warnings),
        ).write(self._work)
        summary = "; ".join(change.message for change in changes)
        error = f"; {_worst(made.outputs)}" if made.outputs else ""
        return self._report(f"{summary}{error}{f'; {chosen}' if chosen else ''}")

    def _changes(self, precision: Precision, made: QuantizedModel) -> list[Change]:
        changes = []
        if made.opset != made.source_opset:
            message = f"converted opset {made.source_opset} to {made.opset}, for {precision}"
            changes.append(Change(kind="opset", message=message))
        count = len(made.changed)
        if precision not in _CALIBRATED:
            message = f"{format_count(count, 'node')} in {precision}"
            kind = "precision"
        else:
            kind = "quantize"
            message = f"quantised {format_count(count, 'node')} to {precision}{self._how(made)}"
        if made.excluded:
            message += f", excluded {len(made.excluded)} for accuracy"
        if others := len(made.left) - len(made.excluded):
            why = "cannot be quantised" if precision in _CALIBRATED else "stay in FP32"
            message += f"; {others} more {why}"
        changes.append(Change(kind=kind, message=message, nodes=made.changed[:_MAX_NODES]))
        if made.rest:
            changes.append(self._describe_rest(made))
        return changes

    def _describe_rest(self, made: QuantizedModel) -> Change:
        message = f"{format_count(len(made.rest), 'node')} of the rest in {self._recipe.rest}"
        if made.excluded_rest:
            message += f", excluded {len(made.excluded_rest)} for accuracy"
        if others := len(made.single) - len(made.excluded_rest):
            message += f"; {others} more stay in FP32"
        return Change(kind="precision", message=message, nodes=made.rest[:_MAX_NODES])

    def _how(self, made: QuantizedModel) -> str:
        quantization = self._recipe.quantization
        if quantization is None or quantization.calibration is None:
            return ", with ranges computed at run time"
        return f", with ranges of {format_count(made.samples, 'sample')} ({quantization.calibration.method})"

    def _costs(self, model: Path) -> tuple[NodeCost, ...]:
        _log.info("profiling the model on backend cpu")
        inputs = self._work / GOLDEN_FOLDER / INPUTS
        try:
            if existing(graphs.parse(model)).precision != "BF16":
                return costs.measure(model, inputs, self._recipe)
            # ONNX Runtime's CPU provider has no such kernels
            out = model.with_name(f"{PREFIX}widened.onnx")
            Call(write_widened, "widening the model", Limits.of_model()).run(model, out)
            return without_rounding(costs.measure(out, inputs, self._recipe))
        except (StageFailure, SessionError) as error:
            why = error.cause if isinstance(error, StageFailure) else plain(str(error))
            self._warn(
                Reason.QUANTIZATION_FAILED,
                f"node costs are those before the change, since the model cannot be profiled: {why}",
            )
            return self._golden.node_costs

    def _warn(self, reason: Reason, cause: str, nodes: tuple[str, ...] = ()) -> None:
        self._warnings.append(
            Finding(
                severity="warning",
                reason=reason,
                cause=cause,
                nodes=nodes[:_MAX_NODES],
                node_count=len(nodes),
            )
        )

    def _report(self, message: str) -> StageReport:
        if self._warnings:
            message += f"; {self._warnings[0].cause}"
        return StageReport(
            stage="quantize",
            ok=True,
            message=message,
            findings=tuple(self._warnings),
            facts=self._facts,
        )


def without_rounding(measured: tuple[NodeCost, ...]) -> tuple[NodeCost, ...]:
    """Return costs without those of nodes that only the widened model has."""
    kept = [cost for cost in measured if ROUNDING not in cost.label]
    total = sum(cost.share for cost in kept) or 1.0
    return tuple(cost.model_copy(update={"share": cost.share / total}) for cost in kept)


def _worst(outputs: tuple[OutputParity, ...]) -> str:
    cosines = [output.cosine for output in outputs if output.cosine is not None]
    if cosines:
        return f"cosine to the source {min(cosines):.6f}"
    errors = [output.max_abs_error for output in outputs if output.max_abs_error is not None]
    return f"largest absolute error {max(errors):.3g}" if errors else "outputs agree"
