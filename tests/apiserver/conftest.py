"""A real kube-apiserver and etcd with our CRDs, once per session; a namespace for each test."""

import itertools
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.apiserver.world import World, set_up
from tests.e2e.harness import REPOSITORY, Namespace, run

_numbers = itertools.count(1)


@contextmanager
def control_plane(name: str, *, crds: bool) -> Iterator[Path]:
    """Start a separate control plane, yield its kubeconfig, and remove it at the end."""
    cluster = [str(REPOSITORY / "hack/cluster/cluster"), "--name", name]
    run([*cluster, "down"])  # a killed run with the same pid may have left one
    run([*cluster, "up", "--control-plane-only"], timeout=1500)
    try:
        (path,) = re.findall(r"KUBECONFIG=(\S+)", run([*cluster, "env"]))
        if crds:
            admin = Namespace("default", Path(path))
            admin.kubectl("apply", "--server-side", "--filename", str(REPOSITORY / "crds"))
            admin.wait_established()
        yield Path(path)
    finally:
        run([*cluster, "down"])


def create_namespace(kubeconfig: Path) -> Namespace:
    namespace = Namespace(f"test-{next(_numbers)}", kubeconfig)
    metadata = {"name": namespace.name}
    namespace.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    return namespace


@pytest.fixture(scope="session")
def helm_kubeconfig() -> Iterator[Path]:
    """An API server for Helm, without our CRDs until a test has installed the chart."""
    with control_plane(f"helm{os.getpid()}", crds=False) as kubeconfig:
        yield kubeconfig


@pytest.fixture(scope="session")
def bare_kubeconfig() -> Iterator[Path]:
    """An API server that has never had our CRDs: it may take minutes to finish deleting one."""
    with control_plane(f"bare{os.getpid()}", crds=False) as kubeconfig:
        yield kubeconfig


@pytest.fixture(scope="session")
def kubeconfig() -> Iterator[Path]:
    """An API server with the CRDs in `crds/`."""
    with control_plane(f"api{os.getpid()}", crds=True) as kubeconfig:
        yield kubeconfig


@pytest.fixture(scope="session")
def new_namespace(kubeconfig: Path) -> Callable[[], Namespace]:
    """A function that creates namespaces."""
    return lambda: create_namespace(kubeconfig)


@pytest.fixture
def namespace(kubeconfig: Path) -> Namespace:
    """A new namespace for this test."""
    return create_namespace(kubeconfig)


@pytest.fixture
def world(new_namespace: Callable[[], Namespace], tmp_path: Path) -> Iterator[World]:
    """A cluster with one node and class `cpu`."""
    with set_up(World, new_namespace, tmp_path) as world:
        yield world
