"""Artefacts that may serve instead of a model: real ones of every precision, by our passes and by ONNX Runtime's tools."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import onnx
import onnxruntime as ort
from enginewright_contract.manifest import MODEL_NAME
from enginewright_contract.task import Int8Products
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.raw.storage import save
from enginewright_runtime.prepare.quantize import static
from enginewright_runtime.prepare.quantize.calibration import CalibrationData
from enginewright_runtime.prepare.quantize.dynamic import DynamicQuantization
from enginewright_runtime.prepare.quantize.forms import Form, dynamic_form, form_of
from enginewright_runtime.prepare.quantize.halves import Halves
from enginewright_runtime.prepare.quantize.observing import limits, single_values
from enginewright_runtime.prepare.quantize.ranges import calibrate
from enginewright_runtime.prepare.quantize.static import StaticQuantization
from enginewright_runtime.prepare.quantize.subject import PrecisionPass, SourceModel
from enginewright_runtime.prepare.quantize.widening import write_widened
from enginewright_runtime.proof.rounding.emulation import emulate_rounding
from enginewright_runtime.proof.rounding.half_rules import HALVES
from enginewright_runtime.session import processor
from enginewright_runtime.session.arrays import read_arrays, write_arrays
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from typing_extensions import override

from bench.truth.cases import REPOSITORY, Case, Feeds, Outputs, load, run_all
from bench.truth.weights import round_weights

_LEVEL: Final = ort.GraphOptimizationLevel
_LEVELS: Final = {
    "DISABLED": _LEVEL.ORT_DISABLE_ALL,
    "BASIC": _LEVEL.ORT_ENABLE_BASIC,
    "EXTENDED": _LEVEL.ORT_ENABLE_EXTENDED,
    "ALL": _LEVEL.ORT_ENABLE_ALL,
}
_OPSET: Final = 19  # from which 8-bit floats exist; models of older opsets are emulated in this
# As the product does: on a processor whose INT8 products saturate, weights have 7 bits, as ONNX Runtime's tools
# have it with `reduce_range` ("Quantize ONNX Models": U8S8 on AVX2 and AVX512)
_SATURATES: Final = processor.read().exact_products is False
_FORM_PRODUCTS: Final[Int8Products] = "any" if _SATURATES else "exact"
_OPENVINO: Final = REPOSITORY / ".venv-openvino/bin/python"
_BF16_OPSETS: Final = (22, 13)


@dataclass(frozen=True)
class Variant:
    """The outputs of an artefact for all samples, or why there are none."""

    name: str
    precision: str
    outputs: Sequence[Outputs] = ()
    refused: str = ""


def make_variants(case: Case, folder: Path) -> Iterator[Variant]:
    """Yield every variant that can be made of a model; the first of each precision is the emulation."""
    for name, precision, make in _Workshop(case, folder).list_recipes():
        try:
            yield Variant(name, precision, make())
        except Exception as error:  # noqa: BLE001 - tools and ONNX Runtime raise what they like
            lines = _describe(error).strip().splitlines() or [type(error).__name__]
            yield Variant(name, precision, refused=lines[-1][:300])


def _describe(error: Exception) -> str:
    """Return why a variant cannot be made; of a program, without its command."""
    match error:
        case subprocess.TimeoutExpired():
            return f"its program took longer than {error.timeout:.0f} s"
        case subprocess.CalledProcessError():
            return f"its program ended with {error.returncode}"
        case _:
            return str(error)


_Recipe = tuple[str, str, Callable[[], list[Outputs]]]


class _Workshop:
    def __init__(self, case: Case, folder: Path) -> None:
        self._case = case
        self._folder = folder
        self._count = 0

    def list_recipes(self) -> Iterator[_Recipe]:
        yield from self._emulations()
        yield from self._sessions()
        yield from self._halves()
        yield from self._integers()
        yield from self._backends()

    def _run(self, model: Path, level: str = "ALL", threads: int = 1) -> list[Outputs]:
        return run_all(load(model, _LEVELS[level], threads), self._case)

    def _path(self) -> Path:
        self._count += 1
        path = self._folder / f"variant-{self._count}"
        path.mkdir()
        return path / MODEL_NAME

    def _emulations(self) -> Iterator[_Recipe]:
        for precision in ("FP32", "FP16", "BF16", "INT8", "FP8"):
            yield EMULATED, precision, partial(self._emulate, precision)
        for precision in ("FP16", "BF16", "INT8", "FP8"):
            yield "weights rounded", precision, partial(self._round_weights, precision)

    def _emulate(self, precision: str) -> list[Outputs]:
        path = self._path()
        save(emulate_rounding(graphs.parse(self._case.model), precision), path)
        return self._run(path, "DISABLED")

    def _round_weights(self, precision: str) -> list[Outputs]:
        path = self._path()
        model = onnx.load(self._case.model)
        round_weights(model, precision)
        onnx.save(model, path)
        return self._run(path, "BASIC")

    def _newer(self) -> onnx.ModelProto:
        return SourceModel.load(self._case.model, _OPSET).model

    def _sessions(self) -> Iterator[_Recipe]:
        for level in _LEVELS:
            for threads in (1, 2):
                if (level, threads) != ("ALL", 1):  # that is the source
                    title = f"optimization {level}, {threads} threads"
                    yield title, "FP32", partial(self._run, self._case.model, level, threads)
        yield f"opset {_OPSET}", "FP32", self._translate

    def _translate(self) -> list[Outputs]:
        path = self._path()
        onnx.save(self._newer(), path)
        return self._run(path)

    def _halves(self) -> Iterator[_Recipe]:
        for precision in HALVES:
            yield "our pass", precision, partial(self._halve, precision)
        yield "ONNX Runtime's converter", "FP16", self._convert_half

    def _halve(self, precision: str) -> list[Outputs]:
        subject = self._subject((1,) if precision == "FP16" else _BF16_OPSETS)
        largest: dict[str, float] = {}
        if precision == "FP16":
            base = self._base(subject)
            observed = limits(base, single_values(subject.model), self._case.feeds)
            largest = {name: item.largest for name, item in observed.items()}
        path = self._write(Halves(subject, HALVES[precision], largest))
        widened = path.with_name("widened.onnx")
        write_widened(path, widened)
        return self._run(widened, "BASIC")

    def _convert_half(self) -> list[Outputs]:
        from onnxruntime.transformers.float16 import (  # noqa: PLC0415 - it may need more than is installed
            convert_float_to_float16,
        )

        path = self._path()
        onnx.save(convert_float_to_float16(onnx.load(self._case.model), keep_io_types=True), path)
        return self._run(path)

    def _integers(self) -> Iterator[_Recipe]:
        for kind in (QuantType.QInt8, QuantType.QUInt8):
            for per_channel in (False, True):
                title = (
                    f"ONNX Runtime, dynamic, {kind.name}{', per channel' if per_channel else ''}"
                )
                yield title, "INT8", partial(self._quantize_dynamic, kind, per_channel=per_channel)
        for per_channel in (False, True):
            title = f"ONNX Runtime, static{', per channel' if per_channel else ''}"
            yield title, "INT8", partial(self._quantize_static, per_channel=per_channel)
        for precision, backend in (
            ("INT8", "cpu"),
            ("INT8", "openvino"),
            ("INT8", "tensorrt"),
            ("FP8", "tensorrt"),
        ):
            for method in ("MinMax", "Entropy") if backend == "tensorrt" else ("MinMax",):
                form = form_of(precision, backend, _FORM_PRODUCTS)
                title = f"our pass, for {backend}, {method}"
                yield title, precision, partial(self._quantize_ours, form, method)
        yield "our pass, dynamic", "INT8", self._quantize_ours_dynamic

    def _quantize_dynamic(self, kind: QuantType, *, per_channel: bool) -> list[Outputs]:
        path = self._path()
        quantize_dynamic(
            str(self._case.model),
            str(path),
            per_channel=per_channel,
            reduce_range=_SATURATES and kind is QuantType.QInt8,
            weight_type=kind,
        )
        return self._run(path)

    def _quantize_static(self, *, per_channel: bool) -> list[Outputs]:
        path = self._path()
        base = path.with_name("base.onnx")
        onnx.save(self._newer(), base)
        quantize_static(
            str(base),
            str(path),
            _Reader(self._case.feeds),
            quant_format=QuantFormat.QDQ,
            per_channel=per_channel,
            reduce_range=_SATURATES,
        )
        return self._run(path)

    def _quantize_ours(self, form: Form, method: Any) -> list[Outputs]:  # noqa: ANN401 - a literal type
        subject = self._subject((form.opset,))
        layers = static.find_layers(subject, form, per_channel=True)
        feeds = [dict(item) for item in self._case.feeds]
        data = CalibrationData(len(feeds), len(feeds), lambda: iter(feeds))
        ranges = calibrate(self._base(subject), layers.values(), data, method)
        return self._run(
            self._write(StaticQuantization(subject, layers, ranges, form)), form.proof_level
        )

    def _quantize_ours_dynamic(self) -> list[Outputs]:
        form = dynamic_form(_FORM_PRODUCTS)
        subject = self._subject((form.opset,))
        layers = static.find_layers(subject, form, per_channel=True)
        return self._run(self._write(DynamicQuantization(subject, layers, form)), form.proof_level)

    def _subject(self, opsets: Sequence[int]) -> SourceModel:
        """Load the model in the first of these opsets that it can be converted to."""
        for opset in opsets[:-1]:
            try:
                return SourceModel.load(self._case.model, opset)
            except Exception:  # noqa: BLE001, S112 - the next opset may do
                continue
        return SourceModel.load(self._case.model, opsets[-1])

    def _base(self, subject: SourceModel) -> Path:
        path = self._path()
        save(subject.model, path)
        return path

    def _write(self, how: PrecisionPass) -> Path:
        folder = self._path().parent / "made"
        done = how.write(folder)
        if not done.nodes:
            raise ValueError("no node of the model can have this precision")
        return folder / MODEL_NAME

    def _backends(self) -> Iterator[_Recipe]:
        for precision, hint in (("FP32", "f32"), ("BF16", "bf16")):
            yield f"OpenVINO, {hint}", precision, partial(self._run_openvino, hint)

    def _run_openvino(self, hint: str) -> list[Outputs]:
        folder = self._path().parent
        every = (*self._case.feeds, *self._case.sequence)
        feeds = {str(index): item for index, item in enumerate(every)}
        write_arrays(folder / "feeds.npz", feeds)
        task = {
            "model": str(self._case.model),
            "folder": str(folder),
            "hint": hint,
            "carried": dict(self._case.carried),
        }
        subprocess.run(
            [str(_OPENVINO), "-c", _OPENVINO_RUN, json.dumps(task)],
            check=True,
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, "PYTHONPATH": ""},
        )
        outputs = read_arrays(folder / "outputs.npz")
        return [outputs[index] for index in feeds]


class _Reader(CalibrationDataReader):  # type: ignore[misc]  # ONNX Runtime's tools have no types
    def __init__(self, feeds: Sequence[Feeds]) -> None:
        self._feeds = iter(feeds)

    @override
    def get_next(self) -> dict[str, Any] | None:
        feeds = next(self._feeds, None)
        return None if feeds is None else dict(feeds)


EMULATED: Final = "rounding emulated"
_OPENVINO_RUN: Final = """
import json, sys
import numpy as np, onnxruntime as ort
task = json.loads(sys.argv[1])
options = {"device_type": "CPU", "num_of_threads": "2",
           "load_config": json.dumps({"CPU": {"INFERENCE_PRECISION_HINT": task["hint"]}})}
session = ort.InferenceSession(task["model"], providers=[("OpenVINOExecutionProvider", options)])
names = [output.name for output in session.get_outputs()]
samples = {}
with np.load(f"{task['folder']}/feeds.npz") as arrays:
    for key in arrays.files:
        index, _, name = key.partition("/")
        samples.setdefault(index, {})[name] = arrays[key]
outputs, last = {}, {}
for index, feeds in samples.items():
    carried = {name: last[output] for name, output in task["carried"].items() if last}
    last = dict(zip(names, session.run(names, {**carried, **feeds})))
    outputs |= {f"{index}/{name}": array for name, array in last.items()}
np.savez(f"{task['folder']}/outputs.npz", **outputs)
"""
