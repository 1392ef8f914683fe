"""The model whose precision is to change: in order, and with all that is asked of it again and again."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from onnx import ModelProto, ValueInfoProto, helper

from enginewright_runtime.core.labels import label
from enginewright_runtime.graph import graphs
from enginewright_runtime.graph.constants import Constants
from enginewright_runtime.graph.inference import sort
from enginewright_runtime.graph.scopes import rename_apart
from enginewright_runtime.graph.shape_nodes import shape_nodes
from enginewright_runtime.prepare.convert.translating import translate

# Before it every initializer had to be an input as well; since then such a one is no constant.
_FREE_INITIALIZERS: Final = 4


@dataclass(frozen=True)
class Subject:
    """A model parsed without its external data; `model` is never changed.

    Its nodes are told apart by their index in the main graph: labels may be shared.
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
        sort(model.graph)
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

    def copy(self) -> ModelProto:
        """Return a copy of the model, to be changed."""
        copied = ModelProto()
        copied.CopyFrom(self.model)
        return copied

    def label(self, index: int) -> str:
        """Return what people call a node."""
        return graphs.label(self.model.graph.node[index])

    def is_shape_arithmetic(self, index: int) -> bool:
        """Tell whether a node computes sizes, which must stay exact."""
        node = self.model.graph.node[index]
        return label(node.name, node.op_type) in self.shape_nodes


def _free_initializers(model: ModelProto) -> None:
    """Give the model an IR version in which a new initializer need not be an input."""
    graph = model.graph
    if model.ir_version >= _FREE_INITIALIZERS:
        return
    constant = {tensor.name for tensor in graph.initializer}
    kept = [each.SerializeToString() for each in graph.input if each.name not in constant]
    del graph.input[:]
    graph.input.extend(map(ValueInfoProto.FromString, kept))
    model.ir_version = _FREE_INITIALIZERS
