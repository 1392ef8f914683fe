"""What Triton's gRPC client sees of our servers: prints JSON. It runs in .venv-clients.

Its argument is JSON: the addresses of servers of the models echo, halves and slow.
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

ADDRESSES: dict[str, str] = json.loads(sys.argv[1])
LONG = 5_000  # turns: above a second
ARRAYS = {
    "BOOL": np.array([[True, False, True]]),
    **{f"UINT{bits}": np.array([[0, 7, 2**bits - 1]], f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{
        f"INT{bits}": np.array([[-(2 ** (bits - 1)), 7, 2 ** (bits - 1) - 1]], f"int{bits}")
        for bits in (8, 16, 32, 64)
    },
    "FP16": np.array([[-1.5, np.nan, 65504]], np.float16),
    "FP32": np.array([[-1.5, np.inf, 3e38]], np.float32),
    "FP64": np.array([[-1.5, 0, 1e300]], np.float64),
    "BYTES": np.array([[b"", "grün".encode(), b"a\nb"]], object),
}


def client(name: str) -> Any:
    return triton.InferenceServerClient(ADDRESSES[name])


def make_inputs(name: str, array: Any) -> Any:
    made = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    made.set_data_from_numpy(array)
    return made


def check_echoes(**options: Any) -> dict[str, bool]:
    """Send an array of every type; return which came back."""
    inputs = [make_inputs(f"in_{kind}", array) for kind, array in ARRAYS.items()]
    answer = client("echo").infer("m", inputs, **options)
    echoes = {}
    for kind, array in ARRAYS.items():
        output = answer.as_numpy(f"out_{kind}")
        same = output.dtype == array.dtype and output.shape == array.shape
        echoes[kind] = bool(same and output.tobytes() == array.tobytes()) or (
            kind == "BYTES" and output.tolist() == array.tolist()
        )
    return echoes


def error(call: Callable[[], object]) -> list[str]:
    """Return code and message of the error that a call ends with."""
    try:
        call()
    except InferenceServerException as raised:
        return [str(raised.status()), str(raised.message())]
    return ["none", ""]


def large() -> bool:
    inputs = dict(ARRAYS) | {
        "FP32": np.arange(3_000_000, dtype=np.float32).reshape(-1, 3),
    }
    answer = client("echo").infer(
        "m",
        [make_inputs(f"in_{kind}", array) for kind, array in inputs.items()],
        outputs=[triton.InferRequestedOutput("out_FP32")],
    )
    return bool((answer.as_numpy("out_FP32") == inputs["FP32"]).all())


def halves() -> list[float]:
    x = make_inputs("x", np.array([1.0, 2.0], ml_dtypes.bfloat16))
    answer = client("halves").infer("m", [x])
    doubled: list[float] = answer.as_numpy("y").astype(np.float32).tolist()
    return doubled


def turns(count: int) -> Any:
    return make_inputs("turns", np.array([count], np.int64))


def behind_a_long_run(call: Callable[[], object]) -> list[str]:
    """Return the error of a call that waits behind another one."""
    done = threading.Event()
    with client("slow") as busy:
        busy.is_server_live()  # connects
        busy.async_infer("m", [turns(LONG)], callback=lambda **_: done.set())
        time.sleep(0.1)  # for it to begin
        failure = error(call)
        done.wait(60)
    return failure


def cancel_call() -> list[str]:
    done = threading.Event()
    errors: list[Any] = []

    def take(result: object, error: Any) -> None:
        errors.append(error)
        done.set()

    with client("slow") as one:
        one.is_server_live()  # connects
        sent = one.async_infer("m", [turns(LONG)], callback=take)
        time.sleep(0.3)  # for it to arrive
        sent.cancel()
        done.wait(60)
    return [str(errors[0].status()), str(errors[0].message())]


def collect_refusals() -> dict[str, list[str]]:
    x = make_inputs("turns", np.array([1], np.int64))
    flat = make_inputs("turns", np.array([1, 2], np.int64))
    wrong = make_inputs("turns", np.array([1], np.int32))
    shared = triton.InferInput("turns", [1], "INT64")
    shared.set_shared_memory("region", 8)
    classes = triton.InferRequestedOutput("sum", class_count=2)
    with client("slow") as one:
        return {
            "model": error(lambda: one.infer("n", [x])),
            "version": error(lambda: one.infer("m", [x], model_version="9")),
            "ready": error(lambda: one.is_model_ready("n")),
            "metadata": error(lambda: one.get_model_metadata("n")),
            "shape": error(lambda: one.infer("m", [flat])),
            "type": error(lambda: one.infer("m", [wrong])),
            "missing": error(lambda: one.infer("m", [])),
            "sequence": error(lambda: one.infer("m", [x], sequence_id=1)),
            "shared memory": error(lambda: one.infer("m", [shared])),
            "classification": error(lambda: one.infer("m", [x], outputs=[classes])),
            "deflate": error(lambda: one.infer("m", [x], compression_algorithm="deflate")),
            "statistics": error(lambda: one.get_inference_statistics("n")),
            "config": error(lambda: one.get_model_config("n")),
        }


def main() -> None:
    with client("echo") as one:
        metadata = one.get_model_metadata("m", as_json=True)
        results = {
            "live": one.is_server_live(),
            "ready": one.is_server_ready(),
            "model ready": one.is_model_ready("m"),
            "version ready": one.is_model_ready("m", "r1"),
            "server": one.get_server_metadata(as_json=True)["name"],
            "model": [metadata[key] for key in ("name", "versions", "platform")],
            "inputs": metadata["inputs"],
        }
    with client("slow") as one:
        some = one.infer(
            "m", [turns(1)], request_id="é7", outputs=[triton.InferRequestedOutput("sum")]
        ).get_response(as_json=True)
        in_time = one.infer("m", [turns(3)], timeout=30_000_000, client_timeout=30, priority=1)
        results["in time"] = in_time.as_numpy("done").tolist()
    results |= {"echo": check_echoes()}
    with client("echo") as one:
        results["statistics"] = [
            one.get_inference_statistics(*which, as_json=True) for which in ((), ("m",), ("m", "1"))
        ]
    results |= {
        "gzip": check_echoes(compression_algorithm="gzip"),
        "large": large(),
        "halves": halves(),
        "id": some["id"],
        "outputs": [output["name"] for output in some["outputs"]],
        "timeout": behind_a_long_run(lambda: client("slow").infer("m", [turns(1)], timeout=20_000)),
        "deadline": error(lambda: client("slow").infer("m", [turns(LONG)], client_timeout=0.1)),
        "cancelled": cancel_call(),
        "refused": collect_refusals(),
    }
    print(json.dumps(results))


main()
