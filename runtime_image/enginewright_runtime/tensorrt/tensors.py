"""Types and sizes of the tensors inside a model, which a part of it has as inputs and outputs.

ONNX Runtime infers them, since it loads every prepared model; ONNX's own shape inference stops at
the first operator of another domain. The functions here run in a child process.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, ValueInfoProto

from enginewright_runtime.core.failure import SessionError
from enginewright_runtime.core.ort_messages import plain
from enginewright_runtime.graph.scoped.parts import CONSTANT, TensorProfile, TensorType
from enginewright_runtime.session.optimization import LOWEST
from enginewright_runtime.session.reference import load_changed

_Rows = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]

_LARGEST_SHAPE: Final = 16  # elements of an integer tensor that may be a shape


def types(model: Path) -> dict[str, TensorType]:
    """Return the types of ranked tensors: the main graph's inputs and its nodes' outputs."""
    proto = onnx.load(model, load_external_data=False)
    names = [name for node in proto.graph.node if node.op_type != CONSTANT for name in node.output]
    session = _session(model, proto, names)
    by_name: dict[str, TensorType] = {}
    for argument in (*session.get_inputs(), *session.get_outputs()):
        name = argument.type.removeprefix("tensor(").removesuffix(")").upper()
        if name in TensorProto.DataType.keys():  # noqa: SIM118 - no mapping: it has no `in`
            element = TensorProto.DataType.Value(name)
            by_name[argument.name] = TensorType(element, tuple(argument.shape))
    return by_name


def sizes(
    *,
    model: Path,
    golden: Path,
    names: Sequence[str],
    corners: Sequence[Mapping[str, Sequence[int]]],
) -> list[TensorProfile]:
    """Run the model at the corners of its shape profiles; return the profiles of the tensors `names`.

    The first golden sample's values are repeated to fill the corners: shapes of inputs for min, opt
    and max. Raises SessionError if the model fails at a corner.
    """
    proto = onnx.load(model, load_external_data=False)
    session = _session(model, proto, names)
    kinds = {argument.name: argument.type for argument in session.get_inputs()}
    sample = _first_sample(golden)
    shapes: list[list[list[int]]] = [[] for _ in names]
    values: list[list[list[int]]] = [[] for _ in names]
    results_of: dict[str, list[ort.OrtValue]] = {}
    for corner in corners:
        results = results_of.get(str(corner))
        if results is None:  # corners may be equal
            feeds = {
                name: _value(np.resize(array, corner.get(name, array.shape)), kinds[name])
                for name, array in sample.items()
                if name in kinds
            }
            try:
                results = session.run_with_ort_values(list(names), feeds)
            except Exception as error:
                # exceptions of ONNX Runtime share no base class but Exception
                raise SessionError(f"{dict(corner)}: {plain(str(error))}") from error
            results_of = {str(corner): results}
        for index, result in enumerate(results):
            shapes[index].append(list(result.shape()))
            if result.element_type() in {TensorProto.INT32, TensorProto.INT64}:
                flat = result.numpy().reshape(-1)
                if len(result.shape()) <= 1 and flat.size <= _LARGEST_SHAPE:
                    values[index].append([int(item) for item in flat])
    return [
        TensorProfile(
            name,
            *_sort_columns(rows),
            values=_sort_columns(held)
            if len(held) == len(corners) and len(set(map(len, held))) == 1
            else None,
        )
        for name, rows, held in zip(names, shapes, values, strict=True)
    ]


def _session(path: Path, proto: ModelProto, names: Sequence[str]) -> ort.InferenceSession:
    """Load the model with `names` among its outputs, as it stands: nothing is folded or fused."""
    present = {value.name for value in proto.graph.output}
    proto.graph.output.extend(
        ValueInfoProto(name=name) for name in dict.fromkeys(names) if name and name not in present
    )
    return load_changed(path, proto, LOWEST)


def _first_sample(path: Path) -> dict[str, NDArray[Any]]:
    with np.load(path, allow_pickle=False) as file:
        first = file.files[0].partition("/")[0]
        return {
            name: file[key]
            for key in file.files
            for sample, _, name in [key.partition("/")]
            if sample == first
        }


def _value(array: NDArray[Any], kind: str) -> ort.OrtValue:
    if kind == "tensor(bfloat16)":
        bits = array.view(np.uint16)
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, TensorProto.BFLOAT16)
    return ort.OrtValue.ortvalue_from_numpy(
        array.astype(object) if array.dtype.kind == "U" else array
    )


def _sort_columns(rows: Sequence[Sequence[int]]) -> _Rows:
    columns = [(min(column), sorted(column)[1], max(column)) for column in zip(*rows, strict=True)]
    low, opt, high = zip(*columns, strict=True) if columns else ((), (), ())
    return low, opt, high
