"""The protocol as clients see it: Triton's own client and JSON against the real server."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import tritonclient.http as triton
from enginewright_contract.execution import ComputeBucket, Execution
from enginewright_contract.reasons import ExitCode
from enginewright_contract.task import ShapeProfile
from enginewright_serving.server.observe.buckets import ComputeBuckets
from numpy.typing import NDArray
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

from tests.support.broken_models import halves_and_strings, initializer, parse_text
from tests.support.optional import present
from tests.support.serving import (
    Feeds,
    Server,
    json_inputs,
    linear_model,
    model,
    tensor,
    write_artifact,
)
from tests.support.shared import share_server

KINDS = {
    "BOOL": (TensorProto.BOOL, np.array([[True, False, True]])),
    "UINT8": (TensorProto.UINT8, np.array([[0, 7, 255]], np.uint8)),
    "UINT16": (TensorProto.UINT16, np.array([[0, 7, 65535]], np.uint16)),
    "UINT32": (TensorProto.UINT32, np.array([[0, 7, 2**32 - 1]], np.uint32)),
    "UINT64": (TensorProto.UINT64, np.array([[0, 7, 2**64 - 1]], np.uint64)),
    "INT8": (TensorProto.INT8, np.array([[-128, 7, 127]], np.int8)),
    "INT16": (TensorProto.INT16, np.array([[-32768, 7, 32767]], np.int16)),
    "INT32": (TensorProto.INT32, np.array([[-(2**31), 7, 2**31 - 1]], np.int32)),
    "INT64": (TensorProto.INT64, np.array([[-(2**63), 7, 2**63 - 1]], np.int64)),
    "FP16": (TensorProto.FLOAT16, np.array([[-1.5, 0, 65504]], np.float16)),
    "FP32": (TensorProto.FLOAT, np.array([[-1.5, 0, 3e38]], np.float32)),
    "FP64": (TensorProto.DOUBLE, np.array([[-1.5, 0, 1e300]], np.float64)),
    "BYTES": (TensorProto.STRING, np.array([["", "grün", "a\nb"]], object)),
}


def echo_model() -> Any:
    """Return a model with an input and an equal output of every type."""
    return model(
        [helper.make_node("Identity", [f"in_{name}"], [f"out_{name}"]) for name in KINDS],
        [tensor(f"in_{name}", kind, "n", 3) for name, (kind, _) in KINDS.items()],
        [tensor(f"out_{name}", kind, "n", 3) for name, (kind, _) in KINDS.items()],
    )


def echo_feeds() -> Feeds:
    return {f"in_{name}": array for name, (_, array) in KINDS.items()}


echo = share_server(echo_model, echo_feeds())


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The linear model with a shape profile of batch 1 to 4."""
    root = tmp_path_factory.mktemp("linear")
    profile = ShapeProfile(input="x", min=(1, 8), opt=(2, 8), max=(4, 8))
    task = write_artifact(
        root, linear_model(), [{"x": np.ones((2, 8), np.float32)}], shapes=[profile]
    )
    with Server(root, task) as server:
        yield server


def client(server: Server) -> triton.InferenceServerClient:
    return triton.InferenceServerClient(f"127.0.0.1:{server.port}")


def triton_input(name: str, kind: str, array: NDArray[Any], *, binary: bool) -> triton.InferInput:
    described = triton.InferInput(name, list(array.shape), kind)
    described.set_data_from_numpy(array, binary_data=binary)
    return described


def test_tritons_client_reads_statistics(tmp_path: Path) -> None:
    task = write_artifact(tmp_path, linear_model(), [{"x": np.ones((2, 8), np.float32)}])
    with Server(tmp_path, task) as server:
        (before,) = client(server).get_inference_statistics()["model_stats"]
        assert before["last_inference"] == before["inference_count"] == 0
        assert before["batch_stats"] == []
        began = time.time_ns()
        for rows in (1, 3):
            values = np.ones((rows, 8), np.float32)
            client(server).infer("m", [triton_input("x", "FP32", values, binary=True)])
        assert server.post(b"{").status == 400
        took = time.time_ns() - began
        asked = client(server)
        (statistics,) = asked.get_inference_statistics("m", "1")["model_stats"]
        assert statistics == asked.get_inference_statistics("m")["model_stats"][0]
        with pytest.raises(InferenceServerException, match="'other' is not served here"):
            asked.get_inference_statistics("other")
    assert statistics["inference_count"] == statistics["execution_count"] == 2
    stats = statistics["inference_stats"]
    counts = {key: value["count"] for key, value in stats.items()}
    assert counts == {
        **dict.fromkeys(("success", "queue", "compute_infer"), 2),
        **dict.fromkeys(("compute_input", "compute_output"), 2),
        "fail": 1,
        **dict.fromkeys(("cache_hit", "cache_miss"), 0),
    }
    assert 0 < stats["compute_infer"]["ns"] + stats["queue"]["ns"] < stats["success"]["ns"] < took
    (batch,) = statistics["batch_stats"]
    assert batch["batch_size"] == 1
    assert batch["compute_infer"] == stats["compute_infer"]
    assert began / 1e6 - 1000 < statistics["last_inference"] < (began + took) / 1e6 + 1000


def test_without_requested_outputs_all_come(echo: Server) -> None:
    inputs = [
        triton_input(f"in_{name}", name, array, binary=True) for name, (_, array) in KINDS.items()
    ]
    response = client(echo).infer("m", inputs).get_response()
    assert [output["name"] for output in response["outputs"]] == [f"out_{name}" for name in KINDS]
    assert all("binary_data_size" in output["parameters"] for output in response["outputs"])


def test_bfloat16_goes_in_binary_only(tmp_path: Path) -> None:
    halves = parse_text("""(bfloat16[n] x) => (bfloat16[n] y, float[n] wide) {
        wide = Cast <to = 1> (x) twice = Add(wide, wide) y = Cast <to = 16> (twice) }""")
    bits = np.array([0x3F80, 0x4000], np.uint16)  # 1.0, 2.0
    doubled = np.array([0x4000, 0x4080], np.uint16)  # 2.0, 4.0
    task = write_artifact(
        tmp_path,
        halves,
        [{"x": bits}],
        golden=[{"y": doubled, "wide": np.array([1, 2], np.float32)}],
    )
    with Server(tmp_path, task) as server:
        sent = {"name": "x", "datatype": "BF16", "shape": [2]}
        document: dict[str, Any] = {
            "inputs": [sent | {"parameters": {"binary_data_size": 4}}],
            "outputs": [{"name": "y", "parameters": {"binary_data": True}}, {"name": "wide"}],
        }
        answer = server.post(document, bits.tobytes())
        assert answer.status == 200, answer.body
        assert np.frombuffer(answer.tensors(), np.uint16).tolist() == doubled.tolist()
        document["outputs"] = [{"name": "y"}]
        refused = server.post(document, bits.tobytes())
        assert "BF16 has no JSON form" in refused.json()["error"]


def test_tritons_client_reads_health_and_metadata(linear: Server) -> None:
    asked = client(linear)
    assert asked.is_server_live()
    assert asked.is_server_ready()
    assert asked.is_model_ready("m")
    assert asked.is_model_ready("m", "r1")
    assert not asked.is_model_ready("other")
    assert asked.get_server_metadata()["extensions"] == [
        *("binary_tensor_data", "model_configuration", "parameters", "schedule_policy"),
        "statistics",
    ]
    metadata = asked.get_model_metadata("m", "1")
    assert metadata["versions"] == ["r1"]
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 8]}]
    assert metadata["outputs"] == [
        {"name": "y", "datatype": "FP32", "shape": [-1, 4]},
        {"name": "total", "datatype": "FP32", "shape": []},
    ]


def test_a_version_may_be_named(linear: Server) -> None:
    given = triton_input("x", "FP32", np.ones((1, 8), np.float32), binary=True)
    for version in ("r1", "1"):
        assert client(linear).infer("m", [given], model_version=version).as_numpy("y") is not None
    with pytest.raises(InferenceServerException, match="no such version here; it has 'r1'"):
        client(linear).infer("m", [given], model_version="7")


def x(**changes: Any) -> dict[str, Any]:
    """Return an inference request to the linear model, with parts of its input changed."""
    given = {"name": "x", "datatype": "FP32", "shape": [1, 8], "data": [1.0] * 8} | changes
    return {"inputs": [{key: value for key, value in given.items() if value is not None}]}


@pytest.mark.parametrize(
    "data", [[1] * 8, [[1] * 8], [1.0] * 8, [1, 1.0, 1, 1, 1, 1, 1, 1]], ids=str
)
def test_json_numbers_may_be_nested_or_flat(linear: Server, data: list[Any]) -> None:
    answer = linear.post(x(data=data))
    assert answer.status == 200
    assert answer.json()["outputs"][0]["data"] == [14.0, 15.0, 16.0, 17.0]
    assert answer.json()["model_version"] == "r1"


REFUSED = [
    (b"{", "not valid JSON"),
    (b'{"inputs": [NaN]}', "not valid JSON"),
    (b"[]", "must be a JSON object"),
    (b"{}", "'inputs' must be a list"),
    ({"inputs": []}, "missing input: 'x'"),
    ({"inputs": [7]}, "every input must be an object with a 'name'"),
    ({"inputs": [{"name": 7}]}, "every input must be an object with a 'name'"),
    ({"inputs": x()["inputs"] * 2}, "input 'x' is given twice"),
    (x(name="z"), "input 'z' is unknown; the model's inputs are 'x'"),
    (x(datatype="FP64"), "input 'x': datatype 'FP64', expected 'FP32'"),
    (x(datatype=None), "input 'x': datatype None, expected 'FP32'"),
    (x(shape=None), "'shape' must be a list"),
    (x(shape="8"), "'shape' must be a list"),
    (x(shape=[8]), "has 1 dimensions; the model expects [-1,8]"),
    (x(shape=[1, 7]), "shape [1,7] has 7 in dimension 1; the model expects [-1,8]"),
    (x(shape=[1, "8"]), "dimension 1 is '8'"),
    (x(shape=[True, 8]), "dimension 0 is True"),
    (x(shape=[-1, 8]), "dimension 0 is -1"),
    (x(shape=[1.0, 8]), "dimension 0 is 1.0"),
    (x(shape=[0, 8], data=[]), "dimension 0 is 0, allowed 1 to 4"),
    (x(shape=[5, 8]), "outside the model's shape profile: dimension 0 is 5, allowed 1 to 4"),
    (x(shape=[2**63, 8]), "allowed 1 to 4"),
    (x(shape=[2**70, 8]), "must hold sizes"),
    (x(data=[*[1.0] * 7, None]), "JSON has no NaN"),
    (x(data=[1e39] * 8), "numbers within FP32"),
    (x(data=None), "give either 'data' or the parameter 'binary_data_size'"),
    (x(parameters={"binary_data_size": 32}), "give either 'data' or"),
    (x(parameters=7), "'parameters' of input 'x' must be an object"),
    (
        x(data=None, parameters={"binary_data_size": 31}),
        "binary_data_size is 31, but 8 elements of FP32 have 32 bytes",
    ),
    (x(data=None, parameters={"binary_data_size": "32"}), "must be a number"),
    (
        x(data=None, parameters={"binary_data_size": 32}),
        "the inputs have 32 bytes of tensor data, but 0 bytes follow",
    ),
    (
        x(parameters={"shared_memory_region": "r"}),
        "parameter 'shared_memory_region' of input 'x': shared memory is not supported",
    ),
    (
        x() | {"outputs": [{"name": "q"}]},
        "output 'q' is unknown; the model's outputs are 'y', 'total'",
    ),
    (x() | {"outputs": [{"name": "y"}] * 2}, "output 'y' is requested twice"),
    (x() | {"outputs": [7]}, "every output must be an object with a 'name'"),
    (x() | {"outputs": "y"}, "'outputs' must be a list"),
    (x() | {"outputs": [{"name": "y", "parameters": {"classification": 3}}]}, "classification"),
    (
        x() | {"outputs": [{"name": "y", "parameters": {"binary_data": 1}}]},
        "parameter 'binary_data' of output 'y' must be true or false",
    ),
    (x() | {"parameters": {"binary_data_output": "yes"}}, "must be true or false"),
    (x() | {"parameters": {"priority": -1}}, "'priority' must be a number: 1 is the highest, 5"),
    (x() | {"parameters": {"priority": True}}, "'priority' must be a number: 1 is the highest, 5"),
    (x() | {"parameters": {"sequence_id": 1}}, "sequences are not supported"),
    (x() | {"parameters": {"timeout": -1}}, "'timeout' must be a number of microseconds"),
    (x() | {"parameters": {"timeout": True}}, "'timeout' must be a number of microseconds"),
    (x() | {"id": 7}, "'id' must be a string"),
]


OWN: dict[str, Any] = {"content_type": "np", "tag": [1, {"a": None}], "binary_data": 7, "": True}


def test_parameters_of_a_client_itself_are_ignored(linear: Server) -> None:
    document = x(parameters=OWN) | {
        "outputs": [{"name": "y", "parameters": {**OWN, "binary_data": False}}],
        "parameters": OWN,
    }
    answer = linear.post(document)
    assert answer.status == 200, answer.body
    assert answer.json()["outputs"][0]["data"] == [14.0, 15.0, 16.0, 17.0]


@pytest.mark.parametrize(("document", "message"), REFUSED, ids=lambda value: str(value)[:60])
def test_a_bad_request_is_refused_with_the_reason(
    linear: Server, document: object, message: str
) -> None:
    answer = linear.post(document)
    assert answer.status == 400
    assert message in answer.json()["error"]
    assert "Traceback" not in answer.json()["error"]


def binary_echo(strings: bytes, booleans: bytes = b"\1\0\1") -> tuple[dict[str, Any], bytes]:
    """Return a binary request to the echo model with the bytes of two inputs chosen."""
    parts = {
        name: booleans if name == "BOOL" else strings if name == "BYTES" else array.tobytes()
        for name, (_, array) in KINDS.items()
    }
    inputs = [
        {
            "name": f"in_{name}",
            "datatype": name,
            "shape": [1, 3],
            "parameters": {"binary_data_size": len(part)},
        }
        for name, part in parts.items()
    ]
    return {"inputs": inputs}, b"".join(parts.values())


@pytest.mark.parametrize(
    ("strings", "booleans", "message"),
    [
        (b"\0\0\0\0" * 2, b"\1\0\1", "its bytes are not 3 strings"),
        (b"\0\0\0\0" * 4, b"\1\0\1", "its bytes are not 3 strings"),
        (b"\0\0\0\0" * 2 + b"\5\0\0\0a", b"\1\0\1", "its bytes are not 3 strings"),
        (b"\0\0\0\0" * 2 + b"\xff\xff\xff\xff", b"\1\0\1", "its bytes are not 3 strings"),
        (b"\0\0\0\0" * 2 + b"\0\0", b"\1\0\1", "its bytes are not 3 strings"),
        (b"\0\0\0\0" * 2 + b"\1\0\0\0\xff", b"\1\0\1", "element 2 is not UTF-8"),
        (b"\0\0\0\0" * 3, b"\1\0\2", "BOOL elements must be the bytes 0 or 1"),
    ],
)
def test_bad_bytes_are_refused(echo: Server, strings: bytes, booleans: bytes, message: str) -> None:
    document, tensors = binary_echo(strings, booleans)
    answer = echo.post(document, tensors)
    assert answer.status == 400
    assert message in answer.json()["error"]


# fault: Requests | a request of a size outside the shape profiles, whatever `fallback.policy`
def test_a_shape_outside_the_profile_is_counted(linear: Server) -> None:
    before = linear.metric("enginewright_out_of_profile_total")
    assert linear.post(x(shape=[5, 8], data=[1.0] * 40)).status == 400
    # wrong, but no profile's matter
    assert linear.post(x(shape=[1, 7], data=[1.0] * 7)).status == 400
    assert linear.metric("enginewright_out_of_profile_total") == before + 1


def test_the_metrics_have_the_names_that_alerts_hang_on(linear: Server) -> None:
    labels = 'model="m",revision="r1"'
    ok = f'enginewright_requests_total{{code="200",{labels}}}'
    parts = [
        f"enginewright_request_{part}_seconds_count{{{labels}}}" for part in ("queue", "compute")
    ]
    before = linear.metric(ok), [linear.metric(part) for part in parts]
    assert linear.post(x()).status == 200
    assert linear.post(b"{").status == 400
    assert linear.metric(ok) == before[0] + 1
    assert [linear.metric(part) for part in parts] == [count + 1 for count in before[1]]
    assert linear.metric(f'enginewright_requests_total{{code="400",{labels}}}') >= 1
    assert f"enginewright_queue_depth{{{labels}}} 0.0" in linear.get("/metrics").body.decode()
    assert linear.get("/metrics").headers["content-type"].startswith("text/plain; version=0.0.4")


def test_execution_reports_the_placement(linear: Server) -> None:
    reported = linear.get("/v2/models/m/execution").json()
    execution = Execution.model_validate(reported)
    contract = json.loads(execution.model_dump_json(exclude_none=True))
    assert reported == contract | {"details": reported["details"]}
    assert execution.placement.nodes == {"CPUExecutionProvider": 2}
    assert (execution.placement.elsewhere, execution.placement.context_nodes) == ((), ())
    assert (execution.backend, execution.provider) == ("cpu", "CPUExecutionProvider")
    assert execution.providers == ("CPUExecutionProvider",)
    assert (execution.session, execution.provider_reason) == (1, None)
    assert not execution.driver.needed
    assert execution.prepared_key == linear.task.prepared_key
    assert execution.ort_distributions == ("onnxruntime",)
    assert execution.ort_version == execution.backend_version == ort.__version__
    details = reported["details"]
    assert details["placement"] == {"total": 2, "share": 1.0, "elsewhere_count": 0}
    assert details["threads"] >= 1
    assert details["versions"].keys() == {"onnxruntime", "cpu"}
    assert details["manifest"]["key"] == linear.task.prepared_key
    assert details["proofs"]["golden_samples"] == 1


def buckets(server: Server) -> dict[int, ComputeBucket]:
    reported = server.get("/v2/models/m/execution").json()
    return {bucket.elements: bucket for bucket in Execution.model_validate(reported).buckets}


def test_time_in_the_model_is_reported_by_size_of_request(linear: Server) -> None:
    before = buckets(linear)
    assert before[16].warmup_seconds  # the golden sample has 2 x 8 elements
    for rows in (1, 2, 3, 1, 3):
        assert linear.post(json_inputs(x=np.ones((rows, 8), np.float32))).status == 200
    after = buckets(linear)
    for elements in (8, 16, 24):
        earlier = before.get(elements, ComputeBucket(elements=elements))
        assert after[elements].count >= earlier.count + 1
        assert after[elements].seconds > earlier.seconds
    assert after[16].warmup_seconds == before[16].warmup_seconds


def test_the_first_run_of_a_shape_is_left_out() -> None:
    """There a backend compiles; it says nothing of the next."""
    counted = ComputeBuckets()
    row, rows = ({"x": np.ones((count, 8), np.float32)} for count in (1, 4))
    counted.add_warm_up(row, 0.010)
    for feeds, seconds in ((row, 0.011), (rows, 5.0), (rows, 0.030), (rows, 0.031)):
        counted.add(feeds, seconds)
    assert counted.report() == (
        ComputeBucket(elements=8, warmup_seconds=0.010, count=1, seconds=0.011),
        ComputeBucket(elements=32, count=2, seconds=0.061, untimed=1),
    )


lookup = share_server(
    lambda: parse_text(
        "(int64[n] index) => (float[n] y) { y = Gather(table, index) }",
        initializer("table", [1, 2, 3]),
    ),
    {"index": np.array([0, 2])},
)


# fault: Latency | requests that all differ in shape, hence untimed, look like an idle pod | the
#   server counts them apart | at once
def test_runs_that_are_not_timed_are_counted_all_the_same(lookup: Server) -> None:
    """Clients whose requests all differ in shape ask as much as others do."""

    def read_counts() -> tuple[int, int]:
        reported = buckets(lookup).values()
        return sum(item.untimed for item in reported), sum(item.count for item in reported)

    untimed, timed = read_counts()
    for size, index, status in ((5, 0, 200), (6, 0, 200), (7, 99, 400)):
        assert lookup.post(json_inputs(index=np.full(size, index))).status == status
    assert read_counts() == (untimed + 3, timed)


# fault: Latency | a percentile of mixed shapes or of too few runs | one shape; absent below 100
#   runs | prevented
def test_the_usual_latency_is_of_one_shape(linear: Server) -> None:
    usual = present(Execution.model_validate(linear.get("/v2/models/m/execution").json()).usual)
    assert (usual.shapes, usual.samples) == ("opt", 200)
    assert usual.p99 is not None
    assert usual.p90 is not None
    assert 0 < usual.p50 <= usual.p90 <= usual.p99


def test_probes_count_nowhere(linear: Server) -> None:
    probe = linear.probe_header()
    compute = 'enginewright_request_compute_seconds_count{model="m",revision="r1"}'
    good = 'enginewright_requests_total{code="200",model="m",revision="r1"}'
    bad = 'enginewright_requests_total{code="400",model="m",revision="r1"}'
    before = [linear.metric(item) for item in (compute, good, bad)]
    counted = buckets(linear)
    assert linear.post(x(), headers=probe).status == 200
    assert linear.post(x(shape=[9, 9]), headers=probe).status == 400
    assert [linear.metric(item) for item in (compute, good, bad)] == before
    assert buckets(linear) == counted


# fault: Reports | a client claims to be the sidecar | the pod's token | prevented
def test_a_false_sidecar_is_counted_and_limited(linear: Server) -> None:
    good = 'enginewright_requests_total{code="200",model="m",revision="r1"}'
    before = linear.metric(good)
    (token,) = linear.probe_header().values()
    assert len(token) == 64
    claims = ["1", "0", token[:-1], token + "0", token.upper(), "0" * 64]
    for claim in claims:
        headers = {"Enginewright-Probe": claim, "Enginewright-Defer": "60000"}
        assert linear.post(x(), headers=headers).status == 200
    assert linear.metric(good) == before + len(claims)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/", "/ does not exist"),
        ("/v1/models/m:predict", "does not exist"),
        ("/v2/models/other", "model 'other' is not served here; this server has 'm'"),
        ("/v2/models/m/versions/9/ready", "no such version here; it has 'r1'"),
        ("/v2/models/m/", "does not exist"),
        ("/v2/models/m%00/x", "is not served here"),
    ],
)
def test_an_unknown_path_is_refused_with_the_known_names(
    linear: Server, path: str, message: str
) -> None:
    answer = linear.get(path)
    assert answer.status == 404
    assert message in answer.json()["error"]


@pytest.mark.parametrize(
    "path", ["/v2/health/live?verbose=1", "/v2/health%2Flive", "http://host:80/v2/health/live"]
)
def test_a_path_may_be_written_in_other_ways(linear: Server, path: str) -> None:
    assert linear.get(path).json() == {"live": True}


def test_an_input_that_the_model_itself_refuses_is_the_clients_fault(lookup: Server) -> None:
    answer = lookup.post(json_inputs(index=np.array([99])))
    assert answer.status == 400
    assert "idx=99 must be within" in answer.json()["error"]
    assert "/onnxruntime_src" not in answer.json()["error"]
    assert lookup.post(json_inputs(index=np.array([2]))).status == 200


def test_openvino_serves_and_tells_which_nodes_it_left_to_the_cpu(
    tmp_path: Path, openvino_python: Path
) -> None:
    mixed = parse_text(
        """(float[n, 3, 3] x) => (float[n] y) {
        [product] m = MatMul(x, w) [relu] r = Relu(m) [determinant] y = Det(r) }""",
        initializer("w", np.eye(3, dtype=np.float32)),
    )
    sample = np.stack([np.eye(3), 2 * np.eye(3)]).astype(np.float32)
    task = write_artifact(tmp_path, mixed, [{"x": sample}])
    task = task.model_copy(update={"backend": "openvino"})
    with Server(tmp_path, task, python=openvino_python) as server:
        given = triton_input("x", "FP32", sample, binary=True)
        np.testing.assert_allclose(client(server).infer("m", [given]).as_numpy("y"), [1, 8])
        reported = server.get("/v2/models/m/execution").json()
    assert reported["provider"] == "OpenVINOExecutionProvider"
    assert reported["placement"]["nodes"]["OpenVINOExecutionProvider"] > 0
    assert reported["placement"]["elsewhere"] == ["determinant (Det)"]
    assert reported["details"]["placement"]["share"] < 1
    assert reported["details"]["versions"].keys() == {"onnxruntime", "openvino"}


def test_inputs_of_bf16_beside_strings(tmp_path: Path) -> None:
    text = np.array(["é", ""], object)
    feeds = {"b": np.array([0x3F80, 0x4000], np.uint16), "s": text}
    golden = {"float": np.array([2, 4], np.float32), "text": text}
    task = write_artifact(tmp_path, halves_and_strings("float", "text"), [feeds], golden=[golden])
    with Server(tmp_path, task) as server:
        described = server.get("/v2/models/m").json()["outputs"]
        assert [output["name"] for output in described] == ["float", "text"]
        document: dict[str, Any] = {
            "inputs": [
                {
                    "name": "b",
                    "datatype": "BF16",
                    "shape": [2],
                    "parameters": {"binary_data_size": 4},
                },
                {"name": "s", "datatype": "BYTES", "shape": [2], "data": ["é", ""]},
            ]
        }
        answer = server.post(document, feeds["b"].tobytes())
        assert answer.status == 200, answer.body
        outputs = {item["name"]: item["data"] for item in answer.json()["outputs"]}
        assert outputs == {"float": [2.0, 4.0], "text": ["é", ""]}
        assert server.post({**document, "outputs": [{"name": "half"}]}).status == 400


def test_a_model_without_returnable_outputs_is_refused(tmp_path: Path) -> None:
    golden = {"half": np.array([0x4000, 0x4080], np.uint16)}
    feeds = {"b": np.array([0x3F80, 0x4000], np.uint16), "s": np.array(["é", ""], object)}
    task = write_artifact(tmp_path, halves_and_strings(), [feeds], golden=[golden])
    assert Server(tmp_path, task).wait() == ExitCode.PERMANENT
    reason = "half (BF16 beside the strings of input 's')"
    assert reason in (tmp_path / "dev/termination-log").read_text()
