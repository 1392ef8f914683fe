"""enginewright.toml: found, read, merged, refused in words that name the key and the remedy.

What of it starts something: the rest is in tests/unit.
"""

from pathlib import Path

from enginewright_cli.preflight.config import (
    NAME,
)

from tests.support import broken_models as broken
from tests.support.preflight_runs import Desk


def test_a_run_without_a_model_takes_all_of_the_configuration(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.save(broken.relu(), "models/a.onnx")
    desk.save(broken.one_node("Frobnicate", "com.example"), "models/b.onnx")
    (desk.root / NAME).write_text(
        '[defaults]\ntargets = ["cpu"]\n\n[[models]]\npath = "models/*.onnx"\n'
    )
    code, reported = desk.run_json()
    assert (code, reported["verdict"]) == (1, "fail")
    assert [each["source"] for each in reported["models"]] == ["models/a.onnx", "models/b.onnx"]
    assert [each["verdict"] for each in reported["models"]] == ["pass", "fail"]
    assert [list(each["targets"]) for each in reported["models"]] == [["cpu"], ["cpu"]]


def test_a_run_without_anything_says_what_to_write(tmp_path: Path) -> None:
    done = Desk(tmp_path).run()
    assert (done.returncode, done.stdout) == (2, "")
    assert "give a MODEL, or create enginewright.toml" in done.stderr
