"""Whether clients of one revision can use another: compares inputs and outputs by name.

The server requires every input and refuses every other one, so a new input breaks clients as a removed
one does; an input that gets a default in the model is removed, since the server no longer accepts it.
A request names the outputs that it wants, or gets all with their names, so order does not matter.
"""

from collections.abc import Iterator, Mapping, Sequence
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


def describe_signature(published: PublishedSignature) -> ModelSignature:
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
    breaking: list[str] = []
    compatible: list[str] = []
    for kind, before, after in (
        ("input", old.inputs, new.inputs),
        ("output", old.outputs, new.outputs),
    ):
        for difference, is_compatible in _compare(kind, before, after):
            (compatible if is_compatible else breaking).append(difference)
    return SignatureChange(tuple(breaking), tuple(compatible))


def _tensor(text: str) -> TensorSignature:
    read = TensorText.read(text)
    return TensorSignature(name=read.name, dtype=read.dtype, shape=read.shape)


def _compare(
    kind: str, old: Sequence[TensorSignature], new: Sequence[TensorSignature]
) -> Iterator[tuple[str, bool]]:
    """Yield the differences of all inputs, or all outputs, and whether each is compatible."""
    before, after = ({signature.name: signature for signature in tensors} for tensors in (old, new))
    removed = {name: before[name] for name in before.keys() - after.keys()}
    added = {name: after[name] for name in after.keys() - before.keys()}
    renamed = _match_renamed(removed, added)
    for name, tensor in before.items():
        if name in renamed:
            yield f"{kind} {name} is now called {renamed[name]}", False
        elif name in removed:
            yield f"{kind} {name} is removed", False
        elif not _equal(tensor, after[name]):
            wide, narrow = (tensor, after[name]) if kind == "output" else (after[name], tensor)
            is_compatible = _contains(wide, narrow)
            yield f"{kind} {name}: {_type(tensor)} → {_type(after[name])}", is_compatible
    for name, tensor in after.items():
        if name in added and name not in renamed.values():
            yield f"{kind} {name} is new: {_type(tensor)}", kind == "output"


def _match_renamed(
    removed: Mapping[str, TensorSignature], added: Mapping[str, TensorSignature]
) -> dict[str, str]:
    """Return new names by old ones, where only one removed and one added tensor have a type and shape."""
    renamed = {}
    for name, tensor in removed.items():
        alike = [signature.name for signature in added.values() if _equal(tensor, signature)]
        others = [signature for signature in removed.values() if _equal(tensor, signature)]
        if len(alike) == len(others) == 1:
            renamed[name] = alike[0]
    return renamed


def _equal(one: TensorSignature, other: TensorSignature) -> bool:
    return one.dtype == other.dtype and _ranges(one) == _ranges(other)


def _contains(outer: TensorSignature, inner: TensorSignature) -> bool:
    """Return whether `outer` allows every size that `inner` does: of inputs the new one must, of outputs the old one."""
    ranges = zip(_ranges(outer), _ranges(inner), strict=False)
    return (
        outer.dtype == inner.dtype
        and len(outer.shape) == len(inner.shape)
        and all(wide[0] <= narrow[0] and narrow[1] <= wide[1] for wide, narrow in ranges)
    )


def _ranges(tensor: TensorSignature) -> tuple[_Range, ...]:
    return tuple(map(_range, tensor.shape))


def _range(size: str) -> _Range:
    low, _, high = size.partition("..")
    if not (low.isdecimal() and (high or low).isdecimal()):
        return _ANY
    return int(low), int(high or low)


def _type(tensor: TensorSignature) -> str:
    return f"{tensor.dtype}[{','.join(tensor.shape)}]"
