"""Compares a node with an older version of its operator: what keeps it from being that version.

ONNX's schemas say which attributes, inputs and types a version of an operator has. Where two versions
agree in all that a node uses, the node means the same under both, and only the number in the
model's header differs; except where a version gave the same attributes another meaning, which no schema
says: those are listed here, from ONNX's changelog (docs/Changelog.md of onnx).
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, TypeAlias

import onnx
from onnx import AttributeProto, NodeProto

STANDARD: Final = frozenset({"", "ai.onnx"})
Schema: TypeAlias = onnx.defs.OpSchema

# Versions that gave the same attributes and inputs another meaning.
_OTHER_MEANING: Final[Mapping[str, tuple[int, ...]]] = {
    "Softmax": (13,),  # along one axis, before: over all axes from it on
    "LogSoftmax": (13,),
    "Hardmax": (13,),
    "GroupNormalization": (21,),  # scale and bias one a channel, before: one a group
    "RoiAlign": (16,),  # half_pixel by default, before: output_half_pixel
    "Resize": (11,),  # half_pixel by default, before: asymmetric
    "Upsample": (9,),
    "BatchNormalization": (7,),  # is_test
    "Dropout": (7,),
    "PRelu": (7,),  # a slope a channel, before: of any shape
    "DFT": (20,),  # the last axis but one by default, before: the first after the batch
    "GridSample": (20,),  # linear and cubic, before: bilinear and bicubic
}
# Versions in which a node must say what it need not before.
_MUST_SAY: Final[Mapping[str, int]] = {"Split": 18}  # sizes, or how many parts
# Values of attributes that a version added to an attribute which was there before.
_NEW_VALUES: Final[Mapping[str, tuple[tuple[int, str, bytes], ...]]] = {
    "Pad": ((19, "mode", b"wrap"),),
    "Resize": ((19, "coordinate_transformation_mode", b"half_pixel_symmetric"),),
    "ScatterElements": ((18, "reduction", b"max"), (18, "reduction", b"min")),
    "ScatterND": ((18, "reduction", b"max"), (18, "reduction", b"min")),
}


class Fit(StrEnum):
    """What has to be done for a node to mean under an older opset what it means now."""

    SAME = "same"  # nothing
    REWRITE = "rewrite"  # its older form says the same: attributes dropped, inputs as attributes
    NONE = "none"  # the older operator cannot say it, or there is none


def schema_of(node: NodeProto, opset: int) -> Schema | None:
    """Return the schema of a node's operator in an opset of ai.onnx; None where there is none."""
    if node.domain not in STANDARD:
        return None
    try:
        return onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return None


def is_function(operator: str, domain: str, version: int) -> bool:
    """Tell whether ONNX defines an operator by a body of other operators."""
    try:
        schema = onnx.defs.get_schema(operator, version, domain)
    except onnx.defs.SchemaError:
        return False
    # onnx's stubs lack both
    return any(getattr(schema, f"has_{kind}function") for kind in ("", "context_dependent_"))


def attribute(node: NodeProto, name: str) -> AttributeProto | None:
    """Return the node's attribute, None if it has none of that name."""
    return next((entry for entry in node.attribute if entry.name == name), None)


def parameter(formals: Sequence[Any], index: int) -> Any:  # noqa: ANN401 - FormalParameter is untyped
    """Return the formal input or output at `index`, the last one for variadic; None past the end."""
    if index < len(formals):
        return formals[index]
    last = formals[-1] if formals else None
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    return last if last is not None and last.option == variadic else None


def fit(node: NodeProto, opset: int, target: int, types: Mapping[str, str]) -> Fit:
    """Tell whether a node of `opset` can be one of the lower opset `target`.

    `target` is not above `opset`; `types` are those of the values that it reads and makes, where
    known.
    """
    newer, older = schema_of(node, opset), schema_of(node, target)
    if newer is None or older is None or older.deprecated:
        return Fit.NONE
    if newer.since_version <= target:
        return Fit.SAME
    if _means_otherwise(node, newer, target) or not _takes_types(node, older, types):
        return (
            Fit.REWRITE
            if is_last_axis(node, newer, target) and _takes_types(node, older, types)
            else Fit.NONE
        )
    if is_valid(node, newer, older):
        return Fit.SAME
    return Fit.REWRITE if _is_expressible(node, newer, older) else Fit.NONE


def is_kept(node: NodeProto, opset: int, target: int, types: Mapping[str, str]) -> bool:
    """Tell whether a node of `opset` means the same under the higher opset `target`, as it stands."""
    older, newer = schema_of(node, opset), schema_of(node, target)
    if older is None or newer is None or newer.deprecated:
        return False
    if older.since_version == newer.since_version:
        return True
    changes = (*_OTHER_MEANING.get(node.op_type, ()), _MUST_SAY.get(node.op_type, 0))
    return (
        not any(opset < at <= target for at in changes)
        and is_valid(node, older, newer)
        and _takes_types(node, newer, types)
    )


def is_last_axis(node: NodeProto, newer: Schema, target: int) -> bool:
    """Tell whether it is a softmax over the last axis, which both meanings of softmax share."""
    since = 11  # negative axes
    last = attribute(node, "axis")
    return (
        node.op_type in {"Softmax", "LogSoftmax", "Hardmax"}
        and newer.since_version >= 13
        and since <= target < 13
        and (last is None or last.i == -1)
    )


def is_default(entry: AttributeProto, schema: Schema) -> bool:
    """Tell whether an attribute says what the schema says without it."""
    formal = schema.attributes.get(entry.name)
    if formal is None or not formal.default_value.name:
        return False
    read = onnx.helper.get_attribute_value
    return bool(read(formal.default_value) == read(entry))


def moved_inputs(newer: Schema, older: Schema) -> dict[int, str]:
    """Return inputs of the newer operator that are attributes of the older: index to name."""
    names = {formal.name for formal in older.inputs}
    return {
        index: formal.name
        for index, formal in enumerate(newer.inputs)
        if formal.name not in names and formal.name in older.attributes
    }


def _means_otherwise(node: NodeProto, newer: Schema, target: int) -> bool:
    if any(target < at <= newer.since_version for at in _OTHER_MEANING.get(node.op_type, ())):
        return True
    for at, name, value in _NEW_VALUES.get(node.op_type, ()):
        entry = attribute(node, name)
        if target < at <= newer.since_version and entry is not None and entry.s == value:
            return True
    return False


def _takes_types(node: NodeProto, schema: Schema, types: Mapping[str, str]) -> bool:
    for names, formals in ((node.input, schema.inputs), (node.output, schema.outputs)):
        for index, name in enumerate(names):
            formal = parameter(formals, index)
            if formal is not None and name in types and types[name] not in formal.types:
                return False
    return True


def is_valid(node: NodeProto, newer: Schema, older: Schema) -> bool:
    """Tell whether the node of one version as it stands is one of the other, and means the same.

    The two may change places: nothing here depends on which came first.
    """
    for entry in node.attribute:
        formal = older.attributes.get(entry.name)
        if formal is None or (entry.type and formal.type != _kind(entry)):
            return False
    for name, formal in older.attributes.items():
        if attribute(node, name) is not None:
            continue
        if formal.required or (
            name in newer.attributes and _default(newer, name) != _default(older, name)
        ):
            return False
    return (
        not any(_given(node, index) for index in moved_inputs(newer, older))
        and has_required(node, older)
        and _fits_in(node.input, older.min_input, older.max_input)
        and _fits_in(node.output, older.min_output, older.max_output)
    )


def _is_expressible(node: NodeProto, newer: Schema, older: Schema) -> bool:
    """Tell whether the older operator has a form of the same meaning."""
    moved = moved_inputs(newer, older)
    for entry in node.attribute:
        if entry.name in older.attributes or is_default(entry, newer):
            continue
        if entry.name == "noop_with_empty_axes" and _given(node, 1):
            continue  # it speaks of a node without axes
        if (node.op_type, entry.name) == ("Split", "num_outputs"):
            continue  # without it the parts are equal; if they are not, `rewriting` refuses
        return False
    for name, formal in older.attributes.items():
        if attribute(node, name) is not None or name in moved.values():
            continue
        if formal.required:
            return False
    given = [
        index for index in range(len(node.input)) if _given(node, index) and index not in moved
    ]
    names = {formal.name for formal in older.inputs}
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    if any(formal.option == variadic for formal in newer.inputs):
        return _fits_in(node.output, older.min_output, older.max_output)
    return all(newer.inputs[index].name in names for index in given) and _fits_in(
        node.output, older.min_output, older.max_output
    )


def has_required(node: NodeProto, schema: Schema) -> bool:
    """Tell whether the node has all inputs that are not optional."""
    single = onnx.defs.OpSchema.FormalParameterOption.Single
    return all(
        _given(node, index) for index, formal in enumerate(schema.inputs) if formal.option == single
    )


def _given(node: NodeProto, index: int) -> bool:
    return index < len(node.input) and bool(node.input[index])


def _fits_in(names: Sequence[str], least: int, most: int) -> bool:
    given = max((index + 1 for index, name in enumerate(names) if name), default=0)
    return least <= len(names) and given <= most


def _default(schema: Schema, name: str) -> bytes:
    return bytes(schema.attributes[name].default_value.SerializeToString())


def _kind(entry: AttributeProto) -> Any:  # noqa: ANN401 - an enumeration without types
    """Return the schemas' word for the type of an attribute."""
    return getattr(onnx.defs.OpSchema.AttrType, AttributeProto.AttributeType.Name(entry.type))
