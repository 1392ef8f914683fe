"""How many pods each class should have.

spec.replicas, which the scale subresource reads and writes, is the total over the classes without
replicas of their own: an autoscaler compares it with the pods of those classes.
"""

from collections.abc import Iterable, Mapping

from enginewright.api.inference_model import InferenceModelSpec
from enginewright.manifests.labels import CLASS, serving_selector


def replicas_by_class(spec: InferenceModelSpec, classes: Iterable[str]) -> dict[str, int]:
    """Return the number of pods that the spec requests on each of `classes`, which it names.

    The total is spread evenly, the first classes get the remainder, and each class that shares it has
    at least one pod unless the total is 0.
    """
    own = fixed(spec)
    names = tuple(classes)
    sharing = [name for name in names if name not in own]
    each, rest = divmod(spec.replicas, len(sharing)) if sharing else (0, 0)
    minimum = min(1, spec.replicas)
    shares = {name: max(minimum, each + (position < rest)) for position, name in enumerate(sharing)}
    return {name: own.get(name, shares.get(name, 0)) for name in names}


def asks_for_pods(spec: InferenceModelSpec, classes: Iterable[str]) -> bool:
    """Return whether the spec requests pods on the classes that it names, or else on `classes`."""
    names = [each.class_name for each in spec.accelerators] or classes
    return any(replicas_by_class(spec, names).values())


def fixed(spec: InferenceModelSpec) -> dict[str, int]:
    """Return the counts of classes with replicas of their own."""
    return {
        each.class_name: each.replicas for each in spec.accelerators if each.replicas is not None
    }


def scale_selector(model: str, spec: InferenceModelSpec) -> str:
    """Return the label selector of the pods that spec.replicas counts."""
    parts = [f"{key}={value}" for key, value in sorted(serving_selector(model).items())]
    if own := sorted(fixed(spec)):
        parts.append(f"{CLASS} notin ({','.join(own)})")
    return ",".join(parts)


def covering(desired: Mapping[str, int], available: Mapping[str, int]) -> dict[str, int]:
    """Return the pods of each class now: classes keep surplus pods while others lack theirs.

    Args:
        desired: pods that the spec requests, by class.
        available: available pods, by class.
    """
    lacking = sum(max(0, count - available.get(name, 0)) for name, count in desired.items())
    counts = {}
    for name, count in desired.items():
        kept = min(lacking, max(0, available.get(name, 0) - count))
        lacking -= kept
        counts[name] = count + kept
    return counts
