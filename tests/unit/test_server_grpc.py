"""Messages of the gRPC endpoint: what protobuf reads from the same bytes, without its copies."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
from enginewright_runtime.core.request_errors import OutOfProfileError, RequestError
from enginewright_runtime.session.datatypes import BF16, BOOL, BY_ONNX, DATATYPES, Datatype
from enginewright_runtime.session.signature import Signature, Tensor
from enginewright_serving.server.protocol.decode import Feeds
from enginewright_serving.server.protocol.grpc import typed_contents, wire
from enginewright_serving.server.protocol.grpc.decode import GrpcDecoder, GrpcPlan, GrpcRequest
from enginewright_serving.server.protocol.grpc.encode import TYPED_ELEMENTS, GrpcEncoder
from enginewright_serving.server.protocol.grpc.messages import Contents, InferRequest, InferResponse
from enginewright_serving.server.protocol.json_cost import VALUES
from enginewright_serving.transport.message import ALIGNMENT, Body
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as stn
from numpy.typing import NDArray

FP16 = BY_ONNX["tensor(float16)"]
FP32 = BY_ONNX["tensor(float)"]
INT8 = BY_ONNX["tensor(int8)"]
STRING = BY_ONNX["tensor(string)"]
FREE = (0, 2**31 - 1)
TYPED = [kind for kind in DATATYPES if kind not in (FP16, BF16)]
MIB = 1024 * 1024
Inputs = list[tuple[Datatype, NDArray[Any]]]


def signature(*kinds: Datatype, outputs: tuple[Datatype, ...] = (FP32,)) -> Signature:
    """Return inputs x0, x1, … and outputs y0, y1, … of any shape."""
    return Signature(
        {f"x{at}": Tensor(f"x{at}", kind, (), ()) for at, kind in enumerate(kinds)},
        {f"y{at}": Tensor(f"y{at}", kind, (), ()) for at, kind in enumerate(outputs)},
        (),
    )


def check_model(name: str, version: str) -> None:
    if (name, version) != ("m", ""):
        raise RequestError(404, "another model")


class Codec(GrpcDecoder):
    """The decoder, with the split before it."""

    def read(self, message: memoryview) -> tuple[GrpcPlan, bytes, Feeds]:
        request, feeds = self.decode(message, wire.split(message))
        return request.plan, request.identifier, feeds


def decoder(model: Signature) -> Codec:
    return Codec(model, check_model, most_typed_bytes=MIB)


def body(message: bytes, aligned_at: int = 0) -> memoryview:
    made = Body(len(message), aligned_at).view()
    made[:] = message
    return made


def raw_bytes(array: NDArray[Any]) -> bytes:
    if array.dtype != object:
        return array.tobytes()
    encoded = [text.encode() for text in array.flat]
    return b"".join(len(item).to_bytes(4, "little") + item for item in encoded)


def parameters(**values: bool | int | str) -> list[dict[str, Any]]:
    kinds = {bool: "bool_param", int: "int64_param", str: "string_param"}
    return [{"key": key, "value": {kinds[type(it)]: it}} for key, it in values.items()]


def request(sent: Inputs, *, typed: bool = False, **fields: Any) -> Any:
    """Return the message with inputs x0, x1, …, and other `fields`."""
    described = [
        {"name": f"x{at}", "datatype": kind.name, "shape": array.shape}
        | ({"contents": typed_contents.write(kind, array)} if typed else {})
        for at, (kind, array) in enumerate(sent)
    ]
    raw = [] if typed else [raw_bytes(array) for _, array in sent]
    return InferRequest(
        **{"model_name": "m", "inputs": described, "raw_input_contents": raw} | fields
    )


@st.composite
def tensors(draw: st.DrawFn, kinds: list[Datatype]) -> tuple[Datatype, NDArray[Any]]:
    kind = draw(st.sampled_from(kinds))
    shape = draw(stn.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    if kind is not STRING:
        return kind, draw(stn.arrays(kind.dtype, shape))
    array = np.empty(shape, object)
    array.reshape(-1)[:] = draw(
        st.lists(
            st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
            min_size=array.size,
            max_size=array.size,
        )
    )
    return kind, array


def assert_same(read: NDArray[Any], sent: NDArray[Any]) -> None:
    assert (read.dtype, read.shape) == (sent.dtype, sent.shape)
    np.testing.assert_array_equal(read, sent)


@given(st.lists(tensors(list(DATATYPES)), max_size=3), st.text(max_size=3), st.integers(0, 70))
def test_raw_tensors_match_protobuf(inputs: Inputs, identifier: str, aligned_at: int) -> None:
    message = request(inputs, id=identifier).SerializeToString()
    read = decoder(signature(*(kind for kind, _ in inputs)))
    for _ in range(2):  # the second time from the cache
        plan, echoed, feeds = read.read(body(message, aligned_at))
        assert echoed.decode() == identifier
        assert plan.raw
        assert list(feeds) == [f"x{at}" for at in range(len(inputs))]
        for array, (_, sent) in zip(feeds.values(), inputs, strict=True):
            assert array.flags.aligned
            assert_same(array, sent)


@given(st.lists(tensors(TYPED), min_size=1, max_size=3), st.text(max_size=3))
def test_typed_contents_match_protobuf(inputs: Inputs, identifier: str) -> None:
    message = request(inputs, typed=True, id=identifier).SerializeToString()
    read = decoder(signature(*(kind for kind, _ in inputs)))
    for _ in range(2):
        plan, echoed, feeds = read.read(body(message))
        assert echoed.decode() == identifier
        assert not plan.raw
        for array, (_, sent) in zip(feeds.values(), inputs, strict=True):
            assert_same(array, sent)


def test_raw_tensors_are_views_of_the_message_where_the_transport_aligned_it() -> None:
    sent = np.arange(64, dtype=np.float64)
    message = request([(BY_ONNX["tensor(double)"], sent)], id="7").SerializeToString()
    start = wire.first_raw_tensor(memoryview(message)[:100])
    assert start is not None
    taken = body(message, start)
    _, _, feeds = decoder(signature(BY_ONNX["tensor(double)"])).read(taken)
    assert np.shares_memory(feeds["x0"], np.asarray(taken))
    assert feeds["x0"].__array_interface__["data"][0] % ALIGNMENT == 0


@given(st.lists(tensors([FP32, INT8]), max_size=2), st.integers(0, 200))
def test_first_raw_tensor_is_found(inputs: Inputs, length: int) -> None:
    message = memoryview(request(inputs, id="abc").SerializeToString())
    spans = wire.split(message).raw
    start = wire.first_raw_tensor(message[:length])
    assert start == (spans[0][0] if spans and spans[0][0] <= length else None)


def read_expected_feeds(message: bytes, model: Signature) -> dict[str, NDArray[Any]]:
    """Return what protobuf reads from a request with raw contents or contents of FP32 and BYTES."""
    parsed = InferRequest()
    parsed.ParseFromString(message)
    feeds: dict[str, NDArray[Any]] = {}
    for at, item in enumerate(parsed.inputs):
        kind = model.inputs[item.name].datatype
        if parsed.raw_input_contents:
            data = parsed.raw_input_contents[at]
            if kind is STRING:
                array = np.empty(np.prod(item.shape, dtype=int), object)
                for index in range(array.size):
                    size = int.from_bytes(data[:4], "little")
                    array[index], data = data[4 : 4 + size].decode(), data[4 + size :]
            else:
                array = np.frombuffer(data, kind.dtype)
        elif kind is STRING:
            array = np.array(
                [bytes_content.decode() for bytes_content in item.contents.bytes_contents], object
            )
        else:
            array = np.array(item.contents.fp32_contents, np.float32)
        feeds[item.name] = array.reshape(item.shape)
    return feeds


@given(
    st.booleans(),
    st.lists(
        st.tuples(
            st.integers(0, 200), st.integers(0, 3), st.binary(max_size=3) | st.just(b"\x3a\x00")
        ),
        min_size=1,
        max_size=3,
    ),
)
def test_changed_bytes_are_refused_or_match(
    typed: bool, changes: list[tuple[int, int, bytes]]
) -> None:
    model = signature(FP32, STRING)
    sent: Inputs = [
        (FP32, np.ones((1, 2), np.float32)),
        (STRING, np.array(["", "aé"], object)),
    ]
    message = request(
        sent, typed=typed, id="i", parameters=parameters(timeout=5), outputs=[{"name": "y0"}]
    ).SerializeToString()
    for at, removed, inserted in changes:
        start = at % (len(message) + 1)
        message = message[:start] + inserted + message[start + removed :]
    try:
        _, identifier, feeds = decoder(model).read(body(message))
    except RequestError:
        return
    parsed = InferRequest()
    parsed.ParseFromString(message)
    assert parsed.id.encode() == identifier
    expected = read_expected_feeds(message, model)
    assert feeds.keys() == expected.keys()
    for name, array in expected.items():
        assert_same(feeds[name], array)


@given(st.binary(max_size=64))
def test_any_bytes_are_refused_where_protobuf_refuses_them(message: bytes) -> None:
    try:
        split = wire.split(memoryview(message))
        for part in (split.head, *filter(None, split.typed)):
            (InferRequest if part is split.head else Contents)().ParseFromString(part)
        split.identifier.decode()
    except (RequestError, DecodeError, UnicodeDecodeError):
        return
    parsed = InferRequest()
    parsed.ParseFromString(message)
    assert list(parsed.raw_input_contents) == [message[low:high] for low, high in split.raw]
    assert parsed.id.encode() == split.identifier


ONE = [(FP32, np.ones((1, 2), np.float32))]
X = {"name": "x0", "datatype": "FP32", "shape": [1, 2]}
RAW = raw_bytes(ONE[0][1])
FLOATS = {"fp32_contents": [1, 2]}


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"model_name": "n"}, 404, "another model"),
        ({"model_version": "2"}, 404, "another model"),
        ({"inputs": [X | {"name": "q"}]}, 400, "input 'q' is unknown; the model's inputs are 'x0'"),
        ({"inputs": [X | {"datatype": "FP64"}]}, 400, "datatype 'FP64', expected 'FP32'"),
        ({"inputs": [X, X]}, 400, "input 'x0' is given twice"),
        ({"inputs": []}, 400, "missing input: 'x0'"),
        ({"inputs": [X | {"shape": [-1, 2]}]}, 400, "dimension 0 is -1"),
        ({"inputs": [X | {"shape": [3]}]}, 400, "have 8, but 3 elements of FP32 have 12 bytes"),
        ({"inputs": [X | {"shape": [1] * 33}]}, 400, "has 33 dimensions"),
        ({"inputs": [X | {"contents": FLOATS}]}, 400, "give one of them, for all inputs"),
        ({"raw_input_contents": [RAW, RAW]}, 400, "there are 2 raw_input_contents for 1 inputs"),
        ({"raw_input_contents": []}, 400, "have 0 elements, shape asks for 2"),
        ({"outputs": [{"name": "z"}]}, 400, "output 'z' is unknown; the model's outputs are 'y0'"),
        ({"outputs": [{"name": "y0"}] * 2}, 400, "output 'y0' is requested twice"),
        ({"id": "é" * 1025}, 400, "'id' is longer than 1024 characters"),
        ({"parameters": parameters(priority=-1)}, 400, "'priority' must be a number: 1 is the"),
        ({"parameters": parameters(priority="1")}, 400, "'priority' must be a number: 1 is the"),
        ({"parameters": parameters(sequence_id="a")}, 400, "sequences are not supported"),
        ({"parameters": parameters(timeout=-1)}, 400, "must be a number of microseconds"),
        ({"parameters": parameters(timeout="1")}, 400, "must be a number of microseconds"),
        ({"parameters": [{"key": "timeout"}]}, 400, "must be a number of microseconds"),
        ({"parameters": parameters(timeout=1) * 65}, 400, "more than 64 parameters"),
        ({"parameters": parameters(binary_data_output=1)}, 400, "must be true or false"),
        (
            {"inputs": [X | {"parameters": parameters(shared_memory_region="r")}]},
            400,
            "'shared_memory_region' of input 'x0': shared memory is not supported",
        ),
        (
            {"inputs": [X | {"parameters": parameters(binary_data_size=9)}]},
            400,
            "binary_data_size is 9, but its raw_input_contents have 8 bytes",
        ),
        (
            {"outputs": [{"name": "y0", "parameters": parameters(classification=3)}]},
            400,
            "'classification' of output 'y0'",
        ),
        ({"model_name": "m" * MIB}, 413, "bytes beside tensors"),
    ],
    ids=str,
)
def test_bad_request_is_refused(fields: dict[str, Any], status: int, message: str) -> None:
    sent = request(ONE, **fields).SerializeToString()
    with pytest.raises(RequestError) as caught:
        decoder(signature(FP32)).read(body(sent))
    assert caught.value.status == status
    assert message in caught.value.message


def test_an_identifier_is_text() -> None:
    message = request(ONE).SerializeToString() + b"\x1a\x01\xff"
    with pytest.raises(RequestError, match="'id' is not UTF-8"):
        decoder(signature(FP32)).read(body(message))


@pytest.mark.parametrize(
    ("kind", "contents", "message"),
    [
        (FP32, {"fp64_contents": [1, 2]}, "FP32 has fp32_contents, not fp64_contents"),
        (FP32, {"fp32_contents": [1]}, "have 1 elements, shape asks for 2"),
        (INT8, {"int_contents": [1, 128]}, "int_contents must hold integers from -128 to 127"),
        (INT8, {"int_contents": [-129, 1]}, "int_contents must hold integers from -128 to 127"),
        (BY_ONNX["tensor(uint16)"], {"uint_contents": [0, 2**16]}, "from 0 to 65535"),
        (STRING, {"bytes_contents": [b"a", b"\xff"]}, "element 1 is not UTF-8"),
        (FP16, {"fp32_contents": [1, 2]}, "FP16 has no typed contents; send raw_input_contents"),
        (BF16, {}, "BF16 has no typed contents; send raw_input_contents"),
    ],
    ids=str,
)
def test_typed_contents_must_fit(kind: Datatype, contents: dict[str, Any], message: str) -> None:
    item = {"name": "x0", "datatype": kind.name, "shape": [2], "contents": contents}
    sent = InferRequest(model_name="m", inputs=[item]).SerializeToString()
    with pytest.raises(RequestError, match=message):
        decoder(signature(kind)).read(body(sent))


def test_many_typed_contents_are_refused_before_they_are_parsed() -> None:
    big = np.zeros(MIB // 4 + 1, np.float32)
    sent = request([(FP32, big)], typed=True).SerializeToString()
    with pytest.raises(RequestError, match="send raw_input_contents") as caught:
        decoder(signature(FP32)).read(body(sent))
    assert caught.value.status == 413


def test_many_elements_of_typed_contents_are_refused_before_they_are_parsed() -> None:
    """A byte of an integer becomes an object of Python's: 8 MiB took 243 MB."""
    tensor = Tensor("x", INT8, (), ())
    with pytest.raises(RequestError, match="1000001 elements are more than") as refused:
        typed_contents.read(tensor, b"not parsed", (VALUES + 1,), VALUES + 1)
    assert refused.value.status == 413


def test_shapes_and_values_are_within_the_profile() -> None:
    profiled = Tensor("x0", FP32, (-1,), ((1, 4),), profiled=True, values=(0, 2))
    read = decoder(Signature({"x0": profiled}, signature(outputs=(FP32,)).outputs, ()))
    for bad in (np.zeros(5, np.float32), np.array([3], np.float32)):
        with pytest.raises(OutOfProfileError):
            read.read(body(request([(FP32, bad)]).SerializeToString()))
    read.read(body(request([(FP32, np.array([2], np.float32))]).SerializeToString()))


def test_booleans_are_0_or_1() -> None:
    item = {"name": "x0", "datatype": "BOOL", "shape": [2]}
    sent = InferRequest(model_name="m", inputs=[item], raw_input_contents=[b"\x01\x02"])
    with pytest.raises(RequestError, match="must be the bytes 0 or 1"):
        decoder(signature(BOOL)).read(body(sent.SerializeToString()))


@pytest.mark.parametrize(
    "message",
    [
        b"\x3a\x00" * MIB,
        b"\x2a\x00" * MIB,
        b"\x2a\x80\x80\x80\x01" + b"\x22\x00" * MIB,
        b"\x2a\x84\x80\x80\x01\x1a\x80\x80\x80\x01" + b"\x01" * 2 * MIB,
        b"\x22\x80\x80\x80\x01" + b"\x00" * 2 * MIB,
    ],
    ids=["tensors", "inputs", "parameters", "a shape", "a parameter"],
)
def test_a_request_of_many_small_things_takes_no_more_memory_than_it_has(message: bytes) -> None:
    taken = body(message)
    read = decoder(signature(FP32))
    tracemalloc.start()
    with pytest.raises(RequestError):
        read.read(taken)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 3 * len(message)


def test_few_plans_are_cached_and_none_by_identifier() -> None:
    read = decoder(signature(FP32))
    for at in range(300):
        read.read(body(request(ONE, id=str(at)).SerializeToString()))
    assert len(read._plans) == 1
    for at in range(1000):
        read.read(body(request([(FP32, np.ones(at, np.float32))]).SerializeToString()))
    assert len(read._plans) <= 256


@given(st.lists(tensors(list(DATATYPES)), min_size=1, max_size=3), st.text(max_size=3))
def test_raw_outputs_are_written_as_protobuf_reads_them(outputs: Inputs, identifier: str) -> None:
    model = signature(FP32, outputs=tuple(kind for kind, _ in outputs))
    plan, echoed, _ = decoder(model).read(body(request(ONE, id=identifier).SerializeToString()))
    encoder = GrpcEncoder("m", "r1", model)
    for _ in range(2):
        parts = encoder.encode(GrpcRequest(plan, echoed), [array for _, array in outputs])
        answer = InferResponse()
        answer.ParseFromString(b"".join(parts))
        assert (answer.model_name, answer.model_version, answer.id) == ("m", "r1", identifier)
        described = [
            (output.name, output.datatype, tuple(output.shape)) for output in answer.outputs
        ]
        assert described == [
            (f"y{at}", kind.name, array.shape) for at, (kind, array) in enumerate(outputs)
        ]
        assert list(answer.raw_output_contents) == [raw_bytes(array) for _, array in outputs]


@given(st.lists(tensors(TYPED), min_size=1, max_size=3))
def test_outputs_have_the_form_of_the_inputs(outputs: Inputs) -> None:
    model = signature(FP32, outputs=tuple(kind for kind, _ in outputs))
    sent = request(ONE, typed=True).SerializeToString()
    plan, identifier, _ = decoder(model).read(body(sent))
    (part,) = GrpcEncoder("m", "r1", model).encode(
        GrpcRequest(plan, identifier), [item for _, item in outputs]
    )
    answer = InferResponse()
    answer.ParseFromString(bytes(part))
    assert not answer.raw_output_contents
    for output, (kind, array) in zip(answer.outputs, outputs, strict=True):
        contents = output.contents.SerializeToString()
        read = typed_contents.read(Tensor("y", kind, (), ()), contents, array.shape, array.size)
        assert_same(read, array)


@pytest.mark.parametrize(
    ("outputs", "typed", "fields", "raw"),
    [
        ((FP32,), True, {}, False),
        ((FP32, FP16), True, {}, True),
        ((FP32, BF16), True, {}, True),
        ((FP32, FP16), True, {"outputs": [{"name": "y0"}]}, False),
        ((FP32,), True, {"parameters": parameters(binary_data_output=True)}, True),
        ((FP32,), False, {"parameters": parameters(binary_data_output=False)}, False),
        (
            (FP32,),
            False,
            {"outputs": [{"name": "y0", "parameters": parameters(binary_data=False)}]},
            False,
        ),
    ],
    ids=str,
)
def test_raw_outputs(
    outputs: tuple[Datatype, ...], typed: bool, fields: dict[str, Any], raw: bool
) -> None:
    sent = request(ONE, typed=typed, **fields).SerializeToString()
    plan, _, _ = decoder(signature(FP32, outputs=outputs)).read(body(sent))
    assert plan.raw is raw


def test_an_output_without_typed_contents_cannot_be_asked_for_in_that_form() -> None:
    model = signature(FP32, outputs=(BF16,))
    sent = request(ONE, parameters=parameters(binary_data_output=False)).SerializeToString()
    with pytest.raises(RequestError, match="BF16 has no typed contents"):
        decoder(model).read(body(sent))


def test_the_outputs_of_an_answer_have_one_form() -> None:
    model = signature(FP32, outputs=(FP32, FP32))
    one = {"name": "y0", "parameters": parameters(binary_data=False)}
    sent = request(ONE, outputs=[one, {"name": "y1"}]).SerializeToString()
    with pytest.raises(RequestError, match="must be the same for all outputs"):
        decoder(model).read(body(sent))


def test_too_many_elements_for_typed_contents_are_refused() -> None:
    encoder = GrpcEncoder("m", "r1", signature(FP32))
    typed, _, _ = decoder(signature(FP32)).read(body(request(ONE, typed=True).SerializeToString()))
    raw, _, _ = decoder(signature(FP32)).read(body(request(ONE).SerializeToString()))
    many = np.broadcast_to(np.float32(0), (TYPED_ELEMENTS + 1,))
    with pytest.raises(RequestError, match="too many for typed contents"):
        encoder.check(typed, [many])
    encoder.check(raw, [many])
    assert encoder.is_slow(typed, [many[:100_000]])
    assert not encoder.is_slow(typed, [many[:1000]])
    assert not encoder.is_slow(raw, [many])


@pytest.mark.parametrize(
    ("inputs", "typed", "slow"),
    [
        ([(FP32, np.zeros(10_000_000, np.float32))], False, False),
        ([(FP32, np.zeros(100_000, np.float32))], True, True),
        ([(FP32, np.zeros(1000, np.float32))], True, False),
        ([(BOOL, np.zeros(10_000_000, np.bool_))], False, True),
        ([(STRING, np.full(10_000, "a", object))], False, True),
        ([(FP32, np.zeros(1_000_000, np.float32)), (FP32, np.zeros(1, np.float32))], False, True),
    ],
    ids=["raw", "typed", "few typed", "checked", "strings", "copied"],
)
def test_slow_decoding_is_known_before(inputs: Inputs, typed: bool, slow: bool) -> None:
    message = body(request(inputs, typed=typed).SerializeToString())
    read = decoder(signature(*(kind for kind, _ in inputs)))
    assert read.is_slow(wire.split(message), len(message)) is slow


def test_a_timeout_is_in_microseconds() -> None:
    sent = request(ONE, parameters=parameters(timeout=1500)).SerializeToString()
    plan, _, _ = decoder(signature(FP32)).read(body(sent))
    assert plan.timeout == 0.0015
