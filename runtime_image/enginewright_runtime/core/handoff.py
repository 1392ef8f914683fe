"""What one stage leaves in the work folder for the next, as typed JSON."""

from pathlib import Path
from typing import Final, Self

from enginewright.contract.base import Message
from enginewright.contract.manifest import (
    ArtifactFile,
    Change,
    NodeCost,
    OutputParity,
    TensorSpec,
    VaryingOutput,
)
from enginewright.contract.reasons import Reason
from enginewright.contract.report import Finding
from enginewright.contract.task import ShapeProfile
from pydantic import ValidationError

from enginewright_runtime.core.failure import StageFailure

MODEL_FOLDER: Final = "model"  # the source: model.onnx and its external data
CONVERTED_FOLDER: Final = "converted"  # likewise, where `convert` changed it
QUANTIZED_FOLDER: Final = "quantized"  # likewise, where `quantize` did
CALIBRATION_FOLDER: Final = "calibration"  # what was fetched: one .npz, or .npy files, or images
CALIBRATION_DATA: Final = "data.npz"  # of one .npz alone, whatever its name was
SAMPLES_FILE: Final = "samples.npz"
GOLDEN_FOLDER: Final = "golden"  # inputs.npz, outputs.npz and, from the samples, expected.npz


class Handoff(Message):
    """Base of what is handed on: a file of the class's name in the work folder."""

    def leave(self, work: Path) -> None:
        """Write this into the work folder."""
        (work / self._file()).write_text(self.to_json())

    @classmethod
    def pick_up(cls, work: Path) -> Self:
        """Read what an earlier stage left.

        Raises:
            StageFailure: InternalError, since stages of one pod run in order.
        """
        path = work / cls._file()
        try:
            return cls.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise StageFailure(
                Reason.INTERNAL_ERROR, f"cannot read what an earlier stage left in {path}: {error}"
            ) from error

    @classmethod
    def _file(cls) -> str:
        return f"{cls.__name__.lower()}.json"


class Fetched(Handoff):
    """Left by `fetch`."""

    files: tuple[ArtifactFile, ...]  # relative to the model folder, model.onnx first
    model_digest: str
    samples: bool  # whether there is a samples file
    calibration: str | None = None  # digest of the calibration data; None: there is none


class Validated(Handoff):
    """Left by `validate`: the source as it was found."""

    opset: int
    ir_version: int
    nodes: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    profiles: tuple[ShapeProfile, ...]  # of every input: declared ones and defaults
    warnings: tuple[Finding, ...] = ()
    shape_nodes: tuple[str, ...] = ()  # labels of shape arithmetic


class Converted(Handoff):
    """Left by `convert`: the model at its own precision, in the form that the runtime takes."""

    folder: str = MODEL_FOLDER  # MODEL_FOLDER: the source was left as it is
    opset: int
    ir_version: int
    nodes: int
    inputs: tuple[TensorSpec, ...]  # as the source's: conversion never changes the interface
    outputs: tuple[TensorSpec, ...]
    shape_nodes: tuple[str, ...] = ()  # labels of shape arithmetic
    changes: tuple[Change, ...] = ()
    warnings: tuple[Finding, ...] = ()


class Quantized(Handoff):
    """Left by `quantize`: the model that serves."""

    folder: str  # of the last stage that changed it
    precision: str | None = None  # None: the source's own
    opset: int
    ir_version: int
    nodes: int
    node_costs: tuple[NodeCost, ...] = ()  # (): could not be profiled
    shape_nodes: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()  # `convert`'s and its own
    parity: tuple[OutputParity, ...] = ()  # against the source
    warnings: tuple[Finding, ...] = ()


class Golden(Handoff):
    """Left by `golden`."""

    source: str  # generated | samples
    samples: int
    node_costs: tuple[NodeCost, ...] = ()  # of the converted model; (): could not be profiled
    parity: tuple[OutputParity, ...] = ()  # of the converted model against source and expected
    expected: bool = False  # whether the samples carried outputs: expected.npz is there too
    graph_optimization: str | None = None  # as in the manifest, of the converted model
    varying: tuple[VaryingOutput, ...] = ()  # outputs that differ from run to run of the source
