"""Finds out at startup whether the model may run several requests at once, and whether that pays.

A request's outputs must not depend on its neighbours. Then batch sizes are timed, joining and splitting included; the
smallest one that is about as fast per request as any is used.
"""

import logging
from collections.abc import Sequence
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
from enginewright_serving.server.observe.buckets import ComputeBuckets
from enginewright_serving.server.protocol.decode import Feeds
from enginewright_serving.server.startup.neighbour_proof import NeighbourProver
from enginewright_serving.server.startup.run_proof import RunProver

_log: Final = logging.getLogger(__name__)
_GAIN: Final = 0.9  # a batch takes at most this share of its requests' time one by one
_ABOUT: Final = 1.1  # a size this much slower than the fastest is fast enough
_RUNS: Final = 5  # of each size; the fastest counts
_CHANGES: Final = 2  # of the size of a run; the fastest run after one counts
_SECONDS: Final = 2.0  # for all sizes
_TURN_SECONDS: Final = 0.001  # of the event loop, in which it serves no other connection


class BatchProver(RunProver):
    """Proves and times batches of one session."""

    def __init__(
        self,
        runner: Runner,
        signature: Signature,
        buckets: ComputeBuckets,
        memory: int | None,
    ) -> None:
        super().__init__(runner, signature)
        self._buckets = buckets
        self._memory = memory  # bytes that the process may use, if known

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
    ) -> BatchLimits:
        """Return the limits of batches with up to `most` rows, from golden samples, which have run.

        A request may wait `delay` seconds for others. `varying`: some output differs from run to run. `on_cpu`:
        ONNX Runtime's CPU provider, which has no device that may hang, and on which a new size costs little, runs
        it; others run in the model's thread, with sizes that ran here. `by_sizes`: the time of a run depends on
        sizes only, otherwise no run is in the event loop. `by_range`: the node, if any, that quantizes all rows
        by their common range.
        """
        row = first_row(samples[0].feeds)
        off = self._why_not(row, most, varying=varying, by_range=by_range)
        prover = NeighbourProver(self._runner, self._signature)
        if not off:
            off = prover.why_dependent(row, [sample.feeds for sample in samples])
        if off:
            row, most = samples[0].feeds, rows_of(samples[0].feeds) or 1
        times = self._times(row, most)
        single = times[rows_of(row) or 1]
        turn_rows = max(
            (rows for rows, taken in times.items() if taken <= _TURN_SECONDS), default=0
        )
        if not (on_cpu and by_sizes) or delay:
            turn_rows = 0
        turn_elements = elements_of(row) * turn_rows // (rows_of(row) or 1)
        rows = 1
        if not off:
            rows = _worthwhile(times, single)
            if rows == 1:
                off = "a batch is not faster than its requests one by one"
            elif (off := prover.why_dependent_among(row, rows)) or (
                not on_cpu and (off := self._why_costly(row, rows, single))
            ):
                rows = 1
        sizes = () if on_cpu else tuple(number for number in times if number <= rows)
        return BatchLimits(rows, sizes, off, delay, turn_rows, turn_elements)

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

    def _times(self, row: Feeds, most: int) -> dict[int, float]:
        """Return the seconds of a run by rows: of `row`, and of twice as many while that fits and pays.

        Short runs are tried in any case: joining two small requests may cost more than a run saves, unlike many.
        """
        end = self._clock() + _SECONDS
        unit = rows_of(row) or 1
        times = {unit: self._time(row, 1, end)}
        before = self._resident()
        rows = unit * 2
        while rows <= most and self._accepts_rows(row, rows) and self._clock() < end:
            growth = max(
                self._resident() - before, rows * sum(array.nbytes for array in row.values())
            )
            if self._memory is not None and self._resident() + 2 * growth > self._memory:
                break
            try:
                times[rows] = self._time(row, rows // unit, end)
            except Exception as error:  # noqa: BLE001 - as above; smaller ones ran
                _log.warning("no batches of %d requests: %s", rows, plain(str(error)))
                break
            if times[rows] > max(2 * _GAIN * times[rows // 2], _TURN_SECONDS):
                break
            rows *= 2
        return times

    def _time(self, row: Feeds, count: int, end: float) -> float:
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
            if number and self._clock() > end:
                break
        return best


def batch_feeds(samples: Sequence[GoldenSample], limits: BatchLimits) -> Feeds:
    """Return the inputs of a full batch, which have run, {} without batches."""
    return join([first_row(samples[0].feeds)] * limits.rows) if limits.rows > 1 else {}


def _worthwhile(times: dict[int, float], single: float) -> int:
    seconds = {rows: taken / rows for rows, taken in times.items()}
    fastest = min(seconds.values())
    if fastest > _GAIN * single:
        return 1
    return min(rows for rows, taken in seconds.items() if taken <= _ABOUT * fastest)
