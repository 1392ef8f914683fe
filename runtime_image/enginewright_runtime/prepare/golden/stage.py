"""Generates the golden inputs and outputs with which every artefact and serving pod is compared.

The converted model is compared with them, and the backend that is to serve unless it needs a
device, which a prepare Job lacks.
"""

import logging
import shutil
from pathlib import Path
from typing import Final

from enginewright_contract.images import DEVICE_BACKENDS
from enginewright_contract.manifest import MODEL_NAME, NodeCost
from enginewright_contract.reasons import Reason
from enginewright_contract.report import StageReport
from enginewright_contract.task import PrepareTask, Recipe
from enginewright_contract.unjudged import list_accepted

from enginewright_runtime.core.failure import SessionError, StageFailure
from enginewright_runtime.core.handoff import (
    GOLDEN_FOLDER,
    MODEL_FOLDER,
    Converted,
    Golden,
    Validated,
)
from enginewright_runtime.core.isolation import Call, Limits
from enginewright_runtime.core.logs import format_bytes, format_count
from enginewright_runtime.core.ort_messages import plain
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.core.scratch import scratch
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.prepare.golden.blank import find_blank
from enginewright_runtime.prepare.golden.expected import judge_expected
from enginewright_runtime.prepare.golden.reference import (
    EXACT,
    ORIGIN_NAMES,
    PREFIX,
    make,
    runnable,
)
from enginewright_runtime.prepare.quantize.existing import existing
from enginewright_runtime.prepare.quantize.saturation import find_reference
from enginewright_runtime.proof import costs
from enginewright_runtime.proof.golden_run import (
    EXPECTED,
    EXPECTED_OUTPUTS,
    INPUTS,
    OUTPUTS,
    GoldenFiles,
    GoldenRun,
    JudgedRun,
)
from enginewright_runtime.proof.parity.comparison import ComparedWith
from enginewright_runtime.proof.parity.drift import Side, find_drift
from enginewright_runtime.proof.parity.tolerances import Tolerances
from enginewright_runtime.proof.rounding.measuring import try_measuring
from enginewright_runtime.session.arrays import map_arrays, read_arrays

_log: Final = logging.getLogger(__name__)
_OPTIMIZE: Final = (
    "it is served so, without fused nodes; other programs need the same graph_optimization_level of"
    " ONNX Runtime's SessionOptions, or a model with the constants folded when exporting"
)
_GIVE_SAMPLES: Final = "set spec.parity.samples to inputs for which it has finite elements"


def run(task: PrepareTask, paths: Paths) -> StageReport:
    """Generate golden inputs and outputs; leaves `Golden`."""
    with scratch(paths.work, PREFIX):
        return _Golden(task.recipe, paths.work).run()


class _Golden:
    def __init__(self, recipe: Recipe, work: Path) -> None:
        self._recipe = recipe
        self._work = work
        self._folder = work / GOLDEN_FOLDER
        self._source = work / MODEL_FOLDER / MODEL_NAME
        self._converted = work / Converted.read(work).folder / MODEL_NAME
        self._precision = existing(graphs.parse(self._source)).tolerance

    def run(self) -> StageReport:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        self._made = make(self._recipe, self._work)
        self._judge_numbers()
        self._measure_parts()
        judged = self._converted != self._source and self._made.origin != "itself"
        if judged:
            self._judge_converted()
        on_device = self._recipe.backend in DEVICE_BACKENDS
        if self._recipe.backend != "cpu" and not on_device and self._keeps_precision():
            self._judge_backend()
        if self._made.lowered:
            self._made.warn(self._made.lowered, Reason.PROVIDER_REFUSED, _OPTIMIZE)
        costs_of_nodes = self._profile()
        kind = "generated" if self._recipe.samples_uri is None else "samples"
        count = len(read_arrays(self._folder / INPUTS))
        Golden(
            source=kind,
            samples=count,
            source_precision=self._precision,
            node_costs=costs_of_nodes,
            parity=tuple(self._made.parity),
            expected=(self._folder / EXPECTED).exists(),
            graph_optimization=self._made.level,
            varying=self._made.varying,
        ).write(self._work)
        size = sum(path.stat().st_size for path in self._folder.iterdir())
        message = f"{format_count(count, 'golden sample')} ({kind}), {format_bytes(size)}"
        if judged:
            parity = self._made.parity
            errors = [
                output_parity.max_abs_error
                for output_parity in parity
                if output_parity.max_abs_error is not None
            ]
            worst = f", largest absolute error {max(errors):.3g}" if errors else ""
            message += f"; the converted model agrees with {ORIGIN_NAMES[self._made.origin]}{worst}"
        if on_device:
            message += f"; backend {self._recipe.backend} is compared with them on its device"
        if self._made.findings:
            message += f"; {self._made.findings[0].cause}"
        return StageReport(
            stage="golden",
            ok=True,
            message=message,
            findings=tuple(self._made.findings),
            facts={
                "golden_outputs": self._made.origin,
                "parity": [
                    output_parity.model_dump(mode="json") for output_parity in self._made.parity
                ],
            },
        )

    def _judge_numbers(self) -> None:
        """Refuse golden outputs without a number, such as a detector's boxes in noise; warn of single and accepted ones."""
        dtypes = {spec.name: spec.dtype for spec in Validated.read(self._work).outputs}
        outputs = map_arrays(self._folder / OUTPUTS)
        blank = find_blank(outputs, dtypes)
        names = {key.partition("/")[2] for key in outputs}
        accepted = list_accepted(self._recipe)
        if len(blank) == len(names) and not accepted.issuperset(names):
            raise StageFailure(
                Reason.NOTHING_COMPARED,
                f"no output has a finite element in any golden sample ({', '.join(blank)}), so any other"
                " model's outputs would pass for right",
                remedy=f"{_GIVE_SAMPLES}; or accept it by acceptUnjudged in spec.parity.outputs",
            )
        for name in blank:
            empty = not any(
                array.size for key, array in outputs.items() if key.partition("/")[2] == name
            )
            what = "is empty" if empty else "is NaN or infinite throughout"
            cause = f"output {name!r} {what} in every golden sample, so only its type and shape can be compared"
            if name in accepted:
                cause += ", which spec.parity.outputs accepts"
            self._made.warn(cause, Reason.NOTHING_COMPARED, _GIVE_SAMPLES)

    def _measure_parts(self) -> None:
        """Measure what is expected of the parts of the outputs in the model's own precision."""
        varying = frozenset(output.name for output in self._made.varying)
        model = self._made.model or self._converted
        if why := try_measuring(model, self._folder, self._precision, varying):
            _log.warning("what rounding to %s costs is not known: %s", self._precision, why)
        if self._made.origin == "source" and (self._folder / EXPECTED).exists():
            self._judge_expected()

    def _judge_expected(self) -> None:
        validated = Validated.read(self._work)
        doing = f"comparing the source with {EXPECTED_OUTPUTS}"
        wrong = Call(judge_expected, doing, Limits.of_model()).run(
            self._folder, validated.inputs, validated.outputs, self._recipe, self._precision
        )
        if wrong is not None:
            raise StageFailure(Reason.PARITY_FAILED, f"{wrong} against {EXPECTED_OUTPUTS}")

    def _judge_converted(self) -> None:
        _log.info("comparing the converted model with %s", ORIGIN_NAMES[self._made.origin])
        compared_with: ComparedWith = "expected" if self._made.origin == "expected" else "source"
        # quantized models amplify rounding differences to whole steps; frameworks use other kernels
        full = self._precision == "FP32"
        outcome = self._run_judged(
            "cpu", compared_with, rounding=full and compared_with == "source"
        )
        self._made.level, self._made.lowered = outcome.level, outcome.lowered
        self._refuse(outcome, "the converted model", ORIGIN_NAMES[self._made.origin])
        self._made.parity = list(outcome.parity)

    def _judge_backend(self) -> None:
        backend = self._recipe.backend
        _log.info("running the golden samples on backend %s", backend)
        outcome = self._run_judged(backend, "prepared")
        self._refuse(outcome, f"on backend {backend}", "ONNX Runtime's CPU provider", backend)
        for text in outcome.warnings:
            self._made.warn(text)

    def _run_judged(
        self, backend: str, compared_with: ComparedWith, *, rounding: bool = False
    ) -> GoldenRun:
        model, level = find_reference(self._converted, self._recipe, EXACT)
        outcome = JudgedRun(
            model=model,
            backend=backend,
            files=GoldenFiles.of(self._folder),
            recipe=self._recipe,
            compared_with=compared_with,
            precision=None,
            source_precision=self._precision,
            rounding=rounding,
            varying=self._made.varying,
            level=level,
        ).run()
        if outcome.refusal:
            raise StageFailure(
                Reason.UNSUPPORTED_OPERATOR, f"the converted model {outcome.refusal}"
            )
        return outcome

    def _refuse(self, outcome: GoldenRun, subject: str, against: str, backend: str = "cpu") -> None:
        failed = outcome.failed
        if failed is None:
            return
        if failed.against == "expected":
            against = EXPECTED_OUTPUTS
        message = f"{subject}, {failed.description} against {against}"
        right = Side(self._converted if backend != "cpu" else runnable(self._source, self._recipe))
        drift = None
        if self._made.origin == "source" or backend != "cpu":
            drift = find_drift(
                right,
                Side(self._converted, backend),
                self._folder / INPUTS,
                failed.sample,
                failed.output,
                tolerances=Tolerances.of(self._recipe, self._precision),
            )
        raise StageFailure(
            Reason.PARITY_FAILED,
            f"{message}; {drift}" if drift else message,
            nodes=(drift.label,) if drift else (),
        )

    def _keeps_precision(self) -> bool:
        precision = self._recipe.precision
        return precision is None or precision == self._precision

    def _profile(self) -> tuple[NodeCost, ...]:
        _log.info("profiling the model on backend cpu")
        try:
            return costs.measure(self._converted, self._folder / INPUTS, self._recipe)
        except StageFailure as failure:
            reason, detail = failure.reason, failure.cause
        except SessionError as error:
            reason, detail = Reason.UNSUPPORTED_OPERATOR, plain(str(error))
        cause = f"the cost of nodes is unknown, so maxComputeShare cannot be enforced: {detail}"
        self._made.warn(cause, reason)
        return ()
