"""What preflight found, as data: the JSON that is documented, and what every rendering is made of."""

from typing import Literal, TypeAlias

from pydantic import Field

from enginewright.contract.base import Message
from enginewright.contract.manifest import Change, Latency, OutputParity, TensorSpec
from enginewright.contract.reasons import REMEDIES
from enginewright.contract.report import Finding

Verdict: TypeAlias = Literal["pass", "warn", "fail"]
_ORDER: tuple[Verdict, ...] = ("pass", "warn", "fail")


class ModelFacts(Message):
    """The model as it was found."""

    digest: str  # sha256 over the .onnx file and its external data
    ir_version: int | None = None  # None: it could not be read, as what follows
    opset: int | None = None
    nodes: int | None = None
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    size_bytes: int


class Found(Message):
    """One finding, with the stage and the targets that it was made for."""

    severity: Literal["error", "warning"]
    reason: str
    message: str  # the thing and the reason
    remedy: str  # what to do; "": nothing is known
    nodes: tuple[str, ...] = ()  # "name (OpType)", at most 100
    node_count: int = 0  # all of them
    stage: str
    targets: tuple[str, ...]


class Parity(Message):
    """How close what would serve is to the source."""

    verdict: Verdict
    outputs: tuple[OutputParity, ...] = ()


class TargetResult(Message):
    """What one target does with the model."""

    verdict: Verdict
    backend: str
    reason: str | None = None  # of a failure
    message: str = ""  # likewise, in words
    nodes_total: int | None = None  # None: it did not come that far, as what follows
    nodes_accelerated: int | None = None
    elsewhere: tuple[str, ...] = ()  # nodes that run on another provider, the first ones
    compute_share_elsewhere: float | None = None  # 0 to 1; None: not profiled
    engine_bytes: int | None = None
    build_seconds: float | None = None
    precision: str | None = None  # None: the model's own
    changes: tuple[Change, ...] = ()
    parity: Parity | None = None
    latency: Latency | None = None  # None: there is no such device here
    prepared_key: str | None = None
    engine_key: str | None = None
    seconds: float = 0.0  # that finding out took


class Result(Message):
    """All about one model."""

    verdict: Verdict
    source: str  # path or URI
    model: ModelFacts | None = None  # None: it could not be fetched
    findings: tuple[Found, ...] = ()
    targets: dict[str, TargetResult] = Field(default_factory=dict)
    seconds: float = 0.0
    cached: bool = False  # an earlier run's result


def worst(verdicts: tuple[Verdict, ...]) -> Verdict:
    """Return the worst of several; "pass" of none."""
    return max(verdicts, key=_ORDER.index, default="pass")


def found(finding: Finding, stage: str, target: str) -> Found:
    """Return a stage's finding, with the remedy apart from what it remedies."""
    message, remedy = _parts(finding)
    return Found(
        severity="error" if finding.severity == "error" else "warning",
        reason=finding.reason.value,
        message=message,
        remedy=remedy,
        nodes=finding.nodes,
        node_count=finding.node_count,
        stage=stage,
        targets=(target,),
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


def _parts(finding: Finding) -> tuple[str, str]:
    """Split a message into what is wrong and what to do."""
    known = REMEDIES[finding.reason]
    if finding.message.endswith(known):
        return finding.message.removesuffix(known).rstrip("; "), known
    if finding.severity != "error":
        return finding.message, known
    message, separator, remedy = finding.message.rpartition("; ")
    return (message, remedy) if separator else (finding.message, known)
