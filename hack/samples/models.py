"""The model files that demo and cluster tests serve or refuse: real ones, and ones broken on purpose."""

import shutil
from pathlib import Path

import onnx
from onnx import TensorProto, helper


def write_models(real: Path, folder: Path) -> None:
    """Write all model files into `folder`."""
    magika = next(real.rglob("standard_v3_3/model.onnx"))
    shutil.copy(magika, folder / "magika.onnx")
    shutil.copy(next(real.rglob("ch_ppocr_mobile_v2.0_cls_infer.onnx")), folder / "classify.onnx")
    (folder / "truncated.onnx").write_bytes(magika.read_bytes()[:100_000])
    (folder / "empty.onnx").write_bytes(b"")
    (folder / "text.onnx").write_text("this is no model\n" * 20)
    onnx.save(_newer_opset(), folder / "newer-opset.onnx")
    onnx.save(_custom_operator(), folder / "custom-operator.onnx")


def _newer_opset() -> onnx.ModelProto:
    """A model as a newer exporter writes it: CumProd came with opset 26."""
    nodes = [
        helper.make_node("Relu", ["x"], ["positive"], name="encoder/activation"),
        helper.make_node("CumProd", ["positive", "axis"], ["decay"], name="encoder/decay"),
        helper.make_node("CumProd", ["decay", "axis"], ["y"], name="decoder/decay"),
    ]
    axis = helper.make_tensor("axis", TensorProto.INT64, [], [1])
    return _model(nodes, opset=26, initializers=[axis])


def _custom_operator() -> onnx.ModelProto:
    node = helper.make_node("Frobnicate", ["x"], ["y"], name="frobnicate_1", domain="com.example")
    return _model([node], opset=17, extra=[helper.make_opsetid("com.example", 1)])


def _model(
    nodes: list[onnx.NodeProto],
    *,
    opset: int,
    initializers: list[onnx.TensorProto] | None = None,
    extra: list[onnx.OperatorSetIdProto] | None = None,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "sample",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
        initializers or [],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset), *(extra or [])], ir_version=10
    )
