"""The result of preflight, as data: the documented JSON, and the source of every other output.

The docstring below each field is its description in docs/preflight.schema.json, which
hack/preflight-schema generates from this file. Within one version of the schema, fields are only
added.
"""

from datetime import datetime
from typing import Final, Literal, TypeAlias, get_args

from enginewright_contract.base import Message
from enginewright_contract.manifest import Change, Latency, OutputParity, TensorSpec
from enginewright_contract.reasons import Fault, Reason
from enginewright_contract.report import Finding
from pydantic import Field

from enginewright_cli.preflight.options import suggest
from enginewright_cli.preflight.remedies import advise

Verdict: TypeAlias = Literal["pass", "warn", "unknown", "fail"]
SCHEMA: Final = "enginewright.dev/preflight/v1"
VERDICTS: Final[tuple[Verdict, ...]] = get_args(Verdict)  # the worst is last
# at fault here says nothing about the model
_OF_MACHINE: Final = (Fault.SOURCE, Fault.NODE, Fault.ARTIFACT, Fault.STORE, Fault.PRODUCT)


class Described(Message):
    """A message whose fields are described by the docstrings below them (`schema.descriptions`)."""


class OperatorCount(Described):
    """All nodes of one operator."""

    operator: str
    """Name of the operator, with its domain before it unless that is ai.onnx's."""
    count: int
    """Number of nodes, including those of subgraphs and functions."""
    weight_bytes: int = 0
    """Size of the constant tensors that these nodes read."""


class WeightType(Described):
    """All constant tensors of one element type."""

    dtype: str
    """Name of the element type, as in NumPy."""
    tensors: int
    """Number of tensors."""
    elements: int
    """Total number of elements."""
    size_bytes: int
    """Total size."""


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
    """Contents of the source's graph, read without its external data."""

    producer: str = ""
    """Name and version of the exporter, as the model states them."""
    opsets: dict[str, int] = Field(default_factory=dict)
    """Version of each imported domain; ai.onnx's has the empty name."""
    functions: int = 0
    """Number of functions that the model defines."""
    operator_types: int = 0
    """Number of different operators."""
    operators: tuple[OperatorCount, ...] = ()
    """The operators by number of nodes, most first; at most 100."""
    weight_types: tuple[WeightType, ...] = ()
    """The constant tensors by element type, largest first."""
    largest_weights: tuple[Weight, ...] = ()
    """The largest constant tensors; at most 10."""
    external_bytes: int = 0
    """Size of the constant tensors in external data."""


class ModelFacts(Described):
    """The source model."""

    digest: str
    """sha256 over the .onnx file and its external data."""
    ir_version: int | None = None
    """IR version of the file; absent, like the fields below except size_bytes, where the model could not be read."""
    opset: int | None = None
    """Version of the domain ai.onnx that it imports."""
    nodes: int | None = None
    """Number of nodes in the file, including constants and those of subgraphs and functions."""
    inputs: tuple[TensorSpec, ...] = ()
    """Inputs of the model."""
    outputs: tuple[TensorSpec, ...] = ()
    """Outputs of the model."""
    size_bytes: int
    """Size of the .onnx file and its external data."""
    graph: Graph | None = None
    """Contents of the graph; absent where the file cannot be parsed."""


class Found(Described):
    """One finding, with its stage and targets."""

    severity: Literal["error", "warning"]
    """error: the model cannot be deployed, or it could not be found out; warning: it can."""
    reason: str
    """Reason, as in conditions and metrics."""
    message: str
    """Object and cause, as text."""
    remedy: str
    """What to do about it; empty: no known remedy."""
    options: tuple[str, ...] = ()
    """Options of this command that resolve it, quoted for a shell; check the suggested sizes."""
    nodes: tuple[str, ...] = ()
    """Affected nodes, each as "name (OpType)"; at most 100."""
    node_count: int = 0
    """Number of affected nodes."""
    stage: str
    """Stage that reported it."""
    targets: tuple[str, ...]
    """Targets that it applies to."""


class Parity(Described):
    """How close the outputs of the served model are to the source model's."""

    verdict: Literal["pass", "fail", "unknown"]
    """Whether every output is within its tolerance; unknown: nothing was compared, or the samples do not judge parts of an output."""
    outputs: tuple[OutputParity, ...] = ()
    """Results for each output; empty: nothing was compared, such as for a source that is served unchanged."""

    def list_unjudged(self) -> list[str]:
        """Return the parts of outputs that the samples do not judge, each once, in words."""
        parts = ((output.name, part) for output in self.outputs for part in output.unjudged)
        return list(dict.fromkeys(part.describe(name) for name, part in parts))


class PlacedOperator(Described):
    """Where the compute nodes of one operator run."""

    operator: str
    """Name of the operator."""
    count: int
    """Number of compute nodes."""
    elsewhere: int
    """Number of them that do not run on the target's backend."""
    share: float | None = None
    """Their share of the compute time on a CPU, 0 to 1; absent: not profiled."""
    elsewhere_share: float | None = None
    """Share of those that do not run on the target's backend."""


class PlacedNode(Described):
    """Where the compute nodes of one name run."""

    label: str
    """The node, as "name (OpType)"; nodes without a name share one label per operator."""
    count: int
    """Number of compute nodes with this label."""
    elsewhere: int
    """Number of them that do not run on the target's backend."""
    share: float | None = None
    """Their share of the compute time on a CPU, 0 to 1; absent: not profiled."""


class Placement(Described):
    """Where the compute nodes run, after ONNX Runtime's constant folding."""

    operators: tuple[PlacedOperator, ...] = ()
    """All compute nodes by operator, highest compute time first; at most 100 operators."""
    nodes: tuple[PlacedNode, ...] = ()
    """Nodes that do not run on the target's backend, then the others, highest compute time first; at most 200."""
    shape_nodes: int = 0
    """Number of nodes that compute only shapes, which may run anywhere and are excluded from all other counts."""


class Engine(Described):
    """The engine that was built."""

    sha256: str
    """Digest of the (largest) engine file."""
    compute_capabilities: tuple[str, ...] = ()
    """Compute capabilities of the GPUs that it runs on."""
    partitions: int
    """Number of subgraphs that became engines."""
    ahead_of_time: bool = False
    """Whether it was built without a device of this kind, so that it could not be run or measured."""
    peak_memory_bytes: int | None = None
    """Peak host memory of the build."""
    max_abs_error: float | None = None
    """Largest absolute difference between engine and prepared model; absent: it was not run."""
    outputs: tuple[OutputParity, ...] = ()
    """Results of the engine for each output; empty: it was not run."""


class AnsweredOutput(Described):
    """One output of the answer to --request."""

    name: str
    """Name of the output."""
    datatype: str
    """Its datatype of the Open Inference Protocol."""
    shape: tuple[int, ...]
    """Its shape."""
    values: tuple[str, ...]
    """Its first values, at most 16."""


class TargetResult(Described):
    """Result for one target."""

    verdict: Verdict
    """pass: the complete model can be served; warn: it can be served, with warnings; unknown: it could not be found out; fail: it cannot."""
    backend: str
    """Backend that runs the model: tensorrt, tensorrt-rtx, cuda, openvino or cpu."""
    scope: str = ""
    """Backend and versions that the verdict applies to, and what a cluster's class may do differently."""
    reason: str | None = None
    """Reason for the failure, as in conditions and metrics."""
    message: str = ""
    """Cause and remedy of the failure, as text."""
    nodes_total: int | None = None
    """Number of compute nodes; absent, like the fields below, where an earlier stage failed."""
    nodes_accelerated: int | None = None
    """Number of them that run on the target's backend."""
    elsewhere: tuple[str, ...] = ()
    """The first nodes that do not run on the target's backend, each as "name (OpType)"."""
    compute_share_elsewhere: float | None = None
    """Their share of the compute time on a CPU, 0 to 1; absent: not profiled."""
    placement: Placement | None = None
    """Where the nodes run; absent: not profiled."""
    engine_bytes: int | None = None
    """Size of the engine; absent: the backend has no engines."""
    build_seconds: float | None = None
    """Build time of the engine on this machine."""
    engine: Engine | None = None
    """The engine; absent: the backend has no engines."""
    precision: str | None = None
    """Precision that the model was converted to; absent: its own."""
    changes: tuple[Change, ...] = ()
    """Changes of the source model before it is served; empty: none."""
    parity: Parity | None = None
    """How close the outputs of the served model are to the source model's."""
    answer: tuple[AnsweredOutput, ...] = ()
    """The outputs that answer --request, each with its first values; empty: none was given, or the backend has engines."""
    latency: Latency | None = None
    """Latency on this machine, in seconds; absent: it has no device of this kind."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Versions of the software that created it."""
    prepared_key: str | None = None
    """Key of the prepared model in the store."""
    engine_key: str | None = None
    """Key of the engine in the store; absent: the backend has no engines."""
    seconds: float = 0.0
    """Duration of the check, in seconds."""


class Result(Described):
    """Result for one model."""

    schema_: Literal["enginewright.dev/preflight/v1"] = Field(default=SCHEMA, alias="schema")
    """Name and version of this format."""
    verdict: Verdict
    """The worst of the targets' verdicts."""
    source: str
    """The model: a path, or a URI as in spec.source.uri."""
    model: ModelFacts | None = None
    """The source model; absent: it could not be fetched."""
    findings: tuple[Found, ...] = ()
    """All findings, errors first."""
    targets: dict[str, TargetResult] = Field(default_factory=dict)
    """Result for each target, by the target's name, in the order requested."""
    seconds: float = 0.0
    """Total duration, in seconds."""
    checked_at: datetime | None = None
    """When the check ended, in UTC; absent: it could not begin."""
    manifest: str | None = None
    """InferenceModel to apply, as YAML, with options of the findings filled in; absent: not all targets would serve it."""
    cached: bool = False
    """Whether this is the cached result of an earlier run with the same model, options and versions."""

    def explains(self, target: str) -> bool:
        """Return whether an error among the findings says why a target fails."""
        return any(target in one.targets and one.severity == "error" for one in self.findings)


class Results(Described):
    """Results for several models."""

    schema_: Literal["enginewright.dev/preflight-models/v1"] = Field(
        default="enginewright.dev/preflight-models/v1", alias="schema"
    )
    """Name and version of this format."""
    verdict: Verdict
    """The worst of the models' verdicts."""
    models: tuple[Result, ...]
    """Result for each model, in the order requested."""


def worst(verdicts: tuple[Verdict, ...]) -> Verdict:
    """Return the worst verdict; "pass" for an empty tuple."""
    return max(verdicts, key=VERDICTS.index, default="pass")


def judge_failure(reason: Reason | None) -> Verdict:
    """Return the verdict on a failure: "unknown" if this machine or the source is at fault instead of the model."""
    if reason is None:
        return "fail"
    is_unknown = reason.lacks_resources or reason.facets.fault in _OF_MACHINE
    return "unknown" if is_unknown else "fail"


def make_found(finding: Finding, stage: str, targets: tuple[str, ...]) -> Found:
    """Return a stage's finding as it is reported."""
    return Found(
        severity=finding.severity,
        reason=finding.reason.value,
        message=finding.cause,
        remedy=advise(finding),
        options=suggest(finding.proposal),
        nodes=finding.nodes,
        node_count=finding.node_count,
        stage=stage,
        targets=targets,
    )


def merge_findings(findings: list[Found]) -> tuple[Found, ...]:
    """Return each finding once, with all targets that it applies to; errors first."""
    targets: dict[tuple[str, str, str], list[str]] = {}
    first: dict[tuple[str, str, str], Found] = {}
    for finding in findings:
        key = (finding.stage, finding.reason, finding.message)
        first.setdefault(key, finding)
        names = targets.setdefault(key, [])
        names += [name for name in finding.targets if name not in names]
    every = [
        item.model_copy(update={"targets": tuple(targets[key])}) for key, item in first.items()
    ]
    return tuple(sorted(every, key=lambda item: item.severity != "error"))
