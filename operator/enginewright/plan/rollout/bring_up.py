"""The plan for a revision that the spec requests: what its pods do, and what is kept of it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from enginewright.analysis.comparison import RevisionComparison
from enginewright.api.inference_model import InferenceModel
from enginewright.api.inference_model_status import RolloutFailure, TargetRevision
from enginewright.manifests.deployment import canary_deployment, claim_templates
from enginewright.manifests.snapshot import Revision
from enginewright.plan.rollout.failures import PodFailures
from enginewright.plan.types import MetadataIntent


@dataclass(frozen=True)
class BringUp:
    """What becomes of the revision that the spec requests."""

    revision: Revision
    promotes: bool  # its pods replace the serving ones
    rolled_out: bool = False  # all serving pods are its now
    target: TargetRevision | None = None  # unless it serves or was rejected
    rejection: RolloutFailure | None = None
    replaces: bool = False  # a revision that has served with all its pods
    failures: PodFailures = field(default_factory=PodFailures)  # of its pods
    canaries: Mapping[str, int] = field(default_factory=dict)  # pods of its canary by class
    restored: Revision | None = None  # that its canary runs instead of it
    stable_key: str | None = None  # of the prepared model that serves
    labels: tuple[MetadataIntent, ...] = ()  # by which the Service selects the canary's pods
    shadow: tuple[MetadataIntent, ...] = ()  # by which serving pods send it copies
    requeue_after: float | None = None  # seconds
    comparisons: tuple[RevisionComparison, ...] = ()  # that this is based on
    promoted_for: str = ""  # what its analysis has compared, if it is promoted from now on

    @property
    def canary(self) -> Revision:
        """Return the revision that its canary runs."""
        return self.restored or self.revision

    def deployments(self, model: InferenceModel) -> Iterator[dict[str, Any]]:
        """Yield the canary's Deployments, each after what its pods claim."""
        for name, count in self.canaries.items():
            yield from claim_templates(model, self.canary, name)
            yield canary_deployment(
                model, self.canary, name, replicas=count, stable_key=self.stable_key
            )
