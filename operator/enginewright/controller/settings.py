"""The operator's settings: one JSON document that the chart writes, checked before anything runs."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Annotated, Final, Literal

from enginewright_contract.oci_images import IMAGE_REPOSITORY, LONGEST_REPOSITORY
from enginewright_contract.store_address import BUCKET_ADDRESS
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from enginewright.api.pods import JobTemplate
from enginewright.api.scalars import long_duration, quantity
from enginewright.controller.logs import check_level
from enginewright.controller.parse import summary
from enginewright.manifests.artifact_images import ImageRepository
from enginewright.manifests.placement import WITHOUT_MESH, merge_templates
from enginewright.manifests.store_access import StoreBucket
from enginewright.plan.types import (
    CollectionConfig,
    Config,
    FleetConfig,
    JobLimits,
    StoreConfig,
)

CONFIG_VARIABLE: Final = "ENGINEWRIGHT_CONFIG"
NAMESPACE_VARIABLE: Final = "POD_NAMESPACE"

_Name = Annotated[str, Field(min_length=1)]

# name of a node label, with or without the prefix of a domain
_NodeLabel = Annotated[
    str,
    Field(
        pattern=r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
    ),
]


def _is_duration(text: str) -> str:
    try:
        long_duration(text)
    except ValueError:
        raise ValueError("write a duration: 30d, 24h, 90m or 0") from None
    return text


def _is_interval(text: str) -> str:
    if not long_duration(_is_duration(text)):
        raise ValueError("write a duration of at least 1s, such as 24h")
    return text


def _is_size(text: str) -> str:
    try:
        too_small = text != "" and quantity(text) <= 0
    except ValueError:
        too_small = True
    if too_small:
        raise ValueError("write a size such as 50Gi; empty: no limit")
    return text


def _is_network(text: str) -> str:
    try:
        return str(ip_network(text))
    except ValueError as error:
        raise ValueError(f"{error}: write a network such as 10.0.0.0/8") from None


class BadSettings(Exception):  # noqa: N818 - read as a sentence where it is raised
    """A setting is invalid; the message says which one and what to write."""


@dataclass(frozen=True)
class OperatorSettings:
    """The plans' configuration, and what else the process needs."""

    config: Config
    log_level: str
    http_port: int
    deployment: str | None = None  # the operator's own, which owns what is made in its namespace
    namespaces: frozenset[str] | None = None  # watched, with the operator's own; None means all


class _Document(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True
    )


class BucketSettings(_Document):
    """A bucket that holds the artefacts of all namespaces."""

    uri: Annotated[str, Field(pattern=BUCKET_ADDRESS)]
    """Its address, such as s3://BUCKET/PATH; a namespace's artefacts are below PATH/NAMESPACE."""
    secret_ref: _Name | None = None
    """Secret with its credentials in every namespace with a model, docs/bucket.md; null: the pods' own identity."""
    service_account_name: _Name | None = None
    """Service account of Jobs and serving pods that have no other, in every namespace with a model."""


class ImageSettings(_Document):
    """A repository with OCI images of artefacts, which serving pods mount."""

    repository: Annotated[str, Field(pattern=IMAGE_REPOSITORY, max_length=LONGEST_REPOSITORY)]
    """Its address without scheme and tag, such as registry.example.com/team/artefacts."""
    secret_ref: _Name | None = None
    """Secret of type kubernetes.io/dockerconfigjson in every namespace with a model, with which Jobs push and nodes pull; null: no account."""


class CollectionSettings(_Document):
    """When what nothing needs is removed from the stores."""

    enabled: bool = True
    """Remove it; false: nothing is removed or measured."""
    interval: Annotated[str, AfterValidator(_is_interval)] = "24h"
    """From the end of one collection of a namespace to the next, such as 24h."""
    unused_for: Annotated[str, AfterValidator(_is_duration)] = "30d"
    """How long something is unneeded before it is removed, such as 30d; 0: never."""
    max_size: Annotated[str, AfterValidator(_is_size)] = ""
    """Size of a namespace's artefacts above which unneeded ones are removed earlier, such as 50Gi; empty: no limit."""
    dry_run: bool | None = None
    """Report what would be removed, and remove nothing; null: true with a bucket, which other clusters may use too."""


class StoreSettings(_Document):
    """The claim that every namespace with a model gets, or the bucket in its place."""

    claim: _Name
    """Name of the PersistentVolumeClaim; made where it does not exist."""
    size: _Name
    """Size that a new claim requests, such as 20Gi."""
    access_mode: Literal["ReadWriteMany", "ReadWriteOnce"]
    """Access mode of a new claim; ReadWriteOnce is for clusters of one node."""
    storage_class: str | None = None
    """StorageClass of a new claim; null: the cluster's default."""
    bucket: BucketSettings | None = None
    """Bucket for the artefacts of all namespaces; null: a claim in each."""
    node_cache: Annotated[str, Field(pattern=r"^[a-z0-9.-]+:[0-9]+$")] | None = None
    """HOST:PORT where a serving pod reaches the cache of its node, with a bucket; null: there is none."""
    images: ImageSettings | None = None
    """OCI images of the artefacts, from which serving pods read, see docs/distribution.md; null: there are none."""
    gc: CollectionSettings = CollectionSettings()
    """Removal of what nothing needs, see docs/collection.md."""


class FleetSettings(_Document):
    """How models move to new runtime images and edited AcceleratorClasses."""

    limit: Annotated[int, Field(ge=1, le=1000)] = 2
    """Models that are prepared, built and rolled out with them at the same time."""
    max_failures: Annotated[int, Field(ge=1, le=100_000)] = 3
    """Models that do not run right with them after which no further one moves."""
    paused: bool = False
    """No further model moves; those that have begun go on."""


class JobSettings(JobTemplate):
    """Where Jobs run, and how many at the same time."""

    model_config = ConfigDict(extra="forbid")

    limit: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Jobs that prepare models and build engines at the same time; 0: any number. Others wait in order of creation, except those that rebuild what serves."""
    namespace_limit: Annotated[int, Field(ge=0, le=100_000)] = 0
    """The same in each namespace; 0: any number."""
    mesh_injection: bool = False
    """A service mesh may add its proxy to Jobs, which needs native sidecars, see docs/access.md; false: Jobs have the labels and annotations that prevent it."""

    def template(self) -> JobTemplate:
        """Return what all Jobs have in common."""
        own = JobTemplate.model_validate(self.model_dump(include=set(JobTemplate.model_fields)))
        return own if self.mesh_injection else merge_templates(WITHOUT_MESH, own)


class SettingsDocument(_Document):
    """The document; docs/reference/configuration.md shows its fields with the descriptions below them."""

    images: Annotated[Mapping[str, _Name], Field(min_length=1)]
    """Runtime image of each variant: cpu, openvino, gpu (backends cuda and tensorrt), rtx (tensorrt-rtx)."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """When the pods that the operator creates pull their images."""
    image_pull_secrets: tuple[_Name, ...] = ()
    """Names of Secrets, in the namespaces of the pods, with which images are pulled."""
    store: StoreSettings
    """Where the artefacts of every namespace with a model are."""
    openshift: bool = False
    """Pods name no user and no groups, so that OpenShift assigns them."""
    jobs: JobSettings = JobSettings()
    """Where all Jobs run: labels, annotations, nodeSelector, tolerations, affinity, runtimeClassName, priorityClassName; how many at the same time: limit, namespaceLimit; and meshInjection. A model's spec.build.podTemplate adds to it and wins."""
    refused_networks: tuple[Annotated[str, AfterValidator(_is_network)], ...] = ()
    """Networks that sources may not be in, such as 10.0.0.0/8, see docs/security.md; link-local ones and metadata services are always refused."""
    fleet: FleetSettings = FleetSettings()
    """How models move to new runtime images, see docs/fleet.md."""
    propose_classes: bool = True
    """Propose an AcceleratorClass for each kind of GPU that nodes are labelled with."""
    product_labels: tuple[_NodeLabel, ...] = ()
    """Labels whose value names the NVIDIA GPU product of a node, beside those of GPU Feature Discovery, see docs/accelerators.md."""
    deployment: _Name | None = None
    """The operator's own Deployment, owner of what is created in its namespace; also the name of the Lease, else enginewright."""
    watch_namespaces: tuple[_Name, ...] = ()
    """Namespaces to watch besides the operator's own; empty: all."""
    log_level: Annotated[str, AfterValidator(check_level)] = "info"
    """debug, info, warning or error."""
    http_port: Annotated[int, Field(ge=1, le=65535)] = 8080
    """Port of probes and metrics."""


def load_settings(environment: Mapping[str, str] = os.environ) -> OperatorSettings:
    """Return the settings of this process. Raises BadSettings."""
    namespace = environment.get(NAMESPACE_VARIABLE)
    if not namespace:
        raise BadSettings(
            f"{NAMESPACE_VARIABLE} is not set: it names the namespace that the operator runs in"
            " (from fieldRef metadata.namespace in a pod)"
        )
    text = environment.get(CONFIG_VARIABLE)
    if not text:
        raise BadSettings(
            f"{CONFIG_VARIABLE} is not set: it holds the operator's settings as one JSON document"
            " (the chart writes it; docs/reference/configuration.md describes it)"
        )
    try:
        read = SettingsDocument.model_validate_json(text)
    except ValidationError as error:
        raise BadSettings(f"{CONFIG_VARIABLE} cannot be used: {summary(error)}") from None
    images = read.store.images
    return OperatorSettings(
        config=Config(
            namespace=namespace,
            images=dict(read.images),
            image_pull_policy=read.image_pull_policy,
            image_pull_secrets=read.image_pull_secrets,
            store=StoreConfig(
                claim=read.store.claim,
                size=read.store.size,
                access_mode=read.store.access_mode,
                storage_class=read.store.storage_class or None,
                bucket=_bucket(read.store.bucket),
                node_cache=read.store.node_cache,
                images=ImageRepository(images.repository, images.secret_ref) if images else None,
                gc=_collection(read.store.gc, is_shared=read.store.bucket is not None),
            ),
            openshift=read.openshift,
            jobs=read.jobs.template(),
            job_limits=JobLimits(read.jobs.limit, read.jobs.namespace_limit),
            propose_classes=read.propose_classes,
            product_labels=read.product_labels,
            fleet=FleetConfig(**read.fleet.model_dump()),
            refused_networks=read.refused_networks,
        ),
        log_level=read.log_level,
        http_port=read.http_port,
        deployment=read.deployment,
        # Its own too: Jobs that probe images run there.
        namespaces=frozenset({*read.watch_namespaces, namespace})
        if read.watch_namespaces
        else None,
    )


def _collection(read: CollectionSettings, *, is_shared: bool) -> CollectionConfig:
    return CollectionConfig(
        enabled=read.enabled,
        interval=long_duration(read.interval),
        unused_for=long_duration(read.unused_for) or None,
        max_size=quantity(read.max_size) if read.max_size else None,
        dry_run=is_shared if read.dry_run is None else read.dry_run,
    )


def _bucket(read: BucketSettings | None) -> StoreBucket | None:
    if read is None:
        return None
    return StoreBucket(uri=read.uri, secret=read.secret_ref, account=read.service_account_name)
