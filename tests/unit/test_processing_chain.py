"""How steps and the model connect, without a session."""

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
    return connect(steps, PublishedSignature.of(*(map(TensorText.read, each) for each in model)))


TOKENIZE = (["text:BYTES[-1]"], ["ids:INT64[-1,-1]", "offsets:INT64[-1,2]"])
ENCODE = (["ids:INT64[1..32,-1]", "mode:INT64[]"], ["vectors:FP32[-1,384]", "pooled:FP32[-1,384]"])
RANK = (["vectors:FP32[-1,-1]", "count:INT64[1]", "text:BYTES[-1]"], ["best:BYTES[-1]"])


def test_a_request_has_what_nothing_produces() -> None:
    found = chain([TOKENIZE], ENCODE, [RANK])
    assert found.problems() == ()
    assert found.signature().inputs == ("text:BYTES[-1]", "mode:INT64[]", "count:INT64[1]")


def test_a_response_has_what_no_step_after_the_model_takes() -> None:
    assert chain([TOKENIZE], ENCODE, [RANK]).signature().outputs == (
        "pooled:FP32[-1,384]",
        "best:BYTES[-1]",
    )
    assert chain([TOKENIZE], ENCODE, []).signature().outputs == tuple(ENCODE[1])


def test_steps_feed_later_steps() -> None:
    later = (["best:BYTES[-1]", "offsets:INT64[-1,2]"], ["answer:BYTES[-1]"])
    found = chain([TOKENIZE], ENCODE, [RANK, later])
    assert found.problems() == ()
    assert found.signature().outputs == ("pooled:FP32[-1,384]", "answer:BYTES[-1]")


def problem(
    before: list[tuple[list[str], list[str]]], after: list[tuple[list[str], list[str]]]
) -> str:
    (found,) = chain(before, ENCODE, after).problems()
    return found


def test_sizes_and_types_must_agree() -> None:
    assert "the model takes 'ids' as INT64[1..32,-1], and spec.processing.before[0] has" in problem(
        [(["text:BYTES[-1]"], ["ids:INT32[-1,-1]"])], []
    )
    assert "has 'ids' as INT64[-1]" in problem([(["text:BYTES[-1]"], ["ids:INT64[-1]"])], [])
    assert "has 'ids' as INT64[64,8]" in problem([(["text:BYTES[-1]"], ["ids:INT64[64,8]"])], [])
    assert "takes 'vectors' as FP32[-1,768]" in problem(
        [], [(["vectors:FP32[-1,768]"], ["x:FP32[]"])]
    )


def test_requests_inputs_that_two_parts_take_must_agree() -> None:
    assert "spec.processing.after[0] takes 'mode' as FP32[], and the model has" in problem(
        [], [(["mode:FP32[]", "vectors:FP32[-1,384]"], ["x:FP32[]"])]
    )


def test_a_name_is_one_value() -> None:
    assert "produces 'pooled', which is already a value of the model" in problem(
        [], [(["vectors:FP32[-1,384]"], ["pooled:FP32[-1,384]"])]
    )
    assert "produces 'text', which is already a value of spec.processing.before[0]" in problem(
        [(["text:BYTES[-1]"], ["text:BYTES[-1]", "ids:INT64[-1,-1]"])], []
    )


def test_a_step_of_which_nothing_is_used_is_a_mistake() -> None:
    assert "nothing takes an output of spec.processing.before[0] ('tokens')" in problem(
        [(["text:BYTES[-1]"], ["tokens:INT64[-1,-1]"])], []
    )


def test_bfloat16_is_for_the_model_only() -> None:
    half = (["x:BF16[-1]"], ["y:BF16[-1]", "z:FP32[-1]"])
    assert chain([], half, [(["z:FP32[-1]"], ["label:BYTES[-1]"])]).problems() == ()
    (found,) = chain([], half, [(["y:BF16[-1]"], ["label:BYTES[-1]"])]).problems()[:1]
    assert "BF16, which steps do not support" in found
