"""The Job that collects garbage in a namespace's store. It has no owner: a bucket has no object in the cluster."""

from collections.abc import Iterable
from typing import Any, Final

from enginewright_contract.collection import COLLECT_STAGE, CollectTask
from enginewright_contract.task import WORK_PATH

from enginewright.api.pods import JobTemplate
from enginewright.manifests.job_limits import COLLECTION_RESOURCES, COLLECTION_SECONDS
from enginewright.manifests.jobs import stages_job
from enginewright.manifests.labels import COMPONENT, MANAGED_BY, OPERATOR
from enginewright.manifests.pods import container
from enginewright.manifests.store_access import StoreAccess

COLLECT: Final = "collect"  # component
_LONGEST: Final = (1 << 31) - 1  # of an int32


def collect_job(
    namespace: str,
    task: CollectTask,
    *,
    image: str,
    pull_policy: str,
    pull_secrets: Iterable[str],
    store: StoreAccess,
    kept_seconds: float,
    template: JobTemplate,
    assigned_ids: bool,
    architecture: str,
) -> dict[str, Any]:
    """Return the Job; it is kept for `kept_seconds` after its end, because its annotation has the result."""
    stage = container(
        COLLECT_STAGE,
        image,
        ("enginewright-runtime", "stage", COLLECT_STAGE),
        pull_policy=pull_policy,
        task=task.to_json(),
        mounts=[{"name": "work", "mountPath": WORK_PATH}, *store.mounts()],
        resources=COLLECTION_RESOURCES,
        env=store.env(),
    )
    job = stages_job(
        {
            "name": task.job,
            "namespace": namespace,
            "labels": {MANAGED_BY: OPERATOR, COMPONENT: COLLECT},
        },
        [stage],
        store=store,
        secrets=pull_secrets,
        template=template,
        assigned_ids=assigned_ids,
        architecture=architecture,
        pod={},
    )
    job["spec"]["activeDeadlineSeconds"] = COLLECTION_SECONDS
    job["spec"]["ttlSecondsAfterFinished"] = min(round(kept_seconds), _LONGEST)
    return job
