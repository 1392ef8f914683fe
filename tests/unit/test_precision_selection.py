"""The automatic choice: the fastest that keeps parity, by more than the noise; and real timing."""

import numpy as np
import pytest
from enginewright_contract.task import Precision
from enginewright_runtime.prepare.quantize.existing import existing
from enginewright_runtime.prepare.quantize.selection import Times, TriedPrecision, select
from onnx import ModelProto, TensorProto

from tests.support.broken_models import one_node
from tests.support.quantizing import dense


def times(middle: float, spread: float = 0.02, *, seed: int = 0) -> Times:
    noise = np.random.default_rng(seed).normal(size=21)
    noise -= np.median(noise)
    return Times(tuple(float(middle * (1 + spread * item)) for item in noise))


OWN = times(10e-3)


def test_the_fastest_that_keeps_parity_is_chosen() -> None:
    choice = select(
        OWN,
        [
            TriedPrecision("INT8", times=times(4e-3)),
            TriedPrecision("FP16", times=times(6e-3)),
            TriedPrecision("BF16", times=times(12e-3)),
        ],
    )
    assert choice.precision == "INT8"
    assert choice.reasons["FP16"].startswith("slower than INT8: 6 ms")
    assert choice.reasons["BF16"].startswith("no faster than FP16")
    assert choice.reasons["INT8"].startswith("4 ms (")


def test_a_faster_one_that_fails_parity_is_rejected_and_reported() -> None:
    choice = select(OWN, [TriedPrecision("INT8", "parity fails: cosine 0.76", times(2e-3))])
    assert choice.precision is None
    assert choice.reasons["INT8"].startswith(
        "rejected: parity fails: cosine 0.76; it would have been faster, 2 ms"
    )


@pytest.mark.parametrize(
    ("candidate", "why"),
    [
        (times(9.7e-3, 0.001), "less than 5%"),
        (times(9.4e-3, 0.3, seed=1), "noise"),
        (times(11e-3), "slower"),
    ],
    ids=lambda item: item if isinstance(item, str) else "",
)
def test_small_gain_is_not_worth_it(candidate: Times, why: str) -> None:
    choice = select(OWN, [TriedPrecision("INT8", times=candidate)])
    assert choice.precision is None, why
    assert choice.reasons["INT8"].startswith("no faster than the model's own precision")


def test_load_that_meets_both_alike_hides_nothing() -> None:
    """Rounds take from 1 to 10 times as long, those of both together."""
    load = np.random.default_rng(3).uniform(1, 10, 21)
    own = Times(tuple(float(item) for item in load * 10e-3))
    fast = Times(tuple(float(item) for item in load * 7e-3))
    assert fast.quartiles[1] > own.quartiles[0]
    assert select(own, [TriedPrecision("INT8", times=fast)]).precision == "INT8"
    assert select(own, [TriedPrecision("INT8", times=own)]).precision is None


def test_of_two_alike_the_more_exact_one_is_taken() -> None:
    candidates = [
        TriedPrecision("INT8", times=times(5e-3)),
        TriedPrecision("FP16", times=times(5.05e-3)),
    ]
    assert select(OWN, candidates).precision == "FP16"


def test_unmeasured_precision_is_not_chosen() -> None:
    assert select(None, [TriedPrecision("FP16")]).precision is None
    assert select(OWN, [TriedPrecision("FP16")]).reasons == {"FP16": "not measured"}
    assert select(None, []).reasons == {}


def with_weight(kind: int) -> ModelProto:
    model = dense(1)
    for tensor in model.graph.initializer:
        tensor.data_type = kind
    return model


@pytest.mark.parametrize(
    ("model", "precision", "can", "cannot"),
    [
        (with_weight(TensorProto.FLOAT), "FP32", ["FP16", "BF16", "FP8", "INT8", "FP32"], []),
        (with_weight(TensorProto.FLOAT16), "FP16", ["FP16"], ["FP32", "BF16", "INT8"]),
        (with_weight(TensorProto.BFLOAT16), "BF16", ["BF16"], ["FP32", "FP16"]),
        (one_node("QLinearMatMul"), "INT8", ["INT8"], ["FP16", "FP32", "FP8"]),
        (one_node("QAttention", "com.microsoft"), "INT8", ["INT8"], ["FP16"]),
        (one_node("Relu"), "FP32", ["INT8"], []),
    ],
)
def test_existing_precision(
    model: ModelProto, precision: str, can: list[Precision], cannot: list[Precision]
) -> None:
    have = existing(model)
    assert have.precision == precision
    assert [item for item in can if have.refuses(item)] == []
    assert [item for item in cannot if not have.refuses(item)] == []
