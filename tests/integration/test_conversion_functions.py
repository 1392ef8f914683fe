"""Conversions reach the bodies of the functions that a model defines."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from enginewright_runtime.graph.scoped.branches import take_constant_branches
from enginewright_runtime.prepare.convert.biases import fold_biases
from enginewright_runtime.prepare.convert.passes import PreparePrecision
from enginewright_runtime.prepare.convert.translating import expand
from onnx import ModelProto, parser

from tests.support.broken_models import initializer
from tests.support.converting import feeds, operators, run, same


def build_layers(body: str, *, opset: int = 18) -> ModelProto:
    """Return a model that calls a function of this body, from `a` and `w` to `b`, twice."""
    model = parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": {opset}, "own": 1]>
        graph (float["n", 4] x) => (float["n", 4] y) {{
        [first] h = own.Layer(x, w) [second] y = own.Layer(h, w) }}
        <domain: "own", opset_import: ["": {opset}]> Layer (a, w) => (b) {{ {body} }}"""
    )
    model.graph.initializer.append(initializer("w", [1, 2, 3, 4]))
    return model


def test_an_operator_in_a_function_is_expanded() -> None:
    model = build_layers("m = Mish(a) b = Mul(m, w)")
    before = run(model, feeds(model))
    assert set(expand(model, ["Mish"]).expanded.values()) == {"Mish"}
    assert not {"Mish", "Layer"} & set(operators(model))
    same(before, run(model, feeds(model)))


def test_functions_without_what_is_changed_stay() -> None:
    model = build_layers("m = Relu(a) b = Mul(m, w)")
    expand(model, ["Mish"])
    take_constant_branches(model, {})
    fold_biases(model, Path())
    assert len(model.functions) == 1


def test_a_constant_branch_in_a_function_is_taken() -> None:
    model = build_layers(
        """yes = Constant <value = bool {1}> ()
        b = If (yes) <then_branch = t () => (p) { p = Mul(a, w) },
                      else_branch = e () => (q) { q = Add(a, w) }>"""
    )
    before = run(model, feeds(model))
    assert len(take_constant_branches(model, {})) == 2
    assert set(operators(model)) == {"Mul"}
    same(before, run(model, feeds(model)))


def test_a_bias_in_a_function_is_dequantized() -> None:
    model = build_layers(
        "s = Constant <value = float {0.5}> () d = DequantizeLinear(w, s) b = Add(a, d)"
    )
    model.graph.initializer[0].CopyFrom(initializer("w", [1, 2, 3, 4], np.int32))
    before = run(model, feeds(model))
    assert len(fold_biases(model, Path())) == 2
    assert set(operators(model)) == {"Add"}
    same(before, run(model, feeds(model)))


@pytest.mark.parametrize("quantized", [False, True])
def test_functions_are_inlined_ahead_of_a_lower_precision(
    tmp_path: Path, *, quantized: bool
) -> None:
    model = build_layers("m = Relu(a) b = Mul(m, w)")
    before = run(model, feeds(model))
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    done = PreparePrecision(quantized=quantized).change(model, path, path)
    assert [change.message for change in done.changes] == [
        "inlined 1 function, ahead of a lower precision"
    ]
    assert set(operators(model)) == {"Relu", "Mul"}
    same(before, run(model, feeds(model)))
