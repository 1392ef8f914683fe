"""Texts as tokens with their masks: of different lengths, padded, from the whole vocabulary."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from enginewright_runtime.proof.natural.kinds import Shape

Array = NDArray[Any]
_SEED: Final = 20240229
_LENGTHS: Final = (1.0, 0.5, 0.75, 0.25, 0.9)  # of the longest, one text after the other
# sizes of BERT's vocabularies: uncased, cased, Chinese and both multilingual ones
_BERT: Final = frozenset({30522, 28996, 21128, 105879, 119547})
_BERT_ENDS: Final = (101, 102)  # [CLS] and [SEP]
_ENDS: Final = (0, 2)  # of RoBERTa, XLM-R, BART and others
_SPECIAL: Final = 1000  # of BERT's vocabulary, characters and tokens that no text has
_LEAST_VOCABULARY: Final = 100  # with special tokens


def draw_tokens(shape: Shape, vocabulary: int, number: int) -> Array:
    """Return texts from `number` on, one a row, of tokens below `vocabulary`; frequent tokens are the first."""
    generator = np.random.default_rng([_SEED, number])
    has_ends = vocabulary > _LEAST_VOCABULARY
    first = min(_SPECIAL, vocabulary // 20) if has_ends else 0
    spread = generator.random(shape) * np.log(vocabulary / max(first, 1))
    tokens: Array = np.clip(max(first, 1) * np.exp(spread), first, vocabulary - 1).astype(np.int64)
    mask = draw_mask(shape, number)
    tokens *= mask
    if has_ends:
        begin, end = _BERT_ENDS if vocabulary in _BERT else _ENDS
        lengths = mask.sum(axis=-1, keepdims=True)
        np.put_along_axis(tokens, lengths - 1, end, axis=-1)
        tokens[..., 0] = begin
    return tokens


def draw_mask(shape: Shape, number: int) -> Array:
    """Return 1 where the texts from `number` on have a token, and 0 behind their ends; no text is empty."""
    rows = shape[0] if len(shape) > 1 else 1
    shares = [_LENGTHS[(number * rows + row) % len(_LENGTHS)] for row in range(rows)]
    lengths = np.maximum(1, (np.asarray(shares) * shape[-1]).astype(np.int64))
    lengths = lengths.reshape(-1, *[1] * (len(shape) - 1))
    return np.broadcast_to(np.arange(shape[-1]) < lengths, shape).astype(np.int64)


def draw_segments(shape: Shape, rows: int, number: int) -> Array:
    """Return 1 in the second half of every other text, if the model has a table of two `rows` or more, else 0."""
    mask = draw_mask(shape, number)
    second = np.arange(shape[-1]) >= mask.sum(axis=-1, keepdims=True) // 2
    segments: Array = mask * second * int(rows > 1 and number % 2 == 1)
    return segments


def draw_positions(shape: Shape, rows: int) -> Array:
    """Return 0, 1, 2 … along the text, below the `rows` of the table if it is known."""
    positions = np.broadcast_to(np.arange(shape[-1]), shape)
    return np.minimum(positions, rows - 1) if rows else positions
