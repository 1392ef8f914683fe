"""How a stage tells what it found: a full report in the store, a herald of it in the pod's status.

The kubelet cuts termination messages at 12 KiB over all containers of a pod, and a killed
container leaves none, so a herald has its vital fields first and the reader takes what it gets.
"""

import json
import re
from typing import Any, Final

from pydantic import Field, ValidationError

from enginewright.contract.base import Message
from enginewright.contract.reasons import Reason

HERALD_LIMIT: Final = 1024  # bytes
NAMED_NODES: Final = 5  # named in a message; the rest is a count


class Finding(Message):
    """One thing that a stage found wrong."""

    severity: str  # error | warning
    reason: Reason
    message: str
    nodes: tuple[str, ...] = ()  # "name (OpType)", at most 100
    node_count: int = 0  # all of them
    rule: str = ""  # name of the rule that found it, in docs/rules.md; "": no rule of `validate`


class Published(Message):
    """What a finished prepare Job made."""

    key: str  # of the prepared model
    model_digest: str
    opset: int
    ir_version: int
    nodes: int
    size_bytes: int
    cached: bool = False  # the store held it already
    precision: str | None = None  # None: the source's own
    changes: str = ""  # what was done to the source, cut to a line; "": nothing
    golden_output_bytes: int | None = None  # of the largest golden sample; None: not known
    data: dict[str, str] = Field(default_factory=dict)  # digests of samples and calibration data


class PublishedEngine(Message):
    """What a finished engine Job made."""

    key: str  # of the engine
    sha256: str  # of the engine file
    size_bytes: int
    build_seconds: float
    compute_capabilities: tuple[str, ...]
    nodes_total: int
    nodes_accelerated: int
    compute_share_elsewhere: float | None = None  # 0 to 1; None: not profiled
    workspace_bytes: int | None = None  # in effect
    latency_p99: float | None = None  # seconds; None: built ahead of time
    parity_max_abs_error: float | None = None
    cached: bool = False  # the store held it already
    elsewhere: tuple[str, ...] = ()  # the first nodes that are not in the engine


class Progress(Message):
    """How far a build is, as its stage answers GET /progress while it runs."""

    stage: str
    percent: int  # 0 to 100, of what the builder has told of
    phase: str = ""  # in the builder's words


class StageReport(Message):
    """Outcome of one stage. Field order is the herald's order: vital fields first."""

    stage: str
    ok: bool
    reason: Reason | None = None
    message: str = ""
    published: Published | None = None
    engine: PublishedEngine | None = None
    seconds: float = 0.0
    findings: tuple[Finding, ...] = ()
    facts: dict[str, Any] = Field(default_factory=dict)  # for the full report only

    def herald(self) -> str:
        """Return compact JSON of at most `HERALD_LIMIT` bytes for the termination message."""
        vital = self.model_dump(mode="json", exclude_none=True, exclude={"findings", "facts"})
        text = json.dumps(vital, separators=(",", ":"), ensure_ascii=False)
        excess = len(text.encode()) - HERALD_LIMIT
        if excess > 0:
            message = self.message.encode()[: -(excess + 64)].decode(errors="ignore")
            vital["message"] = message.rstrip() + " …"
            text = json.dumps(vital, separators=(",", ":"), ensure_ascii=False)
        return text


def read_herald(text: str) -> StageReport | None:
    """Parse a termination message; None when it is not ours. A cut one yields its first fields."""
    try:
        return StageReport.model_validate_json(text)
    except ValidationError:
        pass
    fields: dict[str, Any] = {}
    for name, pattern in _CUT_FIELDS.items():
        if found := re.search(pattern, text):
            fields[name] = json.loads(found.group(1))
    try:
        return StageReport.model_validate(fields)
    except ValidationError:
        return None


_CUT_FIELDS: Final = {
    "stage": r'"stage":("[a-z-]+")',
    "ok": r'"ok":(true|false)',
    "reason": r'"reason":("[A-Za-z]+")',
}


def name_nodes(nodes: list[str]) -> str:
    """Return the first nodes and a count of the rest, for a message."""
    shown = ", ".join(nodes[:NAMED_NODES])
    rest = len(nodes) - NAMED_NODES
    return f"{shown} and {rest} more" if rest > 0 else shown
