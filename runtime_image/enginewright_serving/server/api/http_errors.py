"""The responses to HTTP requests that fail."""

from typing import Final

from enginewright_runtime.core.request_errors import RequestError

from enginewright_serving.transport.application import json_response
from enginewright_serving.transport.message import HttpResponse
from enginewright_serving.transport.settings import RETRY_AFTER_SECONDS

_RETRY: Final = b"Retry-After: %d\r\n" % RETRY_AFTER_SECONDS


def refusal_response(status: int, message: str, headers: bytes = b"") -> HttpResponse:
    """Return an error's response, with further header lines."""
    return json_response(status, {"error": message}, headers)


def error_response(error: RequestError, headers: bytes = b"") -> HttpResponse:
    """Return the response to a request that fails with `error`."""
    return refusal_response(
        error.status, error.message, headers + (_RETRY if error.status == 503 else b"")
    )
