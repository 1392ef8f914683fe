"""What content that the spec names by digest was prepared to: a model that is applied again needs no Job for it.

The record is in the status of the InferenceEngines that were built from it, which outlive the model, and whose prepared
model is not removed from the store before them. It is found by a hash of everything that decides what a Job would
do and whether it would succeed, the store included. If the store has lost the artefact, the build or the pods that
read it find out, as always.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from enginewright_contract.images import COMPILED_BACKENDS
from enginewright_contract.keys import content_hash

from enginewright.api.inference_model_status import Prepared
from enginewright.plan.prepare.single_flight import TakenOver, job_inputs
from enginewright.plan.resolve.resolve import Target
from enginewright.plan.resolve.sources import MODEL, digests_in_spec
from enginewright.plan.types import Facts

_MOST: Final = 4  # records of one InferenceEngine


def recorded(facts: Facts, record: str, prepared: Prepared, data: Mapping[str, str]) -> Prepared:
    """Return a prepared model with the hash that it is found by later, if nothing else can be at its addresses.

    Args:
        facts: the model and its cluster.
        record: the hash with which its Job was created: the settings may be others by now.
        prepared: the result.
        data: digests of what was fetched besides the model, by name.
    """
    # The digest in the spec is that of one file: with external data, or in an archive, the model has another one.
    is_pinned = digests_in_spec(facts.model.spec) == {MODEL: prepared.model_digest, **data}
    return prepared.model_copy(update={"record_hash": record if is_pinned else ""})


def known_preparation(facts: Facts, target: Target) -> TakenOver | None:
    """Return what an earlier Job has made of the same content; None: no record says so."""
    wanted = record_hash(facts, target)
    if not wanted or target.backend not in COMPILED_BACKENDS:
        return None
    images = facts.config.store.images
    data = digests_in_spec(facts.model.spec) or {}
    digest = data.pop(MODEL, "")
    for engine in facts.engines.values():
        for each in engine.status.prepared:
            if (each.record_hash, each.key) == (wanted, engine.spec.prepared_key):
                if images and not images.image(each.image):
                    return None  # a Job finds the artefact, and pushes its image
                return TakenOver(each, data) if each.model_digest == digest else None
    return None


def kept_records(
    before: Sequence[Prepared], of_models: Iterable[Prepared], key: str
) -> tuple[Prepared, ...]:
    """Return the records of an engine that is built from the prepared model `key`.

    Args:
        before: those that it has.
        of_models: what models that refer to it say of their prepared models.
        key: of its prepared model.
    """
    found = {each.record_hash: each for each in of_models if each.record_hash and each.key == key}
    kept = {each.record_hash: each for each in before}
    for name, each in found.items():
        if name in kept:
            kept[name] = each if each.image else kept[name]
            continue
        if len(kept) == _MOST:
            unused = next((known for known in kept if known not in found), None)
            if unused is None:
                break
            del kept[unused]
        kept[name] = each
    return tuple(kept.values())


def record_hash(facts: Facts, target: Target) -> str:
    """Return the hash with which a Job for this target is recorded; empty: it is not.

    A refresh reads the addresses again. Under Recreate a Job shows that the image can be pulled before pods go.
    """
    spec = facts.model.spec
    if target.source.refresh or spec.rollout.strategy == "Recreate":
        return ""
    digests = digests_in_spec(spec)
    if digests is None:
        return ""
    store = facts.config.store.access(facts.model.metadata.namespace).place
    return content_hash({**job_inputs(facts, target), "digests": digests, "store": store})
