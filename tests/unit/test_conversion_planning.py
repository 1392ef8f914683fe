"""Plans of a model's versions: no change where the runtime loads them, other versions, or a refusal."""

from typing import Any

import pytest
from enginewright_contract.reasons import Reason
from enginewright_runtime.graph.raw.schemas import Fit, fit
from enginewright_runtime.prepare.convert.ir_versions import newer_than
from enginewright_runtime.prepare.convert.planning import ConversionPlan, plan
from onnx import TensorProto, helper

from tests.support.broken_models import build, external, relu, value
from tests.support.converting import attention, copy, one, recipe, weight

INT32 = TensorProto.INT32
INT64 = TensorProto.INT64


def test_the_number_alone_where_no_node_is_newer() -> None:
    assert plan(relu(opset=28, ir_version=14), recipe()) == ConversionPlan(26, 13)


def test_an_operator_that_only_widened_its_types_needs_no_change() -> None:
    """Einsum of opset 28 takes bfloat16 too; of floats it is Einsum of opset 12."""
    model = one("Einsum", 28, shape=("b", 4), out=("b",), equation="ij->i")
    assert plan(model, recipe()) == ConversionPlan(26)
    halves = copy(model)
    for item in (halves.graph.input[0], halves.graph.output[0]):
        item.type.tensor_type.elem_type = TensorProto.BFLOAT16
    refusal = plan(halves, recipe()).refusal
    assert refusal is not None
    assert "node (Einsum)" in refusal.message


def test_inside_a_function_names_stand_for_other_values() -> None:
    """What `input` is there depends on who calls it: in the main graph it is of a type that Einsum 12 has not."""
    opsets = [helper.make_opsetid("", 28)]
    inside = helper.make_node("Einsum", ["input"], ["out"], equation="ij->i")
    function = helper.make_function("own", "Sums", ["input"], ["out"], [inside], opsets)
    call = helper.make_node("Sums", ["floats"], ["sums"], domain="own")
    model = build(
        [call, helper.make_node("Identity", ["input"], ["same"])],
        [value("floats", "b", 4), value("input", "b", 4, kind=TensorProto.BFLOAT16)],
        [value("sums", "b"), value("same", "b", 4, kind=TensorProto.BFLOAT16)],
        opset=28,
    )
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("own", 1))
    assert plan(model, recipe()) == ConversionPlan(26)


def test_attention_is_expanded_for_an_older_runtime() -> None:
    planned = plan(attention(24), recipe(max_opset=22, max_ir_version=10))
    assert planned == ConversionPlan(22, 10)


def test_axes_become_an_attribute() -> None:
    axes = helper.make_tensor("axes", INT64, [1], [1])
    model = one("ReduceMean", 18, axes, shape=("b", 4), out=("b", 1))
    assert plan(model, recipe(target_opset=13)) == ConversionPlan(13)


def test_operator_without_an_older_form_is_named() -> None:
    model = one("BitCast", 26, shape=("b", 4), to=INT32)
    model.graph.output[0].type.tensor_type.elem_type = INT32
    refusal = plan(model, recipe(max_opset=25)).refusal
    assert refusal is not None
    assert (refusal.reason, refusal.nodes) == (Reason.OPSET_UNSUPPORTED, ("node (BitCast)",))
    assert refusal.message == (
        "the model has opset 26 and ONNX Runtime 1.31.1 loads at most 25; these nodes have no"
        " equivalent in opset 25: node (BitCast); export with opset 25"
    )


@pytest.mark.parametrize(
    ("operator", "opset", "target", "attributes"),
    [
        ("Pad", 19, 18, {"mode": "wrap"}),  # a value that the attribute did not have
        ("Reshape", 14, 13, {"allowzero": 1}),  # an attribute that says something
        ("Cast", 19, 18, {"to": TensorProto.FLOAT8E4M3FN}),  # a type that it did not have
    ],
)
def test_newer_only_attribute_is_refused(
    operator: str, opset: int, target: int, attributes: dict[str, Any]
) -> None:
    second = {
        "Pad": [helper.make_tensor("pads", INT64, [4], [0, 1, 0, 1])],
        "Reshape": [helper.make_tensor("shape", INT64, [2], [0, 4])],
    }.get(operator, [])
    model = one(operator, opset, *second, shape=(2, 4), out=(None, None), **attributes)
    if operator == "Cast":
        model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT8E4M3FN
    refusal = plan(model, recipe(target_opset=target)).refusal
    assert refusal is not None
    assert f"no equivalent in opset {target}: node ({operator})" in refusal.message
    assert refusal.message.endswith("raise spec.targetOpset or omit it")


def test_a_default_that_is_written_out_is_no_obstacle() -> None:
    shape = helper.make_tensor("shape", INT64, [2], [2, 4])
    model = one("Reshape", 14, shape, shape=(2, 4), allowzero=0)
    assert plan(model, recipe(target_opset=13)) == ConversionPlan(13)


def test_group_normalization_means_something_else_before_opset_21() -> None:
    """Scale and bias had one element a group: the schemas do not say so."""
    model = one("GroupNormalization", 21, weight("s", 4), weight("b", 4), num_groups=2)
    assert fit(model.graph.node[0], 21, 20, {}) is Fit.NONE
    assert plan(model, recipe(target_opset=20)) == ConversionPlan(20)


def test_a_target_above_the_runtime_is_refused() -> None:
    refusal = plan(relu(), recipe(target_opset=27)).refusal
    assert refusal is not None
    assert refusal.reason is Reason.OPSET_UNSUPPORTED
    assert (
        "spec.targetOpset is 27 and ONNX Runtime 1.31.1 loads at most opset 26" in refusal.message
    )


def test_unknown_opset_is_refused() -> None:
    refusal = plan(relu(opset=99), recipe()).refusal
    assert refusal is not None
    assert "no released onnx supports opset 99" in refusal.message


def test_a_target_is_reached_upwards_with_the_ir_version_that_it_needs() -> None:
    raised = plan(relu(opset=13, ir_version=7), recipe(target_opset=21))
    assert raised == ConversionPlan(21, 10)
    assert not plan(relu(opset=17), recipe(target_opset=17)).is_needed


def test_an_opset_older_than_the_runtime_is_raised_where_a_node_changes() -> None:
    old = build(
        [helper.make_node("Add", ["x", "x"], ["y"], name="sum")],
        [value("x", 1, 4)],
        [value("y", 1, 4)],
        opset=6,
        ir_version=3,
    )
    assert plan(old, recipe()) == ConversionPlan(7)
    assert not plan(relu(opset=6, ir_version=3), recipe()).is_needed
    assert not plan(relu(opset=8, ir_version=3), recipe(backend="tensorrt")).is_needed


@pytest.mark.parametrize(
    ("kind", "name"),
    [(TensorProto.UINT2, "UINT2"), (TensorProto.FLOAT8E8M0, "FLOAT8E8M0")],
)
def test_types_of_a_newer_ir_version_keep_it(kind: int, name: str) -> None:
    model = relu(opset=25, ir_version=13)
    model.graph.initializer.append(TensorProto(name="w", data_type=kind, dims=[0]))
    refusal = plan(model, recipe(max_ir_version=11)).refusal
    assert refusal is not None
    assert refusal.reason is Reason.IR_VERSION_UNSUPPORTED
    assert f"the model uses newer features: element type {name}" in refusal.message


def test_features_are_found_by_the_version_that_brought_them() -> None:
    model = relu(ir_version=10)
    function = helper.make_function("own", "F", ["x"], ["y"], [], [helper.make_opsetid("", 17)])
    function.overload = "of-halves"
    model.functions.append(function)
    assert newer_than(model, 9) == ["overloaded functions"]
    assert newer_than(model, 7) == [
        "model-local functions or optional values",
        "overloaded functions",
    ]
    assert newer_than(relu(), 8) == []


def test_annotations_do_not_keep_an_ir_version() -> None:
    model = relu(ir_version=11)
    model.graph.node[0].metadata_props.add(key="from", value="layer 1")
    model.graph.node[0].device_configurations.add(configuration_id="two")
    assert plan(model, recipe(max_ir_version=9)).ir_version == 9


def test_no_weights_are_needed() -> None:
    """The external data does not exist."""
    model = external("nowhere.bin")
    assert plan(model, recipe(target_opset=13)).refusal is None
