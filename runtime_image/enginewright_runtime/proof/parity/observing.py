"""Finds the outputs of the source that differ between runs, and the distribution of their values.

Several runs on several samples and one in a fresh session are compared; more runs if the model has
random operators, since their results may agree by chance. Called in child processes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from enginewright_contract.manifest import Spread, VaryingOutput
from onnx import ModelProto

from enginewright_runtime.core.time_limit import TimeLimit
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.proof.parity.comparison import varying
from enginewright_runtime.proof.parity.spread import FEWEST_RUNS, REFERENCE_RUNS, SpreadBuilder
from enginewright_runtime.session.arrays import Arrays

RANDOM_OPERATORS: Final = frozenset(
    {
        *("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike"),
        *("RandomUniform", "RandomUniformLike"),
    }
)
_TRAINING_MODE: Final = 2  # index of the input of Dropout without which it is not random
_LOOKS: Final = 2  # further runs of the first sample
_RANDOM_LOOKS: Final = 16  # likewise, of a model with random operators
_LOOK_SECONDS: Final = 5.0  # of `TimeLimit`, for further samples
# likewise, for runs that determine distributions; those of the first sample always run
_SPREAD_SECONDS: Final = 30.0

Run = Callable[[Arrays], Arrays]


def is_random(model: ModelProto) -> bool:
    """Tell whether a node of the model, its bodies or its functions draws random numbers."""
    return any(
        node.op_type in RANDOM_OPERATORS
        or (node.op_type == "Dropout" and len(node.input) > _TRAINING_MODE)
        for node in graphs.walk_nodes(model)
    )


def merge(
    source: Sequence[VaryingOutput], converted: Sequence[VaryingOutput]
) -> tuple[VaryingOutput, ...]:
    """Return the source's varying outputs, with spreads of the converted model for samples without one."""
    others = {output.name: output.spreads for output in converted}
    return tuple(
        output.model_copy(
            update={
                "spreads": (*output.spreads, *_without(others.get(output.name, ()), output.spreads))
            }
        )
        for output in source
    )


def _without(spreads: Sequence[Spread], others: Sequence[Spread]) -> list[Spread]:
    samples = {spread.sample for spread in others}
    return [spread for spread in spreads if spread.sample not in samples]


def observe(
    run: Run,
    inputs: Mapping[str, Arrays],
    outputs: Mapping[str, Arrays],
    dtypes: Mapping[str, str],
    *,
    random: bool,
    fresh: Run | None = None,
) -> tuple[VaryingOutput, ...]:
    """Return the outputs that vary, in the order of the outputs.

    `run` runs the source in the session that gave `outputs`, which are by sample, of one run each;
    the first sample has the most runs. `dtypes` are as the model declares them; `random` tells
    whether it has random operators. `fresh` runs the source in a new session, unless loading it
    again is too slow.
    """
    source = _SourceRuns(run, inputs, outputs, dtypes)
    unstable = source.find_unstable(random=random)
    first = next(iter(outputs), None)
    if first is None:
        return ()
    others = varying(outputs[first], fresh(inputs[first]), dtypes) if fresh else ()
    spreads = source.measure_spreads(unstable) if unstable else {}
    # outputs that differ only between sessions get no spread, since spreads are of one session
    return tuple(
        VaryingOutput(name=name, spreads=tuple(spreads.get(name, ())))
        for name in outputs[first]
        if name in unstable or name in others
    )


@dataclass(frozen=True)
class _SourceRuns:
    run: Run
    inputs: Mapping[str, Arrays]
    outputs: Mapping[str, Arrays]
    dtypes: Mapping[str, str]

    def find_unstable(self, *, random: bool) -> set[str]:
        unstable: set[str] = set()
        limit = TimeLimit(_LOOK_SECONDS)
        for number, (sample, once) in enumerate(self.outputs.items()):
            if number and limit.over():
                break
            looks = (_RANDOM_LOOKS if random else _LOOKS) if not number else 1
            for _ in range(looks):
                stable = {name: array for name, array in once.items() if name not in unstable}
                unstable |= set(varying(stable, self.run(self.inputs[sample]), self.dtypes))
        return unstable

    def measure_spreads(self, names: set[str]) -> dict[str, list[Spread]]:
        """Run the samples as often as time allows, the first one as often as needed."""
        spreads: dict[str, list[Spread]] = {}
        limit = TimeLimit(_SPREAD_SECONDS)
        for number, (sample, once) in enumerate(self.outputs.items()):
            builders = {
                name: SpreadBuilder(sample, once[name], self.dtypes.get(name)) for name in names
            }
            fewest = 0 if number else FEWEST_RUNS
            for count in range(REFERENCE_RUNS):
                if count >= fewest and limit.over():
                    break
                results = self.run(self.inputs[sample])
                for name, builder in builders.items():
                    builder.add(results[name])
            for name, builder in builders.items():
                if spread := builder.spread():
                    spreads.setdefault(name, []).append(spread)
        return spreads
