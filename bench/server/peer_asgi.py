"""A peer for comparison: a minimal ASGI application on uvicorn.

No validation, no limits, no deadline, no metrics; one thread runs the model.
"""

import argparse
import asyncio
import json
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnxruntime as ort
import uvicorn


def application(model: str) -> Callable[..., Awaitable[None]]:
    """Return an application that answers binary inference requests with one FP32 input."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    pool = ThreadPoolExecutor(1)

    async def answer(scope: dict[str, Any], receive: Any, send: Any) -> None:  # noqa: ANN401 - ASGI's
        if scope["type"] != "http":
            return
        parts = []
        while True:
            event = await receive()
            parts.append(event.get("body", b""))
            if not event.get("more_body"):
                break
        if scope["method"] == "GET":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"{}"})
            return
        body = b"".join(parts)
        length = int(dict(scope["headers"])[b"inference-header-content-length"])
        shape = json.loads(body[:length])["inputs"][0]["shape"]
        feeds = {"x": np.frombuffer(body, np.float32, offset=length).reshape(shape)}
        output = (await asyncio.get_running_loop().run_in_executor(pool, session.run, None, feeds))[
            0
        ]
        header = json.dumps(
            {
                "model_name": "m",
                "outputs": [
                    {
                        "name": "y",
                        "datatype": "FP32",
                        "shape": output.shape,
                        "parameters": {"binary_data_size": output.nbytes},
                    }
                ],
            }
        ).encode()
        data = header + output.tobytes()
        headers = [
            (b"content-length", str(len(data)).encode()),
            (b"inference-header-content-length", str(len(header)).encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": data})

    return answer


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    uvicorn.run(
        application(arguments.model),
        port=arguments.port,
        log_level="warning",
        access_log=False,
        loop="uvloop",
        http="httptools",
    )
