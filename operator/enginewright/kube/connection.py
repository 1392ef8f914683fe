"""Address of the API server and credentials, for our client and kopf's watches; loaded again once they are refused."""

import os
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import yaml
from kubernetes.aio import config as kubernetes_config
from kubernetes.aio.client.configuration import Configuration

_IN_CLUSTER_VARIABLE: Final = "KUBERNETES_SERVICE_HOST"
_DEFAULT_PATH: Final = os.path.expanduser("~/.kube/config")


class ConnectionNotConfigured(Exception):  # noqa: N818 - read as a sentence where it is raised
    """Neither a service account nor a valid kubeconfig; the message says which was tried."""


def inside_cluster() -> bool:
    """Return whether this process uses its pod's service account, so can reach other pods directly."""
    return not os.environ.get("KUBECONFIG") and bool(os.environ.get(_IN_CLUSTER_VARIABLE))


async def load_connection(context: str | None = None) -> Configuration:
    """Return host, TLS files and credentials.

    From `KUBECONFIG` if it is set, else from the pod's service account, else from `~/.kube/config`;
    with a context, from a kubeconfig only. Raises ConnectionNotConfigured.
    """
    configuration = Configuration()
    if context is None and inside_cluster():
        try:
            kubernetes_config.load_incluster_config(client_configuration=configuration)
        except (kubernetes_config.ConfigException, OSError) as error:
            raise ConnectionNotConfigured(
                f"the pod's service account cannot be used: {error};"
                " set automountServiceAccountToken: true on the pod"
            ) from error
        return _with_proxy(configuration)
    path = os.environ.get("KUBECONFIG") or _DEFAULT_PATH
    if not any(map(os.path.isfile, path.split(os.pathsep))):
        raise ConnectionNotConfigured(
            f"kubeconfig {path} does not exist; set KUBECONFIG to a valid file or run inside a cluster"
        )
    try:
        await kubernetes_config.load_kube_config(
            config_file=path,
            context=context,
            client_configuration=configuration,
            persist_config=False,
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
            " set KUBECONFIG to a valid file or run inside a cluster"
        ) from error
    return _with_proxy(configuration)


def _with_proxy(configuration: Configuration) -> Configuration:
    """Take the environment's proxy once, unless a kubeconfig names one.

    Else aiohttp looks for it, and reads ~/.netrc, in a thread at each request, and kopf not at all.
    """
    address = urlsplit(configuration.host)
    if configuration.proxy is None and not proxy_bypass(address.hostname or ""):
        configuration.proxy = getproxies().get(address.scheme)
    configuration.client_session_kwargs = {"trust_env": False}
    return configuration


async def authorization_of(configuration: Configuration) -> str | None:
    """Return the value of the Authorization header; a projected token's file is read every time."""
    value: str | None = await configuration.get_api_key_with_prefix(
        "BearerToken", alias="authorization"
    )
    return value
