"""Results that one stage passes to later ones, as typed JSON in the work folder."""

from pathlib import Path
from typing import Final, Self

from enginewright_contract.base import Message
from enginewright_contract.manifest import (
    ArtifactFile,
    Change,
    NodeCost,
    OutputParity,
    ProcessingStep,
    TensorSpec,
    VaryingOutput,
)
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Finding, Published
from enginewright_contract.task import ShapeProfile
from pydantic import Field, ValidationError

from enginewright_runtime.core.failure import StageFailure

MODEL_FOLDER: Final = "model"  # the source: model.onnx and its external data
CONVERTED_FOLDER: Final = "converted"  # likewise, where `convert` changed it
QUANTIZED_FOLDER: Final = "quantized"  # likewise, where `quantize` did
CALIBRATION_FOLDER: Final = "calibration"  # as fetched: one .npz, .npy files, or images
CALIBRATION_DATA: Final = "data.npz"  # a single .npz is renamed to it
PROCESSING_FOLDER: Final = "processing"  # likewise of each step, in a folder of its name
SAMPLES_FILE: Final = "samples.npz"
GOLDEN_FOLDER: Final = "golden"  # inputs.npz, outputs.npz and, from the samples, expected.npz


class Handoff(Message):
    """Base of results, each in a file named after the class."""

    def write(self, work: Path) -> None:
        """Write this into the work folder."""
        (work / self._file()).write_text(self.to_json())

    @classmethod
    def read(cls, work: Path) -> Self:
        """Read the result of an earlier stage; raises StageFailure: InternalError without a valid one."""
        path = work / cls._file()
        try:
            return cls.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise StageFailure(
                Reason.INTERNAL_ERROR,
                f"cannot read the result of an earlier stage in {path}: {error}",
            ) from error

    @classmethod
    def find(cls, work: Path) -> Self | None:
        """Return the result of an earlier stage, if it left one; raises as `read`."""
        return cls.read(work) if (work / cls._file()).exists() else None

    @classmethod
    def remove(cls, work: Path) -> None:
        """Remove the result of an earlier attempt."""
        (work / cls._file()).unlink(missing_ok=True)

    @classmethod
    def _file(cls) -> str:
        return f"{cls.__name__.lower()}.json"


class Fetched(Handoff):
    """The result of `fetch`."""

    files: tuple[ArtifactFile, ...]  # relative to the model folder, model.onnx first
    model_digest: str
    samples: bool  # whether there is a samples file
    calibration: str | None = None  # digest of the calibration data
    steps: dict[str, str] = Field(default_factory=dict)  # digests by name of the step


class KnownArtifact(Handoff):
    """The result of `fetch` instead, where the store has the prepared model: later stages do nothing."""

    published: Published


class Validated(Handoff):
    """The result of `validate`: the source's properties."""

    opset: int
    ir_version: int
    nodes: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    profiles: tuple[ShapeProfile, ...]  # of every input: declared ones and defaults
    warnings: tuple[Finding, ...] = ()
    shape_nodes: tuple[str, ...] = ()  # labels of shape arithmetic
    steps: tuple[ProcessingStep, ...] = ()  # of recipe.processing


class Converted(Handoff):
    """The result of `convert`: the model in its own precision, in a form that the runtime supports."""

    folder: str = MODEL_FOLDER  # MODEL_FOLDER: the source is unchanged
    opset: int
    ir_version: int
    nodes: int
    inputs: tuple[TensorSpec, ...]  # as the source's: conversion never changes the interface
    outputs: tuple[TensorSpec, ...]
    shape_nodes: tuple[str, ...] = ()  # labels of shape arithmetic
    changes: tuple[Change, ...] = ()
    warnings: tuple[Finding, ...] = ()


class Quantized(Handoff):
    """The result of `quantize`: the model that serves."""

    folder: str  # of the last stage that changed it
    precision: str | None = None  # if it differs from the source's
    opset: int
    ir_version: int
    nodes: int
    node_costs: tuple[NodeCost, ...] = ()  # if it could be profiled
    shape_nodes: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()  # `convert`'s and its own
    parity: tuple[OutputParity, ...] = ()  # against the source
    warnings: tuple[Finding, ...] = ()


class Golden(Handoff):
    """The result of `golden`."""

    source: str  # generated | samples
    samples: int
    source_precision: str = "FP32"
    node_costs: tuple[NodeCost, ...] = ()  # of the converted model, if it could be profiled
    parity: tuple[OutputParity, ...] = ()  # of the converted model against source and expected
    expected: bool = False  # whether the samples carried outputs: expected.npz is there too
    graph_optimization: str | None = None  # as in the manifest, of the converted model
    varying: tuple[VaryingOutput, ...] = ()  # outputs that differ between runs of the source
