"""What is removed from a volume, and what a Job that finds it at that moment keeps."""

import os
import shutil
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from enginewright_contract.collection import KEPT_CHARACTERS, LEAST_AGE_SECONDS, CollectTask
from enginewright_contract.reasons import Reason
from enginewright_runtime.core.digests import Copied
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.store import ENGINE, PREPARED, Store, set_aside
from enginewright_runtime.store.artifacts import Artifact
from enginewright_runtime.store.collection import Collection, collect
from enginewright_runtime.store.medium import Stored
from enginewright_runtime.store.volume import VolumeMedium

from tests.support.store_process import FILES, publish
from tests.unit.test_store_volume import content

KEYS = ("ab" * 32, "cd" * 32, "ef" * 32)
DAY = 86400.0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a store with three prepared models, the first one the longest unused."""
    (tmp_path / "store").mkdir()
    for position, key in enumerate(KEYS):
        publish(tmp_path / "store", key, content(tmp_path / key))
        last_used(tmp_path / "store", key, (30 - position) * DAY)
    return tmp_path / "store"


def folder(root: Path, key: str) -> Path:
    return root / "prepared" / key


def last_used(root: Path, key: str, seconds: float) -> float:
    """Let an artefact be used so long ago for the last time; return the time."""
    then = time.time() - seconds
    os.utime(folder(root, key) / "manifest.json", (then, then))
    return then


def medium(root: Path) -> VolumeMedium:
    return VolumeMedium(root, settled_after=0)


def gc(root: Path, *keep: str, **fields: object) -> Collection:
    beginnings = [key[:KEPT_CHARACTERS] for key in keep]
    usual = {
        "job": "collect-1",
        "keep": beginnings,
        "as_of": datetime.now(UTC),
        "min_age_seconds": LEAST_AGE_SECONDS,
    }
    return collect(medium(root), CollectTask.model_validate(usual | fields))


def find(root: Path, key: str) -> Stored:
    (one,) = [
        stored for stored in medium(root).list_stored([PREPARED]) if stored.artifact.key == key
    ]
    return one


def list_keys(root: Path) -> set[str]:
    return {path.name for path in (root / "prepared").iterdir()}


def test_unneeded_artefacts_go_by_age(root: Path) -> None:
    done = gc(root, KEYS[0], max_age_seconds=28.5 * DAY)
    assert list_keys(root) == {KEYS[0], KEYS[2]}
    assert [stored.artifact.key for stored in done.removed] == [KEYS[1]]
    assert not list((root / "tmp").iterdir())
    size = sum(path.stat().st_size for path in folder(root, KEYS[0]).rglob("*") if path.is_file())
    result = done.result(dry_run=False)
    assert (result.artifacts, result.needed_artifacts, result.removed_artifacts) == (3, 1, 1)
    assert (result.bytes, result.needed_bytes, result.removed_bytes) == (3 * size, size, size)
    assert result.bytes_after == 2 * size
    assert result.capacity_bytes
    assert result.free_bytes
    Store(root).read(KEYS[0], root / "read")


def test_unneeded_artefacts_go_by_size(root: Path) -> None:
    size = gc(root).result(dry_run=True).bytes // 3
    gc(root, KEYS[0], max_bytes=2 * size)
    assert list_keys(root) == {KEYS[0], KEYS[2]}, "the longest unused of what is not needed"


def test_without_limits_and_in_a_dry_run_nothing_is_removed(root: Path) -> None:
    assert gc(root).removed == ()
    done = gc(root, max_age_seconds=0, dry_run=True)
    assert len(done.removed) == len(KEYS)
    assert done.result(dry_run=True).bytes_after == 0
    assert list_keys(root) == set(KEYS)


def test_the_clock_of_the_list_may_be_ahead(root: Path, tmp_path: Path) -> None:
    """What was published just now is not older than it is."""
    publish(root, "12" * 32, content(tmp_path / "new"))
    gc(root, max_age_seconds=0, as_of=datetime.now(UTC) + timedelta(days=1))
    assert list_keys(root) == {"12" * 32}


def test_links_and_other_folders_stay(root: Path, tmp_path: Path) -> None:
    (root / "prepared/notes").mkdir()
    (root / "prepared/notes/manifest.json").write_text("{}")
    os.utime(root / "prepared/notes/manifest.json", (0, 0))
    outside = tmp_path / "outside"
    folder(root, KEYS[0]).rename(outside)
    folder(root, KEYS[0]).symlink_to(outside)
    gc(root, max_age_seconds=0)
    assert list_keys(root) == {"notes", KEYS[0]}
    assert (outside / "manifest.json").exists()


def test_a_damaged_artefact_goes_as_any_other(root: Path) -> None:
    manifest = folder(root, KEYS[0]) / "manifest.json"
    manifest.write_text("{")
    last_used(root, KEYS[0], 40 * DAY)
    assert len(gc(root, max_age_seconds=35 * DAY).removed) == 1
    assert list_keys(root) == set(KEYS[1:])


def test_artefact_that_a_job_finds_is_used(root: Path) -> None:
    before = time.time()
    assert Store(root).find_intact(KEYS[0]) is not None
    assert find(root, KEYS[0]).used.timestamp() >= before - 1
    gc(root, max_age_seconds=DAY)
    assert list_keys(root) == {KEYS[0]}


def test_recent_use_is_not_recorded_again(root: Path) -> None:
    then = last_used(root, KEYS[0], 3000)
    assert Store(root).find_intact(KEYS[0]) is not None
    assert find(root, KEYS[0]).used.timestamp() == pytest.approx(then, abs=1e-3)


def test_published_again_counts_as_used(root: Path, tmp_path: Path) -> None:
    assert publish(root, KEYS[0], content(tmp_path / "again")) is True
    gc(root, max_age_seconds=DAY)
    assert list_keys(root) == {KEYS[0]}


def test_reading_it_is_no_use(root: Path, tmp_path: Path) -> None:
    """Serving pods may read only; what they serve is needed."""
    before = find(root, KEYS[0])
    Store(root).read(KEYS[0], tmp_path / "artifact")
    assert find(root, KEYS[0]) == before


def test_read_only_artefact_is_still_found(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "utime", refuse)
    assert Store(root).find_intact(KEYS[0]) is not None


# A Job finds an artefact while it is removed


def during_removal(
    root: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[Path], object]
) -> list[Stored]:
    """Remove the first artefact; act when it was renamed and not looked at again."""

    def acts(_: Path, aside: Path) -> bool:
        act(aside)
        return finish(root, aside)

    finish = set_aside.finish
    monkeypatch.setattr(set_aside, "finish", acts)
    return medium(root).discard([find(root, KEYS[0])])


def touch(aside: Path) -> None:
    """Do what a Job does that has looked up the artefact before the rename."""
    os.utime(aside / "manifest.json")


def test_artefact_used_after_the_listing_stays(root: Path) -> None:
    listed_before = find(root, KEYS[0])
    assert Store(root).find_intact(KEYS[0]) is not None
    assert medium(root).discard([listed_before]) == []
    assert Store(root).find_intact(KEYS[0]) is not None


# fault: Store | a Job finds an artefact in the moment in which it is removed as garbage | its manifest's time, looked at
#   again after the rename; it is put back | prevented
def test_used_while_renamed_is_put_back(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert during_removal(root, monkeypatch, touch) == []
    assert Store(root).find_intact(KEYS[0]) is not None
    assert not list((root / "tmp").iterdir())


def test_replacement_stays(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def replace_it(aside: Path) -> None:
        touch(aside)
        assert Store(root).find(KEYS[0]) is None, "all of it is gone"
        assert publish(root, KEYS[0], content(tmp_path / "other", b"other")) is False

    assert during_removal(root, monkeypatch, replace_it) == []
    Store(root).read(KEYS[0], tmp_path / "artifact")
    assert (tmp_path / "artifact" / FILES[0]).read_bytes().startswith(b"other")
    assert not list((root / "tmp").iterdir())


def test_unused_artefact_is_removed(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_missing(_: Path) -> None:
        with pytest.raises(StageFailure, match="the store has no prepared model"):
            Store(root).read(KEYS[0], tmp_path / "artifact")

    (removed,) = during_removal(root, monkeypatch, is_missing)
    assert removed.artifact == Artifact(PREPARED, KEYS[0])
    assert not list((root / "tmp").iterdir())


def test_signal_puts_back_unremoved_artefact(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def end_process(_: float) -> None:
        assert list_keys(root) == {KEYS[2]}
        sys.exit(143)  # as at SIGTERM

    monkeypatch.setattr(time, "sleep", end_process)
    with pytest.raises(SystemExit):
        VolumeMedium(root).discard([find(root, key) for key in KEYS[:2]])
    assert list_keys(root) == set(KEYS)
    assert Store(root).find_intact(KEYS[0]) is not None


def test_signal_leaves_half_deleted_artefact(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def end_process(folder: Path, **_: object) -> None:
        (folder / FILES[0]).unlink()
        sys.exit(143)

    monkeypatch.setattr(shutil, "rmtree", end_process)
    with pytest.raises(SystemExit):
        medium(root).discard([find(root, key) for key in KEYS[:2]])
    assert list_keys(root) == set(KEYS[1:])
    assert len(list((root / "tmp").iterdir())) == 1


# fault: Store | an artefact is removed as garbage while it is read | its manifest, looked at again: it is missing, not
#   damaged | the next file
def test_removal_during_a_read(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = VolumeMedium.copy

    def remove_first(self: VolumeMedium, *arguments: Any) -> Copied | None:
        gc(root, max_bytes=0)
        return copy(self, *arguments)

    monkeypatch.setattr(VolumeMedium, "copy", remove_first)
    with pytest.raises(StageFailure) as caught:
        Store(root).read(KEYS[0], tmp_path / "artifact")
    assert caught.value.reason is Reason.ARTIFACT_MISSING
    assert not (tmp_path / "artifact/manifest.json").exists()


class KilledError(Exception):
    pass


# fault: Store | a Job that removes garbage is killed | the artefact is in tmp/ with the time of its manifest; after a day,
#   it is put back if it was used meanwhile, else removed | the next publication or collection after a day
@pytest.mark.parametrize("is_used", [True, False])
def test_interrupted_removal_completes(
    is_used: bool, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(aside: Path) -> None:
        if is_used:
            touch(aside)
        raise KilledError

    with pytest.raises(KilledError):
        during_removal(root, monkeypatch, kill)
    monkeypatch.undo()
    assert gc(root).leftovers == (), "the Job that removes it may still run"
    (aside,) = (root / "tmp").iterdir()
    for path in (aside, *aside.rglob("*")):
        if path.name != "manifest.json" or is_used:
            os.utime(path, (time.time() - 2 * DAY,) * 2)
    assert len(gc(root).leftovers) == (0 if is_used else 1)
    assert (Store(root).find_intact(KEYS[0]) is not None) is is_used
    assert not list((root / "tmp").iterdir())


def test_unrenamable_artefact_stays(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if self.name == KEYS[0]:
            raise PermissionError(13, "Permission denied")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse)
    done = gc(root, max_age_seconds=0)
    assert list_keys(root) == {KEYS[0]}
    assert (len(done.removed), done.stays) == (2, 1)


def test_old_reports_and_caches_go(root: Path) -> None:
    store = Store(root, ENGINE)
    for job in ("old", "mixed", "new"):
        store.put_report(job, "fetch", "{}")
    store.put_report("mixed", "validate", "{}")
    for name in ("old", "new"):
        store.put_cache(name, b"1")
    for name in ("reports/old/fetch.json", "reports/mixed/fetch.json"):
        os.utime(root / name, (time.time() - 31 * DAY,) * 2)
    os.utime(root / "caches/old", (time.time() - 91 * DAY,) * 2)
    assert len(gc(root, dry_run=True).reports) == 2
    done = gc(root)
    assert {report.name for report in done.reports} == {
        "reports/old/fetch.json",
        "reports/mixed/fetch.json",
    }
    assert [cache.name for cache in done.caches] == ["caches/old"]
    assert sorted(path.name for path in (root / "reports").iterdir()) == ["mixed", "new"]
    assert store.get_cache("new") == b"1"
    assert store.get_cache("old") is None


def test_a_report_that_is_written_again_stays(root: Path) -> None:
    Store(root).put_report("job", "fetch", "{}")
    (report,) = medium(root).records("reports")
    os.utime(root / report.name, (0, 0))
    assert medium(root).remove_record(report) is False
    assert (root / report.name).exists()
