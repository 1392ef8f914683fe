"""Makes the golden inputs and outputs that every later artefact and serving pod is compared with.

The outputs are the source's. The converted model is compared with them, and with the outputs of the
exporting framework where the samples have them; and the backend that is to serve is run on the same
inputs, in a process that may crash, unless it needs a device: none is lent to a prepare Job.
"""

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from enginewright.contract.images import DEVICE_BACKENDS
from enginewright.contract.manifest import NodeCost, OutputParity
from enginewright.contract.reasons import Reason
from enginewright.contract.report import Finding, StageReport
from enginewright.contract.task import PrepareTask, Recipe

from enginewright_runtime.core.digests import MODEL_NAME
from enginewright_runtime.core.failure import SessionError, StageFailure
from enginewright_runtime.core.handoff import GOLDEN_FOLDER, MODEL_FOLDER, Converted, Golden
from enginewright_runtime.core.isolation import run_isolated
from enginewright_runtime.core.logs import counted, in_words
from enginewright_runtime.core.ort_messages import plain
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.graph import graphs
from enginewright_runtime.graph.precisions import own_precision
from enginewright_runtime.prepare.golden.reference import PREFIX, TOLD, loadable, make
from enginewright_runtime.proof import costs
from enginewright_runtime.proof.golden_run import EXPECTED, INPUTS, OUTPUTS
from enginewright_runtime.proof.parity import Tolerances
from enginewright_runtime.proof.parity.drift import Side, find_drift
from enginewright_runtime.session.arrays import read_arrays

_log: Final = logging.getLogger(__name__)
_JUDGE: Final = "enginewright_runtime.proof.golden_run:run_judged"


def run(task: PrepareTask, paths: Paths) -> StageReport:
    """Make golden inputs and outputs; leaves `Golden`.

    Raises:
        StageFailure: ParityFailed, BackendCrashed, OutOfMemory or ShapeProfileInvalid.
    """
    with _workbench(paths.work):
        return _Golden(task.recipe, paths.work).run()


@contextmanager
def _workbench(work: Path) -> Iterator[None]:
    """Remove what was made beside the models, however it ends."""
    try:
        yield
    finally:
        for path in (*work.glob(f"{PREFIX}*"), *work.glob(f"*/{PREFIX}*")):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


class _Golden:
    """One run of the stage."""

    def __init__(self, recipe: Recipe, work: Path) -> None:
        self._recipe = recipe
        self._work = work
        self._folder = work / GOLDEN_FOLDER
        self._source = work / MODEL_FOLDER / MODEL_NAME
        self._converted = work / Converted.pick_up(work).folder / MODEL_NAME

    def run(self) -> StageReport:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        self._made = make(self._recipe, self._work)
        judged = self._converted != self._source and self._made.origin != "itself"
        if judged:
            self._judge_converted()
        on_device = self._recipe.backend in DEVICE_BACKENDS
        if self._recipe.backend != "cpu" and not on_device and self._keeps_precision():
            self._judge_backend()
        costs_of_nodes = self._profile()
        kind = "generated" if self._recipe.samples_uri is None else "samples"
        count = len(read_arrays(self._folder / INPUTS))
        Golden(
            source=kind,
            samples=count,
            node_costs=costs_of_nodes,
            parity=tuple(self._made.parity),
            expected=(self._folder / EXPECTED).exists(),
            graph_optimization=self._made.level,
            varying=self._made.varying,
        ).leave(self._work)
        size = sum(path.stat().st_size for path in self._folder.iterdir())
        return StageReport(
            stage="golden",
            ok=True,
            message=f"{counted(count, 'golden sample')} ({kind}), {in_words(size)}"
            f"{self._agreement() if judged else ''}{self._summary(on_device)}",
            findings=tuple(self._made.findings),
            facts={
                "golden_outputs": self._made.origin,
                "parity": [each.model_dump(mode="json") for each in self._made.parity],
            },
        )

    def _agreement(self) -> str:
        known = (each.max_abs_error for each in self._made.parity)
        errors = [error for error in known if error is not None]
        worst = f", largest absolute error {max(errors):.3g}" if errors else ""
        return f"; the converted model agrees with {TOLD[self._made.origin]}{worst}"

    def _summary(self, on_device: bool) -> str:
        told = ""
        if on_device:
            told += f"; backend {self._recipe.backend} is compared with them on its device"
        findings = self._made.findings
        return told + (f"; {findings[0].message}" if findings else "")

    def _judge_converted(self) -> None:
        """Compare the converted model with the golden outputs, and with those that are expected."""
        _log.info("comparing the converted model with %s", TOLD[self._made.origin])
        compared_with = "expected" if self._made.origin == "expected" else "source"
        # integers inside make steps of differences in rounding; the framework has other algorithms
        full = own_precision(graphs.parse(self._source)) in {"FP32", None}
        answer = self._run_judged("cpu", compared_with, rounding=full and compared_with == "source")
        self._made.level = answer["level"]
        self._refuse(answer, "the converted model", TOLD[self._made.origin])
        self._made.parity = [OutputParity.model_validate(each) for each in answer["parity"]]

    def _judge_backend(self) -> None:
        backend = self._recipe.backend
        _log.info("running the golden samples on backend %s", backend)
        answer = self._run_judged(backend, "prepared")
        self._refuse(answer, f"on backend {backend}", "ONNX Runtime's CPU provider", backend)
        for text in answer["warnings"]:
            self._warn(text)

    def _run_judged(
        self, backend: str, compared_with: str, *, rounding: bool = False
    ) -> dict[str, Any]:
        """Run the converted model and compare it with the golden outputs.

        Raises:
            StageFailure: UnsupportedOperator: it does not load, or fails.
        """
        expected = self._folder / EXPECTED
        try:
            answer: dict[str, Any] = run_isolated(
                _JUDGE,
                f"running the golden inputs on backend {backend}",
                model=str(self._converted),
                backend=backend,
                inputs=str(self._folder / INPUTS),
                outputs=str(self._folder / OUTPUTS),
                expected=str(expected) if expected.exists() else None,
                recipe=self._recipe.model_dump(mode="json"),
                compared_with=compared_with,
                precision=None,
                rounding=rounding,
                varying=[each.model_dump(mode="json") for each in self._made.varying],
            )
        except SessionError as error:
            raise StageFailure(
                Reason.UNSUPPORTED_OPERATOR,
                f"backend {backend} refuses the converted model: {plain(str(error))}",
            ) from error
        if refused := answer["refused"]:
            name, words = next(iter(refused.items()))
            raise StageFailure(
                Reason.UNSUPPORTED_OPERATOR,
                f"backend {backend} loads the model and fails on golden sample {name!r}: {words}",
            )
        return answer

    def _refuse(
        self, answer: dict[str, Any], subject: str, against: str, backend: str = "cpu"
    ) -> None:
        """Raise ParityFailed if the comparison failed, naming the node at which the drift begins."""
        failed = answer["failed"]
        if failed is None:
            return
        if failed["against"] == "expected":
            against = "the expected outputs in spec.parity.samples"
        message = f"{subject}, {failed['words']} against {against}"
        right = Side(self._converted if backend != "cpu" else loadable(self._source, self._recipe))
        drift = None
        if self._made.origin == "source" or backend != "cpu":
            drift = find_drift(
                right,
                Side(self._converted, backend),
                self._folder / INPUTS,
                failed["sample"],
                failed["output"],
                tolerances=Tolerances.of(self._recipe),
            )
        raise StageFailure(
            Reason.PARITY_FAILED,
            f"{message}; {drift}" if drift else message,
            nodes=(drift.label,) if drift else (),
        )

    def _keeps_precision(self) -> bool:
        """Tell whether the backend runs the model in the precision that it has now."""
        wanted = self._recipe.precision
        return wanted is None or wanted == own_precision(graphs.parse(self._converted))

    def _profile(self) -> tuple[NodeCost, ...]:
        """Return what the nodes cost; nothing, with a warning, where that cannot be found out."""
        _log.info("profiling the model on backend cpu")
        try:
            return costs.measure(self._converted, self._folder / INPUTS, self._recipe)
        except StageFailure as failure:
            reason, words = failure.reason, failure.message
        except SessionError as error:
            reason, words = Reason.UNSUPPORTED_OPERATOR, plain(str(error))
        message = f"what each node costs is not known, so no maxComputeShare can be kept: {words}"
        self._made.findings.append(Finding(severity="warning", reason=reason, message=message))
        return ()

    def _warn(self, message: str) -> None:
        self._made.findings.append(_warning(message))


def _warning(message: str) -> Finding:
    return Finding(severity="warning", reason=Reason.PARITY_FAILED, message=message)
