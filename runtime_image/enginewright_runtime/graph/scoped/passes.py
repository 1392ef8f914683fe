"""The base of graph passes: each declares its order, its preconditions and the proof that its result needs."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, Final, Self

from enginewright_contract.base import Message
from enginewright_contract.manifest import Change
from enginewright_contract.task import Recipe
from onnx import ModelProto

from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.raw.storage import size_bytes
from enginewright_runtime.graph.scoped.inference import Sizes

_MOST_NODES: Final = 100  # kept in a change


class Keep(StrEnum):
    """What must be proven for a changed model to be kept."""

    MUST = "must"  # that its outputs are the same; otherwise preparation fails
    EQUAL = "equal"  # that its outputs are the same
    BETTER = "better"  # that its outputs are the same and the backend supports more of its nodes


@dataclass(frozen=True)
class Situation:
    """The inputs of the decision which passes run."""

    recipe: Recipe
    model: ModelProto  # in its current state
    sizes: Sizes  # dimensions of inputs, None where requests vary
    refused: frozenset[str] = frozenset()  # operators of nodes that the backend rejects
    has_data: bool = False  # whether there is calibration data

    @property
    def precisions(self) -> frozenset[str]:
        """Return the precisions that the model may get."""
        requested = self.recipe.precision
        return frozenset({requested} if requested else self.recipe.allowed_precisions)


@dataclass(frozen=True)
class Needs:
    """The preconditions of a pass; an empty field is no condition."""

    backends: frozenset[str] = frozenset()
    precisions: frozenset[str] = frozenset()  # one of which the model may get
    operators: frozenset[str] = frozenset()  # one of which the model contains
    most_bytes: int | None = None  # of the model
    data: bool = False  # whether it needs calibration data

    def are_met(self, about: Situation) -> bool:
        """Return whether the preconditions are met."""
        operators = {node.op_type for node in graphs.walk_nodes(about.model)}
        return (
            (not self.backends or about.recipe.backend in self.backends)
            and (not self.precisions or bool(self.precisions & about.precisions))
            and (not self.operators or bool(self.operators & operators))
            and (about.has_data or not self.data)
            and (self.most_bytes is None or size_bytes(about.model) <= self.most_bytes)
        )


@dataclass(frozen=True)
class PassResult:
    """What a pass did."""

    changes: tuple[Change, ...] = ()
    shape_nodes: tuple[str, ...] = ()  # labels of shape arithmetic in the changed model
    # of a precision pass:
    nodes: tuple[str, ...] = ()  # labels of nodes that have the lower precision
    # label of a node to why it keeps its precision
    kept: Mapping[str, str] = field(default_factory=dict)
    units: tuple[int, ...] = ()  # indices of nodes that can have it, or contain such nodes
    # of a pass that converts what it does not quantize to half precision:
    rest: tuple[str, ...] = ()  # labels of nodes in half precision that are not quantized
    single: Mapping[str, str] = field(
        default_factory=dict
    )  # label of a node to why it is in single precision


class Pass(Message):
    """One change of a model; its parameters are fields."""

    doing: ClassVar[str]  # for messages
    order: ClassVar[int]  # passes run in the order of these
    needs: ClassVar[Needs] = Needs()
    keep: ClassVar[Keep]
    own_weights: ClassVar[bool] = False  # whether it writes external data

    @classmethod
    def keep_on(cls, backend: str) -> Keep:  # noqa: ARG003 - for subclasses
        """Return what must be proven if `backend` serves the model."""
        return cls.keep

    @classmethod
    def to_try(cls, about: Situation) -> Iterable[Self]:  # noqa: ARG003 - for subclasses
        """Return the passes of this kind to try, in order."""
        return (cls(),)

    @abstractmethod
    def change(self, model: ModelProto, source: Path, out: Path) -> PassResult:
        """Change a model, parsed from `source` without external data, in place; external data may be beside `out`."""


def change(kind: str, message: str, nodes: Sequence[str] = ()) -> Change:
    """Return a change, with its nodes up to the number that a manifest keeps."""
    return Change(kind=kind, message=message, nodes=tuple(nodes)[:_MOST_NODES])
