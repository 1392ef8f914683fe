"""Compares a node with another version of its operator: can it be expressed in that version?

ONNX's schemas define the attributes, inputs and types of each operator version. Where two versions
agree in all that a node uses, the node means the same in both. Versions that changed the semantics
of the same attributes, which schemas do not show, are listed here (docs/Changelog.md of onnx).
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, TypeAlias

import onnx
from onnx import AttributeProto, NodeProto

STANDARD: Final = frozenset({"", "ai.onnx"})
Schema: TypeAlias = onnx.defs.OpSchema

# Versions that changed the semantics of the same attributes and inputs.
_CHANGED_SEMANTICS: Final[Mapping[str, tuple[int, ...]]] = {
    "Softmax": (13,),  # along one axis, before: over all axes from that one on
    "LogSoftmax": (13,),
    "Hardmax": (13,),
    "GroupNormalization": (21,),  # scale and bias per channel, before: per group
    "RoiAlign": (16,),  # half_pixel by default, before: output_half_pixel
    "Resize": (11,),  # half_pixel by default, before: asymmetric
    "Upsample": (9,),
    "BatchNormalization": (7,),  # is_test
    "Dropout": (7,),
    "PRelu": (7,),  # one slope per channel, before: of any shape
    "DFT": (20,),  # the second to last axis by default, before: the first after the batch
    "GridSample": (20,),  # linear and cubic, before: bilinear and bicubic
}
# Versions that require an attribute or input that was optional before.
_NEWLY_REQUIRED: Final[Mapping[str, int]] = {"Split": 18}  # sizes, or the number of outputs
# Values that a version added to an existing attribute.
_NEW_VALUES: Final[Mapping[str, tuple[tuple[int, str, bytes], ...]]] = {
    "Pad": ((19, "mode", b"wrap"),),
    "Resize": ((19, "coordinate_transformation_mode", b"half_pixel_symmetric"),),
    "ScatterElements": ((18, "reduction", b"max"), (18, "reduction", b"min")),
    "ScatterND": ((18, "reduction", b"max"), (18, "reduction", b"min")),
}


class Fit(StrEnum):
    """What converts a node to an older opset without changing its semantics."""

    SAME = "same"  # nothing
    # the older form is equivalent: attributes dropped, inputs become attributes
    REWRITE = "rewrite"
    NONE = "none"  # the older operator cannot express it, or does not exist


def schema_of(node: NodeProto, opset: int) -> Schema | None:
    """Return the schema of a node's operator in an opset of ai.onnx; None if it has none."""
    if node.domain not in STANDARD:
        return None
    try:
        return onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return None


def is_function(operator: str, domain: str, version: int) -> bool:
    """Return whether ONNX defines an operator as a function of other operators."""
    try:
        schema = onnx.defs.get_schema(operator, version, domain)
    except onnx.defs.SchemaError:
        return False
    # onnx's type stubs lack both
    return any(getattr(schema, f"has_{kind}function") for kind in ("", "context_dependent_"))


def attribute(node: NodeProto, name: str) -> AttributeProto | None:
    """Return the node's attribute; None if it is not set."""
    return next((entry for entry in node.attribute if entry.name == name), None)


def parameter(formals: Sequence[Any], index: int) -> Any:  # noqa: ANN401 - FormalParameter is untyped
    """Return the formal input or output at `index`, the last one for variadic; None past the end."""
    if index < len(formals):
        return formals[index]
    last = formals[-1] if formals else None
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    return last if last is not None and last.option == variadic else None


def fit(node: NodeProto, opset: int, target: int, types: Mapping[str, str]) -> Fit:
    """Return how a node of `opset` converts to the opset `target`, at most `opset`; `types` are those of its values."""
    newer, older = schema_of(node, opset), schema_of(node, target)
    if newer is None or older is None or older.deprecated:
        return Fit.NONE
    if newer.since_version <= target:
        return Fit.SAME
    if _differs_in_semantics(node, newer, target) or not _takes_types(node, older, types):
        return (
            Fit.REWRITE
            if is_last_axis(node, newer, target) and _takes_types(node, older, types)
            else Fit.NONE
        )
    if is_valid(node, newer, older):
        return Fit.SAME
    return Fit.REWRITE if _is_expressible(node, newer, older) else Fit.NONE


def is_kept(node: NodeProto, opset: int, target: int, types: Mapping[str, str]) -> bool:
    """Return whether a node of `opset`, unchanged, has the same semantics in the higher `target`."""
    older, newer = schema_of(node, opset), schema_of(node, target)
    if older is None or newer is None or newer.deprecated:
        return False
    if older.since_version == newer.since_version:
        return True
    changes = (*_CHANGED_SEMANTICS.get(node.op_type, ()), _NEWLY_REQUIRED.get(node.op_type, 0))
    return (
        not any(opset < at <= target for at in changes)
        and is_valid(node, older, newer)
        and _takes_types(node, newer, types)
    )


def is_last_axis(node: NodeProto, newer: Schema, target: int) -> bool:
    """Return whether it is a softmax over the last axis, where all versions agree."""
    since = 11  # the first opset with negative axes
    last = attribute(node, "axis")
    return (
        node.op_type in {"Softmax", "LogSoftmax", "Hardmax"}
        and newer.since_version >= 13
        and since <= target < 13
        and (last is None or last.i == -1)
    )


def is_default(entry: AttributeProto, schema: Schema) -> bool:
    """Return whether an attribute has the schema's default value."""
    formal = schema.attributes.get(entry.name)
    if formal is None or not formal.default_value.name:
        return False
    read = onnx.helper.get_attribute_value
    return bool(read(formal.default_value) == read(entry))


def find_moved_inputs(newer: Schema, older: Schema) -> dict[int, str]:
    """Return inputs of the newer operator that are attributes of the older one: index to name."""
    names = {formal.name for formal in older.inputs}
    return {
        index: formal.name
        for index, formal in enumerate(newer.inputs)
        if formal.name not in names and formal.name in older.attributes
    }


def _differs_in_semantics(node: NodeProto, newer: Schema, target: int) -> bool:
    if any(target < at <= newer.since_version for at in _CHANGED_SEMANTICS.get(node.op_type, ())):
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
    """Return whether a node of one version is valid and means the same in another, older or newer, version."""
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
        not any(_has_input(node, index) for index in find_moved_inputs(newer, older))
        and has_required(node, older)
        and _fits_in(node.input, older.min_input, older.max_input)
        and _fits_in(node.output, older.min_output, older.max_output)
    )


def _is_expressible(node: NodeProto, newer: Schema, older: Schema) -> bool:
    moved = find_moved_inputs(newer, older)
    for entry in node.attribute:
        if entry.name in older.attributes or is_default(entry, newer):
            continue
        if entry.name == "noop_with_empty_axes" and _has_input(node, 1):
            continue  # it only affects nodes without axes
        if (node.op_type, entry.name) == ("Split", "num_outputs"):
            continue  # the older Split makes equal parts; `rewriting` rejects others
        return False
    for name, formal in older.attributes.items():
        if formal.required and attribute(node, name) is None and name not in moved.values():
            return False
    if not _fits_in(node.output, older.min_output, older.max_output):
        return False
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    if any(formal.option == variadic for formal in newer.inputs):
        return True
    names = {formal.name for formal in older.inputs}
    return all(
        newer.inputs[index].name in names
        for index in range(len(node.input))
        if _has_input(node, index) and index not in moved
    )


def has_required(node: NodeProto, schema: Schema) -> bool:
    """Return whether the node has all required inputs."""
    single = onnx.defs.OpSchema.FormalParameterOption.Single
    return all(
        _has_input(node, index)
        for index, formal in enumerate(schema.inputs)
        if formal.option == single
    )


def _has_input(node: NodeProto, index: int) -> bool:
    return index < len(node.input) and bool(node.input[index])


def _fits_in(names: Sequence[str], least: int, most: int) -> bool:
    used = max((index + 1 for index, name in enumerate(names) if name), default=0)
    return least <= len(names) and used <= most


def _default(schema: Schema, name: str) -> bytes:
    return bytes(schema.attributes[name].default_value.SerializeToString())


def _kind(entry: AttributeProto) -> Any:  # noqa: ANN401 - an untyped enumeration
    return getattr(onnx.defs.OpSchema.AttrType, AttributeProto.AttributeType.Name(entry.type))
