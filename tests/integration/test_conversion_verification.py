"""What tells a changed model from its source: interface, weights, outputs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from enginewright_contract.reasons import Reason
from enginewright_runtime.core.failure import SessionError, StageFailure
from enginewright_runtime.prepare.convert import simplifying, verification
from enginewright_runtime.prepare.convert.verification import (
    compare,
    form_differs,
    run_source,
)
from enginewright_runtime.proof.definition import run_definition, try_definition
from enginewright_runtime.proof.golden_inputs import Sample
from enginewright_runtime.proof.golden_run import INPUTS, OUTPUTS
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.support.broken_models import (
    build_unsorted,
    initializer,
    parse_text,
    random_output,
    relu,
)
from tests.support.converting import attention, copy, one, operators, recipe, weight
from tests.support.optional import present


def prove(folder: Path, source: ModelProto, changed: ModelProto, **arrays: Any) -> str | None:
    """Return what `compare` says of two models, one sample."""
    samples: dict[str, Any] = {f"opt/{name}": array for name, array in arrays.items()}
    for name, model in (("source", source), ("changed", changed)):
        (folder / f"{name}.onnx").write_bytes(model.SerializeToString())
    np.savez(folder / INPUTS, **samples)
    varying = run_source(folder / "source.onnx", folder).varying
    return compare(folder / "changed.onnx", folder / "source.onnx", folder, varying)


X = np.linspace(-1, 1, 4, dtype=np.float32).reshape(1, 4)


def test_equal_models_agree(tmp_path: Path) -> None:
    assert prove(tmp_path, relu(), relu(opset=13), x=X) is None


def test_another_operator_is_reported(tmp_path: Path) -> None:
    changed = relu()
    changed.graph.node[0].op_type = "Abs"
    differs = present(prove(tmp_path, relu(), changed, x=X))
    assert differs.startswith("output 'y' of sample 'opt' ")


def test_a_thousandth_is_too_much_for_floats(tmp_path: Path) -> None:
    """What artefacts are allowed is ten times that: here nothing is approximated."""
    source, changed = (
        one("Mul", 17, numpy_helper.from_array(np.array(factor, np.float32), "f"), shape=(1, 4))
        for factor in (1.0, 1.004)
    )
    assert prove(tmp_path, source, changed, x=X)


def test_other_places_of_nan_are_reported(tmp_path: Path) -> None:
    changed = relu()
    changed.graph.node[0].op_type = "Log"
    assert "NaN" in str(prove(tmp_path, relu(), changed, x=X))


# fault: Outputs | a conversion froze or widened random outputs | its own verification | at once
def test_random_outputs_are_compared_in_distribution(tmp_path: Path) -> None:
    inputs = np.zeros((1, 400), np.float32)
    reported = prove(tmp_path, random_output(), random_output(), x=inputs)
    assert reported is None
    wider, frozen = random_output(), random_output()
    wider.graph.node[0].attribute.append(helper.make_attribute("scale", 1e6))
    frozen.graph.node[0].op_type = "Relu"
    for changed in (wider, frozen):
        differs = present(prove(tmp_path, random_output(), changed, x=inputs))
        assert differs.startswith("output 'noise' of sample 'opt' has another distribution"), (
            differs
        )


def test_a_changed_model_that_does_not_load_is_refused(tmp_path: Path) -> None:
    changed = relu()
    changed.graph.node[0].domain = "com.example"
    changed.opset_import.append(helper.make_opsetid("com.example", 1))
    with pytest.raises(SessionError, match=r"com\.example"):
        prove(tmp_path, relu(), changed, x=X)


def test_checker_errors_of_the_source_are_no_objection(tmp_path: Path) -> None:
    """ONNX Runtime loads nodes in any order, and onnx.checker does not."""
    assert prove(tmp_path, build_unsorted(), build_unsorted(), x=X) is None
    unchecked = copy(build_unsorted())
    sound = copy(build_unsorted())
    nodes = list(sound.graph.node)[::-1]
    del sound.graph.node[:]
    sound.graph.node.extend(nodes)
    differs = present(prove(tmp_path, sound, unchecked, x=X))
    assert differs.startswith("onnx.checker reports: Nodes in a graph must be topologically sorted")


def test_an_opset_under_development_is_run_by_onnx_runtime_or_by_definition(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(relu(opset=28, ir_version=13).SerializeToString())
    np.savez(tmp_path / INPUTS, allow_pickle=False, **{"opt/x": X})
    assert run_definition(tmp_path / "m.onnx", tmp_path).samples == 1
    with np.load(tmp_path / OUTPUTS) as outputs:
        np.testing.assert_array_equal(outputs["opt/y"], np.maximum(X, 0))


def test_the_interface_must_stay() -> None:
    renamed = copy(relu())
    renamed.graph.output[0].name = renamed.graph.node[0].output[0] = "z"
    assert form_differs(relu(), renamed, recipe()) == (
        "its outputs differ in name, order, type or declared shape"
    )
    wider = copy(relu())
    wider.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 5
    assert form_differs(relu(), wider, recipe()) == "its inputs differ"


def test_the_limits_of_the_runtime_must_be_kept() -> None:
    """The ONNX Runtime at hand may load more than the one that serves."""
    assert form_differs(relu(), relu(opset=22), recipe(max_opset=21)) == "it has opset 22, above 21"
    assert form_differs(relu(), relu(ir_version=10), recipe(max_ir_version=9)) == (
        "it has IR version 10, above 9"
    )


def quantize() -> ModelProto:
    """Return MatMul with int8 weights [64, 64], as some exporters write them."""
    numbers = np.random.default_rng(0).integers(-128, 127, (64, 64)).astype(np.int8)
    return parse_text(
        """(float["b", 64] x) => (float["b", 64] y) { [float] wc = Cast <to = 1> (w)
        [scaled] wf = Mul(wc, scale) [product] y = MatMul(x, wf) }""",
        initializer("w", numbers, np.int8),
        initializer("scale", 0.01),
    )


def test_undone_quantization_is_reported(tmp_path: Path) -> None:
    """ONNX Runtime's optimizer, onnxslim and onnxsim all fold the weights back to floats."""
    path = tmp_path / "m.onnx"
    path.write_bytes(quantize().SerializeToString())
    (tmp_path / "out").mkdir()
    changed = simplifying.simplify(path, tmp_path / "out/m.onnx")
    assert operators(changed) == ["MatMul"]
    assert form_differs(quantize(), changed, recipe()) == (
        "it is dequantized: 0 of 4096 INT8 weights remain"
    )


def test_weights_that_folding_made_large_are_reported() -> None:
    large = copy(relu())
    large.graph.initializer.append(TensorProto(name="w", data_type=1, dims=[8 << 20]))
    assert form_differs(relu(), large, recipe()) == "its weights grow from 0 to 33554432 bytes"


def test_halves_are_allowed_the_error_of_their_sums() -> None:
    halves = attention(24)
    halves.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones((8, 8), np.float16), "w"))
    assert verification._weights(halves)[TensorProto.FLOAT16] == 64
    tolerances = verification._TOLERANCES
    assert tolerances[TensorProto.FLOAT16].rtol > tolerances[TensorProto.FLOAT].rtol


def test_simplification_brings_no_domains(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    model = one("Mul", 17, weight("w", 4), shape=(1, 4))
    path.write_bytes(model.SerializeToString())
    (tmp_path / "out").mkdir()
    changed = simplifying.simplify(path, tmp_path / "out/m.onnx")
    assert [entry.domain for entry in changed.opset_import] == [""]


def test_full_disk_is_no_refusal_by_the_reference_implementation(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(relu().SerializeToString())
    (tmp_path / OUTPUTS).symlink_to("/dev/full")
    with pytest.raises(StageFailure) as caught:
        try_definition(tmp_path / "m.onnx", Sample("opt", {"x": X}, {}), tmp_path)
    assert caught.value.reason is Reason.STORAGE_FULL
