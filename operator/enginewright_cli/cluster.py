"""The cluster for the commands: one client, and a message for every failure."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import yaml
from enginewright.api.base import ApiModel
from enginewright.kube.api import JsonObject, KubeApi
from enginewright.kube.client import KubeClient
from enginewright.kube.connection import ConnectionNotConfigured, load_connection
from enginewright.kube.errors import Forbidden, KubeError, NotFound, Transient
from enginewright.kube.metrics import RestMetrics
from enginewright.kube.resources import Resource
from enginewright_contract.base import first_problem
from prometheus_client import CollectorRegistry
from pydantic import ValidationError

from enginewright_cli.reporting import CommandError

_SERVICE_ACCOUNT_NAMESPACE: Final = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
_DEFAULT: Final = "default"
_SHOWN: Final = 10  # names of existing objects

Read = TypeVar("Read")
Typed = TypeVar("Typed", bound=ApiModel)


class ClusterError(CommandError):
    """The cluster cannot be read; the message states the cause and the remedy."""


class NoCluster(ClusterError):  # noqa: N818 - not an error in itself
    """There is no kubeconfig, and this process does not run in a pod."""


def query(read: Callable[[KubeClient], Awaitable[Read]], context: str | None = None) -> Read:
    """Run `read` against the API server of KUBECONFIG, this pod or a context. Raises NoCluster and ClusterError."""
    logging.getLogger("enginewright.kube").setLevel(logging.ERROR)  # hide warnings about retries

    async def connect_and_read() -> Read:
        load = partial(load_connection, context)
        client = KubeClient(load, RestMetrics(CollectorRegistry()))
        try:
            return await read(client)
        finally:
            await client.close()

    try:
        return asyncio.run(connect_and_read())
    except ConnectionNotConfigured as error:
        raise NoCluster(str(error)) from error
    except NotFound as error:
        raise ClusterError(
            f"Enginewright is not installed in the cluster: {error.message}; install its chart"
        ) from error
    except Forbidden as error:
        raise ClusterError(f"the cluster denies access: {error.message}") from error
    except Transient as error:
        raise ClusterError(
            f"the API server does not respond: {error.message};"
            " check that KUBECONFIG points to the right cluster"
        ) from error
    except KubeError as error:
        raise ClusterError(f"the API server rejects the request: {error.message}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ClusterError(
            "the response is not from a Kubernetes API server;"
            " check that KUBECONFIG points to the right cluster"
        ) from error


async def read_object(
    api: KubeApi, resource: Resource, model: type[Typed], namespace: str | None, name: str
) -> tuple[JsonObject, Typed]:
    """Return an object, as the API server sends it and parsed. Raises ClusterError and KubeError."""
    try:
        obj = await api.get(resource, namespace, name)
    except NotFound:
        listing = await api.list(resource, namespace)
        names = sorted(str(item["metadata"]["name"]) for item in listing.items)
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        existing = f"existing: {', '.join(names[:_SHOWN])}{more}" if names else "there are none"
        where = f" in namespace {namespace}" if namespace else ""
        raise ClusterError(f"{resource.kind} {name} not found{where}; {existing}") from None
    try:
        return obj, model.model_validate(obj)
    except ValidationError as error:
        raise ClusterError(
            f"the cluster's {resource.kind} {name} cannot be read: {first_problem(error)};"
            " its CRD belongs to another version of Enginewright"
        ) from error


def current_namespace(context: str | None = None) -> str:
    """Return the namespace of a context of the kubeconfig, else of its current one, or of this pod."""
    from kubernetes.aio.config import (  # noqa: PLC0415 - heavy
        ConfigException,
        list_kube_config_contexts,
    )

    paths = os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")
    if any(os.path.isfile(path) for path in paths.split(os.pathsep) if path):
        try:
            if context is not None:
                settings = _context(paths, context)
            else:
                settings = list_kube_config_contexts(paths)[1]["context"]
            return str(settings.get("namespace") or _DEFAULT)
        except (
            ConfigException,
            yaml.YAMLError,
            OSError,
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
        ):
            return _DEFAULT  # connecting will report what is invalid
    try:
        with open(_SERVICE_ACCOUNT_NAMESPACE, encoding="utf-8") as file:
            return file.read().strip() or _DEFAULT
    except OSError:
        return _DEFAULT


def _context(paths: str, name: str) -> Mapping[str, Any]:
    """Return a context of kubeconfig files, or raise KeyError; the client's own function requires a current context."""
    for path in filter(os.path.isfile, paths.split(os.pathsep)):
        with open(path, encoding="utf-8") as file:
            document = yaml.safe_load(file) or {}
        for item in document.get("contexts") or ():
            if item["name"] == name:
                settings: Mapping[str, Any] = item["context"]
                return settings
    raise KeyError(name)
