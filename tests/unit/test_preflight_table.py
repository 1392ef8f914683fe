"""What people read on a terminal: options that can be pasted, and nothing that it would obey."""

import io

import pytest
from enginewright_cli.preflight.result import Result
from enginewright_cli.preflight.table import show
from rich.console import Console

from tests.support.preflight_results import HOSTILE, hostile, partial


def show_table(result: Result, width: int = 80) -> str:
    stream = io.StringIO()
    show(result, Console(file=stream, width=width, force_terminal=False))
    return stream.getvalue()


def test_options_are_never_wrapped() -> None:
    result = partial()
    long = f"--shapes images={'1x' * 60}1"
    finding = result.findings[1].model_copy(update={"options": (long,)})
    text = show_table(result.model_copy(update={"findings": (finding,)}))
    assert f"  option: {long}\n" in text


def test_figures_have_units() -> None:
    text = " ".join(show_table(partial(), width=200).split())
    assert "80.1 MB, opset 11, IR 8, 72 nodes" in text
    assert "sm89 WARN tensorrt-rtx 63/65 14.1 MB 81.5 s 2.1 ms 3.1 ms" in text


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_do_not_reach_the_terminal(name: str) -> None:
    text = show_table(hostile(name))
    text.encode()
    assert not set("\x00\x07\x1b\x85\u202e\u2066\u200b\udcff") & set(text)
