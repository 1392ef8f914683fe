"""Requests that have answers of their own: numbers of many lengths, or images; and whether an answer is theirs."""

import io
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx
from enginewright_serving.server.protocol.grpc import messages
from numpy.typing import NDArray
from PIL import Image

from tests.support.broken_models import parse_text
from tests.support.processing import LABELS
from tests.support.serving import Answer

ROWS: Final = (1, 1, 1, 2, 3, 5, 40, 2_000)
MOST_LENGTH: Final = 20
_LARGE_ROWS: Final = 30_000
_LARGEST: Final = 1 << 20  # of numbers, of which three times as much is a float32
_SIZES: Final = (8, 32, 200, 900)  # of images
_SPREAD: Final = 100  # between the colours of an image


@dataclass(frozen=True)
class Question:
    """One request."""

    identifier: str
    described: dict[str, Any]  # name, datatype and shape of the input
    data: bytes
    output: str
    expected: NDArray[Any] | None  # of the output, unless it is refused
    numbers: list[int] | None = None  # for JSON, if few

    def is_own(self, identifier: str, values: NDArray[Any]) -> bool:
        """Whether values of the output, and the identifier beside them, are the answer to this."""
        return (
            identifier == self.identifier
            and self.expected is not None
            and np.array_equal(values, self.expected)
        )


Source = Callable[[random.Random, str], Question]


def triple() -> onnx.ModelProto:
    """Return x [batch, n] -> y [batch, n] = 3 x + 1, of which padding changes nothing."""
    return parse_text(
        """(int32[batch, n] x) => (float[batch, n] y) <float three = {3}, float one = {1}> {
        number = Cast<to = 1>(x) tripled = Mul(number, three) y = Add(tripled, one) }"""
    )


def ask_to_triple(choices: random.Random, identifier: str) -> Question:
    """Return rows of numbers."""
    rows = _LARGE_ROWS if choices.random() < 0.02 else choices.choice(ROWS)
    shape = (rows, choices.randint(1, MOST_LENGTH))
    seed = choices.randrange(1 << 32)
    numbers = np.random.default_rng(seed).integers(1, _LARGEST, shape, np.int32)
    return Question(
        identifier,
        {"name": "x", "datatype": "INT32", "shape": list(shape)},
        numbers.tobytes(),
        "y",
        (numbers.ravel() * 3 + 1).astype(np.float32),
        numbers.ravel().tolist() if rows <= 5 else None,
    )


def ask_for_a_label(choices: random.Random, identifier: str) -> Question:
    """Return an image of the label's colour, or half of one."""
    label = choices.randrange(len(LABELS))
    color = [choices.randrange(_SPREAD) for _ in LABELS]
    color[label] += _SPREAD
    size = choices.choice(_SIZES)
    file = io.BytesIO()
    Image.new("RGB", (size, size), tuple(color)).save(file, choices.choice(["JPEG", "PNG"]))
    data = file.getvalue()
    is_whole = choices.random() < 0.8
    if not is_whole:
        data = data[: len(data) // 2]
    described = {"name": "image", "datatype": "UINT8", "shape": [len(data)]}
    expected = np.array([LABELS[label]]) if is_whole else None
    return Question(identifier, described, data, "label", expected)


def read_http(answer: Answer, name: str) -> tuple[str, NDArray[Any]]:
    """Return the identifier and the values of an output."""
    is_binary = "inference-header-content-length" in answer.headers
    tensors = answer.tensors() if is_binary else b""
    document = Answer(200, {}, answer.body.removesuffix(tensors)).json()
    outputs = document["outputs"]
    sizes = [item.get("parameters", {}).get("binary_data_size", 0) for item in outputs]
    ends = itertools.accumulate(sizes)
    for output, size, end in zip(outputs, sizes, ends, strict=True):
        if output["name"] == name:
            values = (
                _decode(output["datatype"], tensors[end - size : end])
                if size
                else np.ravel(output["data"])
            )
            return document["id"], values
    raise AssertionError(f"no output {name!r}: {document}")


def read_grpc(message: bytes, name: str) -> tuple[str, NDArray[Any]]:
    """Return the identifier and the values of an output."""
    answer = messages.InferResponse.FromString(message)
    names = [output.name for output in answer.outputs]
    place = names.index(name)
    values = _decode(answer.outputs[place].datatype, answer.raw_output_contents[place])
    return answer.id, values


def _decode(datatype: str, data: bytes) -> NDArray[Any]:
    return np.array(_strings(data)) if datatype == "BYTES" else np.frombuffer(data, np.float32)


def _strings(data: bytes) -> Sequence[str]:
    texts = []
    while data:
        size = int.from_bytes(data[:4], "little")
        texts.append(data[4 : 4 + size].decode())
        data = data[4 + size :]
    return texts
