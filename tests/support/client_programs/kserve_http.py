"""What KServe's HTTP client sees of our server: prints JSON. It runs in .venv-clients.

Its argument is JSON: the address of the server of the model echo.
"""

import asyncio
import json
import logging
import sys
from collections.abc import Awaitable
from typing import Any

import httpx
import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig

URL = f"http://{json.loads(sys.argv[1])['echo']}"
VALUES: dict[str, list[Any]] = {
    "BOOL": [True, False, True],
    **{f"UINT{bits}": [0, 7, 2**bits - 1] for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": [-(2 ** (bits - 1)), 7, 2 ** (bits - 1) - 1] for bits in (8, 16, 32, 64)},
    "FP16": [-1.5, 0.0, 65504.0],
    "FP32": [-1.5, 0.0, 0.25],
    "FP64": [-1.5, 0.0, 1e300],
    "BYTES": ["x", "grün", "a\nb"],
}


def make_inputs(kind: str, *, binary: bool) -> Any:
    names = {"BOOL": "bool", "BYTES": "object", "FP16": "f2", "FP32": "f4", "FP64": "f8"}
    made = InferInput(f"in_{kind}", [1, 3], kind)
    array = np.array([VALUES[kind]], names.get(kind, kind.lower()))
    # its client sends FP16 in binary only
    made.set_data_from_numpy(array, binary_data=binary or kind == "FP16")
    return made


async def check_echoes(client: Any, *, binary: bool) -> dict[str, bool]:
    inputs = [make_inputs(kind, binary=binary) for kind in VALUES]
    parameters = {"binary_data_output": True} if binary else {}
    request = InferRequest("m", inputs, request_id="7", parameters=parameters)
    answer = await client.infer(URL, request, model_name="m")
    assert answer.id == "7"
    outputs = {output.name.removeprefix("out_"): output for output in answer.outputs}
    return {kind: outputs[kind].data == values for kind, values in VALUES.items()}


async def error(call: Awaitable[Any]) -> str:
    try:
        await call
    except httpx.HTTPStatusError as raised:
        return str(raised)
    return ""


async def main() -> None:
    logging.disable()
    client = InferenceRESTClient(RESTConfig(protocol="v2"))
    results = {
        "live": await client.is_server_live(URL),
        "ready": await client.is_server_ready(URL),
        "model ready": await client.is_model_ready(URL, "m"),
        "unknown ready": await client.is_model_ready(URL, "n"),
        "binary": await check_echoes(client, binary=True),
        "json": await check_echoes(client, binary=False),
        "refused": await error(
            client.infer(URL, InferRequest("m", [make_inputs("BOOL", binary=True)]), model_name="m")
        ),
    }
    await client.close()
    print(json.dumps(results))


asyncio.run(main())
