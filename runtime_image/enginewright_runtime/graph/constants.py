"""What is constant in a graph, read one array at a time.

A model of gigabytes must not lie in memory: arrays are read from external files when asked for.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, TensorProto, numpy_helper

from enginewright_runtime.graph.inference import constants as small_constants
from enginewright_runtime.graph.schemas import STANDARD

Array = NDArray[Any]


class Constants:
    """Values of a graph's initializers and Constant nodes, those of the graphs around it too.

    A copy of a constant is one as well: exporters let equal weights be Identities of one another.
    """

    def __init__(self, graph: GraphProto, folder: Path, outer: "Constants | None" = None) -> None:
        self._folder = str(folder)
        self._outer = outer
        self._hidden = {value.name for value in graph.input}  # a caller may replace it
        self._hidden |= {name for node in graph.node for name in node.output}
        self._tensors = {
            tensor.name: tensor for tensor in graph.initializer if tensor.name not in self._hidden
        }
        for node in graph.node:  # sorted: a copy comes after what it copies
            tensor = self.tensor(node.input[0]) if _is_copy(node) else constant_tensor(node)
            if tensor is not None:
                self._tensors[node.output[0]] = tensor

    def tensor(self, name: str) -> TensorProto | None:
        """Return the constant as it is stored; None where the value is no constant."""
        found: TensorProto | None = self._tensors.get(name)
        if found is not None or self._outer is None or name in self._hidden:
            return found
        return self._outer.tensor(name)

    def array(self, name: str) -> Array | None:
        """Return the constant's value; None where it is none."""
        found = self.tensor(name)
        return None if found is None else numpy_helper.to_array(found, self._folder)

    def add(self, *tensors: TensorProto) -> None:
        """Know further constants of this graph."""
        self._tensors |= {tensor.name: tensor for tensor in tensors}

    def names(self) -> Iterator[str]:
        """Yield the names of this graph's own constants."""
        yield from self._tensors


def _is_copy(node: NodeProto) -> bool:
    return node.op_type == "Identity" and node.domain in STANDARD and len(node.input) == 1


def constant_tensor(node: NodeProto) -> TensorProto | None:
    """Return the tensor of a Constant node; None for another node, and for what is no tensor."""
    if node.op_type != "Constant" or not node.output:
        return None
    for attribute in node.attribute:
        if attribute.name == "value":
            tensor: TensorProto = attribute.t
            return tensor
    graph = GraphProto()
    graph.node.append(node)
    return small_constants(graph, {}).get(node.output[0])  # value_floats and the like
