"""Padding is proven with the longest request that is padded, in bounded time, and used where it pays."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pytest
from enginewright_runtime.session.datatypes import BY_ONNX
from enginewright_runtime.session.samples import GoldenSample
from enginewright_runtime.session.signature import Signature, Tensor
from enginewright_serving.server.inference.batching import BatchLimits
from enginewright_serving.server.inference.padding import Padding
from enginewright_serving.server.startup.padding_proof import PaddingProver
from numpy.typing import NDArray

TABLE: Final = np.random.default_rng(2).standard_normal((100, 4)).astype(np.float32)
IDS, FLOAT = BY_ONNX["tensor(int64)"], BY_ONNX["tensor(float)"]
ANY: Final = 2**31 - 1
VALUES: Final = {"ids": 0, "mask": 0}

Compute = Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]


def pool(ids: NDArray[Any], mask: NDArray[Any]) -> NDArray[Any]:
    """Return the mean of the embeddings that the mask includes."""
    weights = mask[:, :, None] / np.maximum(mask.sum(1), 1)[:, None, None]
    outputs: NDArray[Any] = (TABLE[ids] * weights).sum(1).astype(np.float32)
    return outputs


class Encoder:
    """Runs of one encoder in this process; a run takes `fixed` seconds, and `growth` for each position."""

    def __init__(self, compute: Compute = pool, fixed: float = 1e-3, growth: float = 1e-4) -> None:
        self.compute, self.fixed, self.growth = compute, fixed, growth
        self.now = 0.0
        self.shapes: list[tuple[int, int]] = []

    def run(self, outputs: list[str], feeds: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
        assert outputs == ["pooled"]
        rows, length = feeds["ids"].shape
        self.shapes.append((rows, length))
        self.now += self.fixed + self.growth * rows * length
        return [self.compute(feeds["ids"], feeds["mask"])]

    def prove(
        self, lengths: Sequence[int], *, rows: int = 8, least: int = 0
    ) -> tuple[Padding | None, str]:
        bounds = ((0, ANY), (least, ANY))
        signature = Signature(
            {name: Tensor(name, IDS, (-1, -1), bounds) for name in VALUES},
            {"pooled": Tensor("pooled", FLOAT, (-1, 4), ())},
            (),
        )
        prover = PaddingProver(
            self,  # type: ignore[arg-type]  # it runs what a session would
            signature,
        )
        prover._clock = lambda: self.now
        samples = [GoldenSample(str(index), text(size), {}) for index, size in enumerate(lengths)]
        return prover.prove(samples, VALUES, BatchLimits(rows))


def text(length: int) -> dict[str, NDArray[Any]]:
    ids = np.random.default_rng(length).integers(1, 100, (1, length))
    return {"ids": ids, "mask": np.ones((1, length), np.int64)}


@pytest.mark.parametrize(
    ("growth", "longest"), [(1e-6, 128), (5e-5, 32), (4e-4, 4)], ids=["GPU", "CPU", "slow CPU"]
)
def test_requests_are_padded_up_to_the_length_at_which_that_pays(
    growth: float, longest: int
) -> None:
    encoder = Encoder(growth=growth)
    padding, off = encoder.prove([4, 20, 128])
    assert (off, padding and padding.longest) == ("", longest)
    beyond = max((length for rows, length in encoder.shapes if rows > 4), default=0)
    assert beyond == longest, "what is not used is not proven"


def test_padding_that_pays_at_no_length_is_off() -> None:
    padding, off = Encoder(fixed=0.0).prove([4, 20, 128])
    assert padding is None
    assert "a padded batch is not faster than its requests one by one" in off


@pytest.mark.parametrize("lengths", [(128,), (100, 128)])
def test_lengths_that_the_profile_excludes_are_not_tried(lengths: tuple[int, ...]) -> None:
    encoder = Encoder(growth=1e-6)
    padding, off = encoder.prove(lengths, least=90)
    assert (off, padding and padding.longest) == ("", 128)
    assert min(length for _, length in encoder.shapes) >= 90


@pytest.mark.parametrize("rows", [2, 4, 8])
def test_many_long_samples_are_proven_in_bounded_time(rows: int) -> None:
    """On a core that takes 70 ms for each text of 256 tokens."""
    encoder = Encoder(fixed=0.05, growth=8e-5)
    padding, off = encoder.prove([*range(8, 250, 4), 256], rows=rows)
    assert (off, padding and padding.longest) == ("", 256)
    assert encoder.now < 40
    tried = {length for count, length in encoder.shapes if count == 1}
    assert {1, 2, 128, 255, 256} <= tried, "the parts that show most are proven in any case"


@pytest.mark.parametrize("rows", [2, 4, 8])
@pytest.mark.parametrize(
    "compute",
    [
        lambda ids, _: TABLE[ids].mean(1),
        lambda ids, mask: pool(ids, mask) / np.abs(TABLE[ids]).max(),
        lambda ids, mask: pool(ids, mask) + (ids.shape[1] > 60) * (mask[:, :1] + mask[:, -1:]),
    ],
    ids=["no mask", "a common scale", "positions from the end of long texts"],
)
def test_outputs_that_padding_changes_are_found(compute: Compute, rows: int) -> None:
    padding, off = Encoder(compute, growth=1e-6).prove([4, 20, 128], rows=rows)
    assert padding is None
    assert off == "output 'pooled' of a request changes when it is padded"


def test_what_a_length_changes_that_is_not_padded_does_not_matter() -> None:
    padding, _ = Encoder(
        lambda ids, mask: pool(ids, mask) + (ids.shape[1] > 100) * mask[:, -1:]
    ).prove([4, 20, 128])
    assert padding is not None
    assert padding.longest == 16
