"""Makes the golden inputs and outputs that every later artefact and serving pod is compared with.

The outputs are the source's own, also where `convert` changed the model: what it changed has to keep
them. They come from ONNX Runtime's CPU provider, or, where that cannot load the source, from the
samples, or from ONNX's reference implementation. Outputs of the exporting framework, where the samples
have them, are compared as well; and the backend that is to serve is run on the same inputs, in a
process that may crash, unless it needs a device: none is lent to a prepare Job.
"""

import logging
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

from enginewright.contract.images import DEVICE_BACKENDS
from enginewright.contract.manifest import NodeCost, OutputParity
from enginewright.contract.reasons import Reason
from enginewright.contract.report import Finding, StageReport
from enginewright.contract.task import PrepareTask, Recipe
from onnx import ModelProto, TensorProto

from enginewright_runtime import graphs
from enginewright_runtime.backends.base import SessionError
from enginewright_runtime.backends.words import plain
from enginewright_runtime.conversion.inference import elements
from enginewright_runtime.conversion.storage import save, size_bytes
from enginewright_runtime.digests import MODEL_NAME
from enginewright_runtime.failure import StageFailure
from enginewright_runtime.handoff import (
    GOLDEN_FOLDER,
    MODEL_FOLDER,
    SAMPLES_FILE,
    Converted,
    Golden,
    Validated,
)
from enginewright_runtime.isolation import Limits, run_isolated
from enginewright_runtime.limits import memory_limit
from enginewright_runtime.logs import counted, in_words
from enginewright_runtime.parity import Tolerances
from enginewright_runtime.parity.drift import Side, find_drift
from enginewright_runtime.paths import Paths
from enginewright_runtime.stages import costs
from enginewright_runtime.stages.golden_inputs import (
    Filling,
    Sample,
    generate,
    read_samples,
)
from enginewright_runtime.stages.golden_run import (
    EXPECTED,
    INPUTS,
    OUTPUTS,
    read_arrays,
    write_arrays,
)

_log: Final = logging.getLogger(__name__)
_LARGEST: Final = 256 << 20  # bytes of inputs, or outputs, that one sample may store
_RUNNER: Final = "enginewright_runtime.stages.golden_run"
_DEFINITION_SECONDS: Final = 60.0  # of ONNX's reference implementation, which is plain Python
_LARGEST_BY_DEFINITION: Final = 512 << 20  # bytes of the model
_PREFIX: Final = "golden-"  # of what is made beside the models and goes at the end

# What the golden outputs are. "itself": of the converted model, so that nothing proves it.
_Origin = Literal["source", "definition", "expected", "itself"]
_TOLD: Final[Mapping[_Origin, str]] = {
    "source": "the source",
    "definition": "the source, by ONNX's reference implementation",
    "expected": "the expected outputs in spec.parity.samples",
    "itself": "itself",
}


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
        for path in (*work.glob(f"{_PREFIX}*"), *work.glob(f"*/{_PREFIX}*")):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


class _Golden:
    """One run of the stage."""

    def __init__(self, recipe: Recipe, work: Path) -> None:
        self._recipe = recipe
        self._work = work
        self._validated = Validated.pick_up(work)
        self._folder = work / GOLDEN_FOLDER
        self._source = work / MODEL_FOLDER / MODEL_NAME
        self._converted = work / Converted.pick_up(work).folder / MODEL_NAME
        self._findings: list[Finding] = []
        self._parity: list[OutputParity] = []
        self._origin: _Origin = "source"
        self._level: str | None = None  # of graph optimisations, at which the outputs are right
        self._judged = False  # whether the converted model was compared with the golden outputs

    def run(self) -> StageReport:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        if self._recipe.samples_uri is not None:
            kind = "samples"
            self._given()
        else:
            kind = "generated"
            self._generate()
        if self._converted != self._source or self._origin != "source":
            self._judge_converted()
        on_device = self._recipe.backend in DEVICE_BACKENDS
        if self._recipe.backend != "cpu" and not on_device and self._keeps_precision():
            self._judge_backend()
        expected = (self._folder / EXPECTED).exists()
        count = len(read_arrays(self._folder / INPUTS))
        Golden(
            source=kind,
            samples=count,
            node_costs=self._profile(),
            parity=tuple(self._parity),
            expected=expected,
            graph_optimization=self._level,
        ).leave(self._work)
        size = sum(path.stat().st_size for path in self._folder.iterdir())
        return StageReport(
            stage="golden",
            ok=True,
            message=f"{counted(count, 'golden sample')} ({kind}), {in_words(size)}"
            f"{self._summary(on_device)}",
            findings=tuple(self._findings),
            facts={
                "golden_outputs": self._origin,
                "parity": [each.model_dump(mode="json") for each in self._parity],
            },
        )

    def _summary(self, on_device: bool) -> str:
        told = ""
        if self._judged and self._origin != "itself":
            errors = [each.max_abs_error for each in self._parity if each.max_abs_error is not None]
            worst = f", largest absolute error {max(errors):.3g}" if errors else ""
            told += f"; the converted model agrees with {_TOLD[self._origin]}{worst}"
        if on_device:
            told += f"; backend {self._recipe.backend} is compared with them on its device"
        return told + (f"; {self._findings[0].message}" if self._findings else "")

    # inputs

    def _given(self) -> None:
        path = self._work / SAMPLES_FILE
        samples = read_samples(path, self._validated.inputs, self._validated.outputs)
        refused = self._make(samples)
        if refused:
            name, words = next(iter(refused.items()))
            raise StageFailure(
                Reason.PARITY_FAILED,
                f"the model refuses sample {name!r} of spec.parity.samples: {words}",
                remedy="correct the sample",
            )

    def _generate(self) -> None:
        """Generate inputs; where the model refuses integers, try others, more often indices."""
        fillings = tuple(Filling) if self._has_free_integers() else (Filling.DIGITS,)
        refused: dict[str, str] = {}
        shapes = self._recipe.shapes
        for filling in fillings:
            samples = generate(self._validated.inputs, self._validated.profiles, shapes, filling)
            kept, left_out = _affordable(samples)
            before = len(self._findings)
            refused = self._make(kept)
            # in the end what is left of the smallest shapes has to do
            if not refused or (filling == fillings[-1] and kept[0].name not in refused):
                self._findings += left_out
                if refused:
                    self._refuse_or_warn(kept, refused)
                return
            del self._findings[before:]
        raise StageFailure(
            Reason.PARITY_FAILED,
            "no golden inputs could be generated; ONNX Runtime refuses values from"
            f" {', '.join(fillings)}: {next(iter(refused.values()))}",
            remedy=(
                'give the inputs a range in spec.shapes (range: {low: "0", high: "1"}), or inputs of'
                " your own in spec.parity.samples"
            ),
        )

    def _refuse_or_warn(self, samples: list[Sample], refused: dict[str, str]) -> None:
        """Sizes that were declared must work; the default batch sizes are only our guess."""
        corner, words = next(iter(refused.items()))
        inputs = next(sample.inputs for sample in samples if sample.name == corner)
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in inputs.items())
        if self._recipe.shapes:
            raise StageFailure(
                Reason.SHAPE_PROFILE_INVALID,
                f"the model fails with the {corner} shapes of spec.shapes ({shapes}): {words}",
            )
        self._warn(f"the model fails with {shapes}, so batches may not work: {words}")

    def _has_free_integers(self) -> bool:
        ranged = {profile.input for profile in self._recipe.shapes if profile.low is not None}
        return any(
            spec.dtype.startswith(("int", "uint")) and spec.name not in ranged
            for spec in self._validated.inputs
        )

    # golden outputs

    def _make(self, samples: list[Sample]) -> dict[str, str]:
        """Write the golden files; return what the model says of samples that it refuses."""
        self._write(samples)
        try:
            return self._run_reference(self._loadable())
        except SessionError as error:
            words = plain(str(error))
        told = f"ONNX Runtime's CPU provider cannot run the source: {words}"
        if self._take_expected(samples):
            self._origin = "expected"
            self._warn(f"{told}; golden outputs are those of spec.parity.samples")
            return {}
        if self._converted == self._source:
            self._need_definition(samples, told)
            return {}
        return self._run_converted(samples, told)

    def _write(self, samples: list[Sample]) -> None:
        write_arrays(self._folder / INPUTS, {each.name: each.inputs for each in samples})
        expected = {each.name: each.expected for each in samples if each.expected}
        if expected:
            write_arrays(self._folder / EXPECTED, expected)

    def _loadable(self) -> Path:
        """Return the source, under an IR version that ONNX Runtime loads: only the number differs."""
        if self._validated.ir_version <= self._recipe.max_ir_version:
            return self._source
        model = graphs.parse(self._source)
        model.ir_version = self._recipe.max_ir_version
        path = self._source.with_name(f"{_PREFIX}{MODEL_NAME}")
        save(model, path)
        return path

    def _run_reference(self, model: Path) -> dict[str, str]:
        """Run a model on the CPU provider, which writes outputs.npz.

        Raises:
            SessionError: it does not load.
        """
        _log.info("running the golden samples on backend cpu")
        answer = run_isolated(
            f"{_RUNNER}:run_reference",
            "running the golden inputs on backend cpu",
            model=str(model),
            folder=str(self._folder),
            recipe=self._recipe.model_dump(mode="json"),
        )
        if failed := answer["failed"]:
            raise StageFailure(
                Reason.PARITY_FAILED,
                f"{failed['words']} against the expected outputs in spec.parity.samples",
            )
        if self._converted in {self._source, model}:
            self._parity = [OutputParity.model_validate(each) for each in answer["parity"]]
            self._level = answer["level"]
        for text in answer["warnings"]:
            self._warn(text)
        refused: dict[str, str] = answer["refused"]
        return refused

    def _take_expected(self, samples: list[Sample]) -> bool:
        """Take the expected outputs as golden ones, if every sample has them all."""
        outputs = {spec.name for spec in self._validated.outputs}
        if not all(outputs <= set(sample.expected) for sample in samples):
            return False
        (self._folder / EXPECTED).rename(self._folder / OUTPUTS)
        return True

    def _need_definition(self, samples: list[Sample], told: str) -> None:
        """Take what ONNX's reference implementation makes of the first sample.

        Raises:
            StageFailure: UnsupportedOperator: it cannot, so there is nothing to compare with.
        """
        words = self._run_definition(samples[:1], self._folder)
        if words is not None:
            raise StageFailure(
                Reason.UNSUPPORTED_OPERATOR,
                f"{told}; so there is nothing to compare backend {self._recipe.backend} with",
                remedy="give inputs with the expected values of every output in spec.parity.samples",
            )
        self._origin = "definition"
        self._warn(f"{told}; golden outputs are those of ONNX's reference implementation")

    def _run_converted(self, samples: list[Sample], told: str) -> dict[str, str]:
        """Take the converted model's outputs, but of the first sample the source's by definition."""
        refused = self._run_reference(self._converted)
        kept = [sample for sample in samples if sample.name not in refused]
        if not kept:
            return refused
        scratch = self._work / f"{_PREFIX}definition"
        scratch.mkdir(exist_ok=True)
        words = self._run_definition(kept[:1], scratch)
        if words is None:
            self._origin = "definition"
            outputs = read_arrays(self._folder / OUTPUTS) | read_arrays(scratch / OUTPUTS)
            write_arrays(self._folder / OUTPUTS, outputs)
            return refused
        self._origin = "itself"
        self._warn(
            f"{told}, nor can ONNX's reference implementation ({words}): golden outputs are those of"
            " the converted model, and nothing proves that it still is the source; give inputs with"
            " the expected values of every output in spec.parity.samples"
        )
        return refused

    def _run_definition(self, samples: list[Sample], folder: Path) -> str | None:
        """Run the source by its operators' definitions; return why it cannot be."""
        if size_bytes(graphs.parse(self._source)) > _LARGEST_BY_DEFINITION:
            return f"it is larger than {in_words(_LARGEST_BY_DEFINITION)}"
        write_arrays(folder / INPUTS, {each.name: each.inputs for each in samples})
        memory = memory_limit()
        _log.info("running one golden sample by ONNX's reference implementation")
        try:
            answer = run_isolated(
                f"{_RUNNER}:run_definition",
                "running the source by ONNX's reference implementation",
                limits=Limits(_DEFINITION_SECONDS, memory // 2 if memory else None),
                model=str(self._source),
                folder=str(folder),
            )
        except StageFailure as failure:
            return failure.message
        return next(iter(answer["refused"].values()), None)

    # what is compared with them

    def _judge_converted(self) -> None:
        """Compare the converted model with the golden outputs, and with those that are expected."""
        if self._origin == "itself":
            return
        if self._converted == self._source:
            return  # it was found not to load here
        _log.info("comparing the converted model with %s", _TOLD[self._origin])
        compared_with = "expected" if self._origin == "expected" else "source"
        # integers inside make steps of differences in rounding; the framework has other algorithms
        full = own_precision(graphs.parse(self._source)) in {"FP32", None}
        answer = self._run_judged("cpu", compared_with, rounding=full and compared_with == "source")
        self._level = answer["level"]
        self._refuse(answer, "the converted model", _TOLD[self._origin])
        self._parity = [OutputParity.model_validate(each) for each in answer["parity"]]
        self._judged = True

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
                f"{_RUNNER}:run_judged",
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
        right = Side(self._converted if backend != "cpu" else self._loadable())
        drift = None
        if self._origin == "source" or backend != "cpu":
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
            return costs.measure(self._converted, self._folder / INPUTS)
        except StageFailure as failure:
            reason, words = failure.reason, failure.message
        except SessionError as error:
            reason, words = Reason.INTERNAL_ERROR, plain(str(error))
        message = f"what each node costs is not known, so no maxComputeShare can be kept: {words}"
        self._findings.append(Finding(severity="warning", reason=reason, message=message))
        return ()

    def _warn(self, message: str) -> None:
        self._findings.append(_warning(message))


_PRECISIONS: Final[dict[int, str]] = {
    TensorProto.FLOAT: "FP32",
    TensorProto.DOUBLE: "FP32",
    TensorProto.FLOAT16: "FP16",
    TensorProto.BFLOAT16: "BF16",
    TensorProto.INT8: "INT8",
    TensorProto.UINT8: "INT8",
    TensorProto.FLOAT8E4M3FN: "FP8",
    TensorProto.FLOAT8E5M2: "FP8",
}


def own_precision(model: ModelProto) -> str | None:
    """Return the precision of most weights; None: there are none."""
    found: Counter[str] = Counter()
    for tensor in graphs.walk_tensors(model):
        if precision := _PRECISIONS.get(tensor.data_type):
            found[precision] += elements(tensor)
    return found.most_common(1)[0][0] if found else None


def _affordable(samples: list[Sample]) -> tuple[list[Sample], list[Finding]]:
    """Leave out samples too large to store, but never the first."""
    kept, left_out = samples[:1], []
    for sample in samples[1:]:
        size = sum(array.nbytes for array in sample.inputs.values())
        if size <= _LARGEST:
            kept.append(sample)
        else:
            left_out.append(_warning(f"the {sample.name} shapes ({in_words(size)}) are not proven"))
    return kept, left_out


def _warning(message: str) -> Finding:
    return Finding(severity="warning", reason=Reason.PARITY_FAILED, message=message)
