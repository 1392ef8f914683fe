"""Requests for embeddings in OpenAI's form, and their answers: https://platform.openai.com/docs/api-reference/embeddings.

Clients may add `parameters` with `timeout` and `priority`, as in an inference request.
"""

import binascii
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson
from enginewright_runtime.core.request_errors import RequestError
from enginewright_runtime.session.signature import show
from numpy.typing import NDArray

from enginewright_serving.server.protocol import request_checks as checks
from enginewright_serving.server.protocol.decode import Feeds
from enginewright_serving.server.protocol.encode import JSON_ELEMENTS, encodes_slowly
from enginewright_serving.server.protocol.inference_request import LARGE_JSON, read_document
from enginewright_serving.server.protocol.priorities import read_priority
from enginewright_serving.transport.message import JSON_TYPE, Body, HttpResponse

TEXTS: Final = "input"
MOST_TEXTS: Final = 2048  # of a request, as OpenAI has it
_FORMATS: Final = ("float", "base64")
_TOKENS: Final = (
    "token IDs are not supported, as the model has a tokenizer of its own: send strings (in"
    " LangChain's OpenAIEmbeddings set check_embedding_ctx_length=False)"
)


class FieldError(RequestError):
    """A field of a request is not accepted."""

    def __init__(
        self, field: str, message: str, status: int = 400, code: str | None = None
    ) -> None:
        super().__init__(status, f"{field!r} {message}")
        self.field = field
        self.code = code


@dataclass(frozen=True, slots=True)
class EmbeddingsRequest:
    """What a request asks for besides its texts."""

    base64: bool
    timeout: float  # seconds, 0 without one
    priority: int


class EmbeddingsDecoder:
    """Decodes requests for the embeddings of one model."""

    def __init__(self, model: str, size: int) -> None:
        """Create it; vectors have this `size`, 0 if it is not fixed."""
        self._model = model
        self._size = size

    def is_slow(self, body: Body, json_length: int | None) -> bool:
        """Return whether decoding may take more than a millisecond."""
        del json_length
        return body.length > LARGE_JSON

    def decode(self, body: Body, json_length: int | None) -> tuple[EmbeddingsRequest, Feeds]:
        """Return the parsed request of `body`, all of which is JSON, and its `TEXTS`; raise RequestError."""
        del json_length
        return read_document(body.view(), TEXTS, self._read)

    def _read(self, document: dict[str, Any]) -> tuple[EmbeddingsRequest, Feeds]:
        model = document.get("model")
        if model is not None and model != self._model:
            what = f"{show(model)} is not served here; this server has {self._model!r}"
            raise FieldError("model", what, 404, "model_not_found")
        form = document.get("encoding_format")
        if form is not None and form not in _FORMATS:
            raise FieldError("encoding_format", f"is {show(form)}; write 'float' or 'base64'")
        size = document.get("dimensions")
        if size is not None and (type(size) is not int or size != self._size):
            what = f"is {show(size)}, and vectors are not shortened"
            fixed = f": this model's have {self._size} dimensions" if self._size else ""
            raise FieldError("dimensions", f"{what}{fixed}; leave it out")
        parameters = document.get("parameters")
        if parameters is None:
            parameters = {}
        if not isinstance(parameters, dict):
            raise FieldError("parameters", "must be an object")
        texts = _read_texts(document.get(TEXTS))
        request = EmbeddingsRequest(
            base64=form == "base64",
            timeout=checks.timeout_seconds(parameters),
            priority=read_priority(parameters),
        )
        return request, {TEXTS: np.fromiter(texts, object, len(texts))}


def _read_texts(given: object) -> list[str]:
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts:
        raise FieldError(TEXTS, "must be a string, or a list of strings that is not empty")
    types = set(map(type, texts))
    if types <= {int, list}:
        raise FieldError(TEXTS, f"must hold strings: {_TOKENS}")
    if types != {str}:
        raise FieldError(TEXTS, "must hold strings only")
    if len(texts) > MOST_TEXTS:
        raise FieldError(
            TEXTS, f"has {len(texts)} texts, and at most {MOST_TEXTS} may be sent at once"
        )
    return texts


class EmbeddingsEncoder:
    """Encodes the answers; `arrays` are the vectors, [texts, size], and the numbers of tokens by text."""

    def __init__(self, model: str) -> None:
        self._model = orjson.dumps(model)

    def check(self, plan: EmbeddingsRequest, arrays: list[NDArray[Any]]) -> None:
        """Refuse to encode vectors that are too large for JSON: RequestError 400."""
        vectors = arrays[0]
        if vectors.size > JSON_ELEMENTS and not plan.base64:
            what = f"has {len(vectors)} texts, whose vectors have {vectors.size} elements"
            raise FieldError(TEXTS, f"{what}: send fewer, or set encoding_format to 'base64'")

    def is_slow(self, plan: EmbeddingsRequest, arrays: list[NDArray[Any]]) -> bool:
        """Return whether encoding may take more than a millisecond."""
        del plan  # base64 takes a fraction of the time of floats, and large ones are as many bytes
        return encodes_slowly(arrays[:1], (False,))

    def encode(self, plan: EmbeddingsRequest, arrays: list[NDArray[Any]]) -> HttpResponse:
        """Return the response."""
        vectors, tokens = arrays
        write = _write_base64 if plan.base64 else _write_floats
        parts: list[bytes | memoryview] = [b'{"object":"list","data":[']
        for index, vector in enumerate(vectors):
            start = b"," if index else b""
            parts.append(
                b'%b{"object":"embedding","index":%d,"embedding":%b}'
                % (start, index, write(vector))
            )
        total = int(tokens.sum())
        parts.append(
            b'],"model":%b,"usage":{"prompt_tokens":%d,"total_tokens":%d}}'
            % (self._model, total, total)
        )
        return HttpResponse(200, JSON_TYPE, parts, sum(map(len, parts)))


def _write_floats(vector: NDArray[Any]) -> bytes:
    return orjson.dumps(vector, option=orjson.OPT_SERIALIZE_NUMPY)


def _write_base64(vector: NDArray[Any]) -> bytes:
    return b'"%b"' % binascii.b2a_base64(vector.astype("<f4", copy=False).tobytes(), newline=False)
