"""A model's inputs and outputs as clients of the Open Inference Protocol see them, as short texts."""

import re
from collections.abc import Iterable
from typing import Final, NamedTuple, Self

from typing_extensions import override

from enginewright_contract.base import Digest, Message
from enginewright_contract.keys import content_hash

ANY_SIZE: Final = "-1"
_TEXT: Final = re.compile(r"(.*):([A-Z0-9]+)\[([^\[\]]*)\]", re.DOTALL)


class TensorText(NamedTuple):
    """One input or output; as text such as "images:FP32[1..32,3,224,224]"."""

    name: str
    dtype: str  # as in the protocol
    shape: tuple[str, ...]  # a size, a range of sizes or `ANY_SIZE`; () also of an undeclared rank

    @override
    def __str__(self) -> str:
        return f"{self.name}:{self.dtype}[{','.join(self.shape)}]"

    @classmethod
    def read(cls, text: str) -> Self:
        """Read one from its text; ValueError if it is not one."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ValueError(f"{text[:100]!r} describes no tensor")
        name, dtype, sizes = match.groups()
        return cls(name, dtype, tuple(sizes.split(",")) if sizes else ())


class PublishedSignature(Message):
    """All inputs and outputs in the model's order; the digest is the same in any order, since requests name them."""

    digest: Digest
    inputs: tuple[str, ...] = ()  # `TensorText` each
    outputs: tuple[str, ...] = ()  # likewise; (): inputs and outputs are not listed

    @classmethod
    def of(cls, inputs: Iterable[TensorText], outputs: Iterable[TensorText]) -> Self:
        """Return the signature of a model."""
        taken, given = tuple(map(str, inputs)), tuple(map(str, outputs))
        return cls(digest=content_hash(sorted(taken), sorted(given)), inputs=taken, outputs=given)

    def drop_lists(self) -> Self:
        """Return it with only its digest."""
        return self.model_copy(update={"inputs": (), "outputs": ()})


def size_text(low: int, high: int | None) -> str:
    """Return the text of a dimension; without `high` it is unlimited."""
    if high is None:
        return ANY_SIZE
    return str(low) if low == high else f"{low}..{high}"
