"""Which classes have a HorizontalPodAutoscaler, and who owns the counts of their Deployments.

The API server resets a count that its only field manager stops applying to 1. So the operator applies
a Deployment's live count until another manager is observed to own it as well, and only then leaves it
out and creates the autoscaler. It takes a count back once the autoscaler is gone. Every state between
these writes is one to continue from.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from enginewright.api.inference_model import InferenceModelSpec
from enginewright.manifests.autoscaler import horizontal_pod_autoscaler
from enginewright.manifests.snapshot import Revision
from enginewright.observed.deployments import DeploymentView
from enginewright.plan.rollout.replicas import fixed
from enginewright.plan.types import Facts, ObjectRef, ReplicasHandover


def live_counts(
    facts: Facts, specified: Mapping[str, int], deployments: Mapping[str, DeploymentView]
) -> dict[str, int]:
    """Return the counts of the autoscaled classes among those of `specified`: the live ones.

    Args:
        facts: of the model.
        specified: pods that the spec requests, by class: with these a class starts.
        deployments: by class.
    """
    serving = facts.model.status.serving
    before = {each.class_name: each.replicas for each in serving.classes} if serving else {}
    live = {name: each.desired for name, each in deployments.items()}
    return {
        name: live.get(name) or before.get(name) or _start(facts.model.spec, count)
        for name, count in specified.items()
        if _is_autoscaled(facts, name, deployments.get(name))
    }


def applied_count(
    facts: Facts, accelerator: str, existing: DeploymentView | None, count: int
) -> int | None:
    """Return the count to apply to a class's Deployment; None: another manager owns it."""
    if existing is None or not existing.count_is_shared or not count or not existing.desired:
        return count
    return None if _is_autoscaled(facts, accelerator, existing) else count


def handovers(
    facts: Facts, deployments: Mapping[str, DeploymentView], counts: Mapping[str, int]
) -> tuple[ReplicasHandover, ...]:
    """Return the Deployments whose counts need a second owner before their autoscalers are created."""
    autoscaled = [deployments[name] for name in _autoscaled(facts, deployments, counts)]
    return tuple(
        ReplicasHandover(each.namespace, each.name, each.uid, each.desired)
        for each in autoscaled
        if each.desired and not each.count_is_shared
    )


def autoscalers(
    facts: Facts,
    revision: Revision,
    deployments: Mapping[str, DeploymentView],
    counts: Mapping[str, int],
) -> Iterable[dict[str, Any]]:
    """Yield the autoscalers of the Deployments whose counts are not applied."""
    autoscaling = facts.model.spec.serving.autoscaling
    for accelerator in _autoscaled(facts, deployments, counts):
        existing = deployments[accelerator]
        count = applied_count(facts, accelerator, existing, counts[accelerator])
        if autoscaling and count is None:
            yield horizontal_pod_autoscaler(
                facts.model, autoscaling, revision, accelerator, name=existing.name
            )


def unwanted_autoscalers(
    facts: Facts, deployments: Mapping[str, DeploymentView], counts: Mapping[str, int]
) -> Iterable[ObjectRef]:
    """Yield the autoscalers of classes that have none any more, or no pods."""
    wanted = {deployments[name].name for name in _autoscaled(facts, deployments, counts)}
    for each in facts.autoscalers:
        if each.name not in wanted:
            yield ObjectRef("autoscaling/v2", "HorizontalPodAutoscaler", each.namespace, each.name)


def _autoscaled(
    facts: Facts, deployments: Mapping[str, DeploymentView], counts: Mapping[str, int]
) -> list[str]:
    """Return the classes with a Deployment that is to have an autoscaler."""
    if facts.model.spec.serving.autoscaling is None:
        return []
    return [
        name
        for name, count in counts.items()
        if count and name in deployments and _is_autoscaled(facts, name, deployments[name])
    ]


def _is_autoscaled(facts: Facts, accelerator: str, existing: DeploymentView | None) -> bool:
    """Return whether an autoscaler decides a class's count: one that is wanted, or not deleted yet."""
    spec = facts.model.spec
    if fixed(spec).get(accelerator, spec.replicas) == 0:
        return False
    return spec.serving.autoscaling is not None or (
        existing is not None and any(each.name == existing.name for each in facts.autoscalers)
    )


def _start(spec: InferenceModelSpec, count: int) -> int:
    """Return the specified count within the autoscaler's limits."""
    autoscaling = spec.serving.autoscaling
    if autoscaling is None:
        return count
    return min(max(count, autoscaling.min_replicas or 1), autoscaling.max_replicas)
