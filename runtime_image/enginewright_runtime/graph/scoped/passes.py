"""What every change of a model is: a pass, whose data say when it comes, what it needs and what keeps it.

A pass changes a model and says what it did. Whoever runs it proves what came of it, and keeps it or not.
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, Final, Self

from enginewright.contract.base import Message
from enginewright.contract.manifest import Change
from enginewright.contract.task import Recipe
from onnx import ModelProto

from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.raw.storage import size_bytes
from enginewright_runtime.graph.scoped.inference import Sizes

_MOST_NODES: Final = 100  # kept in a change


class Keep(StrEnum):
    """What has to be proven for a changed model to be kept."""

    MUST = "must"  # that its outputs are the same; else nothing serves
    EQUAL = "equal"  # that its outputs are the same
    BETTER = "better"  # that its outputs are the same and the backend takes more of it


@dataclass(frozen=True)
class Situation:
    """What decides which passes are run."""

    recipe: Recipe
    model: ModelProto  # as it is now
    sizes: Sizes  # dimensions of inputs that are the same for all requests; None: others
    refused: frozenset[str] = frozenset()  # operators of nodes that the backend does not take
    has_data: bool = False  # whether there is data to learn ranges from

    @property
    def precisions(self) -> frozenset[str]:
        """Return the precisions that the model may get."""
        asked = self.recipe.precision
        return frozenset({asked} if asked else self.recipe.allowed_precisions)


@dataclass(frozen=True)
class Needs:
    """When a pass can be of use; what is not named does not matter."""

    backends: frozenset[str] = frozenset()
    precisions: frozenset[str] = frozenset()  # one of which the model is to have
    operators: frozenset[str] = frozenset()  # one of which it has
    most_bytes: int | None = None  # of the model
    data: bool = False  # to learn ranges from

    def are_met(self, about: Situation) -> bool:
        """Tell whether the pass can be of use."""
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

    changes: tuple[Change, ...] = ()  # (): the model is as it was
    shape_nodes: tuple[str, ...] = ()  # labels of shape arithmetic in the changed model
    # of a change of precision
    nodes: tuple[str, ...] = ()  # labels of those that are of the lower one
    kept: Mapping[str, str] = field(default_factory=dict)  # label to why it stays as it was
    units: tuple[int, ...] = ()  # indices of nodes that can be of it, or hold such


class Pass(Message):
    """One change that can be made to a model, with what it is told as fields."""

    doing: ClassVar[str]  # for messages
    order: ClassVar[int]  # passes run in the order of these
    needs: ClassVar[Needs] = Needs()
    keep: ClassVar[Keep]
    own_weights: ClassVar[bool] = False  # whether it writes external data of its own

    @classmethod
    def keep_on(cls, backend: str) -> Keep:  # noqa: ARG003 - for those whose proof depends on it
        """Return what has to be proven where `backend` is to serve."""
        return cls.keep

    @classmethod
    def to_try(cls, about: Situation) -> Iterable[Self]:  # noqa: ARG003 - for those with fields
        """Return the passes of this kind that are worth a try, one after the other."""
        return (cls(),)

    @abstractmethod
    def change(self, model: ModelProto, source: Path, out: Path) -> PassResult:
        """Change a model in place.

        Args:
            model: parsed without external data.
            source: its file.
            out: the file that it is written to, in an empty folder if the pass has weights of its own.
        """


def change(kind: str, message: str, nodes: Sequence[str] = ()) -> Change:
    """Return one thing that was done, with as many of its nodes as a manifest keeps."""
    return Change(kind=kind, message=message, nodes=tuple(nodes)[:_MOST_NODES])
