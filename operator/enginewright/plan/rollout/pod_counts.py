"""How many pods each class is to have: by the spec, by its autoscaler, and beside a canary; and how far they have come.

`spec.replicas`, which the scale subresource reads and writes, is the total over the classes without replicas of their own:
an autoscaler compares it with the pods of those classes. Other changes never leave fewer serving pods than asked for: a
class that is added or removed counts only once others have as many pods.

The API server resets a count that its only field manager stops applying to 1. So the operator applies
a Deployment's live count until another manager is observed to own it as well, and only then leaves it
out and creates the autoscaler. It applies the count again once the autoscaler is gone.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from enginewright.api.inference_model import InferenceModel, InferenceModelSpec
from enginewright.manifests.autoscaler import horizontal_pod_autoscaler
from enginewright.manifests.labels import CLASS, serving_selector
from enginewright.manifests.snapshot import Revision
from enginewright.observed.deployments import DeploymentView
from enginewright.plan import pods
from enginewright.plan.history.outcomes import find_serving
from enginewright.plan.rollout.deadlines import is_late, seconds_to_next
from enginewright.plan.rollout.failures import unready
from enginewright.plan.types import Facts, ObjectRef, ReplicasHandover
from enginewright.plan.waits import Wait, find_refusal


@dataclass(frozen=True)
class RolloutProgress:
    """Progress of the applied revision."""

    complete: bool
    message: str  # pods of each class, and what they wait for
    failure: pods.Failure | None = None  # of a pod of the applied revision
    lasting: pods.Failure | None = None  # that would repeat, of a revision that never served
    stuck: bool = False  # a pod of a revision that never served has not become ready in its time
    waits: Wait | None = None  # what prevents a pod from starting
    refused: Wait | None = None  # why the API server rejects pods of a class
    due: float | None = None  # seconds until a pod is stuck


def progress_of(
    facts: Facts,
    revision: Revision,
    deployments: Mapping[str, DeploymentView],
    counts: Mapping[str, int],
) -> RolloutProgress:
    """Return the progress of an applied revision towards `counts`, pods by class."""
    parts = []
    complete = True
    for name, count in counts.items():
        current = deployments.get(name)
        if current and (current.revision != revision.name or not current.is_current):
            current = None
        available = current.available_updated() if current else 0
        complete = complete and current is not None and current.is_complete(count)
        parts.append(f"{name} {min(available, count)}/{count}")
    message = f"pods ready: {', '.join(parts)}"
    if complete:
        return RolloutProgress(complete=True, message=message)
    mine = pods.serving_pods(facts.pods, revision.name)
    before = find_serving(facts)
    is_steady = before is not None and before.last_complete == revision.name
    served = is_steady or any(pod.ready for pod in mine)
    asked = [pod for pod in mine if counts.get(pod.label(CLASS)) and not is_steady]
    late = [pod for pod in asked if is_late(facts, pod)]
    seen = unready(facts, late or mine)
    return RolloutProgress(
        complete=False,
        message=f"{message}; {seen.waits.message}" if seen.waits else message,
        failure=seen.first,
        lasting=None if served else unready(facts, mine).lasting,
        stuck=bool(late),
        waits=seen.waits,
        refused=find_refusal(deployments[name] for name in counts if name in deployments),
        due=seconds_to_next(facts, mine),
    )


def replicas_by_class(spec: InferenceModelSpec, classes: Iterable[str]) -> dict[str, int]:
    """Return the number of pods that the spec requests on each of `classes`, which it names.

    The total is spread evenly, the first classes get the remainder, and each class that shares it has
    at least one pod unless the total is 0.
    """
    own = read_own_replicas(spec)
    names = tuple(classes)
    sharing = [name for name in names if name not in own]
    share, rest = divmod(spec.replicas, len(sharing)) if sharing else (0, 0)
    minimum = min(1, spec.replicas)
    shares = {
        name: max(minimum, share + (position < rest)) for position, name in enumerate(sharing)
    }
    return {name: own.get(name, shares.get(name, 0)) for name in names}


def asks_for_pods(spec: InferenceModelSpec, classes: Iterable[str]) -> bool:
    """Return whether the spec requests pods on the classes that it names, or else on `classes`."""
    names = [accelerator.class_name for accelerator in spec.accelerators] or classes
    return any(replicas_by_class(spec, names).values())


def read_own_replicas(spec: InferenceModelSpec) -> dict[str, int]:
    """Return the counts of classes with replicas of their own."""
    return {
        accelerator.class_name: accelerator.replicas
        for accelerator in spec.accelerators
        if accelerator.replicas is not None
    }


def scale_selector(model: str, spec: InferenceModelSpec) -> str:
    """Return the label selector of the pods that spec.replicas counts."""
    parts = [f"{key}={value}" for key, value in sorted(serving_selector(model).items())]
    if own := sorted(read_own_replicas(spec)):
        parts.append(f"{CLASS} notin ({','.join(own)})")
    return ",".join(parts)


def covering(desired: Mapping[str, int], available: Mapping[str, int]) -> dict[str, int]:
    """Return the pods of each class now: classes keep surplus pods while others lack the desired ones."""
    lacking = sum(max(0, count - available.get(name, 0)) for name, count in desired.items())
    counts = {}
    for name, count in desired.items():
        kept = min(lacking, max(0, available.get(name, 0) - count))
        lacking -= kept
        counts[name] = count + kept
    return counts


def live_counts(
    facts: Facts, specified: Mapping[str, int], deployments: Mapping[str, DeploymentView]
) -> dict[str, int]:
    """Return the live counts of the autoscaled classes among those of `specified`, which start with these."""
    before = _list_replicas(facts.model)
    live = {name: deployment.desired for name, deployment in deployments.items()}
    return {
        name: live.get(name) or before.get(name) or _start(facts.model.spec, count)
        for name, count in specified.items()
        if _is_autoscaled(facts, name, deployments.get(name))
    }


def _list_replicas(model: InferenceModel) -> dict[str, int]:
    serving = model.status.serving
    return {used.class_name: used.replicas for used in serving.classes} if serving else {}


def count_to_apply(
    facts: Facts, accelerator: str, existing: DeploymentView | None, count: int
) -> int | None:
    """Return the count to apply to a class's Deployment, unless another manager owns it."""
    if existing is None or not existing.count_is_shared or not count or not existing.desired:
        return count
    return None if _is_autoscaled(facts, accelerator, existing) else count


def handovers(
    facts: Facts, deployments: Mapping[str, DeploymentView], counts: Mapping[str, int]
) -> tuple[ReplicasHandover, ...]:
    """Return the Deployments whose counts need a second owner before their autoscalers are created."""
    return tuple(
        ReplicasHandover(deployment.namespace, deployment.name, deployment.uid, deployment.desired)
        for name in _list_autoscaled(facts, deployments, counts)
        if (deployment := deployments[name]).desired and not deployment.count_is_shared
    )


def autoscalers(
    facts: Facts,
    revision: Revision,
    deployments: Mapping[str, DeploymentView],
    counts: Mapping[str, int],
) -> Iterable[dict[str, Any]]:
    """Yield the autoscalers of the Deployments whose counts are not applied."""
    model, autoscaling = facts.model, facts.model.spec.serving.autoscaling
    for accelerator in _list_autoscaled(facts, deployments, counts):
        existing = deployments[accelerator]
        count = count_to_apply(facts, accelerator, existing, counts[accelerator])
        if autoscaling and count is None:
            yield horizontal_pod_autoscaler(
                model, autoscaling, revision, accelerator, name=existing.name
            )


def find_obsolete_autoscalers(
    facts: Facts, deployments: Mapping[str, DeploymentView], counts: Mapping[str, int]
) -> Iterable[ObjectRef]:
    """Yield the autoscalers of classes that have none any more, or no pods."""
    classes = _list_autoscaled(facts, deployments, counts)
    names = {deployments[device_class].name for device_class in classes}
    for autoscaler in facts.autoscalers:
        if autoscaler.name not in names:
            yield ObjectRef(
                "autoscaling/v2", "HorizontalPodAutoscaler", autoscaler.namespace, autoscaler.name
            )


def _list_autoscaled(
    facts: Facts, deployments: Mapping[str, DeploymentView], counts: Mapping[str, int]
) -> list[str]:
    if facts.model.spec.serving.autoscaling is None:
        return []
    return [
        name
        for name, count in counts.items()
        if count and name in deployments and _is_autoscaled(facts, name, deployments[name])
    ]


def _is_autoscaled(facts: Facts, accelerator: str, existing: DeploymentView | None) -> bool:
    """Return whether an autoscaler decides a class's count: one that is requested, or not deleted yet."""
    spec = facts.model.spec
    if read_own_replicas(spec).get(accelerator, spec.replicas) == 0:
        return False
    return spec.serving.autoscaling is not None or (
        existing is not None
        and any(autoscaler.name == existing.name for autoscaler in facts.autoscalers)
    )


def _start(spec: InferenceModelSpec, count: int) -> int:
    """Return the specified count within the autoscaler's limits."""
    autoscaling = spec.serving.autoscaling
    if autoscaling is None:
        return count
    return min(max(count, autoscaling.min_replicas or 1), autoscaling.max_replicas)


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
    earlier: PodCounts | None = None,
) -> PodCounts:
    """Return the counts of `revision` beside `canaries`, pods by class, reusing what was computed `earlier`."""
    same = earlier if earlier and earlier.revision == revision.name else None
    desired = same.desired if same else count_desired(facts, revision, deployments)
    counts = _beside(facts, desired, canaries, deployments)
    if same and same.counts == counts:
        return same
    progress = progress_of(facts, revision, deployments, counts)
    return PodCounts(revision.name, desired, counts, progress)


def count_desired(
    facts: Facts, applied: Revision, deployments: Mapping[str, DeploymentView]
) -> dict[str, int]:
    """Return how many pods each class of the applied revision should have now."""
    spec = facts.model.spec
    names = [device_class.name for device_class in applied.snapshot.classes]
    named = [accelerator.class_name for accelerator in spec.accelerators] or names
    if not asks_for_pods(spec, names):  # not on classes to be removed either
        return dict.fromkeys(names, 0)
    available = {name: deployment.available for name, deployment in deployments.items()}

    def count_on(classes: Iterable[str]) -> dict[str, int]:
        specified = replicas_by_class(spec, classes)
        return {**specified, **live_counts(facts, specified, deployments)}

    # a class that is not applied yet gets no share of the total
    counts = covering(count_on(name for name in named if name in names), available)
    own = read_own_replicas(spec)
    # but a class with its own replicas that has no Deployment yet does not make others keep pods
    there = [name for name in named if name in names or name in available or name not in own]
    until_then = covering(count_on(there), available)
    counts = {name: max(count, until_then[name]) for name, count in counts.items()}
    current = {name: deployment.desired for name, deployment in deployments.items()}
    before = _list_replicas(facts.model)
    counts = {
        name: counts[name]
        if name in counts
        # a class to be removed: unchanged until then, or as before it yielded to a build
        else current.get(name) or before.get(name, current.get(name, spec.replicas))
        for name in names
    }
    return {**counts, **live_counts(facts, counts, deployments)}


def _beside(
    facts: Facts,
    counts: Mapping[str, int],
    canaries: Mapping[str, int],
    deployments: Mapping[str, DeploymentView],
) -> Mapping[str, int]:
    """Return the counts, unless autoscaled, less the pods whose devices a canary uses in place, of which one stays."""
    if not canaries or facts.model.spec.rollout.strategy != "InPlace":
        return counts
    live = live_counts(facts, counts, deployments)
    lent = {
        name: max(min(count, 1), count - canaries.get(name, 0)) for name, count in counts.items()
    }
    return {**lent, **live}


def find_awaited_classes(model: InferenceModel, counts: Mapping[str, int]) -> set[str]:
    """Return the classes that only the next revision has, while the applied one has too few pods."""
    spec = model.spec
    named = [accelerator.class_name for accelerator in spec.accelerators]
    covered = sum(counts.values()) >= sum(replicas_by_class(spec, named).values())
    return set() if covered else set(named) - counts.keys()
