"""The store on a volume: whole or not there, one winner, nothing unchecked is read."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from enginewright_contract.manifest import ArtifactFile, Manifest
from enginewright_contract.reasons import Reason, exit_code
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.store import Store

from tests.support.preparing import Workplace
from tests.support.store_process import FILES, manifest, never_keep, publish
from tests.support.waiting import until
from tests.unit.test_store_volume import KEY, NAMES, artifact, content

DEADLINE_SECONDS = 60.0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    return tmp_path / "store"


def start(root: Path, folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.store_process", KEY, str(folder)],
        env=os.environ | {"ENGINEWRIGHT_ROOT": str(root.parent)},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_of_several_publishers_one_wins(root: Path, tmp_path: Path) -> None:
    processes = [start(root, content(tmp_path / f"p{i}", b"%d" % i)) for i in range(4)]
    cached = [process.communicate(timeout=DEADLINE_SECONDS)[0].strip() for process in processes]
    assert sorted(cached) == ["False", "True", "True", "True"]
    Store(root).read(KEY, tmp_path / "artifact")  # of one publisher: its digests match
    texts = {(tmp_path / "artifact" / name).read_bytes()[:1] for name in FILES}
    assert texts == {b"%d" % cached.index("False")}
    assert not list((root / "tmp").iterdir())


def test_a_publisher_killed_halfway_leaves_no_artifact(root: Path, tmp_path: Path) -> None:
    folder = content(tmp_path / "a")
    (folder / NAMES[2]).unlink()
    os.mkfifo(folder / NAMES[2])
    process = start(root, folder)
    with (folder / NAMES[2]).open("wb") as pipe:  # blocks until the publisher reads
        pipe.write(b"half")
        pipe.flush()
        left = root / "tmp"
        until((next(left.iterdir()) / FILES[2]).exists)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=DEADLINE_SECONDS)
    assert Store(root).find(KEY) is None
    assert len(list(left.iterdir())) == 1
    assert publish(root, KEY, content(tmp_path / "b")) is False
    assert len(list(left.iterdir())) == 1, "it may be alive: not older than a day"
    old = time.time() - 90_000
    for path in (*left.rglob("*"), *left.iterdir()):
        os.utime(path, (old, old))
    (artifact(root) / "manifest.json").unlink()
    publish(root, KEY, content(tmp_path / "c"))
    assert not list(left.iterdir())


@pytest.fixture
def small(root: Path) -> Iterator[Path]:
    """Mount a store of 256 KiB."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(root)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False).returncode != 0:
        pytest.skip("mounting needs root")
    yield root
    subprocess.run(["umount", str(root)], check=True)


def test_a_full_store(small: Path, tmp_path: Path) -> None:
    with pytest.raises(StageFailure, match="the store is full: No space left") as caught:
        publish(small, KEY, content(tmp_path / "a", b"x" * 200_000))
    assert caught.value.reason is Reason.STORAGE_FULL
    assert not list((small / "tmp").iterdir()), "the space is given back"
    assert publish(small, KEY, content(tmp_path / "b")) is False


def test_a_full_folder_of_a_serving_pod(small: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    publish(tmp_path / "other", KEY, content(tmp_path / "a", b"x" * 200_000))
    with pytest.raises(
        StageFailure, match="the folder of the pod is full: No space left"
    ) as caught:
        Store(tmp_path / "other").read(KEY, small / "artifact")
    assert caught.value.reason is Reason.STORAGE_FULL


def test_a_read_only_store(small: Path, tmp_path: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    with pytest.raises(StageFailure, match="the store is unavailable: it is read-only"):
        publish(small, KEY, content(tmp_path / "a"))


def test_a_report_that_cannot_be_stored_hides_nothing(small: Path, tmp_path: Path) -> None:
    """The stage's own outcome reaches the operator; only the full report is lost."""
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    place = Workplace(tmp_path)
    outcome = place.stage("fetch", place.task(place.put("model.onnx", b"")))
    assert outcome.report.reason is Reason.INVALID_MODEL
    assert outcome.code == exit_code(Reason.INVALID_MODEL)
    assert (
        "the full report is not in the store: the store is unavailable: it is read-only"
        in outcome.log
    )


# fault: Store | Jobs of several releases replace an artefact at once | each renames a whole one, or puts its manifest on
#   condition that no other was put | prevented
def test_of_several_that_replace_an_artefact_the_last_one_is_there_whole(
    root: Path, tmp_path: Path
) -> None:
    folders = [content(tmp_path / f"p{i}", b"%d" % i) for i in range(4)]
    together = threading.Barrier(len(folders), timeout=DEADLINE_SECONDS)

    def describe(listed: tuple[ArtifactFile, ...]) -> Manifest:
        together.wait()
        return manifest(KEY, listed)

    with ThreadPoolExecutor(len(folders)) as threads:
        cached = threads.map(
            lambda folder: publish(root, KEY, folder, describe, keeps=never_keep), folders
        )
        assert [*cached] == [False] * len(folders)
    Store(root).read(KEY, tmp_path / "artifact")
    assert len({(tmp_path / "artifact" / name).read_bytes()[:1] for name in FILES}) == 1
    assert not list((root / "tmp").iterdir())
