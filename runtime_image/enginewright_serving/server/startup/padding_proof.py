"""Finds out at startup whether requests of different lengths may run together, padded, and up to which length that pays.

A model need not ignore what its mask excludes: an export without a mask, a mean over all positions, or positions that
count from the end change their outputs. So golden samples run alone and padded, beside others and in both places, and
so do short parts of them: what padding adds to a maximum, for example, shows only where all other values are below it.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from typing import Any, Final

import numpy as np
from enginewright_runtime.core.ort_messages import plain
from enginewright_runtime.session.neighbours import first_row, make_neighbours
from enginewright_runtime.session.samples import GoldenSample
from numpy.typing import NDArray

from enginewright_serving.server.inference.batching import BatchLimits, join, split
from enginewright_serving.server.inference.padding import Padding
from enginewright_serving.server.protocol.decode import Feeds
from enginewright_serving.server.startup.run_proof import RunProver

_log: Final = logging.getLogger(__name__)
_GAIN = 0.9  # a padded batch takes at most this share of its requests' time one by one
_RUNS: Final = 5  # of each; the fastest counts
_GAIN_SECONDS: Final = 2.0  # for all lengths but the longest
_SECONDS: Final = 5.0  # after which no golden samples are compared, but for parts of one
_FIELD: Final = "serving.batching.padding"

_Outputs = list[NDArray[Any]]


class _NoPaddingError(Exception):
    """Why requests are not padded."""


class PaddingProver(RunProver):
    """Proves and times padded batches of one session."""

    def prove(
        self, samples: Sequence[GoldenSample], values: Mapping[str, int], limits: BatchLimits
    ) -> tuple[Padding | None, str]:
        """Return how to pad with `values`, by input, or None and why not.

        `samples` have run; `limits` are those of batches of equal requests.
        """
        try:
            return self._prove([sample.feeds for sample in samples], values, limits), ""
        except _NoPaddingError as why:
            return None, str(why)
        except Exception as error:  # noqa: BLE001 - ONNX Runtime's exceptions have no common class
            return None, f"the model fails on padded requests: {plain(str(error))}"

    def _prove(
        self, samples: Sequence[Feeds], values: Mapping[str, int], limits: BatchLimits
    ) -> Padding:
        if limits.rows < 2:
            raise _NoPaddingError(f"requests do not run together at all: {limits.off}")
        inputs = {name: (self._find_axis(name), value) for name, value in values.items()}
        lengths = Padding(inputs, {}, 0)
        rows = sorted(map(first_row, samples), key=lengths.length_of)
        long = rows[-1]
        if not lengths.length_of(long):
            raise _NoPaddingError(
                f"the inputs that {_FIELD} names have no common length in any golden sample"
            )
        for name, array in long.items():
            if name not in inputs and any(row[name].shape != array.shape for row in rows):
                raise _NoPaddingError(
                    f"{_FIELD} does not name {name!r}, whose sizes differ between golden samples"
                )
        self._require_all_named(lengths, long)
        for name, (_, value) in inputs.items():
            if np.array(value).astype(long[name].dtype) != value:
                raise _NoPaddingError(
                    f"{_FIELD}: {name!r} is {long[name].dtype}, which has no {value}"
                )
        parts = self._cut(long, lengths)
        shorter = [row for row in rows if 0 < lengths.length_of(row) < lengths.length_of(long)]
        if not shorter and not parts:
            raise _NoPaddingError(
                "the golden samples have one length, and the model no shorter one"
            )
        axes = self._find_output_axes(lengths, long, (*shorter, *parts))
        padding = replace(limits.padding or Padding(), inputs=inputs, outputs=axes)
        # first, since the rest are many runs; nothing is padded beyond, and so nothing has to be proven there
        padding = replace(padding, longest=self._find_longest(padding, rows))
        if padding.longest < lengths.length_of(long):
            long = lengths.take(long, 0, padding.longest)
            parts = self._cut(long, lengths)
            shorter = [row for row in shorter if lengths.length_of(row) < padding.longest]
        self._compare_windows(padding, (*shorter, *parts), long, limits.rows)
        self._compare_all(padding, parts, shorter, long, samples, limits.rows)
        half = padding.longest / 2
        middle = min((*shorter, *parts), key=lambda row: abs(lengths.length_of(row) - half))
        return replace(padding, needed=self._find_needed(padding, middle, long))

    def _find_axis(self, name: str) -> int:
        tensor = self._signature.inputs.get(name)
        if tensor is None:
            raise _NoPaddingError(f"{_FIELD} names {name!r}, which is no input")
        axes = [axis for axis, size in enumerate(tensor.shape) if axis and size < 0]
        if len(axes) != 1:
            raise _NoPaddingError(
                f"{_FIELD}: {name!r} has {len(axes)} dynamic dimensions besides the first, not one"
            )
        return axes[0]

    def _require_all_named(self, lengths: Padding, long: Feeds) -> None:
        """Raise if another input has as many positions, such as a mask that was forgotten: shorter parts would not fit."""
        for name, tensor in self._signature.inputs.items():
            sizes = enumerate(long[name].shape)
            if name not in lengths.inputs and any(
                axis and size == lengths.length_of(long) > 1 and tensor.shape[axis] < 0
                for axis, size in sizes
            ):
                raise _NoPaddingError(f"{_FIELD} does not name {name!r}, which is as long")

    def _cut(self, long: Feeds, lengths: Padding) -> list[Feeds]:
        """Return beginnings of the longest sample that the model's profiles admit.

        Short ones show most: of few positions, what padding adds to a sum or a maximum is a large part.
        """
        full = lengths.length_of(long)
        rows = []
        for length in dict.fromkeys((1, 2, full // 2, full - 1)):
            row = lengths.take(long, 0, length)
            if 0 < length < full and self._admits(row):
                rows.append(row)
        return rows

    def _admits(self, row: Feeds) -> bool:
        return self._accepts({name: array.shape for name, array in row.items()})

    def _find_output_axes(
        self, lengths: Padding, long: Feeds, shorter: Sequence[Feeds]
    ) -> dict[str, tuple[int, ...]]:
        """Return the axes of each output that are as long as the request, in runs of different lengths."""
        runs = [(lengths.length_of(row), self._run(row)) for row in (*shorter, long)]
        found_axes = {}
        for place, name in enumerate(self._outputs):
            shapes = [(length, outputs[place].shape) for length, outputs in runs]
            first, *others = (shape for _, shape in shapes)
            if any(len(shape) != len(first) for shape in others):
                raise _NoPaddingError(f"output {name!r} has another rank at another length")
            varying = [
                axis for axis in range(len(first)) if any(s[axis] != first[axis] for s in others)
            ]
            if any(shape[axis] != length for axis in varying for length, shape in shapes):
                raise _NoPaddingError(
                    f"a dimension of output {name!r} varies with the length, but is not it"
                )
            found_axes[name] = tuple(varying)
        return found_axes

    def _compare_all(
        self,
        padding: Padding,
        parts: Sequence[Feeds],
        shorter: Sequence[Feeds],
        long: Feeds,
        samples: Sequence[Feeds],
        most: int,
    ) -> None:
        """Raise unless `parts` of the longest request and `shorter` ones, as time permits, have their outputs beside it."""
        end = self._clock() + _SECONDS
        beside_long = self._list_neighbours(long, samples)
        proven: list[int] = []
        # any order but that of lengths, so that those that time leaves out are of all lengths
        for short in (*parts, *shorter[::2], *shorter[1::2]):
            if len(proven) >= max(len(parts), 1) and self._clock() > end:
                break
            self._compare(padding, short, beside_long, most)
            self._compare(padding, long, self._list_neighbours(short, samples), most)
            proven.append(padding.length_of(short))
        _log.info(
            "padding up to length %d changes no output of requests of length %s beside %d others, nor theirs;"
            " shorter golden samples that were not compared for time: %d",
            padding.longest,
            ", ".join(map(str, sorted(set(proven)))),
            len(beside_long),
            len(parts) + len(shorter) - len(proven),
        )

    def _list_neighbours(self, row: Feeds, samples: Sequence[Feeds]) -> list[Feeds]:
        """Return a request and those of its length with other values, as far as the model accepts these."""
        return [row, *filter(self._is_accepted, make_neighbours(row, samples))]

    def _compare(self, padding: Padding, own: Feeds, others: Sequence[Feeds], most: int) -> None:
        """Raise unless a request has the outputs that it has alone, before and after `others` of another length."""
        alone = self._run(own)
        # a power of two, as the sizes that have run, with both places in one run if that is possible
        size = min(most, 1 << (len(others) + 1).bit_length())
        step = max(size - 2, 1)
        for at in range(0, len(others), step):
            beside = list(islice(cycle(others), at, at + step))
            batches = [[own, *beside, own]] if size > 2 else [[own, *beside], [*beside, own]]
            for batch in batches:
                for row, outputs in zip(batch, self._run_padded(padding, batch), strict=True):
                    if row is own:
                        self._require_same(alone, outputs)

    def _compare_windows(
        self, padding: Padding, shorter: Sequence[Feeds], long: Feeds, most: int
    ) -> None:
        """Raise unless parts of the longest request, as short as possible, have the outputs that they have alone."""
        length = min(map(padding.length_of, shorter))
        places = padding.length_of(long) - length + 1
        step = -(-places // (most - 1))
        windows = [padding.take(long, start, length) for start in range(0, places, step)]
        together = self._run_padded(padding, [*windows, long])
        for window, outputs in zip(windows, together[:-1], strict=True):
            self._require_same(self._run(window), outputs)

    def _find_needed(self, padding: Padding, short: Feeds, long: Feeds) -> tuple[str, ...]:
        """Return the inputs that change outputs by padding if they consist of it."""
        return tuple(
            name
            for name, (_, value) in padding.inputs.items()
            if not self._may_be_blank(
                padding, {**short, name: np.full_like(short[name], value)}, long
            )
        )

    def _may_be_blank(self, padding: Padding, blank: Feeds, long: Feeds) -> bool:
        try:
            self._require_same(self._run(blank), self._run_padded(padding, (blank, long))[0])
        except Exception:  # noqa: BLE001 - as above, or outputs differ
            return False
        return True

    def _require_same(self, alone: _Outputs, padded: _Outputs) -> None:
        name = self._differing(alone, padded)
        if name is not None:
            raise _NoPaddingError(f"output {name!r} of a request changes when it is padded")

    def _is_accepted(self, row: Feeds) -> bool:
        """Whether the model accepts the values of a made row."""
        try:
            self._run(row)
        except Exception:  # noqa: BLE001 - as above
            return False
        return True

    def _run_padded(self, padding: Padding, batch: Sequence[Feeds]) -> list[_Outputs]:
        parts = split(self._run(join(batch, padding)), [1] * len(batch))
        if parts is None:
            raise _NoPaddingError("the first dimension of an output is not that of the inputs")
        return [
            padding.cut_all(self._outputs, part, row)
            for row, part in zip(batch, parts, strict=True)
        ]

    def _find_longest(self, padding: Padding, rows: Sequence[Feeds]) -> int:
        """Return the length up to which padded requests are faster together, joining and cutting included; raise if none is.

        It is that of the longest of `rows`, or half, a quarter and so on of it.
        """
        end = self._clock() + _GAIN_SECONDS
        full = padding.length_of(rows[-1])
        least = next(filter(None, map(padding.length_of, rows)))
        halves = [full]
        while halves[0] // 2 >= (2 if least == full else max(least, 2)):
            halves.insert(0, halves[0] // 2)
        longest, together, apart = 0, 0.0, 0.0
        for length in halves:
            if longest and self._clock() > end and length < full:
                continue  # if padding pays at the longest, it does at this
            parts = [
                padding.take(rows[-1], 0, part)
                for part in (length // 2, least, length - 1)
                if 0 < part < length
            ]
            short = next(filter(self._admits, parts), None)
            if short is None:
                continue
            batch = [short, padding.take(rows[-1], 0, length)] * 2
            together = self._time(partial(self._run_padded, padding, batch), end)
            apart = self._time(partial(self._run_apart, batch), end)
            if together > _GAIN * apart:
                break
            longest = length
        if not longest:
            raise _NoPaddingError(
                f"a padded batch is not faster than its requests one by one: {together * 1e3:.3g} ms,"
                f" {apart * 1e3:.3g} ms"
            )
        return longest

    def _run_apart(self, batch: Sequence[Feeds]) -> list[_Outputs]:
        return [self._run(row) for row in batch]

    def _time(self, run: Callable[[], object], end: float) -> float:
        best = float("inf")
        for number in range(_RUNS):
            began = self._clock()
            run()
            best = min(best, self._end_run(began))
            if number and self._clock() > end:
                break
        return best
