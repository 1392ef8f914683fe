"""Models whose precision is changed, and the parts of stage `quantize` run on them alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from enginewright_contract.manifest import MODEL_NAME
from enginewright_contract.report import StageReport
from enginewright_contract.task import Calibration, PrepareTask, Quantization, Recipe
from enginewright_runtime.core.handoff import (
    CALIBRATION_FOLDER,
    GOLDEN_FOLDER,
    MODEL_FOLDER,
    Converted,
    Golden,
    Quantized,
)
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.engine import builder
from enginewright_runtime.engine.builder import BuildOutput
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.scoped.passes import PassResult
from enginewright_runtime.prepare.quantize import observing, static
from enginewright_runtime.prepare.quantize import stage as quantize_stage
from enginewright_runtime.prepare.quantize.dynamic import DynamicQuantization
from enginewright_runtime.prepare.quantize.forms import Form, dynamic_form, form_of
from enginewright_runtime.prepare.quantize.halves import Halves
from enginewright_runtime.prepare.quantize.mixed import MixedQuantization
from enginewright_runtime.prepare.quantize.quantizer import (
    QuantizationRequest,
    QuantizedModel,
    quantize,
)
from enginewright_runtime.prepare.quantize.static import StaticQuantization
from enginewright_runtime.prepare.quantize.subject import PrecisionPass, SourceModel
from enginewright_runtime.proof.golden_run import INPUTS, OUTPUTS
from enginewright_runtime.proof.parity.parts import PARTS
from enginewright_runtime.proof.rounding.half_rules import HALVES
from enginewright_runtime.session.arrays import write_arrays
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.support import engines
from tests.support.broken_models import parse_text
from tests.support.converting import run

Array = NDArray[Any]
Arrays = Mapping[str, Array]
FLOAT = TensorProto.FLOAT


def random(*shape: int, seed: int = 0, scale: float = 1.0) -> NDArray[np.float32]:
    """Return normally distributed numbers, always the same ones."""
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype(np.float32)


def weight(name: str, array: Array) -> TensorProto:
    return numpy_helper.from_array(array.astype(np.float32), name)


def dense(
    layers: int = 4, width: int = 64, *, opset: int = 17, operator: str = "Gemm"
) -> ModelProto:
    """Return a stack of matrix products, biases and Relus over x [n, width]."""
    nodes, now = "", "x"
    weights: list[TensorProto] = []
    for index in range(layers):
        matrix = random(width, width, seed=index, scale=1.4 / np.sqrt(width))
        bias = random(width, seed=index) / 9
        if index == layers - 1:
            bias += 4  # so that the samples move every output, behind the last Relu
        weights += [weight(f"w{index}", matrix), weight(f"b{index}", bias)]
        if operator == "Gemm":
            nodes += f'["gemm-{index}"] s{index} = Gemm <transB = 1> ({now}, w{index}, b{index})'
        else:
            nodes += f'["matmul-{index}"] m{index} = MatMul({now}, w{index})'
            nodes += f'["add-{index}"] s{index} = Add(m{index}, b{index})'
        now = "y" if index == layers - 1 else f"r{index}"
        nodes += f'["relu-{index}"] {now} = Relu(s{index})'
    text = f'(float["n", {width}] x) => (float["n", {width}] y) {{ {nodes} }}'
    return parse_text(text, *weights, opset=opset)


def convolutions(layers: int = 3, channels: int = 8, *, opset: int = 17) -> ModelProto:
    """Return convolutions, each with a bias and a Relu, over x [n, 3, 16, 16]."""
    nodes, now = "", "x"
    weights: list[TensorProto] = []
    for index in range(layers):
        inward = channels if index else 3
        kernel = random(channels, inward, 3, 3, seed=index, scale=1.4 / np.sqrt(9 * inward))
        bias = random(channels, seed=index)
        if index == layers - 1:
            bias += 4  # so that the samples move every output, behind the last Relu
        weights += [weight(f"w{index}", kernel), weight(f"b{index}", bias)]
        inputs = f"{now}, w{index}, b{index}"
        now = "y" if index == layers - 1 else f"r{index}"
        nodes += f"""["conv-{index}"] c{index} = Conv <pads = [1, 1, 1, 1]> ({inputs})
            ["relu-{index}"] {now} = Relu(c{index}) """
    text = f'(float["n", 3, 16, 16] x) => (float["n", {channels}, 16, 16] y) {{ {nodes} }}'
    return parse_text(text, *weights, opset=opset)


def attention(width: int = 32) -> ModelProto:
    """Return a layer of a text encoder over x [n, 8, width]: attention, a layer normalization and a GELU."""
    names = ("query", "key", "value", "output", "up", "down")
    weights = [
        weight(f"w_{name}", random(width, width, seed=index, scale=1 / np.sqrt(width)))
        for index, name in enumerate(names)
    ]
    text = f"""(float["n", 8, {width}] x) => (float["n", 8, {width}] y) {{
        [query] q = MatMul(x, w_query) [key] k = MatMul(x, w_key) [value] v = MatMul(x, w_value)
        [turn] t = Transpose <perm = [0, 2, 1]> (k) [scores] s = MatMul(q, t)
        [scale] scaled = Mul(s, factor) [softmax] p = Softmax(scaled) [context] c = MatMul(p, v)
        [output] o = MatMul(c, w_output) [residual] r = Add(x, o)
        [norm] n = LayerNormalization(r, gamma, beta) [up] u = MatMul(n, w_up)
        [shrink] e = Mul(u, root) [erf] f = Erf(e) [shift] g = Add(f, one) [gate] h = Mul(u, g)
        [down] d = MatMul(h, w_down) [sum] y = Add(n, d) }}"""
    numbers = {"factor": width**-0.5, "root": 0.5**0.5, "one": 1.0}
    weights += [weight(name, np.array(number)) for name, number in numbers.items()]
    weights += [weight("gamma", np.ones(width)), weight("beta", random(width, seed=9))]
    return parse_text(text, *weights, opset=17)


def copy_weights(model: ModelProto) -> ModelProto:
    """Return the model with its weights through Identity, as exporters write equal ones."""
    changed = ModelProto()
    changed.CopyFrom(model)
    names = {tensor.name for tensor in changed.graph.initializer}
    for node in changed.graph.node:
        for index, name in enumerate(node.input):
            if name in names:
                node.input[index] = f"{name}_copy"
    copies = [helper.make_node("Identity", [name], [f"{name}_copy"]) for name in sorted(names)]
    nodes = [*copies, *changed.graph.node]
    del changed.graph.node[:]
    changed.graph.node.extend(nodes)
    return changed


def collapsing(layers: int = 8, width: int = 32, *, at: int = 5) -> ModelProto:
    """Return products of matrices of which one takes values that no 8 bits hold.

    In front of it one channel is 1,000 times the others, and it alone is multiplied by 0.
    """
    nodes, now = "", "x"
    weights: list[TensorProto] = []
    for index in range(layers):
        matrix = random(width, width, seed=index, scale=1.0 / np.sqrt(width))
        if index == at - 1:
            matrix[:, 0] = 3e3 / width
        if index == at:
            matrix[0, :] = 0
        weights.append(weight(f"w{index}", matrix))
        then = "y" if index == layers - 1 else f"m{index}"
        nodes += f'["matmul-{index}"] {then} = MatMul({now}, w{index}) '
        now = then
    return parse_text(f'(float["n", {width}] x) => (float["n", {width}] y) {{ {nodes} }}', *weights)


def text(height: int, width: int, *, samples: int = 1, seed: int = 0) -> NDArray[np.float32]:
    """Return images in which a text detector sees text: dark strokes along a line."""
    generator = np.random.default_rng(seed)
    images = np.ones((samples, 3, height, width), np.float32)
    middle = height // 2
    for image in images:
        left = int(generator.integers(8, 24))
        step, stroke = int(generator.integers(11, 16)), int(generator.integers(4, 7))
        for column in range(left, width - left, step):
            image[:, middle - 12 : middle + 12, column : column + stroke] = -1
            image[:, middle - 2 : middle + 2, column : column + step - 3] = -1
    return images


def cosine(first: Array, second: Array) -> float:
    """Return how far two arrays have the same direction."""
    one, other = first.astype(np.float64).ravel(), second.astype(np.float64).ravel()
    return float(one @ other / np.sqrt((one @ one) * (other @ other)))


def subject(root: Path, model: ModelProto, opset: int | None = None) -> SourceModel:
    """Return a model as the precision package takes it."""
    folder = root / "subject"
    folder.mkdir(exist_ok=True)
    onnx.save_model(model, folder / MODEL_NAME)
    return SourceModel.load(folder / MODEL_NAME, opset)


def make_calibration(share: float = 0.25, **changes: Any) -> Quantization:
    """Return what asks for calibration."""
    asked = Calibration.model_validate({"uri": "pvc://data/calibration.npz"} | changes)
    return Quantization(calibration=asked, max_excluded_share=share)


@dataclass(frozen=True)
class Work:
    """The work folder of a prepare Job when `quantize` begins."""

    folder: Path
    recipe: Recipe

    def run(self) -> StageReport:
        task = PrepareTask(job="job-1", source_uri="pvc://models/m.onnx", recipe=self.recipe)
        return quantize_stage.run(task, Paths.under(self.folder.parent))

    def make(self, precision: str) -> QuantizedModel:
        """Make a model of a precision, in this process."""
        calibration = self.folder / CALIBRATION_FOLDER
        converted = Converted.read(self.folder)
        request = QuantizationRequest(
            precision=precision,
            source=self.folder / MODEL_FOLDER / MODEL_NAME,
            golden=self.folder / GOLDEN_FOLDER,
            calibration=calibration if calibration.is_dir() else None,
            inputs=converted.inputs,
            recipe=self.recipe,
            out=self.folder / "out",
            progress=self.folder / "progress",
            parts=self.folder / PARTS,
        )
        return quantize(request)

    @property
    def quantized(self) -> Quantized:
        """Return what the stage left."""
        return Quantized.read(self.folder)

    @property
    def model(self) -> Path:
        return self.folder / self.quantized.folder / MODEL_NAME

    def leftovers(self) -> list[str]:
        """Return what the stage has forgotten."""
        return [str(path) for path in self.folder.rglob("quantize-*")]


def work(
    root: Path,
    model: ModelProto | Path,
    samples: Sequence[Arrays],
    how: Recipe,
    calibration: Arrays | None = None,
    *,
    outputs: Sequence[Sequence[Array]] | None = None,
) -> Work:
    """Lay out a work folder; golden outputs are the model's own, unless they are given."""
    folder = root / "work"
    (folder / MODEL_FOLDER).mkdir(parents=True)  # `folder` may hold extensions already
    path = folder / MODEL_FOLDER / MODEL_NAME
    if isinstance(model, Path):
        path.write_bytes(model.read_bytes())
    else:
        onnx.save_model(model, path)
    proto = graphs.parse(path)
    (folder / GOLDEN_FOLDER).mkdir()
    inputs = {f"sample-{index}": feeds for index, feeds in enumerate(samples)}
    names = [item.name for item in proto.graph.output]
    expected = outputs or [run(path, feeds) for feeds in samples]
    golden = {
        name: dict(zip(names, arrays, strict=True))
        for name, arrays in zip(inputs, expected, strict=True)
    }
    write_arrays(folder / GOLDEN_FOLDER / INPUTS, inputs)
    write_arrays(folder / GOLDEN_FOLDER / OUTPUTS, golden)
    if calibration is not None:
        (folder / CALIBRATION_FOLDER).mkdir()
        arrays: dict[str, Any] = dict(calibration)
        np.savez(folder / CALIBRATION_FOLDER / "data.npz", **arrays)
    Converted(
        opset=graphs.default_opset(proto) or 0,
        ir_version=proto.ir_version,
        nodes=len(proto.graph.node),
        inputs=graphs.inputs_of(proto),
        outputs=graphs.outputs_of(proto),
    ).write(folder)
    Golden(source="samples", samples=len(samples)).write(folder)
    return Work(folder, how)


def quantize_by(
    form: Form,
    source: ModelProto,
    feeds: Arrays,
    root: Path,
) -> Path:
    """Quantize a model with ranges learnt from one sample; return its path."""
    root.mkdir()
    about = subject(root, source, form.opset)
    layers = static.find_layers(about, form, per_channel=True)
    how: PrecisionPass = DynamicQuantization(about, layers, form)
    if form.opset != dynamic_form().opset:
        names = observing.single_values(about.model)
        limits = observing.limits(about.folder / MODEL_NAME, names, [feeds])
        ranges = {name: (limit.low, limit.high) for name, limit in limits.items() if limit.seen}
        how = StaticQuantization(about, layers, ranges, form)
    how.write(root / "out")
    return root / "out" / MODEL_NAME


def mix_precisions(
    root: Path,
    source: ModelProto,
    feeds: Arrays,
    precision: str = "INT8",
    *,
    opset: int = 19,
    excluded: frozenset[int] = frozenset(),
    single: frozenset[int] = frozenset(),
) -> tuple[Path, PassResult]:
    """Quantize a model for TensorRT with the rest in FP16; ONNX's checker must agree that it is one."""
    about = subject(root, source, opset)
    base = root / "base.onnx"
    onnx.save_model(about.model, base)
    form = form_of(precision, "tensorrt-rtx")
    names = observing.single_values(about.model)
    observed = observing.limits(base, names, [feeds])
    limits = {name: limit for name, limit in observed.items() if limit.seen}
    halves = Halves(about, HALVES["FP16"], {name: limit.largest for name, limit in limits.items()})
    layers = static.find_layers(about, form, per_channel=True)
    ranges = {name: (limit.low, limit.high) for name, limit in limits.items()}
    how = MixedQuantization(about, layers, ranges, form, halves, single)
    result = how.write(root / "out", excluded)
    path = root / "out" / MODEL_NAME
    onnx.checker.check_model(str(path), full_check=True)
    return path, result


def build_engine(
    root: Path, model: Path, capability: str, size: Sequence[int], name: str = "x"
) -> BuildOutput:
    """Build an engine with the real TensorRT-RTX, ahead of time, for an input of a fixed size."""
    sizes = engines.sizes(name, size, size, size)
    return builder.build(engines.build_request(root, model, [sizes], engines.recipe(capability)))


def operators(path: Path) -> list[str]:
    return [node.op_type for node in graphs.parse(path).graph.node]
