"""What people read on a terminal: options that can be pasted, and nothing that it would obey."""

import io

import pytest
from enginewright_cli.preflight.result import Parity, Result
from enginewright_cli.preflight.table import show
from enginewright_contract.manifest import OutputParity, UnjudgedParts
from rich.console import Console

from tests.support.optional import present
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
    assert "sm89 WARN tensorrt-rtx 63/65 14.1 MB 81.5 s 2.1 ms 3.1 ms 500" in text


def test_the_99th_percentile_of_few_runs_is_not_shown() -> None:
    result = partial()
    target = present(result.targets["sm89"].latency).model_copy(update={"samples": 3})
    targets = {"sm89": result.targets["sm89"].model_copy(update={"latency": target})}
    text = " ".join(show_table(result.model_copy(update={"targets": targets}), 200).split())
    assert "81.5 s 2.1 ms 3" in text
    assert "3.1 ms" not in text


def test_parts_that_the_samples_do_not_judge_are_listed_once() -> None:
    result = partial()
    name, target = next(iter(result.targets.items()))
    parts = UnjudgedParts(axis=1, indices=(4,), count=1, of=84)
    outputs = tuple(
        OutputParity(name="dets", compared_with=reference, unjudged=(parts,))
        for reference in ("source", "expected")
    )
    parity = Parity(verdict="unknown", outputs=outputs)
    targets = {name: target.model_copy(update={"parity": parity})}
    text = show_table(result.model_copy(update={"targets": targets}), width=200)
    line = f"{name}: not judged by the samples: 1 of 84 indices of axis 1 (4) of output 'dets'"
    assert text.count(line) == 1


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_do_not_reach_the_terminal(name: str) -> None:
    text = show_table(hostile(name))
    text.encode()
    assert not set("\x00\x07\x1b\x85\u202e\u2066\u200b\udcff") & set(text)
