"""The checks of a request's names, types, sizes and parameters in every protocol.

A function that refuses something raises RequestError, with status 400 and the cause for the client.
"""

import math
from collections.abc import Collection, Iterable
from typing import Any, Final

from enginewright_runtime.core.request_errors import RequestError
from enginewright_runtime.session.signature import Signature, Tensor, quote_names, show

TIMEOUT: Final = "timeout"
BINARY_OUTPUT: Final = "binary_data_output"  # of a request: the default of `BINARY`
BINARY: Final = "binary_data"  # of a requested output
BINARY_SIZE: Final = "binary_data_size"  # of an input
STRINGS: Final = 100_000  # of all inputs: ONNX Runtime copies each with the GIL held

_LONGEST_IDENTIFIER: Final = 1024  # characters; it is repeated in the response
_NO_SEQUENCES: Final = "sequences are not supported; send state as inputs and read it from outputs, if the model has them"
_NO_MEMORY: Final = "shared memory is not supported; send the tensor in the request, in binary"
_WHY_NOT: Final = {  # parameters that would change the answer
    "classification": "classification is not supported; request the output and sort it in the client",
    "sequence_id": _NO_SEQUENCES,
    "sequence_start": _NO_SEQUENCES,
    "sequence_end": _NO_SEQUENCES,
    "shared_memory_region": _NO_MEMORY,
    "shared_memory_byte_size": _NO_MEMORY,
    "shared_memory_offset": _NO_MEMORY,
}


def check_parameters(names: Iterable[str], where: str) -> None:
    """Refuse a parameter that would change the answer and is not supported; others are a client's own."""
    for name in names:
        if name in _WHY_NOT:
            raise RequestError(400, f"parameter {name!r} of {where}: {_WHY_NOT[name]}")


def check_identifier(identifier: str) -> None:
    """Refuse a long identifier."""
    if len(identifier) > _LONGEST_IDENTIFIER:
        raise RequestError(400, f"'id' is longer than {_LONGEST_IDENTIFIER} characters")


def timeout_seconds(parameters: dict[str, Any]) -> float:
    """Return how long a request may wait, 0 without limit; refuse an invalid timeout."""
    timeout = parameters.get(TIMEOUT, 0)
    if type(timeout) is not int or timeout < 0:
        raise RequestError(400, "parameter 'timeout' must be a number of microseconds")
    return timeout / 1e6


def flag(parameters: dict[str, Any], name: str, where: str, *, absent: bool) -> bool:
    """Return a parameter that is true or false; refuse another value."""
    value = parameters.get(name, absent)
    if not isinstance(value, bool):
        raise RequestError(400, f"parameter {name!r} of {where} must be true or false")
    return value


def find_input(signature: Signature, name: str, datatype: object, given: Collection[str]) -> Tensor:
    """Return the input of this name; refuse an unknown one, another type, and one that is already `given`."""
    tensor = signature.inputs.get(name)
    if tensor is None:
        raise RequestError(
            400,
            f"input {show(name)} is unknown; the model's inputs are"
            f" {quote_names(signature.inputs)}",
        )
    if datatype != tensor.datatype.name:
        raise RequestError(
            400, f"input {name!r}: datatype {show(datatype)}, expected {tensor.datatype.name!r}"
        )
    if name in given:
        raise RequestError(400, f"input {name!r} is given twice")
    return tensor


def check_inputs(signature: Signature, shapes: dict[str, tuple[int, ...]]) -> None:
    """Refuse a request whose inputs, each valid, are not complete, or not valid together."""
    if len(shapes) != len(signature.inputs):
        missing = [name for name in signature.inputs if name not in shapes]
        raise RequestError(400, f"missing input: {quote_names(missing)}")
    strings = sum(
        math.prod(shape)
        for name, shape in shapes.items()
        if signature.inputs[name].datatype.is_string
    )
    if strings > STRINGS:
        raise RequestError(400, f"the request has {strings} strings, more than {STRINGS:,}")
    signature.check_together(shapes)


def check_size(tensor: Tensor, count: int, size: int, what: str) -> None:
    """Refuse a wrong `size` in bytes for `count` elements; strings have no fixed size."""
    datatype = tensor.datatype
    if not datatype.is_string and size != count * datatype.dtype.itemsize:
        raise RequestError(
            400,
            f"input {tensor.name!r}: {what} {size}, but {count} elements of"
            f" {datatype.name} have {count * datatype.dtype.itemsize} bytes",
        )


def find_output(signature: Signature, name: str, given: Collection[str]) -> Tensor:
    """Return the output of this name; refuse an unknown one, and one that is already `given`."""
    tensor = signature.outputs.get(name)
    if tensor is None:
        raise RequestError(
            400,
            f"output {show(name)} is unknown; the model's outputs are"
            f" {quote_names(signature.outputs)}",
        )
    if name in given:
        raise RequestError(400, f"output {name!r} is requested twice")
    return tensor
