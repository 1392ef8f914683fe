"""A model's inputs and outputs, and the validation of requests' shapes by the declared profiles and the engine's."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from enginewright_contract.signature import PublishedSignature, TensorText, size_text
from enginewright_contract.task import ShapeProfile
from numpy.typing import NDArray

from enginewright_runtime.core.request_errors import OutOfProfileError, RequestError
from enginewright_runtime.session.datatypes import BF16, BY_ONNX, BYTES, Datatype

_LARGEST: Final = 2**31 - 1  # of a dimension without a profile
_LARGEST_RANK: Final = 32
_LARGEST_BYTES: Final = 2**62
_LONGEST_SHOWN: Final = 100  # characters

Bounds: TypeAlias = tuple[tuple[int, int], ...]  # least and largest size of every dimension


class NodeArg(Protocol):
    """An input or output of ONNX Runtime."""

    name: str
    type: str
    shape: list[int | str | None]


@dataclass
class Argument:
    """An input or output that is described without a session."""

    name: str
    type: str
    shape: list[int | str | None]


class SignatureError(ValueError):
    """The model cannot be served with this protocol."""


class ProfileError(ValueError):
    """The shape profiles do not match the model."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input or output; a `shape` that is empty, of a scalar or an unknown rank, is not validated here."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]  # -1 where dynamic
    bounds: Bounds  # of all profiles together, if known
    profiled: bool = False
    values: tuple[float, float] | None = None  # least and largest value, where values are sizes

    def count(self, shape: object) -> int:
        """Return how many elements a tensor of `shape` has; raises RequestError unless it is valid."""
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

    def check_values(self, array: NDArray[Any]) -> None:
        """Raise OutOfProfileError if an element is outside `values`."""
        if self.values is None or not array.size:
            return
        low, high = self.values
        wrong = array[(array < low) | (array > high)]
        if wrong.size:
            raise OutOfProfileError(
                f"input {self.name!r}: its values are sizes, and {wrong.flat[0]} is outside the"
                f" model's shape profile: allowed {low:g} to {high:g}"
            )

    def _wrong(self, shape: list[object], what: str) -> RequestError:
        hint = f"; the model expects {_show(self.shape)}" if self.bounds else ""
        return RequestError(400, f"input {self.name!r}: shape {_show(shape)} {what}{hint}")

    def _refusal(self, shape: list[object]) -> RequestError:
        bounds = self.bounds or ((0, _LARGEST),) * len(shape)
        declared = self.shape or (-1,) * len(shape)
        for index, size in enumerate(shape):
            low, high = bounds[index]
            if type(size) is not int or size < 0:
                return self._wrong(shape, f"must hold sizes, and dimension {index} is {show(size)}")
            if declared[index] >= 0 and size != declared[index]:
                return self._wrong(shape, f"has {size} in dimension {index}")
            if declared[index] < 0 and self.profiled and not low <= size <= high:
                return OutOfProfileError(
                    f"input {self.name!r}: shape {_show(shape)} is outside the model's shape profile:"
                    f" dimension {index} is {size}, allowed {low} to {high}"
                )
            if size < low:
                what = f"is empty: dimension {index} is {size}, and must be at least {low}"
                return self._wrong(shape, what)
        return self._wrong(shape, "is too large")


@dataclass(frozen=True, slots=True)
class Signature:
    """All inputs and outputs, by name, in the model's order."""

    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    left_out: tuple[str, ...]  # outputs that the protocol cannot represent
    # bounds by input, if there are several profiles: all inputs must fit the same one
    profiles: tuple[Mapping[str, Bounds], ...] = ()

    @property
    def valued(self) -> tuple[Tensor, ...]:
        """The inputs whose values are bounded too."""
        return tuple(tensor for tensor in self.inputs.values() if tensor.values is not None)

    def publish(self) -> PublishedSignature:
        """Return it as text: the sizes that inputs may have, and the shapes of outputs."""
        inputs = (
            TensorText(
                tensor.name,
                tensor.datatype.name,
                tuple(
                    size_text(low, None if high == _LARGEST else high)
                    for low, high in tensor.bounds
                ),
            )
            for tensor in self.inputs.values()
        )
        outputs = (
            TensorText(tensor.name, tensor.datatype.name, tuple(map(str, tensor.shape)))
            for tensor in self.outputs.values()
        )
        return PublishedSignature.of(inputs, outputs)

    def check_together(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Raise OutOfProfileError if the shapes do not all fit the same profile."""
        if not self.profiles or any(_takes(profile, shapes) for profile in self.profiles):
            return
        requested = ", ".join(f"{name!r} {_show(shape)}" for name, shape in shapes.items())
        allowed = "; or ".join(
            ", ".join(f"{name!r} {_ranges(bounds)}" for name, bounds in profile.items())
            for profile in self.profiles
        )
        raise OutOfProfileError(
            f"inputs {requested} are outside the model's shape profiles; all inputs must fit the same"
            f" one: {allowed}"
        )

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
    inputs: Iterable[NodeArg],
    outputs: Iterable[NodeArg],
    profiles: Sequence[Sequence[ShapeProfile]],
    *,
    least: int = 0,
) -> Signature:
    """Derive the signature from a session's inputs and outputs and the served profiles.

    A request must fit one of the profiles; `least` is the smallest size of dimensions without a limit. Raises
    SignatureError for an input, or all outputs, of unsupported types, ProfileError for a profile that does not fit.
    """
    by_input: dict[str, list[ShapeProfile]] = {}
    for shape_profile in (item for profile in profiles for item in profile):
        by_input.setdefault(shape_profile.input, []).append(shape_profile)
    taken = {arg.name: _input(arg, by_input.pop(arg.name, []), least) for arg in inputs}
    if by_input:
        raise ProfileError(f"a shape profile names {quote_names(by_input)}, which is not an input")
    given: dict[str, Tensor] = {}
    left_out: list[str] = []
    # ONNX Runtime takes strings only as NumPy arrays, and returns BF16 only where it is given none
    strings = [tensor.name for tensor in taken.values() if tensor.datatype is BYTES]
    for arg in outputs:
        datatype = BY_ONNX.get(arg.type)
        if datatype is BF16 and strings:
            left_out.append(f"{arg.name} (BF16 beside the strings of input {strings[0]!r})")
        elif datatype is not None:
            given[arg.name] = Tensor(arg.name, datatype, _shape(arg), ())
        else:
            left_out.append(f"{arg.name} ({arg.type})")
    if not given:
        what = f": {', '.join(left_out)}" if left_out else ": the graph declares none"
        raise SignatureError(f"no output is a tensor that can be served{what}")
    several = tuple(_bounds_of(profile, taken) for profile in profiles if len(profiles) > 1)
    return Signature(taken, given, tuple(left_out), several)


def _input(arg: NodeArg, profiles: Sequence[ShapeProfile], least: int) -> Tensor:
    datatype = BY_ONNX.get(arg.type)
    if datatype is None:
        raise SignatureError(
            f"input {arg.name!r} is a {arg.type}, which the Open Inference Protocol does not support"
        )
    shape = _shape(arg)
    if not profiles:
        bounds = tuple((size, size) if size >= 0 else (least, _LARGEST) for size in shape)
        return Tensor(arg.name, datatype, shape, bounds)
    for profile in profiles:
        if len({len(shape), len(profile.min), len(profile.max)}) != 1:
            raise ProfileError(
                f"input {arg.name!r} has {len(shape)} dimensions, but its shape profile has"
                f" {len(profile.min)}"
            )
    lows = [
        min(sizes) for sizes in zip(*(shape_profile.min for shape_profile in profiles), strict=True)
    ]
    highs = [
        max(sizes) for sizes in zip(*(shape_profile.max for shape_profile in profiles), strict=True)
    ]
    bounds = _within(shape, lows, highs)
    values = _values(profiles)
    return Tensor(arg.name, datatype, shape, bounds, profiled=True, values=values)


def _values(profiles: Sequence[ShapeProfile]) -> tuple[float, float] | None:
    lows = [profile.low for profile in profiles if profile.low is not None]
    highs = [profile.high for profile in profiles if profile.high is not None]
    return (min(lows), max(highs)) if lows and highs else None


def _bounds_of(
    profile: Sequence[ShapeProfile], inputs: Mapping[str, Tensor]
) -> Mapping[str, Bounds]:
    return {
        shape_profile.input: _within(
            inputs[shape_profile.input].shape, shape_profile.min, shape_profile.max
        )
        for shape_profile in profile
    }


def _within(shape: Sequence[int], lows: Sequence[int], highs: Sequence[int]) -> Bounds:
    """Return the bounds of a profile; sizes that the model fixes are kept."""
    return tuple(
        (size, size) if size >= 0 else (low, high)
        for size, low, high in zip(shape, lows, highs, strict=True)
    )


def _takes(profile: Mapping[str, Bounds], shapes: Mapping[str, Sequence[int]]) -> bool:
    return all(
        low <= size <= high
        for name, bounds in profile.items()
        for size, (low, high) in zip(shapes[name], bounds, strict=True)
    )


def _shape(arg: NodeArg) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) and size >= 0 else -1 for size in arg.shape)


def _show(shape: Sequence[object]) -> str:
    sizes = ",".join(show(size)[:20] for size in shape[:8])
    return f"[{sizes},…]" if len(shape) > 8 else f"[{sizes}]"


def _ranges(bounds: Bounds) -> str:
    ranges = [str(low) if low == high else f"{low} to {high}" for low, high in bounds]
    return f"[{','.join(ranges)}]"


def quote_names(names: Iterable[str]) -> str:
    """Return names for messages."""
    return ", ".join(repr(name) for name in names)


def show(value: object) -> str:
    """Return a value of a request for messages: the start of a long one, the type of a container."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    if isinstance(value, str) and len(value) > _LONGEST_SHOWN:
        return f"{value[:_LONGEST_SHOWN]!r}…"
    return repr(value)
