"""The token that server and sidecar of one pod share, whichever starts first or again."""

import threading
from pathlib import Path

from enginewright_serving.probe_token import read_or_create


def test_whoever_comes_first_makes_it_and_it_stays(tmp_path: Path) -> None:
    path = tmp_path / "tmp/token"
    barrier = threading.Barrier(8)
    tokens: list[str] = []

    def start() -> None:
        barrier.wait()
        tokens.append(read_or_create(path))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(tokens)) == 1
    assert len(tokens[0]) == 64
    assert read_or_create(path) == tokens[0], "after a restart of either"
    assert path.stat().st_mode & 0o077 == 0
    assert [item.name for item in path.parent.iterdir()] == ["token"]
    assert read_or_create(tmp_path / "another/token") != tokens[0]


def test_where_nothing_can_be_shared_there_is_no_lane(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert read_or_create(tmp_path / "file/token") == ""
