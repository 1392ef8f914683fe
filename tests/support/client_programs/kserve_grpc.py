"""What KServe's gRPC client sees of our servers: prints JSON. It runs in .venv-clients.

Its argument is JSON: the addresses of servers of the models echo and slow.
"""

import asyncio
import json
import logging
import sys
from collections.abc import Awaitable
from typing import Any

import grpc
import numpy as np
from kserve import InferenceGRPCClient, InferInput, InferRequest

ADDRESSES: dict[str, str] = json.loads(sys.argv[1])
VALUES: dict[str, list[Any]] = {
    "BOOL": [True, False, True],
    **{f"UINT{bits}": [0, 7, 2**bits - 1] for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": [-(2 ** (bits - 1)), 7, 2 ** (bits - 1) - 1] for bits in (8, 16, 32, 64)},
    "FP16": [-1.5, 0.0, 65504.0],
    "FP32": [-1.5, 0.0, 0.25],
    "FP64": [-1.5, 0.0, 1e300],
    "BYTES": [b"", "grün".encode(), b"a\nb"],
}


def array(kind: str) -> Any:
    names = {"BOOL": "bool", "BYTES": "object", "FP16": "f2", "FP32": "f4", "FP64": "f8"}
    return np.array([VALUES[kind]], names.get(kind, kind.lower()))


def make_typed(kind: str) -> Any:
    return InferInput(f"in_{kind}", [1, 3], kind, VALUES[kind])


def raw(kind: str) -> Any:
    made = InferInput(f"in_{kind}", [1, 3], kind)
    made.set_data_from_numpy(array(kind), binary_data=True)
    return made


async def check_echoes(client: Any, inputs: list[Any]) -> dict[str, bool]:
    answer = await client.infer(InferRequest("m", inputs, request_id="7"))
    assert answer.id == "7"
    outputs = {output.name.removeprefix("out_"): output.as_numpy() for output in answer.outputs}
    return {kind: outputs[kind].tolist() == array(kind).tolist() for kind in outputs}


async def error(call: Awaitable[Any]) -> list[str]:
    try:
        await call
    except grpc.RpcError as raised:
        return [raised.code().name, raised.details()]
    return ["none", ""]


async def main() -> None:
    logging.disable()
    async with InferenceGRPCClient(ADDRESSES["echo"]) as client:
        kinds = list(VALUES)
        mixed = [raw(kind) if kind == "FP16" else make_typed(kind) for kind in kinds]
        results = {
            "live": await client.is_server_live(),
            "ready": await client.is_server_ready(),
            "model ready": await client.is_model_ready("m"),
            "raw": await check_echoes(client, [raw(kind) for kind in kinds]),
            "mixed": await error(client.infer(InferRequest("m", mixed))),
            "unknown": await error(client.is_model_ready("n")),
        }
    async with InferenceGRPCClient(ADDRESSES["typed"]) as client:
        kinds = [kind for kind in VALUES if kind != "FP16"]
        results["typed"] = await check_echoes(client, list(map(make_typed, kinds)))
    async with InferenceGRPCClient(ADDRESSES["slow"]) as client:
        turns = InferInput("turns", [1], "INT64", [5_000])
        request = InferRequest("m", [turns])
        results["deadline"] = await error(client.infer(request, timeout=0.1))
    print(json.dumps(results))


asyncio.run(main())
