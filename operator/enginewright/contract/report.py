"""How a stage reports: in full in the store, in short in the termination message of its container.

The kubelet cuts termination messages at 12 KiB over all containers of a pod, and a killed
container leaves none, so a termination message has its vital fields first and the reader takes what it gets.
"""

import json
import re
from typing import Annotated, Any, Final, Literal, Self, TypeAlias

from pydantic import Field, ValidationError, model_validator

from enginewright.contract.base import CutText, CutTexts, Digest, Message, Text
from enginewright.contract.reasons import REMEDIES, Reason
from enginewright.contract.task import (
    ENGINE_STAGES,
    LOOKUP_STAGE,
    PREPARE_STAGES,
    SIDECAR,
    ShapeProfile,
)

TERMINATION_MESSAGE_LIMIT: Final = 1024  # bytes
_MARGIN: Final = 64  # bytes that are cut besides, for the sign of the cut
_CUT: Final = " …"
NAMED_NODES: Final = 5  # named in a message; the rest is a count

_OF_JOBS: Final = {
    Reason.OUT_OF_MEMORY: "raise spec.build.resources.limits.memory",
    Reason.DRIVER_MISSING: REMEDIES[Reason.DRIVER_MISSING].replace(
        "spec.podTemplate", "spec.build.podTemplate"
    ),
}
_BY_CONTAINER: Final = {
    **dict.fromkeys((*PREPARE_STAGES, LOOKUP_STAGE, *ENGINE_STAGES), _OF_JOBS),
    SIDECAR: {Reason.OUT_OF_MEMORY: "raise spec.serving.sidecar.resources.limits.memory"},
}


class Proposal(Message):
    """Fields to add to a model's spec, once somebody has checked them."""

    shapes: tuple[ShapeProfile, ...]  # with which the model ran

    @property
    def yaml(self) -> str:
        """Return it as YAML of one line, which can be pasted below `spec`."""
        return f"shapes: [{', '.join(map(_profile_yaml, self.shapes))}]"


class Finding(Message):
    """One thing that is wrong. What to do about it stays apart until somebody reads it."""

    severity: Literal["error", "warning"] = "error"
    reason: Reason
    cause: str  # the thing and why, without what to do
    remedy: str | None = None  # None: the reason's own; "": there is none
    proposal: Proposal | None = None  # ends the remedy
    nodes: tuple[str, ...] = ()  # "name (OpType)", at most 100
    node_count: int = 0  # all of them
    rule: str = ""  # name of the rule that found it, in docs/rules.md; "": no rule of `validate`

    @model_validator(mode="before")
    @classmethod
    def _read_earlier(cls, value: Any) -> Any:  # noqa: ANN401 - any JSON value
        """Read what earlier releases wrote: a message, whose remedy is part of it."""
        if not isinstance(value, dict) or "cause" in value or "message" not in value:
            return value
        message, reason = str(value["message"]), str(value.get("reason"))
        usual = f"; {REMEDIES[Reason(reason)]}" if reason in REMEDIES else ""
        if usual and message.endswith(usual):
            return value | {"cause": message.removesuffix(usual), "remedy": None}
        has_lost_it = not message or message.endswith(_CUT)
        return value | {"cause": message, "remedy": None if has_lost_it else ""}

    @property
    def advice(self) -> str:
        """Return what to do about it; "" where nothing is known."""
        advice = REMEDIES[self.reason] if self.remedy is None else self.remedy
        return f"{advice}: {self.proposal.yaml}" if self.proposal else advice

    @property
    def message(self) -> str:
        """Return it as people read it."""
        return render(self.cause, self.advice)

    def of_container(self, container: str) -> Self:
        """Return it with a remedy that names the fields of the container that failed."""
        if self.remedy is not None:
            return self
        return self.model_copy(update={"remedy": remedy(self.reason, container)})


def remedy(reason: Reason, container: str) -> str:
    """Return the remedy that names the field of the container that failed."""
    return _BY_CONTAINER.get(container, {}).get(reason, REMEDIES[reason])


def render(cause: str, advice: str) -> str:
    """Return the sentence that people read. Nothing takes it apart again."""
    return "; ".join(filter(None, (cause, advice)))


Number: TypeAlias = Annotated[int, Field(ge=0, lt=1 << 53)]  # which any JSON holds exactly
Seconds: TypeAlias = Annotated[float, Field(ge=0, lt=1e9)]


class Published(Message):
    """What a finished prepare Job made."""

    key: Digest  # of the prepared model
    model_digest: Digest
    opset: Number
    ir_version: Number
    nodes: Number
    size_bytes: Number
    cached: bool = False  # the store held it already
    precision: CutText | None = None  # None: the source's own
    changes: CutText = ""  # what was done to the source, cut to a line; "": nothing
    golden_output_bytes: Number | None = None  # of the largest golden sample; None: not known
    data: dict[Text, Digest] = Field(
        default_factory=dict, max_length=8
    )  # digests of samples and calibration data


class PublishedEngine(Message):
    """What a finished engine Job made."""

    key: Digest  # of the engine
    sha256: Digest  # of the engine file
    size_bytes: Number
    build_seconds: Seconds
    compute_capabilities: CutTexts
    nodes_total: Number
    nodes_accelerated: Number
    compute_share_elsewhere: Annotated[float, Field(ge=0, le=1)] | None = None  # None: not profiled
    workspace_bytes: Number | None = None  # in effect
    latency_p99: Seconds | None = None  # None: built ahead of time
    parity_max_abs_error: float | None = None
    cached: bool = False  # the store held it already
    elsewhere: CutTexts = ()  # the first nodes that are not in the engine


class Progress(Message):
    """How far a build is, as its stage answers GET /progress while it runs."""

    stage: CutText
    percent: int  # 0 to 100, of what the builder has reported
    phase: CutText = ""  # the builder's name for it


class StageReport(Message):
    """Outcome of one stage. Field order is that of the termination message: vital fields first."""

    stage: CutText
    ok: bool
    failure: Finding | None = None  # why it ended, where it is not ok
    message: str = ""  # what it did, where it is
    published: Published | None = None
    engine: PublishedEngine | None = None
    seconds: float = 0.0
    findings: tuple[Finding, ...] = ()
    facts: dict[str, Any] = Field(default_factory=dict)  # for the full report only

    @model_validator(mode="before")
    @classmethod
    def _read_earlier(cls, value: Any) -> Any:  # noqa: ANN401 - any JSON value
        """Read what earlier releases wrote: `reason` and `message` of a failure, beside `ok`."""
        if not isinstance(value, dict) or value.get("reason") is None or "failure" in value:
            return value
        failure = {"reason": value["reason"], "message": value.get("message", "")}
        return value | {"failure": failure, "message": ""}

    @property
    def reason(self) -> Reason | None:
        """Return why it ended; None where it is ok."""
        return self.failure.reason if self.failure else None

    @property
    def outcome(self) -> str:
        """Return what it did, or why it failed, as people read it."""
        return self.failure.message if self.failure else self.message

    def termination_message(self) -> str:
        """Return compact JSON of at most `TERMINATION_MESSAGE_LIMIT` bytes for the termination message."""
        vital = self.model_copy(update={"findings": (), "facts": {}})
        if self.failure is None:
            if _excess(vital.model_copy(update={"message": _CUT})) > 0:
                vital = _without_details(vital)
            return _compact(
                vital.model_copy(update={"message": _cut(self.message, _excess(vital))})
            )
        failure = self.failure.model_copy(update={"nodes": ()})
        if _excess(_failing(vital, failure)) > 0:  # a reader has the reason's own remedy
            failure = failure.model_copy(update={"remedy": None, "proposal": None})
        cause = _cut(failure.cause, _excess(_failing(vital, failure)))
        return _compact(_failing(vital, failure.model_copy(update={"cause": cause})))


def _failing(report: StageReport, failure: Finding) -> StageReport:
    return report.model_copy(update={"failure": failure})


def _without_details(report: StageReport) -> StageReport:
    """Return it without what only describes the artefact, which has to be found again by its key."""
    published = report.published and report.published.model_copy(update={"changes": ""})
    engine = report.engine and report.engine.model_copy(update={"elsewhere": ()})
    return report.model_copy(update={"published": published, "engine": engine})


def _cut(text: str, excess: int) -> str:
    if excess <= 0:
        return text
    kept, over = "", excess + _MARGIN
    for position in range(len(text), 0, -1):
        over -= len(json.dumps(text[position - 1], ensure_ascii=False).encode()) - len('""')
        if over <= 0:
            kept = text[: position - 1]
            break
    return kept.rstrip() + _CUT


def _excess(report: StageReport) -> int:
    return len(_compact(report).encode()) - TERMINATION_MESSAGE_LIMIT


def _compact(report: StageReport) -> str:
    vital = report.model_dump(mode="json", exclude_none=True, exclude={"findings", "facts"})
    return json.dumps(vital, separators=(",", ":"), ensure_ascii=False)


def read_termination_message(text: str) -> StageReport | None:
    """Parse a termination message; None when it is not ours. A cut one yields its first fields."""
    try:
        return StageReport.model_validate_json(text)
    except ValidationError:
        pass
    fields = _of_another_release(text)
    for name, pattern in () if fields else _CUT_FIELDS.items():
        if found := re.search(pattern, text):
            fields[name] = json.loads(found.group(1))
    try:
        return StageReport.model_validate(fields)
    except ValidationError:
        return None


def _of_another_release(text: str) -> dict[str, Any]:
    """Return what is vital of a whole failure that has reasons or fields which are not known here."""
    try:
        report = json.loads(text)
        failure = report["failure"]
        reason, cause, remedy_ = failure["reason"], failure["cause"], failure.get("remedy")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}
    if not (isinstance(reason, str) and isinstance(cause, str)):
        return {}
    if reason not in REMEDIES:
        reason, cause = Reason.INTERNAL_ERROR, f"{reason}: {cause}"
    kept = remedy_ if isinstance(remedy_, str) else None
    finding = {"reason": reason, "cause": cause, "remedy": kept}
    return {"stage": report.get("stage"), "ok": False, "failure": finding}


_CUT_FIELDS: Final = {
    "stage": r'"stage":("[a-z-]+")',
    "ok": r'"ok":(true|false)',
    "reason": r'"reason":("[A-Za-z]+")',
}


# Names that YAML 1.1 takes for something else than a string.
_OF_YAML: Final = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})


def _profile_yaml(profile: ShapeProfile) -> str:
    corners = ", ".join(f"{name}: {list(getattr(profile, name))}" for name in ("min", "opt", "max"))
    return f"{{input: {_quoted(profile.input)}, {corners}}}"


def _quoted(name: str) -> str:
    if name.isidentifier() and name.isascii() and name.lower() not in _OF_YAML:
        return name
    # a string of JSON is one of YAML; a terminal obeys nothing of it
    quoted = json.dumps(name, ensure_ascii=not name.isprintable())
    return quoted.replace("\x7f", "\\u007f")


def name_nodes(nodes: list[str]) -> str:
    """Return the first nodes and a count of the rest, for a message."""
    shown = ", ".join(nodes[:NAMED_NODES])
    rest = len(nodes) - NAMED_NODES
    return f"{shown} and {rest} more" if rest > 0 else shown
