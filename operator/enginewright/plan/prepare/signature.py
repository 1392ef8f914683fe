"""Whether clients of one revision can use another: compares inputs and outputs by name.

The server requires every input and refuses every other one, so a new input breaks clients as a removed
one does; an input that gets a default in the model is removed, since the server no longer accepts it.
A request names the outputs that it wants, or gets all with their names, so order does not matter.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, TypeAlias

from enginewright_contract.signature import PublishedSignature, TensorText

from enginewright.api.inference_model_status import ModelSignature, TensorSignature

UNLISTED: Final = (
    "the inputs and outputs differ; they are too many to list here: the report of stage publish in the"
    " store lists them"
)

_Range: TypeAlias = tuple[float, float]  # least and largest size
_ANY: Final[_Range] = (0, inf)


@dataclass(frozen=True)
class SignatureChange:
    """Differences, a sentence each. Each tensor that differs is in one of them."""

    breaking: tuple[str, ...] = ()  # requests or their responses are no longer as clients expect
    compatible: tuple[str, ...] = ()  # more is accepted or returned than before


def listed(published: PublishedSignature) -> ModelSignature:
    """Return a reported signature for the status; without its tensors if they exceed the limits there."""
    try:
        return ModelSignature(
            digest=published.digest,
            inputs=tuple(map(_tensor, published.inputs)),
            outputs=tuple(map(_tensor, published.outputs)),
        )
    except ValueError:
        return ModelSignature(digest=published.digest)


def compare(old: ModelSignature, new: ModelSignature) -> SignatureChange:
    """Return what differs for clients of `old` when `new` serves instead."""
    if old.digest == new.digest:
        return SignatureChange()
    if not (old.outputs and new.outputs):  # a model has an output, so they are not listed
        return SignatureChange(breaking=(UNLISTED,))
    inputs = _compare("input", old.inputs, new.inputs, accepts=_contains)
    outputs = _compare("output", old.outputs, new.outputs, accepts=lambda a, b: _contains(b, a))
    return SignatureChange(
        breaking=(*inputs.breaking, *outputs.breaking),
        compatible=(*inputs.compatible, *outputs.compatible),
    )


def _tensor(text: str) -> TensorSignature:
    read = TensorText.read(text)
    return TensorSignature(name=read.name, dtype=read.dtype, shape=read.shape)


def _compare(
    kind: str,
    old: Sequence[TensorSignature],
    new: Sequence[TensorSignature],
    accepts: Callable[[_Range, _Range], bool],
) -> SignatureChange:
    """Compare all inputs, or all outputs.

    `accepts` returns whether the new sizes of a dimension, its first argument, suit clients of the old.
    """
    before, after = ({each.name: each for each in tensors} for tensors in (old, new))
    removed = {name: before[name] for name in before.keys() - after.keys()}
    added = {name: after[name] for name in after.keys() - before.keys()}
    renamed = _renamed(removed, added)
    breaking: list[str] = []
    compatible: list[str] = []
    for name, tensor in before.items():
        if name in renamed:
            breaking.append(f"{kind} {name} is now called {renamed[name]}")
        elif name in removed:
            breaking.append(f"{kind} {name} is removed")
        elif not _equal(tensor, after[name]):
            change = f"{kind} {name}: {_type(tensor)} → {_type(after[name])}"
            suits = _suits(tensor, after[name], accepts)
            (compatible if suits else breaking).append(change)
    for name, tensor in after.items():
        if name in added and name not in renamed.values():
            change = f"{kind} {name} is new: {_type(tensor)}"
            (compatible if kind == "output" else breaking).append(change)
    return SignatureChange(tuple(breaking), tuple(compatible))


def _renamed(
    removed: Mapping[str, TensorSignature], added: Mapping[str, TensorSignature]
) -> dict[str, str]:
    """Return new names by old ones, where only one removed and one added tensor have a type and shape."""
    found = {}
    for name, tensor in removed.items():
        alike = [each.name for each in added.values() if _equal(tensor, each)]
        others = [each for each in removed.values() if _equal(tensor, each)]
        if len(alike) == len(others) == 1:
            found[name] = alike[0]
    return found


def _equal(one: TensorSignature, other: TensorSignature) -> bool:
    return one.dtype == other.dtype and _ranges(one) == _ranges(other)


def _suits(
    old: TensorSignature, new: TensorSignature, accepts: Callable[[_Range, _Range], bool]
) -> bool:
    return (
        old.dtype == new.dtype
        and len(old.shape) == len(new.shape)
        and all(map(accepts, _ranges(new), _ranges(old)))
    )


def _ranges(tensor: TensorSignature) -> tuple[_Range, ...]:
    return tuple(map(_range, tensor.shape))


def _range(size: str) -> _Range:
    """Return the sizes that a dimension may have; any, of -1 or a name."""
    low, _, high = size.partition("..")
    if not (low.isdecimal() and (high or low).isdecimal()):
        return _ANY
    return int(low), int(high or low)


def _contains(outer: _Range, inner: _Range) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def _type(tensor: TensorSignature) -> str:
    return f"{tensor.dtype}[{','.join(tensor.shape)}]"
