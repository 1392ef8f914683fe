"""Builds engines: by the stages of a Job, or by the builder alone; and models that test it."""

import importlib
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from enginewright_contract.keys import engine_key
from enginewright_contract.manifest import ArtifactFile, Manifest
from enginewright_contract.task import (
    ENGINE_STAGES,
    LOOKUP_STAGE,
    EngineRecipe,
    EngineTask,
    Recipe,
    ShapeProfile,
)
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.engine.builder import BuildRequest
from enginewright_runtime.graph import shapes
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.proof.golden_inputs import generate
from enginewright_runtime.runner import run_stage
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.support.broken_models import build, parse_text, value
from tests.support.preparing import Outcome, Workplace

VERSION = "1.7.1.116"
BF16 = TensorProto.BFLOAT16


def sizes(name: str, low: Sequence[int], usual: Sequence[int], high: Sequence[int]) -> ShapeProfile:
    return ShapeProfile(input=name, min=tuple(low), opt=tuple(usual), max=tuple(high))


def recipe(
    capability: str | None = "8.9",
    *,
    backend: str = "tensorrt-rtx",
    version: str = VERSION,
    workspace: int | None = None,
    level: int | None = None,
    ahead_of_time: bool = True,
) -> EngineRecipe:
    """Return the recipe of an engine."""
    return EngineRecipe(
        backend=backend,
        backend_version=version,
        ort_version="1.31.1",
        cuda_major="13",
        accelerator_class="l4",
        compute_capability=capability,
        ahead_of_time=ahead_of_time,
        workspace_bytes=workspace,
        optimization_level=level,
    )


def build_request(
    root: Path,
    model: ModelProto | Path,
    declared: Sequence[ShapeProfile] = (),
    how: EngineRecipe | None = None,
) -> BuildRequest:
    """Return the builder's input, for a model without earlier stages.

    A model that is a path is copied with all that lies beside it.
    """
    folder = root / "prepared/model"
    if isinstance(model, Path):
        shutil.copytree(model.parent, folder)
        (folder / model.name).rename(folder / "model.onnx")
    else:
        folder.mkdir(parents=True)
        onnx.save_model(model, folder / "model.onnx")
    (root / "prepared/golden").mkdir(parents=True)
    proto = graphs.parse(folder / "model.onnx")
    inputs = graphs.inputs_of(proto)
    profiles = shapes.resolve(inputs, declared, frozenset()).profiles
    samples = generate(inputs, profiles) if len(profiles) == len(inputs) else []
    arrays = {
        f"{sample.name}/{name}": array
        for sample in samples
        for name, array in sample.inputs.items()
    }
    np.savez(root / "prepared/golden/inputs.npz", **arrays)  # type: ignore[arg-type]  # numpy's stub
    manifest = Manifest(
        key="ab" * 32,
        model_digest="0" * 64,
        recipe=Recipe(
            backend="tensorrt-rtx",
            ort_version="1.31.1",
            max_opset=26,
            max_ir_version=13,
            shapes=tuple(declared),
        ),
        model="model/model.onnx",
        files=(ArtifactFile(path="model/model.onnx", sha256="0" * 64, size_bytes=0),),
        opset=graphs.default_opset(proto) or 0,
        ir_version=proto.ir_version,
        nodes=sum(1 for node in graphs.walk_nodes(proto) if node.op_type != "Constant"),
        inputs=inputs,
        outputs=graphs.outputs_of(proto),
        golden_source="generated",
        versions={},
    )
    return BuildRequest(
        manifest=manifest,
        prepared=root / "prepared",
        recipe=how or recipe(),
        out=root / "engine",
        progress=root / "progress.json",
        timing_cache=root / "timing.cache",
    )


class EnginePlace(Workplace):
    """A workplace whose store has a prepared model, and the task to build its engine."""

    prepared: str = ""

    def prepare_model(
        self, model: ModelProto | Path | bytes, shapes: Sequence[ShapeProfile] = ()
    ) -> str:
        """Prepare a model for the CPU and return its key."""
        task = self.task(self.put("m.onnx", model), shapes=shapes)
        self.prepared = self.complete(task).published.key
        return self.prepared

    def engine_task(self, how: EngineRecipe | None = None) -> EngineTask:
        chosen = how or recipe()
        key = engine_key(self.prepared, chosen)
        return EngineTask(job="job-1", engine_key=key, prepared_key=self.prepared, recipe=chosen)

    def engine_stage(self, name: str, task: EngineTask) -> Outcome:
        """Run one stage, in a process of its own unless the workplace is in-process."""
        if not self.in_process:
            return self._run(["stage", name], task.to_json())
        self._termination_log().unlink(missing_ok=True)
        paths = Paths.under(self.root)
        module = importlib.import_module(f"enginewright_runtime.engine.{name.replace('-', '_')}")
        code = run_stage(name, lambda: module.run(task, paths), paths, task.job)
        return self._outcome(code, "")

    def build_engine(self, task: EngineTask) -> dict[str, Outcome]:
        """Run look-up and Job until a stage fails; return the outcomes by stage."""
        outcomes: dict[str, Outcome] = {}
        for name in (LOOKUP_STAGE, *ENGINE_STAGES):
            outcomes[name] = self.engine_stage(name, task)
            if outcomes[name].code != 0:
                break
        return outcomes

    def engine_folder(self, task: EngineTask) -> Path:
        return self.root / "store/engines" / task.engine_key

    def engine_manifest(self, task: EngineTask) -> Manifest:
        text = (self.engine_folder(task) / "manifest.json").read_text()
        return Manifest.model_validate_json(text)


def weights(name: str, *shape: int, kind: int = TensorProto.FLOAT) -> TensorProto:
    """Return small random weights, always the same."""
    values = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32) * 0.1
    if kind == BF16:
        bits = (values.view(np.uint32) >> 16).astype(np.uint16)
        return helper.make_tensor(name, BF16, shape, bits.tobytes(), raw=True)
    return numpy_helper.from_array(values, name)


def build_mixed() -> ModelProto:
    """Return ten nodes of which TensorRT has nine, x [n, 3, 32, 32] to y [n]; Det is left.

    The last one, Add, is alone behind it.
    """
    return parse_text(
        """(float["n", 3, 32, 32] x) => (float["n"] y) <int64[3] square = {-1, 4, 4}> {
        [conv_1] c1 = Conv <pads = [1, 1, 1, 1]> (x, w1) [relu_1] r1 = Relu(c1)
        [mvn] m = MeanVarianceNormalization <axes = [0, 2, 3]> (r1)
        [conv_2] c2 = Conv <pads = [1, 1, 1, 1]> (m, w2) [relu_2] r2 = Relu(c2)
        [gap] g = GlobalAveragePool(r2) [flatten] f = Flatten(g)
        [reshape] s = Reshape(f, square) [det_bad] d = Det(s) [add_out] y = Add(d, b) }""",
        weights("w1", 8, 3, 3, 3),
        weights("w2", 16, 8, 3, 3),
        weights("b", 1),
    )


def half_way() -> ModelProto:
    """Return x [n, 8] to y through BF16, which not every device computes with."""
    return parse_text(
        """(float["n", 8] x) => (float["n", 8] y) {
        [to_bf16] h = Cast <to = 16> (x) [to_float] f = Cast <to = 1> (h) [relu] y = Relu(f) }"""
    )


def matmul(*, kind: int = TensorProto.FLOAT, columns: int = 8, rows: int | str = "n") -> ModelProto:
    """Return MatMul and Relu, x [rows, columns] to y."""
    return build(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"], name="multiply"),
            helper.make_node("Relu", ["h"], ["y"], name="relu"),
        ],
        [value("x", rows, columns, kind=kind)],
        [value("y", rows, columns, kind=kind)],
        [weights("w", columns, columns, kind=kind)],
    )
