"""The constants of a graph, read one array at a time, because models of gigabytes do not fit into memory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, TensorProto, numpy_helper
from onnx.helper import make_tensor

from enginewright_runtime.graph.raw.graphs import elements
from enginewright_runtime.graph.raw.schemas import STANDARD

Array = NDArray[Any]
LARGE: Final = 1024  # elements; from larger tensors no size is computed
# a Constant's attributes that are not tensors: element type, and the field of AttributeProto
_VALUES: Final[Mapping[str, tuple[int, str]]] = {
    "value_float": (TensorProto.FLOAT, "f"),
    "value_floats": (TensorProto.FLOAT, "floats"),
    "value_int": (TensorProto.INT64, "i"),
    "value_ints": (TensorProto.INT64, "ints"),
}


class Constants:
    """Values of initializers, Constant nodes and Identities of them, also of outer graphs."""

    def __init__(
        self,
        graph: GraphProto,
        folder: Path = Path(),
        outer: "Constants | None" = None,
        *,
        replaceable: bool = True,
    ) -> None:
        """Read a topologically sorted graph, whose external data is in `folder`.

        `replaceable`: a caller may override an initializer that is also an input, as any before IR version 4.
        """
        self._folder = str(folder)
        self._outer = outer
        self._hidden = {value.name for value in graph.input}
        if not replaceable:
            self._hidden -= {tensor.name for tensor in graph.initializer}
        self._hidden |= {name for node in graph.node for name in node.output}
        self._small: dict[str, TensorProto] = {}
        self._small_of = -1  # the number of additions that `_small` includes
        self._additions = 0
        self._tensors = {
            tensor.name: tensor for tensor in graph.initializer if tensor.name not in self._hidden
        }
        for node in graph.node:  # sorted, so an Identity follows its input
            tensor = self.tensor(node.input[0]) if _is_copy(node) else constant_tensor(node)
            if tensor is not None:
                self._tensors[node.output[0]] = tensor

    def tensor(self, name: str) -> TensorProto | None:
        """Return the constant as it is stored; None if the value is not constant."""
        tensor: TensorProto | None = self._tensors.get(name)
        if tensor is not None or self._outer is None or name in self._hidden:
            return tensor
        return self._outer.tensor(name)

    def array(self, name: str) -> Array | None:
        """Return the constant's value; None if the value is not constant."""
        tensor = self.tensor(name)
        return None if tensor is None else numpy_helper.to_array(tensor, self._folder)

    def add(self, *tensors: TensorProto) -> None:
        """Add constants of this graph."""
        self._tensors |= {tensor.name: tensor for tensor in tensors}
        self._additions += 1

    @property
    def additions(self) -> int:
        """Return how often constants were added to this graph and the outer ones."""
        return self._additions + (self._outer.additions if self._outer is not None else 0)

    def own(self) -> Mapping[str, TensorProto]:
        """Return the constants of this graph, without those of outer graphs, by name."""
        return self._tensors

    def small(self) -> Mapping[str, TensorProto]:
        """Return the small constants that are not external data, including those of outer graphs."""
        if self._small_of != self.additions:
            outer = self._outer.small() if self._outer is not None else {}
            self._small = {name: proto for name, proto in outer.items() if name not in self._hidden}
            self._small |= {
                name: tensor
                for name, tensor in self._tensors.items()
                if tensor.data_location != TensorProto.EXTERNAL and elements(tensor) <= LARGE
            }
            self._small_of = self.additions
        return self._small


def _is_copy(node: NodeProto) -> bool:
    return node.op_type == "Identity" and node.domain in STANDARD and len(node.input) == 1


def constant_tensor(node: NodeProto) -> TensorProto | None:
    """Return the tensor of a Constant node; None for other nodes, sparse tensors and strings."""
    if node.op_type != "Constant" or not node.output:
        return None
    for entry in node.attribute:
        if entry.name == "value":
            tensor: TensorProto = entry.t
            return tensor
        if entry.name in _VALUES:
            kind, field = _VALUES[entry.name]
            value = getattr(entry, field)
            one = field in {"f", "i"}
            return make_tensor(
                node.output[0], kind, [] if one else [len(value)], [value] if one else value
            )
    return None
