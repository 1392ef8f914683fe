"""A leak is distinguished from warm-up, noise and what the serving revision does too."""

from collections.abc import Callable
from math import exp, sin
from typing import Final

import pytest
from enginewright.analysis.memory import compare_memory
from enginewright_contract.measurements import Measurements, MemorySample
from enginewright_contract.reasons import Reason

from tests.support.rollout_load import START, seed_random
from tests.support.rollout_simulation import limits

MIB: Final = 2**20


def pod(
    mib: Callable[[float], float], *, first: int = 0, seconds: int = 600, seed: int = 1
) -> Measurements:
    """Return a pod that starts at `first` and is sampled every 5 s, with noise of 2 MiB."""
    random = seed_random(seed)
    memory = tuple(
        MemorySample(at=START + at, bytes=int((mib(at) + random.gauss(0, 2)) * MIB))
        for at in range(first, seconds, 5)
    )
    return Measurements(model="m", revision="r", since=START + first, memory=memory)


def flat(_: float) -> float:
    return 500.0


def leak(at: float) -> float:
    return 500 + 200 * at / 600


def faster(at: float) -> float:
    return 500 + 400 * (at - 600) / 600


def fails(stable: list[Measurements], canary: list[Measurements]) -> bool:
    result = compare_memory(stable, canary, limits())
    assert result.state == ("failed" if result.findings else "passed")
    assert all(finding.reason is Reason.MEMORY_GROWTH for finding in result.findings)
    return bool(result.findings)


def test_a_leak_is_found_with_its_growth() -> None:
    (figure,) = compare_memory([pod(flat)], [pod(leak)], limits()).figures
    assert (figure.state, figure.stable, figure.canary_samples) == ("failed", 0.0, 116)
    assert figure.canary == pytest.approx(0.39, abs=0.03)


def test_one_leaking_pod_of_several_is_enough() -> None:
    assert fails([pod(flat)], [pod(flat), pod(leak, seed=2)])


def test_a_leak_after_warm_up_is_found() -> None:
    assert fails([pod(flat)], [pod(lambda at: leak(at) + 300 * (1 - exp(-at / 40)))])


def test_steps_of_an_allocator_are_a_leak_too() -> None:
    assert fails([pod(flat)], [pod(lambda at: 500 + 16 * (at // 40))])


@pytest.mark.parametrize("settles", [10, 30, 60, 120, 300])
@pytest.mark.parametrize("seconds", [60, 120, 300, 600, 1800])
def test_warm_up_that_levels_off_is_no_leak(settles: float, seconds: int) -> None:
    """Warm-up over a time that the observation does not cover is undecided."""
    if seconds >= 1.5 * settles:
        warm_up = pod(lambda at: 500 + 400 * (1 - exp(-at / settles)), seconds=seconds)
        assert not fails([pod(flat)], [warm_up])


@pytest.mark.parametrize(
    "mib",
    [
        flat,
        lambda at: 500 - 200 * at / 600,
        lambda at: 500 + 200 * (at > 100),
        lambda at: 500 + 90 * at / 600,  # under the limit
        lambda at: 500 + 100 * sin(at / 20),
        lambda at: 500 + 2 * (at % 100),
    ],
    ids=["flat", "shrinks", "one step", "little", "waves", "sawtooth"],
)
def test_other_memory_is_no_leak(mib: Callable[[float], float]) -> None:
    assert not fails([pod(flat)], [pod(mib)])


def test_a_small_server_may_grow_by_32_mib() -> None:
    assert not fails([pod(lambda _: 50.0)], [pod(lambda at: 50 + 30 * at / 600)])
    assert fails([pod(lambda _: 50.0)], [pod(lambda at: 50 + 45 * at / 600)])


def test_growth_that_the_serving_revision_has_too_is_not_the_new_ones() -> None:
    assert not fails([pod(leak)], [pod(leak, seed=2)])
    assert fails([pod(leak)], [pod(lambda at: 500 + 500 * at / 600)])


@pytest.mark.parametrize("replaced", [60, 300, 450, 570])
def test_growth_of_replaced_pods_is_compared_over_the_same_time(replaced: int) -> None:
    assert not fails([pod(leak, first=replaced)], [pod(leak, seed=2)])
    assert not fails([pod(leak), pod(leak, first=replaced, seed=3)], [pod(leak, seed=2)])


def test_a_leak_is_found_after_serving_pods_were_replaced() -> None:
    assert fails([pod(flat, first=60)], [pod(leak)])
    assert fails([pod(flat), pod(flat, first=450)], [pod(leak)])


def test_growth_of_a_longer_time_hides_no_leak_of_a_later_pod() -> None:
    assert fails([pod(leak, seconds=1200)], [pod(flat), pod(faster, first=600, seconds=1200)])
    assert not fails(
        [pod(leak, seconds=1200)], [pod(flat), pod(leak, first=600, seconds=1200, seed=2)]
    )


def test_serving_pods_with_too_few_samples_say_nothing_of_usual_growth() -> None:
    few = pod(flat, seconds=90)
    assert not fails([pod(leak), few, few], [pod(leak, seed=2)])
    assert not fails([few], [pod(leak)])


def test_a_few_samples_decide_nothing() -> None:
    assert not fails([pod(flat)], [pod(lambda at: 500 + 20 * at, seconds=90)])
    assert fails([pod(flat)], [pod(lambda at: 500 + 20 * at, seconds=105)])


def test_an_exact_line_is_a_leak() -> None:
    memory = tuple(MemorySample(at=START + at, bytes=(500 + at) * MIB) for at in range(0, 600, 5))
    exact = Measurements(model="m", revision="r", since=START, memory=memory)
    assert fails([pod(flat)], [exact])


def test_no_pods_grow_by_nothing() -> None:
    assert not fails([], [])
    assert fails([], [pod(leak)])
