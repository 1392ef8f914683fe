"""The forecast as data: printed as JSON or as a table. docs/reference/commands.md is generated from the docstrings."""

from typing import Literal

from enginewright_contract.base import Message
from pydantic import Field

Action = Literal["make", "change", "reuse", "wait", "keep", "delete", "refuse"]


class Refusal(Message):
    """Why a model would not be deployed, or not yet."""

    reason: str
    """Reason that the model's condition Ready would have; InvalidSpec: the API server would reject it."""
    message: str
    """Object, cause and remedy."""
    lasting: bool = True
    """Whether it stays until the user changes something; if false, it resolves automatically."""


class ClassPlan(Message):
    """One accelerator class that would serve."""

    name: str
    """Name of the AcceleratorClass."""
    resource: str | None = None
    """Extended resource that a pod requests; absent: none."""
    compute_capability: str | None = None
    """Compute capability of the class's devices."""
    replicas: int
    """Number of pods that would serve."""
    trouble: str = ""
    """Why no pod can be scheduled, where nodes are known; empty: pods can."""


class PlanStep(Message):
    """One object that would be created, changed or reused."""

    action: Action
    """make (create), change, reuse (it exists), wait (it is in progress), keep, delete or refuse."""
    kind: str
    """Kind of the object."""
    name: str | None = None
    """Its name; absent: known after an earlier step."""
    class_name: str | None = None
    """AcceleratorClass that it is for."""
    key: str | None = None
    """Key of the artefact in the store; absent: known after an earlier step."""
    stages: tuple[str, ...] = ()
    """Stages that it runs, in order."""
    message: str = ""
    """Details, for people."""


class Difference(Message):
    """A field of the spec, or a part of the serving revision, that would change."""

    field: str
    """Name of the field or part."""
    before: str = ""
    """Current value; empty: none."""
    after: str = ""
    """New value; empty: none."""


class Forecast(Message):
    """What applying one InferenceModel would do."""

    namespace: str
    """Namespace of the model."""
    name: str
    """Name of the model."""
    exists: bool
    """Whether the model exists already."""
    verdict: Literal["refused", "waits", "changes", "unchanged"]
    """refused: it would not be deployed; waits: not before an obstacle is gone; changes or unchanged: whether any object would be created or changed."""
    refusals: tuple[Refusal, ...] = ()
    """Why it is refused or waits."""
    backend: str | None = None
    """Backend that would run it; absent, like the fields below, where it cannot be resolved."""
    image: str | None = None
    """Runtime image that would prepare and serve it."""
    policy: str | None = None
    """Promise about nodes that fall back to another provider: Forbid, Budget or Allow."""
    classes: tuple[ClassPlan, ...] = ()
    """AcceleratorClasses that would serve it."""
    spec: tuple[Difference, ...] = ()
    """Fields of the spec that differ from the existing model."""
    steps: tuple[PlanStep, ...] = ()
    """Steps, in order."""
    serving: str | None = None
    """Revision that is serving now."""
    revision: str | None = None
    """Revision that would serve; absent: known once the model is prepared."""
    strategy: str | None = None
    """Rollout strategy: Surge, or Recreate with downtime."""
    rollout: tuple[Difference, ...] = ()
    """Differences between the two revisions."""


class Forecasts(Message):
    """What applying a manifest would do."""

    schema_: Literal["enginewright.dev/plan/v1"] = Field(
        default="enginewright.dev/plan/v1", alias="schema"
    )
    """Name and version of this format."""
    models: tuple[Forecast, ...]
    """One forecast per model, in the order of the manifest."""
    assumed: tuple[str, ...] = ()
    """What is unknown or may not be read, and what is assumed instead."""
    ignored: tuple[str, ...] = ()
    """Kinds of the manifest's other objects."""
