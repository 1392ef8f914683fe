"""What `spec.serving.embeddings` says of a model and its steps is accepted or refused before the pod is ready."""

from typing import Any

import numpy as np
import pytest
from enginewright_contract.reasons import Reason
from enginewright_contract.serving_options import EmbeddingsTask
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.request_errors import RequestError
from enginewright_runtime.session.processing.chain import Chain
from enginewright_runtime.session.samples import GoldenSample
from enginewright_runtime.session.signature import Argument, Signature, read_signature
from enginewright_serving.server.inference.processing.served import ServedSteps
from enginewright_serving.server.startup.embeddings import ServedEmbeddings, find_embeddings

TEXT = Argument("text", "tensor(string)", [1])
IDS = Argument("input_ids", "tensor(int64)", ["n", "tokens"])
MASK = Argument("attention_mask", "tensor(int64)", ["n", "tokens"])
HIDDEN = Argument("last_hidden_state", "tensor(float)", ["n", "tokens", 8])
POOLED = Argument("pooler_output", "tensor(float)", ["n", 8])


def signature(inputs: list[Argument], outputs: list[Argument]) -> Signature:
    return read_signature(inputs, outputs, ())


def steps(
    sent: list[Argument] | None = None,
    taken: list[Argument] | None = None,
    outputs: list[Argument] | None = None,
    made: tuple[str, ...] = ("input_ids", "attention_mask"),
    before: tuple[str, ...] = ("before-0",),
) -> ServedSteps:
    answers = outputs or [HIDDEN, POOLED]
    return ServedSteps(
        signature=signature(sent or [TEXT], answers),
        model=signature(taken or [IDS, MASK], answers),
        executed=(),
        before=before,
        after=(),
        before_inputs=frozenset({"text"}),
        before_outputs=frozenset(made),
        after_inputs=frozenset(),
        images=frozenset(),
        processes=(),
        most_pixels=0,
        _chain=Chain(()),
    )


def find(
    served: ServedSteps | None, *samples: GoldenSample, pooling: Any = "Mean", **task: Any
) -> ServedEmbeddings:
    return find_embeddings(EmbeddingsTask(pooling=pooling, **task), served, samples)


@pytest.mark.parametrize(
    ("pooling", "output"),
    [("Mean", HIDDEN), ("CLS", HIDDEN), ("Last", HIDDEN), ("None", POOLED)],
)
def test_the_only_output_that_fits_is_taken(pooling: str, output: Argument) -> None:
    served = find(steps(), pooling=pooling)
    assert (served.output, served.mask, served.text) == (output.name, "attention_mask", "text")
    assert (served.size, served.shape) == (8, (1,))


def test_a_named_output_and_mask_are_taken() -> None:
    tokens = Argument("token_embeddings", "tensor(float16)", ["n", "tokens", "size"])
    marks = Argument("padding", "tensor(bool)", ["n", "tokens"])
    chain = steps(outputs=[HIDDEN, tokens], taken=[IDS, marks], made=("input_ids", "padding"))
    served = find(chain, output="token_embeddings", mask="padding")
    assert (served.output, served.mask, served.size) == ("token_embeddings", "padding", 0)
    assert served.describe()["size"] is None


@pytest.mark.parametrize("shape", [[], ["n"], ["n", 1], [1, 1]])
def test_an_input_with_room_for_one_text_is_taken(shape: list[Any]) -> None:
    served = find(steps(sent=[Argument("text", "tensor(string)", shape)]))
    assert served.shape == (1,) * len(shape)


NO_TEXT = "only input of requests must be strings"
NO_MASK = "must be an input of the model with integers"
AGES = Argument("ages", "tensor(int64)", ["n"])
BITS = Argument("last_hidden_state", "tensor(bfloat16)", ["n", "tokens", 8])


@pytest.mark.parametrize(
    ("served", "task", "cause"),
    [
        (None, {}, "no step of spec.processing.before makes tokens"),
        (steps(before=()), {}, "no step of spec.processing.before makes tokens"),
        (steps(sent=[TEXT, AGES]), {}, NO_TEXT),
        (steps(sent=[IDS]), {}, f"{NO_TEXT} with room for one text, and requests have 'input_ids'"),
        (steps(sent=[Argument("text", "tensor(string)", [2])]), {}, NO_TEXT),
        (steps(made=("input_ids",)), {}, f"mask 'attention_mask' {NO_MASK}"),
        (steps(), {"mask": "mask"}, "such steps make its inputs 'input_ids' as INT64[-1, -1]"),
        (steps(taken=[IDS, Argument("attention_mask", "tensor(int64)", ["n"])]), {}, NO_MASK),
        (
            steps(taken=[IDS, Argument("attention_mask", "tensor(float)", ["n", "tokens"])]),
            {},
            NO_MASK,
        ),
        (steps(), {"output": "logits"}, "output 'logits' must be floats in 3 dimensions"),
        (steps(), {"output": "pooler_output"}, "which pooling Mean takes; outputs are"),
        (steps(), {"output": "last_hidden_state", "pooling": "None"}, "floats in 2 dimensions"),
        (steps(outputs=[POOLED]), {}, "0 outputs are floats in 3 dimensions"),
        (steps(outputs=[BITS, POOLED]), {}, "0 outputs are floats"),
        (
            steps(outputs=[HIDDEN, Argument("other", "tensor(float)", [1, 2, 3])]),
            {},
            "2 outputs are floats in 3 dimensions, which pooling Mean takes: name one in output",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_what_there_is(
    served: ServedSteps | None, task: dict[str, Any], cause: str
) -> None:
    with pytest.raises(StageFailure) as refusal:
        find(served, **task)
    assert refusal.value.reason is Reason.EMBEDDINGS_INVALID
    assert refusal.value.cause.startswith("spec.serving.embeddings: ")
    assert cause in refusal.value.cause


def test_golden_samples_show_an_output_that_has_other_rows_than_the_mask() -> None:
    undeclared = Argument("states", "tensor(float)", [])
    feeds = {"input_ids": np.ones((2, 3), np.int64), "attention_mask": np.ones((2, 3), np.int64)}
    for shape, problem in (((2, 3, 4), ""), ((2, 4, 4), "has no vector for each of 2 x 3 tokens")):
        sample = GoldenSample("s", feeds, {"states": np.ones(shape, np.float32)})
        served = steps(outputs=[undeclared])
        if not problem:
            assert find(served, sample, output="states").size == 4
            continue
        with pytest.raises(StageFailure, match="golden sample 's'") as refusal:
            find(served, sample, output="states")
        assert problem in refusal.value.cause


def test_golden_samples_show_vectors_as_long_as_the_text() -> None:
    scores = Argument("scores", "tensor(float)", ["n", "tokens"])
    samples = [
        GoldenSample(
            str(length),
            dict.fromkeys(("input_ids", "attention_mask"), np.ones((1, length), np.int64)),
            {"scores": np.ones((1, length), np.float32)},
        )
        for length in (8, 3)
    ]
    served = steps(outputs=[scores])
    with pytest.raises(StageFailure, match=r"vectors in output 'scores' .* have sizes 3, 8"):
        find(served, *samples, pooling="None")


def sample_of(length: int, size: int) -> GoldenSample:
    ids = np.ones((1, length), np.int64)
    feeds = {"input_ids": ids, "attention_mask": ids}
    return GoldenSample(str(length), feeds, {"scores": np.ones((1, size), np.float32)})


def test_vectors_as_long_as_all_samples_are_reported_and_other_lengths_fail(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scores = Argument("scores", "tensor(float)", ["n", "tokens"])
    served = find(steps(outputs=[scores]), sample_of(8, 8), pooling="None")
    assert "the vectors in output 'scores' are as long as the texts" in caplog.text
    assert served.pool(np.ones((1, 8), np.float32), np.ones((1, 8))).shape == (1, 8)
    with pytest.raises(
        RequestError, match=r"has 3 dimensions, and others have 8: output 'scores'"
    ) as refusal:
        served.pool(np.ones((1, 3), np.float32), np.ones((1, 3)))
    assert refusal.value.status == 500


@pytest.mark.parametrize(("size", "output"), [(8, POOLED), (8, None), (6, None)])
def test_vectors_that_are_not_as_long_as_texts_are_not_reported(
    size: int, output: Argument | None, caplog: pytest.LogCaptureFixture
) -> None:
    scores = output or Argument("scores", "tensor(float)", ["n", "size"])
    samples = [sample_of(8, size), *([] if size == 6 else [sample_of(3, size)])]
    find(steps(outputs=[scores]), *samples, pooling="None")
    assert caplog.text == ""


def tokens(length: int) -> dict[str, Any]:
    return dict.fromkeys(("input_ids", "attention_mask"), np.ones((1, length), np.int64))


def test_a_text_without_a_declared_maximum_has_one() -> None:
    served = find(steps())
    served.check(tokens(512))
    with pytest.raises(RequestError, match="has 513 tokens, and at most 512 are taken") as refusal:
        served.check(tokens(513))
    assert refusal.value.status == 400
    assert "declare that of 'attention_mask' in spec.shapes" in refusal.value.message


def test_texts_as_long_as_a_golden_sample_are_taken() -> None:
    long = GoldenSample(
        "long", tokens(600), {"last_hidden_state": np.ones((1, 600, 8), np.float32)}
    )
    served = find(steps(), long)
    assert served.most_tokens == 600
    with pytest.raises(RequestError):
        served.check(tokens(601))


def test_a_declared_maximum_is_the_only_one() -> None:
    fixed = Argument("attention_mask", "tensor(int64)", ["n", 1024])
    for served in (
        find_embeddings(EmbeddingsTask(pooling="Mean"), steps(), (), {"input_ids"}),
        find(steps(taken=[IDS, fixed])),
    ):
        served.check(tokens(1024))
        assert served.describe()["most_tokens"] is None
