"""Clusters for these tests only, next to other clusters on the machine."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from driver import build, images

from tests.cluster.harness import Handle, traces


@pytest.fixture(scope="session", autouse=True)
def _require_root_and_apt() -> None:
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        pytest.skip("the local cluster needs root on a Debian machine")


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of an image that contains the test program."""
    folder = tmp_path_factory.mktemp("probe")
    subprocess.run(
        [build.find_go(), "build", "-o", folder / "probe", "main.go"],
        cwd=Path(__file__).with_name("probe"),
        env={**os.environ, "CGO_ENABLED": "0"},
        check=True,
        timeout=120,
    )
    images.archive_binary(folder / "probe", "localhost/test/probe:1", folder / "probe.tar")
    return folder / "probe.tar"


@pytest.fixture(scope="module")
def cluster(probe: Path) -> Iterator[Handle]:
    """Two nodes, one with GPUs, one with MIG slices of a GPU, and the test program's image."""
    handle = Handle("ewlife")
    handle.run("down")
    try:
        handle.run("up", "--nodes", "2", "--gpus", "1=l4:2", "--gpus", "2=a100-80gb/1g.10gb:7")
        handle.run("load", probe)
        yield handle
    finally:
        handle.run("down")
    assert traces("ewlife") == []


@pytest.fixture
def crashing() -> Iterator[Handle]:
    """A cluster whose start tests interrupt."""
    handle = Handle("ewcrash")
    handle.run("down")
    yield handle
    handle.run("down")
    assert traces("ewcrash") == []
