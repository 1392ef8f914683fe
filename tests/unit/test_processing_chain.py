"""How steps and the model connect, without a session."""

import pytest
from enginewright_contract.manifest import ProcessingStep
from enginewright_contract.signature import PublishedSignature, TensorText
from enginewright_runtime.session.processing.chain import Chain, connect


def chain(
    before: list[tuple[list[str], list[str]]],
    model: tuple[list[str], list[str]],
    after: list[tuple[list[str], list[str]]],
) -> Chain:
    steps = [
        ProcessingStep(
            name=f"{stage}-{number}", digest="d", inputs=tuple(taken), outputs=tuple(given)
        )
        for stage, parts in (("before", before), ("after", after))
        for number, (taken, given) in enumerate(parts)
    ]
    return connect(steps, PublishedSignature.of(*(map(TensorText.read, row) for row in model)))


TOKENIZE = (["text:BYTES[-1]"], ["ids:INT64[-1,-1]", "offsets:INT64[-1,2]"])
ENCODE = (["ids:INT64[1..32,-1]", "mode:INT64[]"], ["vectors:FP32[-1,384]", "pooled:FP32[-1,384]"])
RANK = (["vectors:FP32[-1,-1]", "count:INT64[1]", "text:BYTES[-1]"], ["best:BYTES[-1]"])


def test_request_has_inputs_that_no_step_produces() -> None:
    chained = chain([TOKENIZE], ENCODE, [RANK])
    assert chained.problems() == ()
    assert chained.signature().inputs == ("text:BYTES[-1]", "mode:INT64[]", "count:INT64[1]")


def test_response_has_outputs_that_no_step_takes() -> None:
    assert chain([TOKENIZE], ENCODE, [RANK]).signature().outputs == (
        "pooled:FP32[-1,384]",
        "best:BYTES[-1]",
    )
    assert chain([TOKENIZE], ENCODE, []).signature().outputs == tuple(ENCODE[1])


def test_steps_feed_later_steps() -> None:
    later = (["best:BYTES[-1]", "offsets:INT64[-1,2]"], ["answer:BYTES[-1]"])
    chained = chain([TOKENIZE], ENCODE, [RANK, later])
    assert chained.problems() == ()
    assert chained.signature().outputs == ("pooled:FP32[-1,384]", "answer:BYTES[-1]")


TEXT = ["text:BYTES[-1]"]
STEP = "spec.processing.before[0]"
TAKEN = "which is already a value of"


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ((TEXT, ["ids:INT32[-1,-1]"]), None, f"'ids' as INT64[1..32,-1], and {STEP} has"),
        ((TEXT, ["ids:INT64[-1]"]), None, "has 'ids' as INT64[-1]"),
        ((TEXT, ["ids:INT64[64,8]"]), None, "has 'ids' as INT64[64,8]"),
        (None, (["vectors:FP32[-1,768]"], ["x:FP32[]"]), "takes 'vectors' as FP32[-1,768]"),
        # of a request's inputs that two parts take
        (
            None,
            (["mode:FP32[]", "vectors:FP32[-1,384]"], ["x:FP32[]"]),
            "spec.processing.after[0] takes 'mode' as FP32[], and the model has",
        ),
        (
            None,
            (["vectors:FP32[-1,384]"], ["pooled:FP32[-1,384]"]),
            f"produces 'pooled', {TAKEN} the model",
        ),
        ((TEXT, [*TEXT, "ids:INT64[-1,-1]"]), None, f"produces 'text', {TAKEN} {STEP}"),
        ((TEXT, ["tokens:INT64[-1,-1]"]), None, f"nothing takes an output of {STEP} ('tokens')"),
    ],
)
def test_steps_that_do_not_fit_the_model_or_each_other_are_a_problem(
    before: tuple[list[str], list[str]] | None,
    after: tuple[list[str], list[str]] | None,
    problem: str,
) -> None:
    (result,) = chain([before] if before else [], ENCODE, [after] if after else []).problems()
    assert problem in result


def test_bfloat16_is_for_the_model_only() -> None:
    half = (["x:BF16[-1]"], ["y:BF16[-1]", "z:FP32[-1]"])
    assert chain([], half, [(["z:FP32[-1]"], ["label:BYTES[-1]"])]).problems() == ()
    (problem,) = chain([], half, [(["y:BF16[-1]"], ["label:BYTES[-1]"])]).problems()[:1]
    assert "BF16, which steps do not support" in problem
