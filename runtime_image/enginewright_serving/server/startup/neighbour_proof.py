"""Finds out whether the outputs of a request depend on the others in its batch: it runs beside inputs with other values.

Models that quantize their activations at run time, for example, scale all rows by the largest.
"""

import logging
from collections.abc import Sequence
from itertools import cycle, islice
from typing import Any, Final

from enginewright_runtime.core.ort_messages import plain
from enginewright_runtime.session.neighbours import is_same, make_neighbours
from enginewright_runtime.session.runner import Runner
from enginewright_runtime.session.signature import Signature
from numpy.typing import NDArray

from enginewright_serving.server.inference.batching import join, split
from enginewright_serving.server.protocol.decode import Feeds
from enginewright_serving.server.startup.run_proof import RunProver

_log: Final = logging.getLogger(__name__)

_SLACK: Final = 10.0  # times the tolerance, for kernels of another size, which may use TF32 as the others did not

_Pair = tuple[list[NDArray[Any]], list[NDArray[Any]]]  # outputs of two requests that ran together


class NeighbourProver(RunProver):
    """Runs pairs of requests of one session, and batches of them."""

    def __init__(self, runner: Runner, signature: Signature) -> None:
        super().__init__(runner, signature)
        self._accepted: list[Feeds] = []  # neighbours whose values the model accepts

    def why_dependent(self, row: Feeds, samples: Sequence[Feeds]) -> str:
        """Return why requests must not run together, or "" if their outputs do not depend on each other.

        `row` is a request of one row, `samples` are inputs whose values the model accepts.
        """
        neighbours = make_neighbours(row, samples)
        if not neighbours:
            return "the golden samples have one value for each input: there is no other request to compare"
        try:
            return self._compare(row, neighbours)
        except Exception as error:  # noqa: BLE001 - ONNX Runtime's exceptions have no common class
            return f"the model fails on two requests at once: {plain(str(error))}"

    def why_dependent_among(self, row: Feeds, rows: int) -> str:
        """Return why so many requests must not run together, or "" likewise, once `why_dependent` has returned that.

        Requests may depend on those before the one beside them, as of a convolution over rows, or on their number.
        """
        others = list(islice(cycle(self._accepted), rows - 1))
        try:
            alone = self._run(row)
            same, first, last = (
                split(self._run(join(batch)), [1] * rows)
                for batch in ([row] * rows, [row, *others], [*others, row])
            )
        except Exception as error:  # noqa: BLE001 - as above
            return f"the model fails on {rows} requests at once: {plain(str(error))}"
        if same is None or first is None or last is None:
            return f"an output has other rows than the inputs of {rows} requests"
        names = (
            *(self._differing(alone, outputs, slack=_SLACK) for outputs in same),
            self._differing(same[0], first[0]),
            self._differing(same[-1], last[-1]),
        )
        name = next(filter(None, names), None)
        return (
            f"output {name!r} of a request depends on the others in a batch of {rows}"
            if name
            else ""
        )

    def _compare(self, row: Feeds, neighbours: Sequence[Feeds]) -> str:
        alone = self._run(row)
        own = self._run_pair(row, row)
        if own is None or alone[0].shape[:1] != (1,):
            return "the first dimension of an output is not that of the inputs"
        tried = [
            (neighbour, theirs)
            for neighbour in neighbours
            if (theirs := self._try_pair(neighbour)) is not None
        ]
        self._accepted = [neighbour for neighbour, _ in tried]
        name = self._differing(alone, own[0]) or self._differing(alone, own[1])
        for neighbour, theirs in tried:
            name = name or self._depending(row, own, neighbour, theirs)
        if name is not None:
            return f"output {name!r} of a request depends on the others in its batch"
        if not tried:
            return "the model accepts no other values beside a golden sample's"
        # equal outputs of unequal inputs would show no mixture of the two
        if all(all(map(is_same, own[0], theirs[0])) for _, theirs in tried):
            return "golden samples with other values have the same outputs"
        return ""

    def _depending(self, row: Feeds, own: _Pair, neighbour: Feeds, theirs: _Pair) -> str | None:
        """Return the output that changes with the other request in its batch, if one does.

        `own` and `theirs` are the outputs of two equal requests. Both are compared, since a common scale is that of
        the larger one; in runs of one size and in one place, so that kernels round alike.
        """
        for feeds, kept in (((row, neighbour), (own, theirs)), ((neighbour, row), (theirs, own))):
            mixed = self._run_pair(*feeds)
            if mixed is None:
                return self._outputs[0]
            for place in (0, 1):
                name = self._differing(kept[place][place], mixed[place])
                if name is not None:
                    return name
        return None

    def _run_pair(self, first: Feeds, second: Feeds) -> _Pair | None:
        """Return the outputs of two rows that run together, or None if an output has other rows."""
        parts = split(self._run(join([first, second])), [1, 1])
        return None if parts is None else (parts[0], parts[1])

    def _try_pair(self, neighbour: Feeds) -> _Pair | None:
        """Return the outputs of a neighbour beside itself, or None if the model does not accept its values."""
        try:
            return self._run_pair(neighbour, neighbour)
        except Exception as error:  # noqa: BLE001 - as above
            _log.info("values that the model refuses prove nothing: %s", plain(str(error)))
            return None
