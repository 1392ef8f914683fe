"""All values of a tensor come back bit for bit, in every form of both protocols, by property."""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import grpc
import numpy as np
import pytest
from enginewright_contract.reasons import ExitCode
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import mirror
from tests.support.broken_models import halves_and_strings
from tests.support.effort import examples
from tests.support.serving import Server, Wire, write_artifact

INFER = "/inference.GRPCInferenceService/ModelInfer"
# ONNX Runtime returns BF16 only where it is given no strings
NUMBERS = tuple(name for name in mirror.DTYPES if name != "BYTES")
TYPED = tuple(name for name in mirror.DTYPES if name not in mirror.WITHOUT_TYPED)
FLOATS = ("FP16", "FP32", "FP64")
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
few = settings(max_examples=examples(60), derandomize=True)


class Client:
    """A client of one server."""

    def __init__(self, server: Server, names: tuple[str, ...]) -> None:
        self.server = server
        self.names = names
        self.outputs = [f"{name}_out" for name in names]
        self._channel = grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", options=OPTIONS)
        self.infer = self._channel.unary_unary(INFER)

    def close(self) -> None:
        self._channel.close()

    def http(self, request: bytes) -> dict[str, tuple[str, list[int], object]]:
        answer = self.server.send(request)
        assert answer.status == 200, answer.body
        return mirror.http_outputs(answer)


def serving(root: Path, names: tuple[str, ...]) -> Iterator[Client]:
    feeds = mirror.sample(names)
    golden = {f"{name}_out": array for name, array in feeds.items()}
    task = write_artifact(root, mirror.mirror_model(names), [feeds], golden=[golden])
    with Server(root, task) as server:
        client = Client(server, names)
        yield client
        client.close()
        assert "Traceback" not in server.log()
        assert "unexpected" not in server.log()


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A server that returns numbers of every datatype."""
    yield from serving(tmp_path_factory.mktemp("numbers"), NUMBERS)


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A server that returns tensors of those datatypes that typed contents have, so also strings."""
    yield from serving(tmp_path_factory.mktemp("typed"), TYPED)


@pytest.fixture(scope="module", params=["numbers", "typed"])
def client(request: pytest.FixtureRequest) -> Client:
    """Each of the servers."""
    fixture: Client = request.getfixturevalue(request.param)
    return fixture


def forms(names: tuple[str, ...]) -> st.SearchStrategy[set[str]]:
    return st.sets(st.sampled_from(names))


@given(st.data())
@few
def test_over_http_in_json_and_binary_mixed(client: Client, data: st.DataObject) -> None:
    names = client.names
    has_json = tuple(name for name in names if name != "BF16")
    in_json, out_json = data.draw(forms(has_json)), data.draw(forms(has_json))
    arrays = data.draw(mirror.all_arrays(names, finite=in_json & set(FLOATS)))
    document, tensors = mirror.http_document(
        arrays, binary=set(names) - in_json, nested=data.draw(st.booleans())
    )
    by_default = data.draw(st.booleans())
    requested = data.draw(st.permutations(names))
    document["outputs"] = [
        {"name": f"{name}_out"}
        if by_default is (name not in out_json)
        else {"name": f"{name}_out", "parameters": {"binary_data": name not in out_json}}
        for name in requested
    ]
    document["parameters"] = {"binary_data_output": by_default}
    header = json.dumps(document).encode()
    fields = {mirror.BINARY_LENGTH: str(len(header))}
    outputs = client.http(client.server.infer_request(header, tensors, headers=fields))
    assert list(outputs) == [f"{name}_out" for name in requested]
    for name, array in arrays.items():
        datatype, shape, content = outputs[f"{name}_out"]
        assert (datatype, shape) == (name, list(array.shape))
        if name not in out_json:
            assert content == mirror.raw(array)
        elif array.dtype.kind == "f":
            numbers = [np.nan if item is None else item for item in content]  # type: ignore[attr-defined]  # of the form that was requested
            back = np.array(numbers, array.dtype)
            np.testing.assert_array_equal(back, np.where(np.isfinite(array), array, np.nan).ravel())
        else:
            assert content == mirror.in_json(array)


@given(st.data())
@few
def test_over_http_in_chunks_and_pieces(client: Client, data: st.DataObject) -> None:
    arrays = data.draw(mirror.all_arrays(client.names))
    document, tensors = mirror.http_document(arrays, binary=client.names, nested=False)
    document["parameters"] = {"binary_data_output": True}
    header = json.dumps(document).encode()
    body = header + tensors
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=5)))
    edges = [0, *cuts, len(body)]
    parts = [body[low:high] for low, high in pairwise(edges) if low < high]
    head = (
        f"POST /v2/models/m/infer HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n"
        f"{mirror.BINARY_LENGTH}: {len(header)}\r\n\r\n"
    )
    with Wire(client.server.port) as wire:
        wire.send(head.encode())
        for part in parts:
            wire.send(b"%x\r\n%b\r\n" % (len(part), part))
        wire.send(b"0\r\n\r\n")
        answer = wire.receive()
    assert answer.status == 200, answer.body
    outputs = mirror.http_outputs(answer)
    for name, array in arrays.items():
        assert outputs[f"{name}_out"] == (name, list(array.shape), mirror.raw(array))


@given(st.data())
@few
def test_over_grpc_in_raw_contents(client: Client, data: st.DataObject) -> None:
    arrays = data.draw(mirror.all_arrays(client.names))
    requested = data.draw(st.lists(st.sampled_from(client.names), unique=True))
    request = mirror.grpc_request(
        arrays, typed=False, outputs=[{"name": f"{name}_out"} for name in requested]
    )
    outputs = mirror.grpc_outputs(client.infer(request.SerializeToString(), timeout=20))
    assert list(outputs) == [f"{name}_out" for name in requested or client.names]
    for name in requested or client.names:
        array = arrays[name]
        assert outputs[f"{name}_out"] == (name, list(array.shape), mirror.raw(array))


@given(st.data())
@few
def test_over_grpc_in_typed_contents_and_to_raw_ones(typed: Client, data: st.DataObject) -> None:
    arrays = data.draw(mirror.all_arrays(TYPED, finite=FLOATS))
    is_typed, back = data.draw(st.booleans()), data.draw(st.sampled_from([None, False, True]))
    parameters = [] if back is None else [mirror.parameter("binary_data_output", back)]
    request = mirror.grpc_request(arrays, typed=is_typed, parameters=parameters)
    outputs = mirror.grpc_outputs(typed.infer(request.SerializeToString(), timeout=20))
    is_raw = not is_typed if back is None else back
    for name, array in arrays.items():
        datatype, shape, content = outputs[f"{name}_out"]
        assert (datatype, shape) == (name, list(array.shape))
        actual = content if is_raw else mirror.encode_typed(name, content)
        assert actual == mirror.raw(array)


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("shape", [(300_001,), (7, 0, 2**20), (1,) * 32, (513, 257)])
def test_large_and_unusual_shapes(numbers: Client, name: str, shape: tuple[int, ...]) -> None:
    kind = mirror.DTYPES[name]
    bits = np.random.default_rng(1).integers(0, 2, int(np.prod(shape)) * kind.itemsize, np.uint8)
    arrays = mirror.sample(NUMBERS) | {name: bits.view(kind).reshape(shape)}
    requested = [{"name": f"{name}_out"}]
    request = mirror.grpc_request(arrays, typed=False, outputs=requested)
    outputs = mirror.grpc_outputs(numbers.infer(request.SerializeToString(), timeout=20))
    assert outputs[f"{name}_out"] == (name, list(shape), bits.tobytes())
    document, tensors = mirror.http_document(arrays, binary=numbers.names, nested=False)
    document |= {"outputs": requested, "parameters": {"binary_data_output": True}}
    outputs = numbers.http(numbers.server.infer_request(document, tensors))
    assert outputs[f"{name}_out"] == (name, list(shape), bits.tobytes())


@given(st.binary(min_size=1, max_size=8))
@few
def test_strings_are_utf_8_or_refused(typed: Client, text: bytes) -> None:
    given = mirror.sample(TYPED)
    document, _ = mirror.http_document(given, binary=("BYTES",), nested=False)
    tensor = len(text).to_bytes(4, "little") + text
    item = next(entry for entry in document["inputs"] if entry["name"] == "BYTES")
    item |= {"shape": [1], "parameters": {"binary_data_size": len(tensor)}}
    document["outputs"] = [{"name": "BYTES_out", "parameters": {"binary_data": True}}]
    answer = typed.server.post(document, tensor)
    try:
        text.decode()
    except UnicodeDecodeError:
        assert answer.status == 400
        assert "is not UTF-8" in answer.json()["error"]
    else:
        assert mirror.http_outputs(answer)["BYTES_out"] == ("BYTES", [1], tensor)


def test_inputs_of_bf16_beside_strings(tmp_path: Path) -> None:
    model = halves_and_strings("float", "text")
    feeds = {"b": np.array([0x3F80, 0x4000], np.uint16), "s": np.array(["é", ""], object)}
    golden = {"float": np.array([2, 4], np.float32), "text": feeds["s"]}
    task = write_artifact(tmp_path, model, [feeds], golden=[golden])
    with Server(tmp_path, task) as server:
        outputs = server.get("/v2/models/m").json()["outputs"]
        assert [output["name"] for output in outputs] == ["float", "text"]
        document, tensors = mirror.http_document(
            {"BF16": feeds["b"], "BYTES": feeds["s"]}, binary={"BF16"}, nested=False
        )
        for item, name in zip(document["inputs"], ("b", "s"), strict=True):
            item["name"] = name
        header = json.dumps(document).encode()
        fields = {mirror.BINARY_LENGTH: str(len(header))}
        answer = server.post(header, tensors, headers=fields)
        assert answer.status == 200, answer.body
        outputs = {item["name"]: item["data"] for item in answer.json()["outputs"]}
        assert outputs == {"float": [2.0, 4.0], "text": ["é", ""]}
        assert server.post({**document, "outputs": [{"name": "half"}]}).status == 400


def test_a_model_without_returnable_outputs_is_refused(
    tmp_path: Path,
) -> None:
    golden = {"half": np.array([0x4000, 0x4080], np.uint16)}
    feeds = {"b": np.array([0x3F80, 0x4000], np.uint16), "s": np.array(["é", ""], object)}
    task = write_artifact(tmp_path, halves_and_strings(), [feeds], golden=[golden])
    server = Server(tmp_path, task)
    assert server.wait() == ExitCode.PERMANENT
    reason = "half (BF16 beside the strings of input 's')"
    assert reason in (tmp_path / "dev/termination-log").read_text()
