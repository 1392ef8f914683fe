"""What a model's outputs mean: boxes, text, labels; and the share in which two results agree.

An artefact is honest if its results on natural inputs are within 2% of the source's. That is decided here,
before any comparator runs. Pure.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
HONEST: Final = 0.98  # of the source's result
_IOU: Final = 0.5  # from which two boxes match
_SUPPRESSED: Final = 0.45  # IoU from which non-maximum suppression drops the weaker box
_CENTS: Final = 50.0  # within which a pitch is right ("raw pitch accuracy")
# of probabilities of voice, of which users choose one: silero-vad suggests 0.5, swift-f0 0.9
_THRESHOLDS: Final = (0.1, 0.3, 0.5, 0.7, 0.9)


class Box(NamedTuple):
    """A detection, in pixels."""

    label: int
    left: float
    top: float
    right: float
    bottom: float


def decode_boxes(centres: Array, sizes: Array, scores: Array, threshold: float) -> list[Box]:
    """Return the boxes [n, 2] and [n, 2] whose best score of [n, labels] counts, by class-wise suppression."""
    labels = scores.argmax(1)
    best = scores[np.arange(len(scores)), labels]
    kept: list[Box] = []
    for row in np.argsort(-best, kind="stable"):
        if not best[row] > threshold:
            break
        x, y = map(float, centres[row])
        width, height = map(float, sizes[row])
        box = Box(int(labels[row]), x - width / 2, y - height / 2, x + width / 2, y + height / 2)
        if all(box.label != item.label or overlap(box, item) < _SUPPRESSED for item in kept):
            kept.append(box)
    return kept


def overlap(one: Box, other: Box) -> float:
    """Return the intersection over union."""
    width = min(one.right, other.right) - max(one.left, other.left)
    height = min(one.bottom, other.bottom) - max(one.top, other.top)
    if width <= 0 or height <= 0:
        return 0.0
    areas = [(box.right - box.left) * (box.bottom - box.top) for box in (one, other)]
    return width * height / (sum(areas) - width * height)


def compare_boxes(source: Sequence[Sequence[Box]], other: Sequence[Sequence[Box]]) -> float:
    """Return the F1 score of boxes that match one to one, over all samples."""
    matches = sum(_match(first, second) for first, second in zip(source, other, strict=True))
    count = sum(len(boxes) for boxes in (*source, *other))
    return 2 * matches / count if count else 1.0


def _match(source: Sequence[Box], other: Sequence[Box]) -> int:
    pairs = sorted(
        (
            (overlap(one, two), first, second)
            for first, one in enumerate(source)
            for second, two in enumerate(other)
            if one.label == two.label
        ),
        reverse=True,
    )
    taken: tuple[set[int], set[int]] = (set(), set())
    for share, first, second in pairs:
        if share >= _IOU and first not in taken[0] and second not in taken[1]:
            taken[0].add(first)
            taken[1].add(second)
    return len(taken[0])


def find_regions(scores: Array, threshold: float, smallest: int = 8) -> list[Box]:
    """Return the bounding boxes of connected regions of a map [height, width] above a threshold."""
    waiting = {(int(y), int(x)) for y, x in np.argwhere(scores > threshold)}
    regions = []
    while waiting:
        queue = [waiting.pop()]
        for y, x in queue:
            for place in ((y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)):
                if place in waiting:
                    waiting.remove(place)
                    queue.append(place)
        if len(queue) >= smallest:
            ys, xs = zip(*queue, strict=True)
            regions.append(Box(0, min(xs), min(ys), max(xs) + 1.0, max(ys) + 1.0))
    return regions


def decode_text(scores: Array) -> tuple[int, ...]:
    """Return the characters of [steps, classes], by the best path of CTC: class 0 is the blank."""
    best = [int(item) for item in scores.argmax(1)]
    return tuple(
        item for item, before in zip(best, [0, *best], strict=False) if item and item != before
    )


def compare_text(source: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> float:
    """Return 1 - the edit distance over the source's length, over all samples."""
    length = sum(map(len, source))
    distance = sum(count_edits(one, two) for one, two in zip(source, other, strict=True))
    return max(0.0, 1 - distance / length) if length else float(not distance)


def count_edits(one: Sequence[int], other: Sequence[int]) -> int:
    """Return Levenshtein's distance."""
    row = list(range(len(other) + 1))
    for index, item in enumerate(one, 1):
        before, row[0] = row[0], index
        for place, second in enumerate(other, 1):
            before, row[place] = (
                row[place],
                min(row[place] + 1, row[place - 1] + 1, before + (item != second)),
            )
    return row[-1]


def compare_labels(source: Sequence[Any], other: Sequence[Any]) -> float:
    """Return the share of equal labels."""
    first, second = (
        np.concatenate([np.ravel(item) for item in items]) for items in (source, other)
    )
    return float(np.mean(first == second)) if first.shape == second.shape else 0.0


def compare_vectors(source: Sequence[Array], other: Sequence[Array]) -> float:
    """Return the lower of the mean cosine, and the share of vectors with the same nearest neighbour."""
    first, second = (
        np.stack([np.ravel(item) for item in items]).astype(np.float64) for items in (source, other)
    )
    first, second = (
        item / np.maximum(np.linalg.norm(item, axis=1, keepdims=True), 1e-12)
        for item in (first, second)
    )
    nearest = [(item @ item.T - 2 * np.eye(len(item))).argmax(1) for item in (first, second)]
    return min(
        float(np.mean(np.sum(first * second, axis=1))), float(np.mean(nearest[0] == nearest[1]))
    )


def compare_scores(source: Sequence[Array], other: Sequence[Array]) -> float:
    """Return the share of probabilities that are on the same side of a threshold, the least of all thresholds."""
    first, second = (np.concatenate(items) for items in (source, other))
    return min(float(np.mean((first > least) == (second > least))) for least in _THRESHOLDS)


def compare_pitches(
    source: Sequence[tuple[Array, Array]], other: Sequence[tuple[Array, Array]]
) -> float:
    """Return the share of frames of (pitch in Hz, confidence) that both call unvoiced, or of one pitch: the least of all thresholds."""
    (pitch, sure), (other_pitch, other_sure) = (
        [np.concatenate([np.ravel(item) for item in items]) for items in zip(*samples, strict=True)]
        for samples in (source, other)
    )
    cents = 1200 * np.abs(np.log2(np.maximum(other_pitch, 1.0) / np.maximum(pitch, 1.0)))
    return min(
        float(
            np.mean(
                np.where(sure > least, (other_sure > least) & (cents < _CENTS), other_sure <= least)
            )
        )
        for least in _THRESHOLDS
    )
