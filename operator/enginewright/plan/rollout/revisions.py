"""What a spec requests: a revision, by the hash of all that decides what serves."""

from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.api.inference_engine import InferenceEngine
from enginewright.api.inference_model_status import ModelSignature, Prepared, SourceState
from enginewright.manifests.artifact_images import ArtifactImage
from enginewright.manifests.pod_options import PodOptions
from enginewright.manifests.serving_pod import PodDefaults, pod_templates, sidecar_memory
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
from enginewright.plan.history.spec_hash import as_stored
from enginewright.plan.resolve.images import only_architectures
from enginewright.plan.resolve.resolve import Target
from enginewright.plan.types import Config, Facts

# the OCI image of an engine, by its key, or of the prepared model (None); None: pods mount none
_ImageOf: TypeAlias = Callable[[str | None], ArtifactImage | None]


def wanted_snapshot(
    facts: Facts,
    target: Target,
    prepared: Prepared,
    engines: Mapping[str, str],
    interim: Interim | None = None,
    chosen: Mapping[str, ChosenBackend] | None = None,
) -> Snapshot:
    """Return the snapshot that the spec requests.

    Args:
        facts: the model and its cluster.
        target: what the spec requests.
        prepared: the prepared model.
        engines: keys of engines by accelerator class.
        interim: what serves where engines are missing; None: nothing.
        chosen: what serves in place of engines, by class; None: nothing.
    """
    size = prepared.golden_output_bytes
    store = facts.config.store.access(facts.model.metadata.namespace)
    image = _images(facts.config, facts.engines, prepared)
    wanted = Snapshot(
        **dict(PodOptions.of(facts.model.spec)),
        prepared_key=prepared.key,
        model_digest=prepared.model_digest,
        classes=tuple(
            _class_snapshot(each, target, engines, interim, chosen or {}, image)
            # their order in the spec has no effect
            for each in sorted(target.classes, key=lambda each: each.metadata.name)
        ),
        promise=target.promise,
        store_claim=store.claim,
        store_bucket=store.bucket,
        # only if it matters: else pods of revisions without this field would restart
        golden_output_bytes=size if sidecar_memory(size) > sidecar_memory(None) else None,
    )
    return as_stored(facts.model, facts.revisions, wanted)


def chosen_snapshot(
    facts: Facts,
    target: Target,
    prepared: Prepared,
    engines: Engines,
    keys: Mapping[str, str],
    interim: Interim | None = None,
) -> tuple[Snapshot, Choice | None]:
    """Return the snapshot that the spec requests, with the backends that a benchmark has chosen, unless they have failed.

    `keys` are those of engines by accelerator class, others as of `wanted_snapshot` and `choose`.
    """
    choice = choose(facts, target, prepared, engines)
    if choice and choice.chosen:
        chosen = wanted_snapshot(facts, target, prepared, keys, interim, choice.chosen)
        failure = failure_of(facts.model, chosen.revision())
        if failure is None:
            return chosen, choice
        choice = choice.given_up(failure)
    return wanted_snapshot(facts, target, prepared, keys, interim), choice


def _class_snapshot(
    accelerator: AcceleratorClass,
    target: Target,
    engines: Mapping[str, str],
    interim: Interim | None,
    chosen: Mapping[str, ChosenBackend],
    image: _ImageOf,
) -> ClassSnapshot:
    name = accelerator.metadata.name
    if interim and name in interim.classes:
        return class_snapshot(
            accelerator,
            interim.backend,
            interim.image,
            None,
            interim=True,
            artifact_image=image(None),
        )
    if other := chosen.get(name):
        return class_snapshot(
            accelerator,
            other.backend,
            other.image,
            None,
            chosen=True,
            artifact_image=image(None),
        )
    key = engines.get(name)
    return class_snapshot(accelerator, target.backend, target.image, key, artifact_image=image(key))


def _images(config: Config, engines: Mapping[str, InferenceEngine], prepared: Prepared) -> _ImageOf:
    """Return what the pods mount that serve an engine or the prepared model."""
    repository = config.store.images
    if repository is None:
        return lambda _: None
    known = {
        each.spec.key: each.status.engine.image for each in engines.values() if each.status.engine
    }

    def image(engine_key: str | None) -> ArtifactImage | None:
        return repository.image(known.get(engine_key) if engine_key else prepared.image)

    return image


def stored_revisions(config: Config, revisions: Collection[RevisionView]) -> dict[str, Revision]:
    """Return the revisions whose content is stored, by name, as their pods can start now."""
    return {
        each.revision: _without_other_images(config, each.kept) for each in revisions if each.kept
    }


def _without_other_images(config: Config, revision: Revision) -> Revision:
    """Return a revision whose pods mount no image of another repository than the configured one.

    That may be lost, and pods whose image cannot be pulled never start. Without it they read the store.
    """
    repository = config.store.images
    own = revision.snapshot.pod_template.get("imagePullSecrets") or ()
    secrets = {*config.image_pull_secrets, *(each["name"] for each in own)}
    templates = {
        each.name: image.removed_from(revision.templates[each.name], other_secrets=secrets)
        for each in revision.snapshot.classes
        if revision.templates
        and (image := each.artifact_image)
        and not (repository and repository.image(image.reference))
    }
    if not templates:
        return revision
    return revision.model_copy(update={"templates": {**revision.templates, **templates}})


def revision_of(
    facts: Facts,
    known: Mapping[str, Revision],
    wanted: Snapshot,
    source: SourceState | None,
    signature: ModelSignature | None,
) -> Revision:
    """Return the revision of a snapshot: the stored one if it exists."""
    name = wanted.revision()
    kept = KeptSource(pins=source.pins, refresh=source.refresh) if source else None
    new = Revision(name=name, snapshot=wanted, source=kept, signature=signature)
    return with_templates(facts, known.get(name) or new)


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
    templates = pod_templates(facts.model.metadata.name, revision.name, revision.snapshot, defaults)
    return revision.model_copy(update={"templates": templates})
