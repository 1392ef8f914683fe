"""What all our pods have in common: the restricted Pod Security Standard and fixed defaults."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from enginewright_contract.task import task_variables

USER: Final = 65532  # the images' own

CONTAINER_SECURITY: Final = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
POD_SECURITY: Final = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
_IDS: Final = ("runAsUser", "runAsGroup", "fsGroup")
TMP_VOLUME: Final = {"name": "tmp", "emptyDir": {}}
TMP_MOUNT: Final = {"name": "tmp", "mountPath": "/tmp"}  # noqa: S108 - the container's own


def pod_security(own: Mapping[str, Any], *, assigned_ids: bool) -> dict[str, Any]:
    """Return the securityContext of a pod; with `assigned_ids` the cluster assigns user and groups."""
    left_out = _IDS if assigned_ids else ()
    defaults = {name: value for name, value in POD_SECURITY.items() if name not in left_out}
    return {**defaults, **own}


def container(
    name: str,
    image: str,
    command: Iterable[str],
    *,
    pull_policy: str,
    task: str | None = None,
    mounts: Iterable[dict[str, Any]] = (),
    resources: dict[str, Any] | None = None,
    env: Iterable[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return a container that runs one command of the runtime image on one task (JSON)."""
    built: dict[str, Any] = {
        "name": name,
        "image": image,
        "imagePullPolicy": pull_policy,
        "command": list(command),
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [TMP_MOUNT, *mounts],
        "terminationMessagePolicy": "File",
    }
    if task is not None:
        ours = [{"name": key, "value": part} for key, part in task_variables(task).items()]
        built["env"] = [*ours, *env]
    if resources:
        built["resources"] = resources
    return built


def pull_secrets(names: Iterable[str]) -> list[dict[str, str]]:
    """Return references to image pull secrets, each once, in order."""
    return [{"name": name} for name in dict.fromkeys(names)]
