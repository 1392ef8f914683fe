"""Compressed requests and responses over HTTP: real clients, what is not valid, and what expands to much."""

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from enginewright_contract.serving_options import AccessLogTask
from enginewright_serving import exchanges
from numpy.typing import NDArray

from tests.integration.test_server_protocol import echo_feeds, echo_model
from tests.support import waiting
from tests.support.broken_models import parse_text
from tests.support.hostile import costly_deflate
from tests.support.process_memory import forget_peak, memory_of
from tests.support.serving import (
    Answer,
    Server,
    binary_inputs,
    json_inputs,
    linear_model,
    write_artifact,
)
from tests.support.shared import share_server

MIB = 1 << 20
GZIP = {"Content-Encoding": "gzip"}
DEFLATE = {"Content-Encoding": "deflate"}
LIMIT = 16 * MIB  # of the bytes in flight
BODY = 4 * MIB  # of one
X = np.random.default_rng(1).random((3, 8), np.float32)


def doubling_model() -> Any:
    """Return x [n] -> y = x + x, of FP32, and of INT64 (i, j)."""
    return parse_text(
        "(float[n] x, int64[m] i) => (float[n] y, int64[m] j) { y = Add(x, x) j = Add(i, i) }"
    )


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The linear model, with an access log of every request in the file `access`."""
    root = tmp_path_factory.mktemp("linear")
    task = write_artifact(root, linear_model(), [{"x": X}], access_log=AccessLogTask(share=1.0))
    log = f"import os\nos.dup2(os.open({str(root / 'access')!r}, os.O_CREAT | os.O_WRONLY), 1)"
    with Server(root, task, before=log) as server:
        yield server


# where little memory is in flight
doubling = share_server(
    doubling_model,
    {"x": np.ones(3, np.float32), "i": np.ones(3, np.int64)},
    inflight_bytes=LIMIT,
    body_bytes=BODY,
    json_bytes=MIB,
)


echo = share_server(echo_model, echo_feeds())


def raw_deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(9, zlib.DEFLATED, -15)
    return stream.compress(data) + stream.flush()


def compress(data: bytes, coding: str) -> bytes:
    return zlib.compress(data) if coding == "deflate" else gzip.compress(data)


def document(**arrays: NDArray[Any]) -> tuple[bytes, bytes]:
    """Return the JSON and the tensors of a binary request for binary outputs."""
    head, tensors = binary_inputs(**arrays)
    return json.dumps(head).encode(), tensors


def in_json(**arrays: NDArray[Any]) -> bytes:
    return json.dumps(json_inputs(**arrays)).encode()


def send(server: Server, body: bytes, headers: Mapping[str, str], *, chunked: int = 0) -> Answer:
    """Send a body as it is, in chunks of that many bytes if it is to be chunked."""
    if not chunked:
        return server.post(body, headers=headers)
    request = server.infer_request(b"", headers=headers)
    request = request.replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    parts = (body[at : at + chunked] for at in range(0, len(body), chunked))
    framed = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return server.send(request + framed + b"0\r\n\r\n")


def of_binary(head: bytes, **headers: str) -> dict[str, str]:
    return {"Inference-Header-Content-Length": str(len(head))} | headers


def decompress_body(answer: Answer) -> bytes:
    """Return the body of an answer before it was compressed."""
    coding = answer.headers.get("content-encoding")
    if coding is None:
        assert "vary" not in answer.headers
        return answer.body
    assert answer.headers["vary"] == "Accept-Encoding"
    return gzip.decompress(answer.body) if coding == "gzip" else zlib.decompress(answer.body)


# Requests.


@pytest.mark.parametrize("coding", ["gzip", "deflate", "x-gzip", "GZIP"])
@pytest.mark.parametrize("chunked", [0, 7])
@pytest.mark.parametrize("binary", [False, True])
def test_a_compressed_request_is_answered_like_any_other(
    linear: Server, coding: str, chunked: int, binary: bool
) -> None:
    head, tensors = document(x=X) if binary else (in_json(x=X), b"")
    kind = of_binary(head) if binary else {}
    expected = send(linear, head + tensors, kind)
    assert expected.status == 200
    body = compress(head + tensors, coding.lower())
    answer = send(linear, body, kind | {"Content-Encoding": coding}, chunked=chunked)
    assert (answer.status, answer.body) == (200, expected.body)
    assert decompress_body(answer) == expected.body


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize("values", [30_000, 60_000, 400_000])
def test_large_requests_are_expanded_beside_others(
    doubling: Server, coding: str, values: int
) -> None:
    x = np.random.default_rng(2).random(values, np.float32)
    i = np.arange(values, dtype=np.int64)[: values // 4]
    head, tensors = document(x=x, i=i)
    body = compress(head + tensors, coding)
    answer = send(doubling, body, of_binary(head, **{"Content-Encoding": coding}))
    assert answer.status == 200, answer.body
    outputs = decompress_body(answer)[int(answer.headers["inference-header-content-length"]) :]
    assert outputs == (x + x).tobytes() + (i + i).tobytes()


def test_the_time_in_which_a_body_is_expanded_counts_toward_its_timeout(doubling: Server) -> None:
    x = np.random.default_rng(3).random(900_000, np.float32)  # milliseconds
    head, tensors = document(x=x, i=np.ones(1, np.int64))
    for microseconds, status in ((2_000, 504), (60_000_000, 200)):
        limit = {"binary_data_output": True, "timeout": microseconds}
        impatient = json.dumps(json.loads(head) | {"parameters": limit}).encode()
        answer = send(doubling, gzip.compress(impatient + tensors, 1), of_binary(impatient, **GZIP))
        assert answer.status == status, answer.body


def test_tensors_in_json_that_take_long_to_decode(doubling: Server) -> None:
    x = np.arange(60_000, dtype=np.float32)
    body = gzip.compress(in_json(x=x, i=np.ones(1, np.int64)))
    answer = send(doubling, body, GZIP)
    assert answer.json()["outputs"][0]["data"] == (x + x).tolist()


WRONG = {
    "not compressed": (GZIP, in_json(x=X), "smaller than it states"),
    "short": (GZIP, b"{}", "too short"),
    "zlib": (GZIP, zlib.compress(in_json(x=X)), "smaller than it states"),
    "gzip": (DEFLATE, gzip.compress(in_json(x=X)), "incorrect header check"),
    "raw": (DEFLATE, raw_deflate(in_json(x=X)), "zlib's format"),
    "truncated": (DEFLATE, zlib.compress(in_json(x=X))[:-1], "truncated"),
    "beginning": (DEFLATE, b"\x78", "truncated"),
    "checksum": (DEFLATE, zlib.compress(in_json(x=X))[:-1] + b"\0", "incorrect data check"),
    "garbage": (DEFLATE, zlib.compress(in_json(x=X)) + b"\0", "something follows it"),
    "members": (GZIP, gzip.compress(b"{") + gzip.compress(b"{" * 1), "something follows it"),
    "parts": (GZIP, gzip.compress(b"{}" * 9) + gzip.compress(b"{"), "larger than it states"),
    "crc": (
        GZIP,
        gzip.compress(b"{}")[:-8] + b"1234" + gzip.compress(b"{}")[-4:],
        "incorrect data check",
    ),
    "less": (GZIP, gzip.compress(b"{}")[:-4] + b"\3\0\0\0", "incorrect length check"),
    "lie": (GZIP, gzip.compress(b"{}")[:-4] + b"\0\0\0\x80", "smaller than it states"),
    "content": (GZIP, gzip.compress(b"{"), "not valid JSON"),
    "nothing": (GZIP, gzip.compress(b""), "not valid JSON"),
    "empty": (GZIP, b"", "the body is empty"),
}


@pytest.mark.parametrize("what", WRONG)
def test_an_invalid_compressed_body_is_refused_with_the_reason(linear: Server, what: str) -> None:
    headers, body, reason = WRONG[what]
    with linear.wire() as wire:
        wire.send(linear.infer_request(body, headers=headers))
        answer = wire.receive()
        assert answer.status == 400
        assert reason in answer.json()["error"]
        wire.send(linear.infer_request(gzip.compress(in_json(x=X)), headers=GZIP))
        assert wire.receive().status == 200, "on the same connection"


def test_the_length_of_the_json_counts_expanded_bytes(linear: Server) -> None:
    head, tensors = document(x=X)
    size = len(head) + len(tensors)
    answer = send(linear, gzip.compress(head + tensors), of_binary(b" " * (size + 1), **GZIP))
    assert answer.status == 400
    assert f"is {size + 1}, but the body has {size} bytes" in answer.json()["error"]


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip", "compress", "\xe9"])
def test_an_unsupported_coding_is_refused(linear: Server, coding: str) -> None:
    request = linear.infer_request(b"{}", headers={"Content-Encoding": "?"})
    answer = linear.send(request.replace(b"?", coding.encode("latin-1")))
    assert answer.status == 415
    assert "use gzip or deflate" in answer.json()["error"]
    assert answer.headers["accept-encoding"] == "gzip, deflate"


# Limits.


def bomb(coding: str) -> bytes:
    """Return what expands to 512 MiB, of which the beginning is as small."""
    stream = zlib.compressobj(9, zlib.DEFLATED, 15 if coding == "deflate" else 31)
    part = bytes(16 * MIB)
    return b"".join(stream.compress(part) for _ in range(32)) + stream.flush()


# fault: Hostile | small compressed bodies expand to gigabytes | the limits of bodies apply to what they
#   expand to, and memory is charged as it is written | prevented
@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize("json_length", [None, 100])
def test_a_bomb_is_refused_and_takes_no_memory(
    doubling: Server, coding: str, json_length: int | None
) -> None:
    whole = bomb(coding)
    assert len(whole) < MIB
    lies = [whole[:-4] + size.to_bytes(4, "little") for size in (0, 1000, MIB // 2)]
    headers = {"Content-Encoding": coding}
    if json_length is not None:
        headers["Inference-Header-Content-Length"] = str(json_length)
    refused = [whole, whole[: 64 * 1024]] if coding == "deflate" else [whole, *lies]
    before = 0
    for turn in range(6):
        for body in refused:
            for chunked in (0, 40_000):
                answer = send(doubling, body, headers, chunked=chunked)
                lies_about_size = coding == "gzip" and body is not whole
                assert answer.status == (400 if lies_about_size else 413), answer.body
        if not turn:  # from now on memory is used again
            before = memory_of(doubling.process.pid, "VmRSS")
            forget_peak(doubling.process.pid)  # the peak
    assert memory_of(doubling.process.pid, "VmHWM") - before < BODY


def test_limits_apply_to_the_expanded_body(doubling: Server) -> None:
    ones = np.ones(MIB // 4, np.float32)  # 1 MiB
    head, tensors = document(x=np.tile(ones, 5), i=np.ones(1, np.int64))
    for coding, name in ((gzip.compress, "gzip"), (zlib.compress, "deflate")):
        headers = {"Content-Encoding": name}
        answer = send(doubling, coding(head + tensors), of_binary(head, **headers))
        assert answer.status == 413
        assert f"the body exceeds the limit of {BODY} bytes" in answer.json()["error"]
        answer = send(doubling, coding(b"[" + b" " * MIB + b"]"), headers)
        assert answer.status == 413
        assert f"the JSON exceeds {MIB} bytes; send tensors in binary" in answer.json()["error"]


def test_nothing_is_charged_after_requests_that_fail_or_are_left(doubling: Server) -> None:
    """Each holds some MiB, so that a few that are not released would fill what may be in flight."""
    head, tensors = document(x=np.ones(3 * MIB // 4, np.float32), i=np.ones(1, np.int64))
    whole = head + tensors
    for coding in ("gzip", "deflate"):
        good = compress(whole, coding)
        # so that some leave while their response is compressed
        headers = of_binary(head, **{"Content-Encoding": coding, "Accept-Encoding": coding})
        for body in (good[:-9] + b"\0" + good[-8:], compress(whole[:-1], coding)):
            for _ in range(8):
                answer = send(doubling, body, headers)
                assert answer.status == 400, answer.body
        for _ in range(12):
            with doubling.wire() as wire:
                wire.send(doubling.infer_request(good, headers=headers))
    waiting.until(lambda: doubling.metric("enginewright_requests_in_flight") == 0)
    for _ in range(3):
        answer = send(doubling, gzip.compress(whole), of_binary(head, **GZIP))
        assert answer.status == 200, answer.body


# Responses.


def test_a_large_response_is_compressed_beside_others(doubling: Server) -> None:
    i = np.arange(400_000, dtype=np.int64)
    head, tensors = document(x=np.ones(1, np.float32), i=i)
    answer = send(doubling, head + tensors, of_binary(head, **{"Accept-Encoding": "gzip"}))
    assert answer.headers["content-encoding"] == "gzip"
    assert len(answer.body) < i.nbytes / 2
    start = int(answer.headers["inference-header-content-length"])
    whole = decompress_body(answer)
    assert json.loads(whole[:start])["outputs"][1]["shape"] == [i.size]
    assert whole[start + 4 :] == (i + i).tobytes()


def test_only_inference_responses_are_compressed(linear: Server) -> None:
    for method, path in (
        *(("GET", path) for path in ("/metrics", "/v2", "/v2/models/m/execution")),
        ("HEAD", "/metrics"),
    ):
        answer = linear.get(path, method=method, headers={"Accept-Encoding": "gzip"})
        assert answer.status == 200
        assert "content-encoding" not in answer.headers
    wrong = json.dumps({"inputs": [{"name": "a" * 3000, "datatype": "FP32", "shape": [1]}]})
    answer = send(linear, wrong.encode(), {"Accept-Encoding": "gzip"})
    assert answer.status == 400
    assert "error" in answer.json()


# What else sees requests and responses.


def test_the_access_log_has_the_bytes_of_the_connection(linear: Server) -> None:
    x = np.ones((400, 8), np.float32)
    body = gzip.compress(in_json(x=x))
    answer = send(linear, body, GZIP | {"Accept-Encoding": "gzip", "X-Request-Id": "packed"})
    assert answer.headers["content-encoding"] == "gzip"
    log = linear.root / "access"
    waiting.until(lambda: "request_id=packed" in log.read_text(), "it is logged")
    (line,) = [line for line in log.read_text().splitlines() if "request_id=packed" in line]
    assert f" request_bytes={len(body)} response_bytes={len(answer.body)} " in line


def test_copies_for_a_canary_are_not_compressed(linear: Server) -> None:
    path = f"/v2/models/m/{exchanges.RESOURCE}?{exchanges.SHARE_QUERY}=1"

    def copy() -> Answer:
        return linear.get(path, headers=linear.probe_header())

    copy()
    body = in_json(x=np.ones((400, 8), np.float32))
    plain = send(linear, body, {}).body
    copy()
    answer = send(linear, gzip.compress(body), GZIP | {"Accept-Encoding": "gzip"})
    assert decompress_body(answer) == plain
    taken_copy = copy()
    head = exchanges.ExchangeHead.read(taken_copy.headers[exchanges.HEADER.lower()].encode())
    assert taken_copy.body == body + plain
    assert (head.request, head.request_json, head.answer_json) == (len(body), None, None)


@pytest.mark.parametrize("there", ["gzip", "deflate", None])
@pytest.mark.parametrize("back", ["gzip", "deflate", None])
@pytest.mark.parametrize("binary", [True, False])
def test_tritons_client_compresses_in_both_directions(
    echo: Server,
    monkeypatch: pytest.MonkeyPatch,
    there: str | None,
    back: str | None,
    binary: bool,
) -> None:
    decompressed = []
    for module, name in ((gzip, "gzip"), (zlib, "deflate")):
        original = module.decompress

        def counting(data: bytes, name: str = name, original: Any = original) -> bytes:
            decompressed.append(name)
            return bytes(original(data))

        monkeypatch.setattr(module, "decompress", counting)
    feeds = {name: np.repeat(array, 200, axis=0) for name, array in echo_feeds().items()}
    inputs = []
    for name, array in feeds.items():
        given = triton.InferInput(name, list(array.shape), name.removeprefix("in_"))
        given.set_data_from_numpy(array, binary_data=binary or "FP16" in name)
        inputs.append(given)
    outputs = [
        triton.InferRequestedOutput(name.replace("in_", "out_"), binary_data=binary)
        for name in feeds
    ]
    client = triton.InferenceServerClient(f"127.0.0.1:{echo.port}")
    codings = {"request_compression_algorithm": there, "response_compression_algorithm": back}
    answer = client.infer("m", inputs, outputs=outputs, **codings)
    assert decompressed == [back] * (back is not None)
    for name, array in feeds.items():
        output = answer.as_numpy(name.replace("in_", "out_"))
        if array.dtype == object:
            texts = [item.decode() if binary else item for item in output.ravel()]
            assert texts == array.ravel().tolist()
        else:
            np.testing.assert_array_equal(output, array)


# fault: Hostile | a compressed body has ten thousand blocks without data, each of which takes zlib microseconds |
#   it is expanded in steps of limited time, most of them in a thread | others are answered meanwhile
def test_blocks_without_data_are_expanded_in_the_thread(linear: Server) -> None:
    body = costly_deflate(in_json(x=X), 80_000)
    answer = send(linear, body, DEFLATE)
    assert answer.status == 200, answer.body
