"""The Job that asks a runtime image what it holds."""

from collections.abc import Iterable
from typing import Any

from enginewright.contract.keys import sha256_text
from enginewright.manifests.labels import COMPONENT, IMAGE, MANAGED_BY, OPERATOR
from enginewright.manifests.pods import POD_SECURITY, TMP_VOLUME, container, pull_secrets


def image_hash(image: str) -> str:
    """Return the label value by which a probe is found again."""
    return sha256_text(image)[:16]


def probe_job(
    namespace: str, image: str, *, pull_policy: str, image_pull_secrets: Iterable[str]
) -> dict[str, Any]:
    """Return the Job; its pod's termination message is `contract.images.ImageFacts`."""
    digest = image_hash(image)
    labels = {MANAGED_BY: OPERATOR, COMPONENT: "probe", IMAGE: digest}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"probe-{digest}", "namespace": namespace, "labels": labels},
        "spec": {
            "backoffLimit": 1,
            "activeDeadlineSeconds": 600,
            "ttlSecondsAfterFinished": 3600,
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "restartPolicy": "Never",
                    "automountServiceAccountToken": False,
                    "enableServiceLinks": False,
                    "securityContext": POD_SECURITY,
                    "imagePullSecrets": pull_secrets(image_pull_secrets),
                    "containers": [
                        container(
                            "probe",
                            image,
                            ("enginewright-runtime", "probe"),
                            pull_policy=pull_policy,
                            resources={"requests": {"cpu": "100m", "memory": "128Mi"}},
                        )
                    ],
                    "volumes": [TMP_VOLUME],
                },
            },
        },
    }
