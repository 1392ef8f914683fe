"""The default batch sizes, as far as a run of them fits: found out by running the smallest batch.

Nobody has asked for batches of 32, so a model whose runs are long or large gets a smaller default:
what a run of the smallest batch costs is measured, and extrapolated in proportion. Costs are processor
time and memory, not elapsed time, so that neither the number of cores nor other load decides; sizes
are powers of two, so that small differences seldom do. Keys hold what was asked for, the manifest
what came of it.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from enginewright.contract.images import COMPILED_BACKENDS
from enginewright.contract.manifest import TensorSpec
from enginewright.contract.report import Finding
from enginewright.contract.task import Recipe, ShapeProfile
from numpy.typing import NDArray

from enginewright_runtime.core import answers
from enginewright_runtime.core.failure import SessionError, StageFailure
from enginewright_runtime.core.isolation import Limits
from enginewright_runtime.core.limits import memory_of_child
from enginewright_runtime.core.logs import in_words
from enginewright_runtime.core.memory import peak_since, resident_bytes
from enginewright_runtime.graph.shapes import DEFAULT_BATCH, defaulted, with_batch
from enginewright_runtime.proof.golden_inputs import LARGEST_INPUTS, Filling, generate
from enginewright_runtime.proof.golden_run import run_sample
from enginewright_runtime.rules import table
from enginewright_runtime.session import loading
from enginewright_runtime.session.runner import Runner
from enginewright_runtime.session.signature import Signature, read_signature

_log: Final = logging.getLogger(__name__)
_MEASURE: Final = f"{__name__}:measure"
_REFERENCE: Final = "cpu"
_SECONDS: Final = 300.0  # of loading and two runs: beyond that nothing is known
# What a run of the largest default batch may cost. A proof runs each size a few times, a benchmark more.
MOST_PROCESSOR_SECONDS: Final = 3.0
MOST_BYTES: Final = 1 << 30
MOST_INPUT_BYTES: Final = LARGEST_INPUTS  # larger samples are not proven
_SHARE: Final = 3  # of a container's memory, where a third of it is less


@dataclass(frozen=True)
class Cost:
    """What one run of the smallest batch costs."""

    seconds: float  # of processor time
    bytes: int  # of memory beside the loaded model and the inputs
    input_bytes: int = 0


@dataclass(frozen=True)
class Fitted:
    """The sizes that are proven, and for which engines are built."""

    profiles: tuple[ShapeProfile, ...]
    findings: tuple[Finding, ...] = ()
    cost: Cost | None = None  # None: no size was in question, or the model did not run


def fit(
    model: Path, recipe: Recipe, inputs: Sequence[TensorSpec], profiles: tuple[ShapeProfile, ...]
) -> Fitted:
    """Return the profiles, with smaller batches where those of the default cost too much.

    Args:
        model: the .onnx file, which the reference loads.
        recipe: with the user's shapes, which stay, and the backend.
        inputs: of the model.
        profiles: of its inputs.
    """
    names = defaulted(inputs, profiles, recipe.shapes)
    if not names or len(profiles) < len(inputs):
        return Fitted(profiles)
    _log.info("measuring what a run of the smallest batch costs")
    try:
        about = {
            "inputs": [each.model_dump(mode="json") for each in inputs],
            "profiles": [each.model_dump(mode="json") for each in profiles],
        }
        answer: dict[str, Any] | None = answers.ask(
            _MEASURE,
            "measuring what a run of the smallest batch costs",
            answers.Question(model, recipe, about),
            limits=Limits(seconds=_SECONDS, memory_bytes=memory_of_child()),
            model=str(model),
            **about,
        )
    except (StageFailure, SessionError) as error:
        # what is wrong with it `golden` finds out, which tries harder
        _log.info("not measured: %s", error)
        return Fitted(profiles)
    if answer is None:
        return Fitted(profiles)
    cost = Cost(**answer)
    largest = most(cost, memory_of_child())
    if largest == DEFAULT_BATCH.max:
        return Fitted(profiles, cost=cost)
    told = _finding(cost, largest) if recipe.backend in COMPILED_BACKENDS else None
    _log.info("the default batches end at %d", largest)
    return Fitted(with_batch(profiles, names, largest), (told,) if told else (), cost)


def most(cost: Cost, memory: int | None) -> int:
    """Return the largest batch, a power of two, a run of which fits.

    Args:
        cost: of a run of batch 1.
        memory: that a process here may have; None: there is no limit.
    """
    room = MOST_BYTES if memory is None else min(MOST_BYTES, memory // _SHARE)
    batch = DEFAULT_BATCH.max
    while batch > 1 and (
        batch * cost.seconds > MOST_PROCESSOR_SECONDS
        or batch * (cost.bytes + cost.input_bytes) > room
        or batch * cost.input_bytes > MOST_INPUT_BYTES
    ):
        batch //= 2
    return batch


def _finding(cost: Cost, largest: int) -> Finding:
    usual, size = DEFAULT_BATCH.max, cost.bytes + cost.input_bytes
    return table.tell(
        table.SMALLER_BATCH,
        f"engines are built for batches of 1 to {largest}, not {usual}, as far as spec.shapes says"
        f" nothing: on the CPU one of batch 1 takes {cost.seconds:.2g} s of processor time and"
        f" {in_words(size)}, so one of {usual} about {usual * cost.seconds:.2g} s and"
        f" {in_words(usual * size)}",
    )


def measure(
    model: str,
    inputs: list[dict[str, Any]],
    profiles: list[dict[str, Any]],
) -> dict[str, Any] | None:
    """Measure runs of the smallest shapes. Called in a child process.

    Args:
        model: path of the .onnx file.
        inputs: as `TensorSpec`.
        profiles: of every input, as `ShapeProfile`.

    Returns:
        The fields of `Cost`; None: it did not run.

    Raises:
        StageFailure, SessionError: as `loading.create`.
    """
    session = loading.create(_REFERENCE, Path(model)).session
    signature = read_signature(session.get_inputs(), session.get_outputs(), ())
    runner = Runner(session, signature)
    specs = [TensorSpec.model_validate(each) for each in inputs]
    known = [ShapeProfile.model_validate(each) for each in profiles]
    smallest = [each.model_copy(update={"opt": each.min, "max": each.min}) for each in known]
    for filling in Filling:
        feeds = generate(specs, smallest, filling)[0].inputs
        before = resident_bytes()
        try:
            with peak_since() as peak:
                seconds = _timed(runner, signature, feeds)
        except Exception:  # noqa: BLE001, S112 - of ONNX Runtime, which has no class of its own
            continue
        if seconds * DEFAULT_BATCH.max > MOST_PROCESSOR_SECONDS:  # a first run allocates too
            seconds = min(seconds, _timed(runner, signature, feeds))
        return {
            "seconds": seconds,
            "bytes": max(0, peak() - before),
            "input_bytes": sum(array.nbytes for array in feeds.values()),
        }
    return None


def _timed(runner: Runner, signature: Signature, feeds: Mapping[str, NDArray[Any]]) -> float:
    began = time.process_time()  # of all threads
    run_sample(runner, signature, feeds)
    return time.process_time() - began
