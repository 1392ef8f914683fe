"""What the machine must offer, and how a build is found or made room for."""

import os
import socket
from pathlib import Path

import pytest
from driver import build, machine
from driver.errors import ClusterError


def test_too_little_disk_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "STATE_ROOT", tmp_path / "not" / "yet")
    monkeypatch.setattr(machine, "MINIMUM_DISK_GIB", 10**6)
    with pytest.raises(ClusterError, match="GiB of disk free, the cluster needs 1000000"):
        machine.require_resources()
    assert not (tmp_path / "not").exists()


def test_too_little_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "MINIMUM_DISK_GIB", 0)
    monkeypatch.setattr(machine, "MINIMUM_MEMORY_GIB", 10**6)
    with pytest.raises(ClusterError, match="memory are available, the cluster needs 1000000"):
        machine.require_resources()


def test_a_user_without_rights_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ClusterError, match="needs root; run it with sudo"):
        machine.require_linux_root()


def test_another_system_gets_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    with pytest.raises(ClusterError, match="CONTEXT="):
        machine.require_linux_root()


def test_a_taken_port_is_refused_and_a_free_one_found() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        taken = listener.getsockname()[1]
        with pytest.raises(ClusterError, match=f"port {taken} on 127.0.0.1 is in use"):
            machine.require_port(taken)
        machine.require_port(machine.free_port())


def _go(folder: Path, version: str) -> str:
    go = folder / "go"
    go.write_text(f"#!/bin/sh\necho go version {version} linux/amd64\n")
    go.chmod(0o755)
    return str(go)


@pytest.mark.parametrize(
    ("version", "enough"),
    [("go1.26.4", True), ("go1.27", True), ("go1.26.3", False), ("go1.21.13", False)],
)
def test_only_a_go_that_is_new_enough_is_taken(
    version: str, enough: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = _go(tmp_path, version)
    (tmp_path / "go.mod").write_text("module x\n\ngo 1.26.4\n")
    monkeypatch.setattr(build, "SOURCE", tmp_path)
    monkeypatch.setattr("shutil.which", lambda _: go)
    monkeypatch.setattr("os.path.exists", lambda path: path == go)
    monkeypatch.setattr(build, "_install_go", lambda: "packaged")
    assert build.find_go() == (go if enough else "packaged")


def _make_build(folder: Path, age: int) -> Path:
    folder.mkdir(parents=True)
    for program in build.PROGRAMS:
        (folder / program).touch()
    os.utime(folder, (1000 - age, 1000 - age))
    return folder


def test_old_builds_go_unless_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "STATE_ROOT", tmp_path / "state")
    builds = [_make_build(tmp_path / "cache" / str(age), age) for age in range(6)]
    (tmp_path / "cache" / "other").mkdir()
    tools = tmp_path / "state" / "x" / "bin"
    tools.mkdir(parents=True)
    (tools / "kubectl").symlink_to(builds[5] / "kube")
    build._prune(builds[0])
    left = {path.name for path in (tmp_path / "cache").iterdir()}
    assert left == {"0", "1", "2", "5", "other"}
