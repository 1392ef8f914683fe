"""Makes one vector of the vectors of a text's tokens. Pure.

In float32 and in NumPy: ONNX has no operator that leaves out the tokens that a mask excludes, whose vectors may be NaN.
"""

from typing import Any, Final

import numpy as np
from enginewright_runtime.core.request_errors import RequestError
from numpy.typing import NDArray

_LEAST_NORM: Final = 1e-12  # as PyTorch's `normalize` has it


def pool(
    values: NDArray[Any], mask: NDArray[Any], pooling: str, *, normalize: bool
) -> NDArray[np.float32]:
    """Return the vectors of texts, [texts, size].

    `values` are [texts, tokens, size], or without pooling [texts, size]; `mask`, [texts, tokens], is 0 where a token
    does not count. Raises RequestError: 400 for a text without tokens, 500 for values that are no embedding.
    """
    if problem := describe_misfit(values, mask, pooling):
        raise RequestError(500, f"{problem}; see spec.serving.embeddings of the InferenceModel")
    kept = mask != 0
    if not kept.any(axis=1).all():
        raise RequestError(400, "the tokenizer makes no tokens of this text")
    with np.errstate(all="ignore"):  # what it yields is looked at below
        if pooling == "None":
            vectors = values.astype(np.float32)
        else:
            vectors = np.stack(list(map(_POOLS[pooling], values, kept)))
        if normalize:
            # in double precision, as single floats cannot hold the squares of large values
            norms = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
            vectors /= np.maximum(norms, _LEAST_NORM)
    if not np.isfinite(vectors).all():
        raise RequestError(500, "the model's output for this text has infinities or NaN")
    return vectors


def describe_misfit(values: NDArray[Any], mask: NDArray[Any], pooling: str) -> str:
    """Return why an output is not that of the texts of a mask, by their shapes, or ""."""
    expected = mask.shape[:1] if pooling == "None" else mask.shape
    if values.shape[:-1] == expected and values.ndim > 1:
        return ""
    return (
        f"an output of the shape {list(values.shape)} has no vector for each of"
        f" {' x '.join(map(str, expected))} {'texts' if pooling == 'None' else 'tokens'}"
    )


def _average(tokens: NDArray[Any], kept: NDArray[np.bool_]) -> NDArray[np.float32]:
    mean: NDArray[np.float32] = tokens[kept].mean(axis=0, dtype=np.float32)
    return mean


def _take_first(tokens: NDArray[Any], kept: NDArray[np.bool_]) -> NDArray[np.float32]:
    first: NDArray[np.float32] = tokens[int(kept.argmax())].astype(np.float32)
    return first


def _take_last(tokens: NDArray[Any], kept: NDArray[np.bool_]) -> NDArray[np.float32]:
    place = len(kept) - 1 - int(kept[::-1].argmax())
    last: NDArray[np.float32] = tokens[place].astype(np.float32)
    return last


_POOLS: Final = {"Mean": _average, "CLS": _take_first, "Last": _take_last}
