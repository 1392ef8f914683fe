"""What would happen, as data: the JSON that docs/plan.md shows by these docstrings, and the table."""

from typing import Literal

from enginewright.contract.base import Message
from pydantic import ConfigDict, Field

Action = Literal["make", "change", "reuse", "wait", "keep", "delete", "refuse"]


class Refusal(Message):
    """Why it would not be brought up, or not now."""

    reason: str
    """As one word, as the model's condition Ready would carry it; InvalidSpec: it would not be stored."""
    message: str
    """The thing, the reason and the remedy."""
    lasting: bool = True
    """Whether somebody must change something; if not, it passes by itself."""


class ClassPlan(Message):
    """One accelerator class that would serve."""

    name: str
    """Name of the AcceleratorClass."""
    resource: str | None = None
    """What a pod asks a node for; absent: nothing."""
    compute_capability: str | None = None
    """Of the class's devices."""
    replicas: int
    """How many pods would serve."""
    trouble: str = ""
    """Why no pod can be sent there, where nodes are known; empty: nothing."""


class PlanStep(Message):
    """One thing that would be done, in order."""

    action: Action
    """make, change, reuse (it is there), wait (it is under way), keep, delete or refuse."""
    kind: str
    """Kind of the object."""
    name: str | None = None
    """Its name; absent: known once an earlier step is done."""
    class_name: str | None = None
    """The accelerator class that it is for."""
    key: str | None = None
    """Key of the artefact in the store; absent likewise."""
    stages: tuple[str, ...] = ()
    """What runs in it, in order."""
    message: str = ""
    """More about it, for people."""


class Difference(Message):
    """A field of the spec, or a part of what serves, that would be another one."""

    field: str
    """Which one."""
    before: str = ""
    """What it is now; empty: nothing."""
    after: str = ""
    """What it would be; empty: nothing."""


class Forecast(Message):
    """What applying one InferenceModel would do."""

    namespace: str
    """Of the model."""
    name: str
    """Of the model."""
    exists: bool
    """Whether there is one of this name already."""
    verdict: Literal["refused", "waits", "changes", "unchanged"]
    """refused: it would not be brought up; waits: it would be, once something passes; else whether anything would be made or changed."""
    refusals: tuple[Refusal, ...] = ()
    """Why not, or why not now."""
    backend: str | None = None
    """What would run it; absent, as what follows, where that cannot be resolved."""
    image: str | None = None
    """Runtime image that would prepare and serve it."""
    policy: str | None = None
    """What is promised about nodes that run elsewhere: Forbid, Budget or Allow."""
    classes: tuple[ClassPlan, ...] = ()
    """Where it would serve."""
    spec: tuple[Difference, ...] = ()
    """Fields of the spec that differ from the model that is there."""
    steps: tuple[PlanStep, ...] = ()
    """What would be done, in order."""
    serving: str | None = None
    """Revision that serves now."""
    revision: str | None = None
    """Revision that would serve; absent: known once the model is prepared."""
    strategy: str | None = None
    """How it would take over: Surge, or Recreate with downtime."""
    rollout: tuple[Difference, ...] = ()
    """What differs between both revisions."""


class Forecasts(Message):
    """What applying a manifest would do."""

    schema_: Literal["enginewright.dev/plan/v1"] = Field(
        default="enginewright.dev/plan/v1", alias="schema"
    )
    """Name and version of this form."""
    models: tuple[Forecast, ...]
    """Each model, in the order of the manifest."""
    assumed: tuple[str, ...] = ()
    """What nobody has said, or may not be read, and what is taken instead."""
    ignored: tuple[str, ...] = ()
    """Kinds of the manifest's other objects."""

    model_config = ConfigDict(
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
    )
