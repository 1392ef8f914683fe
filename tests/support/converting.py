"""Models for conversion, and the stage `convert` run on them alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from enginewright_contract.manifest import MODEL_NAME
from enginewright_contract.report import StageReport
from enginewright_contract.task import PrepareTask, Recipe
from enginewright_runtime.core.handoff import MODEL_FOLDER, Converted, Validated
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.shapes import resolve
from enginewright_runtime.prepare.convert import stage as convert
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.support.broken_models import build, parse_text, value
from tests.support.engines import sizes

FLOAT = TensorProto.FLOAT
_NOISE = 1e-6  # of float32 arithmetic near zero
_RANDOM = np.random.default_rng(0)


def recipe(backend: str = "cpu", /, **changes: Any) -> Recipe:
    """Return a recipe with the limits of the ONNX Runtime at hand."""
    openvino = backend == "openvino"
    fields: dict[str, Any] = {
        "backend": backend,
        "ort_version": "1.24.1" if openvino else "1.31.1",
        "max_opset": 25 if openvino else 26,
        "max_ir_version": 13,
    }
    return Recipe.model_validate(fields | changes)


DETECT = sizes("x", [1, 3, 64, 64], [1, 3, 160, 160], [2, 3, 160, 320])
READ = sizes("x", [1, 3, 48, 64], [2, 3, 48, 160], [2, 3, 48, 320])
LISTEN = sizes("audio", [1, 4096], [1, 8000], [1, 16000])
SPEAK = sizes("input", [1, 576], [2, 576], [4, 576])
STATE = sizes("state", [2, 1, 128], [2, 2, 128], [2, 4, 128])


def real(models: Path, end: str) -> Path:
    return next(path for path in sorted(models.rglob("*.onnx")) if str(path).endswith(end))


def weight(name: str, *shape: int, low: float = -1.0, high: float = 1.0) -> TensorProto:
    return numpy_helper.from_array(_RANDOM.uniform(low, high, shape).astype(np.float32), name)


def attention(opset: int, ir_version: int = 11, **attributes: Any) -> ModelProto:
    """Return MatMul and Attention over q [b, 5, 8] and k, v [b, 6, 8], of two heads."""
    more = "".join(f", {name} = {given}" for name, given in attributes.items())
    return parse_text(
        f"""(float["b", 5, 8] q, float["b", 6, 8] k, float["b", 6, 8] v) => (float["b", 5, 8] y) {{
        [product] qw = MatMul(q, w)
        [attention] y = Attention <q_num_heads = 2, kv_num_heads = 2{more}> (qw, k, v) }}""",
        weight("w", 8, 8),
        opset=opset,
        ir_version=ir_version,
    )


def one(
    operator: str,
    opset: int,
    *weights: TensorProto,
    shape: Sequence[int | str] = ("b", 4, 3, 3),
    out: Sequence[int | str | None] | None = None,
    ir_version: int = 10,
    **attributes: Any,
) -> ModelProto:
    """Return x to y through one node called "node"."""
    names = ["x", *(tensor.name for tensor in weights)]
    node = helper.make_node(operator, names, ["y"], name="node", **attributes)
    return build(
        [node],
        [value("x", *shape)],
        [value("y", *(shape if out is None else out))],
        weights,
        opset=opset,
        ir_version=ir_version,
    )


def operators(model: ModelProto) -> list[str]:
    return [node.op_type for node in graphs.walk_nodes(model)]


def copy(model: ModelProto) -> ModelProto:
    duplicate = ModelProto()
    duplicate.CopyFrom(model)
    return duplicate


def feeds(model: ModelProto, size: int = 2, low: float = 0.0) -> dict[str, NDArray[Any]]:
    """Return random inputs; open dimensions get `size`."""
    generator = np.random.default_rng(1)
    return {
        spec.name: generator.uniform(
            low, 1.0, [item if isinstance(item, int) else size for item in spec.shape]
        ).astype(np.dtype(spec.dtype))
        for spec in graphs.inputs_of(model)
    }


def run(
    model: ModelProto | Path,
    inputs: Mapping[str, NDArray[Any]],
    level: ort.GraphOptimizationLevel = ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
) -> list[NDArray[Any]]:
    """Return the outputs by ONNX Runtime's CPU provider."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = level
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    outputs: list[NDArray[Any]] = session.run(None, dict(inputs))
    return outputs


def define(model: ModelProto, inputs: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
    """Return the outputs by ONNX's reference implementation."""
    return [np.asarray(item) for item in ReferenceEvaluator(model).run(None, inputs)]


def same(one: Sequence[NDArray[Any]], other: Sequence[NDArray[Any]], share: float = 1e-5) -> None:
    """Assert that outputs agree within a share of their largest value."""
    assert len(one) == len(other)
    for want, have in zip(one, other, strict=True):
        assert (want.shape, want.dtype) == (have.shape, have.dtype)
        limit = share * float(np.nanmax(np.abs(want), initial=0.0))
        np.testing.assert_allclose(have, want, rtol=0, atol=limit + _NOISE * (share > 0))


@dataclass(frozen=True)
class Outcome:
    """What the stage has left."""

    report: StageReport
    converted: Converted
    path: Path  # of the model

    @property
    def model(self) -> ModelProto:
        return graphs.parse(self.path)


def place(root: Path, model: ModelProto | Path, asked: Recipe) -> Path:
    """Write the results of `validate` to `root`/work; return that folder."""
    work = root / "work"
    (work / MODEL_FOLDER).mkdir(parents=True, exist_ok=True)
    path = work / MODEL_FOLDER / MODEL_NAME
    path.write_bytes(model.read_bytes() if isinstance(model, Path) else model.SerializeToString())
    source = onnx.load(path, load_external_data=False)
    inputs = graphs.inputs_of(source)
    unranked = frozenset(
        input_.name for input_ in inputs if not graphs.has_rank(source, input_.name)
    )
    resolved = resolve(inputs, asked.shapes, unranked)
    assert not resolved.findings
    Validated(
        opset=graphs.default_opset(source) or 0,
        ir_version=source.ir_version,
        nodes=len(operators(source)),
        inputs=inputs,
        outputs=graphs.outputs_of(source),
        profiles=resolved.profiles,
    ).write(work)
    return work


def convert_here(root: Path, model: ModelProto | Path, asked: Recipe) -> Outcome:
    """Run the stage in this process; it must leave nothing behind, and the source as it was."""
    work = place(root, model, asked)
    before = {
        path: path.read_bytes() for path in (work / MODEL_FOLDER).rglob("*") if path.is_file()
    }
    task = PrepareTask(job="job-1", source_uri="pvc://models/m.onnx", recipe=asked)
    try:
        report = convert.run(task, Paths.under(root))
    finally:
        assert before == {
            path: path.read_bytes() for path in (work / MODEL_FOLDER).rglob("*") if path.is_file()
        }
        assert not list(work.glob("convert-*"))
    left = Converted.read(work)
    return Outcome(report, left, work / left.folder / MODEL_NAME)
