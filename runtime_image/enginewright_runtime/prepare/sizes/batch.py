"""The default batch sizes, limited to what a run can afford: measured by running the smallest batch.

Costs are extrapolated linearly. They are processor time and memory, so that neither the number of
cores nor other load matters; sizes are powers of two, so that small differences rarely matter. Keys
contain the requested sizes, the manifest the resulting ones.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from enginewright_contract.images import COMPILED_BACKENDS
from enginewright_contract.manifest import TensorSpec
from enginewright_contract.report import Finding
from enginewright_contract.task import Recipe, ShapeProfile
from numpy.typing import NDArray

from enginewright_runtime.core import shared_results
from enginewright_runtime.core.failure import SessionError, StageFailure
from enginewright_runtime.core.isolation import Call, Limits
from enginewright_runtime.core.limits import memory_of_child
from enginewright_runtime.core.logs import format_bytes
from enginewright_runtime.core.memory import peak_since, resident_bytes
from enginewright_runtime.graph.shapes import DEFAULT_BATCH, find_defaulted, with_batch
from enginewright_runtime.proof.golden_inputs import LARGEST_INPUTS, IntegerRange, generate
from enginewright_runtime.proof.golden_run import load_runner, run_sample
from enginewright_runtime.rules import table
from enginewright_runtime.session.runner import Runner
from enginewright_runtime.session.signature import Signature

_log: Final = logging.getLogger(__name__)
_REFERENCE: Final = "cpu"
_SECONDS: Final = 300.0  # of loading and two runs: beyond that the cost is unknown
# What a run of the largest default batch may cost. A proof runs each size a few times, a benchmark more.
MAX_PROCESSOR_SECONDS: Final = 3.0
MAX_BYTES: Final = 1 << 30
MAX_INPUT_BYTES: Final = LARGEST_INPUTS  # larger samples are not proven
_SHARE: Final = 3  # one third of a container's memory, if that is less than `MAX_BYTES`


@dataclass(frozen=True)
class RunCost:
    """The cost of one run of the smallest batch."""

    seconds: float  # of processor time
    bytes: int  # of memory, without the loaded model and the inputs
    input_bytes: int = 0


@dataclass(frozen=True)
class Fitted:
    """The sizes that are proven, and for which engines are built."""

    profiles: tuple[ShapeProfile, ...]
    findings: tuple[Finding, ...] = ()
    cost: RunCost | None = None  # if a batch size is a default, and the model ran


def fit(
    model: Path, recipe: Recipe, inputs: Sequence[TensorSpec], profiles: tuple[ShapeProfile, ...]
) -> Fitted:
    """Return the profiles, with smaller batches if the default ones cost too much; the user's are kept."""
    names = find_defaulted(inputs, profiles, recipe.shapes)
    if not names or len(profiles) < len(inputs):
        return Fitted(profiles)
    doing = "measuring what a run of the smallest batch costs"
    _log.info("%s", doing)
    try:
        cost = shared_results.run_shared(
            Call(measure, doing, Limits.of_model(_SECONDS)),
            shared_results.ResultKey(model, recipe, (inputs, profiles)),
            model,
            inputs,
            profiles,
        )
    except (StageFailure, SessionError) as error:
        # `golden`, which tries more inputs, reports what is wrong with the model
        _log.info("not measured: %s", error)
        return Fitted(profiles)
    if cost is None:
        return Fitted(profiles)
    largest = largest_batch(cost, memory_of_child())
    if largest == DEFAULT_BATCH.max:
        return Fitted(profiles, cost=cost)
    _log.info("the default batches end at %d", largest)
    findings = (_finding(cost, largest),) if recipe.backend in COMPILED_BACKENDS else ()
    return Fitted(with_batch(profiles, names, largest), findings, cost)


def largest_batch(cost: RunCost, memory: int) -> int:
    """Return the largest batch, a power of two, that a run can afford within `memory` bytes."""
    limit = min(MAX_BYTES, memory // _SHARE)
    batch = DEFAULT_BATCH.max
    while batch > 1 and (
        batch * cost.seconds > MAX_PROCESSOR_SECONDS
        or batch * (cost.bytes + cost.input_bytes) > limit
        or batch * cost.input_bytes > MAX_INPUT_BYTES
    ):
        batch //= 2
    return batch


def _finding(cost: RunCost, largest: int) -> Finding:
    default, size = DEFAULT_BATCH.max, cost.bytes + cost.input_bytes
    return table.finding(
        table.SMALLER_BATCH,
        f"engines are built for batches of 1 to {largest}, not {default}, unless spec.shapes declares"
        f" others: on the CPU a run of batch 1 takes {cost.seconds:.2g} s of processor time and"
        f" {format_bytes(size)}, so one of batch {default} about {default * cost.seconds:.2g} s and"
        f" {format_bytes(default * size)}",
    )


def measure(
    model: Path, inputs: Sequence[TensorSpec], profiles: Sequence[ShapeProfile]
) -> RunCost | None:
    """Measure runs of the smallest shapes; None if the model did not run. Called in a child process."""
    runner, signature, _ = load_runner(_REFERENCE, model)
    smallest = [
        profile.model_copy(update={"opt": profile.min, "max": profile.min}) for profile in profiles
    ]
    for integer_range in IntegerRange:
        sample = generate(inputs, smallest, integer_range)[0]
        before = resident_bytes()
        try:
            with peak_since() as peak:
                seconds = _time_run(runner, signature, sample.inputs)
        except Exception:  # noqa: BLE001, S112 - ONNX Runtime's errors share no other base class
            continue
        if seconds * DEFAULT_BATCH.max > MAX_PROCESSOR_SECONDS:  # a first run allocates too
            seconds = min(seconds, _time_run(runner, signature, sample.inputs))
        return RunCost(seconds, max(0, peak() - before), sample.input_bytes)
    return None


def _time_run(runner: Runner, signature: Signature, feeds: Mapping[str, NDArray[Any]]) -> float:
    began = time.process_time()  # of all threads
    run_sample(runner, signature, feeds)
    return time.process_time() - began
