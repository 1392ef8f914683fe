"""Request bodies as arrays: every value comes back exactly, or the request is refused."""

import json
from typing import Any

import numpy as np
import orjson
import pytest
from enginewright_runtime.core.request_errors import RequestError
from enginewright_runtime.session.datatypes import BF16, BYTES, DATATYPES, Datatype
from enginewright_runtime.session.signature import Signature, Tensor
from enginewright_serving.binary_tensors import encode_strings, read_tensor
from enginewright_serving.server.protocol import encode, json_cost
from enginewright_serving.server.protocol.decode import Decoder, Feeds, count_held_bytes
from enginewright_serving.server.protocol.encode import Encoder
from enginewright_serving.server.protocol.json_cost import NAMES, VALUES
from enginewright_serving.server.protocol.request_checks import STRINGS
from enginewright_serving.transport.call import InferenceCall
from enginewright_serving.transport.inflight import InFlight
from enginewright_serving.transport.message import Body
from enginewright_serving.transport.settings import TransportSettings
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.effort import examples

IN_JSON = [datatype for datatype in DATATYPES if datatype is not BF16]
shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)


def signature(*datatypes: Datatype) -> Signature:
    """Return a model with an input, and an output of the same name, of each datatype."""
    tensors = {item.name: Tensor(item.name, item, (), ()) for item in datatypes}
    return Signature(tensors, tensors, ())


def decode(served: Signature, header: bytes, tensors: bytes | None = None) -> Feeds:
    data = header + (tensors or b"")
    json_length = None if tensors is None else len(header)
    body = Body(len(data), json_length or 0)
    body.view()[:] = data
    return Decoder(served).decode(body, json_length)[1]


def document(datatype: Datatype, shape: Any, data: Any) -> bytes:
    given = {"name": datatype.name, "datatype": datatype.name, "shape": shape, "data": data}
    return json.dumps({"inputs": [given]}).encode()


def elements_of(datatype: Datatype) -> st.SearchStrategy[Any]:
    """Return the values of a datatype, as JSON has them."""
    kind = datatype.dtype.kind
    if kind == "b":
        return st.booleans()
    if kind == "O":
        return st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
    if kind == "f":
        bits: Any = datatype.dtype.itemsize * 8
        return st.floats(width=bits, allow_nan=False, allow_infinity=False) | st.integers(-9, 9)
    edges = st.sampled_from([datatype.low, datatype.high])
    return edges | st.integers(datatype.low, datatype.high)


def nest(values: list[Any], shape: tuple[int, ...]) -> Any:
    if not shape:
        return values[0]
    step = len(values) // shape[0] if shape[0] else 0
    return [nest(values[index * step : (index + 1) * step], shape[1:]) for index in range(shape[0])]


@st.composite
def tensors(draw: st.DrawFn, among: list[Datatype]) -> tuple[Datatype, tuple[int, ...], list[Any]]:
    datatype = draw(st.sampled_from(among))
    shape = draw(shapes)
    count = int(np.prod(shape, dtype=int))
    return datatype, shape, draw(st.lists(elements_of(datatype), min_size=count, max_size=count))


def reference(datatype: Datatype, shape: tuple[int, ...], values: list[Any]) -> NDArray[Any]:
    """Return the array, converted one by one."""
    array = np.empty(len(values), datatype.dtype)
    for index, value in enumerate(values):
        array[index] = value
    return array.reshape(shape)


@settings(max_examples=examples(150))
@given(tensors(IN_JSON), st.booleans())
def test_json_comes_back_exactly(
    tensor: tuple[Datatype, tuple[int, ...], list[Any]], flat: bool
) -> None:
    datatype, shape, values = tensor
    data = values if flat or not shape else nest(values, shape)
    array = decode(signature(datatype), document(datatype, shape, data))[datatype.name]
    assert (array.dtype, array.shape) == (datatype.dtype, shape)
    np.testing.assert_array_equal(array, reference(datatype, shape, values), strict=True)


@settings(max_examples=examples(150))
@given(tensors(list(DATATYPES)))
def test_binary_comes_back_exactly(tensor: tuple[Datatype, tuple[int, ...], list[Any]]) -> None:
    datatype, shape, values = tensor
    array = reference(datatype, shape, values)
    content = encode_strings(array) if datatype is BYTES else array.tobytes()
    given = {
        "name": datatype.name,
        "datatype": datatype.name,
        "shape": shape,
        "parameters": {"binary_data_size": len(content)},
    }
    asked = {"inputs": [given], "parameters": {"binary_data_output": True}}
    header = json.dumps(asked).encode()
    got = decode(signature(datatype), header, content)[datatype.name]
    np.testing.assert_array_equal(got, array, strict=True)


@settings(max_examples=examples(100))
@given(tensors(list(DATATYPES)), st.booleans(), st.integers(1, 8))
def test_encoded_response_decodes(
    given: tuple[Datatype, tuple[int, ...], list[Any]], binary: bool, piece: int
) -> None:
    datatype, shape, values = given
    binary = binary or datatype is BF16
    served = signature(datatype)
    array = reference(datatype, shape, values)
    header = orjson.dumps(
        {
            "inputs": [
                {
                    "name": datatype.name,
                    "datatype": datatype.name,
                    "shape": [0],
                    "parameters": {"binary_data_size": 0},
                }
            ],
            "parameters": {"binary_data_output": binary},
            "id": "\0",
        }
    )
    body = Body(len(header), len(header))
    body.view()[:] = header
    plan, _ = Decoder(served).decode(body, len(header))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode, "_PIECE", piece)
        response = Encoder("m", "1", served).encode(plan, [array])
    content = b"".join(response.parts)
    assert len(content) == response.length
    text = bytes(response.parts[0]) if binary else content
    described = json.loads(text)
    assert described["id"] == "\0"
    (output,) = described["outputs"]
    assert (output["datatype"], output["shape"]) == (datatype.name, list(shape))
    if not binary:
        np.testing.assert_array_equal(reference(datatype, shape, output["data"]), array)
    elif datatype is BYTES:
        tensor = served.outputs[datatype.name]
        size = len(content) - len(text)
        got = read_tensor(tensor, shape, memoryview(content), len(text), size)
        np.testing.assert_array_equal(got, array)
    else:
        assert content[len(text) :] == array.tobytes()


# What no element of the datatype may be, and what they must be instead.
OTHERS: dict[str, tuple[list[Any], str]] = {
    "f": ([True, "1", None, {}, [1.0]], "numbers"),
    "i": ([True, 1.0, 0.5, "1", None, {}, [1]], "integers from {low} to {high}"),
    "u": ([False, 1.0, -1, "1", None, {}, [1]], "integers from {low} to {high}"),
    "b": ([0, 1, 1.0, "true", None, {}, [True]], "true or false"),
    "O": ([1, 1.0, True, None, {}, ["a"]], "strings"),
}


@pytest.mark.parametrize("datatype", IN_JSON, ids=lambda item: item.name)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_one_element_of_another_type_refuses_the_request(datatype: Datatype, at: int) -> None:
    fine = {"b": True, "O": "a"}.get(datatype.dtype.kind, 1)
    outside = [] if not datatype.high else [datatype.low - 1, datatype.high + 1, 10**300]
    others, kind = OTHERS[datatype.dtype.kind]
    cause = f"must hold {kind.format(low=datatype.low, high=datatype.high)}"
    for other in [*others, *outside]:
        data = [fine] * 3
        data[at] = other
        for written in (data, [data]):
            with pytest.raises(RequestError) as refused:
                decode(signature(datatype), document(datatype, [1, 3], written))
            assert refused.value.status == 400
            expected = "" if isinstance(other, list) else cause  # else the nesting is wrong
            assert refused.value.message.startswith(f"input '{datatype.name}': 'data' {expected}")


@pytest.mark.parametrize(
    ("shape", "data", "cause"),
    [
        ([2, 2], [[1, 2], [3]], "lists of different lengths"),
        ([2, 2], [[1, 2], 3], "lists of different lengths"),
        ([2, 2], [[[1, 2]], [[3, 4]]], "is nested as [2, 1, 2], but shape is [2, 2]"),
        ([4], [[1], [2], [3], [4]], "is nested as [4, 1], but shape is [4]"),
        ([4], [[1, 2], [3, 4]], "is nested as [2, 2], but shape is [4]"),
        ([], [[1]], "is nested as [1, 1], but shape is []"),
        ([], [1, 2], "has 2 elements, shape asks for 1"),
        ([2**31 - 1] * 2, [[]], f"has 0 elements, shape asks for {(2**31 - 1) ** 2}"),
        ([0, 3], [[1]], "has 1 elements, shape asks for 0"),
        ([1], "1", "must be a list"),
        ([1], {"0": 1}, "must be a list"),
    ],
    ids=str,
)
def test_nesting_other_than_the_shape_is_named(shape: list[int], data: Any, cause: str) -> None:
    (datatype,) = (item for item in DATATYPES if item.name == "FP32")
    with pytest.raises(RequestError) as refused:
        decode(signature(datatype), document(datatype, shape, data))
    assert cause in refused.value.message


DEEP = b"[" * 1000 + b"]" * 1000
LONG = b'"' + b"a" * 1_000_000 + b'"'
HUGE = b"[" + b"1," * 500_000 + b"1]"
STRANGE = {
    "deep": DEEP,
    "long": LONG,
    "huge": HUGE,
    "empties": b"[" + b"[]," * 100_000 + b"[]]",
    "objects": b"[" + b"{}," * 100_000 + b"{}]",
    "integer": b"1" * 200,
    "names": b"{" + b",".join(b'"%d":0' % index for index in range(9000)) + b"}",
}
PLACES = {
    "data": b'{"inputs":[{"name":"FP32","datatype":"FP32","shape":[2],"data":%b}]}',
    "element": b'{"inputs":[{"name":"FP32","datatype":"FP32","shape":[1],"data":[%b]}]}',
    "shape": b'{"inputs":[{"name":"FP32","datatype":"FP32","shape":%b,"data":[1]}]}',
    "size": b'{"inputs":[{"name":"FP32","datatype":"FP32","shape":[%b],"data":[1]}]}',
    "datatype": b'{"inputs":[{"name":"FP32","datatype":%b,"shape":[1],"data":[1]}]}',
    "name": b'{"inputs":[{"name":%b,"datatype":"FP32","shape":[1],"data":[1]}]}',
    "inputs": b'{"inputs":%b}',
    "input": b'{"inputs":[%b]}',
    "parameter": b'{"inputs":[{"name":"FP32","datatype":"FP32","shape":[1],"data":[1],'
    b'"parameters":{"binary_data_size":%b}}]}',
    "id": b'{"id":%b,"inputs":[{"name":"FP32","datatype":"FP32","shape":[1],"data":[1]}]}',
    "timeout": b'{"parameters":{"timeout":%b},'
    b'"inputs":[{"name":"FP32","datatype":"FP32","shape":[1],"data":[1]}]}',
    "output": b'{"outputs":[{"name":%b}],'
    b'"inputs":[{"name":"FP32","datatype":"FP32","shape":[1],"data":[1]}]}',
}


@pytest.mark.parametrize("what", STRANGE)
@pytest.mark.parametrize("place", PLACES)
def test_a_strange_value_anywhere_is_refused_in_few_words(place: str, what: str) -> None:
    served = signature(*(item for item in DATATYPES if item.name == "FP32"))
    with pytest.raises(RequestError) as refused:
        decode(served, PLACES[place] % STRANGE[what])
    assert refused.value.status in {400, 413}
    assert len(refused.value.message) < 500


BASE = (
    b'{"id":"7","inputs":[{"name":"FP32","datatype":"FP32","shape":[2,2],"data":[[1,2.5],[3e0,4]]},'
    b'{"name":"INT8","datatype":"INT8","shape":[2],"data":[1,-2]},'
    b'{"name":"BYTES","datatype":"BYTES","shape":[1],"data":["a\\"b"]},'
    b'{"name":"BOOL","datatype":"BOOL","shape":[],"data":[true]}],"outputs":[{"name":"INT8"}]}'
)
TOKENS = [b"[", b"]", b"{", b"}", b",", b":", b'"', b"\\", b"0", b"-", b"1e999", b"true", b"null"]


@settings(max_examples=examples(200))
@given(
    st.lists(
        st.tuples(
            st.integers(0, len(BASE)),
            st.integers(0, 3),
            st.sampled_from(TOKENS) | st.binary(max_size=3),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_mutated_body_is_refused_or_read(edits: list[tuple[int, int, bytes]]) -> None:
    body = BASE
    for at, removed, inserted in edits:
        body = body[:at] + inserted + body[at + removed :]
    served = signature(
        *(entry for entry in DATATYPES if entry.name in {"FP32", "INT8", "BYTES", "BOOL"})
    )
    try:
        feeds = decode(served, body)
    except RequestError as error:
        assert error.status in {400, 413}  # noqa: PT017 - another outcome is fine too
        return
    for item in orjson.loads(body)["inputs"]:
        array = feeds[item["name"]]
        assert list(array.shape) == item["shape"]
        expected = np.array(item["data"], array.dtype).reshape(array.shape)
        np.testing.assert_array_equal(array, expected, strict=True)


def test_strings_are_limited_in_all_inputs() -> None:
    (text,) = (item for item in DATATYPES if item is BYTES)
    tensors = {name: Tensor(name, text, (), ()) for name in ("a", "b")}
    served = Signature(tensors, tensors, ())

    def read_inputs(first: int, second: int) -> Feeds:
        inputs = [
            {
                "name": name,
                "datatype": "BYTES",
                "shape": [count],
                "parameters": {"binary_data_size": 4 * count},
            }
            for name, count in (("a", first), ("b", second))
        ]
        return decode(served, json.dumps({"inputs": inputs}).encode(), b"\0" * 4 * (first + second))

    assert len(read_inputs(STRINGS - 7, 7)["a"]) == STRINGS - 7
    with pytest.raises(RequestError, match="100001 strings, more than 100,000"):
        read_inputs(STRINGS - 7, 8)


strings = st.text(st.sampled_from('a,:[{"\\é]}'), max_size=12)
documents = st.recursive(
    st.none() | st.integers(0, 9) | strings,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(strings, inner, max_size=4),
    max_leaves=20,
)


def count_values(value: Any) -> tuple[int, int]:
    """Return the values and names of a document, as `json_cost` counts them."""
    if not isinstance(value, list | dict):
        return 0, 0
    members = list(value.values() if isinstance(value, dict) else value)
    values, names = max(len(members), 1), len(members) if isinstance(value, dict) else 0
    for member in members:
        inner = count_values(member)
        values, names = values + inner[0], names + inner[1]
    return values, names


@settings(max_examples=examples(150))
@given(documents, st.integers(1, 9), st.booleans())
def test_values_are_counted_outside_strings(value: Any, block: int, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_cost, "_BLOCK_BYTES", block)
        counts = json_cost._count(json_cost._outside_strings(json_cost._blocks(text)))
        cheap = json_cost._count(json_cost._blocks(text))
    assert counts == count_values(value)
    assert cheap >= counts


def test_text_costs_values_outside_its_strings() -> None:
    json_cost.check_cost(b'["' + b",:[{" * VALUES + b'"]')
    json_cost.check_cost(b"[" + b"1," * (VALUES - 1) + b"1]")
    json_cost.check_cost(b"{" + b'"a":1,' * (NAMES - 1) + b'"a":1}')
    for text in (b"[" + b"1," * VALUES + b"1]", b"[" + b"[]," * (VALUES // 2) + b"[]]"):
        with pytest.raises(RequestError, match="more than 1,000,000 values") as refused:
            json_cost.check_cost(text)
        assert refused.value.status == 413
    with pytest.raises(RequestError, match="more than 10,000 names"):
        json_cost.check_cost(b"{" + b'"a":1,' * NAMES + b'"a":1}')


def test_decoded_inputs_count_as_in_flight() -> None:
    inflight = InFlight(TransportSettings(body_bytes=100, inflight_bytes=300))
    first, second, probe = InferenceCall(), InferenceCall(), InferenceCall()
    probe.reserved = True
    inflight.hold(first, 100)
    inflight.hold(first, 60)
    inflight.hold(first, 250)
    with pytest.raises(RequestError, match="in flight") as refused:
        inflight.hold(second, 51)
    assert refused.value.status == 503
    inflight.hold(probe, 200)
    inflight.release(probe)
    inflight.hold(second, 50)
    inflight.release(first)
    inflight.hold(second, 300)


def test_inputs_take_their_own_memory_and_the_body_once_if_they_are_views_of_it() -> None:
    served = signature(*(item for item in DATATYPES if item.name in {"FP32", "FP64", "BYTES"}))

    def measure_held(**sizes: int) -> int:
        """Return what inputs take beyond the body: FP32 in binary, FP64 and BYTES in JSON."""
        data: dict[str, list[Any]] = {
            "FP64": [0.5] * sizes["FP64"],
            "BYTES": ["x" * sizes["BYTES"]],
        }
        inputs: list[dict[str, Any]] = [
            {"name": name, "datatype": name, "shape": [len(given)], "data": given}
            for name, given in data.items()
        ]
        size = {"binary_data_size": 4 * sizes["FP32"]}
        inputs.append(
            {"name": "FP32", "datatype": "FP32", "shape": [sizes["FP32"]], "parameters": size}
        )
        header = json.dumps({"inputs": inputs}).encode()
        body = Body(len(header) + 4 * sizes["FP32"], len(header))
        body.view()[: len(header)] = header
        _, feeds = Decoder(served).decode(body, len(header))
        return count_held_bytes(feeds, body.view()) - body.length

    assert 8000 < measure_held(FP32=3, FP64=1000, BYTES=1) < 8200
    assert 80_000 < measure_held(FP32=3, FP64=1, BYTES=80_000) < 80_200
    assert measure_held(FP32=0, FP64=1, BYTES=1000) < 1000, "nothing is a view"
