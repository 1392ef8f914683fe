"""The responses to HTTP requests that fail."""

from enginewright_runtime.core.request_errors import RequestError

from enginewright_serving.transport.application import RETRY_AFTER, refusal_response
from enginewright_serving.transport.message import HttpResponse


def error_response(error: RequestError, headers: bytes = b"") -> HttpResponse:
    """Return the response to a request that fails with `error`."""
    return refusal_response(
        error.status, error.message, headers + (RETRY_AFTER if error.status == 503 else b"")
    )
