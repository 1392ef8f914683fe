"""Records of pushed images: for one repository and image each, and lost rather than misread."""

from pathlib import Path

import pytest
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.oci.record import PushRecord
from enginewright_runtime.store import Store

DIGESTS = [f"sha256:{digit * 64}" for digit in "12"]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "store").mkdir()
    return Store(tmp_path / "store")


def test_a_record_is_of_one_image_in_one_repository(store: Store) -> None:
    PushRecord(store, "registry:5000/a", "engine-1").write(DIGESTS)
    assert PushRecord(store, "registry:5000/a", "engine-1").read(2) == DIGESTS
    assert PushRecord(store, "registry:5000/b", "engine-1").read(2) is None
    assert PushRecord(store, "registry:5000/a", "engine-2").read(2) is None
    assert PushRecord(store, "registry:5000/a", "engine-1").read(3) is None


@pytest.mark.parametrize("content", [b"", b"\xff", b"sha256:1 sha256:2"])
def test_record_without_digests_is_none(content: bytes, store: Store, tmp_path: Path) -> None:
    record = PushRecord(store, "registry:5000/a", "engine-1")
    record.write(DIGESTS)
    (path,) = (tmp_path / "store/caches").iterdir()
    store.put_cache(path.name, content)
    assert record.read(2) is None
    path.write_bytes(b"damaged")
    assert record.read(2) is None


def test_failed_record_fails_nothing(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "store").rmdir()
    PushRecord(store, "registry:5000/a", "engine-1").write(DIGESTS)
    assert "the push of image engine-1 is not recorded: the store does not exist" in caplog.text
    with pytest.raises(StageFailure, match="does not exist"):
        PushRecord(store, "registry:5000/a", "engine-1").read(2)
