"""Reading from the cluster, for commands: one client, and a message for every failure."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from enginewright.kube.client import KubeClient
from enginewright.kube.connection import ConnectionNotConfigured, load_connection
from enginewright.kube.errors import Forbidden, KubeError, NotFound, Transient
from enginewright.kube.metrics import RestMetrics
from prometheus_client import CollectorRegistry
from yaml import YAMLError

_SERVICE_ACCOUNT_NAMESPACE: Final = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
_DEFAULT: Final = "default"

Read = TypeVar("Read")


class ClusterError(Exception):
    """The cluster cannot be asked; says why and what to do."""


class NoCluster(ClusterError):  # noqa: N818 - nothing is wrong
    """There is no kubeconfig, and this is no pod."""


def ask(read: Callable[[KubeClient], Awaitable[Read]]) -> Read:
    """Run one conversation with the API server that KUBECONFIG, or the pod, names.

    Raises:
        NoCluster: none is named.
        ClusterError: it does not answer, or not so that it is of use.
    """
    logging.getLogger("enginewright.kube").setLevel(logging.ERROR)  # retries are of no interest

    async def talk() -> Read:
        client = KubeClient(load_connection, RestMetrics(CollectorRegistry()))
        try:
            return await read(client)
        finally:
            await client.close()

    try:
        return asyncio.run(talk())
    except ConnectionNotConfigured as error:
        raise NoCluster(str(error)) from error
    except NotFound as error:
        raise ClusterError(
            f"the cluster has no Enginewright: {error.message}; install its chart"
        ) from error
    except Forbidden as error:
        raise ClusterError(f"the cluster does not allow it: {error.message}") from error
    except Transient as error:
        raise ClusterError(
            f"the cluster does not answer: {error.message};"
            " check that KUBECONFIG names the right one"
        ) from error
    except KubeError as error:
        raise ClusterError(f"the cluster refuses: {error.message}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ClusterError(
            "what answers is no API server of Kubernetes; check that KUBECONFIG names the right one"
        ) from error


def current_namespace() -> str:
    """Return the namespace of the kubeconfig's current context, or of this pod."""
    from kubernetes.aio.config import (  # noqa: PLC0415 - heavy
        ConfigException,
        list_kube_config_contexts,
    )

    paths = os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")
    if any(os.path.isfile(path) for path in paths.split(os.pathsep) if path):
        try:
            _, active = list_kube_config_contexts(paths)
            return str(active["context"].get("namespace") or _DEFAULT)
        except (ConfigException, YAMLError, OSError, KeyError, TypeError, ValueError):
            return _DEFAULT  # connecting will say what is wrong with it
    try:
        with open(_SERVICE_ACCOUNT_NAMESPACE, encoding="utf-8") as file:
            return file.read().strip() or _DEFAULT
    except OSError:
        return _DEFAULT
