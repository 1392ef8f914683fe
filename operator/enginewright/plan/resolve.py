"""From a spec to what is to be made: classes, backend, image and recipe, or why not.

Every refusal names the field, the reason and what to write instead.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.api.conditions import StatusReason
from enginewright.api.inference_model import InferenceModelSpec
from enginewright.api.refusals import refused_fields
from enginewright.api.scalars import duration
from enginewright.contract.base import canonical_json
from enginewright.contract.keys import sha256_text
from enginewright.contract.task import Recipe, ShapeProfile
from enginewright.manifests.snapshot import ClassSnapshot
from enginewright.plan.nodes import takes_pods
from enginewright.plan.types import Facts

_MANY_NODES: Final = 2


@dataclass(frozen=True)
class Obstacle:
    """Why nothing new can be brought up."""

    reason: str
    message: str
    stalled: bool = True  # False: it passes without anybody's doing


@dataclass(frozen=True)
class Target:
    """What the spec asks for, resolved against the cluster."""

    classes: tuple[ClassSnapshot, ...]
    backend: str
    image: str
    recipe: Recipe
    source_claim: str | None
    samples_claim: str | None
    source_secret: str | None
    samples_secret: str | None
    deadline_seconds: int
    build_resources: dict[str, Any]
    pull_secrets: tuple[str, ...]
    artifact_hash: str  # of what decides the prepared model
    job_hash: str  # of that and of what decides whether the Job can succeed


def resolve(facts: Facts) -> Target | Obstacle:
    """Return the target, or the first obstacle."""
    for check in _CHECKS:
        if obstacle := check(facts):
            return obstacle
    chosen = _classes(facts)
    if isinstance(chosen, Obstacle):
        return chosen
    backends = _backends(facts, chosen)
    if isinstance(backends, Obstacle):
        return backends
    backend = backends[0]
    image = facts.config.images[backend]
    if failure := facts.image_failures.get(image):
        message = f"the runtime image {image} could not be asked what it holds: {failure}"
        return Obstacle(StatusReason.IMAGE_PROBE_FAILED, message)
    if image not in facts.images:
        message = f"asking the runtime image {image} which opsets and backends it holds"
        return Obstacle(StatusReason.PROBING_IMAGE, message, stalled=False)
    return _target(facts, chosen, backend, image)


def _unsupported_fields(facts: Facts) -> Obstacle | None:
    refused = refused_fields(facts.model.spec)
    if not refused:
        return None
    message = f"this version does not act on {', '.join(refused)}; remove or change what is named"
    return Obstacle(StatusReason.UNSUPPORTED_FIELD, message)


def _unshared_store(facts: Facts) -> Obstacle | None:
    """Refuse a volume that only one node can mount where pods may land on several."""
    claim = facts.store
    modes = (
        tuple((claim.get("spec") or {}).get("accessModes") or ())
        if claim
        else (facts.config.store.access_mode,)
    )
    if "ReadWriteMany" in modes:
        return None
    tolerations = [*facts.model.spec.pod_template.tolerations]
    tolerations += [one for each in facts.classes for one in each.spec.tolerations]
    open_nodes = sum(takes_pods(node, tolerations) for node in facts.nodes)
    if open_nodes < _MANY_NODES:
        return None
    message = (
        f"the store's claim {facts.config.store.claim} is {'/'.join(modes)}, which one node can"
        f" mount, and pods may land on {open_nodes} nodes; install the chart with"
        " store.accessMode=ReadWriteMany and a storage class that offers it, and delete the claim"
    )
    return Obstacle(StatusReason.STORE_NOT_SHARED, message)


_CHECKS: Final[tuple[Callable[[Facts], Obstacle | None], ...]] = (
    _unsupported_fields,
    _unshared_store,
)


def _classes(facts: Facts) -> list[AcceleratorClass] | Obstacle:
    known = {each.metadata.name: each for each in facts.classes}
    names = ", ".join(sorted(known)) or "none"
    if wanted := facts.model.spec.accelerators:
        missing = [each.class_name for each in wanted if each.class_name not in known]
        if missing:
            message = (
                f"spec.accelerators names {', '.join(missing)}, but the cluster has {names};"
                " name one of these or apply the AcceleratorClass"
            )
            return Obstacle(StatusReason.UNKNOWN_ACCELERATOR_CLASS, message)
        return [known[each.class_name] for each in wanted]
    if not known:
        message = "the cluster has no AcceleratorClass; apply one, such as the chart's class cpu"
        return Obstacle(StatusReason.NO_ACCELERATOR_CLASS, message)
    if len(known) > 1:
        message = (
            f"the cluster has several classes ({names}); name those that serve in spec.accelerators"
        )
        return Obstacle(StatusReason.AMBIGUOUS_ACCELERATOR_CLASS, message)
    return list(known.values())


def _backends(facts: Facts, classes: list[AcceleratorClass]) -> list[str] | Obstacle:
    """Return the backend of each class; all equal, since one prepared model serves them all."""
    chosen = []
    for each in classes:
        allowed = [str(backend) for backend in each.spec.backends]
        wanted = [str(backend) for backend in facts.model.spec.backends or ()] or allowed
        runnable = [one for one in allowed if one in facts.config.images]
        if wanted[0] not in runnable:
            # A lower-ranked backend would be a fallback, and nobody would have asked for it.
            message = (
                f"the preferred backend {wanted[0]} does not run on the class {each.metadata.name},"
                f" which offers {', '.join(runnable) or 'none that this version has an image for'};"
                " choose one of these in spec.backends"
            )
            return Obstacle(StatusReason.BACKEND_NOT_ALLOWED, message)
        chosen.append(wanted[0])
    if len(set(chosen)) > 1:
        pairs = ", ".join(f"{c.metadata.name}: {b}" for c, b in zip(classes, chosen, strict=True))
        message = (
            f"the classes resolve to different backends ({pairs}); name one backend that all of"
            " them allow in spec.backends, or write one InferenceModel a backend"
        )
        return Obstacle(StatusReason.BACKEND_NOT_ALLOWED, message)
    return chosen


def _target(facts: Facts, classes: list[AcceleratorClass], backend: str, image: str) -> Target:
    spec = facts.model.spec
    held = facts.images[image]
    samples = spec.parity.samples
    recipe = Recipe(
        backend=backend,
        ort_version=held.ort_version,
        max_opset=held.max_opset,
        max_ir_version=held.max_ir_version,
        shapes=_shapes(spec),
        samples_uri=samples.uri if samples else None,
        rtol=_number(spec.parity.rtol),
        atol=_number(spec.parity.atol),
    )
    source_secret = spec.source.secret_ref.name if spec.source.secret_ref else None
    samples_secret = samples.secret_ref.name if samples and samples.secret_ref else None
    deadline = int(duration(spec.build.timeout).total_seconds())
    resources = spec.build.resources.model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude_defaults=True
    )
    pull_secrets = (
        *facts.config.image_pull_secrets,
        *(each.name for each in spec.pod_template.image_pull_secrets),
    )
    artifact = {
        "uri": spec.source.uri,
        "sha256": spec.source.sha256,
        "recipe": recipe.model_dump(mode="json", exclude_none=True),
        "image": image,
    }
    job = {
        **artifact,
        "secrets": [source_secret, samples_secret],
        "deadline": deadline,
        "resources": resources,
        "pull_secrets": pull_secrets,
    }
    return Target(
        classes=tuple(_snapshot(each, backend, image) for each in classes),
        backend=backend,
        image=image,
        recipe=recipe,
        source_claim=_claim(spec.source.uri),
        samples_claim=_claim(samples.uri) if samples else None,
        source_secret=source_secret,
        samples_secret=samples_secret,
        deadline_seconds=deadline,
        build_resources=resources,
        pull_secrets=pull_secrets,
        artifact_hash=sha256_text(canonical_json(artifact)),
        job_hash=sha256_text(canonical_json(job)),
    )


def _snapshot(each: AcceleratorClass, backend: str, image: str) -> ClassSnapshot:
    tolerations = [
        one.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
        for one in each.spec.tolerations
    ]
    return ClassSnapshot(
        name=each.metadata.name,
        backend=backend,
        image=image,
        node_selector=dict(each.spec.node_selector),
        tolerations=tuple(tolerations),
        resource_name=each.spec.resource_name,
    )


def _shapes(spec: InferenceModelSpec) -> tuple[ShapeProfile, ...]:
    return tuple(
        ShapeProfile(
            input=each.input,
            min=each.min,
            opt=each.opt,
            max=each.max,
            low=_number(each.range.low) if each.range else None,
            high=_number(each.range.high) if each.range else None,
        )
        for each in spec.shapes or ()
    )


def _number(text: str | None) -> float | None:
    return None if text is None else float(text)


def _claim(uri: str) -> str | None:
    parts = urlsplit(uri)
    return parts.netloc if parts.scheme == "pvc" else None
