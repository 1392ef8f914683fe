"""The input and output of planning.

The controller gathers `Facts`, `plan()` decides, the controller executes `Plan`. Data flows in one
direction: nothing here calls back, reads a clock or keeps state. What takes long to compute is returned as a
need (`Plan.needs`): the controller computes it and plans again.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Self

from enginewright_contract.images import ImageFacts
from enginewright_contract.measurements import Measurements
from enginewright_contract.verdict import Verdict

from enginewright.analysis.comparison import RevisionComparison
from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.api.conditions import StatusReason
from enginewright.api.inference_engine import InferenceEngine
from enginewright.api.inference_model import InferenceModel
from enginewright.api.pods import DEFAULT_JOB_TEMPLATE, JobTemplate
from enginewright.manifests.artifact_images import ImageRepository
from enginewright.manifests.snapshot import Revision
from enginewright.manifests.store_access import StoreAccess, StoreBucket
from enginewright.observed.deployments import DeploymentView
from enginewright.observed.identities import AutoscalerView, BudgetView, ClaimView, ServiceView
from enginewright.observed.jobs import JobView
from enginewright.observed.nodes import NodeView
from enginewright.observed.pods import PodView
from enginewright.observed.revisions import RevisionView
from enginewright.observed.routes import RouteView


@dataclass(frozen=True)
class CollectionConfig:
    """When unneeded artefacts are removed from the stores, as the administrator configured it."""

    enabled: bool = True
    interval: timedelta = timedelta(days=1)  # from the end of one collection to the next
    unused_for: timedelta | None = timedelta(days=30)  # before it is removed, if it ever is
    max_size: int | None = None  # bytes of one namespace's artefacts, if they are limited
    dry_run: bool = False  # reported, and not removed


@dataclass(frozen=True)
class StoreConfig:
    """The place of a namespace's artefacts, as the administrator configured it."""

    claim: str  # name of the PersistentVolumeClaim in every namespace with a model
    size: str
    access_mode: str  # ReadWriteMany | ReadWriteOnce
    storage_class: str | None  # or the cluster's default
    bucket: StoreBucket | None = None  # of all namespaces, instead of claims
    node_cache: str | None = None  # HOST:PORT, for pods that read a bucket
    images: ImageRepository | None = None  # for OCI images of artefacts, if they are made
    gc: CollectionConfig = CollectionConfig()

    def access(self, namespace: str) -> StoreAccess:
        """Return the store of one namespace: a claim, or its part of a bucket."""
        if self.bucket is None:
            return StoreAccess(self.claim)
        part = f"{self.bucket.uri.rstrip('/')}/{namespace}"
        return StoreAccess("", self.bucket.model_copy(update={"uri": part}))

    def is_shared(self, claim: ClaimView | None) -> bool:
        """Return whether pods on several nodes can read a namespace's store: by its claim, once that is there."""
        return self.bucket is not None or "ReadWriteMany" in self.list_modes(claim)

    def list_modes(self, claim: ClaimView | None) -> tuple[str, ...]:
        """Return the access modes of a namespace's claim, also before it is there."""
        return claim.access_modes if claim else (self.access_mode,)

    def describe(self, namespace: str, claim: ClaimView | None) -> str:
        """Return the place of one namespace's store, how it is reached and how large it is."""
        access = self.access(namespace)
        if access.bucket is None:
            return " ".join(filter(None, (access.place, claim.capacity if claim else "")))
        return " ".join(filter(None, (access.place, access.bucket.secret, access.bucket.account)))


@dataclass(frozen=True)
class FleetConfig:
    """How models move to new runtime images and edited classes, as the administrator configured it."""

    limit: int = 2  # models that move at the same time
    max_failures: int = 3  # after which no further one begins
    paused: bool = False  # no further one begins


@dataclass(frozen=True)
class JobLimits:
    """How many Jobs that prepare models and build engines run at the same time, 0 for any number."""

    total: int = 0
    per_namespace: int = 0


@dataclass(frozen=True)
class Config:
    """The operator's own settings, from the chart."""

    namespace: str  # the operator's
    images: Mapping[str, str]  # variant of the runtime image -> reference
    image_pull_policy: str
    image_pull_secrets: tuple[str, ...]
    store: StoreConfig
    propose_classes: bool = True  # from the labels of GPU nodes
    product_labels: tuple[str, ...] = ()  # that name GPU products, beside NVIDIA's
    openshift: bool = False  # the cluster assigns user and groups, so pods do not set them
    jobs: JobTemplate = DEFAULT_JOB_TEMPLATE  # where all Jobs run, unless a model overrides it
    fleet: FleetConfig = FleetConfig()
    job_limits: JobLimits = JobLimits()
    refused_networks: tuple[str, ...] = ()  # that sources may not be in


@dataclass(frozen=True)
class Inputs:
    """What administrators decide of a revision."""

    images: Mapping[str, str]  # as in `Config`
    classes: tuple[AcceleratorClass, ...]
    product_labels: tuple[str, ...]  # as in `Config`


@dataclass(frozen=True)
class Leader:
    """A model whose Job prepares what others of its namespace need as well."""

    name: str
    has_fetched: bool  # its Job has read, or may have read, the sources
    failure: str = ""  # the last one, which is retried, as a sentence


@dataclass(frozen=True)
class Facts:
    """Everything that is known about one model at one moment."""

    model: InferenceModel
    config: Config
    now: datetime  # timezone-aware
    classes: tuple[AcceleratorClass, ...] = ()
    nodes: tuple[NodeView, ...] = ()
    images: Mapping[str, ImageFacts] = field(default_factory=dict)  # that are probed, by reference
    image_failures: Mapping[str, str] = field(default_factory=dict)  # of probes, by reference
    bucket_user: str | None = None  # who uses its part of a bucket, if known
    may_move: bool = True  # it is the model's turn to move to what administrators have changed
    keeps_store: bool = False  # another address of the store alone is no new revision now
    # the namespace's other models whose Jobs prepare, by hash of all that is shared, the first one first
    leaders: Mapping[str, tuple[Leader, ...]] = field(default_factory=dict)
    job_limit: str = ""  # why it may create no further Job for now, if so
    followed: InferenceModel | None = None  # the one that status.preparation.leader names
    store: ClaimView | None = None  # the namespace's claim
    jobs: tuple[JobView, ...] = ()  # this model's
    pods: tuple[PodView, ...] = ()  # of its Jobs and its Deployments
    deployments: tuple[DeploymentView, ...] = ()  # that serve
    canaries: tuple[DeploymentView, ...] = ()  # that run a new revision beside what serves
    # with which an earlier release tried rejected backends: they are deleted
    trials: tuple[DeploymentView, ...] = ()
    budgets: tuple[BudgetView, ...] = ()  # its PodDisruptionBudgets
    autoscalers: tuple[AutoscalerView, ...] = ()  # its HorizontalPodAutoscalers
    services: tuple[ServiceView, ...] = ()  # its Services
    routes: tuple[RouteView, ...] | None = None  # its HTTPRoutes, if the cluster has that kind
    has_device_claims: bool = True  # whether the cluster has ResourceClaimTemplates
    revisions: tuple[RevisionView, ...] = ()  # its ControllerRevisions
    engines: Mapping[str, InferenceEngine] = field(default_factory=dict)  # the namespace's, by name
    # the namespace's, by name: those that are built from a prepared model, by its key
    find_built_from: Callable[[str], Iterable[InferenceEngine]] = lambda _key: ()
    # likewise: those with a record of a prepared model, by the record's hash
    find_recorded: Callable[[str], Iterable[InferenceEngine]] = lambda _hash: ()
    # pods of its Jobs, by engine, if known
    engine_pods: Mapping[str, tuple[PodView, ...]] = field(default_factory=dict)
    # the model's engines whose requester is deleted or needs another engine by now
    orphaned_engines: frozenset[str] = frozenset()
    # the model's engines for whose build pods of another model leave their devices
    freed_elsewhere: frozenset[str] = frozenset()
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)  # by pod name, as far as polled
    # the same of both revisions during a rollout; the sidecars of earlier versions have none
    measurements: Mapping[str, Measurements | None] = field(default_factory=dict)
    comparisons: tuple[RevisionComparison, ...] = ()  # of them that were made, with their results
    silent: frozenset[str] = frozenset()  # pods whose sidecars have not responded for five minutes

    @cached_property
    def kept(self) -> Mapping[str, Revision]:
        """Revisions by name, without those that cannot be read."""
        return {view.revision: view.kept for view in self.revisions if view.kept}

    def having(self, inputs: Inputs) -> Self:
        """Return the same in an installation with these, where what serves reads the store that it does."""
        config = replace(self.config, images=inputs.images, product_labels=inputs.product_labels)
        return replace(self, config=config, classes=inputs.classes, keeps_store=True)


@dataclass(frozen=True)
class ObjectRef:
    """An object to delete."""

    api_version: str
    kind: str
    namespace: str
    name: str


@dataclass(frozen=True)
class MetadataIntent:
    """Labels and annotations to set on an existing object, all that are set this way."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str  # so that it is never set on a later object of this name
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    def manifest(self) -> dict[str, Any]:
        """Return the partial object to apply as a separate field manager."""
        return {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "metadata": {
                "namespace": self.namespace,
                "name": self.name,
                "uid": self.uid,
                "labels": dict(self.labels),
                "annotations": dict(self.annotations),
            },
        }


@dataclass(frozen=True)
class ReplicasHandover:
    """A Deployment whose count gets a second owner, so that the count stays once we stop applying it."""

    namespace: str
    name: str
    uid: str
    replicas: int  # spec.replicas as observed


@dataclass(frozen=True)
class EventIntent:
    """An Event to record once per change: type, reason and message are its identity."""

    type: str  # Normal | Warning
    reason: str
    message: str
    # that the object is about to do something, which needs no Event if another one follows soon
    is_progress: bool = field(default=False, compare=False)


def image_not_pushed(artefact: str, why: str) -> EventIntent:
    """Return the Event of an artefact that has no OCI image, although there is a repository for it."""
    message = f"{artefact} has no OCI image, so that pods read it from the store: {why}"
    return EventIntent("Warning", StatusReason.IMAGE_NOT_PUSHED, message)


@dataclass(frozen=True)
class Plan:
    """What to do now. Executing it a second time has no effect."""

    apply: tuple[dict[str, Any], ...]  # server-side apply, in the order of `plan/writes.py`
    delete: tuple[ObjectRef, ...]
    status: dict[str, Any]  # the complete desired status
    events: tuple[EventIntent, ...]
    requeue_after: float | None  # seconds, if anything is due without a watch event
    metadata: tuple[MetadataIntent, ...] = ()  # before anything else
    rolled_back: str = ""  # why a revision is rejected from now on
    # what serves on where the ControllerRevision in `apply` is refused, in place of objects of the same names
    otherwise: tuple[dict[str, Any], ...] = ()
    hand_over: tuple[ReplicasHandover, ...] = ()  # after `apply`
    awaits_turn: bool = False  # a Job is not created for now because of the limits on Jobs
    comparisons: tuple[RevisionComparison, ...] = ()  # that it is based on

    @property
    def needs(self) -> tuple[RevisionComparison, ...]:
        """Return the comparisons whose results the facts lack.

        While there are any, the plan is not executed: it is made again with their results in the facts.
        """
        return tuple(comparison for comparison in self.comparisons if comparison.result is None)


@dataclass(frozen=True)
class Obstacle:
    """Why nothing new can be prepared or rolled out."""

    reason: str
    message: str
    stalled: bool = True  # until a user acts
