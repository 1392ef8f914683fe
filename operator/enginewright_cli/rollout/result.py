"""The state of a rollout as data: printed as JSON or as tables. docs/reference/commands.md is generated from the docstrings."""

from datetime import datetime
from typing import Literal

from enginewright_contract.base import Message
from pydantic import Field

Verdict = Literal["healthy", "progressing", "rejected", "stalled"]


class RolloutClass(Message):
    """One accelerator class of a revision."""

    name: str
    """Name of the AcceleratorClass."""
    backend: str
    """Backend that runs the model on it."""
    interim: bool = False
    """Whether that serves only until the first engine for the class is built."""
    image: str
    """Runtime image of the pods."""
    pods: int | None = None
    """Number of its pods that serve or are to serve; absent: they may not be read."""
    ready: int | None = None
    """How many of them are ready."""


class RolloutArm(Message):
    """One revision: the stable one, or the new one."""

    revision: str
    """Short hash of the revision."""
    model_digest: str | None = None
    """sha256 over the model file and its external data; absent, like the classes: its ControllerRevision does not exist or cannot be read."""
    precision: str | None = None
    """Precision that the model was converted to, or "source"; absent: not known any more."""
    classes: tuple[RolloutClass, ...] = ()
    """Its accelerator classes."""


class BringUpProgress(Message):
    """How far the new revision has come."""

    phase: str
    """Held, Verifying, Analyzing or Promoting; GoingBack: an earlier revision replaces a rejected one; Rejected: it failed, and stays because of onFailure: Pause."""
    step: int = 0
    """Step of the canary, from 1; 0: it gets no requests yet."""
    steps: int = 0
    """Number of steps."""
    since: datetime | None = None
    """When this step of this phase began."""
    held_seconds: int | None = None
    """How long the step has lasted."""
    left_seconds: int | None = None
    """How long the canary's pods must keep passing until the step may end; absent: that does not depend on time."""
    reason: str = ""
    """What it waits for, as one word for programs; empty: nothing but time."""
    message: str = ""
    """What it waits for, as a sentence."""


class ComparedFigure(Message):
    """One comparison of both revisions' measurements."""

    name: str
    """What is compared, such as the latency of one size of requests."""
    unit: str
    """Unit of the values: seconds, share or difference."""
    stable: float | None = None
    """Value of the stable revision; absent: not measured."""
    canary: float | None = None
    """Value of the new revision; absent: not measured."""
    ratio: float | None = None
    """Value of the new revision divided by that of the stable one; absent: not a ratio."""
    limit: float | None = None
    """Limit of the ratio, or of the excess over the stable value; absent: reported only."""
    stable_samples: int
    """Measurements of the stable revision."""
    canary_samples: int
    """Measurements of the new revision."""
    state: Literal["passed", "failed", "inconclusive"]
    """Result."""


class RolloutAnalysis(Message):
    """The live comparison of both revisions."""

    state: Literal["passed", "failed", "inconclusive"]
    """Result of all comparisons."""
    message: str = ""
    """Why it failed, or what it waits for."""
    figures: tuple[ComparedFigure, ...] = ()
    """All comparisons."""


class FailedRevision(Message):
    """Why the last new revision failed."""

    revision: str = ""
    """Short hash of the revision; empty: it failed before it had one."""
    stage: str = ""
    """Where it failed: a stage of a Job, a container of its pods, or analysis."""
    reason: str
    """Why, as one word for programs."""
    message: str = ""
    """Why, as a sentence."""


class PastRevision(Message):
    """One stored revision and what became of it."""

    revision: str
    """Short hash of the revision."""
    number: int
    """Increases with every revision."""
    outcome: str = ""
    """Promoted: it has served with all its pods; Rejected; Superseded: rejected, but the spec has changed since; empty: none of these yet."""
    at: datetime | None = None
    """When that happened; for an earlier Promoted revision, until when it served."""
    reason: str = ""
    """Why it was rejected, as one word."""
    message: str = ""
    """Why it was rejected, as a sentence."""
    answers: str = ""
    """By how much its answers differed from those of the revision before, as a sentence; empty: none were compared."""
    created: str
    """When it was stored."""
    model_digest: str | None = None
    """sha256 over the model file and its external data; absent: it cannot be read."""
    images: tuple[str, ...] = ()
    """Runtime images of its classes."""


class RolloutStatus(Message):
    """The state of one model's rollout."""

    schema_: Literal["enginewright.dev/rollout-status/v1"] = Field(
        default="enginewright.dev/rollout-status/v1", alias="schema"
    )
    """Name and version of this format."""
    namespace: str
    """Namespace of the model."""
    name: str
    """Name of the model."""
    verdict: Verdict
    """healthy: the revision of the spec serves, or the spec requests no pods; progressing; rejected: it failed or was rolled back, and another serves; stalled: it needs a change."""
    reason: str = ""
    """Reason of the condition Ready."""
    message: str = ""
    """Message of the condition Ready."""
    paused: bool = False
    """Whether rollouts are paused."""
    stable: RolloutArm | None = None
    """The last revision that served with all its pods; absent: none has."""
    new: RolloutArm | None = None
    """The revision that replaces it; absent: none does."""
    progress: BringUpProgress | None = None
    """How far the new revision has come; absent with it."""
    analysis: RolloutAnalysis | None = None
    """The live comparison of both; absent: there is no canary, or it cannot be measured."""
    last_failure: FailedRevision | None = None
    """Why the last new revision failed; absent: none has since the last success."""
    history: tuple[PastRevision, ...] = ()
    """The stored revisions, the newest first."""
    notes: tuple[str, ...] = ()
    """What could not be read, what golden samples do not judge of what serves, and what the comparison leaves out."""
