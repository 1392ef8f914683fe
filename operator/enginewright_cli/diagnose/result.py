"""What the commands find out about a model, as data: printed as text, JSON or YAML.

docs/reference/commands.md is generated from the docstrings.
"""

from datetime import datetime
from typing import Literal

from enginewright_contract.base import Message
from pydantic import Field

from enginewright_cli.rollout.result import RolloutAnalysis


class Link(Message):
    """One statement on the way from the condition to its cause."""

    object: str
    """Kind and name of the object that says so."""
    part: str = ""
    """Where in it: a condition, a stage, a container, a check of a sidecar; empty: the object itself."""
    reason: str = ""
    """Why, as one word for programs; empty: none is given."""
    message: str = ""
    """Why, as a sentence; empty: an earlier one says it."""
    remedy: str = ""
    """What to do, where the object says so; empty: it does not."""


class Explanation(Message):
    """Why a model is not Ready."""

    schema_: Literal["enginewright.dev/explanation/v1"] = Field(
        default="enginewright.dev/explanation/v1", alias="schema"
    )
    """Name and version of this format."""
    namespace: str
    """Namespace of the model."""
    name: str
    """Name of the model."""
    state: Literal["ready", "impaired", "working", "stalled", "unknown"]
    """ready: nothing is wrong; impaired: it serves, and a condition says what is wrong; working: it goes on by itself; stalled: it needs a change; unknown: the model may not be read."""
    chain: tuple[Link, ...] = ()
    """From the condition to the cause."""
    cause: Link | None = None
    """The statement of the chain that the remedy is for; absent: nothing is wrong."""
    remedy: str = ""
    """What to do; empty: nothing, or none is known."""
    command: str = ""
    """The command to run next; empty: none."""
    notes: tuple[str, ...] = ()
    """What could not be read."""


class PodPlacement(Message):
    """Where one pod runs the model."""

    pod: str
    """Name of the pod."""
    class_name: str
    """Its AcceleratorClass."""
    revision: str
    """Revision that it serves."""
    node: str = ""
    """Its node; empty: none yet."""
    ready: bool
    """Whether it gets requests."""
    backend: str = ""
    """Backend chosen for it; empty, like all below: its sidecar has not reported."""
    provider: str = ""
    """Execution provider that the server reports."""
    state: str = ""
    """State of the check placement: ok, failed or unknown."""
    nodes_total: int | None = None
    """Compute nodes of the model."""
    nodes_elsewhere: int | None = None
    """How many of them run on another provider."""
    compute_share_elsewhere: float | None = None
    """Their share of the compute time, 0 to 1; absent: not profiled."""
    message: str = ""
    """Why nodes run elsewhere, or why nothing is known."""


class EnginePlacement(Message):
    """What one engine runs."""

    engine: str
    """Name of the InferenceEngine."""
    class_name: str
    """Its AcceleratorClass."""
    nodes_total: int
    """Compute nodes of the prepared model."""
    nodes_accelerated: int
    """How many of them are inside the engine."""
    compute_share_elsewhere: float | None = None
    """Share of the compute time of the others, 0 to 1; absent: not profiled."""
    elsewhere: tuple[str, ...] = ()
    """The first nodes outside the engine, each as "name (OpType)"."""


class ModelPlacement(Message):
    """Where a model's nodes run."""

    schema_: Literal["enginewright.dev/placement/v1"] = Field(
        default="enginewright.dev/placement/v1", alias="schema"
    )
    """Name and version of this format."""
    namespace: str
    """Namespace of the model."""
    name: str
    """Name of the model."""
    promise: str = ""
    """What spec.fallback allows; empty: the model may not be read."""
    pods: tuple[PodPlacement, ...] = ()
    """The pods that serve or are to serve."""
    engines: tuple[EnginePlacement, ...] = ()
    """The engines that the spec needs, once they are built."""
    notes: tuple[str, ...] = ()
    """What could not be read."""


class RevisionDifference(Message):
    """One property in which two revisions are compared."""

    what: str
    """The property, such as image of class l4."""
    active: str
    """Its value in the active revision; empty: none, or not known."""
    target: str
    """Its value in the revision that is to replace it; empty: likewise."""
    same: bool
    """Whether they are equal."""


class RevisionDiff(Message):
    """The active revision against the one that is to replace it."""

    schema_: Literal["enginewright.dev/revision-diff/v1"] = Field(
        default="enginewright.dev/revision-diff/v1", alias="schema"
    )
    """Name and version of this format."""
    namespace: str
    """Namespace of the model."""
    name: str
    """Name of the model."""
    active: str = ""
    """Short hash of the active revision; empty: none."""
    target: str = ""
    """Short hash of the other one: that is brought up, or that was rejected; empty: none."""
    outcome: str = ""
    """What became of it: its phase, or Rejected with the reason."""
    differences: tuple[RevisionDifference, ...] = ()
    """The properties."""
    analysis: RolloutAnalysis | None = None
    """The live comparison of latency, errors, memory and answers; absent: there is no canary."""
    notes: tuple[str, ...] = ()
    """What could not be read."""


class ModelRow(Message):
    """One model of `watch`."""

    namespace: str
    """Its namespace."""
    name: str
    """Its name."""
    ready: str
    """Status of its condition Ready; empty: the operator has not seen it."""
    reason: str = ""
    """Reason of that condition."""
    message: str = ""
    """Message of that condition."""
    doing: str = ""
    """Stage of its Job or phase of its rollout; empty: neither."""
    classes: str = ""
    """Ready and desired pods of each class."""
    placement: str = ""
    """Share of the compute time on the chosen backend."""
    since: datetime | None = None
    """When its condition Ready last changed."""
