"""What preflight found, as data: the JSON that is documented, and what every rendering is made of.

The docstring below each field is its description in docs/preflight.schema.json, which
hack/preflight-schema makes of this file. Within one version of the schema fields are only added.
"""

from typing import Final, Literal, TypeAlias, get_args

from enginewright.contract.base import Message
from enginewright.contract.manifest import Change, Latency, OutputParity, TensorSpec
from enginewright.contract.report import Finding
from pydantic import ConfigDict, Field

from enginewright_cli.preflight.remedies import REMEDIES_HERE, suggested

Verdict: TypeAlias = Literal["pass", "warn", "fail"]
SCHEMA: Final = "enginewright.dev/preflight/v1"
VERDICTS: Final[tuple[Verdict, ...]] = get_args(Verdict)  # the worst is last


class Described(Message):
    """A message whose fields are described by the docstrings below them (`schema.descriptions`)."""


class OperatorCount(Described):
    """All nodes of one operator."""

    operator: str
    """Name of the operator, with its domain before it unless that is ai.onnx's."""
    count: int
    """How many nodes there are, those of bodies and functions among them."""
    weight_bytes: int = 0
    """Size of the constant tensors that these nodes read."""


class WeightType(Described):
    """All constant tensors of one element type."""

    dtype: str
    """Name of the element type, as in NumPy."""
    tensors: int
    """How many tensors there are."""
    elements: int
    """How many elements they have together."""
    size_bytes: int
    """Their size."""


class Weight(Described):
    """One constant tensor."""

    name: str
    """Name of the initializer, or of the output of the Constant node."""
    dtype: str
    """Name of the element type, as in NumPy."""
    shape: tuple[int, ...]
    """Its dimensions."""
    size_bytes: int
    """Its size."""


class Graph(Described):
    """What the source's graph is made of, read without its external data."""

    producer: str = ""
    """Name and version of the exporter, as it says."""
    opsets: dict[str, int] = Field(default_factory=dict)
    """Version of each imported domain; ai.onnx's has the empty name."""
    functions: int = 0
    """How many functions the model brings along."""
    operator_types: int = 0
    """How many different operators there are."""
    operators: tuple[OperatorCount, ...] = ()
    """The operators by number of nodes, most first; at most 100."""
    weight_types: tuple[WeightType, ...] = ()
    """The constant tensors by element type, largest first."""
    largest_weights: tuple[Weight, ...] = ()
    """The largest constant tensors; at most 10."""
    external_bytes: int = 0
    """Size of the constant tensors that lie in external data."""


class ModelFacts(Described):
    """The model as it was found."""

    digest: str
    """sha256 over the .onnx file and its external data."""
    ir_version: int | None = None
    """The file's IR version; absent, as what follows, where the model could not be read."""
    opset: int | None = None
    """Version of the domain ai.onnx that it imports."""
    nodes: int | None = None
    """Number of nodes in the file, constants and those of bodies and functions among them."""
    inputs: tuple[TensorSpec, ...] = ()
    """What a caller gives."""
    outputs: tuple[TensorSpec, ...] = ()
    """What a caller gets."""
    size_bytes: int
    """Size of the .onnx file and its external data."""
    graph: Graph | None = None
    """What the graph is made of; absent where the file cannot be parsed."""


class Found(Described):
    """One finding, with the stage and the targets that it was made for."""

    severity: Literal["error", "warning"]
    """Whether it stops the model; a warning does not."""
    reason: str
    """Why, as one of the reasons that conditions and metrics carry."""
    message: str
    """The thing and the reason, as text."""
    remedy: str
    """What to do about it; empty where nothing is known."""
    options: tuple[str, ...] = ()
    """Options of this command that mend it, quoted for a shell, with sizes to be checked."""
    nodes: tuple[str, ...] = ()
    """Nodes at fault, each as "name (OpType)"; at most 100."""
    node_count: int = 0
    """How many nodes are at fault."""
    stage: str
    """The stage of the pipeline that found it."""
    targets: tuple[str, ...]
    """The targets that it was found for."""


class Parity(Described):
    """How close what would serve is to the source."""

    verdict: Literal["pass", "fail", "unknown"]
    """Whether every output is within its tolerance; unknown where nothing was compared."""
    outputs: tuple[OutputParity, ...] = ()
    """The figures of each output; empty where nothing was compared, as of a source served as it is."""


class PlacedOperator(Described):
    """Where the compute nodes of one operator run."""

    operator: str
    """Name of the operator."""
    count: int
    """How many compute nodes there are."""
    elsewhere: int
    """How many of them run elsewhere than on the target's backend."""
    share: float | None = None
    """Their share of the compute time on a CPU, 0 to 1; absent: not profiled."""
    elsewhere_share: float | None = None
    """The share of those elsewhere."""


class PlacedNode(Described):
    """Where the compute nodes of one name run."""

    label: str
    """The node, as "name (OpType)"; nodes without a name share one label an operator."""
    count: int
    """How many compute nodes have this label."""
    elsewhere: int
    """How many of them run elsewhere than on the target's backend."""
    share: float | None = None
    """Their share of the compute time on a CPU, 0 to 1; absent: not profiled."""


class Placement(Described):
    """Where the compute nodes run. ONNX Runtime has folded constants away before."""

    operators: tuple[PlacedOperator, ...] = ()
    """All compute nodes by operator, costliest first; at most 100 operators."""
    nodes: tuple[PlacedNode, ...] = ()
    """The nodes that run elsewhere, then the others, costliest first; at most 200."""
    shape_nodes: int = 0
    """Nodes that compute shapes only, which may run anywhere and are counted nowhere else."""


class Engine(Described):
    """What was built."""

    sha256: str
    """Digest of the (largest) engine file."""
    compute_capabilities: tuple[str, ...] = ()
    """Compute capabilities of the GPUs that it runs on."""
    partitions: int
    """How many parts of the graph became engines; 1: it is whole."""
    ahead_of_time: bool = False
    """Whether it was built without such a device, so that nothing could be run or measured."""
    workspace_bytes: int | None = None
    """Device memory that the builder may use for a layer; absent: its own limit."""
    peak_memory_bytes: int | None = None
    """Most memory of this machine that the build took."""
    max_abs_error: float | None = None
    """Largest difference of the engine from the prepared model; absent: it was not run."""
    outputs: tuple[OutputParity, ...] = ()
    """The engine's own figures, of each output; empty: it was not run."""


class TargetResult(Described):
    """What one target does with the model."""

    verdict: Verdict
    """pass: it serves there whole; warn: it serves, and something is to be known; fail: not."""
    backend: str
    """What runs the model there: tensorrt-rtx, cuda, openvino or cpu."""
    scope: str = ""
    """Which backend of which version the verdict speaks of, and what it cannot know of a cluster's classes."""
    reason: str | None = None
    """Why it failed, as one of the reasons that conditions and metrics carry."""
    message: str = ""
    """Why it failed, as text."""
    nodes_total: int | None = None
    """Nodes that compute data; absent, as what follows, where it did not come that far."""
    nodes_accelerated: int | None = None
    """How many of them run on the target's backend."""
    elsewhere: tuple[str, ...] = ()
    """The first nodes that run elsewhere, each as "name (OpType)"."""
    compute_share_elsewhere: float | None = None
    """Their share of the compute time on a CPU, 0 to 1; absent: not profiled."""
    placement: Placement | None = None
    """Which nodes run where; absent where they were not profiled."""
    engine_bytes: int | None = None
    """Size of the engine; absent where the backend needs none."""
    build_seconds: float | None = None
    """Time that building the engine took on this machine."""
    engine: Engine | None = None
    """About the engine; absent where the backend needs none."""
    precision: str | None = None
    """Precision that the model was brought to; absent: its own."""
    changes: tuple[Change, ...] = ()
    """What was done to the source before it is served; empty: nothing."""
    parity: Parity | None = None
    """How close what would serve is to the source."""
    latency: Latency | None = None
    """Seconds a run on this machine; absent where it has no such device."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Versions of what made it."""
    prepared_key: str | None = None
    """Key of the prepared model in the store."""
    engine_key: str | None = None
    """Key of the engine in the store; absent where the backend needs none."""
    seconds: float = 0.0
    """Time that finding out took."""


class Result(Described):
    """All about one model."""

    # "schema" is a method of pydantic's models, so the field has another name here
    model_config = ConfigDict(
        validate_by_name=True, validate_by_alias=True, serialize_by_alias=True
    )

    schema_: Literal["enginewright.dev/preflight/v1"] = Field(default=SCHEMA, alias="schema")
    """Name and version of this form."""
    verdict: Verdict
    """The worst of the targets' verdicts."""
    source: str
    """The model: a path, or a URI as in spec.source.uri."""
    model: ModelFacts | None = None
    """The model as it was found; absent where it could not be fetched."""
    findings: tuple[Found, ...] = ()
    """Everything found, errors first."""
    targets: dict[str, TargetResult] = Field(default_factory=dict)
    """What each target does with the model, by the target's name, in the order asked for."""
    seconds: float = 0.0
    """Time that all of it took."""
    cached: bool = False
    """Whether this is an earlier run's result, for the same model, options and versions."""


class Results(Described):
    """All about several models: what one model's result is for one."""

    model_config = ConfigDict(
        validate_by_name=True, validate_by_alias=True, serialize_by_alias=True
    )

    schema_: Literal["enginewright.dev/preflight-models/v1"] = Field(
        default="enginewright.dev/preflight-models/v1", alias="schema"
    )
    """Name and version of this form."""
    verdict: Verdict
    """The worst of the models' verdicts."""
    models: tuple[Result, ...]
    """Each model, in the order asked for."""


def worst(verdicts: tuple[Verdict, ...]) -> Verdict:
    """Return the worst of several; "pass" of none."""
    return max(verdicts, key=VERDICTS.index, default="pass")


def advice(finding: Finding) -> str:
    """Return what to do about it on a machine that is no cluster."""
    return REMEDIES_HERE.get(finding.reason, finding.advice)


def found(finding: Finding, stage: str, targets: tuple[str, ...]) -> Found:
    """Return a stage's finding as it is reported."""
    return Found(
        severity=finding.severity,
        reason=finding.reason.value,
        message=finding.cause,
        remedy=advice(finding),
        options=suggested(finding.proposal),
        nodes=finding.nodes,
        node_count=finding.node_count,
        stage=stage,
        targets=targets,
    )


def merged(findings: list[Found]) -> tuple[Found, ...]:
    """Return each finding once, with all the targets that it was made for; errors first."""
    targets: dict[tuple[str, str, str], list[str]] = {}
    first: dict[tuple[str, str, str], Found] = {}
    for each in findings:
        key = (each.stage, each.reason, each.message)
        first.setdefault(key, each)
        names = targets.setdefault(key, [])
        names += [name for name in each.targets if name not in names]
    every = [
        each.model_copy(update={"targets": tuple(targets[key])}) for key, each in first.items()
    ]
    return tuple(sorted(every, key=lambda each: each.severity != "error"))
