"""Revisions of one small model: good ones, and ones that are right at first."""

from pathlib import Path

import onnx
from onnx import ModelProto

from hack.samples.load import WIDTH
from hack.samples.revisions import linear
from tests.support.broken_models import parse_text
from tests.support.extensions import compile_library

RUNS = (
    600  # after which those that are right at first are not any more: within the hold of a canary
)
LATER = 2500  # likewise, but only once all pods are replaced


def write_revisions(folder: Path) -> None:
    """Write the models, and libraries for that of `extensions.cube` in a folder each, into `folder`."""
    onnx.save(linear(seed=2), folder / "linear-2.onnx")
    onnx.save(linear(seed=1, name="pixels"), folder / "linear-renamed.onnx")
    onnx.save(_opset_26(), folder / "opset-26.onnx")
    compile_library(folder / "sound")
    for macro in ("DRIFTS", "CRASHES", "LEAKS=300000"):
        compile_library(folder / macro.partition("=")[0].lower(), f"AFTER={RUNS}", macro)
    compile_library(folder / "drifts-later", f"AFTER={LATER}", "DRIFTS")


def _opset_26() -> ModelProto:
    """Return x [n, 16] to y of its shape, by an operator that ONNX Runtime 1.24 lacks and no conversion replaces."""
    return parse_text(
        f"""(float["n", {WIDTH}] x) => (float["n", {WIDTH}] y) <int64 axis = {{1}}> {{
        [decay] y = CumProd(x, axis) }}""",
        opset=26,
        ir_version=8,
    )
