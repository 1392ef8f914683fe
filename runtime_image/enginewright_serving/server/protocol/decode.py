"""Decodes request bodies into the session's feeds; binary tensors are views of the body.

A binary body is a JSON header followed by the tensors' bytes. Clients repeat their headers, so parsed ones are cached.
"""

import math
import sys
from typing import Any, Final

import numpy as np
from enginewright_runtime.core.request_errors import RequestError
from enginewright_runtime.session.datatypes import BOOL
from enginewright_runtime.session.signature import Signature
from numpy.typing import NDArray

from enginewright_serving.binary_tensors import read_tensor
from enginewright_serving.server.protocol.inference_request import (
    LARGE_JSON,
    InferenceRequest,
    read_request,
)
from enginewright_serving.transport.message import Body

_CACHED_HEADERS: Final = 256
_CACHED_HEADER_BYTES: Final = 4096  # longer headers are not cached
# bytes of tensors that take more than a millisecond: strings, and others that are copied or checked
_LARGE_STRINGS: Final = 32 * 1024
_LARGE_TENSORS: Final = 2 * 1024 * 1024

Feeds = dict[str, NDArray[Any]]


class Decoder:
    """Decodes the requests of one model."""

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        self._valued: Final = signature.valued
        self._plans: dict[bytes, InferenceRequest] = {}
        datatypes = {tensor.datatype for tensor in signature.inputs.values()}
        self._large = large_bytes(signature, aligned=len(datatypes) == 1)

    def is_slow(self, body: Body, json_length: int | None) -> bool:
        """Return whether decoding may take more than a millisecond; see `decode`."""
        if json_length is None:
            json_length = body.length
        return json_length > LARGE_JSON or body.length - json_length > self._large

    def decode(self, body: Body, json_length: int | None) -> tuple[InferenceRequest, Feeds]:
        """Return the parsed request of `body` and its inputs by name; raise RequestError 400.

        Binary inputs are views of its memory, except strings. `json_length` is Inference-Header-Content-Length,
        without which the whole body is JSON.
        """
        view = body.view()
        if json_length is None:
            plan = read_request(self._signature, view)
            json_length = body.length
        else:
            plan = self._plan(bytes(view[:json_length]))
        left = body.length - json_length
        if left != plan.binary_size:
            raise RequestError(
                400,
                f"the inputs have {plan.binary_size} bytes of tensor data, but {left} bytes follow"
                " the JSON; check binary_data_size and Inference-Header-Content-Length",
            )
        feeds = dict(plan.arrays)
        for item in plan.binary_inputs:
            feeds[item.tensor.name] = read_tensor(
                item.tensor, item.shape, view, json_length + item.offset, item.size
            )
        for tensor in self._valued:
            tensor.check_values(feeds[tensor.name])
        return plan, feeds

    def _plan(self, header: bytes) -> InferenceRequest:
        plan = self._plans.get(header)
        if plan is None:
            plan = read_request(self._signature, header)
            if not plan.arrays and len(header) <= _CACHED_HEADER_BYTES:
                if len(self._plans) >= _CACHED_HEADERS:
                    self._plans.clear()
                self._plans[header] = plan
        return plan


def large_bytes(signature: Signature, *, aligned: bool) -> float:
    """Return the bytes of binary tensors above which reading them, without copies if `aligned`, takes a millisecond."""
    datatypes = {tensor.datatype for tensor in signature.inputs.values()}
    if any(datatype.is_string for datatype in datatypes):
        return _LARGE_STRINGS
    if signature.valued or BOOL in datatypes or not aligned:
        return _LARGE_TENSORS
    return math.inf


def count_held_bytes(feeds: Feeds, body: memoryview) -> int:
    """Return the bytes that `feeds` take, with those of the body if one is a view of it."""
    memory = np.frombuffer(body, np.uint8)
    total = 0
    keeps_body = False
    for array in feeds.values():
        if np.may_share_memory(array, memory):
            keeps_body = True
        else:
            total += array.nbytes
        if array.dtype == object:
            total += sum(map(sys.getsizeof, array.flat))
    return total + len(body) * keeps_body
