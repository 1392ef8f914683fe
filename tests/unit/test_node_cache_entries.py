"""Which files of a node's cache make room for others."""

import pytest
from enginewright.node_cache import entries
from enginewright.node_cache.entries import Entries, occupied

SIZE = 4096 * 9  # with its inode, ten blocks
EACH = occupied(SIZE)


def filled(*names: str) -> Entries:
    found = Entries()
    for name in names:
        found.add(name, SIZE)
    return found


def evicted(found: Entries, needed: int, limit: int) -> list[str] | None:
    victims = found.victims(needed, limit)
    return None if victims is None else [name for name, _ in victims]


def test_small_files_occupy_blocks() -> None:
    assert occupied(0) == 4096
    assert occupied(1) == occupied(4096) == 8192
    assert EACH == 40960


def test_the_least_recently_used_make_room_and_no_more_than_necessary() -> None:
    found = filled("a", "b", "c")
    assert evicted(found, EACH, 4 * EACH) == []
    assert evicted(found, EACH, 4 * EACH - 1) == ["a"]
    assert evicted(found, 2 * EACH, 3 * EACH) == ["a", "b"]
    with found.used("a"):
        pass
    assert evicted(found, 2 * EACH, 3 * EACH) == ["b", "c"]
    found.add("b", SIZE)  # replaced
    assert found.total == 3 * EACH
    assert evicted(found, EACH, 3 * EACH) == ["c"]


def test_what_is_read_or_written_stays() -> None:
    found = filled("a", "b")
    with found.used("a"), found.used("a"):
        assert evicted(found, EACH, 2 * EACH) == ["b"]
        assert evicted(found, 2 * EACH, 2 * EACH) is None
        with found.reserved("c", SIZE):
            assert found.total == 3 * EACH
            assert found.is_expected("c")
            assert "c" not in found
            assert evicted(found, EACH, 3 * EACH) == ["b"]
            assert evicted(found, EACH, 2 * EACH) is None
    assert found.total == 2 * EACH
    assert evicted(found, 2 * EACH, 2 * EACH) == ["b", "a"]


def test_a_file_that_never_fits_evicts_nothing() -> None:
    assert evicted(filled("a", "b"), 3 * EACH, 2 * EACH) is None


def test_the_number_of_files_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "MOST_FILES", 3)
    found = filled("a", "b", "c")
    assert evicted(found, EACH, 100 * EACH) == ["a"]
    found.remove("a")
    found.remove("a")
    assert (found.total, len(found)) == (2 * EACH, 2)
    assert evicted(found, EACH, 100 * EACH) == []
