"""Writes a request that came over gRPC as it would have come over HTTP.

The sidecar compares a canary's answers to real requests in that form only.
"""

import orjson

from enginewright_serving.binary_tensors import tensor_bytes
from enginewright_serving.server.protocol.decode import Feeds
from enginewright_serving.server.protocol.grpc.decode import GrpcPlan
from enginewright_serving.transport.message import Body


def http_request(plan: GrpcPlan, feeds: Feeds) -> tuple[Body, int]:
    """Return the body of the request in binary, and the bytes of its JSON."""
    tensors = [tensor_bytes(feeds[item.tensor.name]) for item in plan.inputs]
    inputs = [
        {
            "name": item.tensor.name,
            "datatype": item.tensor.datatype.name,
            "shape": item.shape,
            "parameters": {"binary_data_size": len(tensor)},
        }
        for item, tensor in zip(plan.inputs, tensors, strict=True)
    ]
    outputs = [{"name": name, "parameters": {"binary_data": True}} for name in plan.outputs]
    header = orjson.dumps({"inputs": inputs, "outputs": outputs})
    body = Body(len(header) + sum(map(len, tensors)), len(header))
    view, at = body.view(), 0
    for part in (header, *tensors):
        view[at : at + len(part)] = part
        at += len(part)
    return body, len(header)
