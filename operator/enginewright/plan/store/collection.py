"""When unneeded artefacts are removed from a store, what must be kept, and the outcome.

One Job at a time for each namespace. The next one is due some time after the end of the last one, so that a restarted
operator starts none; the first one at a time of the day that depends on the name of the namespace. Everything that the
objects of the namespace name is kept: an object that cannot be read may name anything, so then nothing may be removed.
Earlier releases shared a part of a bucket between namespaces: that is not collected, as pods may still read it, and its
Jobs are deleted.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from enginewright_contract.collection import (
    COLLECT_STAGE,
    KEPT_CHARACTERS,
    LEAST_AGE_SECONDS,
    MOST_KEPT,
    Collected,
    CollectTask,
)
from enginewright_contract.images import ImageFacts
from pydantic import ValidationError

from enginewright.api.conditions import StatusReason
from enginewright.api.inference_engine import InferenceEngine
from enginewright.api.inference_model import InferenceModel
from enginewright.api.scalars import quantity
from enginewright.manifests.collect_job import collect_job
from enginewright.manifests.collection_outcome import CollectionOutcome
from enginewright.manifests.job_limits import COLLECTION_RETRY
from enginewright.manifests.labels import MODEL, STORE_MAX_SIZE
from enginewright.manifests.snapshot import Revision
from enginewright.observed.artifact_keys import keys_in, keys_of_pods
from enginewright.observed.base import Json, status
from enginewright.observed.collections import CollectionView
from enginewright.observed.jobs import job_view
from enginewright.observed.nodes import NodeView
from enginewright.observed.pods import PodView, of_job
from enginewright.plan import pods
from enginewright.plan.quantities import format_size
from enginewright.plan.resolve.images import architecture_of
from enginewright.plan.types import Config, EventIntent, MetadataIntent, ObjectRef

_VARIANT: Final = "cpu"  # of the runtime image, if there is one
_WAIT_FOR_IMAGE: Final = 60.0  # seconds, unless it becomes known before
_LEFTOVERS: Final = timedelta(days=15)  # files of removed artefacts stay in a bucket for 14 days
_NAMED: Final = 3  # objects in a message


@dataclass(frozen=True)
class NamespaceObjects:
    """All objects of a namespace that may need artefacts, as the API server has just listed them."""

    models: tuple[Json, ...] = ()
    engines: tuple[Json, ...] = ()
    revisions: tuple[Json, ...] = ()  # ControllerRevisions
    deployments: tuple[Json, ...] = ()
    jobs: tuple[Json, ...] = ()


@dataclass(frozen=True)
class Unreadable:
    """An object that may need any artefact."""

    obj: Json
    why: str

    @property
    def name(self) -> str:
        """Return its kind and name."""
        return f"{self.obj['kind']} {self.obj['metadata']['name']}"


@dataclass(frozen=True)
class NeededKeys:
    """The keys of all artefacts that are needed."""

    keys: frozenset[str]
    unreadable: tuple[Unreadable, ...] = ()

    @property
    def beginnings(self) -> tuple[str, ...]:
        """Return the beginnings of the keys, as a task has them."""
        return tuple(sorted({key[:KEPT_CHARACTERS] for key in self.keys}))


def find_needed_keys(listed: NamespaceObjects) -> NeededKeys:
    """Return the keys that are needed.

    Models name what their specs need, what serves, and what their rejected backends would serve;
    revisions what a model may return to; Deployments and Jobs what their pods read or write.
    """
    keys = (
        *(keys_in(status(model)) for model in listed.models),
        *(keys_in(engine.get("spec")) for engine in listed.engines),
        *(keys_in(revision.get("data")) for revision in listed.revisions),
        *(keys_of_pods(deployment) for deployment in listed.deployments),
        *(keys_of_pods(job) for job in listed.jobs if not job_view(job).ended),
    )
    return NeededKeys(
        frozenset().union(*keys),
        (
            *_unreadable(listed.models, InferenceModel.model_validate),
            *_unreadable(listed.engines, InferenceEngine.model_validate),
            *_unreadable(listed.revisions, Revision.read),
            *_unreadable(listed.deployments, _read_deployment),
        ),
    )


def _unreadable(objects: Iterable[Json], read: Callable[[Json], Any]) -> Iterable[Unreadable]:
    for object_ in objects:
        try:
            read(object_)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            field = ".".join(str(step) for step in first["loc"])
            yield Unreadable(object_, f"{field}: {first['msg']}")
        except ValueError as error:
            yield Unreadable(object_, str(error))


def _read_deployment(obj: Json) -> None:
    labels = obj["metadata"].get("labels") or {}
    if MODEL in labels and not keys_of_pods(obj):
        raise ValueError("its pods name no artefact")


@dataclass(frozen=True)
class CollectionFacts:
    """Everything that is known about the collection of one store at one moment."""

    namespace: str  # whose store it is
    config: Config
    now: datetime  # timezone-aware
    since: datetime  # when this process began to look at the store
    has_store: bool  # a claim or, with a bucket, an object that may have artefacts there
    image: ImageFacts | None  # of the runtime image that collects, once known
    jobs: tuple[CollectionView, ...] = ()
    pods: tuple[PodView, ...] = ()  # of these Jobs
    nodes: tuple[NodeView, ...] = ()


@dataclass(frozen=True)
class EndedCollection:
    """A Job whose outcome is recorded from now on."""

    job: CollectionView
    outcome: CollectionOutcome
    event: EventIntent | None = None  # about the Job

    def record(self) -> MetadataIntent:
        """Return the annotation that records the outcome."""
        return MetadataIntent(
            "batch/v1",
            "Job",
            self.job.namespace,
            self.job.name,
            self.job.uid,
            annotations=self.outcome.annotations(),
        )


@dataclass(frozen=True)
class CollectionSteps:
    """What to do now."""

    ended: tuple[EndedCollection, ...] = ()
    delete: tuple[ObjectRef, ...] = ()
    starts: str = ""  # name of the Job to create, once it is known what is needed
    first: str = ""  # name of the store's first Job, if that is not due yet
    requeue_after: float | None = None  # seconds
    exists: bool = True  # there is something to collect, now or later


@dataclass(frozen=True)
class Blocked:
    """Why no Job may be created."""

    message: str
    objects: tuple[Unreadable, ...] = ()  # that are the reason


def collecting_image(config: Config) -> str:
    """Return the runtime image that collects: any can."""
    return config.images.get(_VARIANT) or min(config.images.values())


def first_due(namespace: str, interval: timedelta, since: datetime) -> datetime:
    """Return when the first Job of a store is due that the operator has watched `since` then.

    The name of the namespace decides, as all of them at once would be a burst.
    """
    period = interval.total_seconds()
    digest = hashlib.sha256(namespace.encode()).digest()
    phase = int.from_bytes(digest[:4]) % max(1, int(period))
    passed = (since.timestamp() - phase) // period + 1
    return datetime.fromtimestamp(phase + passed * period, UTC)


def plan_collection(facts: CollectionFacts) -> CollectionSteps:
    """Return what to do for one store now."""
    gc = facts.config.store.gc
    own = [job for job in facts.jobs if not job.is_of_group]
    unwanted = tuple(_ref(job) for job in facts.jobs if job.is_of_group)
    running = [view for view in own if not _is_over(facts, view)]
    if not gc.enabled:
        delete = (*unwanted, *map(_ref, running))
        return CollectionSteps(delete=delete, exists=bool(delete))
    finished = sorted((view for view in own if view not in running), key=_find_end)
    outcomes = {view.name: view.recorded for view in finished if view.recorded}
    ended = tuple(_record_end(facts, view, outcomes) for view in finished if view.recorded is None)
    outcomes |= {ended_collection.job.name: ended_collection.outcome for ended_collection in ended}
    successes = [view for view in finished if outcomes[view.name].collected]
    kept = {view.name for view in (*finished[-1:], *successes[-1:])}
    outdated = (_ref(view) for view in finished if view.name not in kept)
    plan = CollectionSteps(ended=ended, delete=(*unwanted, *outdated))
    if running:
        return plan
    last = outcomes[successes[-1].name] if successes else None
    if not facts.has_store and _is_empty(last, facts.now):
        return CollectionSteps(plan.ended, plan.delete, exists=bool(ended))
    due = _due(facts, finished, outcomes)
    name = f"collect-{due.timestamp():.0f}"
    if (wait := (due - facts.now).total_seconds()) > 0:
        first = "" if finished else name
        return CollectionSteps(plan.ended, plan.delete, first=first, requeue_after=wait)
    if facts.image is None:
        return CollectionSteps(plan.ended, plan.delete, requeue_after=_WAIT_FOR_IMAGE)
    return CollectionSteps(plan.ended, plan.delete, starts=name)


def collection(
    facts: CollectionFacts,
    name: str,
    needed: NeededKeys,
    as_of: datetime,
    max_size: str | None,
    cluster: str | None = None,
) -> dict[str, object] | Blocked:
    """Return the Job that collects; it keeps what was `needed` at `as_of`, before the objects were listed.

    `max_size` is the namespace's annotation, in place of the setting; `cluster` that of the objects, if others may
    use the store.
    """
    config, gc, namespace = facts.config, facts.config.store.gc, facts.namespace
    if needed.unreadable:
        named = "; ".join(
            f"{unreadable.name}: {unreadable.why}" for unreadable in needed.unreadable[:_NAMED]
        )
        rest = len(needed.unreadable) - _NAMED
        more = f"; and {rest} more" if rest > 0 else ""
        return Blocked(
            f"nothing is removed from the store, as it is not known what these need: {named}{more};"
            " update the CRDs and the operator to one version, or delete them",
            needed.unreadable,
        )
    keep = needed.beginnings
    if len(keep) > MOST_KEPT:
        return Blocked(
            f"nothing is removed from the store, as {len(keep)} artefacts are needed and one"
            f" namespace may need at most {MOST_KEPT}: distribute the models over several namespaces"
        )
    try:
        limit = gc.max_size if max_size is None else quantity(max_size)
    except ValueError:
        return Blocked(
            f"nothing is removed from the store, as the namespace's annotation {STORE_MAX_SIZE} is"
            f" {max_size!r}: write a size such as 50Gi"
        )
    task = CollectTask(
        job=name,
        keep=keep,
        as_of=as_of,
        min_age_seconds=LEAST_AGE_SECONDS,
        max_age_seconds=gc.unused_for.total_seconds() if gc.unused_for else None,
        max_bytes=limit,
        cluster=cluster,
        dry_run=gc.dry_run,
    )
    return collect_job(
        namespace,
        task,
        image=collecting_image(config),
        pull_policy=config.image_pull_policy,
        pull_secrets=config.image_pull_secrets,
        store=config.store.access(namespace),
        kept_seconds=(2 * gc.interval + timedelta(days=7)).total_seconds(),
        template=config.jobs,
        assigned_ids=config.openshift,
        architecture=architecture_of(facts.image, facts.nodes) if facts.image else "",
    )


def _is_over(facts: CollectionFacts, job: CollectionView) -> bool:
    """Return whether a Job has ended, or only what a mesh has added to its pod goes on, until the Job's deadline."""
    own = of_job(facts.pods, job.name)
    is_outlived = any(pods.outlives(pod, COLLECT_STAGE) for pod in own)
    return job.ended or job.recorded is not None or is_outlived


def _due(
    facts: CollectionFacts,
    finished: Sequence[CollectionView],
    outcomes: Mapping[str, CollectionOutcome],
) -> datetime:
    interval = facts.config.store.gc.interval
    if not finished:
        return first_due(facts.namespace, interval, facts.since)
    last = finished[-1]
    succeeded = last.outcome == "Complete" or outcomes[last.name].collected
    wait = interval if succeeded else min(interval, COLLECTION_RETRY)
    return _find_end(last) + wait


def _is_empty(last: CollectionOutcome | None, now: datetime) -> bool:
    """Return whether nothing is left in a store, as far as is known, that could be removed."""
    if last is None:
        return True
    return last.empty_since is not None and now - last.empty_since > _LEFTOVERS


def _record_end(
    facts: CollectionFacts, job: CollectionView, earlier: Mapping[str, CollectionOutcome]
) -> EndedCollection:
    own = of_job(facts.pods, job.name)
    limit = job.task.max_bytes if job.task else None
    reported = [report.collected for pod in own for report in pods.reports(pod) if report.collected]
    if reported:
        collected = reported[-1]
        empty_since = _empty_since(collected, job, earlier.values())
        outcome = CollectionOutcome(collected=collected, limit_bytes=limit, empty_since=empty_since)
        return EndedCollection(job, outcome, _over_limit(collected, limit))
    failures = [failure for failure in map(pods.failure, reversed(own)) if failure]
    if failures:
        why = failures[0].finding.message
    elif job.outcome == "Complete":
        why = "its pod was deleted before its report was read"
    else:
        why = job.message or job.reason or "it failed before its stage began"
    message = f"the store was not collected: {why}"
    event = EventIntent("Warning", StatusReason.COLLECTION_FAILED, message)
    return EndedCollection(job, CollectionOutcome(failure=message, limit_bytes=limit), event)


def _empty_since(
    collected: Collected, job: CollectionView, earlier: Iterable[CollectionOutcome]
) -> datetime | None:
    if collected.artifacts > (0 if collected.dry_run else collected.removed_artifacts):
        return None
    return min(
        (outcome.empty_since for outcome in earlier if outcome.empty_since), default=_find_end(job)
    )


def _over_limit(collected: Collected, limit: int | None) -> EventIntent | None:
    """Return the Event that reports that removing cannot help: what is needed is larger than the limit."""
    if limit is None or collected.needed_bytes <= limit:
        return None
    message = (
        f"{format_size(collected.needed_bytes)} of the store are needed, and {format_size(limit)} are"
        " allowed: raise store.gc.maxSize, or remove models"
    )
    return EventIntent("Warning", StatusReason.STORE_OVER_LIMIT, message)


def _find_end(job: CollectionView) -> datetime:
    return datetime.fromisoformat(job.ended_at or job.created)


def _ref(job: CollectionView) -> ObjectRef:
    return ObjectRef("batch/v1", "Job", job.namespace, job.name)
