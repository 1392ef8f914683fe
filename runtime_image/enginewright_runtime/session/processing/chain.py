"""How steps and the model connect: every value by its name. Pure.

A request has the inputs that no earlier part produces, its answer the outputs of the model and of the steps
after it that no step after the model takes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, TypeAlias

from enginewright_contract.manifest import ProcessingStep
from enginewright_contract.signature import ANY_SIZE, PublishedSignature, TensorText

Stage: TypeAlias = Literal["before", "model", "after"]
_ORDER: Final[dict[Stage, int]] = {"before": 0, "model": 1, "after": 2}
_BF16: Final = "BF16"


@dataclass(frozen=True)
class ChainPart:
    """One model of a chain."""

    label: str  # for messages
    stage: Stage
    inputs: tuple[TensorText, ...]
    outputs: tuple[TensorText, ...]


@dataclass(frozen=True)
class Chain:
    """Parts in their order, and what connects them."""

    parts: tuple[ChainPart, ...]

    @cached_property
    def inputs(self) -> dict[str, tuple[ChainPart, TensorText]]:
        """A request's inputs, with the first part that takes each."""
        produced: set[str] = set()
        inputs: dict[str, tuple[ChainPart, TensorText]] = {}
        for part in self.parts:
            for input_ in part.inputs:
                if input_.name not in produced:
                    inputs.setdefault(input_.name, (part, input_))
            produced.update(output.name for output in part.outputs)
        return inputs

    @cached_property
    def outputs(self) -> dict[str, tuple[ChainPart, TensorText]]:
        """A response's outputs, with the part that produces each."""
        taken = self.list_taken("after")
        return {
            output.name: (part, output)
            for part in self.parts
            for output in part.outputs
            if part.stage != "before" and output.name not in taken
        }

    def list_taken(self, *stages: Stage) -> frozenset[str]:
        """Return the names that parts of these stages take."""
        return frozenset(
            input_.name for part in self.parts if part.stage in stages for input_ in part.inputs
        )

    def list_produced(self, *stages: Stage) -> frozenset[str]:
        """Return the names that parts of these stages produce."""
        return frozenset(
            output.name for part in self.parts if part.stage in stages for output in part.outputs
        )

    def problems(self) -> tuple[str, ...]:
        """Return why the parts do not connect, if they do not."""
        problems: list[str] = []
        values: dict[str, tuple[ChainPart, TensorText]] = {}
        for part in self.parts:
            for input_ in part.inputs:
                origin = values.get(input_.name)
                if origin is not None and (why := _mismatch(origin, (part, input_))):
                    problems.append(why)
                values.setdefault(input_.name, (part, input_))
            for output in part.outputs:
                if output.name in values:
                    problems.append(
                        f"{part.label} produces {output.name!r}, which is already a value of"
                        f" {values[output.name][0].label}"
                    )
                values[output.name] = (part, output)
        problems += self._find_unused()
        problems += [
            f"{part.label} has {text.name!r} in BF16, which steps do not support"
            for part in self.parts
            for text in (*part.inputs, *part.outputs)
            if text.dtype == _BF16 and (part.stage != "model" or self._crosses(text.name))
        ]
        return tuple(dict.fromkeys(problems))

    def _find_unused(self) -> Iterable[str]:
        for number, part in enumerate(self.parts):
            later = {input_.name for one in self.parts[number + 1 :] for input_ in one.inputs}
            names = [output.name for output in part.outputs]
            if part.stage == "before" and not later.intersection(names):
                shown = ", ".join(map(repr, names[:4]))
                yield f"nothing takes an output of {part.label} ({shown}): no later part has an input of that name"

    def _crosses(self, name: str) -> bool:
        return name in self.list_taken("before", "after") | self.list_produced("before", "after")

    def signature(self) -> PublishedSignature:
        """Return the inputs and outputs that clients see."""
        return PublishedSignature.of(
            (input_ for _, input_ in self.inputs.values()),
            (output for _, output in self.outputs.values()),
        )


def connect(steps: Sequence[ProcessingStep], model: PublishedSignature) -> Chain:
    """Return the chain of steps around a model."""
    return Chain(tuple(sorted(_parts(steps, model), key=lambda part: _ORDER[part.stage])))


def _parts(steps: Sequence[ProcessingStep], model: PublishedSignature) -> Iterable[ChainPart]:
    for step in steps:
        stage: Stage = "before" if step.name.startswith("before") else "after"
        yield ChainPart(label(step.name), stage, _texts(step.inputs), _texts(step.outputs))
    yield ChainPart("the model", "model", _texts(model.inputs), _texts(model.outputs))


def label(name: str) -> str:
    """Return where the spec has a step, by its name, such as before-0."""
    stage, _, number = name.partition("-")
    return f"spec.processing.{stage}[{number}]"


def _texts(tensors: Iterable[str]) -> tuple[TensorText, ...]:
    return tuple(map(TensorText.read, tensors))


def _mismatch(
    origin: tuple[ChainPart, TensorText], taker: tuple[ChainPart, TensorText]
) -> str | None:
    (source, output), (part, input_) = origin, taker
    fits = output.dtype == input_.dtype and (
        not output.shape
        or not input_.shape
        or (
            len(output.shape) == len(input_.shape)
            and all(_overlap(*pair) for pair in zip(output.shape, input_.shape, strict=True))
        )
    )
    if fits:
        return None
    return f"{part.label} takes {_show(input_)}, and {source.label} has {_show(output)}"


def _overlap(first: str, second: str) -> bool:
    if ANY_SIZE in (first, second):
        return True
    (low, high), (least, most) = _range(first), _range(second)
    return low <= most and least <= high


def _range(size: str) -> tuple[int, int]:
    low, _, high = size.partition("..")
    return int(low), int(high or low)


def _show(tensor: TensorText) -> str:
    return f"{tensor.name!r} as {tensor.dtype}[{','.join(tensor.shape)}]"
