"""Requests for embeddings in OpenAI's form, valid and hostile, and the answers to them."""

import base64
import json
from typing import Any

import numpy as np
import pytest
from enginewright_runtime.core.request_errors import RequestError
from enginewright_serving.server.api.http_errors import error_response
from enginewright_serving.server.api.http_routes import ServedResource
from enginewright_serving.server.protocol.embeddings import (
    MOST_TEXTS,
    TEXTS,
    EmbeddingsDecoder,
    EmbeddingsEncoder,
    EmbeddingsRequest,
    FieldError,
)
from enginewright_serving.server.protocol.json_cost import VALUES
from enginewright_serving.transport.message import Body

PLAIN = EmbeddingsRequest(base64=False, timeout=0.0, priority=3)
AS_BYTES = EmbeddingsRequest(base64=True, timeout=0.0, priority=3)


def decode(content: object) -> tuple[EmbeddingsRequest, list[str]]:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    body = Body(len(data), 0)
    body.view()[:] = data
    plan, feeds = EmbeddingsDecoder("m", 4).decode(body, None)
    return plan, feeds[TEXTS].tolist()


@pytest.mark.parametrize("given", ["a film", ["a film"], ["", "é", "a" * 100_000]])
def test_texts_are_a_string_or_a_list_of_them(given: str | list[str]) -> None:
    texts = [given] if isinstance(given, str) else given
    assert decode({"input": given}) == (PLAIN, texts)


def test_what_clients_add_is_read_or_ignored() -> None:
    document = {
        "model": "m",
        "input": ["a"] * MOST_TEXTS,
        "encoding_format": "base64",
        "dimensions": 4,
        "user": "me",
        "parameters": {"timeout": 2_000_000, "priority": 1, "own": True},
    }
    plan, texts = decode(document)
    assert plan == EmbeddingsRequest(base64=True, timeout=2.0, priority=1)
    assert len(texts) == MOST_TEXTS
    absent = {"model": None, "encoding_format": None, "dimensions": None, "parameters": None}
    assert decode({"input": "a", **absent}) == (PLAIN, ["a"])


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        (b"", 400, "the request is not valid JSON"),
        (b"{", 400, "the request is not valid JSON"),
        (b'{"input": "\xff"}', 400, "the request is not valid JSON"),
        (b'{"input": "\\ud800"}', 400, "the request is not valid JSON"),
        (b"[" * 100_000, 400, "the request is not valid JSON"),
        (b'{"input": [' + b"[]," * (VALUES // 2) + b"0]}", 413, "more than 1,000,000 values"),
        ([], 400, "must be a JSON object with 'input'"),
        ({}, 400, "'input' must be a string, or a list of strings"),
        ({"input": []}, 400, "'input' must be a string, or a list of strings that is not empty"),
        ({"input": {"a": 1}}, 400, "'input' must be a string"),
        ({"input": [1, 2, 3]}, 400, "token IDs are not supported"),
        ({"input": [[1, 2], [3]]}, 400, "check_embedding_ctx_length=False"),
        ({"input": ["a", 1]}, 400, "'input' must hold strings only"),
        ({"input": [None]}, 400, "'input' must hold strings only"),
        ({"input": ["a"] * (MOST_TEXTS + 1)}, 400, "at most 2048 may be sent at once"),
        ({"input": "a", "model": "other"}, 404, "'other' is not served here"),
        ({"input": "a", "model": ["m"]}, 404, "a list is not served here"),
        ({"input": "a", "encoding_format": "int8"}, 400, "'int8'; write 'float' or 'base64'"),
        ({"input": "a", "encoding_format": ["float"]}, 400, "write 'float' or 'base64'"),
        ({"input": "a", "dimensions": 3}, 400, "have 4 dimensions; leave it out"),
        ({"input": "a", "dimensions": True}, 400, "vectors are not shortened"),
        ({"input": "a", "parameters": []}, 400, "'parameters' must be an object"),
        ({"input": "a", "parameters": {"timeout": -1}}, 400, "must be a number of microseconds"),
        ({"input": "a", "parameters": {"priority": "high"}}, 400, "'priority' must be a number"),
    ],
)
def test_invalid_and_hostile_bodies_are_refused(content: object, status: int, message: str) -> None:
    with pytest.raises(RequestError) as refusal:
        decode(content)
    assert refusal.value.status == status
    assert message in refusal.value.message
    assert len(refusal.value.message) < 300


def test_large_bodies_are_decoded_in_a_thread() -> None:
    decoder = EmbeddingsDecoder("m", 4)
    assert [decoder.is_slow(Body(size, 0), None) for size in (100, 100_000)] == [False, True]


def encode(plan: EmbeddingsRequest, vectors: Any) -> Any:
    response = EmbeddingsEncoder("m").encode(plan, [vectors, np.array([3, 4])])
    body = b"".join(response.parts)
    assert response.length == len(body)
    return json.loads(body)


def test_an_answer_has_vectors_in_the_order_of_the_texts_and_the_number_of_tokens() -> None:
    vectors = np.array([[0.1, -2, 3e-9], [4, 5, 6]], np.float32)
    answer = encode(PLAIN, vectors)
    data = answer.pop("data")
    usage = {"prompt_tokens": 7, "total_tokens": 7}
    assert answer == {"object": "list", "model": "m", "usage": usage}
    assert [(item["object"], item["index"]) for item in data] == [
        ("embedding", 0),
        ("embedding", 1),
    ]
    as_floats = np.array([item["embedding"] for item in data], np.float32)
    np.testing.assert_array_equal(as_floats, vectors)
    for item, vector in zip(encode(AS_BYTES, vectors)["data"], vectors, strict=True):
        data = np.frombuffer(base64.b64decode(item["embedding"]), "<f4")
        np.testing.assert_array_equal(data, vector)


def test_vectors_that_are_too_large_for_json_are_sent_in_base64_only() -> None:
    vectors = np.broadcast_to(np.float32(1), (2048, 2048))
    arrays: list[Any] = [vectors, np.ones(2048, np.int64)]
    encoder = EmbeddingsEncoder("m")
    encoder.check(AS_BYTES, arrays)
    with pytest.raises(FieldError, match="'base64'"):
        encoder.check(PLAIN, arrays)
    assert encoder.is_slow(AS_BYTES, arrays)
    assert not encoder.is_slow(PLAIN, [np.ones((1, 1024), np.float32), np.ones(1, np.int64)])


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (FieldError("model", "is wrong", 404, "model_not_found"),
         ("'model' is wrong", "invalid_request_error", "model", "model_not_found")),
        (RequestError(503, "busy"), ("busy", "server_error", None, None)),
    ],
)  # fmt: skip
def test_errors_have_the_form_that_clients_of_openai_read(
    error: RequestError, expected: tuple[str | None, ...]
) -> None:
    response = error_response(error, resource=ServedResource.EMBEDDINGS)
    keys = ("message", "type", "param", "code")
    document = dict(zip(keys, expected, strict=True))
    assert json.loads(b"".join(response.parts)) == {"error": document}
    assert (b"Retry-After" in response.headers) == (error.status == 503)
    plain = error_response(error, resource=ServedResource.INFER)
    assert json.loads(b"".join(plain.parts)) == {"error": error.message}
