"""What a model takes and gives, and the check that a request's shapes are among it.

Only declared shape profiles limit a dynamic dimension: without one, the CPU and OpenVINO backends
take every size, so refusing any would break clients for nothing.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from enginewright.contract.task import ShapeProfile

from enginewright_runtime.server.datatypes import BY_ONNX, Datatype
from enginewright_runtime.server.errors import OutOfProfileError, RequestError

_LARGEST: Final = 2**31 - 1  # of a dimension without a profile
_LARGEST_RANK: Final = 32
_LARGEST_BYTES: Final = 2**62


class NodeArg(Protocol):
    """An input or output as ONNX Runtime describes it."""

    name: str
    type: str
    shape: list[int | str | None]


class SignatureError(ValueError):
    """The model cannot be served with this protocol."""


class ProfileError(ValueError):
    """The shape profiles do not fit the model."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input or output.

    `shape` is empty for a scalar and for an unknown rank, which ONNX Runtime does not tell apart:
    such a tensor's shape is left to it.
    """

    name: str
    datatype: Datatype
    shape: tuple[int, ...]  # -1: dynamic
    bounds: tuple[tuple[int, int], ...]  # least and largest size of every dimension
    profiled: bool = False

    def count(self, shape: object) -> int:
        """Return how many elements a tensor of `shape` has.

        Raises:
            RequestError: `shape` is no list of sizes, or the input does not allow it.
        """
        if type(shape) is not list:
            raise RequestError(400, f"input {self.name!r}: 'shape' must be a list of sizes")
        if len(shape) > _LARGEST_RANK or (self.bounds and len(shape) != len(self.bounds)):
            raise self._wrong(shape, f"has {len(shape)} dimensions")
        count = 1
        bounds = self.bounds or ((0, _LARGEST),) * len(shape)
        for size, (low, high) in zip(shape, bounds, strict=True):
            if type(size) is not int or not low <= size <= high:
                raise self._refusal(shape)
            count *= size
        if not count and math.prod(max(size, 1) for size in shape) > _LARGEST_BYTES // 8:
            raise self._wrong(shape, "is too large")
        return count

    def _wrong(self, shape: list[object], what: str) -> RequestError:
        return RequestError(400, f"input {self.name!r}: shape {_show(shape)} {what}{self._hint()}")

    def _hint(self) -> str:
        return f"; the model takes {_show(self.shape)}" if self.bounds else ""

    def _refusal(self, shape: list[object]) -> RequestError:
        bounds = self.bounds or ((0, _LARGEST),) * len(shape)
        declared = self.shape or (-1,) * len(shape)
        for index, size in enumerate(shape):
            low, high = bounds[index]
            if type(size) is not int or size < 0:
                return self._wrong(shape, f"must hold sizes, and dimension {index} is {size!r}")
            if declared[index] >= 0 and size != declared[index]:
                return self._wrong(shape, f"has {size} in dimension {index}")
            if declared[index] < 0 and self.profiled and not low <= size <= high:
                return OutOfProfileError(
                    f"input {self.name!r}: shape {_show(shape)} is outside the model's shape profile:"
                    f" dimension {index} is {size}, allowed {low} to {high}"
                )
        return self._wrong(shape, "is too large")


@dataclass(frozen=True, slots=True)
class Signature:
    """All inputs and outputs, by name, in the model's order."""

    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    left_out: tuple[str, ...]  # outputs that no tensor of the protocol can carry

    @property
    def largest_request(self) -> int:
        """Bytes of the tensors of the largest request with fixed-size elements, 0 if unbounded."""
        total = 0
        for tensor in self.inputs.values():
            if not tensor.bounds or any(high == _LARGEST for _, high in tensor.bounds):
                return 0
            total += math.prod(high for _, high in tensor.bounds) * tensor.datatype.dtype.itemsize
        return total


def read_signature(
    inputs: Iterable[NodeArg], outputs: Iterable[NodeArg], profiles: Iterable[ShapeProfile]
) -> Signature:
    """Derive the signature from what the session says and the profiles that were declared.

    Raises:
        SignatureError: an input, or every output, is of a type that the protocol has not.
        ProfileError: a profile names no input or has another rank.
    """
    by_input = {profile.input: profile for profile in profiles}
    taken = {arg.name: _input(arg, by_input.pop(arg.name, None)) for arg in inputs}
    if by_input:
        raise ProfileError(f"a shape profile is for {_names(by_input)}, which is no input")
    given: dict[str, Tensor] = {}
    left_out: list[str] = []
    for arg in outputs:
        if datatype := BY_ONNX.get(arg.type):
            given[arg.name] = Tensor(arg.name, datatype, _shape(arg), ())
        else:
            left_out.append(f"{arg.name} ({arg.type})")
    if not given:
        raise SignatureError(f"no output is a tensor: {', '.join(left_out)}")
    return Signature(taken, given, tuple(left_out))


def _input(arg: NodeArg, profile: ShapeProfile | None) -> Tensor:
    datatype = BY_ONNX.get(arg.type)
    if datatype is None:
        raise SignatureError(
            f"input {arg.name!r} is a {arg.type}, which the Open Inference Protocol cannot carry"
        )
    shape = _shape(arg)
    if profile is None:
        bounds = tuple((size, size) if size >= 0 else (0, _LARGEST) for size in shape)
        return Tensor(arg.name, datatype, shape, bounds)
    if len({len(shape), len(profile.min), len(profile.max)}) != 1:
        raise ProfileError(
            f"input {arg.name!r} has {len(shape)} dimensions, its shape profile {len(profile.min)}"
        )
    bounds = tuple(
        (size, size) if size >= 0 else (low, high)
        for size, low, high in zip(shape, profile.min, profile.max, strict=True)
    )
    return Tensor(arg.name, datatype, shape, bounds, profiled=True)


def _shape(arg: NodeArg) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) and size >= 0 else -1 for size in arg.shape)


def _show(shape: Sequence[object]) -> str:
    shown = ",".join(repr(size)[:20] for size in shape[:8])
    return f"[{shown},…]" if len(shape) > 8 else f"[{shown}]"


def _names(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)
