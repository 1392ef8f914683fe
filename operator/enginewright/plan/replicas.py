"""How many pods each class is to have.

spec.replicas, which the scale subresource reads and writes, is the total over the classes that have
no count of their own: an autoscaler that compares it with the pods of those classes counts each once.
"""

from collections.abc import Iterable, Mapping

from enginewright.api.inference_model import InferenceModelSpec
from enginewright.manifests.labels import CLASS, serving_selector


def replicas_by_class(spec: InferenceModelSpec, classes: Iterable[str]) -> dict[str, int]:
    """Return the pods that the spec asks for on each of `classes`, which are those that it names.

    The total is spread evenly, the first classes take the rest, and none that shares it is without
    a pod unless the total is 0.
    """
    own = fixed(spec)
    names = tuple(classes)
    sharing = [name for name in names if name not in own]
    each, rest = divmod(spec.replicas, len(sharing)) if sharing else (0, 0)
    least = min(1, spec.replicas)
    shares = {name: max(least, each + (position < rest)) for position, name in enumerate(sharing)}
    return {name: own.get(name, shares.get(name, 0)) for name in names}


def fixed(spec: InferenceModelSpec) -> dict[str, int]:
    """Return the counts of classes that have one of their own."""
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
    """Return the pods of each class now: what one class lacks, others keep that have more than their part.

    Args:
        desired: what the spec asks for, by class.
        available: pods that serve, by class.
    """
    lacking = sum(max(0, count - available.get(name, 0)) for name, count in desired.items())
    counts = {}
    for name, count in desired.items():
        kept = min(lacking, max(0, available.get(name, 0) - count))
        lacking -= kept
        counts[name] = count + kept
    return counts
