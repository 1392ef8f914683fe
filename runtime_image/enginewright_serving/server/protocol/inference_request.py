"""The JSON part of an inference request: its inputs, the requested outputs and their encoding."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

import orjson
from enginewright_runtime.core.request_errors import RequestError
from enginewright_runtime.session.datatypes import BF16
from enginewright_runtime.session.signature import Signature, Tensor
from numpy.typing import NDArray

from enginewright_serving.server.protocol import jsondata
from enginewright_serving.server.protocol import request_checks as checks
from enginewright_serving.server.protocol.json_cost import check_cost, collection_paused
from enginewright_serving.server.protocol.priorities import DEFAULT, read_priority

LARGE_JSON: Final = 64 * 1024  # bytes, which may take more than a millisecond to read
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class BinaryInput:
    """An input whose elements follow the JSON, `size` bytes from `offset` on."""

    tensor: Tensor
    shape: tuple[int, ...]
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """A parsed request; valid for every request with the same JSON."""

    identifier: str | None
    arrays: dict[str, NDArray[Any]]  # inputs given in JSON
    binary_inputs: tuple[BinaryInput, ...]
    binary_size: int  # bytes after the JSON
    outputs: list[str]
    binary: tuple[bool, ...]  # for each output: as bytes after the response's JSON
    timeout: float  # seconds, 0 without one
    priority: int = DEFAULT
    answers: dict[tuple[tuple[int, ...], ...], bytes] = field(default_factory=dict)  # by `encode`

    @property
    def has_run(self) -> bool:
        """Whether a request with the same JSON, and so the same shapes, has been answered."""
        return bool(self.answers)


def read_request(signature: Signature, text: memoryview | bytes) -> InferenceRequest:
    """Parse and check the JSON of a request; raise RequestError 400, or 413 if parsing would cost too much."""
    return read_document(text, "inputs", partial(_read, signature))


def read_document(text: memoryview | bytes, key: str, read: Callable[[dict[str, Any]], _T]) -> _T:
    """Return what `read` makes of a JSON object, which should have a `key`; raise RequestError likewise."""
    if len(text) <= LARGE_JSON:
        return read(_parse(text, key))
    check_cost(text)
    with collection_paused():
        return read(_parse(text, key))


def _read(signature: Signature, document: dict[str, Any]) -> InferenceRequest:
    parameters = _parameters(document, "the request")
    arrays, binary_inputs, binary_size = _read_inputs(signature, document.get("inputs"))
    outputs, binary = _read_outputs(signature, document, parameters)
    identifier = document.get("id")
    if identifier is not None and not isinstance(identifier, str):
        raise RequestError(400, "'id' must be a string")
    if identifier is not None:
        checks.check_identifier(identifier)
    timeout = checks.timeout_seconds(parameters)
    priority = read_priority(parameters)
    return InferenceRequest(
        identifier, arrays, binary_inputs, binary_size, outputs, binary, timeout, priority
    )


def _parse(header: memoryview | bytes, key: str) -> dict[str, Any]:
    try:
        document = orjson.loads(header)
    except orjson.JSONDecodeError as error:
        raise RequestError(400, f"the request is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise RequestError(400, f"the request must be a JSON object with {key!r}")
    return document


def _parameters(item: dict[str, Any], where: str) -> dict[str, Any]:
    parameters = item.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise RequestError(400, f"'parameters' of {where} must be an object")
    checks.check_parameters(parameters, where)
    return parameters


def _read_inputs(
    signature: Signature, items: object
) -> tuple[dict[str, NDArray[Any]], tuple[BinaryInput, ...], int]:
    if not isinstance(items, list):
        raise RequestError(400, "'inputs' must be a list of tensors")
    shapes: dict[str, tuple[int, ...]] = {}
    arrays: dict[str, NDArray[Any]] = {}
    binary_inputs: list[BinaryInput] = []
    offset = 0
    for item in items:
        tensor = _input(signature, item, shapes)
        count = tensor.count(item.get("shape"))
        shape = shapes[tensor.name] = tuple(item["shape"])
        where = f"input {tensor.name!r}"
        size = _parameters(item, where).get(checks.BINARY_SIZE)
        data = item.get("data")
        if (size is None) == (data is None):
            raise RequestError(
                400,
                f"input {tensor.name!r}: give either 'data' or the parameter 'binary_data_size'"
                " with the bytes after the JSON",
            )
        if size is None:
            arrays[tensor.name] = jsondata.read(tensor, data, shape, count)
        else:
            size = _binary_size(tensor, count, size)
            binary_inputs.append(BinaryInput(tensor, shape, offset, size))
            offset += size
    checks.check_inputs(signature, shapes)
    return arrays, tuple(binary_inputs), offset


def _input(signature: Signature, item: object, given: Collection[str]) -> Tensor:
    name = item.get("name") if isinstance(item, dict) else None
    if not isinstance(item, dict) or not isinstance(name, str):
        raise RequestError(400, "every input must be an object with a 'name'")
    return checks.find_input(signature, name, item.get("datatype"), given)


def _binary_size(tensor: Tensor, count: int, size: object) -> int:
    if type(size) is not int or size < 0:
        raise RequestError(400, f"input {tensor.name!r}: 'binary_data_size' must be a number")
    checks.check_size(tensor, count, size, "binary_data_size is")
    return size


def _read_outputs(
    signature: Signature, document: dict[str, Any], parameters: dict[str, Any]
) -> tuple[list[str], tuple[bool, ...]]:
    default = checks.flag(parameters, checks.BINARY_OUTPUT, "the request", absent=False)
    items = document.get("outputs") or [{"name": name} for name in signature.outputs]
    if not isinstance(items, list):
        raise RequestError(400, "'outputs' must be a list of tensors")
    names: list[str] = []
    binary: list[bool] = []
    for item in items:
        name = item.get("name") if isinstance(item, dict) else None
        if not isinstance(name, str):
            raise RequestError(400, "every output must be an object with a 'name'")
        tensor = checks.find_output(signature, name, names)
        where = f"output {name!r}"
        given = _parameters(item, where)
        as_bytes = checks.flag(given, checks.BINARY, where, absent=default)
        if tensor.datatype is BF16 and not as_bytes:
            raise RequestError(
                400, f"{where}: BF16 has no JSON form; set the parameter 'binary_data' to true"
            )
        names.append(name)
        binary.append(as_bytes)
    return names, tuple(binary)
