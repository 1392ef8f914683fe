"""What all Jobs of ours have in common: stages as init containers, and what their exit codes mean."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from enginewright.contract.reasons import ExitCode
from enginewright.manifests.pods import POD_SECURITY, pull_secrets

RETRIES: Final = 2  # of the pod, by the Job controller, for what can pass
KEPT_SECONDS: Final = 24 * 3600  # for people to look at; the outcome is in a status


def stages_job(
    metadata: dict[str, Any],
    stages: list[dict[str, Any]],
    volumes: list[dict[str, Any]],
    *,
    secrets: Iterable[str],
    spec: Mapping[str, Any],
    pod: Mapping[str, Any],
) -> dict[str, Any]:
    """Return a Job whose pod runs `stages` (containers) in order; `spec` and `pod` add to both specs."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "backoffLimit": RETRIES,
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {
                "rules": [
                    {
                        "action": "Ignore",  # the node's trouble, not the model's
                        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                    },
                    {
                        "action": "FailJob",
                        "onExitCodes": {"operator": "In", "values": [int(ExitCode.PERMANENT)]},
                    },
                ]
            },
            "template": {
                "metadata": {"labels": metadata["labels"]},
                "spec": {
                    "restartPolicy": "Never",
                    "automountServiceAccountToken": False,  # `pod` may know better
                    "enableServiceLinks": False,
                    "securityContext": POD_SECURITY,
                    "imagePullSecrets": pull_secrets(secrets),
                    "initContainers": stages[:-1],
                    "containers": stages[-1:],
                    "volumes": volumes,
                    **pod,
                },
            },
            **spec,
        },
    }
