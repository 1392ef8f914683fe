"""What people read on a terminal: options that can be pasted, and nothing that it would obey."""

import io
import os
from pathlib import Path

import pytest
from enginewright_cli.preflight.result import Result
from enginewright_cli.preflight.table import show
from rich.console import Console

from tests.support import broken_models as broken
from tests.support.preflight_results import HOSTILE, hostile, partial
from tests.support.preflighting import preflight

pytestmark = pytest.mark.unit


def shown(result: Result, width: int = 80) -> str:
    stream = io.StringIO()
    show(result, Console(file=stream, width=width, force_terminal=False))
    return stream.getvalue()


def test_options_are_never_wrapped() -> None:
    result = partial()
    long = f"--shapes images={'1x' * 60}1"
    finding = result.findings[1].model_copy(update={"options": (long,)})
    text = shown(result.model_copy(update={"findings": (finding,)}))
    assert f"  option: {long}\n" in text


def test_figures_have_units() -> None:
    text = " ".join(shown(partial(), width=200).split())
    assert "80.1 MB, opset 11, IR 8, 72 nodes" in text
    assert "sm89 WARN tensorrt-rtx 63/65 14.1 MB 81.5 s 2.1 ms 3.1 ms" in text


def test_a_path_that_is_no_utf8_is_refused_in_words(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.onnx")
    Path(path).write_bytes(broken.relu().SerializeToString())
    done = preflight(path, "--target", "cpu", "--html", "page.html", folder=tmp_path)
    assert done.code == 2
    assert "\\udcff.onnx: its name is no UTF-8; rename it" in "".join(done.stderr.splitlines())
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_do_not_reach_the_terminal(name: str) -> None:
    text = shown(hostile(name))
    text.encode()
    assert not set("\x00\x07\x1b\x85\u202e\u2066\u200b\udcff") & set(text)
