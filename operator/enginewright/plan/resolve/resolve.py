"""Resolve a spec to classes, backend, image and recipe, or to an obstacle: its field, the reason and a remedy."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from enginewright_contract.images import COMPILED_BACKENDS, UNUSABLE_REMEDY, VARIANTS, ImageFacts
from enginewright_contract.keys import content, content_hash
from enginewright_contract.precisions import why_no_rest
from enginewright_contract.reasons import Reason
from enginewright_contract.task import Promise, Recipe

from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.api.conditions import StatusReason
from enginewright.api.inference_model import InferenceModel, InferenceModelSpec
from enginewright.api.scalars import duration
from enginewright.manifests.device_claim import CLAIM_TEMPLATE, CLAIMS_VERSION
from enginewright.manifests.prepare_job import Input
from enginewright.plan.history.outcomes import find_serving
from enginewright.plan.history.spec_hash import is_applied_of_spec
from enginewright.plan.resolve.backends import BackendCandidate, candidates, is_readmitted
from enginewright.plan.resolve.classes import find_mixed_devices, is_proposed
from enginewright.plan.resolve.images import not_probed
from enginewright.plan.resolve.recipe import find_rest, recipe, steps_sha256, why_not
from enginewright.plan.resolve.recipe import inputs as prepare_inputs
from enginewright.plan.resolve.sources import PinnedSource, pin_source
from enginewright.plan.types import Facts, Obstacle

_OF_READING: Final = frozenset({"refresh", "refused_networks"})  # and not of what is read


@dataclass(frozen=True)
class Target:
    """What the spec requests, resolved against the cluster."""

    classes: tuple[AcceleratorClass, ...]
    backend: str
    promise: Promise
    image: str
    recipe: Recipe
    source: PinnedSource
    inputs: tuple[Input, ...]  # that stage `fetch` reads from
    prepare_nodes: dict[str, Any]  # placement fields of the prepare Job's pod
    deadline_seconds: int
    pull_secrets: tuple[str, ...]
    artifact_hash: str  # of everything that decides the prepared model
    job_hash: str  # of that and everything that decides whether the Job can succeed
    candidate_hash: str  # of that, classes and promise: of everything that decides serving
    last: bool  # no other backend comes after this one


def resolve(facts: Facts, source: PinnedSource | None = None) -> Target | Obstacle:
    """Return the target, or the first obstacle; `source` is what to fetch, by default the pinned content."""
    source = pin_source(facts.model, facts.revisions) if source is None else source
    if obstacle := _why_store_unshared(facts) or without_gateway_api(facts):
        return obstacle
    classes = _classes(facts.model, facts.classes)
    if isinstance(classes, Obstacle):
        return classes
    if obstacle := _without_device_claims(facts.has_device_claims, classes):
        return obstacle
    ranked = candidates(facts, classes)
    if isinstance(ranked, Obstacle):
        return ranked
    rejected = {
        (rejected_backend.backend, rejected_backend.inputs_hash)
        for rejected_backend in facts.model.status.rejected_backends
        if not is_readmitted(facts, classes, rejected_backend)
    }
    unchanged = is_applied_of_spec(facts)
    serves = find_serving(facts) if unchanged else None
    for candidate in ranked:
        last = candidate == ranked[-1]
        target = _of_candidate(facts, classes, candidate, source, last=last)
        if isinstance(target, Obstacle):
            # which engines fit does not affect the next backend, and a node that joins not what serves
            goes_on = target.reason == StatusReason.MIXED_DEVICES and not last
            if not goes_on or (serves and serves.backend == candidate.backend):
                return target
        elif last or (target.backend, target.candidate_hash) not in rejected:
            return target
    raise AssertionError  # candidates() returns at least one


def _of_candidate(
    facts: Facts,
    classes: list[AcceleratorClass],
    candidate: BackendCandidate,
    source: PinnedSource,
    *,
    last: bool,
) -> Target | Obstacle:
    image = facts.config.images[VARIANTS[candidate.backend]]
    if obstacle := not_probed(facts, image):
        return obstacle
    backends = facts.images[image].backends
    if candidate.backend not in backends:
        unusable = (facts.images[image].unusable or {}).get(candidate.backend)
        remedy = f"{unusable}; {UNUSABLE_REMEDY}" if unusable else "add its libraries to the image"
        message = (
            f"the runtime image {image} contains {', '.join(backends) or 'no backend'}, not"
            f" {candidate.backend}: {remedy}, or name another backend in spec.backends"
        )
        return Obstacle(StatusReason.BACKEND_NOT_ALLOWED, message)
    if candidate.backend in COMPILED_BACKENDS:
        own = facts.config.product_labels
        mixed = (find_mixed_devices(device_class, facts.nodes, own) for device_class in classes)
        if message := next(filter(None, mixed), ""):
            return Obstacle(StatusReason.MIXED_DEVICES, message)
    return _target(facts, classes, candidate, image, source, last=last)


def _why_store_unshared(facts: Facts) -> Obstacle | None:
    """Return the obstacle that only one node can mount the volume, although pods may be scheduled to several."""
    store = facts.config.store
    if store.is_shared(facts.store):
        return None
    tolerations = [*facts.model.spec.pod_template.tolerations]
    tolerations += [one for device_class in facts.classes for one in device_class.spec.tolerations]
    usable_nodes = sum(node.takes_pods(tolerations) for node in facts.nodes)
    if usable_nodes < 2:
        return None
    message = (
        f"the store's claim {store.claim} is {'/'.join(store.list_modes(facts.store))}, which only one node can"
        f" mount, and pods may be scheduled to {usable_nodes} nodes; install the chart with"
        " store.accessMode=ReadWriteMany and a storage class that supports it, and delete the claim, or"
        " with store.bucket.uri"
    )
    return Obstacle(StatusReason.STORE_NOT_SHARED, message)


def without_gateway_api(facts: Facts) -> Obstacle | None:
    """Return the obstacle that the model asks for a route, which the cluster cannot have."""
    if facts.model.spec.serving.route is None or facts.routes is not None:
        return None
    message = (
        "spec.serving.route needs HTTPRoutes of the Gateway API (gateway.networking.k8s.io/v1), which the"
        " cluster does not have; install its CRDs, which the operator notices within an hour or when"
        " restarted, or remove the field"
    )
    return Obstacle(StatusReason.GATEWAY_API_MISSING, message)


def _without_device_claims(
    has_device_claims: bool, classes: Iterable[AcceleratorClass]
) -> Obstacle | None:
    """Return the obstacle that a class requests devices in a way that the cluster does not have."""
    named = [
        device_class.metadata.name
        for device_class in classes
        if device_class.spec.device is not None
    ]
    if not named or has_device_claims:
        return None
    message = (
        f"spec.device of AcceleratorClass {', '.join(named)} needs {CLAIM_TEMPLATE}s of {CLAIMS_VERSION},"
        " which the cluster does not have: use Kubernetes 1.34 or newer, which the operator notices within"
        " an hour or when restarted, or request an extended resource with spec.resourceName"
    )
    return Obstacle(StatusReason.DEVICE_CLAIMS_MISSING, message)


def _classes(
    model: InferenceModel, classes: Collection[AcceleratorClass]
) -> list[AcceleratorClass] | Obstacle:
    by_name = {device_class.metadata.name: device_class for device_class in classes}
    names = [accelerator.class_name for accelerator in model.spec.accelerators]
    if not names:
        return _choose_class(model, by_name)
    if missing := [name for name in names if name not in by_name]:
        message = (
            f"spec.accelerators names {', '.join(missing)}, but the cluster has"
            f" {', '.join(sorted(by_name)) or 'none'}; name one of these or apply the AcceleratorClass"
        )
        return Obstacle(StatusReason.UNKNOWN_ACCELERATOR_CLASS, message)
    return [by_name[name] for name in names]


def _choose_class(
    model: InferenceModel, classes: Mapping[str, AcceleratorClass]
) -> list[AcceleratorClass] | Obstacle:
    """Return the class of a model that names none: the one chosen before, else the only one."""
    if kept := classes.get(_find_chosen(model)):
        return [kept]  # regardless of classes added later
    if not classes:
        message = "the cluster has no AcceleratorClass; apply one, such as the chart's class cpu"
        return Obstacle(StatusReason.NO_ACCELERATOR_CLASS, message)
    # Proposals do not count: a GPU node that joins must not make other models ambiguous.
    own = [device_class for device_class in classes.values() if not is_proposed(device_class)]
    for chosen in (list(classes.values()), own):
        if len(chosen) == 1:
            return chosen
    message = (
        f"the cluster has several classes ({', '.join(sorted(classes))}); name those that serve in"
        " spec.accelerators"
    )
    return Obstacle(StatusReason.AMBIGUOUS_ACCELERATOR_CLASS, message)


def _find_chosen(model: InferenceModel) -> str:
    status = model.status
    if status.accelerator_class or status.serving is None or len(status.serving.classes) != 1:
        return status.accelerator_class
    return status.serving.classes[0].class_name  # of a status that an earlier version wrote


def _target(
    facts: Facts,
    classes: list[AcceleratorClass],
    candidate: BackendCandidate,
    image: str,
    source: PinnedSource,
    *,
    last: bool,
) -> Target | Obstacle:
    spec = facts.model.spec
    backend = candidate.backend
    image_facts = facts.images[image]
    if reason := why_not(spec, backend, classes):
        message = f"{reason}; choose another spec.precision, or another class in spec.accelerators"
        return Obstacle(Reason.PRECISION_UNSUPPORTED, message)
    if reason := why_no_rest(find_rest(spec), backend):
        engines = " or ".join(sorted(COMPILED_BACKENDS))
        message = (
            f"spec.quantization.rest is {find_rest(spec)}, but {reason}; remove it, or choose {engines}"
            " in spec.backends"
        )
        return Obstacle(Reason.PRECISION_UNSUPPORTED, message)
    prepare_recipe = recipe(spec, backend, image_facts, classes)
    inputs = prepare_inputs(spec)
    deadline = int(duration(spec.build.timeout).total_seconds())
    pull_secrets = (
        *facts.config.image_pull_secrets,
        *(image_pull_secret.name for image_pull_secret in spec.pod_template.image_pull_secrets),
    )
    nodes = _prepare_nodes(prepare_recipe, classes)
    artifact = {
        "uri": spec.source.uri,
        "sha256": spec.source.sha256,
        "recipe": content(prepare_recipe),
        "image": _image_identity(spec, image_facts, image),
        **({"refresh": source.refresh} if source.refresh else {}),
        **({"steps": digests} if (digests := steps_sha256(spec)) else {}),
    }
    refused = facts.config.refused_networks
    job = {
        **artifact,
        **({"refused_networks": refused} if refused else {}),
        "image": image,
        **({"pipeline": image_facts.pipeline} if image_facts.pipeline else {}),
        "secrets": [(input_.name, input_.secret) for input_ in inputs if input_.secret],
        "deadline": deadline,
        "resources": spec.build.resources.manifest(),
        "pull_secrets": pull_secrets,
        "account": spec.pod_template.service_account_name,
        **nodes,
    }
    rollout = {
        # what only decides how a source is read does not make a rejected backend a candidate again
        **{name: value for name, value in job.items() if name not in _OF_READING},
        "promise": content(candidate.promise),
        "classes": [content(device_class.spec) for device_class in classes],
    }
    template = spec.pod_template.model_dump(
        mode="json", exclude={"labels", "annotations"}, exclude_defaults=True
    )
    if spec.build.optimization_level is not None:
        rollout["optimization_level"] = spec.build.optimization_level
    if template:  # it may decide where drivers and libraries are found
        rollout["pod_template"] = template
    return Target(
        classes=tuple(classes),
        backend=backend,
        promise=candidate.promise,
        image=image,
        recipe=prepare_recipe,
        source=source,
        inputs=inputs,
        prepare_nodes=nodes,
        deadline_seconds=deadline,
        pull_secrets=pull_secrets,
        artifact_hash=content_hash(artifact),
        job_hash=content_hash(job),
        candidate_hash=content_hash(rollout),
        last=last,
    )


def _image_identity(spec: InferenceModelSpec, image_facts: ImageFacts, image: str) -> str:
    """Return what identifies an image's results: images with the same pipeline share prepared models.

    Under Recreate the old pods stop first, so a Job must show that each new image can be pulled.
    """
    if spec.rollout.strategy == "Recreate" or image_facts.pipeline is None:
        return image
    return image_facts.pipeline


def _prepare_nodes(recipe: Recipe, classes: list[AcceleratorClass]) -> dict[str, Any]:
    """Return where the prepare Job may run: a model that relies on exact products needs a processor with them."""
    if recipe.int8_products != "exact":
        return {}
    spec = classes[0].spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {"nodeSelector": spec["nodeSelector"], "tolerations": spec["tolerations"]}


def why_no_image(facts: Facts, target: Target, backend: str) -> str:
    """Return why the installation's image for a backend cannot serve the model now, if so."""
    image = facts.config.images.get(VARIANTS[backend], "")
    if not image:
        return f"this installation has no image for the backend {backend}"
    if obstacle := not_probed(facts, image):
        return obstacle.message
    contents, verified = facts.images[image], target.recipe.ort_version
    if backend not in contents.backends:
        return f"the runtime image {image} lacks the backend {backend}"
    if contents.ort_version != verified:  # the sidecar would refuse it
        return (
            f"the model is verified with ONNX Runtime {verified} of {target.image}, but {image} has"
            f" {contents.ort_version}"
        )
    return ""
