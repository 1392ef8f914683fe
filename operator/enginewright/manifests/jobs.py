"""What all our Jobs have in common: stages as init containers, and the handling of exit codes."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from enginewright_contract.reasons import ExitCode

from enginewright.api.pods import JobTemplate
from enginewright.manifests.artifact_images import ImageRepository
from enginewright.manifests.job_limits import KEPT_SECONDS, POD_RETRIES
from enginewright.manifests.labels import PLACEMENT
from enginewright.manifests.placement import placement_hash, pod_metadata, pod_placement
from enginewright.manifests.pods import TMP_VOLUME, pod_security, pull_secrets
from enginewright.manifests.store_access import StoreAccess


def stages_job(
    metadata: dict[str, Any],
    stages: list[dict[str, Any]],
    *,
    store: StoreAccess | None = None,
    volumes: Iterable[Mapping[str, Any]] = (),
    images: ImageRepository | None = None,
    account: str | None = None,
    identity: Mapping[str, str] = MappingProxyType({}),
    secrets: Iterable[str],
    template: JobTemplate,
    assigned_ids: bool,
    architecture: str = "",
    pod: Mapping[str, Any],
) -> dict[str, Any]:
    """Return a Job whose pod runs `stages` (containers) in order, which use the `store` and the folder `work`.

    `identity` are labels of the pod. `pod` is added to the pod's spec, and its placement takes precedence over the template's. `architecture`
    is required of nodes unless other fields decide it.
    """
    placement = placement_hash(template)
    own = pod_metadata(template, metadata["labels"])
    named = store.account(account) if store else None
    annotations = {**template.annotations, **({PLACEMENT: placement} if placement else {})}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            **metadata,
            "labels": {**template.labels, **metadata["labels"]},
            **({"annotations": annotations} if annotations else {}),
        },
        "spec": {
            "backoffLimit": POD_RETRIES,
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {
                "rules": [
                    {
                        "action": "Ignore",  # a disruption of the node, not a failure of the stage
                        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                    },
                    {
                        "action": "FailJob",
                        "onExitCodes": {"operator": "In", "values": [int(ExitCode.PERMANENT)]},
                    },
                ]
            },
            "template": {
                "metadata": {
                    **own,
                    "labels": {**(store.labels() if store else {}), **identity, **own["labels"]},
                },
                "spec": {
                    "restartPolicy": "Never",
                    "automountServiceAccountToken": False,  # `pod` may override it
                    "enableServiceLinks": False,
                    "securityContext": pod_security(
                        template.security_context.manifest(), assigned_ids=assigned_ids
                    ),
                    "imagePullSecrets": pull_secrets(
                        [
                            *secrets,
                            *(secret.name for secret in template.image_pull_secrets),
                        ]
                    ),
                    "initContainers": stages[:-1],
                    "containers": stages[-1:],
                    "volumes": [
                        TMP_VOLUME,
                        *([{"name": "work", "emptyDir": {}}, *store.volumes()] if store else ()),
                        *volumes,
                        *(images.volumes() if images else ()),
                    ],
                    **({"serviceAccountName": named} if named else {}),
                    **pod,
                    **pod_placement(template, pod, architecture),
                },
            },
        },
    }
