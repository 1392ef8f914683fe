"""What a spec requests: a revision, by the hash of all that decides what serves."""

from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.api.inference_model_status import ModelSignature, Prepared, SourceState
from enginewright.manifests.artifact_images import ArtifactImage
from enginewright.manifests.pod_options import PodOptions
from enginewright.manifests.serving_pod import PodDefaults, PodOwner, pod_templates, sidecar_memory
from enginewright.manifests.snapshot import (
    ClassSnapshot,
    KeptSource,
    Revision,
    Snapshot,
    class_snapshot,
)
from enginewright.observed.revisions import RevisionView
from enginewright.plan.engines.choice import Choice, ChosenBackend, choose, failure_of
from enginewright.plan.engines.interim import Interim
from enginewright.plan.engines.wanted import Engines
from enginewright.plan.history.outcomes import active_snapshot, find_serving
from enginewright.plan.history.spec_hash import as_stored
from enginewright.plan.resolve.images import only_architectures
from enginewright.plan.resolve.resolve import Target
from enginewright.plan.types import Config, Facts

# the OCI image that pods mount, if any, of an engine by its key or of the prepared model
_ImageOf: TypeAlias = Callable[[str | None], ArtifactImage | None]


def request_snapshot(
    facts: Facts,
    target: Target,
    prepared: Prepared,
    engines: Mapping[str, str],
    interim: Interim | None = None,
    chosen: Mapping[str, ChosenBackend] | None = None,
) -> Snapshot:
    """Return the snapshot that the spec requests.

    `engines` are keys of engines by accelerator class; an `interim` serves where they are missing, and `chosen`
    backends by class in place of them.
    """
    size = prepared.golden_output_bytes
    store = facts.config.store.access(facts.model.metadata.namespace)
    image = _images(facts, prepared)
    snapshot = Snapshot(
        **dict(PodOptions.of(facts.model.spec)),
        prepared_key=prepared.key,
        model_digest=prepared.model_digest,
        classes=tuple(
            _class_snapshot(device_class, target, engines, interim, chosen or {}, image)
            # their order in the spec has no effect
            for device_class in sorted(
                target.classes, key=lambda accelerator_class: accelerator_class.metadata.name
            )
        ),
        promise=target.promise,
        store_claim=store.claim,
        store_bucket=store.bucket,
        # only if it matters: else pods of revisions without this field would restart
        golden_output_bytes=size if sidecar_memory(size) > sidecar_memory(None) else None,
    )
    return _keep_store(facts, as_stored(facts, snapshot))


def _keep_store(facts: Facts, snapshot: Snapshot) -> Snapshot:
    """Return the active snapshot if this one reads another store and is not to be rolled out for that now."""
    active = active_snapshot(facts, find_serving(facts)) if facts.keeps_store else None
    if active is None:
        return snapshot
    store = {"store_claim": active.store_claim, "store_bucket": active.store_bucket}
    same = snapshot.model_copy(update=store)
    return same if same.revision() == active.revision() else snapshot


def choose_snapshot(
    facts: Facts,
    target: Target,
    prepared: Prepared,
    engines: Engines,
    keys: Mapping[str, str],
    interim: Interim | None = None,
) -> tuple[Snapshot, Choice | None]:
    """Return the snapshot that the spec requests, with the backends that a benchmark chose, unless these have failed."""
    choice = choose(facts, target, prepared, engines)
    if choice and choice.chosen:
        chosen = request_snapshot(facts, target, prepared, keys, interim, choice.chosen)
        failure = failure_of(facts.model, chosen.revision())
        if failure is None:
            return chosen, choice
        choice = choice.give_up(failure)
    return request_snapshot(facts, target, prepared, keys, interim), choice


def _class_snapshot(
    accelerator: AcceleratorClass,
    target: Target,
    engines: Mapping[str, str],
    interim: Interim | None,
    chosen: Mapping[str, ChosenBackend],
    image: _ImageOf,
) -> ClassSnapshot:
    name = accelerator.metadata.name
    is_interim = interim is not None and name in interim.classes
    other = interim if is_interim else chosen.get(name)
    key = None if other else engines.get(name)
    return class_snapshot(
        accelerator,
        (other or target).backend,
        (other or target).image,
        key,
        interim=is_interim,
        chosen=other is not None and not is_interim,
        artifact_image=image(key),
    )


def _images(facts: Facts, prepared: Prepared) -> _ImageOf:
    """Return what the pods mount that serve an engine or the prepared model."""
    repository = facts.config.store.images
    if repository is None:
        return lambda _: None
    pushed = {
        engine.spec.key: engine.status.engine.image
        for engine in facts.find_built_from(prepared.key)
        if engine.status.engine
    }
    return lambda key: repository.image(pushed.get(key) if key else prepared.image)


def read_revisions(config: Config, revisions: Collection[RevisionView]) -> dict[str, Revision]:
    """Return the revisions whose content is stored, by name, with images that pods can pull now."""
    return {
        revision.revision: _without_other_images(config, revision.kept)
        for revision in revisions
        if revision.kept
    }


def _without_other_images(config: Config, revision: Revision) -> Revision:
    """Return a revision whose pods mount no image of another repository than the configured one.

    That may be lost, and pods whose image cannot be pulled never start. Without it they read the store.
    """
    repository = config.store.images
    own = revision.snapshot.pod_template.get("imagePullSecrets") or ()
    secrets = {*config.image_pull_secrets, *(item["name"] for item in own)}
    templates = {
        device_class.name: image.remove_from(
            revision.templates[device_class.name], other_secrets=secrets
        )
        for device_class in revision.snapshot.classes
        if revision.templates
        and (image := device_class.artifact_image)
        and not (repository and repository.image(image.reference))
    }
    if not templates:
        return revision
    return revision.model_copy(update={"templates": {**revision.templates, **templates}})


def revision_of(
    facts: Facts,
    stored: Mapping[str, Revision],
    snapshot: Snapshot,
    source: SourceState | None,
    signature: ModelSignature | None,
) -> Revision:
    """Return the revision of a snapshot: the stored one if it exists."""
    name = snapshot.revision()
    kept = KeptSource(pins=source.pins, refresh=source.refresh) if source else None
    new = Revision(name=name, snapshot=snapshot, source=kept, signature=signature)
    return with_templates(facts, stored.get(name) or new)


def with_templates(facts: Facts, revision: Revision) -> Revision:
    """Return the revision with pod templates, also if an earlier version stored it without them."""
    if revision.templates:
        return revision
    config = facts.config
    defaults = PodDefaults(
        config.image_pull_policy,
        config.image_pull_secrets,
        config.openshift,
        config.store.node_cache,
        only_architectures(facts.nodes, facts.images, revision.snapshot),
    )
    model = facts.model.metadata
    owner = PodOwner(model.name, model.uid)
    templates = pod_templates(owner, revision.name, revision.snapshot, defaults)
    return revision.model_copy(update={"templates": templates})
