"""The Job that probes what a runtime image contains."""

from collections.abc import Iterable
from typing import Any, Final

from enginewright_contract.keys import sha256_text

from enginewright.api.pods import DEFAULT_JOB_TEMPLATE, JobTemplate
from enginewright.manifests.job_limits import PROBE_RESOURCES, PROBE_SECONDS
from enginewright.manifests.jobs import stages_job
from enginewright.manifests.labels import COMPONENT, IMAGE, MANAGED_BY, OPERATOR
from enginewright.manifests.pods import container

PROBE: Final = "probe"


def image_hash(image: str) -> str:
    """Return the label value that identifies the probes of an image."""
    return sha256_text(image)[:16]


def probe_job_name(digest: str, attempt: int) -> str:
    """Return the name of the Job that probes an image for the `attempt`-th time (from 1)."""
    return f"{PROBE}-{digest}-{attempt}"


def probe_job(
    namespace: str,
    image: str,
    attempt: int,
    *,
    pull_policy: str,
    image_pull_secrets: Iterable[str],
    template: JobTemplate = DEFAULT_JOB_TEMPLATE,
    assigned_ids: bool = False,
) -> dict[str, Any]:
    """Return the Job; its pod's termination message is `contract.images.ImageFacts`."""
    digest = image_hash(image)
    probe = container(
        PROBE,
        image,
        ("enginewright-runtime", PROBE),
        pull_policy=pull_policy,
        resources=PROBE_RESOURCES,
    )
    return stages_job(
        {
            "name": probe_job_name(digest, attempt),
            "namespace": namespace,
            "labels": {MANAGED_BY: OPERATOR, COMPONENT: PROBE, IMAGE: digest},
        },
        [probe],
        secrets=image_pull_secrets,
        template=template,
        assigned_ids=assigned_ids,
        pod={"activeDeadlineSeconds": PROBE_SECONDS},
    )
