"""The JSON beside an artefact: its truth. An artefact without a manifest does not exist."""

from typing import Final

from enginewright.contract.base import Message
from enginewright.contract.processors import Processor
from enginewright.contract.task import EngineRecipe, Recipe, ShapeProfile

MODEL_NAME: Final = "model.onnx"  # what every .onnx file is called after fetch
MANIFEST_NAME: Final = "manifest.json"
LARGEST_MANIFEST: Final = 16 << 20  # bytes
MANIFEST_VERSION: Final = 1


class ArtifactFile(Message):
    """One file of an artefact, checked before anything reads it."""

    path: str  # relative, with /
    sha256: str
    size_bytes: int


class TensorSpec(Message):
    """An input or output as the model declares it."""

    name: str
    dtype: str  # numpy name: float32, int64, ... or "string"
    shape: tuple[int | str | None, ...]  # str: a named dimension; None: an unnamed one


class Change(Message):
    """One thing that was done to the source model on its way to the prepared one."""

    kind: str  # opset | ir-version | expand | simplify | fold-batch-norm | precision | quantize
    message: str  # what was done and why, for people
    nodes: tuple[str, ...] = ()  # labels of the source's nodes concerned, at most 100


class OutputParity(Message):
    """How one output of an artefact differs from what it is compared with, over all samples."""

    name: str
    compared_with: str  # source | expected | prepared
    max_abs_error: float | None = None  # None: not numeric, or not comparable
    max_rel_error: float | None = None
    cosine: float | None = None  # 1: same direction
    top1_agreement: float | None = None  # of 1; None: not scores over classes
    nan: int = 0  # of the artefact's values that are NaN where the other's are not
    inf: int = 0
    runs: int | None = None  # of a varying output, compared in distribution; None: by values


class Spread(Message):
    """How one output's values are distributed over runs of the source on one golden sample."""

    sample: str
    runs: int
    shape: tuple[int | None, ...]  # None: a size that differs from run to run
    distinct: bool  # whether no two runs were equal
    ranges: dict[str, tuple[float, float]]  # lowest and highest of each statistic over the runs


class VaryingOutput(Message):
    """An output that differs from run to run of the source on ONNX Runtime's CPU provider."""

    name: str
    spreads: tuple[Spread, ...] = ()  # (): its distribution is not known


class NodeCost(Message):
    """What the nodes of one label cost together, as profiled on ONNX Runtime's CPU provider.

    Labels are "name (OpType)", "unnamed (OpType)" for nodes without a name, which then share one.
    """

    label: str
    count: int
    share: float  # of the whole graph's time, 0 to 1


class Partition(Message):
    """One part of the graph inside an engine, which ONNX Runtime shows as one EPContext node."""

    context_node: str  # name of the EPContext node
    nodes: tuple[str, ...]  # labels of the original nodes in it


class Latency(Message):
    """A benchmark: seconds a run, after warm-up."""

    p50: float
    p90: float
    p99: float
    samples: int
    shapes: str | None = None  # which were run: min, opt, max, or the name of a golden sample
    throughput: float | None = None  # rows (of the first dimension) a second; None: not measured
    peak_memory_bytes: int | None = None  # of the process, model and libraries included
    peak_device_memory_bytes: int | None = None  # None: no device, or it does not tell
    warm_up_runs: int | None = None  # until two in a row took about as long


class EngineProfile(Message):
    """Sizes that the engines of one artefact were built to take together: one of every input.

    `low` and `high` stand only where an input's values are sizes: then they bound these values.
    """

    inputs: tuple[ShapeProfile, ...]


class EngineInfo(Message):
    """What an engine artefact holds beside its prepared model's own facts."""

    recipe: EngineRecipe
    prepared_key: str
    file: str  # of the (largest) engine inside the artefact
    sha256: str  # of that file
    size_bytes: int
    compute_capabilities: tuple[str, ...]  # that it runs on
    partitions: tuple[Partition, ...]
    profiles: tuple[
        EngineProfile, ...
    ] = ()  # any one has to fit; () in artefacts of earlier versions
    nodes_total: int
    nodes_accelerated: int
    compute_share_elsewhere: float | None = None  # 0 to 1; None: not profiled
    workspace_bytes: int | None = None  # in effect, after steps down when memory ran out
    build_seconds: float
    peak_memory_bytes: int | None = None  # of the build's process
    latency: Latency | None = None  # None: built ahead of time, no device to measure on
    latencies: tuple[Latency, ...] = ()  # of every shape profile; `latency` is the usual one's
    parity_max_abs_error: float | None = None  # against the prepared model; None: likewise
    parity: tuple[OutputParity, ...] = ()  # against the prepared model and the expected outputs


class Manifest(Message):
    """A prepared model, `prepared/<key>/` in the store, or an engine, `engines/<key>/`.

    An engine's artefact is whole: model.onnx is the EPContext model, and the golden samples, the
    inputs and the node costs of the prepared model come along.
    """

    version: int = MANIFEST_VERSION
    key: str
    model_digest: str
    recipe: Recipe
    model: str = MODEL_NAME
    files: tuple[ArtifactFile, ...]
    opset: int
    ir_version: int
    nodes: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    golden_inputs: str = "golden/inputs.npz"  # one array an input, named "<sample>/<input>"
    golden_outputs: str = "golden/outputs.npz"  # likewise, from ONNX Runtime's CPU provider
    golden_expected: str | None = None  # likewise, from the exporting framework; None: not known
    golden_source: str  # generated | samples
    versions: dict[str, str]  # onnx, onnxruntime, enginewright
    node_costs: tuple[NodeCost, ...] = ()  # () in artefacts of earlier versions
    shape_nodes: tuple[str, ...] = ()  # labels of shape arithmetic, which may run anywhere
    # Sizes of every input that golden inputs and engines have: declared, default or found by
    # running. (): of an earlier version. Only those in the recipe are limits of what is served
    profiles: tuple[ShapeProfile, ...] = ()
    source_opset: int | None = None
    precision: str | None = None  # that the weights and activations have; None: the source's own
    # The highest level of ONNX Runtime's graph optimisations at which the outputs were right: ALL,
    # EXTENDED, BASIC or DISABLE; None: the highest at which it loads
    graph_optimization: str | None = None
    changes: tuple[Change, ...] = ()  # (): the source as it is
    parity: tuple[OutputParity, ...] = ()  # of the prepared model against source and expected
    # Compared in distribution; every other output is compared by values. None: not recorded, by an
    # earlier version
    varying: tuple[VaryingOutput, ...] | None = None
    # That the golden outputs were computed on; None: not recorded
    processor: Processor | None = None
    # Whether INT8 products saturate on processors that sum them in 16 bits; None: not known, or for a device
    saturable: bool | None = None
    engine: EngineInfo | None = None  # None: a prepared model
