"""Each peer has a separate environment, from a lock file with hashes, created when first needed.

Those of Python are virtual environments; the native ones are programs, which cargo builds.

`make venv` and the tests do not need them: only the benchmark compares with other servers.
"""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

PEERS: Final = Path(__file__).with_name("peers")
_HOME: Final = Path(__file__).resolve().parents[2] / "build/bench/peers"
_LIMIT_SECONDS: Final = 900
PACKAGES: Final = {  # by environment
    "triton": "nvidia-pytriton",
    "kserve": "kserve",
    "mlserver": "mlserver",
    "bentoml": "bentoml",
    "litserve": "litserve",
}
NATIVE: Final = "native"
_CRATES: Final = ("furnace-server", "hyper", "ort")


class AbsentError(Exception):
    """A peer cannot be installed on this machine."""


def python_of(peer: str) -> Path:
    """Return the interpreter of a peer's environment."""
    return _HOME / peer / "bin/python"


def site_packages_of(peer: str) -> Path:
    """Return the folder of a peer's packages."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return _HOME / peer / "lib" / version / "site-packages"


def read_locked_version(peer: str, package: str) -> str:
    """Return the version of a package in a peer's lock file."""
    lines = (PEERS / f"{peer}.txt").read_text().splitlines()
    return next(
        line.partition("==")[2].split()[0] for line in lines if line.startswith(f"{package}==")
    )


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
        _create(peer)


def _build() -> None:
    """Build the native peers, as far as they have changed."""
    if shutil.which("cargo") is None:
        raise AbsentError("cargo is missing; install Rust")
    print("… building the native peers", file=sys.stderr)
    manifest, target = PEERS / NATIVE / "Cargo.toml", _HOME / NATIVE
    options = ("--release", "--locked", "--quiet")
    _run("cargo", "build", *options, f"--manifest-path={manifest}", f"--target-dir={target}")


def _create(peer: str) -> None:
    folder, lock = _HOME / peer, PEERS / f"{peer}.txt"
    installed = folder / ".locked"
    if installed.exists() and installed.read_bytes() == lock.read_bytes():
        return
    print(f"… installing {peer}", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    _run(sys.executable, "-m", "venv", str(folder))
    pip = (str(python_of(peer)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    _run(*pip, "--require-hashes", "--no-deps", "--only-binary=:all:", "-r", str(lock))
    if peer == "triton":
        _install_stub(site_packages_of(peer) / "pytriton/tritonserver")
    shutil.copyfile(lock, installed)


def _install_stub(server: Path) -> None:
    """Install the Python backend's interpreter for this Python, as pytriton does when it starts."""
    name = "triton_python_backend_stub"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    source = server / "python_backend_stubs" / version / name
    if not source.exists():
        raise AbsentError(f"the wheel has no {name} for Python {version}")
    shutil.copy(source, server / "backends/python" / name)


def _run(*command: str) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_LIMIT_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise AbsentError(f"installing took more than {_LIMIT_SECONDS} s") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise AbsentError(lines[-1])
