"""Where the API server is and who we are there: one answer for our client and for kopf's watches.

Loaded again whenever the server no longer accepts a token, because projected tokens, exec plugins
and kubeconfig files change under a running process.
"""

import os
from typing import Final

import yaml
from kubernetes.aio import config as kubernetes_config
from kubernetes.aio.client.configuration import Configuration

_IN_CLUSTER_VARIABLE: Final = "KUBERNETES_SERVICE_HOST"
_USUAL_PATH: Final = os.path.expanduser("~/.kube/config")


class ConnectionNotConfigured(Exception):  # noqa: N818 - read as a sentence where it is raised
    """Neither a service account nor a usable kubeconfig; the message says which was tried."""


def inside_cluster() -> bool:
    """Tell whether the connection is the pod's own, so that other pods can be reached directly."""
    return not os.environ.get("KUBECONFIG") and bool(os.environ.get(_IN_CLUSTER_VARIABLE))


async def load_connection() -> Configuration:
    """Return host, TLS files and credentials.

    `KUBECONFIG` wins where it is set, since somebody set it; else the pod's service account; else
    `~/.kube/config`. Raises ConnectionNotConfigured.
    """
    configuration = Configuration()
    if inside_cluster():
        try:
            kubernetes_config.load_incluster_config(client_configuration=configuration)
        except (kubernetes_config.ConfigException, OSError) as error:
            raise ConnectionNotConfigured(
                f"the pod's service account cannot be used: {error};"
                " set automountServiceAccountToken: true on the pod"
            ) from error
        return configuration
    path = os.environ.get("KUBECONFIG") or _USUAL_PATH
    if not _exists(path):
        raise ConnectionNotConfigured(
            f"there is no kubeconfig {path}; set KUBECONFIG to a working file or run inside a cluster"
        )
    try:
        await kubernetes_config.load_kube_config(
            config_file=path, client_configuration=configuration, persist_config=False
        )
    except (
        kubernetes_config.ConfigException,
        yaml.YAMLError,
        OSError,
        ValueError,
        TypeError,
    ) as error:
        raise ConnectionNotConfigured(
            f"kubeconfig {path} cannot be used: {error};"
            " set KUBECONFIG to a working file or run inside a cluster"
        ) from error
    return configuration


def _exists(path: str) -> bool:
    """Return whether a file of the list, which is separated as PATH is, exists."""
    return any(os.path.isfile(part) for part in path.split(os.pathsep) if part)


async def authorization_of(configuration: Configuration) -> str | None:
    """Return the Authorization header's value, read again from a projected token's file."""
    value: str | None = await configuration.get_api_key_with_prefix(
        "BearerToken", alias="authorization"
    )
    return value
