"""Finds out at startup how a model's outputs become embeddings: which text goes in, and which output is pooled.

What `spec.serving.embeddings` does not fit is refused here, before the pod is ready, and not guessed.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from enginewright_contract.reasons import Reason
from enginewright_contract.serving_options import EmbeddingsTask
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.request_errors import RequestError
from enginewright_runtime.session.datatypes import BYTES
from enginewright_runtime.session.samples import GoldenSample
from enginewright_runtime.session.signature import Tensor
from numpy.typing import NDArray

from enginewright_serving.server.inference.pooling import describe_misfit, pool
from enginewright_serving.server.inference.processing.served import ServedSteps

_log: Final = logging.getLogger(__name__)
_FIELD: Final = "spec.serving.embeddings"
# of a text, where neither the model nor a profile has a maximum: attention takes memory by its square, and most encoders
# have no more positions
_MOST_TOKENS: Final = 512


@dataclass(frozen=True, slots=True)
class ServedEmbeddings:
    """What is asked of the chain for one text, and made of its answer."""

    text: str  # the input of the chain
    shape: tuple[int, ...]  # of that with one text
    output: str
    mask: str
    size: int  # of a vector, as declared or as in golden samples; 0 if there are none
    most_tokens: int  # of a text, 0 if the model or a profile limits them
    task: EmbeddingsTask

    def check(self, feeds: Mapping[str, NDArray[Any]]) -> None:
        """Refuse a text whose tokens are too many, before the model runs: RequestError 400."""
        tokens = feeds[self.mask].shape[-1]
        if self.most_tokens and tokens > self.most_tokens:
            raise RequestError(
                400,
                f"the text has {tokens} tokens, and at most {self.most_tokens} are taken, as no maximum is"
                f" declared: send a shorter one, or declare that of {self.mask!r} in spec.shapes of the"
                " InferenceModel",
            )

    def pool(self, values: NDArray[Any], mask: NDArray[Any]) -> NDArray[Any]:
        """Return the vectors of texts; may raise RequestError."""
        vectors = pool(values, mask, self.task.pooling, normalize=self.task.normalize)
        if self.size and vectors.shape[-1] != self.size:
            raise RequestError(
                500,
                f"the vector of this text has {vectors.shape[-1]} dimensions, and others have {self.size}:"
                f" output {self.output!r} is no embedding; see {_FIELD} of the InferenceModel",
            )
        return vectors

    def describe(self) -> dict[str, Any]:
        """Return what the execution report has."""
        return {
            "pooling": self.task.pooling,
            "normalize": self.task.normalize,
            "input": self.text,
            "output": self.output,
            "mask": self.mask,
            "size": self.size or None,
            "most_tokens": self.most_tokens or None,
        }


def find_embeddings(
    task: EmbeddingsTask,
    steps: ServedSteps | None,
    samples: Sequence[GoldenSample],
    profiled: Collection[str] = (),
) -> ServedEmbeddings:
    """Return how the model with its `steps` embeds texts; StageFailure EmbeddingsInvalid if it cannot.

    The golden `samples` show shapes that are not declared; profiles limit the sizes of the inputs `profiled`.
    """
    if steps is None or not steps.before:
        raise _refuse("no step of spec.processing.before makes tokens of texts")
    text = _find_text(steps.signature.inputs)
    mask = _find_mask(steps, task.mask)
    output = _find_output(steps.signature.outputs, task)
    sizes, lengths = set(), set()
    for sample in samples:
        values = sample.expected.get(output.name)
        if values is None:
            continue
        if problem := describe_misfit(values, sample.feeds[mask.name], task.pooling):
            raise _refuse(f"golden sample {sample.name!r}: {problem}")
        sizes.add(values.shape[-1])
        lengths.add(sample.feeds[mask.name].shape[-1])
    if len(sizes) > 1:
        shown = ", ".join(map(str, sorted(sizes)))
        raise _refuse(f"vectors in output {output.name!r} of golden samples have sizes {shown}")
    declared = max((0, *output.shape[-1:]))
    if not declared and sizes and sizes == lengths:
        _log.warning(
            "%s: the vectors in output %r are as long as the texts of all golden samples; texts of other"
            " lengths fail if that is no coincidence",
            _FIELD,
            output.name,
        )
    made = {name for name in steps.model.inputs if name in steps.before_outputs}
    is_limited = mask.shape[-1] > 0 or not made.isdisjoint(profiled)
    return ServedEmbeddings(
        text=text.name,
        shape=(1,) * len(text.shape),
        output=output.name,
        mask=mask.name,
        size=declared or max(sizes, default=0),
        most_tokens=0 if is_limited else max({_MOST_TOKENS} | lengths),
        task=task,
    )


def _find_text(inputs: Mapping[str, Tensor]) -> Tensor:
    if len(inputs) == 1:
        (text,) = inputs.values()
        if text.datatype is BYTES and all(size in (-1, 1) for size in text.shape):
            return text
    raise _refuse(
        "the only input of requests must be strings with room for one text, and requests have"
        f" {_show(inputs)}"
    )


def _find_mask(steps: ServedSteps, name: str) -> Tensor:
    made = {
        key: steps.model.inputs[key] for key in steps.model.inputs if key in steps.before_outputs
    }
    mask = made.get(name)
    if mask is None or mask.datatype.dtype.kind not in "biu" or len(mask.shape) != 2:
        raise _refuse(
            f"mask {name!r} must be an input of the model with integers and two dimensions, texts and"
            f" tokens, which a step before it makes; such steps make its inputs {_show(made)}"
        )
    return mask


def _find_output(outputs: Mapping[str, Tensor], task: EmbeddingsTask) -> Tensor:
    rank = 2 if task.pooling == "None" else 3
    floats = {name: tensor for name, tensor in outputs.items() if tensor.datatype.dtype.kind == "f"}
    what = f"floats in {rank} dimensions, which pooling {task.pooling} takes"
    if task.output is not None:
        chosen = floats.get(task.output)
        if chosen is not None and len(chosen.shape) in (0, rank):  # 0: not declared
            return chosen
        raise _refuse(f"output {task.output!r} must be {what}; outputs are {_show(outputs)}")
    fitting = [tensor for tensor in floats.values() if len(tensor.shape) == rank]
    if len(fitting) != 1:
        raise _refuse(
            f"{len(fitting)} outputs are {what}: name one in output; outputs are {_show(outputs)}"
        )
    return fitting[0]


def _refuse(cause: str) -> StageFailure:
    return StageFailure(Reason.EMBEDDINGS_INVALID, f"{_FIELD}: {cause}")


def _show(tensors: Mapping[str, Tensor]) -> str:
    return (
        ", ".join(
            f"{name!r} as {tensor.datatype.name}{list(tensor.shape)}"
            for name, tensor in tensors.items()
        )
        or "none"
    )
