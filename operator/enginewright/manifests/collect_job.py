"""The Job that collects garbage in a namespace's store.

It belongs to nobody, since a bucket has no object in the cluster: it ends, and is removed, in time.
"""

from collections.abc import Iterable
from typing import Any, Final

from enginewright_contract.collection import COLLECT_STAGE, CollectTask
from enginewright_contract.task import WORK_PATH

from enginewright.api.pods import DEFAULT_JOB_TEMPLATE, JobTemplate
from enginewright.manifests.job_limits import COLLECTION_RESOURCES, COLLECTION_SECONDS
from enginewright.manifests.jobs import stages_job
from enginewright.manifests.labels import COMPONENT, MANAGED_BY, OPERATOR
from enginewright.manifests.pods import TMP_VOLUME, container
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
    template: JobTemplate = DEFAULT_JOB_TEMPLATE,
    assigned_ids: bool = False,
    architecture: str = "",
) -> dict[str, Any]:
    """Return the Job.

    Args:
        namespace: where it runs, whose store it is.
        task: what it does.
        image: runtime image.
        pull_policy: of the image.
        pull_secrets: names of Secrets for the image's registry.
        store: of the namespace.
        kept_seconds: for which it is kept after its end, as its annotation has the result.
        template: where it runs.
        assigned_ids: whether the cluster assigns user and groups.
        architecture: that the nodes must have; empty: any.
    """
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
    account = store.account(None)
    job = stages_job(
        {
            "name": task.job,
            "namespace": namespace,
            "labels": {MANAGED_BY: OPERATOR, COMPONENT: COLLECT},
        },
        [stage],
        [TMP_VOLUME, {"name": "work", "emptyDir": {}}, *store.volumes()],
        secrets=pull_secrets,
        template=template,
        assigned_ids=assigned_ids,
        architecture=architecture,
        pod={"serviceAccountName": account} if account else {},
    )
    job["spec"]["activeDeadlineSeconds"] = COLLECTION_SECONDS
    job["spec"]["ttlSecondsAfterFinished"] = min(round(kept_seconds), _LONGEST)
    metadata = job["spec"]["template"]["metadata"]
    metadata["labels"] = {**store.labels(), **metadata["labels"]}
    return job
