"""What a failed run's words are taken for, and how a search goes on after a crash."""

import json
from pathlib import Path

from tests.integration.test_discovery_models import discover_here, profiles_of
from tests.support.open_models import OPEN


def test_after_a_crash_nothing_runs_twice_and_the_point_is_left_out(tmp_path: Path) -> None:
    model = OPEN["voice_activity"]()
    whole = discover_here(tmp_path / "whole.onnx", model)
    journal = (tmp_path / "whole.jsonl").read_text().splitlines()
    crashed = json.loads(journal[8])
    assert len(crashed) == 1, "begun"
    (tmp_path / "again.jsonl").write_text("\n".join(journal[:9]) + "\n")
    again = discover_here(tmp_path / "again.onnx", model)
    begun = [json.loads(line) for line in (tmp_path / "again.jsonl").read_text().splitlines()]
    keys = [item[0] for item in begun if len(item) == 1]
    assert len(keys) == len(set(keys))
    assert [item for item in begun if item[0] == crashed[0]] == [crashed], "it is not run again"
    assert profiles_of(again)
    assert whole.profiles
