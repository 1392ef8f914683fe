"""Checks the steps of spec.processing, which are served as they are: each by itself, and that all connect."""

import logging
from pathlib import Path
from typing import Final

from enginewright_contract.manifest import MODEL_NAME, ProcessingStep, TensorSpec
from enginewright_contract.reasons import Reason
from enginewright_contract.signature import ANY_SIZE, PublishedSignature, TensorText
from enginewright_contract.task import PrepareTask, Recipe

from enginewright_runtime.core.failure import SessionError, StageFailure
from enginewright_runtime.core.handoff import MODEL_FOLDER, PROCESSING_FOLDER, Fetched
from enginewright_runtime.core.limits import memory_of_child
from enginewright_runtime.core.ort_messages import plain
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.prepare.validate.inspection import Inspection, inspect
from enginewright_runtime.session.datatypes import DATATYPES
from enginewright_runtime.session.processing.chain import connect, label
from enginewright_runtime.session.processing.frames import StepFacts
from enginewright_runtime.session.processing.process import StepProcess
from enginewright_runtime.session.samples import type_name

_log: Final = logging.getLogger(__name__)
_PROTOCOL_NAMES: Final = {type_name(datatype): datatype.name for datatype in DATATYPES}
_NOT_CONVERTED: Final = (
    "steps are not converted: export it for the runtime image's ONNX Runtime, with small tensors"
    " inside the .onnx file"
)
_MISCONNECTED: Final = (
    "values are passed by name: rename inputs and outputs, such as with onnx.compose.add_prefix,"
    " or correct the order in spec.processing"
)


def check_steps(
    task: PrepareTask, paths: Paths, fetched: Fetched, inspected: Inspection
) -> tuple[ProcessingStep, ...]:
    """Return the steps of the task, with their inputs and outputs; raises StageFailure."""
    if task.recipe.processing is None:
        return ()
    files = {
        name: paths.work / PROCESSING_FOLDER / name / MODEL_NAME
        for name in task.recipe.processing.steps()
    }
    for name, path in files.items():
        _inspect(name, path, task.recipe)
    facts = _load(files, paths.work / MODEL_FOLDER / MODEL_NAME)
    steps = tuple(
        ProcessingStep(
            name=name, digest=fetched.steps[name], inputs=fact.inputs, outputs=fact.outputs
        )
        for name, fact in facts.items()
    )
    own = PublishedSignature.of(map(_text, inspected.inputs), map(_text, inspected.outputs))
    chain = connect(steps, own)
    if problems := chain.problems():
        raise StageFailure(Reason.INVALID_MODEL, "; ".join(problems), remedy=_MISCONNECTED)
    signature = chain.signature()
    _log.info("clients send %s", ", ".join(signature.inputs))
    _log.info("clients receive %s", ", ".join(signature.outputs))
    return steps


def _inspect(name: str, path: Path, recipe: Recipe) -> None:
    step_recipe = Recipe(
        backend="cpu",
        ort_version=recipe.ort_version,
        max_opset=recipe.max_opset,
        max_ir_version=recipe.max_ir_version,
        extensions=recipe.extensions,
    )
    inspected = inspect(path, step_recipe)
    if findings := tuple(
        error.model_copy(update={"cause": f"step {label(name)}: {error.cause}"})
        for error in inspected.errors
    ):
        raise StageFailure.of(findings[0], findings)
    if inspected.converted:
        raise StageFailure(
            Reason.OPSET_UNSUPPORTED,
            f"step {label(name)}, of opset {inspected.opset} and IR version {inspected.ir_version}, has a"
            f" form that ONNX Runtime {recipe.ort_version} does not load",
            remedy=_NOT_CONVERTED,
        )


def _load(files: dict[str, Path], model: Path) -> dict[str, StepFacts]:
    try:
        with StepProcess(files, model, memory_of_child()) as process:
            return process.facts
    except SessionError as error:
        name, _, message = str(error).partition(": ")
        raise StageFailure(
            Reason.INVALID_MODEL,
            f"step {label(name)} cannot be loaded: {plain(message)}",
            remedy="correct the step; tokenizers and image decoders need an entry of spec.extensions"
            " with type ONNXRuntimeExtensions",
        ) from error


def _text(spec: TensorSpec) -> TensorText:
    shape = tuple(str(size) if isinstance(size, int) else ANY_SIZE for size in spec.shape)
    return TensorText(spec.name, _PROTOCOL_NAMES.get(spec.dtype, spec.dtype.upper()), shape)
