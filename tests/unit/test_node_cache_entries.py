"""Which files of a node's cache make room for others."""

import pytest
from enginewright.node_cache import entries
from enginewright.node_cache.entries import Entries, count_occupied

SIZE = 4096 * 9  # with its inode, ten blocks
EACH = count_occupied(SIZE)


def fill(*names: str) -> Entries:
    result = Entries()
    for name in names:
        result.add(name, SIZE)
    return result


def evict(result: Entries, needed: int, limit: int) -> list[str] | None:
    victims = result.victims(needed, limit)
    return None if victims is None else [name for name, _ in victims]


def test_small_files_occupy_blocks() -> None:
    assert count_occupied(0) == 4096
    assert count_occupied(1) == count_occupied(4096) == 8192
    assert EACH == 40960


def test_the_least_recently_used_make_room_and_no_more_than_necessary() -> None:
    result = fill("a", "b", "c")
    assert evict(result, EACH, 4 * EACH) == []
    assert evict(result, EACH, 4 * EACH - 1) == ["a"]
    assert evict(result, 2 * EACH, 3 * EACH) == ["a", "b"]
    with result.use("a"):
        pass
    assert evict(result, 2 * EACH, 3 * EACH) == ["b", "c"]
    result.add("b", SIZE)  # replaced
    assert result.total == 3 * EACH
    assert evict(result, EACH, 3 * EACH) == ["c"]


def test_entry_in_use_stays() -> None:
    result = fill("a", "b")
    with result.use("a"), result.use("a"):
        assert evict(result, EACH, 2 * EACH) == ["b"]
        assert evict(result, 2 * EACH, 2 * EACH) is None
        with result.reserve("c", SIZE):
            assert result.total == 3 * EACH
            assert result.is_expected("c")
            assert "c" not in result
            assert evict(result, EACH, 3 * EACH) == ["b"]
            assert evict(result, EACH, 2 * EACH) is None
    assert result.total == 2 * EACH
    assert evict(result, 2 * EACH, 2 * EACH) == ["b", "a"]


def test_a_file_that_never_fits_evicts_nothing() -> None:
    assert evict(fill("a", "b"), 3 * EACH, 2 * EACH) is None


def test_the_number_of_files_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "MOST_FILES", 3)
    result = fill("a", "b", "c")
    assert evict(result, EACH, 100 * EACH) == ["a"]
    result.remove("a")
    result.remove("a")
    assert (result.total, len(result)) == (2 * EACH, 2)
    assert evict(result, EACH, 100 * EACH) == []
