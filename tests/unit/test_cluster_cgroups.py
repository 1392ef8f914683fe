"""cgroups of v2, on plain folders: the machine of a test run may have v1 only (tests/cluster is real)."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from driver import cgroups
from driver.errors import ClusterError


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cgroups, "_ROOT", tmp_path)
    for folder in (tmp_path, tmp_path / "ew-x-1"):
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.controllers").write_text("cpu misc memory pids\n")
    return tmp_path


def _refuse(monkeypatch: pytest.MonkeyPatch, controller: str) -> list[str]:
    """Let writes of one controller fail as the kernel's do; returns what was written."""
    written: list[str] = []
    original = Path.write_text

    def write_text(path: Path, text: str, *arguments: Any, **options: Any) -> int:
        if text == f"+{controller}":
            raise OSError(errno.EBUSY, "Device or resource busy")
        written.append(text)
        return original(path, text, *arguments, **options)

    monkeypatch.setattr(Path, "write_text", write_text)
    return written


def test_hands_every_controller_on(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = _refuse(monkeypatch, "none")
    cgroups.create("ew-x-1")
    assert written == ["+cpu", "+misc", "+memory", "+pids"] * 2


def test_optional_controller_may_be_missing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = _refuse(monkeypatch, "misc")
    cgroups.create("ew-x-1")
    assert "+pids" in written


def test_refusal_is_reported(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _refuse(monkeypatch, "memory")
    with pytest.raises(ClusterError, match="cannot delegate the cgroup controller memory"):
        cgroups.create("ew-x-1")


def test_finds_the_cgroups_of_one_cluster_only(root: Path) -> None:
    for name in ("ew-x-2", "ew-xy-1", "ew-x", "ew-x-a"):
        (root / name).mkdir()
    assert {path.name for path in cgroups.existing("ew-x")} == {"ew-x-1", "ew-x-2"}
    assert [path.name for path in cgroups.existing("ew-x-1", exact=True)] == ["ew-x-1"]


def test_removed_cgroup_ends_no_search(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = root / "ew-x-1"
    for name, pid in (("kept", 1), ("removed", 2)):
        (top / name).mkdir()
        (top / name / "cgroup.procs").write_text(f"{pid}\n")
    original = os.scandir

    def scandir(path: Any) -> Any:
        if Path(path).name == "removed":
            (Path(path) / "cgroup.procs").unlink()
            Path(path).rmdir()
        return original(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert cgroups.pids(top) == {1}
