"""How many pods the Deployments are to have of a revision, and how far they have come with that.

Serving pods are never fewer than asked for because something else changes: a class that is added or removed
counts only once others have as many pods.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from enginewright.manifests.snapshot import Revision
from enginewright.observed.deployments import DeploymentView
from enginewright.plan.rollout import autoscaling
from enginewright.plan.rollout.progress import RolloutProgress, progress_of
from enginewright.plan.rollout.replicas import asks_for_pods, covering, fixed, replicas_by_class
from enginewright.plan.types import Facts


@dataclass(frozen=True)
class PodCounts:
    """How many pods the Deployments are to have of a revision, and how far they have come."""

    revision: str
    desired: Mapping[str, int]  # pods by class, if no canary uses their devices
    counts: Mapping[str, int]  # pods by class beside the canary
    progress: RolloutProgress  # towards `counts`

    @property
    def complete(self) -> bool:
        """Return whether it serves with all its pods, of which there are some."""
        return self.progress.complete and any(self.counts.values())


def pod_counts(
    facts: Facts,
    revision: Revision,
    deployments: Mapping[str, DeploymentView],
    canaries: Mapping[str, int],
    known: PodCounts | None = None,
) -> PodCounts:
    """Return the counts of `revision` beside `canaries`, pods by class.

    `known` is what was found before, perhaps for another canary or revision: nothing is found twice.
    """
    same = known if known and known.revision == revision.name else None
    desired = same.desired if same else desired_counts(facts, revision, deployments)
    counts = _beside(facts, desired, canaries, deployments)
    if same and same.counts == counts:
        return same
    progress = progress_of(facts, revision, deployments, counts)
    return PodCounts(revision.name, desired, counts, progress)


def desired_counts(
    facts: Facts, applied: Revision, deployments: Mapping[str, DeploymentView]
) -> dict[str, int]:
    """Return how many pods each class of the applied revision should have now."""
    spec, serving = facts.model.spec, facts.model.status.serving
    names = [each.name for each in applied.snapshot.classes]
    named = [each.class_name for each in spec.accelerators] or names
    if not asks_for_pods(spec, names):  # not on classes to be removed either
        return dict.fromkeys(names, 0)
    available = {name: each.available for name, each in deployments.items()}

    def desired(classes: Iterable[str]) -> dict[str, int]:
        specified = replicas_by_class(spec, classes)
        return {**specified, **autoscaling.live_counts(facts, specified, deployments)}

    # a class that is not applied yet gets no share of the total
    counts = covering(desired(name for name in named if name in names), available)
    own = fixed(spec)
    # but a class with its own replicas that has no Deployment yet does not make others keep pods
    there = [name for name in named if name in names or name in available or name not in own]
    until_then = covering(desired(there), available)
    counts = {name: max(count, until_then[name]) for name, count in counts.items()}
    current = {name: each.desired for name, each in deployments.items()}
    before = {each.class_name: each.replicas for each in serving.classes} if serving else {}
    counts = {
        name: counts[name]
        if name in counts
        # a class to be removed: unchanged until then, or as before it yielded to a build
        else current.get(name) or before.get(name, current.get(name, spec.replicas))
        for name in names
    }
    return {**counts, **autoscaling.live_counts(facts, counts, deployments)}


def _beside(
    facts: Facts,
    counts: Mapping[str, int],
    canaries: Mapping[str, int],
    deployments: Mapping[str, DeploymentView],
) -> Mapping[str, int]:
    """Return the counts less the pods whose devices a canary uses in place, of which one stays.

    An autoscaler's counts are the live ones.
    """
    if not canaries or facts.model.spec.rollout.strategy != "InPlace":
        return counts
    live = autoscaling.live_counts(facts, counts, deployments)
    lent = {
        name: max(min(count, 1), count - canaries.get(name, 0)) for name, count in counts.items()
    }
    return {**lent, **live}


def without(counts: Mapping[str, int], yielding: Collection[str]) -> dict[str, int]:
    """Return the counts with no pods for classes that yield their devices to a build."""
    return {name: 0 if name in yielding else count for name, count in counts.items()}


def awaited_classes(facts: Facts, counts: Mapping[str, int]) -> set[str]:
    """Return the classes that only the next revision has, while the applied one has too few pods."""
    spec = facts.model.spec
    named = [each.class_name for each in spec.accelerators]
    covered = sum(counts.values()) >= sum(replicas_by_class(spec, named).values())
    return set() if covered else set(named) - counts.keys()
