"""How a stage reports: in full in the store, in short in the termination message of its container.

The kubelet truncates termination messages to 12 KiB over all containers of a pod, and a killed
container leaves none. So a termination message has its vital fields first, and the reader accepts a
truncated one.
"""

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, ValidationError, model_validator

from enginewright_contract.base import (
    CUT_LIST,
    LIST_LENGTH,
    CutText,
    CutTexts,
    Digest,
    Message,
    Number,
    Seconds,
    Text,
)
from enginewright_contract.collection import Collected
from enginewright_contract.reasons import Reason, reason_named
from enginewright_contract.signature import PublishedSignature
from enginewright_contract.task import (
    ENGINE_STAGES,
    LOOKUP_STAGE,
    PREPARE_STAGES,
    SIDECAR,
    ShapeProfile,
)

TERMINATION_MESSAGE_LIMIT: Final = 1024  # bytes
_MARGIN: Final = 64  # further bytes that are cut, which leaves space for the mark of the cut
_CUT: Final = " …"
_SHORT_REASON: Final = 60  # characters, for which a backend is excluded
# why an artefact has no image, and then the image: pods can do without both
_OF_IMAGE: Final = ("image_failure", "image")
_TEXTS: Final = (*_OF_IMAGE, "unjudged")  # absent where they are left out; all else is a list
NAMED_NODES: Final = 5  # named in a message; the rest is a count

_OF_SERVER: Final = "spec.podTemplate.resources"
_JOB_REMEDIES: Final = {
    Reason.OUT_OF_MEMORY: "raise spec.build.resources.limits.memory",
    Reason.EVICTED: Reason.EVICTED.remedy.replace(_OF_SERVER, "spec.build.resources"),
    Reason.DRIVER_MISSING: Reason.DRIVER_MISSING.remedy.replace(
        "spec.podTemplate", "spec.build.podTemplate"
    ),
}
_CONTAINER_REMEDIES: Final = {
    **dict.fromkeys((*PREPARE_STAGES, LOOKUP_STAGE, *ENGINE_STAGES), _JOB_REMEDIES),
    SIDECAR: {
        Reason.OUT_OF_MEMORY: "raise spec.serving.sidecar.resources.limits.memory",
        Reason.EVICTED: Reason.EVICTED.remedy.replace(_OF_SERVER, "spec.serving.sidecar.resources"),
    },
}


class Proposal(Message):
    """Fields that a user may add to the model's spec after checking them."""

    shapes: tuple[ShapeProfile, ...]  # the model ran with them

    @property
    def yaml(self) -> str:
        """Return it as one line of YAML to paste below `spec`."""
        return f"shapes: [{', '.join(map(_profile_yaml, self.shapes))}]"


class Finding(Message):
    """One problem. Cause and remedy are separate fields and are joined only for people."""

    severity: Literal["error", "warning"] = "error"
    reason: Reason
    cause: str  # what is wrong and why, without the remedy
    remedy: str | None = None  # instead of the reason's; "" if none is known
    proposal: Proposal | None = None  # appended to the remedy
    nodes: tuple[str, ...] = ()  # "name (OpType)", at most 100
    node_count: int = 0  # including those that are not listed
    rule: str = ""  # name of the rule that found it (docs/reference/rules.md); "": none did

    @model_validator(mode="before")
    @classmethod
    def _read_earlier(cls, value: Any) -> Any:  # noqa: ANN401 - any JSON value
        """Accept the form of earlier releases: a message that includes the remedy."""
        if not isinstance(value, dict) or "cause" in value or "message" not in value:
            return value
        message, reason = str(value["message"]), str(value.get("reason"))
        usual = f"; {usually.remedy}" if (usually := reason_named(reason)) else ""
        if usual and message.endswith(usual):
            return value | {"cause": message.removesuffix(usual), "remedy": None}
        remedy_lost = not message or message.endswith(_CUT)
        return value | {"cause": message, "remedy": None if remedy_lost else ""}

    @property
    def advice(self) -> str:
        """Return what to do about it; "" if no remedy is known."""
        advice = self.reason.remedy if self.remedy is None else self.remedy
        return f"{advice}: {self.proposal.yaml}" if self.proposal else advice

    @property
    def message(self) -> str:
        """Return cause and remedy as one sentence for people."""
        return render(self.cause, self.advice)

    def of_container(self, container: str) -> Self:
        """Return it with a remedy that names the fields of the failed container."""
        if self.remedy is not None:
            return self
        return self.model_copy(update={"remedy": remedy(self.reason, container)})


def remedy(reason: Reason, container: str) -> str:
    """Return the remedy that names the fields of the failed container."""
    return _CONTAINER_REMEDIES.get(container, {}).get(reason, reason.remedy)


def render(cause: str, advice: str) -> str:
    """Return cause and remedy as one sentence for people. No code parses it."""
    return "; ".join(filter(None, (cause, advice)))


class Published(Message):
    """The prepared model that a finished prepare Job published."""

    key: Digest  # of the prepared model
    model_digest: Digest
    opset: Number
    ir_version: Number
    nodes: Number
    size_bytes: Number
    cached: bool = False  # it was in the store already
    precision: CutText | None = None  # if not the source's own
    changes: CutText = ""  # changes of the source model, truncated to one line
    golden_output_bytes: Number | None = None  # of the largest golden sample
    data: dict[Text, Digest] = Field(
        default_factory=dict, max_length=8
    )  # digests of samples, calibration data and steps
    signature: PublishedSignature | None = None  # not listed if it does not fit
    image: Text | None = None  # REPOSITORY@DIGEST of its OCI image, if it has one and that fits
    image_failure: CutText | None = None  # why it has none though it should


class PublishedLatency(Message):
    """Seconds per run of an engine with one set of sizes."""

    shapes: CutText  # min, opt, max, or the name of a golden sample
    p50: Seconds
    p99: Seconds


class PublishedBackend(Message):
    """Seconds per run of one backend with the usual sizes, or why it is excluded."""

    backend: CutText
    shapes: CutText | None = None  # opt, or a golden sample's name, unless excluded; likewise below
    p50: Seconds | None = None
    p99: Seconds | None = None
    excluded: CutText | None = None  # why


class PublishedEngine(Message):
    """The engine that a finished engine Job published."""

    key: Digest  # of the engine
    sha256: Digest  # of the engine file
    size_bytes: Number
    build_seconds: Seconds
    compute_capabilities: CutTexts
    nodes_total: Number
    nodes_accelerated: Number
    compute_share_elsewhere: Annotated[float, Field(ge=0, le=1)] | None = None  # if profiled
    workspace_bytes: Number | None = None  # in effect
    latency_p99: Seconds | None = None  # unless built ahead of time
    # against `parity_with`, unless built ahead of time or by an earlier version
    parity_max_abs_error: float | None = None
    parity_max_rel_error: float | None = None
    parity_with: CutText = "prepared"  # or source
    unjudged: CutText | None = None  # parts of outputs that its golden samples do not judge
    cached: bool = False  # it was in the store already
    # of backend, ort, cuda and driver, as far as they are known
    versions: dict[Text, CutText] = Field(default_factory=dict, max_length=8)
    # of every set of sizes that was measured; () if it does not fit into the message
    latencies: Annotated[tuple[PublishedLatency, ...], Field(max_length=LIST_LENGTH), CUT_LIST] = ()
    elsewhere: CutTexts = ()  # the first nodes that are not in the engine
    # that were compared, the engine's own first; () also if they do not fit into the message
    backends: Annotated[tuple[PublishedBackend, ...], Field(max_length=LIST_LENGTH), CUT_LIST] = ()
    image: Text | None = None  # as of a prepared model
    image_failure: CutText | None = None  # likewise


class Progress(Message):
    """Progress of a build: the response to GET /progress while its stage runs."""

    stage: CutText
    percent: int  # 0 to 100, as the builder has reported
    phase: CutText = ""  # as the builder names it


class StageReport(Message):
    """Outcome of one stage. Field order is that of the termination message: vital fields first."""

    stage: CutText
    ok: bool
    failure: Finding | None = None  # why it failed, unless it is ok
    message: str = ""  # what it did, if it is ok
    published: Published | None = None
    engine: PublishedEngine | None = None
    collected: Collected | None = None  # of the stage `collect`
    seconds: float = 0.0
    findings: tuple[Finding, ...] = ()
    facts: dict[str, Any] = Field(default_factory=dict)  # for the full report only

    @model_validator(mode="before")
    @classmethod
    def _read_earlier(cls, value: Any) -> Any:  # noqa: ANN401 - any JSON value
        """Accept the form of earlier releases: `reason` and `message` of a failure beside `ok`."""
        if not isinstance(value, dict) or value.get("reason") is None or "failure" in value:
            return value
        failure = {"reason": value["reason"], "message": value.get("message", "")}
        return value | {"failure": failure, "message": ""}

    @property
    def reason(self) -> Reason | None:
        """Return why it failed; None if it is ok."""
        return self.failure.reason if self.failure else None

    @property
    def outcome(self) -> str:
        """Return what it did, or why it failed, as a sentence for people."""
        return self.failure.message if self.failure else self.message

    def termination_message(self) -> str:
        """Return compact JSON of at most `TERMINATION_MESSAGE_LIMIT` bytes for the termination message."""
        vital = self.model_copy(update={"findings": (), "facts": {}})
        if self.failure is None:
            vital = _shorten(vital)
            return _compact(
                vital.model_copy(update={"message": _cut(self.message, _excess(vital))})
            )
        failure = self.failure.model_copy(update={"nodes": ()})
        if _excess(_with_failure(vital, failure)) > 0:  # the reader knows the reason's remedy
            failure = failure.model_copy(update={"remedy": None, "proposal": None})
        cause = _cut(failure.cause, _excess(_with_failure(vital, failure)))
        return _compact(_with_failure(vital, failure.model_copy(update={"cause": cause})))


def _with_failure(report: StageReport, failure: Finding) -> StageReport:
    return report.model_copy(update={"failure": failure})


def _shorten(report: StageReport) -> StageReport:
    """Return it with less that only describes the artefact: its key must fit, to find it."""
    engine, published = report.engine, report.published
    for part in ("elsewhere", "reasons", "latencies", "unjudged", *_OF_IMAGE, "backends"):
        shown = report.model_copy(update={"message": _CUT, "engine": engine})
        if engine and _excess(shown) > 0:
            engine = engine.model_copy(update=_with_less(engine, part))
    if published:
        published = _fitting(report, published)
    return report.model_copy(update={"engine": engine, "published": published})


def _with_less(engine: PublishedEngine, part: str) -> dict[str, Any]:
    if part == "reasons":
        return {"backends": tuple(map(_with_short_reason, engine.backends))}
    return {part: None if part in _TEXTS else ()}


def _with_short_reason(compared: PublishedBackend) -> PublishedBackend:
    why = compared.excluded
    if why is None or len(why) <= _SHORT_REASON:
        return compared
    cut = why[: _SHORT_REASON - len(_CUT)] + _CUT
    return compared.model_copy(update={"excluded": cut})


def _fitting(report: StageReport, published: Published) -> Published:
    """Return it without the list of inputs and outputs, and the image, if they do not fit, and with the changes cut."""

    def excess(part: Published) -> int:
        return _excess(report.model_copy(update={"message": _CUT, "published": part}))

    signature = published.signature
    for part in _OF_IMAGE:
        least = {"changes": "", "signature": signature.drop_lists() if signature else None}
        if excess(published.model_copy(update=least)) > 0:
            published = published.model_copy(update={part: None})
    unchanged = published.model_copy(update={"changes": ""})
    if signature and excess(unchanged) > 0:
        published = published.model_copy(update={"signature": signature.drop_lists()})
    changes = _cut(published.changes, excess(published))
    shorter = published.model_copy(update={"changes": changes})
    return (
        shorter
        if excess(shorter) <= 0
        else unchanged.model_copy(update={"signature": published.signature})
    )


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
    """Parse a termination message; None if no stage wrote it. A truncated one gives its first fields."""
    try:
        return StageReport.model_validate_json(text)
    except ValidationError:
        pass
    fields = _of_another_release(text)
    for name, pattern in () if fields else _CUT_FIELDS.items():
        if match := re.search(pattern, text):
            fields[name] = json.loads(match.group(1))
    try:
        return StageReport.model_validate(fields)
    except ValidationError:
        return None


def _of_another_release(text: str) -> dict[str, Any]:
    """Return the vital fields of a complete failure with a reason or fields of another release."""
    try:
        report = json.loads(text)
        failure = report["failure"]
        reason, cause, remedy_ = failure["reason"], failure["cause"], failure.get("remedy")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}
    if not (isinstance(reason, str) and isinstance(cause, str)):
        return {}
    if reason_named(reason) is None:
        reason, cause = Reason.INTERNAL_ERROR, f"{reason}: {cause}"
    kept = remedy_ if isinstance(remedy_, str) else None
    finding = {"reason": reason, "cause": cause, "remedy": kept}
    return {"stage": report.get("stage"), "ok": False, "failure": finding}


_CUT_FIELDS: Final = {
    "stage": r'"stage":("[a-z-]+")',
    "ok": r'"ok":(true|false)',
    "reason": r'"reason":("[A-Za-z]+")',
}


# Plain scalars that YAML 1.1 does not read as strings.
_YAML_KEYWORDS: Final = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})


def _profile_yaml(profile: ShapeProfile) -> str:
    corners = ", ".join(f"{name}: {list(getattr(profile, name))}" for name in ("min", "opt", "max"))
    return f"{{input: {_quote(profile.input)}, {corners}}}"


def _quote(name: str) -> str:
    if name.isidentifier() and name.isascii() and name.lower() not in _YAML_KEYWORDS:
        return name
    # a JSON string is a YAML string; nothing in it is a control character for a terminal
    quoted = json.dumps(name, ensure_ascii=not name.isprintable())
    return quoted.replace("\x7f", "\\u007f")


def name_nodes(nodes: Sequence[str]) -> str:
    """Return the first nodes and a count of the rest, for a message."""
    shown = ", ".join(nodes[:NAMED_NODES])
    rest = len(nodes) - NAMED_NODES
    return f"{shown} and {rest} more" if rest > 0 else shown
