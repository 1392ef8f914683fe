"""Requests that run together get the outputs that they get alone, and batches are used where they pay."""

import itertools
from typing import Any, Final

import numpy as np
import pytest
from enginewright_runtime.session.datatypes import BY_ONNX
from enginewright_runtime.session.samples import GoldenSample
from enginewright_runtime.session.signature import Signature, Tensor
from enginewright_serving.server.inference.batching import (
    BatchLimits,
    elements_of,
    join,
    joinable,
    rows_of,
    split,
)
from enginewright_serving.server.observe.buckets import ComputeBuckets
from enginewright_serving.server.startup.batch_proof import BatchProver
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from typing_extensions import override

FLOAT: Final = BY_ONNX["tensor(float)"]
ANY: Final = 2**31 - 1


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=6),
    arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)
def test_joined_arrays_are_split_again(rows: list[int], tail: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    requests = [{"x": rng.random((row, *tail)), "n": rng.random((row, 2))} for row in rows]
    joined = join(requests)
    assert rows_of(joined) == sum(rows)
    parts = split([joined["n"], joined["x"]], rows)
    assert parts is not None
    for request, (n, x) in zip(requests, parts, strict=True):
        np.testing.assert_array_equal(x, request["x"])
        np.testing.assert_array_equal(n, request["n"])


def test_an_output_with_other_rows_cannot_be_split() -> None:
    assert split([np.ones((3, 2)), np.ones((2, 2))], [1, 2]) is None
    assert split([np.ones(())], [1]) is None


def test_requests_of_other_sizes_are_not_joined() -> None:
    first = {"x": np.ones((1, 8)), "y": np.ones((1, 2))}
    assert joinable(first, {"y": np.ones((3, 2)), "x": np.ones((3, 8))})
    assert not joinable(first, {"x": np.ones((1, 8)), "y": np.ones((1, 3))})
    assert not joinable(first, {"x": np.ones((1, 8, 1)), "y": np.ones((1, 2))})


def test_rows_are_the_first_dimension_of_all_inputs() -> None:
    assert rows_of({"x": np.ones((3, 8)), "y": np.ones(3)}) == 3
    assert rows_of({"x": np.ones((3, 8)), "y": np.ones(2)}) == 0
    assert rows_of({"x": np.ones((3, 8)), "y": np.ones(())}) == 0
    assert elements_of({"x": np.ones((3, 8)), "y": np.ones(())}) == 25


def test_only_sizes_that_ran_are_used_where_each_costs() -> None:
    assert BatchLimits(8).whole([1] * 7) == 7
    limits = BatchLimits(8, (1, 2, 4, 8))
    assert [limits.whole([1] * count) for count in range(1, 9)] == [1, 2, 2, 4, 4, 4, 4, 8]
    assert limits.whole([3, 1, 2]) == 2
    assert limits.whole([3, 2]) == 1


class Model:
    """Runs of one model in this process; `seconds` is the time that a run of so many rows takes."""

    def __init__(self, compute: Any, seconds: Any = lambda _: 1e-4) -> None:
        self.compute = compute
        self.seconds = seconds
        self.now = 0.0
        self.sizes: set[int] = set()
        self.last = 0
        self.planning = 0.0  # seconds of a run after one of another size
        self.growth = 0.0  # seconds of each element
        self.shapes: set[tuple[int, ...]] = set()
        self.pairs = 0  # runs of two rows
        self.times: dict[int, dict[int, float]] = {}  # as measured

    def run(self, outputs: list[str], feeds: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
        assert outputs == ["y"]
        x = feeds["x"]
        self.sizes.add(len(x))
        self.shapes.add(x.shape)
        self.pairs += len(x) == 2
        self.now += self.seconds(len(x)) + self.planning * (len(x) != self.last)
        self.now += self.growth * x.size
        self.last = len(x)
        return [self.compute(x)]

    def clock(self) -> float:
        return self.now

    def prove(self, **changes: Any) -> BatchLimits:
        bounds = changes.pop("bounds", ((0, ANY), (4, 4)))
        datatype = changes.pop("datatype", FLOAT)
        resident = changes.pop("resident", lambda: 0)
        memory = changes.pop("memory", None)
        earlier = changes.pop("earlier", {})
        output = Tensor("y", FLOAT, changes.pop("output", (-1, 4)), ())
        signature = Signature({"x": Tensor("x", datatype, (-1, 4), bounds)}, {"y": output}, ())
        rng = np.random.default_rng(1)
        inputs = changes.pop("inputs", [rng.random((2, 4), np.float32) for _ in range(2)])
        samples = [GoldenSample(f"s{index}", {"x": x}, {}) for index, x in enumerate(inputs)]
        prover = BatchProver(
            self,  # type: ignore[arg-type]  # it runs what a session would
            signature,
            ComputeBuckets(),
            memory,
            earlier,
        )
        prover._resident, prover._clock = resident, self.clock
        asked: dict[str, Any] = {
            "most": 32,
            "delay": 0.0,
            "varying": False,
            "on_cpu": True,
            "by_sizes": True,
            "by_range": "",
            "sized_by_values": {},
        }
        limits = prover.prove(samples, **(asked | changes))
        self.times = prover.times
        return limits


def test_a_batch_pays_where_a_run_costs_more_than_its_rows() -> None:
    proof = Model(np.tanh).prove()
    assert (proof.rows, proof.off, proof.turn_rows, proof.turn_elements) == (32, "", 32, 128)
    # a millisecond, and a tenth of it for each row
    proof = Model(np.tanh, lambda rows: 1e-3 + 1e-4 * rows).prove()
    assert (proof.rows, proof.turn_rows) == (32, 0)


def test_times_of_another_pod_save_repetitions_as_far_as_runs_confirm_them() -> None:
    first, again, slower = (Model(np.tanh, lambda rows: 1e-3 + 1e-4 * rows) for _ in range(3))
    limits = first.prove()
    assert again.prove(earlier=first.times) == limits
    assert again.times == first.times
    assert again.now < first.now / 2
    twice = {
        elements: {rows: 2 * seconds for rows, seconds in times.items()}
        for elements, times in first.times.items()
    }
    assert slower.prove(earlier=twice) == limits
    assert (slower.times, slower.now) == (first.times, first.now)


def test_outputs_that_depend_on_neighbours_are_found_whatever_another_pod_measured() -> None:
    first = Model(np.tanh)
    assert first.prove().rows > 1
    shared = Model(lambda x: x / np.abs(x).max())
    limits = shared.prove(earlier=first.times)
    assert (limits.rows, "depends on the others" in limits.off) == (1, True)


def test_a_batch_that_gains_nothing_is_not_used_and_larger_ones_are_not_tried() -> None:
    model = Model(np.tanh, lambda rows: 1e-3 * rows)
    proof = model.prove()
    assert proof.rows == 1
    assert "not faster" in proof.off
    assert model.sizes == {1, 2}


@pytest.mark.parametrize(
    ("planning", "on_cpu", "rows"),
    [(0.1, False, 1), (0.1, True, 32), (0.001, False, 32)],
)
def test_costly_size_changes_make_batches_useless(planning: float, on_cpu: bool, rows: int) -> None:
    """As of convolutions on a GPU, which are planned again whenever the size changes."""
    model = Model(np.tanh, lambda count: 2e-3 + 1e-5 * count)
    model.planning = planning
    proof = model.prove(on_cpu=on_cpu)
    assert proof.rows == rows
    assert proof.sizes == (
        () if on_cpu else tuple(number for number in (1, 2, 4, 8, 16, 32) if number <= rows)
    )
    assert ("where the one before had another size" in proof.off) is (rows == 1)


def test_the_smallest_of_about_the_fastest_sizes_is_used() -> None:
    # what fits a vector register of eight costs the same
    proof = Model(np.tanh, lambda rows: 1e-2 * -(-rows // 8)).prove()
    assert proof.rows == 8


def test_short_runs_have_larger_batches_as_each_costs_something_around_it() -> None:
    # of one row 86 µs, of 4 to 64 about 31 µs a row: measured
    times = {1: 86e-6, 2: 93e-6, 4: 127e-6, 8: 246e-6, 16: 502e-6, 32: 1030e-6}
    assert Model(np.tanh, times.__getitem__).prove().rows == 8
    # a hundred times as long, with which the costs around them are nothing
    assert Model(np.tanh, lambda rows: 100 * times[rows]).prove().rows == 4


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x / x.max(),  # as with activations quantized at run time
        lambda x: x - x.mean(0, keepdims=True),
        lambda x: np.cumsum(x, 0),
        lambda x: x[::-1],
        lambda x: np.roll(x, 1, 0) if len(x) > 1 else x,
    ],
)
def test_outputs_that_depend_on_neighbours_allow_no_batch(compute: Any) -> None:
    proof = Model(compute).prove()
    assert proof.rows == 1
    assert "depends on the others" in proof.off


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: np.tanh(x) + np.tanh(np.pad(x, ((2, 0), (0, 0)))[:-2]),
        lambda x: np.tanh(x) * (np.arange(len(x)) < 8)[:, None],
    ],
    ids=["of the row before the last", "of how many there are"],
)
def test_outputs_that_depend_on_more_than_one_other_allow_no_batch(compute: Any) -> None:
    """As of a convolution over rows, and of experts that take a limited number of them."""
    proof = Model(compute).prove()
    assert proof.rows == 1
    assert "depends on the others in a batch of 32" in proof.off


def test_a_model_that_normalizes_its_inputs_is_batched_with_one_golden_sample() -> None:
    def normalize(x: NDArray[Any]) -> NDArray[Any]:
        outputs: NDArray[Any] = x / np.abs(x).max(1, keepdims=True)
        return outputs

    sample = np.random.default_rng(1).random((1, 4), np.float32)
    proof = Model(normalize).prove(inputs=[sample])
    assert (proof.rows, proof.off) == (32, "")


def test_kernels_may_round_differently() -> None:
    proof = Model(lambda x: np.tanh(x) * (1 + 1e-6 * len(x))).prove()
    assert proof.rows == 32


TABLE: Final = np.random.default_rng(2).standard_normal((100, 4)).astype(np.float32)
TOKENS: Final = {"datatype": BY_ONNX["tensor(int64)"], "bounds": ((0, ANY), (0, ANY))}


def encode(ids: NDArray[Any]) -> NDArray[Any]:
    """Return the mean of each row's embeddings."""
    outputs: NDArray[Any] = TABLE[ids].mean(1)
    return outputs


def encode_in_8_bits(ids: NDArray[Any]) -> NDArray[Any]:
    """Return the same from embeddings that are quantized by the largest of the whole batch."""
    scale = np.abs(TABLE[ids]).max() / 127
    outputs: NDArray[Any] = (np.rint(TABLE[ids] / scale) * scale).mean(1)
    return outputs


def tokens(*lengths: int) -> list[NDArray[Any]]:
    rng = np.random.default_rng(3)
    return [rng.integers(0, 10, (1, length)) for length in lengths]


@pytest.mark.parametrize("lengths", [(4,), (4, 64), (64, 4), (4, 4)])
def test_indices_that_share_a_scale_allow_no_batch_and_others_do(lengths: tuple[int, ...]) -> None:
    """Of any lengths, also where the golden samples have few of the indices."""
    proof = Model(encode_in_8_bits).prove(inputs=tokens(*lengths), **TOKENS)
    assert proof.rows == 1
    assert "depends on the others" in proof.off
    proof = Model(encode).prove(inputs=tokens(*lengths), **TOKENS)
    assert (proof.rows, proof.off) == (32, "")


def text_model(**changes: Any) -> Model:
    """Return an encoder of which a run takes a millisecond, and a tenth of it for each token."""
    model = Model(changes.pop("compute", encode), lambda _: 1e-3)
    model.growth = 1e-4
    return model


def joins(proof: BatchLimits, length: int) -> bool:
    feeds = {"x": np.ones((1, length), np.int64)}
    return proof.rows > 1 and (proof.padding is None or proof.padding.is_joinable(feeds, feeds))


@pytest.mark.parametrize("lengths", [(4, 128), (128, 4), (4, 60, 128)])
def test_requests_run_together_up_to_the_length_at_which_that_pays(
    lengths: tuple[int, ...],
) -> None:
    """Also where the first golden sample is not the shortest; parts of the longest are timed between the samples."""
    proof = text_model().prove(inputs=tokens(*lengths), **TOKENS)
    assert (proof.rows, proof.off) == (16, "")
    # between two lengths that were timed, that of the longer one counts
    assert [size for size in (1, 4, 33, 64, 65, 128, 500) if joins(proof, size)] == [1, 4, 33, 64]
    gains = dict(proof.gains)
    assert gains[4] > gains[32] > 1.2 > gains[128] > 1.0


def test_larger_requests_than_all_samples_run_together_where_the_largest_sample_pays() -> None:
    proof = text_model().prove(inputs=tokens(4, 16), **TOKENS)
    assert (proof.rows, proof.padding) == (16, None)
    assert joins(proof, 500)


def test_a_model_without_variable_sizes_is_timed_with_one_request() -> None:
    model = Model(np.tanh, lambda rows: 1e-3 + 1e-4 * rows)
    proof = model.prove()
    assert (proof.padding, [size for size, _ in proof.gains]) == (None, [4])
    assert model.shapes == {(rows, 4) for rows in (1, 2, 4, 8, 16, 32)}
    assert model.pairs == 4 + 5, "proven once, and timed"


def test_a_length_whose_batches_do_not_fit_into_the_memory_runs_alone() -> None:
    class Growing(Model):
        @override
        def run(self, outputs: list[str], feeds: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
            self.resident = max(self.resident, feeds["x"].size)
            return super().run(outputs, feeds)

        resident = 0

    model = Growing(encode, lambda _: 1e-3)
    proof = model.prove(inputs=tokens(4, 32), memory=200, resident=lambda: model.resident, **TOKENS)
    assert proof.rows > 1
    assert joins(proof, 4)
    assert not joins(proof, 32)


def test_lengths_are_timed_for_a_few_seconds_only() -> None:
    model = Model(encode, lambda _: 0.1)
    model.growth = 1e-3
    proof = model.prove(inputs=tokens(4, 4096), **TOKENS)
    assert proof.rows > 1
    assert model.now < 20
    assert not joins(proof, 4096)


def test_outputs_that_depend_on_neighbours_of_long_requests_allow_no_batch() -> None:
    """As of experts that take a limited number of tokens."""

    def limit(ids: NDArray[Any]) -> NDArray[Any]:
        outputs: NDArray[Any] = encode(ids) * (np.arange(len(ids)) * ids.shape[1] < 100)[:, None]
        return outputs

    proof = Model(limit, lambda _: 1e-2).prove(inputs=tokens(1, 64), **TOKENS)
    assert proof.rows == 1
    assert "depends on the others in a batch" in proof.off


@pytest.mark.parametrize(
    ("compute", "rows"),
    [
        (lambda kept: TABLE[:4, 0] * kept, 32),
        (lambda kept: TABLE[:4, 0] * (kept + kept.mean()), 1),
    ],
    ids=["own mask", "the masks of all"],
)
def test_masks_of_one_value_are_inverted(compute: Any, rows: int) -> None:
    ones = np.ones((1, 4), np.bool_)
    proof = Model(lambda kept: compute(kept).astype(np.float32)).prove(
        inputs=[ones, ones], datatype=BY_ONNX["tensor(bool)"]
    )
    assert proof.rows == rows


@pytest.mark.parametrize(
    ("compute", "inputs", "off"),
    [
        (encode_in_8_bits, [np.full((1, 4), 7)] * 2, "no other request to compare"),
        (lambda ids: np.ones((len(ids), 4), np.float32), tokens(4, 4), "have the same outputs"),
        (lambda ids: encode(refuse_others(ids)), tokens(4, 64), "accepts no other values"),
    ],
)
def test_where_nothing_is_compared_there_are_no_batches(
    compute: Any, inputs: list[NDArray[Any]], off: str
) -> None:
    proof = Model(compute).prove(inputs=inputs, **TOKENS)
    assert proof.rows == 1
    assert off in proof.off


def refuse_others(ids: NDArray[Any]) -> NDArray[Any]:
    """Return the first golden sample's indices alone, as a model that takes no others."""
    if not (ids == tokens(4)[0]).all():
        raise RuntimeError("indices element out of data bounds")
    return ids


def test_values_that_the_model_refuses_leave_the_others() -> None:
    """As a length that is beyond what the row has."""

    def compute(lengths: NDArray[Any]) -> NDArray[Any]:
        if lengths.max() > 8:
            raise RuntimeError("out of data bounds")
        outputs: NDArray[Any] = TABLE[lengths[:, 0]]
        return outputs

    proof = Model(compute).prove(
        inputs=[np.array([[5]]), np.array([[8]]), np.array([[64]])], **TOKENS
    )
    assert proof.off == "the model accepts no other values beside a golden sample's"
    proof = Model(compute).prove(
        inputs=[np.array([[5]]), np.array([[64]]), np.array([[8]])], **TOKENS
    )
    assert (proof.rows, proof.off) == (32, "")


def _fails_on_several(x: NDArray[Any]) -> NDArray[Any]:
    if len(x) > 2:
        raise RuntimeError("out of memory")
    outputs: NDArray[Any] = np.tanh(x)
    return outputs


@pytest.mark.parametrize(
    ("compute", "changes", "off"),
    [
        (np.tanh, {"most": 1}, "maxSize is 1"),
        (np.tanh, {"varying": True}, "differ from run to run"),
        (np.tanh, {"by_range": "quantize (DynamicQuantizeLinear)"}, "by their common range"),
        (
            np.tanh,
            {"sized_by_values": {"x": "no output", "y": "boxes (NonMaxSuppression)"}},
            "the sizes of output 'y' depend on values: boxes (NonMaxSuppression)",
        ),
        (np.tanh, {"output": (4, 4)}, "first dimension of 'y' is not dynamic"),
        (np.tanh, {"bounds": ((1, 1), (4, 4))}, "do not admit two"),
        (np.tanh, {"bounds": ((2, 8), (4, 4))}, "do not admit two"),
        (lambda x: np.repeat(x, 2, 0), {}, "not that of the inputs"),
    ],
)
def test_why_there_are_no_batches(compute: Any, changes: dict[str, Any], off: str) -> None:
    proof = Model(compute).prove(**changes)
    assert proof.rows == 1
    assert off in proof.off


def test_batches_stay_within_limits() -> None:
    assert Model(np.tanh).prove(bounds=((1, 6), (4, 4))).rows == 4
    assert Model(_fails_on_several).prove().rows == 2
    resident = itertools.count(100, 10)
    assert 1 < Model(np.tanh).prove(memory=200, resident=lambda: next(resident)).rows < 32


def test_runs_in_the_event_loop_are_short_and_cannot_hang() -> None:
    assert Model(np.tanh).prove(on_cpu=False).turn_rows == 0
    assert Model(np.tanh).prove(by_sizes=False).turn_rows == 0
    assert Model(np.tanh).prove(delay=0.01).turn_rows == 0
    assert Model(np.tanh, lambda rows: 2e-4 * rows).prove().turn_rows == 4, "of those timed"
    assert Model(np.tanh, lambda rows: 1e-4 * rows).prove(most=1).turn_rows == 2, "as the sample"
    assert Model(np.tanh).prove(on_cpu=False).sizes == (1, 2, 4, 8, 16, 32)
