"""Writes a changed model with large weights at once to an external file: memory may not hold it twice."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

import numpy as np
from enginewright_contract.manifest import MODEL_NAME
from enginewright_contract.reasons import Reason
from google.protobuf.message import EncodeError
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto
from typing_extensions import Buffer

from enginewright_runtime.core.digests import CHUNK
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.raw.storage import LARGEST_INSIDE, locations

_SMALL: Final = 1024  # bytes of a tensor that stays in the .onnx file
_ALIGNMENT: Final = 4096  # of tensors in a file that is mapped into memory

Array = NDArray[Any]


class Sink:
    """Writes a model into a new folder; large tensors go to an external file at once."""

    def __init__(self, folder: Path, model: ModelProto) -> None:
        folder.mkdir()
        self._folder = folder
        taken = locations(model)
        self._name = next(name for name in _names() if name not in taken)
        external = bool(taken) or model.ByteSize() > LARGEST_INSIDE
        self._file: BinaryIO | None = (folder / self._name).open("wb") if external else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def tensor(self, name: str, element: int, array: Array) -> TensorProto:
        """Return a tensor with the array's bytes, which must be of the element type."""
        tensor = TensorProto(name=name, data_type=element, dims=array.shape)
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        if self._file is None or len(data) <= _SMALL:
            tensor.raw_data = bytes(data)
        else:
            self._append(self._file, tensor, [data], len(data))
        return tensor

    def write(self, model: ModelProto, source: Path) -> Path:
        """Write the model and its weights, which are in the folder `source`; raises ModelTooLarge."""
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
                Reason.MODEL_TOO_LARGE, "the changed model exceeds protobuf's limit of 2 GiB"
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
