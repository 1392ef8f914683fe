"""What is in a model, as data: printed as text, JSON or YAML. docs/reference/commands.md is generated from the docstrings."""

from typing import Literal

from enginewright_contract.base import Message
from enginewright_contract.manifest import TensorSpec
from pydantic import Field


class ExternalFile(Message):
    """A file beside the model that holds some of its weights."""

    path: str
    """Where the model says it is, relative to its folder."""
    size_bytes: int | None = None
    """Its size; absent: it is missing, or outside the folder."""


class Description(Message):
    """What is in a model."""

    schema_: Literal["enginewright.dev/description/v1"] = Field(
        default="enginewright.dev/description/v1", alias="schema"
    )
    """Name and version of this format."""
    path: str
    """The file."""
    size_bytes: int
    """Size of the file, without external data."""
    sha256: str
    """Digest of the file."""
    producer: str = ""
    """Name and version of the exporter, as the model states them."""
    ir_version: int
    """IR version of the file."""
    opsets: dict[str, int]
    """Version of each imported domain; ai.onnx's has the empty name."""
    inputs: tuple[TensorSpec, ...]
    """Inputs that a caller must provide."""
    outputs: tuple[TensorSpec, ...]
    """Outputs."""
    nodes: int
    """Number of nodes, including those of subgraphs and functions."""
    operators: dict[str, int]
    """The operators by number of nodes, most first; at most 100."""
    parameters: int
    """Number of elements of all constant tensors."""
    weights: dict[str, int]
    """Bytes of the constant tensors by element type, most first."""
    external: tuple[ExternalFile, ...] = ()
    """Files with external data."""
    quantization: str = "none"
    """How it is quantized, as text, or none."""
    notable: tuple[str, ...] = ()
    """What decides where it can run: other domains, control flow, random numbers, functions, sizes that depend on values."""
