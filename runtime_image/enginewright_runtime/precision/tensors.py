"""Reads a model's constants one at a time, and writes a changed model whose weights are many.

A model of gigabytes must not lie in memory twice: constants are read from external files when asked
for, and what is written goes to an external file at once where the model is large.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

import numpy as np
from enginewright.contract.reasons import Reason
from google.protobuf.message import EncodeError
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper
from typing_extensions import Buffer

from enginewright_runtime import graphs
from enginewright_runtime.conversion.inference import constants as small_constants
from enginewright_runtime.conversion.schemas import STANDARD
from enginewright_runtime.conversion.storage import locations
from enginewright_runtime.digests import CHUNK, MODEL_NAME
from enginewright_runtime.failure import StageFailure

_SMALL: Final = 1024  # bytes of a tensor that stays in the .onnx file
# A protobuf ends at 2 GiB, and lies in memory several times while it is written and loaded.
_LARGEST_INSIDE: Final = 1 << 30
_ALIGNMENT: Final = 4096  # of tensors in a file that is mapped into memory

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


class Sink:
    """Writes a model into a new folder; large tensors go to an external file as they are made."""

    def __init__(self, folder: Path, model: ModelProto) -> None:
        """Make the folder, which must not exist.

        Args:
            folder: for the model.
            model: that it is made from, parsed without external data.
        """
        folder.mkdir()
        self._folder = folder
        taken = locations(model)
        self._name = next(name for name in _names() if name not in taken)
        external = bool(taken) or model.ByteSize() > _LARGEST_INSIDE
        self._file: BinaryIO | None = (folder / self._name).open("wb") if external else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def tensor(self, name: str, element: int, array: Array) -> TensorProto:
        """Return a tensor with the array's bytes, which are those of the element type."""
        tensor = TensorProto(name=name, data_type=element, dims=array.shape)
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        if self._file is None or len(data) <= _SMALL:
            tensor.raw_data = bytes(data)
        else:
            self._append(self._file, tensor, [data], len(data))
        return tensor

    def write(self, model: ModelProto, source: Path) -> Path:
        """Write the model with all weights that it refers to; return the .onnx file's path.

        Args:
            model: changed in place: its external tensors lie in one new file afterwards.
            source: the folder of external files that the model still refers to.

        Raises:
            StageFailure: ModelTooLarge.
        """
        if self._file is not None:
            for tensor in graphs.walk_tensors(model):
                entries = graphs.external_entries(tensor)
                if entries is not None and entries["location"] != self._name:
                    self._copy(self._file, tensor, source / entries["location"], entries)
            self._file.flush()
        path = self._folder / MODEL_NAME
        try:
            path.write_bytes(model.SerializeToString())
        except (EncodeError, ValueError) as error:
            raise StageFailure(
                Reason.MODEL_TOO_LARGE, "the changed model is larger than one protobuf file can be"
            ) from error
        return path

    def _copy(
        self, file: BinaryIO, tensor: TensorProto, path: Path, entries: Mapping[str, str]
    ) -> None:
        offset = int(entries.get("offset", "0"))
        length = int(entries.get("length", path.stat().st_size - offset))
        with path.open("rb") as reader:
            reader.seek(offset)
            chunks = (reader.read(min(CHUNK, length - start)) for start in range(0, length, CHUNK))
            self._append(file, tensor, chunks, length)

    def _append(
        self, file: BinaryIO, tensor: TensorProto, chunks: Iterable[Buffer], length: int
    ) -> None:
        file.seek(-(-file.tell() // _ALIGNMENT) * _ALIGNMENT)
        tensor.ClearField("raw_data")
        del tensor.external_data[:]
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", self._name), ("offset", file.tell()), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))
        file.writelines(chunks)


def _names() -> Iterator[str]:
    yield "weights.bin"
    for number in count(2):
        yield f"weights-{number}.bin"
