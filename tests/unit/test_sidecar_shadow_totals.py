"""Figures over many answers of a canary, in bounded memory."""

import pytest
from enginewright_contract.measurements import OUTPUTS, OutputChange
from enginewright_serving.sidecar.shadow_totals import ShadowTotals


def test_figures_are_the_worst_and_the_mean_of_all_answers() -> None:
    totals = ShadowTotals("r2")
    for relative, top1 in ((0.1, 1.0), (0.4, 0.5), (0.1, 0.0)):
        totals.add([OutputChange(name="y", relative=relative, max_abs=relative * 10, top1=top1)])
    document = totals.document
    (output,) = document.outputs
    assert (document.revision, document.compared) == ("r2", 3)
    assert (output.name, output.answers, output.incomparable) == ("y", 3, 0)
    assert (output.max_abs, output.worst) == (4.0, 0.4)
    assert output.mean == pytest.approx(0.2)
    assert output.top1 == pytest.approx(0.5)


def test_incomparable_answers_are_counted_apart() -> None:
    totals = ShadowTotals("r2")
    totals.add([OutputChange(name="y", form="has shape [2], expected [1]")])
    (output,) = totals.document.outputs
    assert (output.answers, output.incomparable) == (1, 1)
    assert (output.max_abs, output.worst, output.mean, output.top1) == (None,) * 4
    totals.add([OutputChange(name="y", relative=0.0, max_abs=0.0)])
    (output,) = totals.document.outputs
    assert (output.answers, output.incomparable, output.worst, output.mean) == (2, 1, 0.0, 0.0)


def test_answers_of_another_size_are_counted_and_are_no_difference() -> None:
    totals = ShadowTotals("r2")
    totals.add([OutputChange(name="y", resized=1)])
    totals.add([OutputChange(name="y", unequal=1.0, relative=0.5)])
    (output,) = totals.document.outputs
    assert (output.answers, output.resized, output.incomparable) == (2, 1, 0)
    assert (output.worst, output.mean) == (0.5, 0.5)


def test_an_output_that_few_requests_ask_for_has_its_own_count() -> None:
    totals = ShadowTotals("r2")
    totals.add([OutputChange(name="y", relative=0.0)])
    totals.add([OutputChange(name="y", relative=0.0), OutputChange(name="z", relative=0.5)])
    assert {output.name: output.answers for output in totals.document.outputs} == {"y": 2, "z": 1}


def test_most_changed_outputs_are_reported() -> None:
    totals = ShadowTotals("r2")
    changes = [OutputChange(name=f"o{index:03}", relative=index / 1000) for index in range(100)]
    totals.add([*changes, OutputChange(name="shape", form="differs")])
    names = [output.name for output in totals.document.outputs]
    assert names == [*(f"o{index:03}" for index in range(101 - OUTPUTS, 100)), "shape"]


def test_uncompared_answers_are_counted_by_cause() -> None:
    totals = ShadowTotals("r2")
    totals.rejected, totals.failed = 1, 2
    totals.dropped.update({"NotKept": 4, "CanaryBusy": 3, "TooLarge": 0})
    document = totals.document
    assert (document.compared, document.rejected, document.failed, document.dropped) == (0, 1, 2, 7)
    assert document.dropped_by == {"NotKept": 4, "CanaryBusy": 3}
