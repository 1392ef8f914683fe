"""Parts of outputs that golden samples do not judge: which are named, which are accepted, and in which words."""

from typing import Final

import pytest
from enginewright_contract.keys import compute_prepared_key
from enginewright_contract.manifest import OutputParity, UnjudgedParts
from enginewright_contract.task import OutputTolerance, Recipe
from enginewright_contract.unjudged import Unjudged

from tests.support.manifests import CPU_RECIPE, engine_info, manifest

SCORES: Final = UnjudgedParts(axis=1, indices=(4, 7, 9), count=3, of=84)


def compare(name: str, *parts: UnjudgedParts, with_: str = "source") -> OutputParity:
    return OutputParity(name=name, compared_with=with_, max_abs_error=0.1, unjudged=parts)


def accept(*names: str) -> Recipe:
    outputs = tuple(OutputTolerance(name=name, accept_unjudged=True) for name in names)
    return CPU_RECIPE.model_copy(update={"outputs": outputs})


def test_parts_are_named_with_their_output_and_precision() -> None:
    unjudged = Unjudged.find((compare("dets", SCORES), compare("boxes")), CPU_RECIPE, "INT8")
    assert unjudged.cause == (
        "3 of 84 indices of axis 1 (4, 7, 9) of output 'dets' do not vary enough on the golden samples to be judged"
        " in INT8"
    )
    assert unjudged.note == ""


def test_artefact_whose_parts_are_all_judged_says_nothing() -> None:
    unjudged = Unjudged.of_artefact(manifest(parity=(compare("dets"),)))
    assert (unjudged.cause, unjudged.note) == ("", "")


def test_accepted_output_is_a_note_beside_those_that_are_not() -> None:
    other = UnjudgedParts(axis=2, indices=(0,), count=1, of=4)
    unjudged = Unjudged.find((compare("dets", SCORES), compare("boxes", other)), accept("dets"))
    assert unjudged.cause.startswith("1 of 4 indices of axis 2 (0) of output 'boxes' do not vary")
    assert unjudged.cause.endswith("to be judged"), "the precision is the source's own"
    assert unjudged.note.startswith("spec.parity.outputs accepts that 3 of 84 indices")
    assert "'boxes'" not in unjudged.note


def test_output_that_was_compared_twice_is_named_once_and_as_it_serves() -> None:
    most = UnjudgedParts(axis=1, indices=tuple(range(20)), count=80, of=84)
    made = manifest(
        parity=(compare("dets", SCORES), compare("dets", SCORES, with_="expected")),
        engine=engine_info(parity=(compare("dets", most, with_="prepared"),)),
    )
    unjudged = Unjudged.of_artefact(made)
    assert unjudged.cause.count("'dets'") == 1


@pytest.mark.parametrize(("outputs", "rest"), [(4, "1 more output"), (9, "6 more outputs")])
def test_of_many_outputs_the_rest_is_a_number(outputs: int, rest: str) -> None:
    parity = [compare(f"y{number}", SCORES) for number in range(outputs)]
    cause = Unjudged.find(parity, CPU_RECIPE).cause
    assert f"of output 'y2' and parts of {rest} do not vary" in cause
    assert "'y3'" not in cause


def test_key_changes_only_where_parts_are_accepted() -> None:
    before = CPU_RECIPE.model_copy(update={"outputs": (OutputTolerance(name="y", rtol=0.1),)})
    stated = OutputTolerance(name="y", rtol=0.1, accept_unjudged=False)
    accepted = stated.model_copy(update={"accept_unjudged": True})
    keys = [
        compute_prepared_key("d" * 64, before.model_copy(update={"outputs": (output,)}), {})
        for output in (*before.outputs, stated, accepted)
    ]
    assert keys[0] == keys[1] != keys[2]
