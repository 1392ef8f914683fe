"""Rewrites a node for an older version of its operator, if that can express it. Pure."""

from collections.abc import Mapping
from typing import Final

import onnx
from onnx import AttributeProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper

from enginewright_runtime.graph.raw.graphs import copy_of
from enginewright_runtime.graph.raw.schemas import (
    Schema,
    attribute,
    find_moved_inputs,
    is_last_axis,
    is_valid,
    schema_of,
)

_VARIADIC: Final = onnx.defs.OpSchema.FormalParameterOption.Variadic


class InexpressibleError(ValueError):
    """The older operator cannot express the node; the text says why."""


def older_form(
    node: NodeProto,
    opset: int,
    target: int,
    constants: Mapping[str, TensorProto],
    types: Mapping[str, TypeProto],
) -> NodeProto:
    """Return a copy of the node of `opset` for the lower opset `target`; raises InexpressibleError."""
    newer, older = schema_of(node, opset), schema_of(node, target)
    if newer is None or older is None:
        raise InexpressibleError(f"opset {target} has no {node.op_type}")
    rewritten = copy_of(node)
    del rewritten.attribute[:]
    rewritten.attribute.extend(_attributes(node, newer, older, target, types))
    moved = find_moved_inputs(newer, older)
    for index, name in moved.items():
        if index < len(node.input) and node.input[index]:
            _move(rewritten, name, older, node.input[index], constants)
    if moved and not any(formal.option == _VARIADIC for formal in newer.inputs):
        given = {
            newer.inputs[index].name: value
            for index, value in enumerate(node.input)
            if index not in moved
        }
        inputs = [given.get(formal.name, "") for formal in older.inputs]
        while inputs and not inputs[-1]:
            inputs.pop()
        rewritten.input[:] = inputs
    if not is_valid(rewritten, newer, older):
        raise InexpressibleError(f"{node.op_type} of opset {target} lacks features that it uses")
    return rewritten


def _attributes(
    node: NodeProto, newer: Schema, older: Schema, target: int, types: Mapping[str, TypeProto]
) -> list[AttributeProto]:
    kept = [entry for entry in node.attribute if entry.name in older.attributes]
    if attribute(node, "num_outputs") is not None and node.op_type == "Split":
        _refuse_unequal_parts(node, types)
    if is_last_axis(node, newer, target):
        kept = [
            *(entry for entry in kept if entry.name != "axis"),
            helper.make_attribute("axis", -1),
        ]
    names = {entry.name for entry in kept}
    # defaults that differ become explicit
    kept += [
        newer.attributes[name].default_value
        for name in older.attributes
        if name not in names
        and name in newer.attributes
        and newer.attributes[name].default_value.name
        and newer.attributes[name].default_value != older.attributes[name].default_value
    ]
    return kept


def _move(
    node: NodeProto,
    name: str,
    older: Schema,
    value: str,
    constants: Mapping[str, TensorProto],
) -> None:
    if value not in constants:
        raise InexpressibleError(f"its input {name!r} is not constant")
    array = numpy_helper.to_array(constants[value])
    kind = older.attributes[name].type
    if not array.size and name == "axes":
        if (noop := attribute(node, "noop_with_empty_axes")) is not None and noop.i:
            raise InexpressibleError("it has no axes and does nothing")
        return
    match kind:
        case onnx.defs.OpSchema.AttrType.INTS:
            node.attribute.append(helper.make_attribute(name, [int(item) for item in array.flat]))
        case onnx.defs.OpSchema.AttrType.INT if array.size == 1:
            node.attribute.append(helper.make_attribute(name, int(array.flat[0])))
        case onnx.defs.OpSchema.AttrType.FLOAT if array.size == 1:
            node.attribute.append(helper.make_attribute(name, float(array.flat[0])))
        case onnx.defs.OpSchema.AttrType.FLOATS:
            node.attribute.append(helper.make_attribute(name, [float(item) for item in array.flat]))
        case _:
            raise InexpressibleError(f"its input {name!r} cannot become an attribute")


def _refuse_unequal_parts(node: NodeProto, types: Mapping[str, TypeProto]) -> None:
    axis = attribute(node, "axis")
    dimensions = types[node.input[0]].tensor_type.shape.dim if node.input[0] in types else []
    try:
        size = dimensions[axis.i if axis else 0].dim_value
    except IndexError:
        size = 0
    if not size:
        raise InexpressibleError("the size of the axis that it splits is unknown")
    if size % len(node.output):
        raise InexpressibleError(f"it splits {size} elements into {len(node.output)} unequal parts")
