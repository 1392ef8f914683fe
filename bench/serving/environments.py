"""The environments of the servers that the benchmark compares with: Python's, and native ones, which cargo builds."""

import shutil
import sys
import tomllib
from pathlib import Path
from typing import Final

from bench.environments import AbsentError, Environments, run

PEERS: Final = Path(__file__).with_name("peers")
_HOME: Final = Path(__file__).resolve().parents[2] / "build/bench/peers"
_ENVIRONMENTS: Final = Environments(PEERS, _HOME)
PACKAGES: Final = {  # by environment
    "triton": "nvidia-pytriton",
    "kserve": "kserve",
    "mlserver": "mlserver",
    "bentoml": "bentoml",
    "litserve": "litserve",
}
NATIVE: Final = "native"
_CRATES: Final = ("furnace-server", "hyper", "ort")

python_of = _ENVIRONMENTS.python_of
site_packages_of = _ENVIRONMENTS.site_packages_of
read_locked_version = _ENVIRONMENTS.read_locked_version


def program_of(name: str) -> Path:
    """Return a native peer."""
    return _HOME / NATIVE / "release" / name


def read_locked_crates() -> dict[str, str]:
    """Return the versions of the native peers' crates."""
    lock = tomllib.loads((PEERS / NATIVE / "Cargo.lock").read_text())
    versions = {package["name"]: package["version"] for package in lock["package"]}
    return {crate: versions[crate] for crate in _CRATES}


def install(peer: str) -> None:
    """Create a peer's environment unless it is up to date.

    Raises:
        AbsentError: It cannot be created; with the end of the output of pip or cargo.
    """
    if peer == NATIVE:
        _build()
    else:
        _ENVIRONMENTS.create(peer)
    if peer == "triton":
        _install_stub(site_packages_of(peer) / "pytriton/tritonserver")


def _build() -> None:
    """Build the native peers, as far as they have changed."""
    if shutil.which("cargo") is None:
        raise AbsentError("cargo is missing; install Rust")
    print("… building the native peers", file=sys.stderr)
    manifest, target = PEERS / NATIVE / "Cargo.toml", _HOME / NATIVE
    options = ("--release", "--locked", "--quiet")
    run("cargo", "build", *options, f"--manifest-path={manifest}", f"--target-dir={target}")


def _install_stub(server: Path) -> None:
    """Install the Python backend's interpreter for this Python, as pytriton does when it starts."""
    name = "triton_python_backend_stub"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    source = server / "python_backend_stubs" / version / name
    if not source.exists():
        raise AbsentError(f"the wheel has no {name} for Python {version}")
    shutil.copy(source, server / "backends/python" / name)
