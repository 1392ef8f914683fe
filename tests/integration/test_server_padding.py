"""Texts of different lengths run together, padded, if the model's outputs do not change: on the real server."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tests.support.batches import BATCHES_PAY
from tests.support.broken_models import initializer, parse_text
from tests.support.serving import Answer, Server, binary_inputs, write_artifact
from tests.support.waiting import until

CLIENTS, REQUESTS = 12, 40
PADDING = {"ids": 0, "mask": 0}
MASKED = "kept = Add(scores, penalty)"
UNMASKED = "kept = Identity(scores)"
SUM = "ReduceSum<keepdims = 0>(hidden, middle)"
MAXIMUM = "ReduceMax<axes = [1], keepdims = 0>(hidden)"


def encoder(attention: str = MASKED, pooled: str = SUM) -> onnx.ModelProto:
    """Return one block of attention over tokens, and the pooled sum; `attention` may ignore the mask."""
    table = np.random.default_rng(3).standard_normal((50, 16)).astype(np.float32)
    return parse_text(
        f"""(int64[batch, n] ids, int64[batch, n] mask)
        => (float[batch, n, 16] hidden, float[batch, 16] pooled)
        <int64[1] last = {{-1}}, int64[1] middle = {{1}}, float one = {{1}}, float far = {{-10000}}> {{
        tokens = Gather(table, ids)
        turned = Transpose<perm = [0, 2, 1]>(tokens)
        scores = MatMul(tokens, turned)
        real = Cast<to = 1>(mask)
        away = Sub(one, real)
        missing = Mul(away, far)
        penalty = Unsqueeze(missing, middle)
        {attention}
        shares = Softmax<axis = -1>(kept)
        mixed = MatMul(shares, tokens)
        weights = Unsqueeze(real, last)
        hidden = Mul(mixed, weights)
        pooled = {pooled} }}""",
        initializer("table", table),
    )


def text(length: int, seed: int) -> dict[str, Any]:
    ids = np.random.default_rng(seed).integers(1, 50, (1, length))
    return {"ids": ids, "mask": np.ones((1, length), np.int64)}


def read_outputs(answer: Answer) -> dict[str, Any]:
    values = answer.tensors()
    outputs, at = {}, 0
    for output in json.loads(answer.body.removesuffix(values))["outputs"]:
        size = output["parameters"]["binary_data_size"]
        array = np.frombuffer(values[at : at + size], np.float32)
        outputs[output["name"]] = array.reshape(output["shape"])
        at += size
    return outputs


def batching(server: Server) -> dict[str, Any]:
    return dict(server.get("/v2/models/m/execution").json()["details"]["batching"])


def serve(
    root: Path, model: onnx.ModelProto, padding: dict[str, int] | None, *, delay: float = 0.005
) -> Server:
    task = write_artifact(root, model, [text(20, 1), text(5, 2)])
    task = task.model_copy(update={"batch_padding": padding, "batch_delay_seconds": delay})
    return Server(root, task, before=BATCHES_PAY)


def ask(server: Server, client: int) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Send texts of many lengths; return each with the outputs that it got."""
    results = []
    with server.wire() as wire:
        for number in range(REQUESTS):
            feeds = text(1 + (client * 5 + number * 7) % 20, client * REQUESTS + number)
            wire.send(server.infer_request(*binary_inputs(**feeds)))
            answer = wire.receive()
            assert answer.status == 200, answer.body
            results.append((feeds, read_outputs(answer)))
    return results


def test_texts_of_different_lengths_run_together_and_get_their_own_outputs(tmp_path: Path) -> None:
    with serve(tmp_path, encoder(), PADDING) as server, ThreadPoolExecutor(CLIENTS) as pool:
        report = batching(server)
        assert (report["max_size"] > 1, report["padding_off"]) == (True, "")
        assert report["padding_longest"] == 20
        results = [
            item for part in pool.map(lambda c: ask(server, c), range(CLIENTS)) for item in part
        ]
        runs = server.metric("enginewright_batch_size_count{")
    session = ort.InferenceSession(tmp_path / "artifact/model.onnx")
    for feeds, outputs in results:
        alone = dict(zip(("hidden", "pooled"), session.run(None, feeds), strict=True))
        for name, array in alone.items():
            np.testing.assert_allclose(outputs[name], array, 1e-4, 1e-4)
    assert runs < len(results) * 0.8, (
        "few lengths are the same: without padding nearly all run alone"
    )


def count_arrived(server: Server) -> float:
    in_flight = server.metric("enginewright_requests_in_flight{")
    return in_flight + server.metric("enginewright_requests_total{", 'code="200"')


def ask_at_once(server: Server, *requests: dict[str, Any]) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(len(requests)) as pool:
        answers = pool.map(lambda feeds: server.post(*binary_inputs(**feeds)), requests)
        return [read_outputs(answer) for answer in answers]


# fault: Outputs | a mask that excludes a whole text lets the model average over what is padded |
#   such requests are not padded | prevented
def test_a_text_that_its_mask_excludes_gets_the_outputs_that_it_gets_alone(tmp_path: Path) -> None:
    even = (
        "part = Constant<value_float = 0.05>() even = Mul(scores, part) kept = Add(even, penalty)"
    )
    model = encoder(f"{even} place = Constant<value_int = 0>()", "Gather<axis = 1>(mixed, place)")
    masked = text(3, 9) | {"mask": np.zeros((1, 3), np.int64)}
    with serve(tmp_path, model, PADDING, delay=0.5) as server:
        assert batching(server)["padding_off"] == ""
        with server.wire() as wire:  # between the others it would part them
            wire.send(server.infer_request(*binary_inputs(**masked)))
            until(lambda: count_arrived(server) == 1, "it has arrived")
            ask_at_once(server, text(5, 3), text(6, 4))
            outputs = read_outputs(wire.receive())
        assert server.metric("enginewright_batch_size_count{") < 3, "the others run together"
    session = ort.InferenceSession(tmp_path / "artifact/model.onnx")
    (pooled,) = session.run(["pooled"], masked)
    np.testing.assert_allclose(outputs["pooled"], pooled, 1e-4, 1e-4)


def windows() -> onnx.ModelProto:
    """Return the sums of each 16 tokens."""
    table = np.random.default_rng(3).standard_normal(50).astype(np.float32)
    return parse_text(
        """(int64[batch, n] ids, int64[batch, n] mask) => (float[batch, w] sums)
        <int64[1] one = {1}, int64[1] size = {16}, int64[1] most = {15}, int64[1] none = {0},
         int64[1] last = {2}, float nil = {0}> {
        scores = Gather(table, ids) real = Cast<to = 1>(mask) kept = Mul(scores, real)
        n = Shape<start = 1, end = 2>(ids) up = Add(n, most) w = Div(up, size)
        total = Mul(w, size) more = Sub(total, n) pads = Concat<axis = 0>(none, none, none, more)
        padded = Pad(kept, pads, nil) shape = Concat<axis = 0>(none, w, size)
        blocks = Reshape(padded, shape) sums = ReduceSum<keepdims = 0>(blocks, last) }""",
        initializer("table", table),
    )


def test_lengths_beyond_those_of_golden_samples_are_not_padded(tmp_path: Path) -> None:
    """Samples of one window do not show that there are more, of which the answer has none alone."""
    model = windows()
    short, long = text(30, 3), text(60, 4)
    task = write_artifact(tmp_path, model, [text(12, 1), text(5, 2)])
    task = task.model_copy(update={"batch_padding": PADDING, "batch_delay_seconds": 0.2})
    with Server(tmp_path, task, before=BATCHES_PAY) as server:
        assert batching(server)["padding_off"] == ""
        outputs = ask_at_once(server, short, long)
    assert [answer["sums"].shape for answer in outputs] == [(1, 2), (1, 4)]


def two_texts() -> onnx.ModelProto:
    """Return a model whose inputs may have different lengths."""
    table = np.random.default_rng(3).standard_normal((50, 4)).astype(np.float32)
    table[0] = 0.0
    return parse_text(
        """(int64[batch, n] ids, int64[batch, k] mask) => (float[batch, 4] first, float[batch, 4] second)
        <int64[1] middle = {1}> {
        words = Gather(table, ids) first = ReduceSum<keepdims = 0>(words, middle)
        others = Gather(table, mask) second = ReduceSum<keepdims = 0>(others, middle) }""",
        initializer("table", table),
    )


def test_requests_whose_inputs_differ_in_length_are_not_cut_to_one(tmp_path: Path) -> None:
    """Also where they have the same shapes as others."""
    requests = [text(1, seed) | {"mask": np.empty((1, 0), np.int64)} for seed in (3, 4)]
    with serve(tmp_path, two_texts(), PADDING, delay=0.2) as server:
        assert batching(server)["padding_off"] == ""
        answers = ask_at_once(server, *requests)
    session = ort.InferenceSession(tmp_path / "artifact/model.onnx")
    for feeds, outputs in zip(requests, answers, strict=True):
        np.testing.assert_allclose(outputs["first"], session.run(["first"], feeds)[0], 1e-4, 1e-4)


def largest(seed: int) -> onnx.ModelProto:
    """Return one number: the largest of all tokens, of which padding is 0."""
    scores = np.random.default_rng(seed).standard_normal(50).astype(np.float32)
    return parse_text(
        """(int64[batch, n] ids, int64[batch, n] mask) => (float[batch] most) {
        scores = Gather(table, ids) real = Cast<to = 1>(mask) kept = Mul(scores, real)
        most = ReduceMax<axes = [1], keepdims = 0>(kept) }""",
        initializer("table", scores),
    )


@pytest.mark.parametrize(
    ("model", "padding", "why"),
    [
        (encoder(UNMASKED), PADDING, "output 'hidden' of a request changes when it is padded"),
        (encoder(), {"ids": 0}, "does not name 'mask', whose sizes differ"),
        (encoder(), {"mask": 0}, "does not name 'ids', whose sizes differ"),
        (encoder(), {"ids": 0, "mask": 1}, "of a request changes when it is padded"),
        (encoder(), {"token_ids": 0}, "names 'token_ids', which is no input"),
        (encoder(pooled=MAXIMUM), {"ids": 0, "mask": 0}, "'pooled' of a request changes"),
        # whose golden samples begin with tokens above 0
        (largest(0), {"ids": 0, "mask": 0}, "'most' of a request changes"),
    ],
    ids=[
        "no mask",
        "part of the inputs",
        "another part",
        "a mask that includes",
        "no input",
        "maximum of all",
        "one maximum",
    ],
)  # fmt: skip
def test_padding_that_changes_an_output_is_off(
    model: onnx.ModelProto, padding: dict[str, int], why: str, tmp_path: Path
) -> None:
    with serve(tmp_path, model, padding) as server:
        report = batching(server)
        assert why in report["padding_off"], report
        assert report["max_size"] > 1, "requests of the same length run together all the same"
        feeds = text(3, 9)
        answer = server.post(*binary_inputs(**feeds))
        assert answer.status == 200


def test_a_forgotten_mask_is_named_where_all_golden_samples_have_one_length(tmp_path: Path) -> None:
    task = write_artifact(tmp_path, encoder(), [text(12, 1), text(12, 2)])
    task = task.model_copy(update={"batch_padding": {"ids": 0}})
    with Server(tmp_path, task, before=BATCHES_PAY) as server:
        why = "serving.batching.padding does not name 'mask', which is as long"
        assert batching(server)["padding_off"] == why
