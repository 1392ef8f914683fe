"""What the sizes of inputs say of outputs that have another size in every sample: whether these may hold a grid. Pure.

A detector's boxes lie on a grid of anchors, as many as its picture has. In samples of different sizes nothing tells
what lies elsewhere from what moves. A sequence, or as many rows as there are things in a picture, has no grid.
"""

from collections.abc import Mapping, Sequence

from enginewright_runtime.proof.parity.values import Array

Shape = tuple[int, ...]


class InputSizes:
    """The shapes of the inputs by sample."""

    def __init__(self) -> None:
        self._samples: list[dict[str, Shape]] = []

    def add(self, feeds: Mapping[str, Array]) -> None:
        """Add a sample's inputs."""
        self._samples.append({name: array.shape for name, array in feeds.items()})

    def rule_out_grid(self, outputs: Sequence[Shape]) -> bool:
        """Return whether an output has no grid, given its shapes by sample.

        Either inputs of one size have outputs of several; or each input varies along one axis at most, all by one
        length, and the output along one that is no longer: one of two axes in a row has more elements than either.
        """
        if len(self._samples) != len(outputs):
            return False
        if any(sample in self._samples[:index] for index, sample in enumerate(self._samples)):
            return True
        varying = {name: self._find_varying(name) for name in self._samples[0]}
        lengths = [
            {sample[name][axis] for name, axes in varying.items() for axis in axes}
            for sample in self._samples
        ]
        positions = _find_varying(outputs)
        if max(map(len, varying.values()), default=0) != 1 or len(positions) != 1:
            return False
        return all(
            len(length) == 1 and shape[positions[0]] <= min(length)
            for length, shape in zip(lengths, outputs, strict=True)
        )

    def _find_varying(self, name: str) -> list[int]:
        return _find_varying([sample[name] for sample in self._samples])


def _find_varying(shapes: Sequence[Shape]) -> list[int]:
    """Return the axes along which the sizes differ, of shapes of one rank."""
    sizes = zip(*shapes, strict=False)
    return [axis for axis, along in enumerate(sizes) if len(set(along)) > 1]
