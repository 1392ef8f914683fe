"""What the store has lost, as pods and builds of engines found out.

Only the current store counts. A revision that was rolled out with another one, such as a claim before a bucket
replaced it, reads that as long as it serves: preparing its model again would fill the current store, which those
pods never read. That is reported instead.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import UTC, datetime

from enginewright_contract.reasons import Fault, has_fault
from enginewright_contract.task import ENGINE_STAGES

from enginewright.api.inference_engine import InferenceEngine
from enginewright.manifests.labels import CLASS, REVISION
from enginewright.manifests.snapshot import ClassSnapshot, Snapshot
from enginewright.observed.revisions import RevisionView
from enginewright.plan import pods
from enginewright.plan.types import Config, Facts


def loss_found(facts: Facts, reads: Callable[[Snapshot, ClassSnapshot], bool], since: str) -> str:
    """Return how a serving pod that `reads` the artefact missed it in the current store after `since`, in RFC 3339."""
    readers = {
        (name, one.name)
        for name, snapshot in _snapshots(facts.revisions)
        for one in snapshot.classes
        if _is_in_store(facts.model.metadata.namespace, facts.config, snapshot)
        and reads(snapshot, one)
    }
    observed = (pod for pod in facts.pods if (pod.label(REVISION), pod.label(CLASS)) in readers)
    failure = pods.fetch_failure(observed, since)
    return (failure.finding.cause or failure.reason) if failure else ""


def builds_without_model(
    engines: Iterable[InferenceEngine], classes: Collection[str], since: str
) -> tuple[InferenceEngine, ...]:
    """Return those of a prepared model's engines, of these classes, whose build did not find it after `since`."""
    return tuple(
        engine
        for engine in engines
        if engine.spec.class_name in classes
        and (failure := engine.status.failure)
        and failure.stage == ENGINE_STAGES[0]  # which reads it; the last one may miss the engine
        and has_fault(failure.reason, Fault.ARTIFACT)
        and failure.time
        and rfc3339(failure.time) > since
    )


def earlier_store_loss(facts: Facts) -> str:
    """Return which revision's earlier store has lost its artefact, as a sentence, if one has."""
    for name, snapshot in _snapshots(facts.revisions):
        observed = (pod for pod in facts.pods if pod.label(REVISION) == name)
        is_here = _is_in_store(facts.model.metadata.namespace, facts.config, snapshot)
        if not is_here and pods.fetch_failure(observed, ""):
            return (
                f"revision {name} reads an earlier store, {snapshot.store.place}, which has lost its artefact, so that"
                " its pods cannot start again: let the new revision serve, or configure that store again to have"
                " the model prepared there"
            )
    return ""


def rfc3339(time: datetime) -> str:
    """Return the time as the kubelet writes it, in UTC with whole seconds."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _snapshots(revisions: Collection[RevisionView]) -> Iterator[tuple[str, Snapshot]]:
    return ((revision.revision, revision.kept.snapshot) for revision in revisions if revision.kept)


def _is_in_store(namespace: str, config: Config, snapshot: Snapshot) -> bool:
    """Return whether a revision's pods read the current store, with any credentials."""
    return snapshot.store.place == config.store.access(namespace).place
