"""What each public method of Triton's clients does with our server: prints JSON. It runs in .venv-clients.

Its argument is JSON: the addresses of the server of the linear model, over HTTP and over gRPC.
"""

import json
import queue
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

ADDRESSES: dict[str, str] = json.loads(sys.argv[1])
CLIENTS = {"http": tritonclient.http, "grpc": tritonclient.grpc}
X = np.ones((1, 8), np.float32)
SECONDS = 8.0  # less than a request may take to arrive


def make_input(kind: Any) -> Any:
    made = kind.InferInput("x", [1, 8], "FP32")
    made.set_data_from_numpy(X)
    return made


def infer(kind: Any, client: Any, **options: Any) -> None:
    answer = client.infer("m", [make_input(kind)], **options)
    assert answer.as_numpy("y").tolist() == [[14.0, 15.0, 16.0, 17.0]]


def infer_later(kind: Any, client: Any) -> None:
    if kind is tritonclient.http:
        answer = client.async_infer("m", [make_input(kind)]).get_result()
    else:
        results: queue.Queue[Any] = queue.Queue()
        client.async_infer(
            "m", [make_input(kind)], lambda result, error: results.put((result, error))
        )
        answer, error = results.get(timeout=SECONDS)
        assert error is None
    assert answer.as_numpy("y").tolist() == [[14.0, 15.0, 16.0, 17.0]]


def infer_in_stream(kind: Any, client: Any) -> None:
    results: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda **ended: results.put(ended["error"]))
    try:
        client.async_stream_infer("m", [make_input(kind)])
        error = results.get(timeout=SECONDS)
    finally:
        client.stop_stream()
    if error is not None:
        raise error


def share_input(kind: Any, client: Any) -> None:
    shared = kind.InferInput("x", [1, 8], "FP32")
    shared.set_shared_memory("region", 32)
    client.infer("m", [shared])


def outputs(kind: Any, **options: Any) -> list[Any]:
    return [kind.InferRequestedOutput("y", **options)]


def register_plugin(client: Any) -> None:
    client.register_plugin(lambda _: None)
    assert client.plugin()
    client.unregister_plugin()


def build_calls(kind: Any, client: Any) -> dict[str, Callable[[], object]]:
    """Return what is called, by the method and how it is."""
    calls: dict[str, Callable[[], object]] = {
        "is_server_live": client.is_server_live,
        "is_server_ready": client.is_server_ready,
        "is_model_ready": lambda: client.is_model_ready("m", "1"),
        "get_server_metadata": client.get_server_metadata,
        "get_model_metadata": lambda: client.get_model_metadata("m"),
        "get_model_config": lambda: client.get_model_config("m", "1"),
        "get_model_repository_index": client.get_model_repository_index,
        "get_inference_statistics": lambda: client.get_inference_statistics("m", "1"),
        "infer": lambda: infer(kind, client),
        "infer, request_id, priority, timeout": lambda: infer(
            kind, client, request_id="7", priority=1, timeout=60_000_000
        ),
        "infer, parameters": lambda: infer(
            kind, client, parameters={"tag": "a", "number": 7, "share": 0.5, "is": True}
        ),
        "infer, outputs": lambda: infer(kind, client, outputs=outputs(kind)),
        "infer, class_count": lambda: infer(kind, client, outputs=outputs(kind, class_count=2)),
        "infer, sequence_id": lambda: infer(kind, client, sequence_id=5, sequence_start=True),
        "infer, set_shared_memory": lambda: share_input(kind, client),
        "async_infer": lambda: infer_later(kind, client),
        "load_model": lambda: client.load_model("m"),
        "unload_model": lambda: client.unload_model("m"),
        "get_trace_settings": lambda: client.get_trace_settings("m"),
        "update_trace_settings": lambda: client.update_trace_settings(
            settings={"trace_level": ["TIMESTAMPS"]}
        ),
        "get_log_settings": client.get_log_settings,
        "update_log_settings": lambda: client.update_log_settings({"log_verbose_level": 1}),
        "get_system_shared_memory_status": client.get_system_shared_memory_status,
        "get_cuda_shared_memory_status": client.get_cuda_shared_memory_status,
        "register_system_shared_memory": lambda: client.register_system_shared_memory(
            "region", "/region", 32
        ),
        "register_cuda_shared_memory": lambda: client.register_cuda_shared_memory(
            "region", b"aGFuZGxl", 0, 32
        ),
        "unregister_system_shared_memory": client.unregister_system_shared_memory,
        "unregister_cuda_shared_memory": lambda: client.unregister_cuda_shared_memory("region"),
        "register_plugin, plugin, unregister_plugin": lambda: register_plugin(client),
    }
    if kind is tritonclient.grpc:
        return calls | {
            "start_stream, async_stream_infer, stop_stream": lambda: infer_in_stream(kind, client),
            "infer, compression_algorithm gzip": lambda: infer(
                kind, client, compression_algorithm="gzip"
            ),
            "infer, compression_algorithm deflate": lambda: infer(
                kind, client, compression_algorithm="deflate"
            ),
            "infer, client_timeout": lambda: infer(kind, client, client_timeout=SECONDS),
            "close": client.close,
        }
    return calls | {
        **{
            f"infer, request_compression_algorithm {name}": lambda name=name: infer(
                kind, client, request_compression_algorithm=name
            )
            for name in ("gzip", "deflate")
        },
        "infer, response_compression_algorithm gzip": lambda: infer(
            kind, client, response_compression_algorithm="gzip"
        ),
        "generate_request_body, parse_response_body": lambda: client.generate_request_body(
            [make_input(kind)]
        ),
        "close": client.close,
    }


def outcome(call: Callable[[], object]) -> str:
    """Return "works", or the message of the error that a call ends with."""
    try:
        result = call()
    except InferenceServerException as raised:
        return str(raised.message())
    assert result is not False
    return "works"


def main() -> None:
    results: dict[str, Any] = {}
    for name, kind in CLIENTS.items():
        client = kind.InferenceServerClient(ADDRESSES[name])
        methods = [item for item in dir(kind.InferenceServerClient) if not item.startswith("_")]
        called = {how: outcome(call) for how, call in build_calls(kind, client).items()}
        results[name] = {"methods": methods, "called": called}
    http = tritonclient.http.InferenceServerClient(ADDRESSES["http"])
    grpc = tritonclient.grpc.InferenceServerClient(ADDRESSES["grpc"])
    results["read"] = {
        "http": {
            "config": http.get_model_config("m"),
            "index": http.get_model_repository_index(),
            "trace": http.get_trace_settings(),
            "log": http.get_log_settings(),
            "memory": http.get_system_shared_memory_status(),
        },
        "grpc": {
            "config": grpc.get_model_config("m", as_json=True)["config"],
            "index": grpc.get_model_repository_index(as_json=True),
            "trace": grpc.get_trace_settings(as_json=True),
            "log": grpc.get_log_settings(as_json=True),
            "memory": grpc.get_system_shared_memory_status(as_json=True),
        },
    }
    print(json.dumps(results))


main()
