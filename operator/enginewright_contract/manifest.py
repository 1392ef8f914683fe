"""The JSON file that describes an artefact. A folder without a manifest is not an artefact."""

from typing import Final

from pydantic import Field

from enginewright_contract.base import Message
from enginewright_contract.processors import Processor
from enginewright_contract.signature import PublishedSignature
from enginewright_contract.task import EngineRecipe, Recipe, ShapeProfile

MODEL_NAME: Final = "model.onnx"  # name of every .onnx file after fetch
MANIFEST_NAME: Final = "manifest.json"
LARGEST_MANIFEST: Final = 16 << 20  # bytes
MANIFEST_VERSION: Final = 1
LEAST_RUNS: Final = {50: 3, 90: 20, 99: 100}  # fewest runs for a percentile


class ArtifactFile(Message):
    """One file of an artefact, checked before anything reads it."""

    path: str  # relative, with /
    sha256: str
    size_bytes: int


class TensorSpec(Message):
    """An input or output as the model declares it."""

    name: str
    """Name of the input or output."""
    dtype: str
    """NumPy's name of the element type, such as float32, or "string"."""
    shape: tuple[int | str | None, ...]
    """Sizes of the dimensions; a name or null for dynamic ones."""


class Change(Message):
    """One change of the source model made by its preparation."""

    kind: str
    """Kind of change: opset, ir-version, external-data, expand, simplify, fold-batch-norm, precision or quantize."""
    message: str
    """What was changed and why, for people."""
    nodes: tuple[str, ...] = ()
    """Affected nodes of the source, each as "name (OpType)"; at most 100."""


class UnjudgedParts(Message):
    """Parts of an output, along one axis, that the samples do not move enough to be judged."""

    axis: int
    """Axis of the output, from 0; -1: the output as a whole, its only part."""
    indices: tuple[int, ...]
    """The first of them, at most 20."""
    count: int
    """Number of such parts."""
    of: int
    """Size of the axis."""

    def describe(self, output: str) -> str:
        """Return the parts in words, such as "2 of 84 indices of axis 1 (4, 7) of output 'dets'"."""
        if self.axis < 0:
            return f"all elements of output {output!r}"
        more = ", …" if self.count > len(self.indices) else ""
        listed = ", ".join(map(str, self.indices))
        return f"{self.count} of {self.of} indices of axis {self.axis} ({listed}{more}) of output {output!r}"


class OutputParity(Message):
    """How one output of an artefact differs from its reference, over all samples."""

    name: str
    """Name of the output."""
    compared_with: str
    """Reference of the comparison: source, expected or prepared."""
    max_abs_error: float | None = None
    """Largest absolute difference; absent: not numeric, or not comparable."""
    max_rel_error: float | None = None
    """Largest relative difference; absent: not numeric, or not comparable."""
    cosine: float | None = None
    """Cosine similarity with the reference; 1: same direction."""
    top1_agreement: float | None = None
    """Share of samples with the same largest value, 0 to 1; absent: not scores over classes."""
    nan: int = 0
    """Number of values that are NaN here but not in the reference."""
    inf: int = 0
    """Number of values that are infinite here but not in the reference."""
    runs: int | None = None
    """Number of runs by which the distribution of a random output was compared; absent: compared by values."""
    unjudged: tuple[UnjudgedParts, ...] = ()
    """Parts whose errors are too large for what the samples move them by, but not for the precision."""


class Spread(Message):
    """How one output's values are distributed over runs of the source on one golden sample."""

    sample: str
    runs: int
    shape: tuple[int | None, ...]  # None for a size that differs from run to run
    distinct: bool  # whether all runs differed
    ranges: dict[str, tuple[float, float]]  # lowest and highest of each statistic over the runs


class VaryingOutput(Message):
    """An output that differs from run to run of the source on ONNX Runtime's CPU provider."""

    name: str
    spreads: tuple[Spread, ...] = ()  # (): its distribution is not known


class NodeCost(Message):
    """Cost of all nodes with one label, "name (OpType)" or "unnamed (OpType)", as profiled on the CPU provider."""

    label: str
    count: int
    share: float  # of the graph's total time, 0 to 1


class Partition(Message):
    """One part of the graph inside an engine, which ONNX Runtime shows as one EPContext node."""

    context_node: str  # name of the EPContext node
    nodes: tuple[str, ...]  # labels of the original nodes in it


class Latency(Message):
    """A benchmark: seconds per run, after warm-up."""

    p50: float
    """Median, in seconds."""
    p90: float
    """90% of the runs took at most this, in seconds."""
    p99: float
    """99% of the runs took at most this, in seconds."""
    samples: int
    """Number of measured runs, after a warm-up."""
    shapes: str | None = None
    """Shapes of the runs: min, opt, max, or the name of a golden sample."""
    throughput: float | None = None
    """Rows of the first dimension per second; absent: not measured."""
    peak_memory_bytes: int | None = None
    """Peak memory of the process, including model and libraries."""
    peak_device_memory_bytes: int | None = None
    """Peak device memory; absent: no device."""
    warm_up_runs: int | None = None
    """Number of runs until two in a row took about the same time."""

    @property
    def shows_p99(self) -> bool:
        """Return whether there were enough runs for the 99th percentile to be more than the slowest of them."""
        return self.samples >= LEAST_RUNS[99]


class BackendLatency(Message):
    """A backend in the comparison of those that can serve, with the usual sizes."""

    backend: str
    latency: Latency | None = None  # unless excluded
    excluded: str = ""  # why it cannot serve whole, or correctly


class EngineProfile(Message):
    """One optimization profile of an artefact's engines; `low` and `high` bound inputs that are sizes."""

    inputs: tuple[ShapeProfile, ...]


class EngineInfo(Message):
    """Facts of an engine artefact in addition to those of its prepared model."""

    recipe: EngineRecipe
    prepared_key: str
    file: str  # name of the (largest) engine file in the artefact
    sha256: str  # of that file
    size_bytes: int
    compute_capabilities: tuple[str, ...]  # that it runs on
    partitions: tuple[Partition, ...]
    profiles: tuple[EngineProfile, ...] = ()  # a request has to fit one; earlier versions have none
    nodes_total: int
    nodes_accelerated: int
    compute_share_elsewhere: float | None = None  # 0 to 1, if profiled
    workspace_bytes: int | None = None  # in effect, after reductions when memory ran out
    build_seconds: float
    peak_memory_bytes: int | None = None  # of the build's process
    latency: Latency | None = None  # unless built ahead of time
    latencies: tuple[
        Latency, ...
    ] = ()  # of min, opt and max where measured; `latency` is that of opt
    parity_max_abs_error: float | None = None  # against the prepared model; likewise
    parity: tuple[OutputParity, ...] = ()  # against the prepared model and the expected outputs
    backends: tuple[BackendLatency, ...] | None = None  # that were compared, the engine's own first


class ProcessingStep(Message):
    """An ONNX model that runs on the CPU before or after the served model: processing/<name>/model.onnx."""

    name: str  # before-0, before-1, after-0: in this order
    digest: str  # of its files
    inputs: tuple[str, ...]  # `TensorText` each
    outputs: tuple[str, ...]  # likewise


class Manifest(Message):
    """A prepared model, `prepared/<key>/` in the store, or an engine, `engines/<key>/`.

    An engine's artefact is self-contained: model.onnx is the EPContext model, and golden samples,
    inputs and node costs are those of the prepared model.
    """

    version: int = MANIFEST_VERSION
    key: str
    model_digest: str
    recipe: Recipe
    # Digests of the content at the recipe's other addresses, by name, as they enter the prepared model's
    # key; earlier versions have none
    data: dict[str, str] | None = None
    model: str = MODEL_NAME
    files: tuple[ArtifactFile, ...]
    opset: int
    ir_version: int
    nodes: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    signature: PublishedSignature | None = None  # earlier versions have none
    golden_inputs: str = "golden/inputs.npz"  # one array per input, named "<sample>/<input>"
    golden_outputs: str = "golden/outputs.npz"  # likewise, from ONNX Runtime's CPU provider
    golden_expected: str | None = None  # likewise, from the exporting framework
    # What is expected of each part of the golden outputs, `proof.parity.parts`; earlier versions have none
    golden_parts: str | None = None
    golden_source: str  # generated | samples
    versions: dict[str, str]  # onnx, onnxruntime, enginewright
    node_costs: tuple[NodeCost, ...] = ()  # () in artefacts of earlier versions
    shape_nodes: tuple[str, ...] = ()  # labels of shape arithmetic, which may run anywhere
    # Sizes of every input of golden inputs and engines: declared, default or found by running the
    # model. (): of an earlier version. Only those in the recipe limit what is served
    profiles: tuple[ShapeProfile, ...] = ()
    source_opset: int | None = None
    precision: str | None = None  # of the weights and activations, if not the source's own
    source_precision: str | None = None  # the source's own; earlier versions have none
    # The highest level of ONNX Runtime's graph optimizations at which the outputs were right: ALL,
    # EXTENDED, BASIC or DISABLE; by default the highest at which it loads
    graph_optimization: str | None = None
    changes: tuple[Change, ...] = ()  # (): the source as it is
    parity: tuple[OutputParity, ...] = ()  # of the prepared model against source and expected
    varying: tuple[VaryingOutput, ...] | None = None  # compared in distribution
    # label of a node by output whose sizes depend on the values of inputs; {} in artefacts of earlier versions
    sized_by_values: dict[str, str] = Field(default_factory=dict)
    processor: Processor | None = None  # that the golden outputs were computed on
    saturable: bool | None = None  # whether INT8 products may saturate in 16-bit sums
    # With steps, `inputs` and `outputs` are the model's own, and `signature` is what clients see
    steps: tuple[ProcessingStep, ...] = ()
    engine: EngineInfo | None = None  # unless it is a prepared model

    @property
    def served_precision(self) -> str | None:
        """The precision that serves, by which outputs are judged."""
        return self.precision or self.source_precision
