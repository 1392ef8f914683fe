"""The model whose precision is to change: in order, and with all that is asked of it again and again."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from onnx import ModelProto, NodeProto, helper

from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.raw.constants import Constants
from enginewright_runtime.graph.scoped.scopes import Names, Scope, rename_apart
from enginewright_runtime.graph.scoped.shape_nodes import shape_nodes
from enginewright_runtime.prepare.convert.translating import translate
from enginewright_runtime.prepare.quantize.tensors import Array, Sink

# Before it every initializer had to be an input as well; since then such a one is no constant.
_FREE_INITIALIZERS: Final = 4


@dataclass(frozen=True)
class SourceModel:
    """A model parsed without its external data; `model` is never changed.

    Its nodes are identified by their index in the main graph: labels may be shared.
    """

    model: ModelProto
    folder: Path  # of its external data
    constants: Constants  # of the main graph
    shape_nodes: frozenset[str]  # labels of shape arithmetic

    @classmethod
    def load(cls, path: Path, opset: int | None = None) -> Self:
        """Parse a model, sort it, and bring it to at least `opset`.

        Raises:
            TranslationError: nodes that the opset has no equivalent of.
        """
        model = graphs.parse(path)
        rename_apart(model)
        Scope(model.graph).sort()
        if opset is not None and (graphs.default_opset(model) or opset) < opset:
            translate(model, opset)
            least = helper.find_min_ir_version_for([helper.make_opsetid("", opset)])
            model.ir_version = max(model.ir_version, least)
        _free_initializers(model)
        return cls(
            model,
            path.parent,
            Constants(model.graph, path.parent),
            frozenset(shape_nodes(model)),
        )

    def label(self, index: int) -> str:
        """Return what people call a node."""
        return graphs.label(self.model.graph.node[index])


@dataclass
class Lowered:
    """A copy of a model in which nodes are of a lower precision."""

    model: ModelProto
    nodes: list[str] = field(default_factory=list)  # labels of those that are
    kept: dict[str, str] = field(default_factory=dict)  # label to why it stays as it was
    units: Sequence[int] = ()  # indices of nodes that can be of it, or hold such


class ModelEditor:
    """A copy of a model that gets nodes and weights of names that nothing else has."""

    def __init__(self, subject: SourceModel, sink: Sink) -> None:
        self.subject = subject
        self.sink = sink
        self.model = graphs.copy_of(subject.model)
        self.names = Names(self.model)
        self.scope = Scope(self.model.graph)

    def initializer(self, wanted: str, element: int, array: Array) -> str:
        """Add an initializer; return its name."""
        name = self.names.fresh(wanted)
        self.scope.add_weight(self.sink.tensor(name, element, array))
        return name

    def node(
        self,
        operator: str,
        inputs: Sequence[str],
        output: str,
        prefix: str,
        **attributes: Any,  # noqa: ANN401 - of the operator
    ) -> NodeProto:
        """Return a node for the graph, named after what it is made for."""
        name = self.names.fresh(f"{prefix}/{operator}")
        return helper.make_node(operator, inputs, [output], name=name, **attributes)

    def weight(self, name: str) -> Array:
        """Return a constant of the main graph, which is known to be one."""
        array = self.subject.constants.array(name)
        assert array is not None  # noqa: S101 - found to be one before
        return array


def _free_initializers(model: ModelProto) -> None:
    """Give the model an IR version in which a new initializer need not be an input."""
    graph = model.graph
    if model.ir_version >= _FREE_INITIALIZERS:
        return
    constant = {tensor.name for tensor in graph.initializer}
    kept = [graphs.copy_of(each) for each in graph.input if each.name not in constant]
    del graph.input[:]
    graph.input.extend(kept)
    model.ir_version = _FREE_INITIALIZERS
