"""Revisions of one small model: good ones, and ones that are right at first."""

from pathlib import Path

import onnx

from hack.samples.revisions import linear
from tests.support.extensions import compile_library

RUNS = (
    600  # after which those that are right at first are not any more: within the hold of a canary
)
LATER = 2500  # likewise, but only once all pods are replaced


def write_revisions(folder: Path) -> None:
    """Write the models, and libraries for that of `extensions.cube` in a folder each, into `folder`."""
    onnx.save(linear(seed=2), folder / "linear-2.onnx")
    onnx.save(linear(seed=1, name="pixels"), folder / "linear-renamed.onnx")
    compile_library(folder / "sound")
    for macro in ("DRIFTS", "CRASHES", "LEAKS=300000"):
        compile_library(folder / macro.partition("=")[0].lower(), f"AFTER={RUNS}", macro)
    compile_library(folder / "drifts-later", f"AFTER={LATER}", "DRIFTS")
