"""Finds out at startup whether the model may run several requests at once, and whether that pays.

A request's outputs must not depend on its neighbours. Then batch sizes are timed, joining and splitting included, with
the smallest golden sample: the smallest size that is about as fast per request as any is used. Larger requests gain
less, so batches of that size are timed with them too, up to the first that gain nothing.
"""

import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from enginewright_runtime.core.ort_messages import plain
from enginewright_runtime.session.neighbours import first_row
from enginewright_runtime.session.runner import Runner
from enginewright_runtime.session.samples import GoldenSample
from enginewright_runtime.session.signature import Signature

from enginewright_serving.server.inference.batching import (
    BatchLimits,
    elements_of,
    join,
    rows_of,
    split,
)
from enginewright_serving.server.inference.padding import Padding
from enginewright_serving.server.observe.buckets import ComputeBuckets
from enginewright_serving.server.protocol.decode import Feeds
from enginewright_serving.server.startup.known_times import is_confirmed
from enginewright_serving.server.startup.neighbour_proof import NeighbourProver
from enginewright_serving.server.startup.run_proof import RunProver

_log: Final = logging.getLogger(__name__)
_GAIN = 0.9  # a batch takes at most this share of its requests' time one by one
_ABOUT: Final = 1.1  # a size this much slower than the fastest is fast enough
# What a run costs around it besides: the server's turn, and the caches that the weights have taken. Without it, a model
# of 6 MB with runs of 0.1 ms has batches of 4 rows, with which it answers a seventh fewer requests than with 8.
_AROUND_SECONDS: Final = 5e-5
_RUNS: Final = 5  # of each size; the fastest counts
_CHANGES: Final = 2  # of the size of a run; the fastest run after one counts
_SECONDS: Final = 2.0  # for all sizes, and likewise for larger requests, but for the largest
_TURN_SECONDS: Final = 0.001  # of the event loop, in which it serves no other connection


class BatchProver(RunProver):
    """Proves and times batches of one session."""

    def __init__(
        self,
        runner: Runner,
        signature: Signature,
        buckets: ComputeBuckets,
        memory: int | None,
        earlier: Mapping[int, Mapping[int, float]] = MappingProxyType({}),
    ) -> None:
        super().__init__(runner, signature)
        self._buckets = buckets
        self._memory = memory  # bytes that the process may use, if known
        self._earlier = earlier  # seconds by rows, by elements of a row
        self.times: dict[int, dict[int, float]] = {}  # likewise, as measured

    def prove(
        self,
        samples: Sequence[GoldenSample],
        *,
        most: int,
        delay: float,
        varying: bool,
        on_cpu: bool,
        by_sizes: bool,
        by_range: str,
        sized_by_values: Mapping[str, str],
    ) -> BatchLimits:
        """Return the limits of batches with up to `most` rows, from golden samples, which have run.

        A request may wait `delay` seconds for others. `varying`: some output differs from run to run. `on_cpu`:
        ONNX Runtime's CPU provider, which has no device that may hang, and on which a new size costs little, runs
        it; others run in the model's thread, with sizes that ran here. `by_sizes`: the time of a run depends on
        sizes only, otherwise no run is in the event loop. `by_range`: the node, if any, that quantizes all rows
        by their common range. `sized_by_values`: the node, by output, by which its sizes depend on values.
        """
        given = [sample.feeds for sample in samples]
        first_rows = list(map(first_row, given))
        first = first_rows[0]
        sized = [name for name in self._outputs if name in sized_by_values]
        off = self._why_not(first, most, varying=varying, by_range=by_range)
        if sized and not off:
            off = f"the sizes of output {sized[0]!r} depend on values: {sized_by_values[sized[0]]}"
        prover = NeighbourProver(self._runner, self._signature)
        off = off or prover.why_dependent(first, given)
        requests = [given[0]] if off else self._list_requests(first_rows)
        row = requests[0]
        times = self._times(row, (rows_of(row) or 1) if off else most)
        single = times[rows_of(row) or 1]
        timed = [(row, times)]
        rows, largest = 1, 0
        if not off:
            rows = _worthwhile(times, single)
            off = "" if rows > 1 else "a batch is not faster than its requests one by one"
        if rows > 1:
            paying = self._time_larger(requests[1:], rows, timed)
            of_largest = requests[paying]
            largest = elements_of(of_largest) if of_largest is not requests[-1] else 0
            off = "" if of_largest is first else prover.why_dependent(of_largest, given)
            off = off or prover.why_dependent_among(of_largest, rows)
            off = off or ("" if on_cpu else self._why_costly(row, rows, single))
        if off:
            rows, largest = 1, 0
        gains = tuple(
            (elements_of(request), round(rows * taken[1] / taken[rows], 2))
            for request, taken in timed
            if rows in taken and rows > 1
        )
        if off:
            _log.info("no batches: %s", off)
        else:
            _log.info("batches of up to %d rows; gain by elements of a row: %s", rows, dict(gains))
        short = [
            (number, elements_of(request) * number // (rows_of(request) or 1))
            for request, taken in timed
            for number, seconds in taken.items()
            if seconds <= _TURN_SECONDS and on_cpu and by_sizes and not delay
        ]
        turn_rows, turn_elements = map(max, zip(*short, strict=True)) if short else (0, 0)
        return BatchLimits(
            rows,
            () if on_cpu else tuple(number for number in times if number <= rows),
            off,
            delay,
            turn_rows,
            turn_elements,
            padding=Padding(largest=largest) if largest else None,
            gains=gains,
        )

    def _list_requests(self, rows: Sequence[Feeds]) -> list[Feeds]:
        """Return the smallest of `rows`, then ever larger parts of the largest: a quarter, half and all of it."""
        rows = [row for row in rows if rows_of(row) == 1 and elements_of(row)] or rows[:1]
        smallest, row = (choose(rows, key=elements_of) for choose in (min, max))
        larger: list[Feeds] = []
        left = elements_of(row) + 1
        while elements_of(smallest) < elements_of(row) < left:
            if self._accepts({name: array.shape for name, array in row.items()}):
                larger.insert(0, row)
            left = elements_of(row)
            row = {
                name: array[tuple(map(_first_half, array.shape, smallest[name].shape))]
                for name, array in row.items()
            }
        return [smallest, *larger]

    def _time_larger(
        self, requests: Sequence[Feeds], rows: int, timed: list[tuple[Feeds, dict[int, float]]]
    ) -> int:
        """Append the times of `requests`, smallest first, to `timed`; return of how many a batch of `rows` pays."""
        end = self._clock() + _SECONDS
        paying = 0
        for number, request in enumerate(requests, 1):
            if self._clock() > end and number < len(requests):
                continue  # if a batch of the largest pays, one of this does
            try:
                times = self._times(request, rows, least=rows)
            except Exception as error:  # noqa: BLE001 - ONNX Runtime's exceptions have no common class
                _log.warning("no batches of larger requests: %s", plain(str(error)))
                break
            timed.append((request, times))
            if times.get(rows, float("inf")) > _GAIN * rows * times[1]:
                break
            paying = number
        return paying

    def _why_not(self, row: Feeds, most: int, *, varying: bool, by_range: str) -> str:
        """Return why the model has no batches as far as that is known without runs, or ""."""
        signature = self._signature
        tensors = (*signature.inputs.values(), *signature.outputs.values())
        fixed = next(
            (tensor for tensor in tensors if not tensor.shape or tensor.shape[0] >= 0), None
        )
        off = ""
        if most < 2:
            off = "serving.batching.maxSize is 1"
        elif varying:
            off = "outputs differ from run to run"
        elif by_range:
            off = f"{by_range} quantizes all requests of a batch by their common range"
        elif signature.valued:
            off = "values of inputs are sizes"
        elif fixed is not None:
            off = f"the first dimension of {fixed.name!r} is not dynamic"
        elif rows_of(row) != 1:
            off = "the inputs of a golden sample have different first dimensions"
        elif not self._accepts_rows(row, 1) or not self._accepts_rows(row, 2):
            off = "the shape profiles do not admit two requests at once"
        return off

    def _accepts_rows(self, row: Feeds, rows: int) -> bool:
        return self._accepts({name: (rows, *array.shape[1:]) for name, array in row.items()})

    def _why_costly(self, row: Feeds, rows: int, single: float) -> str:
        """Return why batches cost more than they save when their sizes change from run to run, or "".

        A provider may plan again whenever the sizes change: of a text detector with 62 convolutions a run of ONNX
        Runtime's CUDA provider takes 3 ms at one size, and 147 ms after each change.
        """
        batch = join([row] * rows)
        changed = float("inf")
        for _ in range(_CHANGES):
            self._run(row)
            began = self._clock()
            self._run(batch)
            changed = min(changed, self._end_run(began))
        if changed <= _GAIN * rows * single:
            return ""
        return (
            f"a run takes {changed * 1e3:.3g} ms where the one before had another size: {rows} requests one by one"
            f" take {rows * single * 1e3:.3g} ms"
        )

    def _times(self, row: Feeds, most: int, *, least: int = 1) -> dict[int, float]:
        """Return the seconds of a run by rows: of `row`, and of twice as many while that fits, and pays beyond `least`.

        Short runs are tried in any case: joining two small requests may cost more than a run saves, unlike many.
        """
        end = self._clock() + _SECONDS
        unit = rows_of(row) or 1
        earlier = self._earlier.get(elements_of(row), {})
        times = {unit: self._time(row, 1, end, earlier.get(unit))}
        self.times[elements_of(row)] = times
        before = self._resident()
        rows = unit * 2
        while rows <= most and self._accepts_rows(row, rows):
            if times[rows // 2] > _SECONDS if rows <= least else self._clock() >= end:
                break
            growth = max(
                self._resident() - before, rows * sum(array.nbytes for array in row.values())
            )
            if self._memory is not None and self._resident() + 2 * growth > self._memory:
                break
            try:
                times[rows] = self._time(row, rows // unit, end, earlier.get(rows))
            except Exception as error:  # noqa: BLE001 - as above; smaller ones ran
                _log.warning("no batches of %d requests: %s", rows, plain(str(error)))
                break
            if rows >= least and times[rows] > max(2 * _GAIN * times[rows // 2], _TURN_SECONDS):
                break
            rows *= 2
        return times

    def _time(self, row: Feeds, count: int, end: float, earlier: float | None) -> float:
        best = float("inf")
        for number in range(_RUNS):
            began = self._clock()
            if count == 1:
                feeds = row
                self._run(feeds)
            else:
                feeds = join([row] * count)
                split(self._run(feeds), [1] * count)
            taken = self._end_run(began)
            best = min(best, taken)
            self._buckets.add_warm_up(feeds, taken)
            if earlier and is_confirmed(earlier, best):
                return earlier
            if number and self._clock() > end:
                break
        return best


def batch_feeds(samples: Sequence[GoldenSample], limits: BatchLimits) -> Feeds:
    """Return the inputs of a full batch of first samples, which have run, {} where these run alone."""
    row = first_row(samples[0].feeds)
    runs_alone = limits.rows < 2 or (limits.padding is not None and not limits.padding.admits(row))
    return {} if runs_alone else join([row] * limits.rows)


def _worthwhile(times: dict[int, float], single: float) -> int:
    if min(taken / rows for rows, taken in times.items()) > _GAIN * single:
        return 1
    seconds = {rows: (taken + _AROUND_SECONDS) / rows for rows, taken in times.items()}
    fastest = min(seconds.values())
    return min(rows for rows, taken in seconds.items() if taken <= _ABOUT * fastest)


def _first_half(size: int, least: int) -> slice:
    """Return the first half of a dimension, or all of it if it is no longer than `least`."""
    return slice(-(-size // 2) if size > least else size)
