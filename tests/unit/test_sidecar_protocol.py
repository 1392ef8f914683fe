"""Golden samples as requests, and answers as arrays: right ones are read, others are named, none kills."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from enginewright_contract.manifest import TensorSpec
from enginewright_runtime.session.datatypes import BF16, BY_ONNX
from enginewright_runtime.session.samples import GoldenError, GoldenSample
from enginewright_serving.sidecar.client import ServerResponse
from enginewright_serving.sidecar.json_tensors import TooLargeError
from enginewright_serving.sidecar.protocol import (
    ResponseError,
    UnencodableError,
    decode,
    encode,
    timing,
)
from enginewright_serving.sidecar.samples import GoldenSamples, Types
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.manifests import manifest

DTYPES = ("float32", "float64", "float16", "int64", "uint8", "bool", "string", "bfloat16")


def specs(*dtypes: str) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name=dtype, dtype=dtype, shape=(None,)) for dtype in dtypes)


def arrays(dtype: str) -> NDArray[Any]:
    if dtype == "string":
        return np.array(["grüß", "", "x" * 300])
    if dtype == "bfloat16":
        return np.array([0x3F80, 0x7FC0, 0], np.uint16)
    return np.array([0, 1, 1]).astype(dtype)


def artifact(
    root: Path, samples: int = 1, size: int = 1, dtypes: tuple[str, ...] = DTYPES
) -> GoldenSamples:
    """Write golden files in which every output equals its input; return what is read."""
    (root / "golden").mkdir()
    files: dict[str, Any] = {
        f"s{index}/{dtype}": np.tile(arrays(dtype), size)
        for index in range(samples)
        for dtype in dtypes
    }
    np.savez(root / "golden/inputs.npz", **files)
    np.savez(root / "golden/outputs.npz", **files)
    return GoldenSamples(root, manifest(inputs=specs(*dtypes), outputs=specs(*dtypes)))


def echo(body: bytes, json_length: int | None) -> tuple[bytes, int | None]:
    """Return the answer of a server that gives every input back under its name."""
    document = orjson.loads(body if json_length is None else body[:json_length])
    header = orjson.dumps({"model_name": "m", "outputs": document["inputs"]})
    if json_length is None:
        return header, None
    return header + body[json_length:], len(header)


def test_every_type_goes_there_and_back_in_binary(tmp_path: Path) -> None:
    samples = artifact(tmp_path)
    sample = samples.read("s0")
    question = encode(sample, samples.types, binary=True)
    answer, length = echo(b"".join(question.parts), question.json_length)
    tensors = decode(answer, length, sample.expected, samples.types)
    assert set(tensors) == set(DTYPES)
    for name, array in tensors.items():
        assert np.array_equal(array, sample.expected[name]), name
        assert array.dtype == sample.expected[name].dtype


def test_every_type_but_bfloat16_goes_there_and_back_in_json(tmp_path: Path) -> None:
    samples = artifact(tmp_path, dtypes=DTYPES[:-1])
    sample = samples.read("s0")
    question = encode(sample, samples.types, binary=False)
    assert question.json_length is None
    document = json.loads(b"".join(question.parts))
    assert [item["name"] for item in document["outputs"]] == list(sample.expected)
    tensors = decode(*echo(b"".join(question.parts), None), sample.expected, samples.types)
    for name, array in tensors.items():
        assert np.array_equal(array, sample.expected[name]), name


def test_unsupported_json_values_are_reported(tmp_path: Path) -> None:
    types = Types({"x": BF16}, {"x": BF16})
    sample = GoldenSample("s", {"x": np.zeros(1, np.uint16)}, {"x": np.zeros(1, np.uint16)})
    with pytest.raises(UnencodableError, match="BF16"):
        encode(sample, types, binary=False)
    samples = artifact(tmp_path, dtypes=("float32",))
    sample = GoldenSample("s", {"float32": np.array([np.nan], np.float32)}, {})
    with pytest.raises(UnencodableError, match="NaN or infinity"):
        encode(sample, samples.types, binary=False)


FLOATS = Types({}, {"y": BY_ONNX["tensor(float)"]})
WANTED = {"y": None}


def answer(**tensor: Any) -> bytes:
    fields = {"name": "y", "datatype": "FP32", "shape": [2], "data": [1, 2]}
    return orjson.dumps({"outputs": [{**fields, **tensor}]})


@pytest.mark.parametrize(
    ("body", "wording"),
    [
        (b"", "is not a JSON object with outputs"),
        (b"[]", "is not a JSON object with outputs"),
        (b'{"outputs": 3}', "is not a JSON object with outputs"),
        (b'{"outputs": [{}]}', "is not a JSON object with outputs"),
        (b'{"outputs": []}', "has no output 'y'"),
        (answer(datatype="FP64"), "gives output 'y' as FP64, expected FP32"),
        (answer(shape=None), "gives output 'y' no shape"),
        (answer(shape=[-1]), "gives output 'y' no shape"),
        (answer(shape=[3]), "gives output 'y' other data than 3 elements FP32"),
        (
            answer(data=0, parameters={"data": [7, 8]}),
            "gives output 'y' other data than 2 elements FP32",
        ),
        (answer(data=["a", "b"]), "other data than 2 elements FP32"),
        (answer(data=[[1], [2, 3]]), "other data than 2 elements FP32"),
        (answer(parameters={"binary_data_size": 8}), "other data than 2 elements FP32"),
    ],
)
def test_wrong_answer_is_named(body: bytes, wording: str) -> None:
    with pytest.raises(ResponseError, match=wording):
        decode(body, None, WANTED, FLOATS)


def test_null_is_not_a_number() -> None:
    tensors = decode(answer(data=[None, 1.5]), None, WANTED, FLOATS)
    assert np.array_equal(tensors["y"], np.array([np.nan, 1.5], np.float32), equal_nan=True)


@given(
    st.binary(max_size=60)
    | st.builds(
        lambda at, cut, byte: (b := answer())[:at] + byte + b[at + cut :],
        st.integers(0, 60),
        st.integers(0, 20),
        st.binary(max_size=4),
    ),
    st.none() | st.integers(-5, 200),
)
def test_no_answer_breaks_the_reader(body: bytes, json_length: int | None) -> None:
    try:
        tensors = decode(body, json_length, WANTED, FLOATS)
    except ResponseError:
        return
    assert tensors["y"].dtype == np.float32


def test_of_many_samples_eight_are_asked(tmp_path: Path) -> None:
    samples = artifact(tmp_path, samples=20, dtypes=("float32",))
    assert samples.names == ["s0", "s2", "s5", "s7", "s10", "s12", "s15", "s17"]


@pytest.mark.parametrize(
    ("header", "reported"),
    [
        (b"queue;dur=12.5, compute;dur=250", (0.0125, 0.25)),
        (b'cache;desc="a;b", compute;desc=x;dur=1.5', (0.0, 0.0015)),
        (b"compute;dur=-1, queue;dur=nan", (0.0, None)),
        (b"compute;dur=1e9, \xff;;=,", (0.0, None)),
        (b"", (0.0, None)),
    ],
)
def test_server_timing_is_read(header: bytes, reported: tuple[float, float | None]) -> None:
    answer = ServerResponse()
    answer.headers[b"server-timing"] = header
    assert timing(answer) == pytest.approx(reported)


@pytest.mark.parametrize(("size", "kept"), [(1, True), (300_000, False)])
def test_only_small_files_are_kept_in_memory(tmp_path: Path, size: int, kept: bool) -> None:
    samples = artifact(tmp_path, size=size, dtypes=("float32",))
    assert (samples.read("s0") is samples.read("s0")) is kept


@pytest.mark.parametrize("size", [1, 300_000])
def test_the_digest_of_inputs_is_that_of_the_same_inputs_only(tmp_path: Path, size: int) -> None:
    dtypes = DTYPES if size == 1 else ("float32",)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first, second = (artifact(tmp_path / item, size=size, dtypes=dtypes) for item in ("a", "b"))
    sample = second.read("s0")
    assert first.inputs_digest(first.read("s0")) == second.inputs_digest(sample)
    for name, array in sample.feeds.items():
        for other in (array[:2], array.reshape(-1, 1), array[::-1], array.astype("U9")):
            feeds = {**sample.feeds, name: other}
            changed = GoldenSample(f"{name}{other.shape}{other[0]}{other.dtype}", feeds, {})
            assert second.inputs_digest(changed) != second.inputs_digest(sample)


@pytest.mark.parametrize(
    ("inputs", "outputs", "wording"),
    [
        ((), ("float32",), "there are no golden samples"),
        (("float32",), (), "golden sample 's0' has no outputs"),
        (("int64",), ("int64",), "golden sample 's0' has no input 'float32'"),
    ],
)
def test_misfit_samples_are_refused(
    tmp_path: Path, inputs: tuple[str, ...], outputs: tuple[str, ...], wording: str
) -> None:
    (tmp_path / "golden").mkdir()
    for name, dtypes in (("inputs", inputs), ("outputs", outputs)):
        files: dict[str, Any] = {f"s0/{dtype}": arrays(dtype) for dtype in dtypes}
        np.savez(tmp_path / f"golden/{name}.npz", **files)
    with pytest.raises(GoldenError, match=wording):
        GoldenSamples(tmp_path, manifest(inputs=specs("float32"), outputs=specs("float32")))


def test_an_input_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GoldenError, match="input 'complex64' is of a type"):
        GoldenSamples(tmp_path, manifest(inputs=specs("complex64"), outputs=specs("float32")))


MANY = 70_000  # more than are converted at a time


@pytest.mark.parametrize("name", ["tensor(float)", "tensor(int64)", "tensor(bool)"])
@pytest.mark.parametrize("rows", [1, 7, MANY // 2])
def test_many_numbers_are_read_in_pieces_and_in_order(name: str, rows: int) -> None:
    datatype = BY_ONNX[name]
    expected = (np.arange(MANY) % 3).astype(datatype.dtype).reshape(rows, -1)
    described = {"name": "y", "datatype": datatype.name, "shape": list(expected.shape)}
    for data in (expected.ravel().tolist(), expected.tolist()):
        body = json.dumps({"outputs": [{**described, "data": data, "parameters": {}}]}).encode()
        tensors = decode(body, None, WANTED, Types({}, {"y": datatype}))["y"]
        assert tensors.dtype == expected.dtype
        assert np.array_equal(tensors, expected)


def test_each_of_several_outputs_is_its_own() -> None:
    """Beside strings and names that look like an array of numbers."""
    strings, floats = BY_ONNX["tensor(string)"], BY_ONNX["tensor(float)"]
    given: dict[str, Any] = {
        "a": [1, 2],
        "data": [3, 4],
        '"data":[': ['"data": [1]', "data"],
        "n": [],
    }
    types = Types({}, {name: strings if "[" in name else floats for name in given})
    outputs = [
        {"name": name, "datatype": types.outputs[name].name, "shape": [len(data)], "data": data}
        for name, data in given.items()
    ]
    tensors = decode(orjson.dumps({"outputs": outputs}), None, None, types)
    assert {name: array.tolist() for name, array in tensors.items()} == given


@pytest.mark.parametrize("data", ["1,2,", "1 2", ",1", "1,,2", "[1,2", "1e,2"])
def test_numbers_that_are_no_json_are_not_read(data: str) -> None:
    body = answer(data=[0]).replace(b"[0]", f"[{data}]".encode())
    with pytest.raises(ResponseError):
        decode(body, None, WANTED, FLOATS)


@pytest.mark.parametrize(
    "piece", [b"{}", b"[[]]", b'"a"', b'"\xc3\xa9"', b'{"a":1}', b"[[[[1]]]]", b"1"]
)
def test_too_large_answer_is_not_decoded(piece: bytes) -> None:
    """Of a text of 3 MB, Python's objects are allowed 4 MB."""
    data = b",".join([piece] * (3_000_000 // len(piece)))
    body = answer(data=["x"]).replace(b'"x"', data)
    tracemalloc.start()
    try:
        with pytest.raises((TooLargeError, ResponseError)):
            decode(body, None, WANTED, FLOATS, 4_000_000)
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["tensor(string)", "tensor(double)"])
def test_limit_is_named(name: str) -> None:
    datatype = BY_ONNX[name]
    data: list[Any] = ["a" * 30] * 60_000 if datatype.is_string else [1.5] * 600_000
    parts = (b"\x1e\0\0\0" + b"a" * 30) * len(data) if datatype.is_string else b""
    tensor: dict[str, Any] = {"datatype": datatype.name, "shape": [len(data)]}
    if datatype.is_string:
        tensor["parameters"] = {"binary_data_size": len(parts)}
    else:
        tensor["data"] = data
    header = orjson.dumps({"outputs": [{**tensor, "name": item} for item in "ab"]})
    types = Types({}, dict.fromkeys("ab", datatype))
    length = len(header) if datatype.is_string else None
    with pytest.raises(TooLargeError, match="more than 7 MiB"):
        decode(header + parts * 2, length, None, types, 7 << 20)


def test_short_strings_in_binary_are_not_decoded_without_a_limit() -> None:
    datatype = BY_ONNX["tensor(string)"]
    tensors = b"\x01\0\0\0a" * 100_000
    described = {"name": "y", "datatype": "BYTES", "shape": [100_000]}
    header = orjson.dumps(
        {"outputs": [described | {"parameters": {"binary_data_size": len(tensors)}}]}
    )
    types = Types({}, {"y": datatype})
    result = decode(header + tensors, len(header), None, types)
    assert result["y"].tolist() == ["a"] * 100_000
    with pytest.raises(TooLargeError):
        decode(header + tensors, len(header), None, types, 4_000_000)


def test_inputs_that_are_too_large_as_json_are_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("enginewright_serving.sidecar.protocol.JSON_BYTES", 1_000_000)
    types = Types({"x": BY_ONNX["tensor(float)"]}, {})
    for count in (100_000, 1_000_000):
        sample = GoldenSample("s", {"x": np.full(count, 0.5, np.float32)}, {})
        if count < 1_000_000:
            (given,) = json.loads(b"".join(encode(sample, types, binary=False).parts))["inputs"]
            assert given["data"] == [0.5] * count
        else:
            with pytest.raises(UnencodableError, match="as JSON"):
                encode(sample, types, binary=False)
