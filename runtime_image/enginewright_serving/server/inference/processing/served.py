"""The steps of a served model: starts their processes, derives what clients send and receive."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from enginewright_contract.execution import ExecutedStep
from enginewright_contract.manifest import MODEL_NAME, Manifest
from enginewright_contract.reasons import Reason
from enginewright_contract.signature import TensorText
from enginewright_runtime.core.failure import SessionError, StageFailure
from enginewright_runtime.core.limits import memory, threads
from enginewright_runtime.core.ort_messages import plain
from enginewright_runtime.session.datatypes import DATATYPES
from enginewright_runtime.session.processing.chain import Chain, connect
from enginewright_runtime.session.processing.process import StepProcess
from enginewright_runtime.session.signature import Argument, Signature, Tensor, read_signature

from enginewright_serving.transport.settings import MIB

PROCESSING_FOLDER: Final = "processing"  # in an artefact: one folder per step
_MOST_PROCESSES: Final = 4
_LEAST_MEMORY: Final = 512 * MIB  # of one process
_MEMORY_SHARE: Final = 4  # of the container's memory, all processes together may use one part
_PIXEL_BYTES: Final = 16  # that a pixel may take: decoded in three bytes, then as floats
_CACHED_ROUTES: Final = 256
_ONNX_TYPES: Final = {datatype.name: datatype.onnx for datatype in DATATYPES}


@dataclass(frozen=True, slots=True)
class StepRoute:
    """What a request for certain outputs needs."""

    model_outputs: list[str]
    after_outputs: tuple[str, ...]  # of steps after the model, which need not run without any


@dataclass(frozen=True)
class ServedSteps:
    """The steps of a ready model."""

    signature: Signature  # of the chain
    model: Signature  # the model's own
    executed: tuple[ExecutedStep, ...]
    before: tuple[str, ...]  # names of the steps
    after: tuple[str, ...]
    before_inputs: frozenset[str]  # of a request, for the steps before the model
    before_outputs: frozenset[str]  # of these steps, for the model and the steps after it
    after_inputs: frozenset[str]  # of the steps after the model, from anywhere before
    images: frozenset[str]  # inputs of a request that are decoded as they are
    processes: tuple[StepProcess, ...]
    most_pixels: int  # of an image
    _chain: Chain
    _routes: dict[tuple[str, ...], StepRoute] = field(default_factory=dict)

    def route(self, outputs: Sequence[str]) -> StepRoute:
        """Return what a request for these outputs of the chain, and any inputs of the model, needs."""
        names = tuple(outputs)
        route = self._routes.get(names)
        if route is None:
            if len(self._routes) >= _CACHED_ROUTES:
                self._routes.clear()
            route = self._routes[names] = self._new_route(names)
        return route

    def _new_route(self, names: tuple[str, ...]) -> StepRoute:
        parts = {name: part for name, (part, _) in self._chain.outputs.items() if name in names}
        after = tuple(name for name, part in parts.items() if part.stage == "after")
        own = {name for name, part in parts.items() if part.stage == "model"}
        if after:
            own |= self.after_inputs.intersection(self.model.outputs)
        # the model has to run, even if no step takes its outputs
        model_outputs = [name for name in self.model.outputs if name in own]
        return StepRoute(model_outputs or list(self.model.outputs)[:1], after)


def serve_steps(
    artifact: Path,
    manifest: Manifest,
    model: Signature,
    progress: Callable[[str], None],
) -> ServedSteps | None:
    """Load the steps of a model, if it has any, in separate processes.

    Raises StageFailure: InvalidModel, ExtensionFailed, BackendCrashed, OutOfMemory.
    """
    if not manifest.steps:
        return None
    progress("loading the steps of spec.processing")
    paths = {
        step.name: artifact / PROCESSING_FOLDER / step.name / MODEL_NAME for step in manifest.steps
    }
    count = max(1, min(_MOST_PROCESSES, threads()))
    most = max(_LEAST_MEMORY, memory() // (_MEMORY_SHARE * count))
    try:
        processes = tuple(StepProcess(paths, artifact / manifest.model, most) for _ in range(count))
    except SessionError as error:
        raise StageFailure(
            Reason.INVALID_MODEL, f"a step of spec.processing cannot be loaded: {plain(str(error))}"
        ) from error
    facts = processes[0].facts
    loaded = [
        step.model_copy(
            update={"inputs": facts[step.name].inputs, "outputs": facts[step.name].outputs}
        )
        for step in manifest.steps
    ]
    chain = connect(loaded, model.publish())
    if problems := chain.problems():
        raise StageFailure(Reason.INVALID_MODEL, "; ".join(problems))
    produced = chain.list_produced("before")
    images = {name for fact in facts.values() for name in fact.images}
    return ServedSteps(
        signature=_signature(chain, model),
        model=model,
        executed=tuple(ExecutedStep(name=step.name, digest=step.digest) for step in loaded),
        before=tuple(step.name for step in loaded if step.name.startswith("before")),
        after=tuple(step.name for step in loaded if step.name.startswith("after")),
        before_inputs=chain.list_taken("before") - produced,
        before_outputs=produced & chain.list_taken("model", "after"),
        after_inputs=chain.list_taken("after") - chain.list_produced("after"),
        images=frozenset(images & chain.inputs.keys()),
        processes=processes,
        most_pixels=most // _PIXEL_BYTES,
        _chain=chain,
    )


def _signature(chain: Chain, model: Signature) -> Signature:
    inputs = {
        name: model.inputs[name] if part.stage == "model" else _tensor(text)
        for name, (part, text) in chain.inputs.items()
    }
    outputs = {
        name: model.outputs[name] if part.stage == "model" else _tensor(text)
        for name, (part, text) in chain.outputs.items()
    }
    return Signature(inputs, outputs, model.left_out)


def _tensor(text: TensorText) -> Tensor:
    """Return an input or output of a step, whose dynamic sizes are unlimited."""
    argument = Argument(text.name, _ONNX_TYPES[text.dtype], [int(size) for size in text.shape])
    return read_signature([argument], [argument], ()).inputs[text.name]
